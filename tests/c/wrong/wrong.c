// A host that is wrong in the way that its argument names. The tools that watch for such
// faults must stop it (`cargo xtask sanitize` and `memcheck`): one that lets it pass does
// not see anything at all. Ends with 0 if nobody minds.

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

// Rows of NaN that the library writes behind the end of an array, since the host has
// said that there is more of it than there is.
static int library_overflow(void) {
  enum { NSTEP = 64 };
  RolloutPool* pool = NULL;
  RolloutEngine engine;
  RolloutModel model;
  RolloutData data;
  RolloutRequest request = rollout_request();
  double* state = (double*)malloc((NSTEP - 1) * sizeof(double));
  double start = 0, row;
  int failed = 0;
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
  model.model = &engine;
  data.data = &failed;
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = &data;
  request.ndata = 1;
  request.nbatch = 1;
  request.nstep = NSTEP;
  request.initial_state = rollout_shared(&start, 1);
  request.state = rollout_output(state, NSTEP);
  if (rollout_pool_create(0, &pool, NULL) ||
      rollout_run(pool, &request, NULL) != ROLLOUT_STATUS_ROLLOUTS_FAILED) {
    printf("the request did not run\n");
    return 1;
  }
  rollout_pool_destroy(pool);
  row = state[0];
  free(state);
  return !isnan(row);
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
  if (strcmp(what, "host-overflow") == 0) {
    return host_overflow();
  }
  if (strcmp(what, "host-undefined") == 0) {
    return host_undefined();
  }
  if (strcmp(what, "host-leak") == 0) {
    return host_leak();
  }
  printf("wrong in no known way: %s\n", what);
  return 0;
}
