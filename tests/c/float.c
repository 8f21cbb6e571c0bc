// The floating-point mode of the host: in whatever direction it rounds, and however it
// treats subnormal numbers, all threads compute as a plain loop in its own thread would,
// and it finds its mode as it has left it.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // feenableexcept
#endif

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "rollout.h"
#include "rollout_mujoco.h"

// ---------------------------------------------------------------- modes

// What the thread computes in, without the flags of exceptions that have come up.
typedef struct Mode {
  uint64_t control, x87;
} Mode;

static Mode get_mode(void) {
  Mode mode = {0, 0};
#if defined(__x86_64__)
  uint32_t sse;
  uint16_t x87;
  __asm__ volatile("stmxcsr %0" : "=m"(sse));
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  mode.control = sse & ~UINT32_C(0x3f);
  mode.x87 = x87;
#elif defined(__aarch64__)
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode.control));
#endif
  return mode;
}

static void set_mode(Mode mode) {
#if defined(__x86_64__)
  uint32_t sse;
  uint16_t x87 = (uint16_t)mode.x87;
  __asm__ volatile("stmxcsr %0" : "=m"(sse));
  sse = (sse & UINT32_C(0x3f)) | (uint32_t)mode.control;
  __asm__ volatile("ldmxcsr %0" : : "m"(sse) : "memory");
  __asm__ volatile("fldcw %0" : : "m"(x87) : "memory");
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode.control) : "memory");
#else
  (void)mode;
#endif
}

static int is_mode(Mode mode) {
  Mode now = get_mode();
  return now.control == mode.control && now.x87 == mode.x87;
}

enum { DEFAULT, UPWARD, TO_ZERO, FLUSHED, SINGLE, ALL, NMODE };
static Mode modes[NMODE];
// Whether the machine has the mode.
static int has[NMODE];

// Valgrind's machine has none but the default: it keeps the direction of rounding and
// does without it, and has no flags of exceptions. So what can be seen of a mode is
// checked where no tool runs the program.
static int machine_is_real(void) { return check_parts == 1; }

static void find_modes(void) {
  int k;
  modes[DEFAULT] = get_mode();
  fesetround(FE_UPWARD);
  modes[UPWARD] = get_mode();
  fesetround(FE_TOWARDZERO);
  modes[TO_ZERO] = get_mode();
  fesetround(FE_TONEAREST);
  modes[FLUSHED] = modes[SINGLE] = modes[DEFAULT];
#if defined(__x86_64__)
  modes[FLUSHED].control |= 0x8040;  // results and operands
  modes[SINGLE].x87 &= ~UINT64_C(0x300);
#elif defined(__aarch64__)
  modes[FLUSHED].control |= 1 << 24;
#endif
  modes[ALL].control = modes[FLUSHED].control | modes[UPWARD].control;
  modes[ALL].x87 = modes[SINGLE].x87 | modes[UPWARD].x87;
  for (k = 0; k < NMODE; k++) {
    set_mode(modes[k]);
    has[k] = is_mode(modes[k]);
    set_mode(modes[DEFAULT]);
  }
#if !defined(__x86_64__)
  has[SINGLE] = 0;
#endif
}

// ---------------------------------------------------------------- an engine

// Four numbers: the time, and three on which a mode is seen: by its direction of rounding,
// by what it does with subnormal numbers, by how exact the x87 is in it.
enum { NSTATE = 4, NBATCH = 16, NSTEP = 12, MAX_DATA = 8 };

typedef struct Model {
  // The step that fails; -1 for none.
  int fails;
  // A mode that a step sets and leaves behind, also when it fails.
  int leaves;
} Model;

typedef struct Data {
  double x[NSTATE];
} Data;

static __thread RolloutHandler thread_log;

static RolloutHandler exchange_thread_log(RolloutHandler handler) {
  RolloutHandler before = thread_log;
  thread_log = handler;
  return before;
}

static void no_log(const void* message) {
  (void)message;
  printf("FAILED an error was not caught\n");
  exit(1);
}

static RolloutHandler get_process_log(void) { return no_log; }

typedef struct Message {
  int level;
  char text[16];
  const char* function;
} Message;

// As many threads must have made a step of a meeting before any makes a second one. The
// first one takes so long that the library wakes its threads.
static int meeting, number_of_meeting, met;

static void meet(void) {
  static __thread int last, waited;
  time_t limit = time(NULL) + 60;
  if (!__atomic_load_n(&meeting, __ATOMIC_ACQUIRE)) {
    return;
  }
  if (last != number_of_meeting) {
    struct timespec pause = {0, 2000000};
    last = number_of_meeting;
    waited = 0;
    __atomic_fetch_add(&met, 1, __ATOMIC_ACQ_REL);
    nanosleep(&pause, NULL);
  } else if (!waited) {
    waited = 1;
    while (__atomic_load_n(&met, __ATOMIC_ACQUIRE) < meeting && time(NULL) < limit) {
      sched_yield();
    }
  }
}

// What a step calls besides, if anything.
static void (*in_step)(void);

static void step(const void* model, void* data) {
  const Model* m = (const Model*)model;
  double* x = ((Data*)data)->x;
  long double exact;
  meet();
  if (in_step) {
    in_step();
  }
  if (m->leaves) {
    set_mode(modes[m->leaves]);
  }
  if ((int)x[0] == m->fails) {
    Message message = {3, "fails", NULL};
    thread_log(&message);
  }
  if (m->leaves) {
    // Computed in it by nobody.
    x[0] += 1;
    return;
  }
  x[0] += 1;
  x[1] = x[1] * 1.1 + 0.1 / 3;
  x[2] *= 0.0625;
  exact = x[3];
  exact = exact * 1.1L + 0.7L / 3;
  x[3] = (double)exact;
}

static void (*volatile opaque_step)(const void* model, void* data) = step;

static int state_size(const void* model, uint32_t spec) {
  (void)model;
  return spec & 1 ? NSTATE : 0;
}

static void get_state(const void* model, const void* data, double* state, uint32_t spec) {
  (void)model;
  (void)spec;
  memcpy(state, ((const Data*)data)->x, sizeof(Data));
}

static void set_state(const void* model, void* data, const double* state, uint32_t spec) {
  (void)model;
  (void)spec;
  memcpy(((Data*)data)->x, state, sizeof(Data));
}

static void reset(const void* model, void* data) {
  (void)model;
  memset(data, 0, sizeof(Data));
}

static RolloutEngine make_engine(void) {
  RolloutEngine engine;
  memset(&engine, 0, sizeof(engine));
  engine.size = sizeof(engine);
  engine.version = ROLLOUT_ENGINE_VERSION;
  engine.number_size = sizeof(double);
  engine.step = step;
  engine.state_size = state_size;
  engine.get_state = get_state;
  engine.set_state = set_state;
  engine.reset = reset;
  engine.full_physics = 1;
  engine.hooks.exchange_thread_log = exchange_thread_log;
  engine.hooks.get_process_log = get_process_log;
  engine.hooks.log_level = (uint32_t)offsetof(Message, level);
  engine.hooks.log_text = (uint32_t)offsetof(Message, text);
  engine.hooks.log_function = (uint32_t)offsetof(Message, function);
  engine.hooks.log_error = 3;
  engine.hooks.log_warning = 2;
  return engine;
}

// ---------------------------------------------------------------- requests

enum { NPOOL = 3 };
static const int NTHREAD[NPOOL] = {1, 2, 8};  // with the caller
static RolloutPool* pools[NPOOL];

typedef struct Batch {
  Model models[NBATCH];
  Data data[MAX_DATA];
  double start[NBATCH][NSTATE];
  double state[NBATCH][NSTEP][NSTATE];
  double expected[NBATCH][NSTEP][NSTATE];
  RolloutOutcome outcomes[NBATCH];
} Batch;

static void make_batch(Batch* batch) {
  int r;
  memset(batch, 0, sizeof(*batch));
  for (r = 0; r < NBATCH; r++) {
    batch->models[r].fails = -1;
    batch->start[r][1] = 0.1 * r;
    batch->start[r][2] = 1e-307 * (r + 1);
    batch->start[r][3] = 1.0 / (r + 1);
  }
}

// A plain loop in the calling thread, whose mode is set anew for each step.
static void expect(Batch* batch, Mode mode) {
  int r, t;
  for (r = 0; r < NBATCH; r++) {
    Data data;
    memcpy(data.x, batch->start[r], sizeof(data.x));
    for (t = 0; t < NSTEP && t != batch->models[r].fails; t++) {
      set_mode(mode);
      opaque_step(&batch->models[r], &data);
      memcpy(batch->expected[r][t], data.x, sizeof(data.x));
    }
  }
  set_mode(mode);
}

// Runs on the pool p, and compares bit for bit.
static void check_batch(Batch* batch, int p) {
  RolloutEngine engine = make_engine();
  RolloutModel models[NBATCH];
  RolloutData data[MAX_DATA];
  RolloutRequest request = rollout_request();
  RolloutError error = rollout_error();
  int r, t, status, failed = 0, wrong = 0;
  memset(models, 0, sizeof(models));
  memset(data, 0, sizeof(data));
  for (r = 0; r < NBATCH; r++) {
    models[r].model = &batch->models[r];
    failed += batch->models[r].fails >= 0;
  }
  for (r = 0; r < MAX_DATA; r++) {
    data[r].data = &batch->data[r];
  }
  request.engine = &engine;
  request.models = models;
  request.nmodel = NBATCH;
  request.data = data;
  request.ndata = (size_t)NTHREAD[p];
  request.nbatch = NBATCH;
  request.nstep = NSTEP;
  request.chunk_size = 1;
  request.initial_state = rollout_rows(batch->start[0], NBATCH, NSTATE);
  request.state = rollout_output(batch->state[0][0], NBATCH * NSTEP * NSTATE);
  request.outcomes = batch->outcomes;
  request.noutcome = NBATCH;
  status = rollout_run(pools[p], &request, &error);
  CHECK_STATUS(status, failed ? ROLLOUT_STATUS_ROLLOUTS_FAILED : ROLLOUT_STATUS_OK, &error);
  CHECK(error.nfailed == failed);
  for (r = 0; r < NBATCH; r++) {
    int end = batch->models[r].fails < 0 ? NSTEP : batch->models[r].fails;
    CHECK((int)batch->outcomes[r].steps == end);
    for (t = 0; t < end; t++) {
      wrong += memcmp(batch->state[r][t], batch->expected[r][t], sizeof(Data)) != 0;
    }
  }
  CHECK(wrong == 0);
}

// Runs with two threads that compute at the same time, if the pool has as many.
static void check_meeting(Batch* batch, int p) {
  int count = NTHREAD[p] > 1 ? 2 : 1;
  number_of_meeting++;
  met = 0;
  __atomic_store_n(&meeting, count, __ATOMIC_RELEASE);
  check_batch(batch, p);
  __atomic_store_n(&meeting, 0, __ATOMIC_RELEASE);
  CHECK(met >= count);
}

// In the default mode, which the threads would inherit.
static void new_pools(void) {
  const Mode before = get_mode();
  int p;
  set_mode(modes[DEFAULT]);
  for (p = 0; p < NPOOL; p++) {
    RolloutError error = rollout_error();
    CHECK_STATUS(rollout_pool_create(NTHREAD[p] - 1, &pools[p], &error), ROLLOUT_STATUS_OK, &error);
  }
  set_mode(before);
}

static void end_pools(void) {
  int p;
  for (p = 0; p < NPOOL; p++) {
    rollout_pool_destroy(pools[p]);
  }
}

// ---------------------------------------------------------------- the cases

static void every_thread_computes_in_the_mode_of_the_host(void) {
  static Batch batch, other;
  int k, p;
#if defined(__x86_64__)
  for (k = 0; k < NMODE && machine_is_real(); k++) {
    CHECK(has[k]);
  }
#endif
  for (k = 0; k < NMODE; k++) {
    if (!has[k]) {
      continue;
    }
    make_batch(&batch);
    make_batch(&other);
    expect(&other, modes[DEFAULT]);
    set_mode(modes[k]);
    expect(&batch, modes[k]);
    if (machine_is_real() && k != DEFAULT) {
      CHECK(memcmp(batch.expected, other.expected, sizeof(batch.expected)) != 0);
    }
    new_pools();
    CHECK(is_mode(modes[k]));
    for (p = 0; p < NPOOL; p++) {
      check_meeting(&batch, p);
      CHECK(is_mode(modes[k]));
    }
    end_pools();
    CHECK(is_mode(modes[k]));
    set_mode(modes[DEFAULT]);
  }
}

static Mode seen;

static void see_mode(void* user) {
  int leaves = *(const int*)user;
  seen = get_mode();
  if (leaves) {
    set_mode(modes[leaves]);
  }
}

// Rust's.
static void see_mode_in_a_task(RolloutPool* pool, int leaves) {
  RolloutError error = rollout_error();
  rollout_pool_reset_count(pool, NULL);
  rollout_pool_schedule(pool, see_mode, &leaves, NULL);
  CHECK_STATUS(rollout_pool_wait_count(pool, 1, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(memcmp(&seen, &modes[DEFAULT], sizeof(seen)) == 0);
}

static void errors_and_modes_that_steps_leave_behind_change_nothing(void) {
  static Batch batch;
  int k, p, r;
  new_pools();
  for (k = 0; k < NMODE; k++) {
    if (!has[k]) {
      continue;
    }
    make_batch(&batch);
    for (r = 0; r < NBATCH; r++) {
      // Some fail, in the host's mode or in one of their own; some leave a mode behind.
      batch.models[r].fails = r % 4 == 1 || r % 4 == 3 ? r % NSTEP : -1;
      batch.models[r].leaves = r % 4 >= 2 ? TO_ZERO : 0;
    }
    set_mode(modes[k]);
    expect(&batch, modes[k]);
    for (p = 0; p < NPOOL; p++) {
      check_batch(&batch, p);
      CHECK(is_mode(modes[k]));
    }
    // A thread that has only seen steps which leave one behind.
    for (r = 0; r < NBATCH; r++) {
      batch.models[r].fails = -1;
      batch.models[r].leaves = TO_ZERO;
    }
    expect(&batch, modes[k]);
    check_meeting(&batch, 1);
    see_mode_in_a_task(pools[1], 0);
    set_mode(modes[DEFAULT]);
  }
  end_pools();
}

static void* call_upward(void* user) {
  Batch* batch = (Batch*)user;
  int round;
  set_mode(modes[UPWARD]);
  for (round = 0; round < 200; round++) {
    check_batch(batch, 2);
  }
  return NULL;
}

// (This thread alone may check, so the other one's failures are found in its rows.)
static void* call_downward(void* user) {
  Batch* batch = (Batch*)user;
  RolloutEngine engine = make_engine();
  RolloutModel model;
  RolloutData data;
  RolloutRequest request = rollout_request();
  int round, *wrong = (int*)(void*)&batch->outcomes[0];
  memset(&model, 0, sizeof(model));
  memset(&data, 0, sizeof(data));
  model.model = &batch->models[0];
  data.data = &batch->data[0];
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = &data;
  request.ndata = 1;
  request.nbatch = NBATCH;
  request.nstep = NSTEP;
  request.initial_state = rollout_rows(batch->start[0], NBATCH, NSTATE);
  request.state = rollout_output(batch->state[0][0], NBATCH * NSTEP * NSTATE);
  *wrong = 0;
  set_mode(modes[TO_ZERO]);
  for (round = 0; round < 200; round++) {
    *wrong += rollout_run(pools[2], &request, NULL) != ROLLOUT_STATUS_OK;
    *wrong += memcmp(batch->state, batch->expected, sizeof(batch->state)) != 0;
  }
  *wrong += !is_mode(modes[TO_ZERO]);
  return NULL;
}

static void callers_of_one_pool_have_modes_of_their_own(void) {
  static Batch mine, others;
  pthread_t thread;
  make_batch(&mine);
  make_batch(&others);
  expect(&mine, modes[UPWARD]);
  expect(&others, modes[TO_ZERO]);
  set_mode(modes[DEFAULT]);
  new_pools();
  CHECK(pthread_create(&thread, NULL, call_downward, &others) == 0);
  call_upward(&mine);
  pthread_join(thread, NULL);
  CHECK(*(int*)(void*)&others.outcomes[0] == 0);
  end_pools();
  set_mode(modes[DEFAULT]);
}

// A callback of the engine has a mode of its own, and calls the library.
static int nested;

static void run_inside(void) {
  static __thread Batch batch;
  static __thread int inside;
  const Mode before = get_mode();
  if (inside) {
    return;
  }
  inside = 1;
  make_batch(&batch);
  set_mode(modes[TO_ZERO]);
  expect(&batch, modes[TO_ZERO]);
  {
    RolloutEngine engine = make_engine();
    RolloutModel model;
    RolloutData data;
    RolloutRequest request = rollout_request();
    int status;
    memset(&model, 0, sizeof(model));
    memset(&data, 0, sizeof(data));
    model.model = &batch.models[0];
    data.data = &batch.data[0];
    request.engine = &engine;
    request.models = &model;
    request.nmodel = 1;
    request.data = &data;
    request.ndata = 1;
    request.nbatch = NBATCH;
    request.nstep = NSTEP;
    request.initial_state = rollout_rows(batch.start[0], NBATCH, NSTATE);
    request.state = rollout_output(batch.state[0][0], NBATCH * NSTEP * NSTATE);
    status = rollout_run(pools[0], &request, NULL);
    if (status == ROLLOUT_STATUS_OK && is_mode(modes[TO_ZERO]) &&
        memcmp(batch.state, batch.expected, sizeof(batch.state)) == 0) {
      // And once more, with an error.
      batch.models[0].fails = 1;
      status = rollout_run(pools[0], &request, NULL);
      if (status == ROLLOUT_STATUS_ROLLOUTS_FAILED && is_mode(modes[TO_ZERO])) {
        __atomic_fetch_add(&nested, 1, __ATOMIC_RELAXED);
      }
    }
  }
  set_mode(before);
  inside = 0;
}

static void a_callback_of_the_engine_calls_in_its_own_mode(void) {
  static Batch batch;
  int p;
  make_batch(&batch);
  expect(&batch, modes[UPWARD]);
  new_pools();
  in_step = run_inside;
  for (p = 0; p < NPOOL; p++) {
    nested = 0;
    check_batch(&batch, p);
    CHECK(nested == NBATCH * NSTEP);
    CHECK(is_mode(modes[UPWARD]));
  }
  in_step = NULL;
  end_pools();
  set_mode(modes[DEFAULT]);
}

static void see_mode_and_fail(void* user) {
  Message message = {3, "fails", NULL};
  see_mode(user);
  thread_log(&message);
}

static void the_guard_keeps_the_mode_and_tasks_have_the_default(void) {
  static int none = 0, leaves = TO_ZERO;
  RolloutEngine engine = make_engine();
  RolloutError error = rollout_error();
  int p, k;
  new_pools();
  for (k = 0; k < NMODE; k++) {
    if (!has[k]) {
      continue;
    }
    set_mode(modes[k]);
    CHECK_STATUS(rollout_guard(&engine, see_mode, &none, &error), ROLLOUT_STATUS_OK, &error);
    CHECK(memcmp(&seen, &modes[k], sizeof(seen)) == 0);
    CHECK(is_mode(modes[k]));
    CHECK_STATUS(rollout_guard(&engine, see_mode_and_fail, &leaves, &error),
                 ROLLOUT_STATUS_ENGINE_ERROR, &error);
    CHECK(memcmp(&seen, &modes[k], sizeof(seen)) == 0);
    CHECK(is_mode(modes[k]));
    // On the caller's thread, or on others; the second time where one was left behind.
    for (p = 0; p < NPOOL; p++) {
      int round;
      for (round = 0; round < 3; round++) {
        see_mode_in_a_task(pools[p], leaves);
        CHECK(is_mode(modes[k]));
      }
    }
    // A refusal.
    CHECK_STATUS(rollout_run(NULL, NULL, &error), ROLLOUT_STATUS_NULL_POINTER, &error);
    CHECK(is_mode(modes[k]));
    set_mode(modes[DEFAULT]);
  }
  end_pools();
}

static void flags_that_are_up_stay_up_and_no_others_go_up(void) {
  static Batch batch;
  int p;
  new_pools();
  make_batch(&batch);
  for (p = 0; p < NBATCH; p++) {
    // A step computes nothing that is not exact.
    batch.models[p].leaves = TO_ZERO;
  }
  expect(&batch, modes[UPWARD]);
  for (p = 0; p < NPOOL; p++) {
    feclearexcept(FE_ALL_EXCEPT);
    feraiseexcept(FE_DIVBYZERO);
    check_batch(&batch, p);
    CHECK(fetestexcept(FE_ALL_EXCEPT) == FE_DIVBYZERO || !machine_is_real());
  }
  end_pools();
  feclearexcept(FE_ALL_EXCEPT);
  set_mode(modes[DEFAULT]);
}

static void divide_by_zero(void) {
  volatile long double zero = 0;
  volatile long double quotient = 1 / zero;
  (void)quotient;
}

// Where divisions by zero were nothing to be afraid of, the x87 remembers them; a host for
// which they are shall not be told of them now.
static void traps_go_along_and_old_exceptions_do_not(void) {
  static Batch batch;
  Mode mode;
  int p;
  make_batch(&batch);
  new_pools();
  set_mode(modes[DEFAULT]);
  in_step = divide_by_zero;
  for (p = 0; p < NPOOL; p++) {
    expect(&batch, modes[DEFAULT]);
    check_meeting(&batch, p);
  }
  in_step = NULL;
  feclearexcept(FE_ALL_EXCEPT);
  if (feenableexcept(FE_DIVBYZERO) != -1) {
    mode = get_mode();
    expect(&batch, mode);
    for (p = 0; p < NPOOL; p++) {
      check_meeting(&batch, p);
      CHECK(is_mode(mode));
    }
  }
  set_mode(modes[DEFAULT]);
  feclearexcept(FE_ALL_EXCEPT);
  end_pools();
}

// ---------------------------------------------------------------- MuJoCo

enum { NROBOT = 8, ROBOT_STEPS = 30, BAD = 5 };

static const char* robot_path;

static double* new_array(size_t count) {
  double* array = (double*)calloc(count + 1, sizeof(double));
  if (!array) {
    exit(1);
  }
  return array;
}

static void plain_loop(mjModel* const* models, const double* start, const double* control,
                       int nstep, double* state) {
  int r, t;
  size_t nstate = rollout_mujoco_nstate(models[0]), nu = (size_t)models[0]->nu;
  mjData* d = mj_makeData(models[0]);
  for (r = 0; r < NROBOT; r++) {
    mj_resetData(models[0], d);
    mj_setState(models[0], d, start, mjSTATE_FULLPHYSICS);
    for (t = 0; t < nstep && r != BAD; t++) {
      memcpy(d->ctrl, control + (size_t)(r * nstep + t) * nu, nu * sizeof(double));
      mj_step(models[r], d);
      mj_getState(models[0], d, state + (size_t)(r * nstep + t) * nstate, mjSTATE_FULLPHYSICS);
    }
  }
  mj_deleteData(d);
}

// One of the rollouts ends with an error, so that its thread may be another one's then.
static void robots_move_as_in_a_plain_loop_in_the_same_mode(void) {
  RolloutEngine engine = rollout_mujoco_engine();
  RolloutError error = rollout_error();
  RolloutModel described[NROBOT];
  RolloutData data[MAX_DATA];
  mjModel* models[NROBOT];
  mjData* d[MAX_DATA];
  RolloutOutcome outcomes[NROBOT];
  int nstep = check_parts > 1 ? 4 : ROBOT_STEPS;
  size_t nstate, nu, i, count;
  double *start, *control, *state, *expected, *usual;
  int k, p;
  models[0] = mj_loadXML(robot_path, NULL, NULL, 0);
  if (!CHECK(models[0] != NULL)) {
    return;
  }
  nstate = rollout_mujoco_nstate(models[0]);
  nu = (size_t)models[0]->nu;
  count = NROBOT * (size_t)nstep * nstate;
  for (k = 0; k < NROBOT; k++) {
    models[k] = k ? mj_copyModel(NULL, models[0]) : models[0];
    described[k] = rollout_mujoco_model(models[k]);
  }
  models[BAD]->opt.solver = 10;
  for (k = 0; k < MAX_DATA; k++) {
    d[k] = mj_makeData(models[0]);
    data[k] = rollout_mujoco_data(d[k]);
  }
  start = new_array(nstate);
  control = new_array(NROBOT * (size_t)nstep * nu);
  state = new_array(count);
  expected = new_array(count);
  usual = new_array(count);
  mj_getState(models[0], d[0], start, mjSTATE_FULLPHYSICS);
  for (i = 0; i < NROBOT * (size_t)nstep * nu; i++) {
    control[i] = (double)(i * 7919 % 1000) / 500 - 1;
  }
  plain_loop(models, start, control, nstep, usual);
  new_pools();
  for (k = 0; k < NMODE; k++) {
    if (!has[k]) {
      continue;
    }
    set_mode(modes[k]);
    plain_loop(models, start, control, nstep, expected);
    if (machine_is_real() && k == UPWARD) {
      CHECK(memcmp(expected, usual, count * sizeof(double)) != 0);
    }
    for (p = 0; p < NPOOL; p++) {
      RolloutRequest request = rollout_request();
      int r, wrong = 0;
      request.engine = &engine;
      request.models = described;
      request.nmodel = NROBOT;
      request.data = data;
      request.ndata = (size_t)NTHREAD[p];
      request.nbatch = NROBOT;
      request.nstep = (size_t)nstep;
      request.chunk_size = 1;
      request.initial_state = rollout_shared(start, nstate);
      request.control = rollout_steps(control, NROBOT, (size_t)nstep, nu);
      request.state = rollout_output(state, count);
      request.outcomes = outcomes;
      request.noutcome = NROBOT;
      CHECK_STATUS(rollout_run(pools[p], &request, &error), ROLLOUT_STATUS_ROLLOUTS_FAILED, &error);
      CHECK(error.nfailed == 1 && error.index == BAD);
      CHECK(is_mode(modes[k]));
      for (r = 0; r < NROBOT; r++) {
        size_t first = (size_t)r * (size_t)nstep * nstate;
        wrong += r != BAD && memcmp(state + first, expected + first,
                                    (size_t)nstep * nstate * sizeof(double)) != 0;
      }
      CHECK(wrong == 0);
    }
    set_mode(modes[DEFAULT]);
  }
  end_pools();
  for (k = 0; k < MAX_DATA; k++) {
    mj_deleteData(d[k]);
  }
  for (k = 0; k < NROBOT; k++) {
    mj_deleteModel(models[k]);
  }
  free(start), free(control), free(state), free(expected), free(usual);
}

int main(int argc, char** argv) {
  char path[4096] = "";
  check_begin();
  if (argc > 1) {
    snprintf(path, sizeof(path), "%.4000s/humanoid.xml", argv[1]);
  }
  robot_path = path;
  find_modes();
  CASE(every_thread_computes_in_the_mode_of_the_host);
  CASE(errors_and_modes_that_steps_leave_behind_change_nothing);
  CASE(callers_of_one_pool_have_modes_of_their_own);
  CASE(a_callback_of_the_engine_calls_in_its_own_mode);
  CASE(the_guard_keeps_the_mode_and_tasks_have_the_default);
  CASE(flags_that_are_up_stay_up_and_no_others_go_up);
  CASE(traps_go_along_and_old_exceptions_do_not);
  CASE(robots_move_as_in_a_plain_loop_in_the_same_mode);
  return check_failures;
}
