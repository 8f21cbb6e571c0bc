// Requests that are handed to a pool: tickets, deadlines, priorities, and how each of them
// ends. And what else callers share a pool with: groups of tasks, and what threads did. The
// engine is an adder that a case can stop in the middle of a step, written below.

#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "process.h"
#include "shared.h"

static void rest(long milliseconds) {
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, NULL);
}

// The engine. A step halves the value and adds the model's number to it, which is exact
// enough to be done again. It fails if the value is negative.

#define MOST_DATA 10

struct Body;

typedef struct Model {
  double number;
  // What a step calls first, if anything, with its number among all that were begun.
  void (*inside)(struct Model* model, struct Body* body, int step);
  void* user;
  int begun;
  // How many steps may end (`hold`).
  int let;
  // When the first step began, and the budget (`count_late`).
  uint64_t first;
  uint64_t budget;
} Model;

typedef struct Body {
  double value;
  int failed;
  // Steps that began after the time was up.
  int late;
} Body;

static void step(const void* model, void* data) {
  Model* m = (Model*)model;
  Body* body = (Body*)data;
  int number = add(&m->begun, 1);
  if (m->inside) {
    m->inside(m, body, number);
  }
  body->failed = body->value < 0;
  body->value = body->value * 0.5 + m->number;
}
static int state_size(const void* model, uint32_t spec) {
  (void)model;
  return spec & 1;
}
static void get_state(const void* model, const void* data, double* state, uint32_t spec) {
  (void)model;
  if (spec & 1) {
    *state = ((const Body*)data)->value;
  }
}
static void set_state(const void* model, void* data, const double* state, uint32_t spec) {
  (void)model;
  if (spec & 1) {
    ((Body*)data)->value = *state;
  }
}
static void reset(const void* model, void* data) {
  (void)model;
  ((Body*)data)->value = 0;
  ((Body*)data)->failed = 0;
}
static int take_error(void* data, char* text, size_t size) {
  Body* body = (Body*)data;
  int failed = body->failed;
  if (failed) {
    snprintf(text, size, "the value is negative");
    body->failed = 0;
  }
  return failed;
}

// Each step waits until as many may end.
static void hold(Model* model, Body* body, int number) {
  (void)body;
  reaches(&model->let, number);
}

// A request, all that it names, and what became of it.
typedef struct Work {
  RolloutEngine engine;
  Model model;
  RolloutModel models[1];
  Body bodies[MOST_DATA];
  RolloutData data[MOST_DATA];
  double* start;
  double* state;
  RolloutOutcome* outcomes;
  RolloutRequest request;
  RolloutPool* pool;
  RolloutTicket* ticket;
  RolloutError error;
  int32_t status;
  int returned;
} Work;

#define UNTOUCHED 0x55

static void set_up(Work* work, RolloutPool* pool, size_t ndata, size_t nbatch, size_t nstep) {
  size_t i;
  memset(work, 0, sizeof(*work));
  work->engine.size = sizeof(work->engine);
  work->engine.version = ROLLOUT_ENGINE_VERSION;
  work->engine.number_size = sizeof(double);
  work->engine.step = step;
  work->engine.state_size = state_size;
  work->engine.get_state = get_state;
  work->engine.set_state = set_state;
  work->engine.reset = reset;
  work->engine.take_error = take_error;
  work->engine.full_physics = 1;
  work->model.number = 1;
  work->models[0].model = &work->model;
  for (i = 0; i < ndata; i++) {
    work->data[i].data = &work->bodies[i];
  }
  work->start = (double*)malloc((nbatch + 1) * sizeof(double));
  work->state = (double*)malloc((nbatch * nstep + 1) * sizeof(double));
  work->outcomes = (RolloutOutcome*)malloc((nbatch + 1) * sizeof(RolloutOutcome));
  memset(work->state, UNTOUCHED, nbatch * nstep * sizeof(double));
  memset(work->outcomes, UNTOUCHED, nbatch * sizeof(RolloutOutcome));
  for (i = 0; i < nbatch; i++) {
    work->start[i] = 3.0 * (double)i + 1;
  }
  work->request = rollout_request();
  work->request.engine = &work->engine;
  work->request.models = work->models;
  work->request.nmodel = 1;
  work->request.data = work->data;
  work->request.ndata = ndata;
  work->request.nbatch = nbatch;
  work->request.nstep = nstep;
  work->request.initial_state = rollout_rows(work->start, nbatch, 1);
  work->request.state = rollout_output(work->state, nbatch * nstep);
  work->request.outcomes = work->outcomes;
  work->request.noutcome = nbatch;
  work->pool = pool;
  work->error = rollout_error();
  work->status = -1;
}

static void tear_down(Work* work) {
  free(work->start);
  free(work->state);
  free(work->outcomes);
}

static void submit(Work* work) {
  CHECK_STATUS(rollout_submit(work->pool, &work->request, &work->ticket, &work->error),
               ROLLOUT_STATUS_OK, &work->error);
}

static int32_t wait_for(Work* work, int64_t timeout) {
  work->status = rollout_ticket_wait(work->ticket, timeout, &work->error);
  return work->status;
}

static int done(Work* work) {
  int32_t is = -1;
  CHECK_STATUS(rollout_ticket_done(work->ticket, &is, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK(is == 0 || is == 1);
  return is;
}

// Waits until it is done without working on it.
static int gets_done(Work* work) {
  time_t limit = time(NULL) + 60;
  while (!done(work)) {
    if (time(NULL) > limit) {
      return 0;
    }
    sched_yield();
  }
  return 1;
}

static RolloutProgress progress(Work* work) {
  RolloutProgress made;
  memset(&made, 0, sizeof(made));
  CHECK_STATUS(rollout_ticket_progress(work->ticket, &made, NULL), ROLLOUT_STATUS_OK, NULL);
  return made;
}

static void release(Work* work) {
  RolloutError error = rollout_error();
  CHECK_STATUS(rollout_ticket_release(work->ticket, &error), ROLLOUT_STATUS_OK, &error);
  work->ticket = NULL;
}

static void* run_as_caller(void* user) {
  Work* work = (Work*)user;
  work->status = rollout_run(work->pool, &work->request, &work->error);
  set(&work->returned, 1);
  return NULL;
}

static void* wait_as_caller(void* user) {
  Work* work = (Work*)user;
  wait_for(work, -1);
  set(&work->returned, 1);
  return NULL;
}

// How the rollouts of a request ended.
typedef struct Ends {
  size_t completed;
  size_t failed;
  // Cancelled, or out of time, as the request was.
  size_t stopped;
  size_t not_started;
  size_t steps;
  // What is not as it must be.
  size_t wrong;
} Ends;

static int untouched(const void* memory, size_t size) {
  const unsigned char* bytes = (const unsigned char*)memory;
  size_t i;
  for (i = 0; i < size; i++) {
    if (bytes[i] != UNTOUCHED) {
      return 0;
    }
  }
  return 1;
}

// Looks at all outcomes and rows: those that are valid have the bits of a plain loop, the
// others are NaN, those of rollouts that were not started are as they were.
static Ends ends_of(const Work* work) {
  size_t nbatch = work->request.nbatch, nstep = work->request.nstep, i, t;
  Ends ends;
  memset(&ends, 0, sizeof(ends));
  for (i = 0; i < nbatch; i++) {
    const RolloutOutcome* outcome = &work->outcomes[i];
    const double* rows = &work->state[i * nstep];
    double value = work->start[i];
    int32_t stopped = work->status == ROLLOUT_STATUS_CANCELLED
                          ? ROLLOUT_OUTCOME_STATUS_CANCELLED
                          : ROLLOUT_OUTCOME_STATUS_OUT_OF_TIME;
    if (outcome->status == ROLLOUT_OUTCOME_STATUS_NOT_STARTED) {
      ends.not_started++;
      ends.wrong += outcome->steps != 0 || !untouched(rows, nstep * sizeof(double));
      continue;
    }
    if (outcome->status == ROLLOUT_OUTCOME_STATUS_COMPLETED) {
      ends.completed++;
      ends.wrong += outcome->steps != nstep;
    } else if (outcome->status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR) {
      ends.failed++;
      ends.wrong += outcome->steps != 0 || value >= 0;
    } else if (outcome->status == stopped) {
      ends.stopped++;
      ends.wrong += outcome->steps >= nstep;
    } else {
      ends.wrong++;
    }
    ends.steps += (size_t)outcome->steps;
    for (t = 0; t < nstep; t++) {
      value = value * 0.5 + work->model.number;
      ends.wrong += t < outcome->steps ? rows[t] != value : !isnan(rows[t]);
    }
  }
  return ends;
}

// The request was done to its end.
static void check_whole(Work* work) {
  Ends ends = ends_of(work);
  CHECK_STATUS(work->status, ROLLOUT_STATUS_OK, &work->error);
  CHECK(ends.wrong == 0);
  CHECK(ends.completed == work->request.nbatch);
  CHECK(get(&work->model.begun) == (int)(work->request.nbatch * work->request.nstep));
}

// The request was ended early, for this reason, and all steps that were begun are valid.
static Ends check_stopped(Work* work, int32_t status) {
  Ends ends = ends_of(work);
  CHECK_STATUS(work->status, status, &work->error);
  CHECK(ends.wrong == 0);
  CHECK(ends.stopped + ends.not_started > 0);
  // At most one for each data.
  CHECK(ends.stopped <= work->request.ndata);
  CHECK(ends.steps == (size_t)get(&work->model.begun));
  return ends;
}

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

static void add_one(void* number) {
  add((int*)number, 1);
}

static pthread_t start_thread(void* (*body)(void*), void* user) {
  pthread_t thread;
  memset(&thread, 0, sizeof(thread));
  CHECK(pthread_create(&thread, NULL, body, user) == 0);
  return thread;
}

static const int32_t NTHREADS[] = {0, 1, 2, 8};
#define EACH_NTHREAD(i) for (i = 0; i < sizeof(NTHREADS) / sizeof(NTHREADS[0]); i++)

// Lets steps end that are held, a few at a time, until `*until` is not zero.
typedef struct Trickle {
  Model* model;
  int* until;
} Trickle;

static void* trickle(void* user) {
  const Trickle* one = (const Trickle*)user;
  while (!get(one->until)) {
    rest(1);
    set(&one->model->let, get(&one->model->begun));
  }
  // Whatever comes now.
  set(&one->model->let, 1 << 30);
  return NULL;
}

// ThreadSanitizer has a thread of its own, which it starts with the first other one.
#ifdef __SANITIZE_THREAD__
enum { TOOL_THREADS = 1 };
#else
enum { TOOL_THREADS = 0 };
#endif

// Runs first: threads of earlier cases could still be on their way out.
static void r83_requests_of_different_models_share_the_threads_of_one_pool(void) {
  enum { NTHREAD = 2, CALLERS = 2 };
  static Work works[CALLERS];
  pthread_t callers[CALLERS];
  int before = process_threads() + TOOL_THREADS;
  RolloutPool* pool = new_pool(NTHREAD);
  time_t limit = time(NULL) + 60;
  int i;
  for (i = 0; i < CALLERS; i++) {
    set_up(&works[i], pool, NTHREAD + CALLERS, 8, 4);
    works[i].model.number = 1 + i;
    works[i].model.inside = hold;
    submit(&works[i]);
    callers[i] = start_thread(wait_as_caller, &works[i]);
  }
  // All of the pool's threads and all callers are in a step of one or the other.
  while (get(&works[0].model.begun) + get(&works[1].model.begun) < NTHREAD + CALLERS &&
         time(NULL) < limit) {
    sched_yield();
  }
  CHECK(process_threads() == before + NTHREAD + CALLERS);
  for (i = 0; i < CALLERS; i++) {
    set(&works[i].model.let, 1 << 30);
  }
  for (i = 0; i < CALLERS; i++) {
    pthread_join(callers[i], NULL);
    check_whole(&works[i]);
    release(&works[i]);
    tear_down(&works[i]);
  }
  rollout_pool_destroy(pool);
  CHECK(process_threads_become(before));
}

static void a_submitted_request_gives_what_a_run_gives(void) {
  static Work work, run;
  size_t i, ndata;
  int attended;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    for (ndata = 1; ndata <= 3; ndata++) {
      for (attended = 0; attended < 2; attended++) {
        RolloutProgress made;
        set_up(&work, pool, ndata, 13, 7);
        work.request.flags = attended ? ROLLOUT_REQUEST_ATTENDED : 0;
        submit(&work);
        wait_for(&work, -1);
        check_whole(&work);
        CHECK(done(&work));
        made = progress(&work);
        CHECK(made.rollouts == 13 && made.steps == 13 * 7);
        CHECK(made.nbatch == 13 && made.nstep == 7);
        release(&work);

        set_up(&run, pool, ndata, 13, 7);
        run.request.flags = work.request.flags;
        run_as_caller(&run);
        check_whole(&run);
        CHECK(!memcmp(run.state, work.state, 13 * 7 * sizeof(double)));
        tear_down(&work);
        tear_down(&run);
      }
    }
    rollout_pool_destroy(pool);
  }
}

static void threads_begin_without_a_waiter(void) {
  static Work work;
  RolloutPool* pool = new_pool(2);
  int round;
  for (round = 0; round < 20; round++) {
    set_up(&work, pool, 2, 6, 3);
    submit(&work);
    CHECK(gets_done(&work));
    wait_for(&work, 0);
    check_whole(&work);
    release(&work);
    tear_down(&work);
  }
  rollout_pool_destroy(pool);
}

static void a_request_of_nothing_is_done_at_once(void) {
  static Work work;
  size_t i;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    set_up(&work, pool, 1, 0, 5);
    // There is nothing that this could be too late for.
    work.request.deadline_ns = 1;
    submit(&work);
    CHECK(done(&work));
    wait_for(&work, 0);
    check_whole(&work);
    release(&work);
    tear_down(&work);
    rollout_pool_destroy(pool);
  }
}

static void what_describes_a_request_may_go_away_after_the_call(void) {
  static Work work;
  RolloutPool* pool = new_pool(1);
  RolloutEngine* engine = (RolloutEngine*)malloc(sizeof(RolloutEngine));
  RolloutModel* models = (RolloutModel*)malloc(6 * sizeof(RolloutModel));
  RolloutData* data = (RolloutData*)malloc(2 * sizeof(RolloutData));
  RolloutRequest* request = (RolloutRequest*)malloc(sizeof(RolloutRequest));
  size_t i;
  set_up(&work, pool, 2, 6, 3);
  work.model.inside = hold;
  *engine = work.engine;
  for (i = 0; i < 6; i++) {
    models[i] = work.models[0];
  }
  memcpy(data, work.data, 2 * sizeof(RolloutData));
  *request = work.request;
  request->engine = engine;
  request->models = models;
  request->nmodel = 6;
  request->data = data;
  CHECK_STATUS(rollout_submit(pool, request, &work.ticket, &work.error), ROLLOUT_STATUS_OK,
               &work.error);
  memset(engine, UNTOUCHED, sizeof(*engine));
  memset(models, UNTOUCHED, 6 * sizeof(RolloutModel));
  memset(data, UNTOUCHED, 2 * sizeof(RolloutData));
  memset(request, UNTOUCHED, sizeof(*request));
  free(engine);
  free(models);
  free(data);
  free(request);
  set(&work.model.let, 1 << 30);
  wait_for(&work, -1);
  check_whole(&work);
  release(&work);
  tear_down(&work);
  rollout_pool_destroy(pool);
}

static void a_refused_request_has_no_ticket_and_has_written_nothing(void) {
  static Work work, other;
  RolloutPool* pool = new_pool(1);
  RolloutTicket* ticket = NULL;
  set_up(&work, pool, 1, 4, 3);
  work.request.flags = 6;
  CHECK_STATUS(rollout_submit(pool, &work.request, &ticket, &work.error),
               ROLLOUT_STATUS_BAD_OPTION, &work.error);
  CHECK(!strncmp(work.error.text, "flags: ", 7));
  work.request.flags = 0;
  work.request.nbatch = 5;
  CHECK_STATUS(rollout_submit(pool, &work.request, &ticket, &work.error),
               ROLLOUT_STATUS_WRONG_SIZE, &work.error);
  work.request.nbatch = 4;
  // A list of models that is longer than it may be is not read.
  work.request.nmodel = 1000000;
  CHECK_STATUS(rollout_submit(pool, &work.request, &ticket, &work.error),
               ROLLOUT_STATUS_WRONG_SIZE, &work.error);
  work.request.nmodel = 1;

  // A data in use.
  set_up(&other, pool, 1, 4, 3);
  other.data[0] = work.data[0];
  other.model.inside = hold;
  submit(&other);
  CHECK_STATUS(rollout_submit(pool, &work.request, &ticket, &work.error), ROLLOUT_STATUS_BUSY,
               &work.error);
  CHECK(work.error.index == 0 && !strncmp(work.error.text, "data[0]: ", 9));
  CHECK_STATUS(rollout_run(pool, &work.request, &work.error), ROLLOUT_STATUS_BUSY, &work.error);
  CHECK(ticket == NULL && get(&work.model.begun) == 0);
  CHECK(untouched(work.state, 12 * sizeof(double)));
  CHECK(untouched(work.outcomes, 4 * sizeof(RolloutOutcome)));
  set(&other.model.let, 1 << 30);
  wait_for(&other, -1);
  check_whole(&other);
  // Free when it is done, and not only when its ticket is released.
  submit(&work);
  wait_for(&work, -1);
  check_whole(&work);
  release(&other);
  release(&work);
  tear_down(&work);
  tear_down(&other);
  rollout_pool_destroy(pool);
}

// Steps of at least 0.1 ms, which count themselves if they begin after the time is up.
static void count_late(Model* model, Body* body, int number) {
  uint64_t now = rollout_clock_ns(), none = 0, first;
  (void)number;
  __atomic_compare_exchange_n(&model->first, &none, now, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  // (The call, from which the budget counts, was before any step.)
  first = __atomic_load_n(&model->first, __ATOMIC_ACQUIRE);
  body->late += now > first + model->budget;
  while (rollout_clock_ns() < now + 100000) {
  }
}

static void r41_a_budget_ends_a_request_within_a_step_of_each_thread(void) {
  static Work work;
  int32_t nthread;
  int submitted;
  for (nthread = 0; nthread <= 2; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    for (submitted = 0; submitted < 2; submitted++) {
      size_t i;
      set_up(&work, pool, 3, 128, 100);
      work.model.inside = count_late;
      work.model.budget = work.request.budget_ns = 5000000;
      if (submitted) {
        submit(&work);
        wait_for(&work, -1);
        release(&work);
      } else {
        run_as_caller(&work);
      }
      check_stopped(&work, ROLLOUT_STATUS_OUT_OF_TIME);
      CHECK(work.error.nfailed == 0 && work.error.index == -1);
      CHECK(strstr(work.error.text, "time") != NULL);
      for (i = 0; i < work.request.ndata; i++) {
        CHECK(work.bodies[i].late <= 1);
      }
      tear_down(&work);
    }
    rollout_pool_destroy(pool);
  }
}

static void a_deadline_that_has_passed_lets_no_step_begin(void) {
  static Work work;
  uint64_t hour = 3600000000000u;
  size_t i;
  int which;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    for (which = 0; which < 6; which++) {
      Ends ends;
      set_up(&work, pool, 2, 8, 3);
      // Alone, or with a budget that has more time.
      work.request.deadline_ns = which % 3 == 2 ? rollout_clock_ns() : 1;
      work.request.budget_ns = which % 3 == 1 ? hour : 0;
      if (which < 3) {
        run_as_caller(&work);
      } else {
        submit(&work);
        wait_for(&work, -1);
        CHECK(progress(&work).steps == 0);
        release(&work);
      }
      ends = check_stopped(&work, ROLLOUT_STATUS_OUT_OF_TIME);
      CHECK(ends.not_started == 8 && get(&work.model.begun) == 0);
      tear_down(&work);
    }
    rollout_pool_destroy(pool);
  }
}

static void a_deadline_in_time_changes_nothing(void) {
  static Work work;
  uint64_t hour = 3600000000000u;
  int which;
  RolloutPool* pool = new_pool(1);
  for (which = 0; which < 8; which++) {
    set_up(&work, pool, 2, 8, 3);
    work.request.budget_ns = which & 1 ? hour : which & 2 ? UINT64_MAX : 0;
    work.request.deadline_ns = which & 2 ? rollout_clock_ns() + hour : UINT64_MAX;
    if (which & 4) {
      run_as_caller(&work);
    } else {
      submit(&work);
      wait_for(&work, -1);
      release(&work);
    }
    check_whole(&work);
    tear_down(&work);
  }
  rollout_pool_destroy(pool);
}

static void a_deadline_ends_a_request_that_nobody_has_begun(void) {
  static Work blocked, work;
  int32_t nthread;
  for (nthread = 0; nthread <= 1; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    set_up(&blocked, pool, 1, 2, 2);
    blocked.model.inside = hold;
    if (nthread > 0) {
      submit(&blocked);
      CHECK(reaches(&blocked.model.begun, 1));
    }
    set_up(&work, pool, 2, 8, 3);
    work.request.deadline_ns = rollout_clock_ns() + 1000000;
    submit(&work);
    CHECK(gets_done(&work));
    wait_for(&work, 0);
    CHECK(check_stopped(&work, ROLLOUT_STATUS_OUT_OF_TIME).not_started == 8);
    release(&work);
    if (nthread > 0) {
      set(&blocked.model.let, 1 << 30);
      wait_for(&blocked, -1);
      check_whole(&blocked);
      release(&blocked);
    }
    tear_down(&work);
    tear_down(&blocked);
    rollout_pool_destroy(pool);
  }
}

static void r79_a_wait_that_times_out_loses_nothing(void) {
  static Work work;
  RolloutPool* pool = new_pool(1);
  int round;
  set_up(&work, pool, 1, 4, 3);
  work.model.inside = hold;
  submit(&work);
  // The one data is in use, so this thread can only wait.
  CHECK(reaches(&work.model.begun, 1));
  for (round = 0; round < 3; round++) {
    wait_for(&work, round == 0 ? 0 : 10000000);
    CHECK_STATUS(work.status, ROLLOUT_STATUS_TIMEOUT, &work.error);
    CHECK(work.error.status == ROLLOUT_STATUS_TIMEOUT && work.error.index == -1);
    CHECK(work.error.text[0] != '\0');
    CHECK(!done(&work) && progress(&work).rollouts == 0);
  }
  set(&work.model.let, 1 << 30);
  wait_for(&work, -1);
  check_whole(&work);
  CHECK(work.error.text[0] == '\0' && work.error.status == 0);
  release(&work);
  tear_down(&work);
  rollout_pool_destroy(pool);
}

static void the_result_stays_and_is_told_to_every_waiter(void) {
  enum { WAITERS = 4 };
  static Work work;
  pthread_t threads[WAITERS];
  static Work waiters[WAITERS];
  RolloutPool* pool = new_pool(1);
  int i;
  set_up(&work, pool, 1, 6, 3);
  work.start[4] = -1;
  work.start[2] = -5;
  work.model.inside = hold;
  submit(&work);
  CHECK(reaches(&work.model.begun, 1));
  for (i = 0; i < WAITERS; i++) {
    waiters[i].ticket = work.ticket;
    waiters[i].error = rollout_error();
    waiters[i].returned = 0;
    threads[i] = start_thread(wait_as_caller, &waiters[i]);
  }
  set(&work.model.let, 1 << 30);
  for (i = 0; i < WAITERS; i++) {
    pthread_join(threads[i], NULL);
    CHECK_STATUS(waiters[i].status, ROLLOUT_STATUS_ROLLOUTS_FAILED, &waiters[i].error);
  }
  for (i = 0; i < 6; i++) {
    // For ever, not at all, a little; before and after it is cancelled.
    const int64_t timeouts[] = {-1, 0, 1000};
    if (i == 3) {
      CHECK_STATUS(rollout_ticket_cancel(work.ticket, NULL), ROLLOUT_STATUS_OK, NULL);
    }
    wait_for(&work, timeouts[i % 3]);
    CHECK_STATUS(work.status, ROLLOUT_STATUS_ROLLOUTS_FAILED, &work.error);
    CHECK(work.error.index == 2 && work.error.nfailed == 2);
    CHECK(!strcmp(work.error.text, "the value is negative"));
    CHECK_STATUS(rollout_ticket_wait(work.ticket, timeouts[i % 3], NULL),
                 ROLLOUT_STATUS_ROLLOUTS_FAILED, NULL);
  }
  CHECK(ends_of(&work).wrong == 0 && ends_of(&work).failed == 2);
  CHECK(progress(&work).rollouts == 6 && progress(&work).steps == 4 * 3 + 2);
  release(&work);
  tear_down(&work);
  rollout_pool_destroy(pool);
}

static void slices_without_threads_pause_in_the_middle_and_give_the_same_bits(void) {
  static Work work;
  RolloutPool* pool = new_pool(0);
  uint64_t before = 0;
  int in_the_middle = 0, slices = 0;
  set_up(&work, pool, 1, 5, 40);
  submit(&work);
  // To look makes no step.
  CHECK_STATUS(wait_for(&work, 0), ROLLOUT_STATUS_TIMEOUT, &work.error);
  CHECK(progress(&work).steps == 0 && !done(&work));
  while (wait_for(&work, 1) == ROLLOUT_STATUS_TIMEOUT && slices < 1000) {
    RolloutProgress now = progress(&work);
    // Each gets on, by few steps.
    CHECK(now.steps > before && now.steps == (uint64_t)get(&work.model.begun));
    CHECK(now.rollouts == now.steps / 40);
    in_the_middle += now.steps % 40 != 0;
    before = now.steps;
    slices++;
  }
  check_whole(&work);
  CHECK(in_the_middle > 0);
  release(&work);
  tear_down(&work);
  rollout_pool_destroy(pool);
}

static void* wait_in_slices(void* user) {
  Work* work = (Work*)user;
  while (rollout_ticket_wait(work->ticket, 2000, NULL) == ROLLOUT_STATUS_TIMEOUT) {
  }
  add(&work->returned, 1);
  return NULL;
}

static void slices_of_several_threads_go_on_where_others_paused(void) {
  enum { WAITERS = 3 };
  static Work work;
  pthread_t threads[WAITERS];
  int32_t nthread;
  int round, i;
  for (nthread = 0; nthread <= 2; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    for (round = 0; round < 5; round++) {
      set_up(&work, pool, 2, 20, 50);
      submit(&work);
      for (i = 0; i < WAITERS; i++) {
        threads[i] = start_thread(wait_in_slices, &work);
      }
      for (i = 0; i < WAITERS; i++) {
        pthread_join(threads[i], NULL);
      }
      CHECK(work.returned == WAITERS);
      wait_for(&work, 0);
      check_whole(&work);
      release(&work);
      tear_down(&work);
    }
    rollout_pool_destroy(pool);
  }
}

static void a_request_is_cancelled_before_its_start(void) {
  static Work work;
  RolloutPool* pool = new_pool(0);
  int round;
  set_up(&work, pool, 2, 8, 3);
  submit(&work);
  CHECK(!done(&work));
  for (round = 0; round < 2; round++) {
    CHECK_STATUS(rollout_ticket_cancel(work.ticket, &work.error), ROLLOUT_STATUS_OK, &work.error);
    CHECK(done(&work));
  }
  wait_for(&work, -1);
  CHECK(check_stopped(&work, ROLLOUT_STATUS_CANCELLED).not_started == 8);
  CHECK(work.error.index == -1 && work.error.nfailed == 0);
  CHECK(strstr(work.error.text, "cancelled") != NULL);
  CHECK(progress(&work).rollouts == 0 && progress(&work).steps == 0);
  // Its data are free.
  work.request.outcomes = NULL;
  work.request.noutcome = 0;
  CHECK_STATUS(rollout_run(pool, &work.request, &work.error), ROLLOUT_STATUS_OK, &work.error);
  release(&work);
  tear_down(&work);
  rollout_pool_destroy(pool);
}

static void a_request_is_cancelled_in_flight_at_the_next_step(void) {
  static Work work;
  size_t i;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    int inside = NTHREADS[i] < 3 ? NTHREADS[i] + 1 : 4;
    pthread_t waiter;
    Ends ends;
    set_up(&work, pool, 4, 64, 1000);
    work.model.inside = hold;
    // (The first few steps are free, so that there is something before the end.)
    set(&work.model.let, 40);
    submit(&work);
    waiter = start_thread(wait_as_caller, &work);
    CHECK(reaches(&work.model.begun, 40 + inside));
    CHECK_STATUS(rollout_ticket_cancel(work.ticket, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK(!done(&work) && !get(&work.returned));
    set(&work.model.let, 1 << 30);
    pthread_join(waiter, NULL);
    ends = check_stopped(&work, ROLLOUT_STATUS_CANCELLED);
    // Each thread has made the step that it was in, and no other one.
    CHECK(get(&work.model.begun) == 40 + inside);
    CHECK(ends.stopped == (size_t)inside && ends.completed == 0);
    CHECK(progress(&work).rollouts == (uint64_t)inside);
    release(&work);
    tear_down(&work);
    rollout_pool_destroy(pool);
  }
}

static void a_paused_request_is_cancelled_and_its_rollout_says_so(void) {
  static Work work;
  RolloutPool* pool = new_pool(0);
  Ends ends;
  set_up(&work, pool, 1, 3, 1000);
  submit(&work);
  CHECK_STATUS(wait_for(&work, 1), ROLLOUT_STATUS_TIMEOUT, &work.error);
  CHECK_STATUS(rollout_ticket_cancel(work.ticket, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK(done(&work));
  wait_for(&work, 0);
  ends = check_stopped(&work, ROLLOUT_STATUS_CANCELLED);
  CHECK(ends.stopped == 1 && ends.not_started == 2);
  CHECK(progress(&work).rollouts == 1 && progress(&work).steps == ends.steps);
  release(&work);
  tear_down(&work);
  rollout_pool_destroy(pool);
}

static void a_cancel_after_the_end_changes_nothing(void) {
  static Work work;
  RolloutPool* pool = new_pool(1);
  set_up(&work, pool, 2, 8, 3);
  submit(&work);
  wait_for(&work, -1);
  CHECK_STATUS(rollout_ticket_cancel(work.ticket, NULL), ROLLOUT_STATUS_OK, NULL);
  wait_for(&work, -1);
  check_whole(&work);
  release(&work);
  tear_down(&work);
  rollout_pool_destroy(pool);
}

// A step of an urgent request notes how many steps of another one have begun.
typedef struct Notes {
  Model* other;
  int most;
} Notes;

static void note_the_other(Model* model, Body* body, int number) {
  Notes* notes = (Notes*)model->user;
  int begun = get(&notes->other->begun);
  (void)body;
  (void)number;
  if (begun > get(&notes->most)) {
    set(&notes->most, begun);
  }
}

static void an_urgent_request_is_done_while_a_large_one_is_in_flight(void) {
  static Work large, urgent;
  int32_t nthread;
  for (nthread = 1; nthread <= 2; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    Notes notes = {&large.model, 0};
    set_up(&large, pool, (size_t)nthread, 1000, 1);
    large.model.inside = hold;
    submit(&large);
    // Every thread is in a rollout of the large one, with more of them claimed.
    CHECK(reaches(&large.model.begun, nthread));
    set_up(&urgent, pool, 1, 5, 2);
    urgent.request.priority = 1;
    urgent.model.inside = note_the_other;
    urgent.model.user = &notes;
    submit(&urgent);
    CHECK(get(&urgent.model.begun) == 0);
    // One thread can end its rollout, and goes to the urgent one.
    set(&large.model.let, 1);
    CHECK(gets_done(&urgent));
    wait_for(&urgent, 0);
    check_whole(&urgent);
    CHECK(get(&notes.most) == nthread);
    CHECK(!done(&large));
    set(&large.model.let, 1 << 30);
    wait_for(&large, -1);
    check_whole(&large);
    release(&urgent);
    release(&large);
    tear_down(&urgent);
    tear_down(&large);
    rollout_pool_destroy(pool);
  }
}

static void a_request_of_low_priority_waits_for_the_others(void) {
  static Work large, low;
  RolloutPool* pool = new_pool(1);
  Notes notes = {&large.model, 0};
  set_up(&large, pool, 1, 50, 1);
  large.model.inside = hold;
  large.request.priority = INT32_MIN + 1;
  submit(&large);
  CHECK(reaches(&large.model.begun, 1));
  set_up(&low, pool, 1, 5, 2);
  low.request.priority = INT32_MIN;
  low.model.inside = note_the_other;
  low.model.user = &notes;
  submit(&low);
  set(&large.model.let, 49);
  CHECK(reaches(&large.model.begun, 50));
  CHECK(get(&low.model.begun) == 0);
  set(&large.model.let, 1 << 30);
  CHECK(gets_done(&low) && gets_done(&large));
  wait_for(&low, 0);
  wait_for(&large, 0);
  check_whole(&low);
  check_whole(&large);
  release(&low);
  release(&large);
  tear_down(&low);
  tear_down(&large);
  rollout_pool_destroy(pool);
}

static void requests_of_one_priority_share_the_threads(void) {
  static Work first, second;
  RolloutPool* pool = new_pool(2);
  set_up(&first, pool, 2, 100, 1);
  set_up(&second, pool, 2, 100, 1);
  first.model.inside = second.model.inside = hold;
  submit(&first);
  CHECK(reaches(&first.model.begun, 2));
  submit(&second);
  // A thread that ends a rollout goes where nobody is.
  set(&first.model.let, 1);
  CHECK(reaches(&second.model.begun, 1));
  CHECK(get(&first.model.begun) == 2);
  // The other one stays, since one is there already.
  set(&first.model.let, 2);
  CHECK(reaches(&first.model.begun, 3));
  CHECK(get(&second.model.begun) == 1);
  // So they stay, one for each.
  set(&first.model.let, 50);
  CHECK(reaches(&first.model.begun, 51));
  CHECK(get(&second.model.begun) == 1);
  set(&second.model.let, 30);
  CHECK(reaches(&second.model.begun, 31));
  CHECK(get(&first.model.begun) == 51);
  set(&first.model.let, 1 << 30);
  set(&second.model.let, 1 << 30);
  CHECK(gets_done(&first) && gets_done(&second));
  wait_for(&first, 0);
  wait_for(&second, 0);
  check_whole(&first);
  check_whole(&second);
  release(&first);
  release(&second);
  tear_down(&first);
  tear_down(&second);
  rollout_pool_destroy(pool);
}

static void r88_requests_of_different_lengths_end_each_on_its_own(void) {
  enum { MANY = 4 };
  static Work blocked, works[MANY];
  RolloutPool* pool = new_pool(2);
  int i;
  set_up(&blocked, pool, 1, 3, 1000);
  blocked.model.inside = hold;
  submit(&blocked);
  CHECK(reaches(&blocked.model.begun, 1));
  for (i = 0; i < MANY; i++) {
    set_up(&works[i], pool, 1, 5, (size_t)(1 + 10 * i));
    works[i].model.number = i;
    submit(&works[i]);
  }
  // The last first.
  for (i = MANY - 1; i >= 0; i--) {
    wait_for(&works[i], -1);
    check_whole(&works[i]);
    CHECK(!done(&blocked));
    release(&works[i]);
    tear_down(&works[i]);
  }
  set(&blocked.model.let, 1 << 30);
  wait_for(&blocked, -1);
  check_whole(&blocked);
  release(&blocked);
  tear_down(&blocked);
  rollout_pool_destroy(pool);
}

static void* use_a_pool(void* user) {
  Work* work = (Work*)user;
  int round;
  for (round = 0; round < 50; round++) {
    set_up(work, work->pool, 3, 10, 6);
    work->model.number = round;
    if (round % 2) {
      rollout_submit(work->pool, &work->request, &work->ticket, &work->error);
      wait_for(work, -1);
      rollout_ticket_release(work->ticket, NULL);
    } else {
      run_as_caller(work);
    }
    add(&work->returned, 0);
    if (work->status != ROLLOUT_STATUS_OK || ends_of(work).wrong || ends_of(work).completed != 10) {
      work->status = -2;
      return NULL;
    }
    if (round < 49) {
      tear_down(work);
    }
  }
  return NULL;
}

static void r87_two_pools_are_used_at_once(void) {
  static Work works[2];
  pthread_t threads[2];
  int i;
  for (i = 0; i < 2; i++) {
    works[i].pool = new_pool(i == 0 ? 1 : 3);
    threads[i] = start_thread(use_a_pool, &works[i]);
  }
  for (i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    check_whole(&works[i]);
    tear_down(&works[i]);
    rollout_pool_destroy(works[i].pool);
  }
}

// What a callback asks of its own ticket, of another one, and of counts.
typedef struct Inside {
  Work* own;
  Work* other;
  Work* elsewhere;
  RolloutGroup* group;
  int32_t statuses[8];
  RolloutError error;
  int asked;
} Inside;

static void ask(Inside* inside) {
  RolloutError* error = &inside->error;
  *error = rollout_error();
  inside->statuses[0] = rollout_ticket_wait(inside->own->ticket, -1, error);
  inside->statuses[1] = rollout_ticket_wait(inside->other->ticket, 1000000, error);
  inside->statuses[2] = rollout_pool_wait_count(inside->own->pool, 1000000, error);
  inside->statuses[3] = rollout_group_wait_count(inside->group, 1000000, error);
  // To look is no wait.
  inside->statuses[4] = rollout_ticket_wait(inside->own->ticket, 0, NULL);
  // Nor is what is done by now.
  inside->statuses[5] = rollout_ticket_wait(inside->elsewhere->ticket, -1, NULL);
  set(&inside->asked, 1);
}

static void ask_in_a_step(Model* model, Body* body, int number) {
  Inside* inside = (Inside*)model->user;
  (void)body;
  // (The ticket is there a moment after the first step.)
  reaches(&model->let, 1);
  if (number == 1) {
    ask(inside);
    inside->statuses[6] = rollout_ticket_release(inside->own->ticket, &inside->error);
  }
}

static void ask_in_a_task(void* user) {
  ask((Inside*)user);
}

static void check_asked(const Inside* inside) {
  int i;
  for (i = 0; i < 4; i++) {
    CHECK_STATUS(inside->statuses[i], ROLLOUT_STATUS_WOULD_DEADLOCK, &inside->error);
  }
  CHECK_STATUS(inside->statuses[4], ROLLOUT_STATUS_TIMEOUT, NULL);
  CHECK_STATUS(inside->statuses[5], ROLLOUT_STATUS_OK, NULL);
  CHECK(inside->error.status == ROLLOUT_STATUS_WOULD_DEADLOCK && inside->error.text[0] != '\0');
}

static void r76_a_wait_inside_the_pool_is_refused(void) {
  static Work own, other, elsewhere;
  size_t i;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    RolloutPool* second = new_pool(1);
    Inside inside;
    memset(&inside, 0, sizeof(inside));
    CHECK_STATUS(rollout_group_create(pool, &inside.group, NULL), ROLLOUT_STATUS_OK, NULL);
    set_up(&own, pool, 1, 4, 3);
    set_up(&other, pool, 1, 4, 3);
    set_up(&elsewhere, second, 1, 4, 3);
    other.model.inside = hold;
    inside.own = &own;
    inside.other = &other;
    inside.elsewhere = &elsewhere;
    submit(&other);
    submit(&elsewhere);
    // In a callback of a rollout. Another pool may be waited for.
    own.model.inside = ask_in_a_step;
    own.model.user = &inside;
    submit(&own);
    set(&own.model.let, 1);
    wait_for(&own, -1);
    check_whole(&own);
    check_asked(&inside);
    // Its own ticket cannot be released there, and is as it was.
    CHECK_STATUS(inside.statuses[6], ROLLOUT_STATUS_WOULD_DEADLOCK, &inside.error);
    CHECK(done(&own));
    if (NTHREADS[i] > 1) {
      // In a task. (With one thread this would wait for `other`, which has it.)
      static Work again;
      set_up(&again, pool, 1, 4, 3);
      again.model.inside = hold;
      inside.own = &again;
      submit(&again);
      if (NTHREADS[i] == 2) {
        set(&other.model.let, 1 << 30);
        wait_for(&other, -1);
        inside.other = &again;
      }
      memset(inside.statuses, 0, sizeof(inside.statuses));
      set(&inside.asked, 0);
      CHECK_STATUS(rollout_group_schedule(inside.group, ask_in_a_task, &inside, NULL),
                   ROLLOUT_STATUS_OK, NULL);
      CHECK(reaches(&inside.asked, 1));
      check_asked(&inside);
      set(&again.model.let, 1 << 30);
      wait_for(&again, -1);
      check_whole(&again);
      release(&again);
      tear_down(&again);
    }
    set(&other.model.let, 1 << 30);
    wait_for(&other, -1);
    check_whole(&other);
    release(&own);
    release(&other);
    release(&elsewhere);
    tear_down(&own);
    tear_down(&other);
    tear_down(&elsewhere);
    rollout_group_destroy(inside.group);
    rollout_pool_destroy(pool);
    rollout_pool_destroy(second);
  }
}

static void cancel_in_a_step(Model* model, Body* body, int number) {
  Work* work = (Work*)model->user;
  (void)body;
  reaches(&model->let, 1);
  if (number == 5) {
    work->returned = rollout_ticket_cancel(work->ticket, NULL);
  }
}

static void a_callback_may_cancel_its_own_request(void) {
  static Work work;
  int32_t nthread;
  for (nthread = 0; nthread <= 1; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    set_up(&work, pool, 1, 4, 3);
    work.model.inside = cancel_in_a_step;
    work.model.user = &work;
    work.returned = -1;
    submit(&work);
    set(&work.model.let, 1);
    wait_for(&work, -1);
    CHECK(work.returned == ROLLOUT_STATUS_OK);
    CHECK(check_stopped(&work, ROLLOUT_STATUS_CANCELLED).steps == 5);
    release(&work);
    tear_down(&work);
    rollout_pool_destroy(pool);
  }
}

static void release_in_a_step(Model* model, Body* body, int number) {
  Work* other = (Work*)model->user;
  (void)body;
  if (number == 2) {
    other->returned = rollout_ticket_release(other->ticket, NULL);
  }
}

static void a_callback_may_release_another_ticket(void) {
  static Work work, other;
  size_t i;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    set_up(&other, pool, 2, 1000, 1000);
    other.returned = -1;
    submit(&other);
    set_up(&work, pool, 1, 4, 3);
    work.model.inside = release_in_a_step;
    work.model.user = &other;
    work.request.priority = 1;
    submit(&work);
    wait_for(&work, -1);
    check_whole(&work);
    CHECK(other.returned == ROLLOUT_STATUS_OK);
    tear_down(&other);
    release(&work);
    tear_down(&work);
    rollout_pool_destroy(pool);
  }
}

static void a_release_in_flight_cancels_and_waits(void) {
  static Work work;
  size_t i;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    Trickle slow = {&work.model, NULL};
    int released = 0;
    pthread_t waiter, trickler;
    Ends ends;
    set_up(&work, pool, MOST_DATA, 64, 1000);
    work.model.inside = hold;
    submit(&work);
    waiter = start_thread(wait_as_caller, &work);
    // The waiter too is in a step, and so in its call.
    CHECK(reaches(&work.model.begun, NTHREADS[i] + 1));
    slow.until = &released;
    trickler = start_thread(trickle, &slow);
    CHECK_STATUS(rollout_ticket_release(work.ticket, NULL), ROLLOUT_STATUS_OK, NULL);
    // From here on nobody uses anything of it.
    ends.steps = (size_t)get(&work.model.begun);
    set(&released, 1);
    // Who waited is told.
    pthread_join(waiter, NULL);
    CHECK(ends.steps == check_stopped(&work, ROLLOUT_STATUS_CANCELLED).steps);
    pthread_join(trickler, NULL);
    tear_down(&work);
    rollout_pool_destroy(pool);
  }
}

static void a_release_before_the_start_frees_the_data(void) {
  static Work work;
  size_t i;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    int round;
    set_up(&work, pool, 2, 8, 3);
    for (round = 0; round < 20; round++) {
      submit(&work);
      release(&work);
    }
    set(&work.model.begun, 0);
    run_as_caller(&work);
    check_whole(&work);
    tear_down(&work);
    rollout_pool_destroy(pool);
  }
}

static void destroy_ends_what_is_in_flight_and_runs_the_tasks(void) {
  enum { TASKS = 20 };
  static Work blocked, queued, called;
  size_t i;
  EACH_NTHREAD(i) {
    RolloutPool* pool = new_pool(NTHREADS[i]);
    RolloutGroup* group = NULL;
    Trickle slow = {&blocked.model, NULL};
    Trickle slower = {&called.model, NULL};
    pthread_t waiter, caller, tricklers[2];
    uint64_t count = 0;
    int ran = 0, destroyed = 0, t;
    CHECK_STATUS(rollout_group_create(pool, &group, NULL), ROLLOUT_STATUS_OK, NULL);
    // Enough data for all threads, and one who waits: all of them are in it.
    set_up(&blocked, pool, MOST_DATA, 64, 1000);
    blocked.model.inside = hold;
    submit(&blocked);
    waiter = start_thread(wait_as_caller, &blocked);
    CHECK(reaches(&blocked.model.begun, NTHREADS[i] + 1));
    // What nobody comes to.
    set_up(&queued, pool, 1, 5, 5);
    queued.request.priority = -1;
    submit(&queued);
    // A caller, in its first step.
    set_up(&called, pool, 1, 64, 1000);
    called.model.inside = hold;
    caller = start_thread(run_as_caller, &called);
    CHECK(reaches(&called.model.begun, 1));
    for (t = 0; t < TASKS; t++) {
      schedule(pool, add_one, &ran);
      CHECK_STATUS(rollout_group_schedule(group, add_one, &ran, NULL), ROLLOUT_STATUS_OK, NULL);
    }
    slow.until = slower.until = &destroyed;
    tricklers[0] = start_thread(trickle, &slow);
    tricklers[1] = start_thread(trickle, &slower);
    rollout_pool_destroy(pool);
    // All of it is over.
    CHECK(get(&ran) == 2 * TASKS);
    CHECK(done(&blocked) && done(&queued));
    set(&destroyed, 1);
    pthread_join(waiter, NULL);
    pthread_join(caller, NULL);
    pthread_join(tricklers[0], NULL);
    pthread_join(tricklers[1], NULL);
    check_stopped(&blocked, ROLLOUT_STATUS_CANCELLED);
    check_stopped(&called, ROLLOUT_STATUS_CANCELLED);
    // Tickets and groups outlive it.
    wait_for(&queued, -1);
    check_stopped(&queued, ROLLOUT_STATUS_CANCELLED);
    wait_for(&blocked, 1000);
    CHECK_STATUS(blocked.status, ROLLOUT_STATUS_CANCELLED, &blocked.error);
    CHECK_STATUS(rollout_ticket_cancel(blocked.ticket, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK_STATUS(rollout_group_count(group, &count, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK(count == TASKS);
    CHECK_STATUS(rollout_group_wait_count(group, TASKS, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK_STATUS(rollout_group_wait_count(group, TASKS + 1, NULL), ROLLOUT_STATUS_WOULD_DEADLOCK,
                 NULL);
    rollout_group_destroy(group);
    release(&blocked);
    release(&queued);
    tear_down(&blocked);
    tear_down(&queued);
    tear_down(&called);
  }
}

static void destroy_in_a_step(Model* model, Body* body, int number) {
  Work* work = (Work*)model->user;
  (void)body;
  reaches(&model->let, 1);
  if (number == 3) {
    rollout_pool_destroy(work->pool);
  }
}

static void a_callback_may_destroy_its_own_pool(void) {
  static Work work;
  int before = process_threads();
  int32_t nthread;
  for (nthread = 0; nthread <= 2; nthread++) {
    set_up(&work, new_pool(nthread), 1, 50, 3);
    work.model.inside = destroy_in_a_step;
    work.model.user = &work;
    submit(&work);
    set(&work.model.let, 1);
    wait_for(&work, -1);
    // The step before its last one is the third.
    CHECK(check_stopped(&work, ROLLOUT_STATUS_CANCELLED).steps == 3);
    release(&work);
    tear_down(&work);
  }
  CHECK(process_threads_become(before));
}

static void* wait_for_two_tasks(void* group) {
  return rollout_group_wait_count((RolloutGroup*)group, 2, NULL) == ROLLOUT_STATUS_WOULD_DEADLOCK
             ? group
             : NULL;
}

static void who_waits_for_tasks_that_never_come_is_told_when_the_pool_ends(void) {
  RolloutPool* pool = new_pool(2);
  RolloutGroup* group = NULL;
  pthread_t waiter;
  void* told = NULL;
  int ran = 0;
  CHECK_STATUS(rollout_group_create(pool, &group, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK_STATUS(rollout_group_schedule(group, add_one, &ran, NULL), ROLLOUT_STATUS_OK, NULL);
  waiter = start_thread(wait_for_two_tasks, group);
  // Long enough for it to sleep; should it come later, it is told the same.
  rest(50);
  rollout_pool_destroy(pool);
  pthread_join(waiter, &told);
  CHECK(told == group && get(&ran) == 1);
  rollout_group_destroy(group);
}

static void groups_have_counts_of_their_own(void) {
  enum { GROUPS = 3, TASKS = 50 };
  int32_t nthread;
  for (nthread = 0; nthread <= 2; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    RolloutGroup* groups[GROUPS];
    int ran[GROUPS + 1] = {0, 0, 0, 0};
    uint64_t count = 77;
    int g, t;
    for (g = 0; g < GROUPS; g++) {
      groups[g] = NULL;
      CHECK_STATUS(rollout_group_create(pool, &groups[g], NULL), ROLLOUT_STATUS_OK, NULL);
    }
    for (t = 0; t < TASKS; t++) {
      for (g = 0; g < GROUPS; g++) {
        if (t <= 10 * g) {
          CHECK_STATUS(rollout_group_schedule(groups[g], add_one, &ran[g], NULL),
                       ROLLOUT_STATUS_OK, NULL);
        }
      }
    }
    schedule(pool, add_one, &ran[GROUPS]);
    for (g = 0; g < GROUPS; g++) {
      uint64_t expected = (uint64_t)(1 + 10 * g);
      CHECK_STATUS(rollout_group_wait_count(groups[g], expected, NULL), ROLLOUT_STATUS_OK, NULL);
      CHECK_STATUS(rollout_group_count(groups[g], &count, NULL), ROLLOUT_STATUS_OK, NULL);
      CHECK(count == expected && get(&ran[g]) == (int)expected);
    }
    CHECK_STATUS(rollout_pool_wait_count(pool, 1, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK_STATUS(rollout_pool_count(pool, &count, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK(count == 1);
    // A reset is of one.
    CHECK_STATUS(rollout_group_reset_count(groups[1], NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK_STATUS(rollout_group_count(groups[1], &count, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK(count == 0);
    CHECK_STATUS(rollout_group_count(groups[2], &count, NULL), ROLLOUT_STATUS_OK, NULL);
    CHECK(count == 21);
    // The end of a group is not that of its tasks.
    for (t = 0; t < TASKS; t++) {
      CHECK_STATUS(rollout_group_schedule(groups[0], add_one, &ran[0], NULL), ROLLOUT_STATUS_OK,
                   NULL);
    }
    for (g = 0; g < GROUPS; g++) {
      rollout_group_destroy(groups[g]);
    }
    rollout_pool_destroy(pool);
    CHECK(get(&ran[0]) == 1 + TASKS);
  }
}

static void a_task_of_a_group_after_the_end_of_its_pool_never_runs(void) {
  RolloutPool* pool = new_pool(1);
  RolloutGroup* group = NULL;
  int ran = 0;
  CHECK_STATUS(rollout_group_create(pool, &group, NULL), ROLLOUT_STATUS_OK, NULL);
  rollout_pool_destroy(pool);
  CHECK_STATUS(rollout_group_schedule(group, add_one, &ran, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK_STATUS(rollout_group_wait_count(group, 1, NULL), ROLLOUT_STATUS_WOULD_DEADLOCK, NULL);
  rollout_group_destroy(group);
  CHECK(get(&ran) == 0);
}

static void each_thread_of_a_pool_tells_what_it_has_done(void) {
  enum { TASKS = 7 };
  static Work work;
  RolloutPool* pool = new_pool(1);
  RolloutPool* empty = new_pool(0);
  RolloutWorkerStats stats[2], before;
  time_t limit = time(NULL) + 60;
  uint64_t begin, now;
  int ran = 0, t;
  memset(stats, UNTOUCHED, sizeof(stats));
  CHECK_STATUS(rollout_pool_stats(pool, stats, 2, NULL), ROLLOUT_STATUS_WRONG_SIZE, NULL);
  CHECK_STATUS(rollout_pool_stats(pool, stats, 0, NULL), ROLLOUT_STATUS_WRONG_SIZE, NULL);
  CHECK(untouched(stats, sizeof(stats)));
  CHECK_STATUS(rollout_pool_stats(empty, NULL, 0, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK_STATUS(rollout_pool_stats(pool, stats, 1, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK(stats[0].tasks == 0 && stats[0].rollouts == 0 && stats[0].steps == 0);
  CHECK(stats[0].busy_ns == 0 && stats[0].idle_ns > 0);
  CHECK(untouched(&stats[1], sizeof(stats[1])));

  begin = rollout_clock_ns();
  for (t = 0; t < TASKS; t++) {
    schedule(pool, add_one, &ran);
  }
  // One data, which the thread has: nobody else works on it.
  set_up(&work, pool, 1, 4, 3);
  work.model.inside = hold;
  submit(&work);
  CHECK(reaches(&work.model.begun, 1));
  CHECK_STATUS(rollout_pool_stats(pool, &before, 1, NULL), ROLLOUT_STATUS_OK, NULL);
  // (The clock goes on while it works.)
  do {
    CHECK_STATUS(rollout_pool_stats(pool, stats, 1, NULL), ROLLOUT_STATUS_OK, NULL);
  } while (stats[0].busy_ns <= before.busy_ns && time(NULL) < limit);
  CHECK(stats[0].busy_ns > before.busy_ns);
  set(&work.model.let, 1 << 30);
  CHECK(gets_done(&work));
  wait_for(&work, 0);
  check_whole(&work);
  now = rollout_clock_ns();
  CHECK_STATUS(rollout_pool_stats(pool, stats, 1, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK(stats[0].tasks == TASKS);
  CHECK(stats[0].rollouts == 4 && stats[0].steps == 4 * 3);
  CHECK(stats[0].busy_ns + stats[0].idle_ns >= now - begin);
  CHECK(stats[0].busy_ns <= rollout_clock_ns() - begin);

  // What a caller does is not in it.
  release(&work);
  before = stats[0];
  work.pool = empty;
  set(&work.model.begun, 0);
  run_as_caller(&work);
  check_whole(&work);
  CHECK_STATUS(rollout_pool_stats(pool, stats, 1, NULL), ROLLOUT_STATUS_OK, NULL);
  CHECK(stats[0].rollouts == before.rollouts && stats[0].steps == before.steps);
  tear_down(&work);
  rollout_pool_destroy(pool);
  rollout_pool_destroy(empty);
}

// A thread that hands over one request after the other, of all kinds, and ends each in one
// of the ways that there are.
typedef struct Client {
  RolloutPool* pools[2];
  uint32_t random;
  size_t rounds;
  // The round that went wrong, and how; 0 if none has.
  size_t wrong;
  char why[80];
} Client;

static uint32_t below(Client* client, uint32_t bound) {
  client->random = client->random * 1664525u + 1013904223u;
  return (client->random >> 16) % bound;
}

static void* be_a_client(void* user) {
  Client* client = (Client*)user;
  Work* works = (Work*)malloc(3 * sizeof(Work));
  size_t round;
  for (round = 1; round <= client->rounds && !client->wrong; round++) {
    uint32_t many = 1 + below(client, 3), i;
    for (i = 0; i < many; i++) {
      Work* work = &works[i];
      set_up(work, client->pools[below(client, 2)], 1 + below(client, 3), below(client, 30),
             below(client, 60));
      work->model.number = below(client, 100);
      work->request.chunk_size = below(client, 4);
      work->request.priority = (int32_t)below(client, 3) - 1;
      work->request.flags = below(client, 3) == 0 ? ROLLOUT_REQUEST_ATTENDED : 0;
      work->request.budget_ns = below(client, 4) == 0 ? 1 + below(client, 30000) : 0;
      if (work->request.nbatch > 0 && below(client, 4) == 0) {
        work->start[below(client, (uint32_t)work->request.nbatch)] = -1;
      }
      if (rollout_submit(work->pool, &work->request, &work->ticket, &work->error)) {
        client->wrong = round;
      }
    }
    for (i = 0; i < many; i++) {
      Work* work = &works[i];
      uint32_t how = below(client, 4);
      Ends ends;
      RolloutProgress made;
      if (how == 0) {
        rollout_ticket_release(work->ticket, NULL);
        tear_down(work);
        continue;
      }
      if (how == 1) {
        rollout_ticket_cancel(work->ticket, NULL);
      }
      while (wait_for(work, how == 2 ? 1 + (int64_t)below(client, 3000) : -1) ==
             ROLLOUT_STATUS_TIMEOUT) {
      }
      rollout_ticket_progress(work->ticket, &made, NULL);
      ends = ends_of(work);
      if (ends.wrong || made.steps != (uint64_t)get(&work->model.begun) ||
          made.rollouts != ends.completed + ends.failed + ends.stopped ||
          (work->status == ROLLOUT_STATUS_OK && ends.completed != work->request.nbatch) ||
          (work->status == ROLLOUT_STATUS_CANCELLED && how != 1) ||
          (work->status == ROLLOUT_STATUS_OUT_OF_TIME && !work->request.budget_ns) ||
          (work->status == ROLLOUT_STATUS_ROLLOUTS_FAILED &&
           (ends.failed != 1 || ends.stopped + ends.not_started > 0)) ||
          work->status > ROLLOUT_STATUS_OUT_OF_TIME) {
        client->wrong = round;
        snprintf(client->why, sizeof(client->why), "status %d, how %d, %d wrong, %d begun",
                 (int)work->status, (int)how, (int)ends.wrong, get(&work->model.begun));
      }
      if (rollout_ticket_release(work->ticket, NULL)) {
        client->wrong = round;
      }
      tear_down(work);
    }
  }
  free(works);
  return NULL;
}

static void many_tickets_of_many_threads_end_in_every_way(void) {
  enum { CLIENTS = 4 };
  static Client clients[CLIENTS];
  pthread_t threads[CLIENTS];
  int32_t nthread;
  int i;
  for (nthread = 0; nthread <= 2; nthread++) {
    RolloutPool* pool = new_pool(nthread);
    RolloutPool* other = new_pool(1);
    for (i = 0; i < CLIENTS; i++) {
      memset(&clients[i], 0, sizeof(clients[i]));
      clients[i].pools[0] = pool;
      clients[i].pools[1] = other;
      clients[i].random = (uint32_t)(1 + i + 10 * nthread);
      clients[i].rounds = 400 / check_parts;
      threads[i] = start_thread(be_a_client, &clients[i]);
    }
    for (i = 0; i < CLIENTS; i++) {
      pthread_join(threads[i], NULL);
      if (!CHECK(clients[i].wrong == 0)) {
        fprintf(stderr, "client %d, round %zu: %s\n", i, clients[i].wrong, clients[i].why);
      }
    }
    rollout_pool_destroy(pool);
    rollout_pool_destroy(other);
  }
}

static void tickets_leave_no_memory_behind(void) {
  static Work work;
  RolloutPool* pool = new_pool(2);
  long before = 0;
  int round, rounds = (int)(4000 / check_parts);
  for (round = 0; round < rounds; round++) {
    set_up(&work, pool, 2, 40, 2);
    submit(&work);
    if (round % 3) {
      wait_for(&work, -1);
    }
    release(&work);
    tear_down(&work);
    if (round == rounds / 4) {
      before = process_memory();
    }
  }
  if (PROCESS_MEMORY_COUNTS) {
    CHECK(process_memory() - before < 1 << 20);
  }
  rollout_pool_destroy(pool);
}

int main(void) {
  check_begin();
  CASE(r83_requests_of_different_models_share_the_threads_of_one_pool);
  CASE(a_submitted_request_gives_what_a_run_gives);
  CASE(threads_begin_without_a_waiter);
  CASE(a_request_of_nothing_is_done_at_once);
  CASE(what_describes_a_request_may_go_away_after_the_call);
  CASE(a_refused_request_has_no_ticket_and_has_written_nothing);
  CASE(r41_a_budget_ends_a_request_within_a_step_of_each_thread);
  CASE(a_deadline_that_has_passed_lets_no_step_begin);
  CASE(a_deadline_in_time_changes_nothing);
  CASE(a_deadline_ends_a_request_that_nobody_has_begun);
  CASE(r79_a_wait_that_times_out_loses_nothing);
  CASE(the_result_stays_and_is_told_to_every_waiter);
  CASE(slices_without_threads_pause_in_the_middle_and_give_the_same_bits);
  CASE(slices_of_several_threads_go_on_where_others_paused);
  CASE(a_request_is_cancelled_before_its_start);
  CASE(a_request_is_cancelled_in_flight_at_the_next_step);
  CASE(a_paused_request_is_cancelled_and_its_rollout_says_so);
  CASE(a_cancel_after_the_end_changes_nothing);
  CASE(an_urgent_request_is_done_while_a_large_one_is_in_flight);
  CASE(a_request_of_low_priority_waits_for_the_others);
  CASE(requests_of_one_priority_share_the_threads);
  CASE(r88_requests_of_different_lengths_end_each_on_its_own);
  CASE(r87_two_pools_are_used_at_once);
  CASE(r76_a_wait_inside_the_pool_is_refused);
  CASE(a_callback_may_cancel_its_own_request);
  CASE(a_callback_may_release_another_ticket);
  CASE(a_release_in_flight_cancels_and_waits);
  CASE(a_release_before_the_start_frees_the_data);
  CASE(destroy_ends_what_is_in_flight_and_runs_the_tasks);
  CASE(a_callback_may_destroy_its_own_pool);
  CASE(who_waits_for_tasks_that_never_come_is_told_when_the_pool_ends);
  CASE(groups_have_counts_of_their_own);
  CASE(a_task_of_a_group_after_the_end_of_its_pool_never_runs);
  CASE(each_thread_of_a_pool_tells_what_it_has_done);
  CASE(many_tickets_of_many_threads_end_in_every_way);
  CASE(tickets_leave_no_memory_behind);
  return check_failures;
}
