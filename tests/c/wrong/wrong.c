// A host that is wrong in the way that its argument names. The tools that watch for such
// faults must stop it (`cargo xtask sanitize`, `memcheck` and `tsan`): one that lets it
// pass does not see anything at all. Ends with 0 if nobody minds.

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout.h"

static volatile int one = 1;

// An engine that fails in its first step.
static void step(const void* model, void* data) {
  (void)model;
  *(int*)data = 1;
}
static int state_size(const void* model, uint32_t spec) {
  (void)model;
  return spec == 1;
}
static void get_state(const void* model, const void* data, double* state, uint32_t spec) {
  (void)model;
  (void)data;
  state[0] = spec;
}
static void set_state(const void* model, void* data, const double* state, uint32_t spec) {
  (void)model;
  (void)data;
  (void)state;
  (void)spec;
}
static void reset(const void* model, void* data) {
  (void)model;
  *(int*)data = 0;
}
static int take_error(void* data, char* text, size_t size) {
  if (size > 0) {
    text[0] = '\0';
  }
  return *(int*)data;
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
  engine.take_error = take_error;
  engine.full_physics = 1;
  return engine;
}

// One rollout, whose states are said to have room in `state`.
static RolloutStatus run(const RolloutEngine* engine, double* state, size_t nstep,
                         RolloutOutcome* outcome) {
  RolloutPool* pool = NULL;
  RolloutModel model;
  RolloutData data;
  RolloutRequest request = rollout_request();
  RolloutStatus status;
  double start = 0;
  int failed = 0;
  memset(&model, 0, sizeof(model));
  memset(&data, 0, sizeof(data));
  model.model = engine;
  data.data = &failed;
  request.engine = engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = &data;
  request.ndata = 1;
  request.nbatch = 1;
  request.nstep = nstep;
  request.initial_state = rollout_shared(&start, 1);
  request.state = rollout_output(state, nstep);
  request.outcomes = outcome;
  request.noutcome = outcome ? 1 : 0;
  if (rollout_pool_create(0, &pool, NULL)) {
    exit(1);
  }
  status = rollout_run(pool, &request, NULL);
  rollout_pool_destroy(pool);
  return status;
}

// Rows of NaN that the library writes behind the end of an array, since the host has
// said that there is more of it than there is.
static int library_overflow(void) {
  enum { NSTEP = 64 };
  RolloutEngine engine = make_engine();
  double* state = (double*)malloc((NSTEP - 1) * sizeof(double));
  double row;
  if (run(&engine, state, NSTEP, NULL) != ROLLOUT_STATUS_ROLLOUTS_FAILED) {
    printf("the request did not run\n");
    return 1;
  }
  row = state[0];
  free(state);
  return !isnan(row);
}

// An engine whose log messages are not as it says.
static RolloutHandler log_handler;
static char* message;

static void ignore(const void* text) { (void)text; }
static RolloutHandler exchange_log(RolloutHandler handler) {
  RolloutHandler before = log_handler;
  log_handler = handler;
  return before;
}
static void send(const void* model, void* data) {
  (void)model;
  (void)data;
  log_handler(message);
}

// The library's own C, the trap, reads the level of a message: behind the end of it, or
// where no int can be.
static int trap_reads(size_t size, size_t begin, uint32_t level) {
  RolloutEngine engine = make_engine();
  char* bytes = (char*)calloc(size, 1);
  double state;
  RolloutStatus status;
  message = bytes + begin;
  log_handler = ignore;
  engine.step = send;
  engine.take_error = NULL;
  engine.hooks.exchange_process_log = exchange_log;
  engine.hooks.log_level = level;
  engine.hooks.log_text = level + 8;
  engine.hooks.log_function = level + 16;
  engine.hooks.log_error = 100;
  engine.hooks.log_warning = 50;
  status = run(&engine, &state, 1, NULL);
  free(bytes);
  return status != ROLLOUT_STATUS_OK;
}

// Returns when two threads are here, whose order that does not settle.
static int arrived;
static void meet(void) {
  __atomic_fetch_add(&arrived, 1, __ATOMIC_RELAXED);
  while (__atomic_load_n(&arrived, __ATOMIC_RELAXED) < 2) {
  }
}

static int shared;
static void write_shared(void* user) {
  meet();
  *(int*)user += one;
}

// A request whose outcome goes where that of another one does.
static RolloutOutcome shared_outcome;
static void step_together(const void* model, void* data) {
  (void)model;
  (void)data;
  meet();
}
static void run_together(void* user) {
  RolloutEngine engine = make_engine();
  double state;
  (void)user;
  engine.step = step_together;
  run(&engine, &state, 1, &shared_outcome);
}

static int twice(RolloutTask task) {
  RolloutPool* pool = NULL;
  if (rollout_pool_create(2, &pool, NULL)) {
    exit(1);
  }
  rollout_pool_schedule(pool, task, &shared, NULL);
  rollout_pool_schedule(pool, task, &shared, NULL);
  rollout_pool_wait_count(pool, 2, NULL);
  rollout_pool_destroy(pool);
  return 0;
}

static int host_overflow(void) {
  // (Volatile, so that the compiler neither knows its size nor leaves it alone.)
  volatile char* volatile bytes = (volatile char*)calloc(8, 1);
  int byte = bytes[7 + one];
  free((void*)bytes);
  return byte & 0;
}

static int host_undefined(void) {
  volatile int sum = INT_MAX - 1 + one;
  sum = sum + one;
  return sum == 0;
}

static int host_leak(void) {
  char* volatile bytes = (char*)malloc(1000);
  bytes[0] = 1;
  bytes = NULL;
  return bytes != NULL;
}

int main(int argc, char** argv) {
  const char* what = argc == 2 ? argv[1] : "";
  if (strcmp(what, "library-overflow") == 0) {
    return library_overflow();
  }
  if (strcmp(what, "trap-overflow") == 0) {
    return trap_reads(16, 0, 16);
  }
  if (strcmp(what, "trap-undefined") == 0) {
    return trap_reads(64, 1, 0);
  }
  if (strcmp(what, "host-overflow") == 0) {
    return host_overflow();
  }
  if (strcmp(what, "host-undefined") == 0) {
    return host_undefined();
  }
  if (strcmp(what, "host-race") == 0) {
    return twice(write_shared);
  }
  if (strcmp(what, "library-race") == 0) {
    return twice(run_together);
  }
  if (strcmp(what, "host-leak") == 0) {
    return host_leak();
  }
  printf("wrong in no known way: %s\n", what);
  return 0;
}
