// Numbers that threads share. C99 has no atomics of its own.
#ifndef ROLLOUT_TESTS_SHARED_H_
#define ROLLOUT_TESTS_SHARED_H_

#include <sched.h>
#include <time.h>

static inline int get(int* number) { return __atomic_load_n(number, __ATOMIC_ACQUIRE); }
static inline void set(int* number, int value) {
  __atomic_store_n(number, value, __ATOMIC_RELEASE);
}
static inline int add(int* number, int value) {
  return __atomic_add_fetch(number, value, __ATOMIC_ACQ_REL);
}

// Waits until `*number` is at least `value`, or far longer than anything here takes even
// on a busy machine. Returns whether it is.
static inline int reaches(int* number, int value) {
  time_t limit = time(NULL) + 60;
  while (get(number) < value) {
    if (time(NULL) > limit) {
      return 0;
    }
    sched_yield();
  }
  return 1;
}

#endif  // ROLLOUT_TESTS_SHARED_H_
