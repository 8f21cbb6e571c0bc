// CPUs: how many threads a pool has if nobody says so, threads that stay on the CPUs of a
// list, and a system that refuses threads. Needs no MuJoCo.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // sched_setaffinity and sched_getcpu
#endif

#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "check.h"
#include "process.h"
#include "rollout.h"

enum { MOST = 64 };

// The CPUs that this process may use, or the first of them.
static int32_t allowed[MOST];
static size_t nallowed;

static void find_allowed(void) {
  cpu_set_t set;
  int cpu;
  if (sched_getaffinity(0, sizeof(set), &set)) {
    printf("FAILED the affinity mask can be read\n");
    exit(1);
  }
  for (cpu = 0; cpu < CPU_SETSIZE && nallowed < MOST; cpu++) {
    if (CPU_ISSET(cpu, &set)) {
      allowed[nallowed++] = cpu;
    }
  }
}

static void restrict_to(const int32_t* cpus, size_t ncpu) {
  cpu_set_t set;
  size_t i;
  CPU_ZERO(&set);
  for (i = 0; i < ncpu; i++) {
    CPU_SET(cpus[i], &set);
  }
  CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
}

static int is_restricted_to(int32_t cpu) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) == 1 &&
         CPU_ISSET(cpu, &set);
}

static RolloutPool* pool_on(const int32_t* cpus, size_t ncpu) {
  RolloutPool* pool = NULL;
  RolloutError error = rollout_error();
  CHECK_STATUS(rollout_pool_create_on(cpus, ncpu, &pool, &error), ROLLOUT_STATUS_OK, &error);
  return pool;
}

static int32_t threads_of(RolloutPool* pool) {
  int32_t nthread = -7;
  CHECK_STATUS(rollout_pool_num_threads(pool, &nthread, NULL), ROLLOUT_STATUS_OK, NULL);
  return nthread;
}

// ---------------------------------------------------------------- how many

// In a process that has one CPU.
static int child_on_one_cpu(void) {
  RolloutPool* pool = NULL;
  RolloutError error = rollout_error();
  CHECK(rollout_default_nthread() == 1);
  CHECK_STATUS(rollout_pool_create(ROLLOUT_NTHREAD_DEFAULT, &pool, &error), ROLLOUT_STATUS_OK,
               &error);
  CHECK(threads_of(pool) == 1);
  rollout_pool_destroy(pool);
  // Who asks for more gets more.
  CHECK_STATUS(rollout_pool_create(3, &pool, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(threads_of(pool) == 3 && process_threads() == 4);
  rollout_pool_destroy(pool);
  return check_why[0] != '\0';
}

static void r53_a_process_on_one_cpu_has_one_thread_unless_it_asks_for_more(void) {
  restrict_to(&allowed[nallowed - 1], 1);
  CHECK(process_again("one-cpu", "", 0) == 0);
  restrict_to(allowed, nallowed);
}

// ---------------------------------------------------------------- which

// Where a task has run, and where it could have.
typedef struct Seen {
  int32_t worker;
  int cpu, pinned;
  pthread_t thread;
} Seen;

// All tasks of a round are inside before one leaves, so that each has a thread of its own.
static int arrived, expected;

static void see(void* user) {
  Seen* seen = (Seen*)user;
  time_t limit = time(NULL) + 60;
  __atomic_fetch_add(&arrived, 1, __ATOMIC_ACQ_REL);
  while (__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) < expected && time(NULL) < limit) {
    sched_yield();
  }
  seen->worker = rollout_worker_id();
  seen->cpu = sched_getcpu();
  seen->pinned = is_restricted_to(seen->cpu);
  seen->thread = pthread_self();
}

// Each thread of the pool is on its CPU, which the pool tells.
static void check_pinned(RolloutPool* pool, const int32_t* cpus, int32_t ncpu) {
  Seen seen[MOST];
  RolloutError error = rollout_error();
  int32_t i, cpu = -7, met = 0;
  CHECK(threads_of(pool) == ncpu);
  arrived = 0;
  expected = ncpu;
  rollout_pool_reset_count(pool, NULL);
  for (i = 0; i < ncpu; i++) {
    rollout_pool_schedule(pool, see, &seen[i], NULL);
  }
  CHECK_STATUS(rollout_pool_wait_count(pool, (uint64_t)ncpu, &error), ROLLOUT_STATUS_OK, &error);
  for (i = 0; i < ncpu; i++) {
    CHECK(seen[i].worker >= 0 && seen[i].worker < ncpu && seen[i].pinned);
    CHECK(seen[i].cpu == cpus[seen[i].worker]);
    met += seen[i].worker;
    CHECK_STATUS(rollout_pool_cpu(pool, i, &cpu, &error), ROLLOUT_STATUS_OK, &error);
    CHECK(cpu == cpus[i]);
  }
  CHECK(met == ncpu * (ncpu - 1) / 2);
}

static void threads_stay_on_the_cpus_of_the_list(void) {
  int32_t backwards[MOST];
  cpu_set_t before, after;
  RolloutPool* pool;
  size_t i;
  CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
  pool = pool_on(allowed, nallowed);
  check_pinned(pool, allowed, (int32_t)nallowed);
  rollout_pool_destroy(pool);
  for (i = 0; i < nallowed; i++) {
    backwards[i] = allowed[nallowed - 1 - i];
  }
  pool = pool_on(backwards, nallowed);
  check_pinned(pool, backwards, (int32_t)nallowed);
  rollout_pool_destroy(pool);
  // The caller is where it was.
  CHECK(sched_getaffinity(0, sizeof(after), &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
}

static void r56_a_cpu_twice_is_refused_and_a_task_sees_its_cpu(void) {
  int32_t twice[2] = {allowed[0], allowed[0]};
  int32_t last = allowed[nallowed - 1];
  RolloutError error = rollout_error();
  RolloutPool* pool = NULL;
  char text[100];
  CHECK_STATUS(rollout_pool_create_on(twice, 2, &pool, &error), ROLLOUT_STATUS_BAD_OPTION, &error);
  snprintf(text, sizeof(text), "cpus[1]: is %d, as cpus[0] is", (int)allowed[0]);
  CHECK(strcmp(error.text, text) == 0);
  CHECK(pool == NULL);
  pool = pool_on(&last, 1);
  check_pinned(pool, &last, 1);
  rollout_pool_destroy(pool);
}

static void a_cpu_that_the_mask_does_not_have_is_refused(void) {
  int32_t none = CPU_SETSIZE;
  RolloutError error = rollout_error();
  RolloutPool* pool = NULL;
  char text[100];
  CHECK_STATUS(rollout_pool_create_on(&none, 1, &pool, &error), ROLLOUT_STATUS_BAD_OPTION, &error);
  // One that the machine has.
  if (nallowed > 1) {
    restrict_to(allowed, 1);
    CHECK_STATUS(rollout_pool_create_on(allowed, 2, &pool, &error), ROLLOUT_STATUS_BAD_OPTION,
                 &error);
    snprintf(text, sizeof(text), "cpus[1]: is %d, but this thread may use only the CPUs %d",
             (int)allowed[1], (int)allowed[0]);
    CHECK(strcmp(error.text, text) == 0);
    restrict_to(allowed, nallowed);
  }
  CHECK(pool == NULL);
}

// ---------------------------------------------------------------- threads that are replaced

// An engine of which every step fails, and spends its thread.
static __thread int failed;

// Where steps have been made.
static int steps, steps_elsewhere;
static int32_t steps_cpu;

static void step(const void* model, void* data) {
  (void)model;
  (void)data;
  __atomic_fetch_add(&steps, 1, __ATOMIC_RELAXED);
  if (rollout_worker_id() != 0 || sched_getcpu() != steps_cpu || !is_restricted_to(steps_cpu)) {
    __atomic_fetch_add(&steps_elsewhere, 1, __ATOMIC_RELAXED);
  }
  failed = 1;
}
static int state_size(const void* model, uint32_t spec) {
  (void)model;
  (void)spec;
  return 0;
}
static void get_state(const void* model, const void* data, double* state, uint32_t spec) {
  (void)model;
  (void)data;
  (void)state;
  (void)spec;
}
static void set_state(const void* model, void* data, const double* state, uint32_t spec) {
  (void)model;
  (void)data;
  (void)state;
  (void)spec;
}
static void reset(const void* model, void* data) {
  (void)model;
  (void)data;
}
static int take_error(void* data, char* text, size_t size) {
  int error = failed;
  (void)data;
  snprintf(text, size, "fails");
  failed = 0;
  return error;
}

// Runs one rollout of one step, which spends its thread.
static int32_t run_on(RolloutPool* pool) {
  RolloutEngine engine;
  RolloutModel model;
  RolloutData data;
  RolloutRequest request = rollout_request();
  double number = 0;
  memset(&engine, 0, sizeof(engine));
  memset(&model, 0, sizeof(model));
  memset(&data, 0, sizeof(data));
  engine.size = sizeof(engine);
  engine.version = ROLLOUT_ENGINE_VERSION;
  engine.number_size = sizeof(double);
  engine.step = step;
  engine.state_size = state_size;
  engine.get_state = get_state;
  engine.set_state = set_state;
  engine.reset = reset;
  engine.take_error = take_error;
  engine.full_physics = 1;
  engine.hooks.flags = ROLLOUT_HOOKS_RETIRE_THREAD;
  model.model = data.data = &number;
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = &data;
  request.ndata = 1;
  request.nbatch = 1;
  request.nstep = 1;
  request.initial_state = rollout_shared(&number, 0);
  return rollout_run(pool, &request, NULL);
}

// As a task, on a pool without threads.
static void spend(void* user) {
  RolloutPool* pool = NULL;
  if (rollout_pool_create(0, &pool, NULL) == ROLLOUT_STATUS_OK) {
    *(int32_t*)user = run_on(pool);
  }
  rollout_pool_destroy(pool);
}

static void a_thread_that_is_replaced_leaves_its_cpu_to_the_next(void) {
  int32_t last = allowed[nallowed - 1];
  RolloutPool* pool = pool_on(&last, 1);
  RolloutError error = rollout_error();
  int32_t status = -1;
  Seen before, after;
  expected = 0;
  rollout_pool_schedule(pool, see, &before, NULL);
  rollout_pool_schedule(pool, spend, &status, NULL);
  rollout_pool_schedule(pool, see, &after, NULL);
  CHECK_STATUS(rollout_pool_wait_count(pool, 3, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(status == ROLLOUT_STATUS_ROLLOUTS_FAILED);
  CHECK(!pthread_equal(before.thread, after.thread));
  CHECK(before.worker == 0 && before.cpu == last && before.pinned);
  CHECK(after.worker == 0 && after.cpu == last && after.pinned);
  check_pinned(pool, &last, 1);
  rollout_pool_destroy(pool);
}

// A caller takes no part in the rollouts of a pool with a list.
static void r56_a_step_sees_the_cpu_of_the_list(void) {
  RolloutPool* pool;
  int round;
  steps_cpu = allowed[nallowed - 1];
  pool = pool_on(&steps_cpu, 1);
  steps = steps_elsewhere = 0;
  for (round = 0; round < 20; round++) {
    // (The thread is another one each time.)
    CHECK(run_on(pool) == ROLLOUT_STATUS_ROLLOUTS_FAILED);
  }
  CHECK(steps == 20 && steps_elsewhere == 0);
  rollout_pool_destroy(pool);
}

// ---------------------------------------------------------------- refused

// Leaves so much room, where a stack takes 8 MiB; with 0 as much as there was.
static void leave_room(int mebibytes) {
  struct rlimit limit;
  long pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  CHECK(file && fscanf(file, "%ld", &pages) == 1 && getrlimit(RLIMIT_AS, &limit) == 0);
  if (file) {
    fclose(file);
  }
  limit.rlim_cur = limit.rlim_max;
  if (mebibytes) {
    limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)mebibytes << 20);
  }
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

enum { NTHREAD = 40, ROUNDS = 20 };

// What could not be made whole is taken back: threads, memory, and the mask of signals.
static int child_refused(void) {
  RolloutError error = rollout_error();
  RolloutPool* pool = NULL;
  sigset_t signals;
  long memory = 0;
  int round;
  mallopt(M_ARENA_MAX, 1);
  sigemptyset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, NULL);
  // (Before there is a thread that could leave its stack to the next.)
  leave_room(6);
  CHECK_STATUS(rollout_pool_create_on(allowed, 1, &pool, &error), ROLLOUT_STATUS_NO_THREAD, &error);
  CHECK(pool == NULL);
  leave_room(0);
  for (round = 0; round < ROUNDS; round++) {
    leave_room(60);
    CHECK_STATUS(rollout_pool_create(NTHREAD, &pool, &error), ROLLOUT_STATUS_NO_THREAD, &error);
    CHECK(strstr(error.text, "the system refused one of 40 threads: ") == error.text);
    CHECK(pool == NULL);
    leave_room(0);
    // Those that were there have ended, and their memory is the system's again.
    CHECK(process_threads_become(1));
    if (round == 2) {
      memory = process_memory();
    }
  }
  CHECK(!PROCESS_MEMORY_COUNTS || process_memory() < memory + (2 << 20));
  pthread_sigmask(SIG_BLOCK, NULL, &signals);
  CHECK(!sigismember(&signals, SIGINT) && !sigismember(&signals, SIGTERM));
  // As soon as there is room, there is a pool.
  CHECK_STATUS(rollout_pool_create(NTHREAD, &pool, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(process_threads() == NTHREAD + 1);
  rollout_pool_destroy(pool);
  return check_why[0] != '\0';
}

// In a process of its own, as others would share the limit.
static void r71_where_the_system_refuses_a_thread_create_says_so(void) {
// (AddressSanitizer has mapped more than any limit.)
#ifndef __SANITIZE_ADDRESS__
  CHECK(process_again("refused", "", 0) == 0);
#endif
}

// Says why a process of its own has failed.
static int told(int failures) {
  if (failures) {
    printf("%s\n", check_why);
  }
  return failures;
}

int main(int argc, char** argv) {
  check_begin();
  find_allowed();
  if (argc == 3 && strcmp(argv[1], "one-cpu") == 0) {
    return told(child_on_one_cpu());
  }
  if (argc == 3 && strcmp(argv[1], "refused") == 0) {
    return told(child_refused());
  }
  CASE(r53_a_process_on_one_cpu_has_one_thread_unless_it_asks_for_more);
  CASE(threads_stay_on_the_cpus_of_the_list);
  CASE(r56_a_cpu_twice_is_refused_and_a_task_sees_its_cpu);
  CASE(a_cpu_that_the_mask_does_not_have_is_refused);
  CASE(a_thread_that_is_replaced_leaves_its_cpu_to_the_next);
  CASE(r56_a_step_sees_the_cpu_of_the_list);
  CASE(r71_where_the_system_refuses_a_thread_create_says_so);
  return check_failures;
}
