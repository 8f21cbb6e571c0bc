// Errors and warnings of the engine: a rollout that fails, fails alone.

#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "process.h"
#include "rollout.h"
#include "rollout_mujoco.h"
#include "ways.h"

enum { NBATCH = 8, NSTEP = 20, NDATA = 8, NPOOL = 4, BAD = 5, TEXT = 256 };

// What outputs hold beforehand.
static const double UNTOUCHED = -123;

static const int NTHREAD[NPOOL] = {0, 1, 2, 8};
static RolloutPool* pools[NPOOL];
// All threads of this process. Counted beforehand they could be too many: one that was
// replaced may not have ended yet.
enum { ALL_THREADS = 1 + 0 + 1 + 2 + 8 };

// A ball that falls on a plane and stays there, pushed about by a motor.
static const char* BALL =
    "<mujoco><option timestep='.01'/><worldbody><geom type='plane' size='3 3 1'/>"
    "<body pos='0 0 .11'><joint name='z' type='slide' axis='0 0 1'/>"
    "<joint name='x' type='slide' axis='1 0 0'/><geom size='.1'/></body></worldbody>"
    "<actuator><motor joint='x'/></actuator><sensor><jointpos joint='x'/></sensor></mujoco>";

static mjModel* load(const char* text) {
  char error[1000] = "";
  mjModel* model;
  FILE* file = fopen("model.xml", "w");
  if (!file || fputs(text, file) < 0 || fclose(file)) {
    exit(1);
  }
  model = mj_loadXML("model.xml", NULL, error, sizeof(error));
  if (!model) {
    printf("FAILED load: %s\n", error);
    exit(1);
  }
  return model;
}

// ---------------------------------------------------------------- a batch of rollouts

typedef struct {
  mjModel* models[NBATCH];
  mjData* data[NDATA];
  size_t nstate, ncontrol, nsensordata;
  double* start;    // NBATCH x nstate
  double* control;  // NBATCH x NSTEP x ncontrol
  double* state;    // NBATCH x NSTEP x nstate
  double* sensordata;
  double* expected_state;
  double* expected_sensordata;
  RolloutOutcome outcomes[NBATCH];
  char messages[NBATCH][TEXT];
  RolloutError error;
  int fill;
  // How the rollouts are shared out: threads that may take part, rollouts at a time.
  size_t ndata, chunk_size;
  // Flags of the engine's hooks beside those of this release.
  uint32_t flags;
  // As if this release had no handlers of threads.
  int process_only;
} Batch;

static Batch batch;

static double* new_array(size_t count) {
  double* array = (double*)calloc(count + 1, sizeof(double));
  if (!array) {
    exit(1);
  }
  return array;
}

// What a plain loop gives, on a new data for each rollout.
static void expect(void) {
  int r, t;
  for (r = 0; r < NBATCH; r++) {
    // The solver of a model that shall fail is the same one.
    mjModel* m = mj_copyModel(NULL, batch.models[r]);
    mjData* d;
    m->opt.solver = batch.models[0]->opt.solver;
    d = mj_makeData(m);
    mj_setState(m, d, batch.start + (size_t)r * batch.nstate, mjSTATE_FULLPHYSICS);
    for (t = 0; t < NSTEP; t++) {
      size_t row = (size_t)(r * NSTEP + t);
      mj_setState(m, d, batch.control + row * batch.ncontrol, mjSTATE_CTRL);
      mj_step(m, d);
      mj_getState(m, d, batch.expected_state + row * batch.nstate, mjSTATE_FULLPHYSICS);
      memcpy(batch.expected_sensordata + row * batch.nsensordata, d->sensordata,
             batch.nsensordata * sizeof(double));
    }
    mj_deleteData(d);
    mj_deleteModel(m);
  }
}

static void make(void) {
  int i;
  size_t k, rows = NBATCH * NSTEP;
  memset(&batch, 0, sizeof(batch));
  batch.ndata = NDATA;
  batch.chunk_size = 1;
  for (i = 0; i < NBATCH; i++) {
    batch.models[i] = load(BALL);
  }
  for (i = 0; i < NDATA; i++) {
    batch.data[i] = mj_makeData(batch.models[0]);
  }
  batch.nstate = rollout_mujoco_nstate(batch.models[0]);
  batch.ncontrol = (size_t)batch.models[0]->nu;
  batch.nsensordata = (size_t)batch.models[0]->nsensordata;
  batch.start = new_array(NBATCH * batch.nstate);
  batch.control = new_array(rows * batch.ncontrol);
  batch.state = new_array(rows * batch.nstate);
  batch.sensordata = new_array(rows * batch.nsensordata);
  batch.expected_state = new_array(rows * batch.nstate);
  batch.expected_sensordata = new_array(rows * batch.nsensordata);
  for (i = 0; i < NBATCH; i++) {
    mj_getState(batch.models[0], batch.data[0], batch.start + (size_t)i * batch.nstate,
                mjSTATE_FULLPHYSICS);
  }
  for (k = 0; k < rows * batch.ncontrol; k++) {
    batch.control[k] = sin((double)k);
  }
}

static void release(void) {
  int i;
  for (i = 0; i < NBATCH; i++) {
    mj_deleteModel(batch.models[i]);
  }
  for (i = 0; i < NDATA; i++) {
    mj_deleteData(batch.data[i]);
  }
  free(batch.start);
  free(batch.control);
  free(batch.state);
  free(batch.sensordata);
  free(batch.expected_state);
  free(batch.expected_sensordata);
}

static RolloutStatus run(RolloutPool* pool) {
  RolloutEngine engine = rollout_mujoco_engine();
  RolloutModel models[NBATCH];
  RolloutData data[NDATA];
  RolloutRequest request = rollout_request();
  size_t i;
  for (i = 0; i < NBATCH; i++) {
    models[i] = rollout_mujoco_model(batch.models[i]);
  }
  for (i = 0; i < NDATA; i++) {
    data[i] = rollout_mujoco_data(batch.data[i]);
  }
  for (i = 0; i < NBATCH * NSTEP * batch.nstate; i++) {
    batch.state[i] = UNTOUCHED;
  }
  engine.hooks.flags |= batch.flags;
  if (batch.process_only) {
    engine.hooks.exchange_thread_log = NULL;
    engine.hooks.get_process_log = NULL;
    engine.hooks.get_thread_error = NULL;
    engine.hooks.set_thread_error = NULL;
    engine.hooks.get_thread_warning = NULL;
    engine.hooks.set_thread_warning = NULL;
  }
  request.engine = &engine;
  request.models = models;
  request.nmodel = NBATCH;
  request.data = data;
  request.ndata = batch.ndata;
  request.nbatch = NBATCH;
  request.nstep = NSTEP;
  request.fill = batch.fill;
  request.initial_state = rollout_rows(batch.start, NBATCH, batch.nstate);
  request.control = rollout_steps(batch.control, NBATCH, NSTEP, batch.ncontrol);
  request.state = rollout_output(batch.state, NBATCH * NSTEP * batch.nstate);
  request.sensordata = rollout_output(batch.sensordata, NBATCH * NSTEP * batch.nsensordata);
  request.outcomes = batch.outcomes;
  request.noutcome = NBATCH;
  request.messages = batch.messages[0];
  request.nmessage = sizeof(batch.messages);
  request.message_size = TEXT;
  request.chunk_size = batch.chunk_size;
  batch.error = rollout_error();
  return run_in_some_way(pool, &request, &batch.error);
}

static int same_bits(const double* a, const double* b, size_t count) {
  return memcmp(a, b, count * sizeof(double)) == 0;
}

// Whether the first `steps` rows of a rollout are those of the plain loop.
static int as_expected(int rollout, size_t steps) {
  size_t first = (size_t)rollout * NSTEP;
  return same_bits(batch.state + first * batch.nstate,
                   batch.expected_state + first * batch.nstate, steps * batch.nstate) &&
         same_bits(batch.sensordata + first * batch.nsensordata,
                   batch.expected_sensordata + first * batch.nsensordata,
                   steps * batch.nsensordata);
}

static int completed(int rollout) {
  const RolloutOutcome* outcome = &batch.outcomes[rollout];
  return outcome->status == ROLLOUT_OUTCOME_STATUS_COMPLETED && outcome->steps == NSTEP &&
         outcome->warning == -1 && batch.messages[rollout][0] == '\0' &&
         as_expected(rollout, NSTEP);
}

// The first step of a rollout in which there is a contact, which is when the solver is
// asked for.
static int contact_step(void) {
  mjModel* m = batch.models[0];
  mjData* d = mj_makeData(m);
  int t;
  for (t = 0; t < NSTEP; t++) {
    mj_step(m, d);
    if (d->ncon) {
      break;
    }
  }
  mj_deleteData(d);
  return t;
}

// A rollout that failed in this step: the rows before are valid, those from there on
// are as the fill policy says.
static void check_failed(int rollout, int step) {
  size_t begin = (size_t)(rollout * NSTEP + step) * batch.nstate;
  size_t end = (size_t)(rollout + 1) * NSTEP * batch.nstate;
  size_t k;
  CHECK(batch.outcomes[rollout].status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR);
  CHECK(batch.outcomes[rollout].steps == (uint64_t)step);
  CHECK(batch.outcomes[rollout].warning == -1);
  CHECK(as_expected(rollout, (size_t)step));
  for (k = begin; k < end; k++) {
    size_t column = k % batch.nstate;
    const double* last = step ? batch.state + begin - batch.nstate
                              : batch.start + (size_t)rollout * batch.nstate;
    CHECK(batch.fill != ROLLOUT_FILL_NAN || isnan(batch.state[k]));
    CHECK(batch.fill != ROLLOUT_FILL_HOLD || same_bits(batch.state + k, last + column, 1));
    CHECK(batch.fill != ROLLOUT_FILL_UNTOUCHED || batch.state[k] == UNTOUCHED);
  }
}

// ---------------------------------------------------------------- handlers of the host

// How often those of the process and those of this thread were called.
static int process_errors, process_warnings, thread_errors, thread_warnings;
static jmp_buf recover;

static void on_process_error(const char* text) {
  (void)text;
  process_errors++;
  longjmp(recover, 1);
}

static void on_process_warning(const char* text) {
  (void)text;
  process_warnings++;
}

#if mjVERSION_HEADER >= 3010000
static void on_thread_log(const mjLogMessage* message) {
  if (message->level == mjLOG_ERROR) {
    thread_errors++;
    longjmp(recover, 1);
  }
  thread_warnings += message->level == mjLOG_WARNING;
}
static void set_thread_handlers(int set) {
  _mjPRIVATE_setTlsLogHandler(set ? on_thread_log : NULL);
}
#else
static void on_thread_error(const char* text) {
  (void)text;
  thread_errors++;
  longjmp(recover, 1);
}
static void on_thread_warning(const char* text) {
  (void)text;
  thread_warnings++;
}
static void set_thread_handlers(int set) {
  _mjPRIVATE__set_tls_error_fn(set ? on_thread_error : NULL);
  _mjPRIVATE__set_tls_warning_fn(set ? on_thread_warning : NULL);
}
#endif

// Whether nothing has reached the host's handlers, and whether they are still there: an
// error and a warning outside any rollout reach them.
static void check_handlers(int of_thread) {
  CHECK(process_errors == 0 && process_warnings == 0);
  CHECK(thread_errors == 0 && thread_warnings == 0);
  mju_warning("a warning of the host's own");
  if (setjmp(recover) == 0) {
    mju_error("an error of the host's own");
  }
  CHECK(process_errors == !of_thread && process_warnings == !of_thread);
  CHECK(thread_errors == of_thread && thread_warnings == of_thread);
  CHECK(mju_user_error == on_process_error);
  CHECK(mju_user_warning == on_process_warning);
  process_errors = process_warnings = thread_errors = thread_warnings = 0;
}

// ---------------------------------------------------------------- cases

// The text that this release has for the solver 10.
static char solver_text[TEXT];

static void r01_a_model_that_fails_fails_alone(void) {
  int p, i;
  make();
  expect();
  batch.models[BAD]->opt.solver = 10;
  for (p = 0; p < NPOOL; p++) {
    CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
    CHECK(batch.error.index == BAD);
    CHECK(batch.error.nfailed == 1);
    CHECK(strstr(batch.error.text, "unknown solver type 10") != NULL);
    CHECK(strcmp(batch.error.text, batch.messages[BAD]) == 0);
    snprintf(solver_text, sizeof(solver_text), "%.255s", batch.error.text);
    for (i = 0; i < NBATCH; i++) {
      CHECK(i == BAD || completed(i));
    }
    check_failed(BAD, contact_step());
    check_handlers(0);

    // The same pool and the same data, and nothing is left of it.
    batch.models[BAD]->opt.solver = batch.models[0]->opt.solver;
    CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_OK, &batch.error);
    for (i = 0; i < NBATCH; i++) {
      CHECK(completed(i));
    }
    batch.models[BAD]->opt.solver = 10;
  }
  release();
}

static void r02_rows_from_the_step_that_failed_on_are_filled(void) {
  int step, p;
  make();
  expect();
  batch.models[BAD]->opt.solver = 10;
  step = contact_step();
  CHECK(step > 0 && step < NSTEP);
  for (batch.fill = ROLLOUT_FILL_NAN; batch.fill <= ROLLOUT_FILL_UNTOUCHED; batch.fill++) {
    for (p = 0; p < NPOOL; p++) {
      CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
      check_failed(BAD, step);
    }
  }
  release();
}

static void all_rollouts_fail(void) {
  int p, i;
  make();
  for (i = 0; i < NBATCH; i++) {
    batch.models[i]->opt.solver = 10;
  }
  for (p = 0; p < NPOOL; p++) {
    CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
    CHECK(batch.error.index == 0);
    CHECK(batch.error.nfailed == NBATCH);
    for (i = 0; i < NBATCH; i++) {
      CHECK(strcmp(batch.messages[i], solver_text) == 0);
    }
    check_handlers(0);
  }
  release();
}

static void r06_a_warning_is_told_in_the_outcome_and_nowhere_else(void) {
  int p, i;
  make();
  expect();
  batch.control[(2 * NSTEP + 3) * (int)batch.ncontrol] = NAN;
  for (p = 0; p < NPOOL; p++) {
    CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_OK, &batch.error);
    for (i = 0; i < NBATCH; i++) {
      CHECK(i == 2 || completed(i));
    }
    CHECK(batch.outcomes[2].status == ROLLOUT_OUTCOME_STATUS_WARNED);
    CHECK(batch.outcomes[2].warning == mjWARN_BADCTRL);
    CHECK(batch.outcomes[2].steps == 3);
    CHECK(strcmp(batch.messages[2], mju_warningText(mjWARN_BADCTRL, 0)) == 0);
    CHECK(as_expected(2, 3));
    check_handlers(0);
  }
  release();
}


// ---------------------------------------------------------------- other errors

// Fails where a control asks for it.
static void failing_control(const mjModel* m, mjData* d) {
  (void)m;
  if (d->ctrl[0] == 55) {
    mju_error("the control is %d", 55);
  }
}

// One rollout fails in its first step, one in its last, two in between; on workers of
// their own, and on one that runs the good ones too.
static void errors_of_a_callback(void) {
  static const struct {
    int rollout, step;
  } faults[] = {{1, 0}, {2, NSTEP - 1}, {4, 7}, {5, 8}};
  size_t k;
  int p, i, shared;
  make();
  expect();
  for (k = 0; k < 4; k++) {
    batch.control[(size_t)(faults[k].rollout * NSTEP + faults[k].step) * batch.ncontrol] = 55;
  }
  mjcb_control = failing_control;
  for (shared = 0; shared < 2; shared++) {
    batch.ndata = shared ? 1 : NDATA;
    batch.chunk_size = shared ? NBATCH : 1;
    for (p = 0; p < NPOOL; p++) {
      batch.fill = p % 3;
      CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
      CHECK(batch.error.index == 1 && batch.error.nfailed == 4);
      CHECK(strcmp(batch.error.text, "the control is 55") == 0);
      for (i = 0; i < NBATCH; i++) {
        CHECK(i == 1 || i == 2 || i == 4 || i == 5 || completed(i));
      }
      for (k = 0; k < 4; k++) {
        check_failed(faults[k].rollout, faults[k].step);
        CHECK(strcmp(batch.messages[faults[k].rollout], "the control is 55") == 0);
      }
      check_handlers(0);
    }
  }
  mjcb_control = NULL;
  release();
}

static void errors_with_handlers_of_the_thread(void) {
  int p;
  make();
  expect();
  batch.models[BAD]->opt.solver = 10;
  set_thread_handlers(1);
  for (p = 0; p < NPOOL; p++) {
    CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
    check_failed(BAD, contact_step());
    check_handlers(1);
  }
  set_thread_handlers(0);
  release();
}

// The private functions may be missing from a MuJoCo to come.
static void errors_and_warnings_without_handlers_of_threads(void) {
  int p, i;
  make();
  expect();
  batch.process_only = 1;
  batch.models[BAD]->opt.solver = 10;
  batch.control[(2 * NSTEP + 3) * (int)batch.ncontrol] = NAN;
  for (p = 0; p < NPOOL; p++) {
    CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
    CHECK(strcmp(batch.error.text, solver_text) == 0);
    check_failed(BAD, contact_step());
    CHECK(batch.outcomes[2].status == ROLLOUT_OUTCOME_STATUS_WARNED);
    CHECK(batch.outcomes[2].steps == 3 && as_expected(2, 3));
    for (i = 0; i < NBATCH; i++) {
      CHECK(i == BAD || i == 2 || completed(i));
    }
    check_handlers(0);
  }
  release();
}

// Whatever the release says: threads that see an error are replaced.
static void errors_that_retire_their_threads(void) {
  int p, i, round;
  make();
  expect();
  batch.models[BAD]->opt.solver = 10;
  batch.models[1]->opt.solver = 10;
  batch.flags = ROLLOUT_HOOKS_RETIRE_THREAD;
  for (round = 0; round < 5; round++) {
    for (p = 0; p < NPOOL; p++) {
      batch.chunk_size = (size_t)round;
      CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
      CHECK(batch.error.index == 1 && batch.error.nfailed == 2);
      check_failed(BAD, contact_step());
      check_failed(1, contact_step());
      for (i = 0; i < NBATCH; i++) {
        CHECK(i == BAD || i == 1 || completed(i));
      }
      check_handlers(0);
    }
  }
  release();
}

// Balls that are apart or all in one place, in an arena of this many bytes.
static mjModel* load_balls(int memory) {
  char text[8000];
  int i, length = snprintf(text, sizeof(text),
                           "<mujoco><size memory='%d'/><worldbody><geom type='plane' "
                           "size='9 9 1'/>",
                           memory);
  for (i = 0; i < 12; i++) {
    length += snprintf(text + length, sizeof(text) - (size_t)length,
                       "<body pos='%d 0 .09'><joint type='slide' axis='1 0 0'/><joint "
                       "type='slide' axis='0 1 0'/><joint type='slide' axis='0 0 1'/>"
                       "<geom size='.1'/></body>",
                       i);
  }
  snprintf(text + length, sizeof(text) - (size_t)length, "</worldbody></mujoco>");
  return load(text);
}

// The arena is full: MuJoCo warns or fails, by where it is when that happens. A rollout
// beside it is not touched.
static void a_full_arena(void) {
  int memory, failed = 0, k;
  for (memory = 20000; memory < 800000 && !failed; memory += 8000) {
    mjModel* m = load_balls(memory);
    mjData* d[2] = {mj_makeData(m), mj_makeData(m)};
    RolloutEngine engine = rollout_mujoco_engine();
    RolloutModel model = rollout_mujoco_model(m);
    RolloutData data[2] = {rollout_mujoco_data(d[0]), rollout_mujoco_data(d[1])};
    RolloutRequest request = rollout_request();
    RolloutError error = rollout_error();
    RolloutOutcome outcomes[3], alone;
    size_t nstate = rollout_mujoco_nstate(m);
    double* start = new_array(3 * nstate);
    double* state = new_array(3 * 2 * nstate);
    double* expected = new_array(2 * nstate);
    int p;
    for (k = 0; k < 12; k++) {
      start[nstate + 1 + 3 * (size_t)k] = -k + 1e-3 * k;  // after the time, x, y and z
    }
    request.engine = &engine;
    request.models = &model;
    request.nmodel = 1;
    request.data = data;
    request.ndata = 2;
    request.nbatch = 1;
    request.nstep = 2;
    request.initial_state = rollout_rows(start, 1, nstate);
    request.state = rollout_output(expected, 2 * nstate);
    request.outcomes = &alone;
    request.noutcome = 1;
    CHECK(rollout_run(pools[0], &request, &error) != ROLLOUT_STATUS_BAD_ENGINE);
    request.nbatch = 3;
    request.initial_state = rollout_rows(start, 3, nstate);
    request.state = rollout_output(state, 3 * 2 * nstate);
    request.outcomes = outcomes;
    request.noutcome = 3;
    for (p = 0; p < NPOOL && alone.status == ROLLOUT_OUTCOME_STATUS_COMPLETED; p++) {
      RolloutStatus status = rollout_run(pools[p], &request, &error);
      CHECK(outcomes[0].status == ROLLOUT_OUTCOME_STATUS_COMPLETED);
      CHECK(outcomes[2].status == ROLLOUT_OUTCOME_STATUS_COMPLETED);
      CHECK(same_bits(state, expected, 2 * nstate));
      CHECK(same_bits(state + 4 * nstate, expected, 2 * nstate));
      if (status == ROLLOUT_STATUS_ROLLOUTS_FAILED) {
        CHECK(strstr(error.text, "mj_stackAlloc") != NULL);
        CHECK(outcomes[1].status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR);
        failed++;
      }
    }
    // It fails on all of them or on none.
    CHECK(failed == 0 || failed == NPOOL);
    mj_deleteData(d[0]);
    mj_deleteData(d[1]);
    mj_deleteModel(m);
    free(start);
    free(state);
    free(expected);
  }
  CHECK(failed > 0);
  check_handlers(0);
}

// ---------------------------------------------------------------- plugins

static const char* ORGAN =
    "<mujoco><extension><plugin plugin='rollout.organ'><instance name='i'>"
    "<config key='pitch' value='%s'/></instance></plugin></extension><worldbody>"
    "<body><joint axis='0 1 0'/><geom size='.1' pos='.1 0 0'/>"
    "<plugin instance='i'/></body></worldbody></mujoco>";

static int organ_reset_fails;
// How far its pipe may turn.
static const double ORGAN_LIMIT = .25;

static int organ_nstate(const mjModel* m, int instance) {
  (void)m;
  (void)instance;
  return 0;
}
static int organ_init(const mjModel* m, mjData* d, int instance) {
  (void)m;
  (void)d;
  (void)instance;
  return 0;
}
static void organ_reset(const mjModel* m, mjtNum* state, void* data, int instance) {
  (void)m;
  (void)state;
  (void)data;
  (void)instance;
  if (organ_reset_fails) {
    mju_error("the organ cannot be reset");
  }
}
static void organ_compute(const mjModel* m, mjData* d, int instance, int capability) {
  (void)m;
  (void)instance;
  (void)capability;
  if (d->qpos[0] > ORGAN_LIMIT) {
    mju_error("the organ is out of tune");
  }
}

static mjModel* load_organ(const char* pitch) {
  char text[2000];
  snprintf(text, sizeof(text), ORGAN, pitch);
  return load(text);
}

static void register_organ(void) {
  static const char* attributes[] = {"pitch"};
  mjpPlugin plugin;
  mjp_defaultPlugin(&plugin);
  plugin.name = "rollout.organ";
  plugin.nattribute = 1;
  plugin.attributes = attributes;
  plugin.capabilityflags = mjPLUGIN_PASSIVE;
  plugin.nstate = organ_nstate;
  plugin.init = organ_init;
  plugin.reset = organ_reset;
  plugin.compute = organ_compute;
  mjp_registerPlugin(&plugin);
}

// A request of organs of this many models. The second of two rollouts begins with this
// velocity.
static RolloutStatus run_organs(mjModel** organs, size_t nmodel, double velocity,
                                RolloutPool* pool) {
  RolloutEngine engine = rollout_mujoco_engine();
  RolloutModel models[2];
  RolloutData data[2];
  RolloutRequest request = rollout_request();
  RolloutStatus status;
  mjData* d[2];
  double start[2][3] = {{0, .1, 0}, {0, .1, 0}};
  size_t i;
  int fails = organ_reset_fails;
  start[1][2] = velocity;
  organ_reset_fails = 0;
  for (i = 0; i < 2; i++) {
    d[i] = mj_makeData(organs[0]);
    data[i] = rollout_mujoco_data(d[i]);
  }
  organ_reset_fails = fails;
  for (i = 0; i < nmodel; i++) {
    models[i] = rollout_mujoco_model(organs[i]);
  }
  request.engine = &engine;
  request.models = models;
  request.nmodel = nmodel;
  request.data = data;
  request.ndata = 2;
  request.nbatch = 2;
  request.nstep = 3;
  request.initial_state = rollout_rows(start[0], 2, 3);
  request.outcomes = batch.outcomes;
  request.noutcome = 2;
  request.messages = batch.messages[0];
  request.nmessage = 2 * TEXT;
  request.message_size = TEXT;
  batch.error = rollout_error();
  status = rollout_run(pool, &request, &batch.error);
  for (i = 0; i < 2; i++) {
    mj_deleteData(d[i]);
  }
  return status;
}

static void an_error_in_reset(void) {
  mjModel* m = load_organ("440");
  int p, i;
  for (p = 0; p < NPOOL; p++) {
    organ_reset_fails = 1;
    CHECK_STATUS(run_organs(&m, 1, 0, pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
    CHECK(batch.error.nfailed == 2);
    CHECK(strcmp(batch.error.text, "the organ cannot be reset") == 0);
    for (i = 0; i < 2; i++) {
      CHECK(batch.outcomes[i].status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR);
      CHECK(batch.outcomes[i].steps == 0);
    }
    organ_reset_fails = 0;
    CHECK_STATUS(run_organs(&m, 1, 0, pools[p]), ROLLOUT_STATUS_OK, &batch.error);
    check_handlers(0);
  }
  mj_deleteModel(m);
}

static void an_error_of_a_plugin_in_a_step(void) {
  mjModel* m = load_organ("440");
  int p;
  for (p = 0; p < NPOOL; p++) {
    // After one step of 2 ms it has turned by 0.2.
    CHECK_STATUS(run_organs(&m, 1, 100, pools[p]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
    CHECK(batch.error.nfailed == 1 && batch.error.index == 1);
    CHECK(strcmp(batch.error.text, "the organ is out of tune") == 0);
    CHECK(batch.outcomes[0].status == ROLLOUT_OUTCOME_STATUS_COMPLETED);
    CHECK(batch.outcomes[1].status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR);
    CHECK(batch.outcomes[1].steps == 1);
    check_handlers(0);
  }
  mj_deleteModel(m);
}

static void r19_models_that_differ_in_a_plugins_settings_are_refused(void) {
  mjModel* organs[2];
  int p;
  organs[0] = load_organ("440");
  organs[1] = load_organ("442");
  for (p = 0; p < NPOOL; p++) {
    CHECK_STATUS(run_organs(organs, 1, 0, pools[p]), ROLLOUT_STATUS_OK, &batch.error);
    CHECK_STATUS(run_organs(organs, 2, 0, pools[p]), ROLLOUT_STATUS_UNSUPPORTED, &batch.error);
    CHECK(strncmp(batch.error.text, "models[1]: has plugins", 22) == 0);
  }
  mj_deleteModel(organs[0]);
  mj_deleteModel(organs[1]);
}

// ---------------------------------------------------------------- the guard

typedef struct {
  const mjModel* m;
  mjData* d;
} Guarded;

static void guarded_step(void* user) {
  Guarded* guarded = (Guarded*)user;
  mj_step(guarded->m, guarded->d);
}

static void guarded_reset(void* user) {
  Guarded* guarded = (Guarded*)user;
  mj_resetData(guarded->m, guarded->d);
}

static void the_guard_runs_one_engine_call(void) {
  RolloutEngine engine = rollout_mujoco_engine();
  RolloutError error = rollout_error();
  mjModel* m = load(BALL);
  mjData* d = mj_makeData(m);
  Guarded guarded;
  int t, good = m->opt.solver;
  double height;
  guarded.m = m;
  guarded.d = d;
  for (t = 0; t < NSTEP; t++) {
    mj_step(m, d);
  }
  height = d->qpos[0];
  m->opt.solver = 10;
  CHECK_STATUS(rollout_guard(&engine, guarded_step, &guarded, &error),
               ROLLOUT_STATUS_ENGINE_ERROR, &error);
  CHECK(strcmp(error.text, solver_text) == 0);
  m->opt.solver = good;
  CHECK_STATUS(rollout_guard(&engine, guarded_reset, &guarded, &error), ROLLOUT_STATUS_OK, &error);
  for (t = 0; t < NSTEP; t++) {
    CHECK_STATUS(rollout_guard(&engine, guarded_step, &guarded, &error), ROLLOUT_STATUS_OK, &error);
  }
  CHECK(d->qpos[0] == height);
  // A warning under the guard is counted, and told to nobody.
  d->ctrl[0] = NAN;
  CHECK_STATUS(rollout_guard(&engine, guarded_step, &guarded, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(d->warning[mjWARN_BADCTRL].number == 1);
  check_handlers(0);
  mj_deleteData(d);
  mj_deleteModel(m);
}

// ---------------------------------------------------------------- again and again

// Every other rollout fails, and the ones between are as ever.
static void errors_leave_nothing_behind(void) {
  // Starting a thread takes as long as some ten rollouts.
  int rounds = (rollout_mujoco_hooks().flags ? 600 : 5000) / (int)check_parts;
  int i, k;
  long before = 0;
  make();
  for (i = 0; i < NBATCH; i++) {
    batch.start[(size_t)i * batch.nstate + 1] = -.05;  // in the ground
  }
  expect();
  for (i = 0; i < NBATCH; i += 2) {
    batch.models[i]->opt.solver = 10;
  }
  for (k = 0; k < rounds; k++) {
    CHECK_STATUS(run(pools[k % NPOOL]), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
    CHECK(batch.error.nfailed == NBATCH / 2 && batch.outcomes[NBATCH - 2].steps == 0);
    for (i = 1; i < NBATCH; i += 2) {
      CHECK(completed(i));
    }
    if (k == rounds / 5) {
      before = process_memory();
    }
  }
  // For 16,000 errors 1.5 MB are 96 bytes each; the allocator may settle in the meantime.
  CHECK(!PROCESS_MEMORY_COUNTS || process_memory() - before < 3 << 19);
  CHECK(process_threads_become(ALL_THREADS));
  check_handlers(0);
  release();
}

// ---------------------------------------------------------------- in a process of its own

// A host without any handlers, as a process of its own: its argument is the number of
// threads. Prints nothing unless something is wrong.
static int child_r03(const char* nthread) {
  RolloutPool* pool = NULL;
  int i;
  if (rollout_pool_create(atoi(nthread), &pool, NULL)) {
    return 1;
  }
  make();
  expect();
  batch.models[BAD]->opt.solver = 10;
  CHECK_STATUS(run(pool), ROLLOUT_STATUS_ROLLOUTS_FAILED, &batch.error);
  for (i = 0; i < NBATCH; i++) {
    CHECK(i == BAD || completed(i));
  }
  check_failed(BAD, contact_step());
  // And a warning.
  batch.models[BAD]->opt.solver = batch.models[0]->opt.solver;
  batch.control[(2 * NSTEP + 3) * (int)batch.ncontrol] = NAN;
  CHECK_STATUS(run(pool), ROLLOUT_STATUS_OK, &batch.error);
  CHECK(batch.outcomes[2].status == ROLLOUT_OUTCOME_STATUS_WARNED);
  release();
  rollout_pool_destroy(pool);
  if (check_why[0]) {
    printf("%s\n", check_why);
  }
  return check_why[0] != '\0';
}

static void r03_a_host_without_handlers_lives_and_nothing_is_printed(void) {
  static const char* nthread[] = {"0", "1", "2", "8"};
  int i, open_input;
  // (Other cases may have been about warnings outside of rollouts.)
  remove("MUJOCO_LOG.TXT");
  for (i = 0; i < 4; i++) {
    for (open_input = 0; open_input < 2; open_input++) {
      CHECK(process_again("r03", nthread[i], open_input) == 0);
      CHECK(process_file_size("output.txt") == 0);
      CHECK(process_file_size("MUJOCO_LOG.TXT") == -1);
    }
  }
}

int main(int argc, char** argv) {
  int p;
  check_begin();
  if (argc == 3 && strcmp(argv[1], "r03") == 0) {
    return child_r03(argv[2]);
  }
  mju_user_error = on_process_error;
  mju_user_warning = on_process_warning;
  register_organ();
  for (p = 0; p < NPOOL; p++) {
    RolloutError error = rollout_error();
    if (rollout_pool_create(NTHREAD[p], &pools[p], &error)) {
      printf("FAILED pools: %s\n", error.text);
      return 1;
    }
  }
  CASE(r01_a_model_that_fails_fails_alone);
  CASE(r02_rows_from_the_step_that_failed_on_are_filled);
  CASE(all_rollouts_fail);
  CASE(r06_a_warning_is_told_in_the_outcome_and_nowhere_else);
  CASE(errors_of_a_callback);
  CASE(errors_with_handlers_of_the_thread);
  CASE(errors_and_warnings_without_handlers_of_threads);
  CASE(errors_that_retire_their_threads);
  CASE(a_full_arena);
  CASE(an_error_in_reset);
  CASE(an_error_of_a_plugin_in_a_step);
  CASE(r19_models_that_differ_in_a_plugins_settings_are_refused);
  CASE(the_guard_runs_one_engine_call);
  CASE(errors_leave_nothing_behind);
  CASE(r03_a_host_without_handlers_lives_and_nothing_is_printed);
  for (p = 0; p < NPOOL; p++) {
    rollout_pool_destroy(pools[p]);
  }
  return check_failures;
}
