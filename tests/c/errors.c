// Errors and warnings of the engine: a rollout that fails, fails alone.

#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "rollout.h"
#include "rollout_mujoco.h"

enum { NBATCH = 8, NSTEP = 20, NDATA = 3, NPOOL = 4, BAD = 5, TEXT = 256 };

// What outputs hold beforehand.
static const double UNTOUCHED = -123;

static const int NTHREAD[NPOOL] = {0, 1, 2, 8};
static RolloutPool* pools[NPOOL];

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
  request.engine = &engine;
  request.models = models;
  request.nmodel = NBATCH;
  request.data = data;
  request.ndata = NDATA;
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
  request.chunk_size = 1;
  batch.error = rollout_error();
  return rollout_run(pool, &request, &batch.error);
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

// How often each was called.
static int user_error_calls, user_warning_calls;

static void on_user_error(const char* text) {
  (void)text;
  user_error_calls++;
}

static void on_user_warning(const char* text) {
  (void)text;
  user_warning_calls++;
}

// Whether a warning outside any rollout reaches the host's handlers of the process and
// of this thread.
static void check_handlers(void) {
  int process = user_warning_calls;
  mju_warning("a warning of the host's own");
  CHECK(user_warning_calls == process + 1);
  CHECK(user_error_calls == 0);
#if mjVERSION_HEADER >= 3010000
  CHECK(_mjPRIVATE_setTlsLogHandler(NULL) == NULL);
#else
  CHECK(_mjPRIVATE__get_tls_error_fn() == NULL);
  CHECK(_mjPRIVATE__get_tls_warning_fn() == NULL);
#endif
  CHECK(mju_user_error == on_user_error);
  CHECK(mju_user_warning == on_user_warning);
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
    check_handlers();

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
    check_handlers();
  }
  release();
}

static void r06_a_warning_is_told_in_the_outcome_and_nowhere_else(void) {
  int p, i;
  make();
  expect();
  batch.control[(2 * NSTEP + 3) * (int)batch.ncontrol] = NAN;
  for (p = 0; p < NPOOL; p++) {
    int before = user_warning_calls;
    CHECK_STATUS(run(pools[p]), ROLLOUT_STATUS_OK, &batch.error);
    CHECK(user_warning_calls == before);
    for (i = 0; i < NBATCH; i++) {
      CHECK(i == 2 || completed(i));
    }
    CHECK(batch.outcomes[2].status == ROLLOUT_OUTCOME_STATUS_WARNED);
    CHECK(batch.outcomes[2].warning == mjWARN_BADCTRL);
    CHECK(batch.outcomes[2].steps == 3);
    CHECK(strcmp(batch.messages[2], mju_warningText(mjWARN_BADCTRL, 0)) == 0);
    CHECK(as_expected(2, 3));
    check_handlers();
  }
  release();
}

int main(void) {
  int p;
  mju_user_error = on_user_error;
  mju_user_warning = on_user_warning;
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
  for (p = 0; p < NPOOL; p++) {
    rollout_pool_destroy(pools[p]);
  }
  return check_failures;
}
