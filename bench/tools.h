// What every part of the benchmark needs.

#ifndef BENCH_TOOLS_H_
#define BENCH_TOOLS_H_

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rollout.h"

static void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fflush(stdout);
  fputs("bench: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(EXIT_FAILURE);
}

static void* allocate(size_t count, size_t size) {
  void* memory = calloc(count > 0 ? count : 1, size);
  if (!memory) {
    fail("no memory for %zu x %zu bytes", count, size);
  }
  return memory;
}

static double* numbers(size_t count) { return allocate(count, sizeof(double)); }

static void check(RolloutStatus status, const RolloutError* error) {
  if (status != ROLLOUT_STATUS_OK) {
    fail("rollout: %s: %s", rollout_status_name(status), error->text);
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// The next number in [low, high) of a sequence that is the same in every run.
static double uniform(uint64_t* seed, double low, double high) {
  *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return low + (high - low) * ((double)(*seed >> 11) * 0x1p-53);
}

#endif  // BENCH_TOOLS_H_
