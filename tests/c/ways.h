// The ways to have a request run, which must all come to the same.
#ifndef ROLLOUT_TESTS_WAYS_H_
#define ROLLOUT_TESTS_WAYS_H_

#include "rollout.h"

// Runs a request in one of them: in a call, or handed over and waited for, at once or in
// slices, the shortest of which are of a step. Each thread goes through them in an order
// that no loop of a test repeats. Not for callbacks of the same pool, which must not wait.
static inline RolloutStatus run_in_some_way(RolloutPool* pool, const RolloutRequest* request,
                                            RolloutError* error) {
  static __thread uint32_t random = 1;
  RolloutRequest submitted = *request;
  RolloutTicket* ticket = NULL;
  RolloutStatus status;
  int64_t slice = -1;
  random = random * 1664525u + 1013904223u;
  if (random >> 30 == 0) {
    return rollout_run(pool, request, error);
  }
  if (random >> 30 == 1) {
    slice = 1 + (random >> 16 & 7) * 5000;
  }
  submitted.flags = random >> 29 & 1 ? ROLLOUT_REQUEST_ATTENDED : 0;
  status = rollout_submit(pool, &submitted, &ticket, error);
  if (status == ROLLOUT_STATUS_OK) {
    do {
      status = rollout_ticket_wait(ticket, slice, error);
    } while (status == ROLLOUT_STATUS_TIMEOUT);
    rollout_ticket_release(ticket, NULL);
  }
  return status;
}

#endif  // ROLLOUT_TESTS_WAYS_H_
