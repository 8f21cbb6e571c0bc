// The end of a process that has pools: a pool that a static object owns, a pool that nobody
// ends, and exit() in the middle of things. Each in a process of its own, which must end
// promptly and with the status that it was given.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>

#include "check.h"
#include "counter.h"
#include "process.h"
#include "shared.h"

namespace {

int ran = 0, arrived = 0;

// Is destroyed after the pool, and looks how that went.
class Judge {
 public:
  ~Judge() {
    if (get(&ran) != expected) {
      fprintf(stderr, "%d tasks have run instead of %d\n", get(&ran), expected);
      _exit(1);
    }
  }
  int expected = 0;
};

class Owner {
 public:
  ~Owner() { rollout_pool_destroy(pool); }
  RolloutPool* pool = nullptr;
};

Judge judge;
Owner owner;
Run run, other;

void task(void*) {
  struct timespec pause = {0, 1000000};
  nanosleep(&pause, nullptr);
  add(&ran, 1);
}

[[noreturn]] void* wait_for_ever(void*) {
  add(&arrived, 1);
  for (;;) {
    pause();
  }
}

void task_without_end(void*) { wait_for_ever(nullptr); }

void exit_in_task(void*) { exit(6); }

// A step that tells that it is there.
void arrive() { add(&arrived, 1); }

// Steps of which one ends the process, in the middle of one of another thread.
pthread_t caller;
bool by_caller;

void exit_in_step() {
  add(&arrived, 1);
  if ((pthread_equal(pthread_self(), caller) != 0) == by_caller && reaches(&arrived, 2)) {
    exit(by_caller ? 8 : 7);
  }
  reaches(&arrived, 1000);
}

// A request that goes on until the pool ends.
void* call(void*) {
  rollout_run(owner.pool, &other.request, &other.error);
  wait_for_ever(nullptr);
}

void set_up_long() {
  run_set_up(&other, NBATCH, 1, arrive);
  other.request.nstep = size_t{1} << 40;
  other.request.state = rollout_output(nullptr, 0);
}

int child(const char* mode, int32_t nthread) {
  if (rollout_pool_create(nthread, &owner.pool, nullptr)) {
    return 99;
  }
  const auto is = [mode](const char* name) { return strcmp(mode, name) == 0; };
  pthread_t thread;
  if (is("idle")) {
    run_set_up(&run, NBATCH, 1, nullptr);
    return rollout_run(owner.pool, &run.request, &run.error) ? 99 : 2;
  }
  if (is("tasks")) {
    judge.expected = 50;
    for (int i = 0; i < judge.expected; i++) {
      rollout_pool_schedule(owner.pool, task, nullptr, nullptr);
    }
    return 3;
  }
  if (is("request")) {
    set_up_long();
    pthread_create(&thread, nullptr, call, nullptr);
    return reaches(&arrived, 1) ? 4 : 99;
  }
  if (is("nobody")) {
    // Nothing of this ever ends.
    set_up_long();
    pthread_create(&thread, nullptr, call, nullptr);
    if (nthread > 0) {
      rollout_pool_schedule(owner.pool, task_without_end, nullptr, nullptr);
    }
    const bool began = reaches(&arrived, 2);
    owner.pool = nullptr;
    return began ? 5 : 99;
  }
  if (is("task")) {
    rollout_pool_schedule(owner.pool, exit_in_task, nullptr, nullptr);
    wait_for_ever(nullptr);
  }
  by_caller = is("caller");
  caller = pthread_self();
  run_set_up(&run, NBATCH, 1, exit_in_step);
  rollout_run(owner.pool, &run.request, &run.error);
  wait_for_ever(nullptr);
}

// Runs a mode with pools of 1 and 2 threads.
void ends(const char* mode, int status) {
  static const char* const nthreads[] = {"1", "2"};
  for (const char* nthread : nthreads) {
    const int found = process_again(mode, nthread, 0);
    if (!CHECK(found == status)) {
      fprintf(stderr, "%s with %s threads: %d instead of %d\n", mode, nthread, found, status);
    }
  }
}

void a_static_pool_without_work_ends() { ends("idle", 2); }
void a_static_pool_runs_its_tasks_before_it_ends() { ends("tasks", 3); }
void a_static_pool_cancels_a_request_in_flight() { ends("request", 4); }
void a_pool_that_nobody_ends_does_not_keep_the_process() { ends("nobody", 5); }
void exit_in_a_task_ends_the_process() { ends("task", 6); }
void exit_in_a_step_on_a_worker_ends_the_process() { ends("worker", 7); }
void exit_in_a_step_on_the_caller_ends_the_process() { ends("caller", 8); }

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && argv[2][0] >= '0' && argv[2][0] <= '9') {
    return child(argv[1], atoi(argv[2]));
  }
  check_begin();
  CASE(a_static_pool_without_work_ends);
  CASE(a_static_pool_runs_its_tasks_before_it_ends);
  CASE(a_static_pool_cancels_a_request_in_flight);
  CASE(a_pool_that_nobody_ends_does_not_keep_the_process);
  CASE(exit_in_a_task_ends_the_process);
  CASE(exit_in_a_step_on_a_worker_ends_the_process);
  CASE(exit_in_a_step_on_the_caller_ends_the_process);
  return check_failures;
}
