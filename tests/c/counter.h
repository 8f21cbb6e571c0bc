// An engine without MuJoCo, and a request of it: the state of a data is one number, to
// which a step adds the number that is the model.
#ifndef ROLLOUT_TESTS_COUNTER_H_
#define ROLLOUT_TESTS_COUNTER_H_

#include <string.h>

#include "check.h"

typedef struct Counter {
  double value;
  int resets;
  // What a step calls first, if anything.
  void (*inside)(void);
} Counter;

static void counter_step(const void* model, void* data) {
  Counter* counter = (Counter*)data;
  if (counter->inside) {
    counter->inside();
  }
  counter->value += *(const double*)model;
}

static int counter_state_size(const void* model, uint32_t spec) {
  (void)model;
  return spec & 1;
}

static void counter_get_state(const void* model, const void* data, double* state,
                              uint32_t spec) {
  (void)model;
  if (spec & 1) {
    *state = ((const Counter*)data)->value;
  }
}

static void counter_set_state(const void* model, void* data, const double* state,
                              uint32_t spec) {
  (void)model;
  if (spec & 1) {
    ((Counter*)data)->value = *state;
  }
}

static void counter_reset(const void* model, void* data) {
  (void)model;
  ((Counter*)data)->value = 0;
  ((Counter*)data)->resets++;
}

#define NBATCH 8
#define NSTEP 4
#define NDATA 3

// A request of at most NBATCH rollouts on NDATA counters, and all that it names.
typedef struct Run {
  RolloutEngine engine;
  double step_size;
  RolloutModel model;
  Counter counters[NDATA];
  RolloutData data[NDATA];
  double start[NBATCH];
  double state[NBATCH * NSTEP];
  RolloutRequest request;
  RolloutError error;
} Run;

static inline void run_set_up(Run* run, size_t nbatch, double step_size, void (*inside)(void)) {
  size_t i;
  memset(run, 0, sizeof(*run));
  run->step_size = step_size;
  run->engine.size = sizeof(run->engine);
  run->engine.version = ROLLOUT_ENGINE_VERSION;
  run->engine.number_size = sizeof(double);
  run->engine.step = counter_step;
  run->engine.state_size = counter_state_size;
  run->engine.get_state = counter_get_state;
  run->engine.set_state = counter_set_state;
  run->engine.reset = counter_reset;
  run->engine.full_physics = 1;
  run->model.model = &run->step_size;
  for (i = 0; i < NDATA; i++) {
    run->counters[i].inside = inside;
    run->data[i].data = &run->counters[i];
  }
  for (i = 0; i < NBATCH; i++) {
    run->start[i] = 100.0 * (double)i;
  }
  run->request = rollout_request();
  run->request.engine = &run->engine;
  run->request.models = &run->model;
  run->request.nmodel = 1;
  run->request.data = run->data;
  run->request.ndata = NDATA;
  run->request.nbatch = nbatch;
  run->request.nstep = NSTEP;
  run->request.initial_state = rollout_rows(run->start, nbatch, 1);
  run->request.state = rollout_output(run->state, nbatch * NSTEP);
  run->request.chunk_size = 1;
  run->error = rollout_error();
}

// Whether the rows are those that they must be.
static inline int run_is_right(const Run* run) {
  size_t i, t;
  for (i = 0; i < run->request.nbatch; i++) {
    for (t = 0; t < NSTEP; t++) {
      double expected = 100.0 * (double)i + (double)(t + 1) * run->step_size;
      if (run->state[i * NSTEP + t] != expected) {
        return 0;
      }
    }
  }
  return 1;
}

#endif  // ROLLOUT_TESTS_COUNTER_H_
