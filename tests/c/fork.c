// What a forked child can do with its parent's pools, whatever the parent's threads were
// at. The engine is a counter (counter.h).
//
// A child begins with `fork()` alone, and says by its exit status how it went: the parent
// waits for it, and no longer than a minute.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "counter.h"
#include "process.h"
#include "shared.h"

// In a child: ends it where this does not hold.
#define NEED(condition)                                                        \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "in a child: %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                \
    }                                                                          \
  } while (0)

// Ends a child, with all that runs at exit. But not where a tool would look then for memory
// that is lost: what the parent's other threads had is.
static void leave(void) {
  if (check_parts > 1) {
    execl("/bin/true", "true", (char*)NULL);
  }
  exit(0);
}

// Waits for a child. Returns its exit status, or -1 if it ended otherwise or not at all.
static int ended(pid_t child) {
  struct timespec pause = {0, 1000000};
  time_t limit = time(NULL) + 60;
  int status = -1;
  while (child > 0) {
    if (waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    if (time(NULL) > limit) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
    nanosleep(&pause, NULL);
  }
  return -1;
}

static RolloutPool* new_pool(int32_t nthread) {
  RolloutPool* pool = NULL;
  RolloutError error = rollout_error();
  CHECK_STATUS(rollout_pool_create(nthread, &pool, &error), ROLLOUT_STATUS_OK, &error);
  return pool;
}

static uint64_t count_of(RolloutPool* pool) {
  uint64_t count = 1 << 20;
  rollout_pool_count(pool, &count, NULL);
  return count;
}

// Runs a request on a pool. Returns whether it went well.
static int runs(RolloutPool* pool, size_t nbatch) {
  static Run run;
  run_set_up(&run, nbatch, 2, NULL);
  return rollout_run(pool, &run.request, &run.error) == ROLLOUT_STATUS_OK && run_is_right(&run);
}

static void add_one(void* number) { add((int*)number, 1); }

// Occupies a thread until it is let go.
static int arrived, opened;

static void hold(void) {
  add(&arrived, 1);
  reaches(&opened, 1);
}

static void hold_task(void* user) {
  (void)user;
  hold();
}

typedef struct Caller {
  RolloutPool* pool;
  Run run;
  int32_t status;
  pthread_t thread;
} Caller;

static void* call(void* user) {
  Caller* caller = (Caller*)user;
  caller->status = rollout_run(caller->pool, &caller->run.request, &caller->run.error);
  return NULL;
}

static void start_caller(Caller* caller, RolloutPool* pool, void (*inside)(void)) {
  caller->pool = pool;
  caller->status = -1;
  run_set_up(&caller->run, NBATCH, 1, inside);
  CHECK(pthread_create(&caller->thread, NULL, call, caller) == 0);
}

static void end_caller(Caller* caller) {
  pthread_join(caller->thread, NULL);
  CHECK_STATUS(caller->status, ROLLOUT_STATUS_OK, &caller->run.error);
  CHECK(run_is_right(&caller->run));
}

static void r64_a_pool_that_was_used_before_the_fork_works_in_the_child(void) {
  static const size_t nbatch[] = {1, 8};
  int32_t nthread;
  size_t i;
  for (nthread = 0; nthread <= 3; nthread++) {
    for (i = 0; i < 2; i++) {
      RolloutPool* pool = new_pool(nthread);
      int ran = 0;
      pid_t child;
      CHECK(runs(pool, NBATCH));
      CHECK_STATUS(rollout_pool_schedule(pool, add_one, &ran, NULL), ROLLOUT_STATUS_OK, NULL);
      CHECK_STATUS(rollout_pool_wait_count(pool, 1, NULL), ROLLOUT_STATUS_OK, NULL);
      child = fork();
      if (child == 0) {
        int32_t threads = -1;
        NEED(process_threads() == 1);
        NEED(rollout_pool_num_threads(pool, &threads, NULL) == 0 && threads == nthread);
        NEED(runs(pool, nbatch[i]));
        NEED(process_threads() == 1 + nthread);
        // The count is the child's own.
        NEED(count_of(pool) == 0);
        NEED(rollout_pool_schedule(pool, add_one, &ran, NULL) == 0);
        NEED(rollout_pool_wait_count(pool, 1, NULL) == 0);
        NEED(get(&ran) == 2 && count_of(pool) == 1);
        NEED(process_threads() == 1 + nthread);
        rollout_pool_destroy(pool);
        NEED(process_threads_become(1));
        leave();
      }
      CHECK(ended(child) == 0);
      CHECK(get(&ran) == 1 && count_of(pool) == 1);
      CHECK(runs(pool, NBATCH));
      rollout_pool_destroy(pool);
    }
  }
}

static void a_pool_that_a_child_does_not_use_ends_there_at_once(void) {
  static Caller caller;
  RolloutPool* pool = new_pool(2);
  int ran = 0, i;
  pid_t child;
  arrived = opened = 0;
  // All of its threads are at something, and there is more to do.
  rollout_pool_schedule(pool, hold_task, NULL, NULL);
  rollout_pool_schedule(pool, hold_task, NULL, NULL);
  start_caller(&caller, pool, hold);
  for (i = 0; i < 10; i++) {
    rollout_pool_schedule(pool, add_one, &ran, NULL);
  }
  CHECK(reaches(&arrived, 3));
  child = fork();
  if (child == 0) {
    RolloutError error = rollout_error();
    NEED(count_of(pool) == 0);
    NEED(rollout_pool_reset_count(pool, NULL) == 0);
    NEED(rollout_pool_wait_count(pool, 0, NULL) == 0);
    NEED(rollout_pool_wait_count(pool, 10, &error) == ROLLOUT_STATUS_FORKED);
    NEED(strstr(error.text, "forked") != NULL);
    // A panic would not be seen otherwise.
    NEED(dup2(open("printed.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2) == 2);
    rollout_pool_destroy(pool);
    NEED(process_file_size("printed.txt") == 0);
    NEED(process_threads() == 1 && get(&ran) == 0);
    leave();
  }
  CHECK(ended(child) == 0);
  set(&opened, 1);
  CHECK_STATUS(rollout_pool_wait_count(pool, 12, NULL), ROLLOUT_STATUS_OK, NULL);
  end_caller(&caller);
  CHECK(get(&ran) == 10);
  rollout_pool_destroy(pool);
}

static void tasks_of_the_parent_do_not_run_in_the_child(void) {
  RolloutPool* pool = new_pool(1);
  int ran = 0, i;
  pid_t child;
  arrived = opened = 0;
  rollout_pool_schedule(pool, hold_task, NULL, NULL);
  CHECK(reaches(&arrived, 1));
  for (i = 0; i < 10; i++) {
    rollout_pool_schedule(pool, add_one, &ran, NULL);
  }
  child = fork();
  if (child == 0) {
    int mine = 0;
    NEED(rollout_pool_schedule(pool, add_one, &mine, NULL) == 0);
    NEED(rollout_pool_wait_count(pool, 1, NULL) == 0);
    rollout_pool_destroy(pool);
    NEED(get(&mine) == 1 && get(&ran) == 0);
    leave();
  }
  CHECK(ended(child) == 0);
  set(&opened, 1);
  rollout_pool_destroy(pool);
  CHECK(get(&ran) == 10);
}

static void data_of_a_request_in_flight_are_reset_before_a_child_uses_them(void) {
  static Caller caller;
  RolloutPool* pool = new_pool(0);
  pid_t child;
  arrived = opened = 0;
  start_caller(&caller, pool, hold);
  CHECK(reaches(&arrived, 1));
  child = fork();
  if (child == 0) {
    Run* run = &caller.run;
    static Run other;
    int round, i;
    run_set_up(&other, NBATCH, 3, NULL);
    NEED(rollout_run(pool, &other.request, &other.error) == 0 && run_is_right(&other));
    for (i = 0; i < NDATA; i++) {
      run->counters[i].inside = NULL;
      run->counters[i].resets = 0;
    }
    for (round = 0; round < 3; round++) {
      memset(run->state, 0, sizeof(run->state));
      NEED(rollout_run(pool, &run->request, &run->error) == 0 && run_is_right(run));
      // Once is enough.
      for (i = 0; i < NDATA; i++) {
        NEED(run->counters[i].resets == 1 && other.counters[i].resets == 0);
      }
    }
    leave();
  }
  CHECK(ended(child) == 0);
  set(&opened, 1);
  end_caller(&caller);
  CHECK(caller.run.counters[0].resets == 0);
  rollout_pool_destroy(pool);
}

static void a_ticket_of_the_parent_says_so_in_the_child(void) {
  static Run run, done;
  RolloutPool* pool = new_pool(2);
  RolloutTicket *ticket = NULL, *done_ticket = NULL;
  RolloutError error = rollout_error();
  pid_t child;
  arrived = opened = 0;
  run_set_up(&done, NBATCH, 1, NULL);
  CHECK(rollout_submit(pool, &done.request, &done_ticket, NULL) == 0);
  CHECK(rollout_ticket_wait(done_ticket, -1, NULL) == 0);
  run_set_up(&run, NBATCH, 1, hold);
  CHECK(rollout_submit(pool, &run.request, &ticket, NULL) == 0);
  CHECK(reaches(&arrived, 2));
  child = fork();
  if (child == 0) {
    RolloutProgress progress;
    int32_t is_done = -1;
    NEED(rollout_ticket_wait(ticket, -1, &error) == ROLLOUT_STATUS_FORKED);
    NEED(strstr(error.text, "forked") != NULL);
    NEED(rollout_ticket_wait(ticket, 0, NULL) == ROLLOUT_STATUS_FORKED);
    NEED(rollout_ticket_wait(ticket, 1000, NULL) == ROLLOUT_STATUS_FORKED);
    NEED(rollout_ticket_done(ticket, &is_done, NULL) == ROLLOUT_STATUS_FORKED && is_done == -1);
    NEED(rollout_ticket_progress(ticket, &progress, NULL) == ROLLOUT_STATUS_FORKED);
    NEED(rollout_ticket_cancel(ticket, NULL) == ROLLOUT_STATUS_FORKED);
    NEED(rollout_ticket_release(ticket, NULL) == 0);
    // What was done before the fork is done here.
    NEED(rollout_ticket_wait(done_ticket, -1, NULL) == 0 && run_is_right(&done));
    NEED(rollout_ticket_progress(done_ticket, &progress, NULL) == 0);
    NEED(progress.rollouts == NBATCH && rollout_ticket_release(done_ticket, NULL) == 0);
    NEED(process_threads() == 1);
    // One of the child's own, with data that the parent's is using.
    run_set_up(&run, NBATCH, 3, NULL);
    NEED(rollout_submit(pool, &run.request, &ticket, NULL) == 0);
    NEED(rollout_ticket_wait(ticket, -1, NULL) == 0 && run_is_right(&run));
    NEED(rollout_ticket_release(ticket, NULL) == 0);
    rollout_pool_destroy(pool);
    leave();
  }
  CHECK(ended(child) == 0);
  set(&opened, 1);
  CHECK_STATUS(rollout_ticket_wait(ticket, -1, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(run_is_right(&run));
  CHECK(rollout_ticket_release(ticket, NULL) == 0);
  CHECK(rollout_ticket_release(done_ticket, NULL) == 0);
  rollout_pool_destroy(pool);
}

// The thread that forks in a step, its child, and the steps that it makes in the child.
static pthread_t forker;
static pid_t forked;
static int steps_after;

static void fork_once(void) {
  if (!pthread_equal(pthread_self(), forker)) {
    // A helper, whom nobody could wait for in the child.
    add(&arrived, 1);
    reaches(&opened, 1);
  } else if (forked == -1) {
    reaches(&arrived, opened ? 0 : 1);
    forked = fork();
    set(&opened, 1);
  } else if (forked == 0) {
    steps_after++;
  }
}

static void a_callback_that_forks_returns_in_the_child_and_the_request_ends(void) {
  static Run run;
  int32_t nthread;
  for (nthread = 0; nthread <= 2; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    int32_t status;
    arrived = 0;
    opened = nthread == 0;
    forked = -1;
    forker = pthread_self();
    run_set_up(&run, NBATCH, 1, fork_once);
    status = rollout_run(pool, &run.request, &run.error);
    if (forked == 0) {
      NEED(status == ROLLOUT_STATUS_FORKED);
      NEED(run.error.status == ROLLOUT_STATUS_FORKED && strstr(run.error.text, "forked") != NULL);
      NEED(process_threads() == 1 && steps_after == 0);
      // With data that the helpers were using.
      NEED(rollout_run(pool, &run.request, &run.error) == 0 && run_is_right(&run));
      NEED(runs(pool, NBATCH));
      rollout_pool_destroy(pool);
      NEED(process_threads_become(1));
      leave();
    }
    CHECK_STATUS(status, ROLLOUT_STATUS_OK, &run.error);
    CHECK(run_is_right(&run));
    CHECK(ended(forked) == 0);
    CHECK(runs(pool, NBATCH));
    rollout_pool_destroy(pool);
  }
}

static RolloutPool* pool_of_step;

static void fork_in_step_of_worker(void) {
  if (pthread_equal(pthread_self(), forker)) {
    // The caller, whom nobody could tell anything in the child.
    reaches(&opened, 1);
  } else if (add(&arrived, 1) == 1) {
    forked = fork();
    if (forked == 0) {
      NEED(rollout_worker_id() == -1);
      NEED(runs(pool_of_step, NBATCH));
      rollout_pool_destroy(pool_of_step);
      leave();
    }
    set(&opened, 1);
  }
}

static void a_callback_on_a_worker_may_fork_and_its_child_end(void) {
  static Run run;
  RolloutPool* pool = new_pool(2);
  arrived = opened = 0;
  forked = -1;
  forker = pthread_self();
  pool_of_step = pool;
  run_set_up(&run, NBATCH, 1, fork_in_step_of_worker);
  CHECK_STATUS(rollout_run(pool, &run.request, &run.error), ROLLOUT_STATUS_OK, &run.error);
  CHECK(run_is_right(&run));
  CHECK(ended(forked) == 0);
  rollout_pool_destroy(pool);
}

static void fork_in_task(void* user) {
  RolloutPool* pool = (RolloutPool*)user;
  forked = fork();
  if (forked == 0) {
    NEED(rollout_worker_id() == -1);
    NEED(runs(pool, NBATCH));
    rollout_pool_destroy(pool);
    if (check_parts > 1) {
      leave();
    }
  }
}

static void a_task_that_forks_returns_in_the_child_and_its_thread_ends(void) {
  RolloutPool* pool = new_pool(2);
  forked = -1;
  rollout_pool_schedule(pool, fork_in_task, pool, NULL);
  CHECK_STATUS(rollout_pool_wait_count(pool, 1, NULL), ROLLOUT_STATUS_OK, NULL);
  // The system ends a process with this status when its last thread ends.
  CHECK(ended(forked) == 0);
  CHECK(runs(pool, NBATCH));
  rollout_pool_destroy(pool);
  // On the caller's thread, which goes on.
  pool = new_pool(0);
  forked = -1;
  rollout_pool_schedule(pool, fork_in_task, pool, NULL);
  if (forked == 0) {
    leave();
  }
  CHECK(ended(forked) == 0);
  CHECK(count_of(pool) == 1);
  rollout_pool_destroy(pool);
}

static void children_of_children_begin_anew_too(void) {
  RolloutPool* pool = new_pool(2);
  pid_t child = fork();
  if (child == 0) {
    pid_t unused = fork();
    if (unused == 0) {
      rollout_pool_destroy(pool);
      leave();
    }
    NEED(ended(unused) == 0);
    NEED(runs(pool, NBATCH));
    child = fork();
    if (child == 0) {
      NEED(process_threads() == 1);
      NEED(runs(pool, NBATCH) && process_threads() == 3);
      rollout_pool_destroy(pool);
      leave();
    }
    NEED(ended(child) == 0);
    NEED(runs(pool, NBATCH));
    rollout_pool_destroy(pool);
    NEED(process_threads_become(1));
    leave();
  }
  CHECK(ended(child) == 0);
  rollout_pool_destroy(pool);
}

static void several_threads_of_a_child_may_be_the_first(void) {
  enum { CALLERS = 4 };
  static Caller callers[CALLERS];
  RolloutPool* pool = new_pool(2);
  int round;
  for (round = 0; round < 20; round++) {
    pid_t child = fork();
    if (child == 0) {
      int i;
      for (i = 0; i < CALLERS; i++) {
        start_caller(&callers[i], pool, NULL);
      }
      for (i = 0; i < CALLERS; i++) {
        end_caller(&callers[i]);
      }
      NEED(!check_why[0]);
      // Those that came too late have ended theirs.
      NEED(process_threads_become(3));
      rollout_pool_destroy(pool);
      leave();
    }
    CHECK(ended(child) == 0);
  }
  rollout_pool_destroy(pool);
}

// No thread's stack fits any more.
static void refuse_threads(int refuse) {
  struct rlimit limit;
  long pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  NEED(file && fscanf(file, "%ld", &pages) == 1 && getrlimit(RLIMIT_AS, &limit) == 0);
  fclose(file);
  limit.rlim_cur = refuse ? (rlim_t)(pages * sysconf(_SC_PAGESIZE) + (6 << 20)) : limit.rlim_max;
  NEED(setrlimit(RLIMIT_AS, &limit) == 0);
}

static void* hold_thread(void* user) {
  hold();
  return user;
}

static void r71_threads_that_the_system_refuses_a_child_are_an_error(void) {
  RolloutPool* pool = new_pool(3);
  pid_t child = fork();
  if (child == 0) {
    static RolloutOutcome outcomes[NBATCH];
    static Run run;
    RolloutError error = rollout_error();
    pthread_t others[64];
    pthread_attr_t attributes;
    int ran = 0, nother = 0, i;
    run_set_up(&run, NBATCH, 2, NULL);
    run.request.outcomes = outcomes;
    run.request.noutcome = NBATCH;
    arrived = opened = 0;
    refuse_threads(1);
    // The stacks of the parent's threads can be used once more.
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 8 << 20);
    while (nother < 64 &&
           pthread_create(&others[nother], &attributes, hold_thread, NULL) == 0) {
      nother++;
    }
    NEED(rollout_run(pool, &run.request, &error) == ROLLOUT_STATUS_NO_THREAD);
    NEED(strstr(error.text, "refused the threads") != NULL);
    for (i = 0; i < NBATCH; i++) {
      NEED(outcomes[i].status == ROLLOUT_OUTCOME_STATUS_NOT_STARTED);
    }
    NEED(rollout_pool_schedule(pool, add_one, &ran, &error) == ROLLOUT_STATUS_NO_THREAD);
    refuse_threads(0);
    set(&opened, 1);
    for (i = 0; i < nother; i++) {
      pthread_join(others[i], NULL);
    }
    NEED(rollout_run(pool, &run.request, &error) == 0 && run_is_right(&run));
    rollout_pool_destroy(pool);
    leave();
  }
  CHECK(ended(child) == 0);
  rollout_pool_destroy(pool);
}

// An engine that has handlers of the process only.

static RolloutHandler process_error, process_warning;

static void host_handler(const void* text) { (void)text; }

static int handlers_are_ours(void) {
  return process_error != host_handler && process_warning != host_handler;
}

static int handlers_are_the_hosts(void) {
  return process_error == host_handler && process_warning == host_handler;
}

static void handlers_of_the_process_are_put_back_in_the_child(void) {
  static Caller caller;
  static Run run;
  RolloutPool* pool = new_pool(1);
  int32_t status;
  pid_t child;
  process_error = process_warning = host_handler;
  // Another thread needs them at the fork.
  arrived = opened = 0;
  caller.pool = pool;
  run_set_up(&caller.run, NBATCH, 1, hold);
  caller.run.engine.hooks.process_error = &process_error;
  caller.run.engine.hooks.process_warning = &process_warning;
  run = caller.run;
  CHECK(pthread_create(&caller.thread, NULL, call, &caller) == 0);
  CHECK(reaches(&arrived, 1));
  CHECK(handlers_are_ours());
  child = fork();
  if (child == 0) {
    NEED(handlers_are_the_hosts());
    run_set_up(&run, NBATCH, 2, NULL);
    run.engine.hooks = caller.run.engine.hooks;
    NEED(rollout_run(pool, &run.request, &run.error) == 0 && run_is_right(&run));
    NEED(handlers_are_the_hosts());
    leave();
  }
  CHECK(handlers_are_ours());
  CHECK(ended(child) == 0);
  set(&opened, 1);
  end_caller(&caller);
  CHECK(handlers_are_the_hosts());
  // The forking thread itself does.
  arrived = 0;
  forked = -1;
  forker = pthread_self();
  run_set_up(&run, NBATCH, 1, fork_once);
  run.engine.hooks = caller.run.engine.hooks;
  run.request.ndata = 1;
  status = rollout_run(pool, &run.request, &run.error);
  if (forked == 0) {
    NEED(status == ROLLOUT_STATUS_FORKED && handlers_are_the_hosts());
    leave();
  }
  CHECK(ended(forked) == 0);
  CHECK_STATUS(status, ROLLOUT_STATUS_OK, &run.error);
  CHECK(handlers_are_the_hosts());
  rollout_pool_destroy(pool);
}

// Load: threads that use two pools in every way.

enum { LOADERS = 3 };

typedef struct Loader {
  RolloutPool* pools[2];
  Run run;
  int failures;
  int rounds;
  pthread_t thread;
} Loader;

static int loading;

static void* load(void* user) {
  Loader* loader = (Loader*)user;
  int round;
  for (round = 0; get(&loading); round++) {
    RolloutPool* pool = loader->pools[round % 2];
    RolloutTicket* ticket = NULL;
    uint64_t count = 0;
    int ran = 0;
    run_set_up(&loader->run, NBATCH, 1 + round % 7, NULL);
    loader->failures +=
        rollout_run(pool, &loader->run.request, &loader->run.error) != ROLLOUT_STATUS_OK ||
        !run_is_right(&loader->run);
    run_set_up(&loader->run, NBATCH, 1 + round % 7, NULL);
    loader->failures += rollout_submit(pool, &loader->run.request, &ticket, NULL) != 0;
    if (round % 3 == 0) {
      loader->failures += rollout_ticket_wait(ticket, -1, NULL) != 0 || !run_is_right(&loader->run);
    }
    loader->failures += rollout_ticket_release(ticket, NULL) != 0;
    rollout_pool_schedule(pool, add_one, &ran, NULL);
    rollout_pool_wait_count(pool, 0, NULL);
    loader->failures += !reaches(&ran, 1) || rollout_pool_count(pool, &count, NULL) != 0;
    add(&loader->rounds, 1);
  }
  return NULL;
}

// Threads that begin and end all the time.
static void* come_and_go(void* user) {
  while (get(&loading)) {
    RolloutPool* pool = NULL;
    if (rollout_pool_create(2, &pool, NULL) == ROLLOUT_STATUS_OK) {
      rollout_pool_destroy(pool);
    }
  }
  return user;
}

static void five_hundred_forks_under_load_never_hang(void) {
  static Loader loaders[LOADERS];
  RolloutPool* pools[2];
  pthread_t others;
  int forks = 0, i;
  pools[0] = new_pool(2);
  pools[1] = new_pool(1);
  set(&loading, 1);
  for (i = 0; i < LOADERS; i++) {
    loaders[i].pools[0] = pools[0];
    loaders[i].pools[1] = pools[1];
    CHECK(pthread_create(&loaders[i].thread, NULL, load, &loaders[i]) == 0);
  }
  CHECK(pthread_create(&others, NULL, come_and_go, NULL) == 0);
  for (i = 0; i < LOADERS; i++) {
    CHECK(reaches(&loaders[i].rounds, 1));
  }
  while (forks < 500 / (int)check_parts && !check_why[0]) {
    static Run submitted;
    RolloutTicket* ticket = NULL;
    pid_t child;
    run_set_up(&submitted, NBATCH, 1, NULL);
    CHECK(rollout_submit(pools[0], &submitted.request, &ticket, NULL) == 0);
    child = fork();
    if (child == 0) {
      RolloutPool* own = NULL;
      Run* run = &loaders[forks % LOADERS].run;
      int ran = 0;
      NEED(runs(pools[forks % 2], NBATCH));
      // With data that a thread of the parent was perhaps using.
      run_set_up(run, NBATCH, 5, NULL);
      NEED(rollout_run(pools[0], &run->request, &run->error) == 0 && run_is_right(run));
      NEED(rollout_pool_schedule(pools[1], add_one, &ran, NULL) == 0);
      NEED(rollout_pool_wait_count(pools[1], 1, NULL) == 0 && ran == 1);
      NEED(rollout_pool_create(2, &own, NULL) == 0 && runs(own, NBATCH));
      rollout_pool_destroy(pools[0]);
      rollout_pool_destroy(pools[1]);
      rollout_pool_destroy(own);
      NEED(rollout_ticket_release(ticket, NULL) == 0);
      leave();
    }
    CHECK(ended(child) == 0);
    CHECK(rollout_ticket_wait(ticket, -1, NULL) == 0 && run_is_right(&submitted));
    CHECK(rollout_ticket_release(ticket, NULL) == 0);
    forks++;
  }
  set(&loading, 0);
  pthread_join(others, NULL);
  for (i = 0; i < LOADERS; i++) {
    pthread_join(loaders[i].thread, NULL);
    CHECK(loaders[i].failures == 0);
  }
  rollout_pool_destroy(pools[0]);
  rollout_pool_destroy(pools[1]);
}

int main(void) {
  check_begin();
  CASE(r64_a_pool_that_was_used_before_the_fork_works_in_the_child);
  CASE(a_pool_that_a_child_does_not_use_ends_there_at_once);
  CASE(tasks_of_the_parent_do_not_run_in_the_child);
  CASE(data_of_a_request_in_flight_are_reset_before_a_child_uses_them);
  CASE(a_ticket_of_the_parent_says_so_in_the_child);
  CASE(a_callback_that_forks_returns_in_the_child_and_the_request_ends);
  CASE(a_callback_on_a_worker_may_fork_and_its_child_end);
  CASE(a_task_that_forks_returns_in_the_child_and_its_thread_ends);
  CASE(children_of_children_begin_anew_too);
  CASE(several_threads_of_a_child_may_be_the_first);
  CASE(r71_threads_that_the_system_refuses_a_child_are_an_error);
  CASE(handlers_of_the_process_are_put_back_in_the_child);
  CASE(five_hundred_forks_under_load_never_hang);
  return check_failures;
}
