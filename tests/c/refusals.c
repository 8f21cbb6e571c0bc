// What a C host can get wrong with MuJoCo: each mistake is refused with a status
// and a text that names the argument, before anything is written.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "rollout_mujoco.h"

#define NBATCH 4
#define NSTEP 3
#define NDATA 3
#define MESSAGE_SIZE 32
#define UNTOUCHED 0x55

// One hinge; SIZES and BODIES make it larger.
#define XML(SIZES, BODIES)                                                   \
  "<mujoco>" SIZES                                                           \
  "<worldbody><body><joint name='hinge'/><geom size='0.1'/></body>" BODIES   \
  "</worldbody>"                                                             \
  "<actuator><motor joint='hinge'/></actuator>"                              \
  "<sensor><jointpos joint='hinge'/></sensor></mujoco>"
#define BODY "<body pos='1 0 0'><joint/><geom size='0.1'/></body>"

static RolloutPool* pool;
static mjModel* model;
static mjData* data[NDATA];

// The valid request, and all that it names.
static RolloutEngine engine;
static RolloutModel models[NBATCH];
static RolloutData slots[NDATA];
static double* start;
static double control[NBATCH * NSTEP];
static double* state;
static double sensordata[NBATCH * NSTEP];
static RolloutOutcome outcomes[NBATCH];
static char messages[NBATCH * MESSAGE_SIZE];
static size_t state_count;

static mjModel* load(const char* xml) {
  const char* name = "model.xml";
  char why[500] = "";
  mjModel* made;
  FILE* file = fopen(name, "w");
  if (!file || fputs(xml, file) < 0 || fclose(file)) {
    printf("FAILED load: model.xml cannot be written\n");
    exit(1);
  }
  made = mj_loadXML(name, NULL, why, sizeof(why));
  if (!made) {
    printf("FAILED load: %s\n", why);
    exit(1);
  }
  return made;
}

static void set_up(void) {
  size_t nstate, i;
  model = load(XML("", ""));
  nstate = rollout_mujoco_nstate(model);
  for (i = 0; i < NDATA; i++) {
    data[i] = mj_makeData(model);
  }
  start = (double*)calloc(NBATCH * nstate, sizeof(double));
  state_count = NBATCH * NSTEP * nstate;
  state = (double*)malloc(state_count * sizeof(double));
}

static void tear_down(void) {
  size_t i;
  for (i = 0; i < NDATA; i++) {
    mj_deleteData(data[i]);
  }
  mj_deleteModel(model);
  free(start);
  free(state);
}

// A valid request, with everything that it could write marked as untouched.
static RolloutRequest valid(void) {
  RolloutRequest request = rollout_request();
  size_t nstate = rollout_mujoco_nstate(model);
  size_t i;
  engine = rollout_mujoco_engine();
  for (i = 0; i < NBATCH; i++) {
    models[i] = rollout_mujoco_model(model);
  }
  for (i = 0; i < NDATA; i++) {
    slots[i] = rollout_mujoco_data(data[i]);
  }
  memset(state, UNTOUCHED, state_count * sizeof(double));
  memset(sensordata, UNTOUCHED, sizeof(sensordata));
  memset(outcomes, UNTOUCHED, sizeof(outcomes));
  memset(messages, UNTOUCHED, sizeof(messages));
  for (i = 0; i < NDATA; i++) {
    data[i]->qpos[0] = 0.25;
    data[i]->time = 0.5;
    data[i]->ctrl[0] = 0.75;
  }
  request.engine = &engine;
  request.models = models;
  request.nmodel = 1;
  request.data = slots;
  request.ndata = NDATA;
  request.nbatch = NBATCH;
  request.nstep = NSTEP;
  request.initial_state = rollout_rows(start, NBATCH, nstate);
  request.control = rollout_steps(control, NBATCH, NSTEP, 1);
  request.state = rollout_output(state, state_count);
  request.sensordata = rollout_output(sensordata, NBATCH * NSTEP);
  request.outcomes = outcomes;
  request.noutcome = NBATCH;
  request.messages = messages;
  request.nmessage = sizeof(messages);
  request.message_size = MESSAGE_SIZE;
  return request;
}

static int is_untouched(const void* memory, size_t size) {
  const unsigned char* bytes = (const unsigned char*)memory;
  size_t i;
  for (i = 0; i < size; i++) {
    if (bytes[i] != UNTOUCHED) {
      return 0;
    }
  }
  return 1;
}

static int nothing_written(void) {
  size_t i;
  for (i = 0; i < NDATA; i++) {
    if (data[i]->qpos[0] != 0.25 || data[i]->time != 0.5 || data[i]->ctrl[0] != 0.75) {
      return 0;
    }
  }
  return is_untouched(state, state_count * sizeof(double)) &&
         is_untouched(sensordata, sizeof(sensordata)) &&
         is_untouched(outcomes, sizeof(outcomes)) && is_untouched(messages, sizeof(messages));
}

// Whether a text begins with "NAME: ".
static int names(const char* text, const char* name) {
  size_t length = strlen(name);
  return strncmp(text, name, length) == 0 && strncmp(text + length, ": ", 2) == 0;
}

// Expects a refusal with this status, by this name.
#define REFUSED(request, status, name) refused((request), (status), (name), __LINE__)
static void refused(const RolloutRequest* request, int32_t status, const char* name, int line) {
  RolloutError error = rollout_error();
  int32_t given = rollout_run(pool, request, &error);
  char what[600];
  check_status(given, status, &error, __FILE__, line, name);
  snprintf(what, sizeof(what), "\"%s\" does not name %s", error.text, name);
  check_that(names(error.text, name), __FILE__, line, what);
  check_that(error.status == given, __FILE__, line, "the status of the error object");
  check_that(error.index == -1, __FILE__, line, "the index of the error object");
  snprintf(what, sizeof(what), "%s: refused, but wrote", name);
  check_that(nothing_written(), __FILE__, line, what);
  // And without an error object.
  check_that(rollout_run(pool, request, NULL) == given, __FILE__, line, "without an error object");
}

static void a_valid_request_runs(void) {
  RolloutRequest request = valid();
  RolloutError error = rollout_error();
  size_t i;
  CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(!nothing_written());
  for (i = 0; i < NBATCH; i++) {
    CHECK(outcomes[i].status == ROLLOUT_OUTCOME_STATUS_COMPLETED);
    CHECK(outcomes[i].steps == NSTEP);
    CHECK(messages[i * MESSAGE_SIZE] == '\0');
  }
}

static void r04_null_models_and_data_are_refused(void) {
  RolloutRequest request = valid();
  models[0] = rollout_mujoco_model(NULL);
  REFUSED(&request, ROLLOUT_STATUS_NULL_POINTER, "models[0].model");

  request = valid();
  request.nmodel = NBATCH;
  models[2] = rollout_mujoco_model(NULL);
  REFUSED(&request, ROLLOUT_STATUS_NULL_POINTER, "models[2].model");

  request = valid();
  slots[1] = rollout_mujoco_data(NULL);
  REFUSED(&request, ROLLOUT_STATUS_NULL_POINTER, "data[1].data");
}

static void r04_absurd_sizes_are_refused(void) {
  size_t nstate = rollout_mujoco_nstate(model);
  RolloutRequest request = valid();
  request.nbatch = SIZE_MAX;
  REFUSED(&request, ROLLOUT_STATUS_OVERFLOW, "initial_state.rollout_stride");

  request = valid();
  request.nbatch = SIZE_MAX;
  request.initial_state = rollout_shared(start, nstate);
  request.control = rollout_shared(NULL, 0);
  REFUSED(&request, ROLLOUT_STATUS_OVERFLOW, "state.count");

  request = valid();
  request.nstep = SIZE_MAX;
  request.control = rollout_shared(NULL, 0);
  REFUSED(&request, ROLLOUT_STATUS_OVERFLOW, "state.count");

  // Neither factor is too large, only their product.
  request = valid();
  request.nbatch = (size_t)1 << 32;
  request.nstep = (size_t)1 << 32;
  request.initial_state = rollout_shared(start, nstate);
  request.control = rollout_shared(NULL, 0);
  REFUSED(&request, ROLLOUT_STATUS_OVERFLOW, "state.count");

  request = valid();
  request.nmodel = SIZE_MAX;
  REFUSED(&request, ROLLOUT_STATUS_OVERFLOW, "nmodel");

  request = valid();
  request.ndata = SIZE_MAX;
  REFUSED(&request, ROLLOUT_STATUS_OVERFLOW, "ndata");
}

static void r04_wrong_sizes_are_refused(void) {
  size_t nstate = rollout_mujoco_nstate(model);
  RolloutRequest request = valid();
  request.nmodel = 0;
  REFUSED(&request, ROLLOUT_STATUS_EMPTY_LIST, "models");

  request = valid();
  request.ndata = 0;
  REFUSED(&request, ROLLOUT_STATUS_EMPTY_LIST, "data");

  request = valid();
  request.nmodel = NBATCH - 1;
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "nmodel");

  // As many start states as data, not as rollouts.
  request = valid();
  request.initial_state = rollout_rows(start, NDATA, nstate);
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "initial_state.count");

  // Only positions and velocities.
  request = valid();
  request.initial_state = rollout_rows(start, NBATCH, (size_t)(model->nq + model->nv));
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "initial_state.count");

  // Controls of one step less.
  request = valid();
  request.control = rollout_steps(control, NBATCH, NSTEP - 1, 1);
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "control.count");

  // Of controls and applied forces only the controls.
  request = valid();
  request.control_spec = mjSTATE_CTRL | mjSTATE_QFRC_APPLIED;
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "control.count");

  request = valid();
  request.state = rollout_output(state, NBATCH * nstate);
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "state.count");

  request = valid();
  request.sensordata = rollout_output(sensordata, NBATCH);
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "sensordata.count");

  request = valid();
  request.message_size = 0;
  request.nmessage = 0;
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "message_size");
}

static void specs_that_are_no_inputs_are_refused(void) {
  RolloutRequest request = valid();
  request.control_spec = mjSTATE_QPOS;
  REFUSED(&request, ROLLOUT_STATUS_BAD_SPEC, "control_spec");
  request.control_spec = mjSTATE_CTRL | mjSTATE_WARMSTART;
  REFUSED(&request, ROLLOUT_STATUS_BAD_SPEC, "control_spec");
  request.control_spec = 1u << 31;
  REFUSED(&request, ROLLOUT_STATUS_BAD_SPEC, "control_spec");
}

static void r09_the_same_data_twice_is_refused(void) {
  RolloutRequest request = valid();
  slots[2] = slots[0];
  REFUSED(&request, ROLLOUT_STATUS_DUPLICATE_DATA, "data[2]");
}

static void r09_a_data_of_another_model_is_refused(void) {
  // MuJoCo's own signature would not tell the last of them from the model.
  const char* others[] = {
      XML("", BODY),
      XML("<option><flag contact='disable'/></option><size memory='2M'/>", ""),
      XML("<size nuserdata='5'/>", ""),
  };
  size_t i;
  for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    mjModel* other = load(others[i]);
    mjData* others_data = mj_makeData(other);
    RolloutRequest request = valid();
    slots[1] = rollout_mujoco_data(others_data);
    REFUSED(&request, ROLLOUT_STATUS_LAYOUT_MISMATCH, "data[1]");

    // The other way round: the data of a smaller model.
    request = valid();
    models[0] = rollout_mujoco_model(other);
    request.initial_state = rollout_rows(start, 0, 0);
    REFUSED(&request, ROLLOUT_STATUS_LAYOUT_MISMATCH, "data[0]");
    mj_deleteData(others_data);
    mj_deleteModel(other);
  }
}

static void r09_models_of_unequal_sizes_are_refused(void) {
  mjModel* larger = load(XML("", BODY));
  RolloutRequest request = valid();
  request.nmodel = NBATCH;
  models[3] = rollout_mujoco_model(larger);
  REFUSED(&request, ROLLOUT_STATUS_LAYOUT_MISMATCH, "models[3]");
  mj_deleteModel(larger);

  larger = load(XML("<size nuserdata='1'/>", ""));
  models[3] = rollout_mujoco_model(model);
  models[1] = rollout_mujoco_model(larger);
  REFUSED(&request, ROLLOUT_STATUS_LAYOUT_MISMATCH, "models[1]");
  mj_deleteModel(larger);
}

// Three hinges in a chain, and the same three with two of them side by side: data of
// equal sizes, which some releases fill with the structure of the tree.
static void a_model_of_another_structure_is_refused(void) {
  static const char* JOINT = "<joint axis='0 1 0'/><geom size='.1' pos='.3 0 0'/>";
  char text[2][1024];
  mjModel* trees[2];
  mjData* d;
  RolloutModel described[2];
  RolloutRequest request = valid();
  int i;
  snprintf(text[0], sizeof(text[0]),
           "<mujoco><worldbody><body>%s<body>%s<body>%s</body></body></body></worldbody></mujoco>",
           JOINT, JOINT, JOINT);
  snprintf(text[1], sizeof(text[1]),
           "<mujoco><worldbody><body>%s<body>%s</body><body>%s</body></body></worldbody></mujoco>",
           JOINT, JOINT, JOINT);
  for (i = 0; i < 2; i++) {
    trees[i] = load(text[i]);
    described[i] = rollout_mujoco_model(trees[i]);
  }
  models[0] = described[0];
  models[1] = described[1];
  models[1].layout = models[0].layout;
  request.nmodel = NBATCH;
  for (i = 2; i < NBATCH; i++) {
    models[i] = models[0];
  }
  REFUSED(&request, ROLLOUT_STATUS_LAYOUT_MISMATCH, "models[1]");
#if mjVERSION_HEADER >= 331
  d = mj_makeData(trees[0]);
  CHECK(rollout_mujoco_data(d).structure == described[0].structure);
  CHECK(rollout_mujoco_data(d).structure != described[1].structure);
  mj_deleteData(d);
#else
  (void)d;
#endif
  mj_deleteModel(trees[0]);
  mj_deleteModel(trees[1]);
}

static void models_that_differ_only_in_numbers_are_accepted(void) {
  mjModel* heavier = load(XML("<option gravity='0 0 -20'/>", ""));
  RolloutRequest request = valid();
  RolloutError error = rollout_error();
  request.nmodel = NBATCH;
  models[3] = rollout_mujoco_model(heavier);
  CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_OK, &error);
  mj_deleteModel(heavier);
}

static void a_data_with_an_engine_thread_pool_is_refused(void) {
  RolloutRequest request = valid();
  // Looks as if mju_bindThreadPool had been called.
  data[1]->threadpool = 1;
  slots[1] = rollout_mujoco_data(data[1]);
  REFUSED(&request, ROLLOUT_STATUS_UNSUPPORTED, "data[1]");
  data[1]->threadpool = 0;
}

static void an_engine_of_another_release_is_refused(void) {
  RolloutRequest request = valid();
  engine.library_release += 1;
  REFUSED(&request, ROLLOUT_STATUS_BAD_ENGINE, "engine.library_release");

  request = valid();
  engine.header_release -= 1;
  REFUSED(&request, ROLLOUT_STATUS_BAD_ENGINE, "engine.library_release");
}

static void a_single_precision_engine_is_refused(void) {
  RolloutRequest request = valid();
  engine.number_size = sizeof(float);
  REFUSED(&request, ROLLOUT_STATUS_BAD_ENGINE, "engine.number_size");
}

static void an_engine_without_a_function_is_refused(void) {
  RolloutRequest request = valid();
  engine.step = NULL;
  REFUSED(&request, ROLLOUT_STATUS_NULL_POINTER, "engine.step");
  engine = rollout_mujoco_engine();
  engine.reset = NULL;
  REFUSED(&request, ROLLOUT_STATUS_NULL_POINTER, "engine.reset");
}

static void outputs_over_other_arrays_are_refused(void) {
  RolloutRequest request = valid();
  request.sensordata.values = state;
  REFUSED(&request, ROLLOUT_STATUS_OVERLAP, "sensordata");

  request = valid();
  request.sensordata.values = control;
  REFUSED(&request, ROLLOUT_STATUS_OVERLAP, "sensordata");
}

static void a_request_without_its_size_is_refused(void) {
  RolloutRequest request = valid();
  RolloutRequest zero;
  memset(&zero, 0, sizeof(zero));
  REFUSED(&zero, ROLLOUT_STATUS_WRONG_SIZE, "request.size");
  engine.size = 0;
  REFUSED(&request, ROLLOUT_STATUS_WRONG_SIZE, "engine.size");
}

static void task(void* user) {
  (void)user;
}

static void r10_every_entry_refuses_null(void) {
  const int32_t null_pointer = ROLLOUT_STATUS_NULL_POINTER;
  RolloutRequest request = valid();
  RolloutError error = rollout_error();
  int32_t nthread = 7;
  uint64_t count = 7;
#define NULL_NAMES(call, name)                \
  CHECK_STATUS((call), null_pointer, &error); \
  CHECK(names(error.text, (name)))
  NULL_NAMES(rollout_pool_create(1, NULL, &error), "pool");
  NULL_NAMES(rollout_pool_num_threads(NULL, &nthread, &error), "pool");
  NULL_NAMES(rollout_pool_num_threads(pool, NULL, &error), "nthread");
  NULL_NAMES(rollout_pool_schedule(NULL, task, NULL, &error), "pool");
  NULL_NAMES(rollout_pool_schedule(pool, NULL, NULL, &error), "task");
  NULL_NAMES(rollout_pool_count(NULL, &count, &error), "pool");
  NULL_NAMES(rollout_pool_count(pool, NULL, &error), "count");
  NULL_NAMES(rollout_pool_reset_count(NULL, &error), "pool");
  NULL_NAMES(rollout_pool_wait_count(NULL, 0, &error), "pool");
  NULL_NAMES(rollout_run(NULL, &request, &error), "pool");
  NULL_NAMES(rollout_run(pool, NULL, &error), "request");
  NULL_NAMES(rollout_guard(NULL, task, NULL, &error), "engine");
  NULL_NAMES(rollout_guard(request.engine, NULL, NULL, &error), "call");
  CHECK(nthread == 7 && count == 7);
  rollout_pool_destroy(NULL);

  CHECK_STATUS(rollout_pool_create(1, NULL, NULL), null_pointer, NULL);
  CHECK_STATUS(rollout_pool_num_threads(NULL, NULL, NULL), null_pointer, NULL);
  CHECK_STATUS(rollout_pool_schedule(NULL, NULL, NULL, NULL), null_pointer, NULL);
  CHECK_STATUS(rollout_pool_count(NULL, NULL, NULL), null_pointer, NULL);
  CHECK_STATUS(rollout_pool_reset_count(NULL, NULL), null_pointer, NULL);
  CHECK_STATUS(rollout_pool_wait_count(NULL, 0, NULL), null_pointer, NULL);
  CHECK_STATUS(rollout_run(NULL, NULL, NULL), null_pointer, NULL);
  CHECK_STATUS(rollout_guard(NULL, NULL, NULL, NULL), null_pointer, NULL);

  request = valid();
  request.engine = NULL;
  REFUSED(&request, null_pointer, "engine");
  request = valid();
  request.models = NULL;
  REFUSED(&request, null_pointer, "models");
  request = valid();
  request.data = NULL;
  REFUSED(&request, null_pointer, "data");
  request = valid();
  request.initial_state.values = NULL;
  REFUSED(&request, null_pointer, "initial_state.values");
  request = valid();
  request.state.values = NULL;
  REFUSED(&request, null_pointer, "state.values");
  request = valid();
  slots[0].sensordata = NULL;
  REFUSED(&request, null_pointer, "data[0].sensordata");
  request = valid();
  slots[0].warning_number = NULL;
  REFUSED(&request, null_pointer, "data[0].warning_number");
}

static void an_error_object_is_used_again_and_again(void) {
  RolloutError error = rollout_error();
  RolloutRequest request = valid();
  int round;
  for (round = 0; round < 3; round++) {
    request.fill = 9;
    CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_BAD_OPTION, &error);
    CHECK(names(error.text, "fill"));
    CHECK(error.status == ROLLOUT_STATUS_BAD_OPTION);
    request.fill = ROLLOUT_FILL_HOLD;
    CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_OK, &error);
    CHECK(error.text[0] == '\0' && error.status == 0 && error.index == -1);
  }
}

static void an_error_object_without_its_size_is_refused(void) {
  RolloutError error;
  RolloutRequest request = valid();
  memset(&error, 0, sizeof(error));
  CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_WRONG_SIZE, NULL);
  CHECK(nothing_written());
  CHECK(error.text[0] == '\0');
}

static void statuses_have_names(void) {
  CHECK(strcmp(rollout_status_name(ROLLOUT_STATUS_OK), "ok") == 0);
  CHECK(strcmp(rollout_status_name(ROLLOUT_STATUS_NULL_POINTER), "null pointer") == 0);
  CHECK(strcmp(rollout_status_name(-1), "unknown status") == 0);
  CHECK(rollout_abi_version() == ROLLOUT_ABI_VERSION);
  CHECK(rollout_version()[0] != '\0');
}

int main(void) {
  if (rollout_pool_create(2, &pool, NULL) != ROLLOUT_STATUS_OK) {
    printf("FAILED set_up: no pool\n");
    return 1;
  }
  set_up();
  CASE(a_valid_request_runs);
  CASE(r04_null_models_and_data_are_refused);
  CASE(r04_absurd_sizes_are_refused);
  CASE(r04_wrong_sizes_are_refused);
  CASE(specs_that_are_no_inputs_are_refused);
  CASE(r09_the_same_data_twice_is_refused);
  CASE(r09_a_data_of_another_model_is_refused);
  CASE(r09_models_of_unequal_sizes_are_refused);
  CASE(a_model_of_another_structure_is_refused);
  CASE(models_that_differ_only_in_numbers_are_accepted);
  CASE(a_data_with_an_engine_thread_pool_is_refused);
  CASE(an_engine_of_another_release_is_refused);
  CASE(a_single_precision_engine_is_refused);
  CASE(an_engine_without_a_function_is_refused);
  CASE(outputs_over_other_arrays_are_refused);
  CASE(a_request_without_its_size_is_refused);
  CASE(r10_every_entry_refuses_null);
  CASE(an_error_object_is_used_again_and_again);
  CASE(an_error_object_without_its_size_is_refused);
  CASE(statuses_have_names);
  CASE(a_valid_request_runs);
  tear_down();
  rollout_pool_destroy(pool);
  return check_failures;
}
