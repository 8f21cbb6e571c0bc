// What was measured, as a table and as JSON.

#ifndef BENCH_REPORT_H_
#define BENCH_REPORT_H_

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mujoco/mujoco.h>

#include "contenders.h"
#include "problem.h"
#include "rollout.h"
#include "tools.h"

// One run of the program: what the user asked for, and where it runs.
typedef struct {
  const char* suite;
  const char* json;  // NULL if not wanted
  size_t nround, nthread;
  size_t ncpu;  // CPUs that this process may use
  char cpu[128];
  char date[32];
} Run;

// The times of one workload in seconds, for each contender one behind the other.
typedef struct {
  double* sample[NCONTENDER];  // nround, each of ncall calls
  double* call[NCONTENDER];    // nround x ncall; `ideal` has no calls and leaves them 0
} Times;

static Times make_times(const Workload* work, size_t nround) {
  Times times;
  for (size_t c = 0; c < NCONTENDER; c++) {
    times.sample[c] = numbers(nround);
    times.call[c] = numbers(nround * work->ncall);
  }
  return times;
}

static void free_times(Times* times) {
  for (size_t c = 0; c < NCONTENDER; c++) {
    free(times->sample[c]);
    free(times->call[c]);
  }
}

// The median of some numbers, with the quartiles.
typedef struct {
  double low, median, high;
} Spread;

// What is reported of one contender in one workload.
typedef struct {
  double steps_per_second;                   // median
  Spread times_loop;                         // its speed, divided by that of `loop`
  Spread rollout;                            // the speed of `rollout`, divided by its
  double call_median, call_p99, call_worst;  // seconds
} Summary;

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

// The number below which the part `part` of the sorted values lies.
static double quantile(const double* sorted, size_t n, double part) {
  const double position = part * (double)(n - 1);
  const size_t i = (size_t)position;
  const double rest = position - (double)i;
  return i + 1 < n ? sorted[i] + rest * (sorted[i + 1] - sorted[i]) : sorted[i];
}

static double* sorted_copy(const double* values, size_t n) {
  double* sorted = numbers(n);
  memcpy(sorted, values, n * sizeof(double));
  qsort(sorted, n, sizeof(double), compare);
  return sorted;
}

// Of the ratios a / b of the same round.
static Spread spread(const double* a, const double* b, size_t nround) {
  double* ratio = numbers(nround);
  for (size_t i = 0; i < nround; i++) {
    ratio[i] = a[i] / b[i];
  }
  qsort(ratio, nround, sizeof(double), compare);
  const Spread result = {quantile(ratio, nround, 0.25), quantile(ratio, nround, 0.5),
                         quantile(ratio, nround, 0.75)};
  free(ratio);
  return result;
}

static Summary summarise(const Workload* work, const Times* times, size_t c, size_t nround) {
  Summary summary;
  double* sample = sorted_copy(times->sample[c], nround);
  const double steps = (double)(work->nbatch * work->nstep * work->ncall);
  summary.steps_per_second = steps / quantile(sample, nround, 0.5);
  summary.times_loop = spread(times->sample[LOOP], times->sample[c], nround);
  summary.rollout = spread(times->sample[c], times->sample[ROLLOUT], nround);
  const size_t ncall = nround * work->ncall;
  double* call = sorted_copy(times->call[c], ncall);
  summary.call_median = quantile(call, ncall, 0.5);
  summary.call_p99 = quantile(call, ncall, 0.99);
  summary.call_worst = call[ncall - 1];
  free(sample);
  free(call);
  return summary;
}

// Whether there are enough calls in a sample to say something about single ones.
static int has_calls(const Workload* work, size_t contender) {
  return work->ncall > 1 && contender != IDEAL;
}

static void print_head(const Run* run) {
  printf("%s, ncpu %zu; MuJoCo %s, rollout %s; nthread %zu, nround %zu; %s\n\n", run->cpu,
         run->ncpu, mj_versionString(), rollout_version(), run->nthread, run->nround, run->date);
  printf("%-23s%-9s%10s   %-22s%-22s%s\n", "", "", "", "times loop", "rollout / this",
         "us per call");
  printf("%-23s%-9s%10s   %-22s%-22s%8s%8s%8s\n", "rollouts x steps", "", "steps/s",
         "median (quartiles)", "median (quartiles)", "median", "99 %", "worst");
  fflush(stdout);
}

static void print_spread(const Spread* spread) {
  printf("   %5.2f (%.2f .. %.2f)", spread->median, spread->low, spread->high);
}

static void print_times(const Workload* work, const Times* times, size_t nround) {
  for (size_t c = 0; c < NCONTENDER; c++) {
    const Summary summary = summarise(work, times, c, nround);
    char title[64] = "";
    if (c == 0) {
      snprintf(title, sizeof(title), "%-9s %5zu x %zu", work->model, work->nbatch, work->nstep);
    }
    printf("%-23s%-9s%10.0f", title, kName[c], summary.steps_per_second);
    print_spread(&summary.times_loop);
    print_spread(&summary.rollout);
    if (has_calls(work, c)) {
      printf("%9.2f%8.2f%8.1f", 1e6 * summary.call_median, 1e6 * summary.call_p99,
             1e6 * summary.call_worst);
    }
    putchar('\n');
  }
  putchar('\n');
  fflush(stdout);
}

static void write_spread(FILE* file, const char* name, const Spread* spread) {
  fprintf(file, ",\n          \"%s\": {\"quartiles\": [%.6g, %.6g], \"median\": %.6g}", name,
          spread->low, spread->high, spread->median);
}

static void write_contender(FILE* file, const Workload* work, const Times* times, size_t c,
                            size_t nround) {
  const Summary summary = summarise(work, times, c, nround);
  fprintf(file, "        \"%s\": {\n          \"seconds\": [", kName[c]);
  for (size_t i = 0; i < nround; i++) {
    fprintf(file, "%s%.9g", i > 0 ? ", " : "", times->sample[c][i]);
  }
  fprintf(file, "],\n          \"steps_per_second\": %.6g", summary.steps_per_second);
  write_spread(file, "times_loop", &summary.times_loop);
  write_spread(file, "rollout_over_this", &summary.rollout);
  if (has_calls(work, c)) {
    fprintf(file,
            ",\n          \"call_seconds\": {\"median\": %.6g, \"p99\": %.6g, \"worst\": %.6g}",
            summary.call_median, summary.call_p99, summary.call_worst);
  }
  fprintf(file, "\n        }%s\n", c + 1 < NCONTENDER ? "," : "");
}

// `seconds` are the times of the rounds, one after the other, each of ncall calls.
static void write_json(const Run* run, const Times* times) {
  FILE* file = fopen(run->json, "w");
  if (!file) {
    fail("cannot write %s", run->json);
  }
  fprintf(file, "{\n  \"cpu\": \"%s\",\n  \"ncpu\": %zu,\n", run->cpu, run->ncpu);
  fprintf(file, "  \"mujoco\": \"%s\",\n  \"rollout\": \"%s\",\n", mj_versionString(),
          rollout_version());
  fprintf(file, "  \"nthread\": %zu,\n  \"nround\": %zu,\n  \"date\": \"%s\",\n", run->nthread,
          run->nround, run->date);
  fputs("  \"workloads\": [\n", file);
  for (size_t i = 0; i < NWORKLOAD; i++) {
    const Workload* work = &kWorkload[i];
    fprintf(file, "    {\n      \"model\": \"%s\",\n      \"nbatch\": %zu,\n", work->model,
            work->nbatch);
    fprintf(file, "      \"nstep\": %zu,\n      \"ncall\": %zu,\n      \"contenders\": {\n",
            work->nstep, work->ncall);
    for (size_t c = 0; c < NCONTENDER; c++) {
      write_contender(file, work, &times[i], c, run->nround);
    }
    fprintf(file, "      }\n    }%s\n", i + 1 < NWORKLOAD ? "," : "");
  }
  fputs("  ]\n}\n", file);
  if (ferror(file) || fclose(file)) {
    fail("cannot write %s", run->json);
  }
}

#endif  // BENCH_REPORT_H_
