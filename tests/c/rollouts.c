// Rollouts of real models, bit for bit against a plain loop over mj_step, on data
// that have been used for something else before.

#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "rollout.h"
#include "rollout_mujoco.h"
#include "ways.h"

enum { NBATCH = 7, NSTEP = 20, NDATA = 3 };

// Untouched outputs hold this.
static const double UNTOUCHED = -123.0;

// ---------------------------------------------------------------- random numbers

static uint64_t random_state = 1;

// The next number in [-1, 1), the same on every machine (splitmix64).
static double random_unit(void) {
  uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  z ^= z >> 31;
  return (double)(z >> 11) / 4503599627370496.0 - 1.0;
}

static double* new_array(size_t count, double value) {
  double* array = (double*)malloc((count + 1) * sizeof(double));
  size_t i;
  if (!array) {
    exit(1);
  }
  for (i = 0; i < count; i++) {
    array[i] = value;
  }
  return array;
}

static int same_bits(const double* a, const double* b, size_t count) {
  return memcmp(a, b, count * sizeof(double)) == 0;
}

// ---------------------------------------------------------------- what is rolled out

// A model, or one for each rollout, and what a request of them takes.
typedef struct {
  mjModel* models[NBATCH];
  int nmodel;  // 1 or NBATCH
  mjData* data[NDATA];
  size_t nstate, nwarmstart, nsensordata, ncontrol;
  int spec;            // what `control` holds
  double* start;       // NBATCH x nstate
  double* warmstart;   // NBATCH x nwarmstart, or NULL
  double* control;     // NBATCH x NSTEP x ncontrol, or NULL
  int shared;          // all rollouts take the first start and the first control row
  double* state;       // NBATCH x NSTEP x nstate
  double* sensordata;  // NBATCH x NSTEP x nsensordata
  double* expected_state;
  double* expected_sensordata;
  RolloutOutcome outcomes[NBATCH];
  int fill;
  int clean;  // nothing else is done with the data in between
} Batch;

static Batch batch;
static RolloutPool* pools[4];  // of 0, 1, 2 and 5 threads

static const mjModel* model_of(int rollout) {
  return batch.models[batch.nmodel == 1 ? 0 : rollout];
}

// Random inputs of this spec, so small that even the lightest model stays healthy.
static void set_control(int spec) {
  double scale = spec == mjSTATE_CTRL ? 1 : 1e-4;
  size_t i;
  batch.spec = spec;
  batch.ncontrol = (size_t)mj_stateSize(batch.models[0], spec);
  free(batch.control);
  batch.control = new_array(NBATCH * NSTEP * batch.ncontrol, 0);
  for (i = 0; i < NBATCH * NSTEP * batch.ncontrol; i++) {
    double value = random_unit();
    batch.control[i] = spec == mjSTATE_EQ_ACTIVE ? value > 0 : scale * value;
  }
}

static void clear_control(void) {
  free(batch.control);
  batch.control = NULL;
  batch.spec = 0;
}

static void set_warmstart(void) {
  size_t i;
  batch.warmstart = new_array(NBATCH * batch.nwarmstart, 0);
  for (i = 0; i < NBATCH * batch.nwarmstart; i++) {
    batch.warmstart[i] = 10 * random_unit();
  }
}

static void clear_warmstart(void) {
  free(batch.warmstart);
  batch.warmstart = NULL;
}

static void random_ctrl(const mjModel* m, mjData* d) {
  int i;
  for (i = 0; i < (int)m->nu; i++) {
    d->ctrl[i] = random_unit();
  }
}

static void batch_make(mjModel* model) {
  mjData* d = mj_makeData(model);
  int i, t;
  memset(&batch, 0, sizeof(batch));
  random_state = 1;
  batch.models[0] = model;
  batch.nmodel = 1;
  batch.nstate = rollout_mujoco_nstate(model);
  batch.nwarmstart = (size_t)mj_stateSize(model, mjSTATE_WARMSTART);
  batch.nsensordata = (size_t)model->nsensordata;
  batch.start = new_array(NBATCH * batch.nstate, 0);
  batch.state = new_array(NBATCH * NSTEP * batch.nstate, 0);
  batch.sensordata = new_array(NBATCH * NSTEP * batch.nsensordata, 0);
  batch.expected_state = new_array(NBATCH * NSTEP * batch.nstate, 0);
  batch.expected_sensordata = new_array(NBATCH * NSTEP * batch.nsensordata, 0);
  for (i = 0; i < NDATA; i++) {
    batch.data[i] = mj_makeData(model);
  }
  // Start states on the way, so that there are contacts and history.
  if (model->nkey > 0) {
    mj_resetDataKeyframe(model, d, 0);
  }
  for (i = 0; i < NBATCH; i++) {
    for (t = 0; t < 30; t++) {
      random_ctrl(model, d);
      mj_step(model, d);
    }
    mj_getState(model, d, batch.start + (size_t)i * batch.nstate, mjSTATE_FULLPHYSICS);
  }
  mj_deleteData(d);
  set_control(mjSTATE_CTRL);
}

static void batch_free(void) {
  int i;
  for (i = 0; i < NDATA; i++) {
    mj_deleteData(batch.data[i]);
  }
  for (i = 0; i < batch.nmodel; i++) {
    mj_deleteModel(batch.models[i]);
  }
  free(batch.start);
  free(batch.warmstart);
  free(batch.control);
  free(batch.state);
  free(batch.sensordata);
  free(batch.expected_state);
  free(batch.expected_sensordata);
}

// ---------------------------------------------------------------- the plain loop

static int warned(const mjData* d) {
  int i;
  for (i = 0; i < mjNWARNING; i++) {
    if (d->warning[i].number) {
      return 1;
    }
  }
  return 0;
}

// What the rollouts should give, on data that are new for each rollout. Rows from
// a warning on hold what the engine has then.
static void expect(void) {
  int r, t;
  for (r = 0; r < NBATCH; r++) {
    const mjModel* m = model_of(r);
    mjData* d = mj_makeData(m);
    size_t from = batch.shared ? 0 : (size_t)r;
    // From 3.11 on a control can have a default other than zero; a rollout's is zero.
    mju_zero(d->ctrl, (int)m->nu);
    mj_setState(m, d, batch.start + from * batch.nstate, mjSTATE_FULLPHYSICS);
    if (batch.warmstart) {
      mj_setState(m, d, batch.warmstart + (size_t)r * batch.nwarmstart, mjSTATE_WARMSTART);
    }
    for (t = 0; t < NSTEP; t++) {
      size_t row = (size_t)(r * NSTEP + t);
      if (!warned(d)) {
        if (batch.control) {
          size_t source = batch.shared ? 0 : row;
          mj_setState(m, d, batch.control + source * batch.ncontrol, batch.spec);
        }
        mj_step(m, d);
      }
      mj_getState(m, d, batch.expected_state + row * batch.nstate, mjSTATE_FULLPHYSICS);
      memcpy(batch.expected_sensordata + row * batch.nsensordata, d->sensordata,
             batch.nsensordata * sizeof(double));
    }
    mj_deleteData(d);
  }
}

// ---------------------------------------------------------------- the library

// Leaves in the data whatever can be left there.
static void make_dirty(mjData* d) {
  const mjModel* m = batch.models[0];
  int size = (int)mj_stateSize(m, mjSTATE_USER | mjSTATE_WARMSTART);
  double* inputs = new_array((size_t)size, 0);
  int i, steps = (int)(3 + 3 * random_unit());
  for (i = 0; i < size; i++) {
    inputs[i] = random_unit();
  }
  mj_setState(m, d, inputs, mjSTATE_USER | mjSTATE_WARMSTART);
  mj_setState(m, d, batch.start + batch.nstate, mjSTATE_FULLPHYSICS);
  for (i = 0; i < steps; i++) {
    mj_step(m, d);
  }
  for (i = 0; i < (int)m->nsensordata; i++) {
    d->sensordata[i] = 1e6;
  }
  free(inputs);
}

static RolloutStatus run(RolloutPool* pool, size_t ndata, size_t chunk_size, RolloutError* error) {
  RolloutEngine engine = rollout_mujoco_engine();
  RolloutModel models[NBATCH];
  RolloutData data[NDATA];
  RolloutRequest request = rollout_request();
  size_t i;
  for (i = 0; i < (size_t)batch.nmodel; i++) {
    models[i] = rollout_mujoco_model(batch.models[i]);
  }
  for (i = 0; i < NDATA; i++) {
    if (!batch.clean) {
      make_dirty(batch.data[i]);
    }
    data[i] = rollout_mujoco_data(batch.data[i]);
  }
  for (i = 0; i < NBATCH * NSTEP * batch.nstate; i++) {
    batch.state[i] = UNTOUCHED;
  }
  for (i = 0; i < NBATCH * NSTEP * batch.nsensordata; i++) {
    batch.sensordata[i] = UNTOUCHED;
  }
  request.engine = &engine;
  request.models = models;
  request.nmodel = (size_t)batch.nmodel;
  request.data = data;
  request.ndata = ndata;
  request.nbatch = NBATCH;
  request.nstep = NSTEP;
  request.control_spec = (uint32_t)batch.spec;
  request.fill = batch.fill;
  if (batch.shared) {
    request.initial_state = rollout_shared(batch.start, batch.nstate);
  } else {
    request.initial_state = rollout_rows(batch.start, NBATCH, batch.nstate);
  }
  if (batch.warmstart) {
    request.initial_warmstart = rollout_rows(batch.warmstart, NBATCH, batch.nwarmstart);
  }
  if (batch.control && batch.shared) {
    request.control = rollout_shared(batch.control, batch.ncontrol);
  } else if (batch.control) {
    request.control = rollout_steps(batch.control, NBATCH, NSTEP, batch.ncontrol);
  }
  request.state = rollout_output(batch.state, NBATCH * NSTEP * batch.nstate);
  request.sensordata = rollout_output(batch.sensordata, NBATCH * NSTEP * batch.nsensordata);
  request.outcomes = batch.outcomes;
  request.noutcome = NBATCH;
  request.chunk_size = chunk_size;
  return run_in_some_way(pool, &request, error);
}

// Runs the batch on every pool and with several chunk sizes, and compares.
static void check_batch(void) {
  static const size_t chunks[] = {0, 1, 3};
  size_t pool, ndata, i;
  expect();
  for (pool = 0; pool < 4; pool++) {
    for (ndata = 1; ndata <= NDATA; ndata++) {
      RolloutError error = rollout_error();
      CHECK_STATUS(run(pools[pool], ndata, chunks[ndata - 1], &error), ROLLOUT_STATUS_OK, &error);
      CHECK(same_bits(batch.state, batch.expected_state, NBATCH * NSTEP * batch.nstate));
      CHECK(same_bits(batch.sensordata, batch.expected_sensordata,
                      NBATCH * NSTEP * batch.nsensordata));
      for (i = 0; i < NBATCH; i++) {
        CHECK(batch.outcomes[i].status == ROLLOUT_OUTCOME_STATUS_COMPLETED);
        CHECK(batch.outcomes[i].steps == NSTEP);
        CHECK(batch.outcomes[i].warning == -1);
      }
    }
  }
}

// ---------------------------------------------------------------- cases for every model

static void r12_no_control(void) {
  clear_control();
  check_batch();
  set_control(mjSTATE_CTRL);
}

static void r13_warmstart(void) {
  set_warmstart();
  check_batch();
  clear_warmstart();
}

static void r27_shared_rows(void) {
  batch.shared = 1;
  check_batch();
  batch.shared = 0;
}

static void every_input(void) {
  int bit;
  for (bit = 1; bit <= mjSTATE_USER; bit <<= 1) {
    if (bit & mjSTATE_USER) {
      set_control(bit);
      check_batch();
    }
  }
  set_control(mjSTATE_USER & ~mjSTATE_EQ_ACTIVE);
  check_batch();
  set_control(mjSTATE_CTRL);
}

static void a_model_for_each_rollout(void) {
  int i, k;
  for (i = 1; i < NBATCH; i++) {
    mjModel* m = mj_copyModel(NULL, batch.models[0]);
    m->opt.gravity[2] *= 1 + 0.1 * i;
    // Moves the default pose of mocap bodies too.
    for (k = 1; k < (int)m->nbody; k++) {
      m->body_pos[3 * k] += 0.01 * i;
    }
    batch.models[i] = m;
  }
  batch.nmodel = NBATCH;
  check_batch();
}

static void check_model(const char* name, mjModel* model) {
  static const struct {
    const char* name;
    void (*body)(void);
  } cases[] = {
      {"controls", check_batch},
      {"r12 no control", r12_no_control},
      {"r13 warm starts", r13_warmstart},
      {"r27 shared rows", r27_shared_rows},
      {"every input", every_input},
      {"a model for each rollout", a_model_for_each_rollout},
  };
  size_t i;
  batch_make(model);
  for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    char title[256];
    snprintf(title, sizeof(title), "%s: %s", name, cases[i].name);
    check_case(title, cases[i].body);
  }
  batch_free();
}

// ---------------------------------------------------------------- single cases

static mjModel* load(const char* path) {
  char error[1000] = "";
  mjModel* model = mj_loadXML(path, NULL, error, sizeof(error));
  if (!model) {
    printf("FAILED %s: cannot be loaded: %s\n", path, error);
    exit(1);
  }
  return model;
}

static mjModel* load_text(const char* text) {
  FILE* file = fopen("model.xml", "w");
  if (!file || fputs(text, file) < 0 || fclose(file)) {
    exit(1);
  }
  return load("model.xml");
}

// Mocap, equality, user data, applied forces: every input has an effect or a place.
static const char* INPUTS =
    "<mujoco><size nuserdata='3'/>"
    "<worldbody><geom type='plane' size='3 3 1'/>"
    "<body name='hand' mocap='true' pos='.1 .2 1.5'><geom size='.05' contype='0'/></body>"
    "<body name='ball' pos='0 0 1'><freejoint/><geom size='.1'/><site name='s'/></body>"
    "<body name='arm' pos='1 0 1'><joint name='j' axis='0 1 0'/><geom size='.1' pos='.3 0 0'/></body>"
    "<body name='second' pos='1 1 1'><joint name='k' axis='0 1 0'/><geom size='.1' pos='.3 0 0'/>"
    "</body></worldbody>"
    "<equality><weld body1='hand' body2='ball'/><joint joint1='j' joint2='k' active='false'/>"
    "</equality>"
    "<actuator><motor joint='j'/><intvelocity joint='k' actrange='-1 1'/></actuator>"
    "<sensor><framepos objtype='body' objname='hand'/><framepos objtype='body' objname='ball'/>"
    "<accelerometer site='s'/><jointpos joint='j'/></sensor></mujoco>";

static const char* SENSORS_OFF =
    "<mujoco><option><flag sensor='disable'/></option><worldbody>"
    "<body><joint name='j'/><geom size='.1' pos='.1 0 0'/></body></worldbody>"
    "<actuator><motor joint='j'/></actuator><sensor><jointpos joint='j'/></sensor></mujoco>";

// A rollout that warns ends there, the others go on; the rows that follow are as
// the fill policy says. No thread shares the outcome of another's warning.
static void check_warning(int rollout, int step, RolloutOutcomeStatus status, int kind) {
  int fill, pool, i;
  size_t k;
  expect();
  for (fill = ROLLOUT_FILL_NAN; fill <= ROLLOUT_FILL_UNTOUCHED; fill++) {
    for (pool = 0; pool < 4; pool++) {
      size_t first = (size_t)(rollout * NSTEP + step) * batch.nstate;
      size_t end = (size_t)((rollout + 1) * NSTEP) * batch.nstate;
      RolloutError error = rollout_error();
      batch.fill = fill;
      CHECK_STATUS(run(pools[pool], NDATA, 1, &error), ROLLOUT_STATUS_OK, &error);
      for (i = 0; i < NBATCH; i++) {
        int hit = i == rollout;
        CHECK(batch.outcomes[i].status == (hit ? (int)status : ROLLOUT_OUTCOME_STATUS_COMPLETED));
        CHECK(batch.outcomes[i].steps == (uint64_t)(hit ? step : NSTEP));
        CHECK(batch.outcomes[i].warning == (hit ? kind : -1));
      }
      CHECK(same_bits(batch.state, batch.expected_state, first));
      CHECK(same_bits(batch.state + end, batch.expected_state + end,
                      NBATCH * NSTEP * batch.nstate - end));
      for (k = first; k < end; k++) {
        double value = batch.state[k];
        CHECK(fill != ROLLOUT_FILL_NAN || isnan(value));
        CHECK(fill != ROLLOUT_FILL_HOLD || same_bits(&value, batch.expected_state + k, 1));
        CHECK(fill != ROLLOUT_FILL_UNTOUCHED || value == UNTOUCHED);
      }
    }
  }
  batch.fill = ROLLOUT_FILL_NAN;
}

// One request switches an equality constraint on in its fifth step and another one off;
// the next one says nothing of them.
static void r16_a_request_that_says_nothing_of_equalities_starts_with_the_models(void) {
  int r, t, e, pool, neq = (int)batch.models[0]->neq;
  CHECK(neq == 2);
  for (pool = 0; pool < 4; pool++) {
    RolloutError error = rollout_error();
    batch.clean = 1;
    set_control(mjSTATE_EQ_ACTIVE);
    for (r = 0; r < NBATCH; r++) {
      for (t = 0; t < NSTEP; t++) {
        for (e = 0; e < neq; e++) {
          batch.control[(r * NSTEP + t) * neq + e] = t < 5 ? e == 0 : e == 1;
        }
      }
    }
    expect();
    CHECK_STATUS(run(pools[pool], NDATA, 1, &error), ROLLOUT_STATUS_OK, &error);
    CHECK(same_bits(batch.state, batch.expected_state, NBATCH * NSTEP * batch.nstate));
    clear_control();
    expect();
    CHECK_STATUS(run(pools[pool], NDATA, 1, &error), ROLLOUT_STATUS_OK, &error);
    CHECK(same_bits(batch.state, batch.expected_state, NBATCH * NSTEP * batch.nstate));
    batch.clean = 0;
  }
}

static void r06_a_control_that_is_not_a_number(void) {
  batch.control[(2 * NSTEP + 3) * batch.ncontrol] = NAN;
  check_warning(2, 3, (RolloutOutcomeStatus)ROLLOUT_OUTCOME_STATUS_WARNED, mjWARN_BADCTRL);
}

static void a_diverged_rollout(void) {
  // The last rollout begins with a velocity beyond all bounds.
  size_t velocity = batch.nstate * NBATCH - 1;
  batch.start[velocity] = 1e30;
  check_warning(NBATCH - 1, 0, (RolloutOutcomeStatus)ROLLOUT_OUTCOME_STATUS_DIVERGED,
                mjWARN_BADQVEL);
}

#if mjVERSION_HEADER >= 340
// Which trees are asleep is no part of the state: the library resets the data.
static const char* SLEEPERS =
    "<mujoco><option><flag sleep='enable'/></option><worldbody>"
    "<geom type='plane' size='3 3 1'/>"
    "<body pos='0 0 .1'><freejoint/><geom size='.1'/></body>"
    "<body pos='.5 0 .1'><freejoint/><geom type='box' size='.1 .1 .1'/></body>"
    "<body name='arm' pos='1 0 1'><joint name='j' axis='0 1 0'/><geom size='.1' pos='.3 0 0'/>"
    "</body></worldbody><actuator><motor joint='j'/></actuator>"
    "<sensor><jointpos joint='j'/></sensor></mujoco>";
#endif

// Two threads of the host, each with a model of its own, run on one pool.
typedef struct {
  mjModel* model;
  mjData* data[NDATA];
  double* start;
  double* state;
  double* expected;
  size_t nstate;
  RolloutPool* pool;
  int failures;
} Caller;

static void caller_make(Caller* caller, mjModel* model, RolloutPool* pool) {
  RolloutError error = rollout_error();
  int i, r, t;
  mjData* d = mj_makeData(model);
  memset(caller, 0, sizeof(*caller));
  caller->model = model;
  caller->pool = pool;
  caller->nstate = rollout_mujoco_nstate(model);
  caller->start = new_array(caller->nstate, 0);
  caller->state = new_array(NBATCH * NSTEP * caller->nstate, 0);
  caller->expected = new_array(NBATCH * NSTEP * caller->nstate, 0);
  for (i = 0; i < NDATA; i++) {
    caller->data[i] = mj_makeData(model);
  }
  mj_getState(model, d, caller->start, mjSTATE_FULLPHYSICS);
  for (r = 0; r < NBATCH; r++) {
    mj_resetData(model, d);
    mju_zero(d->ctrl, (int)model->nu);
    mj_setState(model, d, caller->start, mjSTATE_FULLPHYSICS);
    for (t = 0; t < NSTEP; t++) {
      mj_step(model, d);
      mj_getState(model, d, caller->expected + (size_t)(r * NSTEP + t) * caller->nstate,
                  mjSTATE_FULLPHYSICS);
    }
  }
  mj_deleteData(d);
  CHECK(error.status == ROLLOUT_STATUS_OK);
}

static void caller_free(Caller* caller) {
  int i;
  for (i = 0; i < NDATA; i++) {
    mj_deleteData(caller->data[i]);
  }
  mj_deleteModel(caller->model);
  free(caller->start);
  free(caller->state);
  free(caller->expected);
}

static void* caller_run(void* argument) {
  Caller* caller = (Caller*)argument;
  size_t count = NBATCH * NSTEP * caller->nstate;
  RolloutEngine engine = rollout_mujoco_engine();
  RolloutModel model = rollout_mujoco_model(caller->model);
  RolloutData data[NDATA];
  RolloutRequest request = rollout_request();
  int i;
  for (i = 0; i < NDATA; i++) {
    data[i] = rollout_mujoco_data(caller->data[i]);
  }
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = data;
  request.ndata = NDATA;
  request.nbatch = NBATCH;
  request.nstep = NSTEP;
  request.initial_state = rollout_shared(caller->start, caller->nstate);
  request.state = rollout_output(caller->state, count);
  for (i = 0; i < 50; i++) {
    memset(caller->state, 0, count * sizeof(double));
    if (rollout_run(caller->pool, &request, NULL) != ROLLOUT_STATUS_OK ||
        !same_bits(caller->state, caller->expected, count)) {
      caller->failures++;
    }
  }
  return NULL;
}

static const char* caller_models[2];

static void check_callers(RolloutPool* first, RolloutPool* second) {
  Caller callers[2];
  pthread_t threads[2];
  int i;
  caller_make(&callers[0], load(caller_models[0]), first);
  caller_make(&callers[1], load(caller_models[1]), second);
  for (i = 0; i < 2; i++) {
    CHECK(pthread_create(&threads[i], NULL, caller_run, &callers[i]) == 0);
  }
  for (i = 0; i < 2; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(callers[i].failures == 0);
    caller_free(&callers[i]);
  }
}

static void r83_two_callers_on_one_pool(void) { check_callers(pools[2], pools[2]); }

static void r87_two_pools_at_once(void) { check_callers(pools[1], pools[3]); }

// ---------------------------------------------------------------- main

int main(int argc, char** argv) {
  static const int sizes[4] = {0, 1, 2, 5};
  static const char* ours[] = {"humanoid.xml", "quadruped.xml"};
  static const char* suite[] = {"hopper.xml",    "cheetah.xml", "humanoid.xml",
                                "quadruped.xml", "swimmer.xml", "cartpole.xml"};
  static char paths[2][1024];
  RolloutError error = rollout_error();
  size_t i;
  if (argc != 3) {
    fprintf(stderr, "usage: rollouts OUR_MODELS DM_CONTROL_SUITE\n");
    return 2;
  }
  for (i = 0; i < 4; i++) {
    if (rollout_pool_create(sizes[i], &pools[i], &error)) {
      printf("FAILED pool: %s\n", error.text);
      return 1;
    }
  }
  for (i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
    char name[64];
    snprintf(paths[i], sizeof(paths[i]), "%s/%s", argv[1], ours[i]);
    snprintf(name, sizeof(name), "our %s", ours[i]);
    caller_models[i] = paths[i];
    check_model(name, load(paths[i]));
  }
  for (i = 0; i < sizeof(suite) / sizeof(suite[0]); i++) {
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", argv[2], suite[i]);
    check_model(suite[i], load(path));
  }
  check_model("inputs", load_text(INPUTS));
  check_model("sensors off", load_text(SENSORS_OFF));
#if mjVERSION_HEADER >= 340
  check_model("sleepers", load_text(SLEEPERS));
#endif

  batch_make(load_text(INPUTS));
  CASE(r16_a_request_that_says_nothing_of_equalities_starts_with_the_models);
  batch_free();
  batch_make(load(paths[0]));
  CASE(r06_a_control_that_is_not_a_number);
  batch_free();
  batch_make(load(paths[1]));
  CASE(a_diverged_rollout);
  batch_free();
  CASE(r83_two_callers_on_one_pool);
  CASE(r87_two_pools_at_once);

  for (i = 0; i < 4; i++) {
    rollout_pool_destroy(pools[i]);
  }
  return check_failures != 0;
}
