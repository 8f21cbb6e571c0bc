// The lines that `cargo xtask ctest` reads: "ok NAME", or "FAILED NAME: why".
//
//   static void adds(void) {
//     CHECK(1 + 1 == 2);                       // goes on after a failure
//     if (!CHECK(pointer != NULL)) return;     // is true or false
//     CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_OK, &error);
//   }
//   int main(int argc, char** argv) {
//     check_begin();
//     CASE(adds);
//     return check_failures;
//   }
//
// The first failure of a case is the one that is told. Only the thread that runs
// the cases may check.
#ifndef ROLLOUT_TESTS_CHECK_H_
#define ROLLOUT_TESTS_CHECK_H_

#include <stdio.h>
#include <stdlib.h>

#include "rollout.h"

#define CHECK(condition) check_that(!!(condition), __FILE__, __LINE__, #condition)
#define CHECK_STATUS(call, expected, error) \
  check_status((call), (expected), (error), __FILE__, __LINE__, #call)
#define CASE(name) check_case(#name, name)

// Cases that failed.
static int check_failures = 0;
// A case that repeats something very often shall do one in so many of its repetitions,
// for a tool in which everything takes as many times as long (ROLLOUT_TESTS_PARTS).
static size_t check_parts = 1;
// Why the running case has failed; empty if it has not.
static char check_why[1024] = "";

static inline void check_begin(void) {
  const char* parts = getenv("ROLLOUT_TESTS_PARTS");
  check_parts = parts ? (size_t)atoi(parts) : 1;
}

static inline int check_that(int holds, const char* file, int line, const char* condition) {
  if (!holds && !check_why[0]) {
    snprintf(check_why, sizeof(check_why), "%s:%d: %s", file, line, condition);
  }
  return holds;
}

static inline int check_status(int32_t status, int32_t expected, const RolloutError* error,
                               const char* file, int line, const char* call) {
  if (status != expected && !check_why[0]) {
    snprintf(check_why, sizeof(check_why), "%s:%d: %s gave \"%s\" instead of \"%s\": %.488s", file,
             line, call, rollout_status_name(status), rollout_status_name(expected),
             error ? error->text : "");
  }
  return status == expected;
}

static inline void check_case(const char* name, void (*body)(void)) {
  check_why[0] = '\0';
  body();
  if (check_why[0]) {
    check_failures++;
    printf("FAILED %s: %s\n", name, check_why);
  } else {
    printf("ok %s\n", name);
  }
  fflush(stdout);
}

#endif  // ROLLOUT_TESTS_CHECK_H_
