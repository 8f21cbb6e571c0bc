// The pool as C hosts use it: tasks that are counted and waited for, and requests
// of several threads. The engine of the requests is a counter.

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "counter.h"
#include "process.h"
#include "shared.h"

#define MANY 1000

static RolloutPool* new_pool(int32_t nthread) {
  RolloutPool* pool = NULL;
  RolloutError error = rollout_error();
  CHECK_STATUS(rollout_pool_create(nthread, &pool, &error), ROLLOUT_STATUS_OK, &error);
  return pool;
}

static void schedule(RolloutPool* pool, RolloutTask task, void* user) {
  RolloutError error = rollout_error();
  CHECK_STATUS(rollout_pool_schedule(pool, task, user, &error), ROLLOUT_STATUS_OK, &error);
}

static uint64_t count_of(RolloutPool* pool) {
  uint64_t count = UINT64_MAX;
  CHECK_STATUS(rollout_pool_count(pool, &count, NULL), ROLLOUT_STATUS_OK, NULL);
  return count;
}

static void wait_for(RolloutPool* pool, uint64_t count) {
  RolloutError error = rollout_error();
  CHECK_STATUS(rollout_pool_wait_count(pool, count, &error), ROLLOUT_STATUS_OK, &error);
}

static void add_one(void* number) {
  add((int*)number, 1);
}

// Occupies a thread until it is let go.
typedef struct Gate {
  int arrived;
  int open;
} Gate;

static void pass(void* user) {
  Gate* gate = (Gate*)user;
  add(&gate->arrived, 1);
  reaches(&gate->open, 1);
}

static void count_schedule_wait_reset(void) {
  RolloutPool* pool = new_pool(2);
  int ran = 0;
  int round, i;
  CHECK(count_of(pool) == 0);
  for (round = 1; round <= 100; round++) {
    uint64_t before = count_of(pool);
    for (i = 0; i < 10; i++) {
      schedule(pool, add_one, &ran);
    }
    wait_for(pool, before + 10);
    CHECK(get(&ran) == 10 * round);
  }
  CHECK(count_of(pool) == 1000);
  // Less than there is: returns at once.
  wait_for(pool, 1);
  CHECK_STATUS(rollout_pool_reset_count(pool, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK(count_of(pool) == 0);
  wait_for(pool, 0);
  rollout_pool_destroy(pool);
}

// Each writes its own plain number; the count makes them visible.
static int plain[MANY];

static void write_plain(void* number) {
  *(int*)number += 7;
}

static void what_tasks_wrote_is_visible_after_the_wait(void) {
  RolloutPool* pool = new_pool(3);
  int wrong = 0;
  int i;
  memset(plain, 0, sizeof(plain));
  for (i = 0; i < MANY; i++) {
    schedule(pool, write_plain, &plain[i]);
  }
  wait_for(pool, MANY);
  for (i = 0; i < MANY; i++) {
    wrong += plain[i] != 7;
  }
  CHECK(wrong == 0);
  rollout_pool_destroy(pool);
}

typedef struct Ids {
  Gate gate;
  int seen[4];
  int out_of_range;
} Ids;

static void note_id(void* user) {
  Ids* ids = (Ids*)user;
  int32_t id = rollout_worker_id();
  if (id < 0 || id >= 3) {
    add(&ids->out_of_range, 1);
  } else {
    add(&ids->seen[id], 1);
  }
  pass(&ids->gate);
}

static void worker_ids_are_in_range_inside_tasks_and_minus_one_outside(void) {
  RolloutPool* pool = new_pool(3);
  Ids ids;
  int i;
  memset(&ids, 0, sizeof(ids));
  CHECK(rollout_worker_id() == -1);
  // None ends before all have begun, so each has a thread of its own.
  for (i = 0; i < 3; i++) {
    schedule(pool, note_id, &ids);
  }
  CHECK(reaches(&ids.gate.arrived, 3));
  set(&ids.gate.open, 1);
  wait_for(pool, 3);
  CHECK(ids.out_of_range == 0);
  CHECK(ids.seen[0] == 1 && ids.seen[1] == 1 && ids.seen[2] == 1);
  CHECK(rollout_worker_id() == -1);
  rollout_pool_destroy(pool);
}

typedef struct Tree {
  RolloutPool* pool;
  int depth;
  int* ran;
} Tree;

static void grow(void* user) {
  Tree* tree = (Tree*)user;
  add(tree->ran, 1);
  if (tree->depth > 0) {
    // The two halves of what lies behind this one.
    Tree* left = tree + 1;
    Tree* right = tree + (1 << tree->depth);
    left->pool = right->pool = tree->pool;
    left->depth = right->depth = tree->depth - 1;
    left->ran = right->ran = tree->ran;
    rollout_pool_schedule(tree->pool, grow, left, NULL);
    rollout_pool_schedule(tree->pool, grow, right, NULL);
  }
}

static void tasks_schedule_tasks(void) {
  enum { DEPTH = 8, ALL = (1 << (DEPTH + 1)) - 1 };
  static Tree trees[ALL + 1];
  int32_t nthread;
  for (nthread = 0; nthread <= 3; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    int ran = 0;
    trees[0].pool = pool;
    trees[0].depth = DEPTH;
    trees[0].ran = &ran;
    schedule(pool, grow, &trees[0]);
    wait_for(pool, ALL);
    CHECK(get(&ran) == ALL);
    CHECK(count_of(pool) == ALL);
    rollout_pool_destroy(pool);
  }
}

static void tasks_progress_without_a_waiter(void) {
  RolloutPool* pool = new_pool(1);
  int ran = 0;
  int i;
  for (i = 0; i < 5; i++) {
    schedule(pool, add_one, &ran);
    // Each at a time when the thread may be asleep.
    CHECK(reaches(&ran, i + 1));
  }
  rollout_pool_destroy(pool);
}

typedef struct Caller {
  RolloutPool* pool;
  uint64_t value;
  int32_t status;
  int* started;
  int* returned;
} Caller;

static void* wait_as_caller(void* user) {
  Caller* caller = (Caller*)user;
  add(caller->started, 1);
  caller->status = rollout_pool_wait_count(caller->pool, caller->value, NULL);
  add(caller->returned, 1);
  return NULL;
}

static void several_threads_wait_at_once(void) {
  enum { CALLERS = 4 };
  RolloutPool* pool = new_pool(2);
  Gate gate = {0, 0};
  Caller callers[CALLERS];
  pthread_t threads[CALLERS];
  int started = 0, returned = 0;
  int i;
  schedule(pool, pass, &gate);
  for (i = 0; i < CALLERS; i++) {
    Caller caller = {pool, 1, -1, &started, &returned};
    // The last two wait for more.
    caller.value = i < 2 ? 1 : 3;
    callers[i] = caller;
    CHECK(pthread_create(&threads[i], NULL, wait_as_caller, &callers[i]) == 0);
  }
  CHECK(reaches(&started, CALLERS));
  CHECK(get(&returned) == 0);
  set(&gate.open, 1);
  CHECK(reaches(&returned, 2));
  CHECK(count_of(pool) == 1 && get(&returned) == 2);
  schedule(pool, pass, &gate);
  schedule(pool, pass, &gate);
  CHECK(reaches(&returned, CALLERS));
  for (i = 0; i < CALLERS; i++) {
    pthread_join(threads[i], NULL);
    CHECK(callers[i].status == ROLLOUT_STATUS_OK);
  }
  rollout_pool_destroy(pool);
}

typedef struct Scheduler {
  RolloutPool* pool;
  int* ran;
} Scheduler;

static void* schedule_many(void* user) {
  Scheduler* scheduler = (Scheduler*)user;
  int i;
  for (i = 0; i < MANY; i++) {
    rollout_pool_schedule(scheduler->pool, add_one, scheduler->ran, NULL);
  }
  return NULL;
}

static void several_threads_schedule_at_once(void) {
  enum { CALLERS = 4 };
  RolloutPool* pool = new_pool(2);
  pthread_t threads[CALLERS];
  int ran = 0;
  Scheduler scheduler;
  int i;
  scheduler.pool = pool;
  scheduler.ran = &ran;
  for (i = 0; i < CALLERS; i++) {
    CHECK(pthread_create(&threads[i], NULL, schedule_many, &scheduler) == 0);
  }
  wait_for(pool, CALLERS * MANY);
  CHECK(get(&ran) == CALLERS * MANY);
  for (i = 0; i < CALLERS; i++) {
    pthread_join(threads[i], NULL);
  }
  rollout_pool_destroy(pool);
}

static void a_long_task_does_not_hold_up_the_scheduler(void) {
  RolloutPool* pool = new_pool(1);
  Gate gate = {0, 0};
  int ran = 0;
  int i;
  schedule(pool, pass, &gate);
  CHECK(reaches(&gate.arrived, 1));
  for (i = 0; i < 100; i++) {
    schedule(pool, add_one, &ran);
  }
  // The one thread is occupied, so nothing of this can have run.
  CHECK(get(&ran) == 0 && count_of(pool) == 0);
  set(&gate.open, 1);
  wait_for(pool, 101);
  CHECK(get(&ran) == 100);
  rollout_pool_destroy(pool);
}

static void* open_soon(void* user) {
  struct timespec while_ = {0, 20 * 1000 * 1000};
  nanosleep(&while_, NULL);
  set(&((Gate*)user)->open, 1);
  return NULL;
}

static void destroy_runs_the_tasks_that_were_scheduled(void) {
  RolloutPool* pool = new_pool(1);
  Gate gate = {0, 0};
  int ran = 0;
  pthread_t opener;
  int i;
  schedule(pool, pass, &gate);
  for (i = 0; i < 100; i++) {
    schedule(pool, add_one, &ran);
  }
  CHECK(get(&ran) == 0);
  // Opens when the destruction has begun.
  CHECK(pthread_create(&opener, NULL, open_soon, &gate) == 0);
  rollout_pool_destroy(pool);
  CHECK(get(&ran) == 100);
  pthread_join(opener, NULL);
}

typedef struct Wait {
  RolloutPool* pool;
  uint64_t value;
  int32_t status;
  RolloutError error;
  int done;
} Wait;

static void wait_inside(void* user) {
  Wait* wait = (Wait*)user;
  wait->status = rollout_pool_wait_count(wait->pool, wait->value, &wait->error);
  set(&wait->done, 1);
}

static void r76_a_task_that_waits_for_its_own_pool_is_refused(void) {
  int32_t nthread;
  for (nthread = 1; nthread <= 3; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    Wait wait = {pool, 1000, -1, rollout_error(), 0};
    schedule(pool, wait_inside, &wait);
    CHECK(reaches(&wait.done, 1));
    wait_for(pool, 1);
    CHECK_STATUS(wait.status, ROLLOUT_STATUS_WOULD_DEADLOCK, &wait.error);
    CHECK(wait.error.status == ROLLOUT_STATUS_WOULD_DEADLOCK && wait.error.text[0] != '\0');
    // What has been reached need not be waited for.
    wait.value = 1;
    schedule(pool, wait_inside, &wait);
    wait_for(pool, 2);
    CHECK_STATUS(wait.status, ROLLOUT_STATUS_OK, &wait.error);
    rollout_pool_destroy(pool);
  }
}

static void a_task_may_wait_for_another_pool(void) {
  RolloutPool* pool = new_pool(1);
  RolloutPool* other = new_pool(1);
  Gate gate = {0, 0};
  Wait wait = {other, 1, -1, rollout_error(), 0};
  schedule(other, pass, &gate);
  schedule(pool, wait_inside, &wait);
  set(&gate.open, 1);
  wait_for(pool, 1);
  CHECK_STATUS(wait.status, ROLLOUT_STATUS_OK, &wait.error);
  rollout_pool_destroy(pool);
  rollout_pool_destroy(other);
}

static void note_thread(void* user) {
  *(pthread_t*)user = pthread_self();
  if (rollout_worker_id() != -1) {
    memset(user, 0, sizeof(pthread_t));
  }
}

static void without_threads_tasks_run_inside_schedule(void) {
  RolloutPool* pool = new_pool(0);
  RolloutError error = rollout_error();
  pthread_t thread;
  int32_t nthread = -7;
  memset(&thread, 0, sizeof(thread));
  CHECK_STATUS(rollout_pool_num_threads(pool, &nthread, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK(nthread == 0);
  schedule(pool, note_thread, &thread);
  CHECK(pthread_equal(thread, pthread_self()));
  CHECK(count_of(pool) == 1);
  wait_for(pool, 1);
  CHECK_STATUS(rollout_pool_wait_count(pool, 2, &error), ROLLOUT_STATUS_WOULD_DEADLOCK, &error);
  rollout_pool_destroy(pool);
}

typedef struct Last {
  RolloutPool* pool;
  int done;
} Last;

static void destroy_inside(void* user) {
  Last* last = (Last*)user;
  rollout_pool_destroy(last->pool);
  set(&last->done, 1);
}

static void a_task_may_destroy_its_own_pool(void) {
  RolloutPool* pool = new_pool(2);
  Last last = {pool, 0};
  schedule(pool, destroy_inside, &last);
  CHECK(reaches(&last.done, 1));
}

// A request, where it runs, and how it went.
typedef struct Call {
  RolloutPool* pool;
  Run run;
  int32_t status;
} Call;

static void set_up(Call* call, RolloutPool* pool, double step_size, void (*inside)(void)) {
  call->pool = pool;
  run_set_up(&call->run, NBATCH, step_size, inside);
  call->status = -1;
}

static void* run_as_caller(void* user) {
  Call* call = (Call*)user;
  call->status = rollout_run(call->pool, &call->run.request, &call->run.error);
  return NULL;
}

static void run_as_task(void* user) {
  run_as_caller(user);
}

static void check_run(const Call* call) {
  CHECK_STATUS(call->status, ROLLOUT_STATUS_OK, &call->run.error);
  CHECK(run_is_right(&call->run));
}

// Steps wait here until the main thread has counted.
static Gate counting;

static void hold(void) {
  pass(&counting);
}

// Runs first: threads of earlier cases could still be on their way out.
static void r83_threads_are_those_of_the_pool_and_the_callers(void) {
  enum { NTHREAD = 3, CALLERS = 2 };
  static Call runs[CALLERS];
  int before = process_threads();
  RolloutPool* pool = new_pool(NTHREAD);
  pthread_t callers[CALLERS];
  time_t limit = time(NULL) + 60;
  int i;
#ifdef __SANITIZE_THREAD__
  // Its own, which comes with the first other one.
  before++;
#endif
  CHECK(before > 0);
  CHECK(process_threads() == before + NTHREAD);
  counting.arrived = counting.open = 0;
  for (i = 0; i < CALLERS; i++) {
    set_up(&runs[i], pool, 1 + i, hold);
    CHECK(pthread_create(&callers[i], NULL, run_as_caller, &runs[i]) == 0);
  }
  // Both callers are in a step; of the pool's threads perhaps none, since nobody
  // wakes them before the first step has been made.
  CHECK(reaches(&counting.arrived, CALLERS));
  CHECK(process_threads() == before + NTHREAD + CALLERS);
  set(&counting.open, 1);
  for (i = 0; i < CALLERS; i++) {
    pthread_join(callers[i], NULL);
    check_run(&runs[i]);
  }
  rollout_pool_destroy(pool);
  // The system takes a joined thread off its list a moment later.
  while (process_threads() > before && time(NULL) < limit) {
    sched_yield();
  }
  CHECK(process_threads() == before);
}

static void requests_of_several_threads_and_models_share_a_pool(void) {
  enum { CALLERS = 3, ROUNDS = 200 };
  static Call runs[CALLERS];
  RolloutPool* pool = new_pool(2);
  pthread_t callers[CALLERS];
  int round, i;
  for (round = 0; round < ROUNDS; round++) {
    for (i = 0; i < CALLERS; i++) {
      set_up(&runs[i], pool, 1 + i, NULL);
      CHECK(pthread_create(&callers[i], NULL, run_as_caller, &runs[i]) == 0);
    }
    for (i = 0; i < CALLERS; i++) {
      pthread_join(callers[i], NULL);
      check_run(&runs[i]);
    }
  }
  // Requests are not tasks.
  CHECK(count_of(pool) == 0);
  rollout_pool_destroy(pool);
}

static void a_task_may_run_a_request_on_its_own_pool(void) {
  static Call run;
  int32_t nthread;
  for (nthread = 0; nthread <= 2; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    set_up(&run, pool, 3, NULL);
    schedule(pool, run_as_task, &run);
    wait_for(pool, 1);
    check_run(&run);
    rollout_pool_destroy(pool);
  }
}

static void a_data_in_use_is_refused_by_name(void) {
  static Call first, second;
  RolloutPool* pool = new_pool(0);
  RolloutPool* other = new_pool(1);
  pthread_t caller;
  counting.arrived = counting.open = 0;
  set_up(&first, pool, 1, hold);
  set_up(&second, other, 2, NULL);
  second.run.data[1] = first.run.data[2];
  CHECK(pthread_create(&caller, NULL, run_as_caller, &first) == 0);
  CHECK(reaches(&counting.arrived, 1));
  memset(second.run.state, 0x55, sizeof(second.run.state));
  memcpy(first.run.start, second.run.start, sizeof(first.run.start));
  run_as_caller(&second);
  CHECK_STATUS(second.status, ROLLOUT_STATUS_BUSY, &second.run.error);
  CHECK(second.run.error.index == 1);
  CHECK(strncmp(second.run.error.text, "data[1]: ", 9) == 0);
  CHECK(((unsigned char*)second.run.state)[0] == 0x55);
  set(&counting.open, 1);
  pthread_join(caller, NULL);
  check_run(&first);
  // Free again, in any pool.
  run_as_caller(&second);
  check_run(&second);
  rollout_pool_destroy(pool);
  rollout_pool_destroy(other);
}

int main(void) {
  CASE(r83_threads_are_those_of_the_pool_and_the_callers);
  CASE(count_schedule_wait_reset);
  CASE(what_tasks_wrote_is_visible_after_the_wait);
  CASE(worker_ids_are_in_range_inside_tasks_and_minus_one_outside);
  CASE(tasks_schedule_tasks);
  CASE(tasks_progress_without_a_waiter);
  CASE(several_threads_wait_at_once);
  CASE(several_threads_schedule_at_once);
  CASE(a_long_task_does_not_hold_up_the_scheduler);
  CASE(destroy_runs_the_tasks_that_were_scheduled);
  CASE(r76_a_task_that_waits_for_its_own_pool_is_refused);
  CASE(a_task_may_wait_for_another_pool);
  CASE(without_threads_tasks_run_inside_schedule);
  CASE(a_task_may_destroy_its_own_pool);
  CASE(requests_of_several_threads_and_models_share_a_pool);
  CASE(a_task_may_run_a_request_on_its_own_pool);
  CASE(a_data_in_use_is_refused_by_name);
  return check_failures;
}
