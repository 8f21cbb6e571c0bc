// demo: rolls out a humanoid and a quadruped, a thousand times each.
//
//   demo <models dir> <out dir>
//
// All rollouts of a robot start from one state, its keyframe `stand`, and each has
// random controls of its own, as in a sampling planner. They are run in three ways,
// which must give the same bits:
//
//   plain loop   a loop over mj_step, as one writes it without a library;
//   1 thread     rollout_run with one mjData: the library's loop, on this thread;
//   n threads    rollout_run with an mjData for each CPU that the process may use.
//
// The paths of the roots go to <out dir>/<robot>.npy, which examples/plot.py draws.
// How to use the library: main makes a pool, run_on_pool fills a request and runs it.

#define _POSIX_C_SOURCE 200809L  // clock_gettime, isatty

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rollout.h"
#include "rollout_mujoco.h"  // includes mujoco/mujoco.h

enum {
  NBATCH = 1000,  // rollouts of each robot
  NSTEP = 100,    // steps of each rollout
  NREQUEST = 50,  // rollouts in one request, so that there is progress to show
  NHOLD = 20,     // steps for which a random control is held
  NROOT = 4,      // columns of the .npy files: time, x, y, z
};

// A robot, and what every way of rolling it out is given.
typedef struct {
  mjModel* m;
  size_t nu, nstate, nsensordata;  // numbers in a row of each array
  size_t ndata;                    // as many as threads
  RolloutData* data;               // each holds a pointer to an mjData
  double* start;                   // the start state (nstate), shared by all rollouts
  double* control;                 // NBATCH x NSTEP x nu
} Robot;

// What one way of rolling it out gave.
typedef struct {
  double* state;                    // NBATCH x NSTEP x nstate
  double* sensordata;               // NBATCH x NSTEP x nsensordata
  RolloutOutcome outcomes[NBATCH];  // not filled by the plain loop
  double seconds;
} Result;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "demo: %s: %s\n", what, why);
  exit(EXIT_FAILURE);
}

// Every call of the library that can fail returns a status, and says why in words.
static void check(RolloutStatus status, const RolloutError* error) {
  if (status != ROLLOUT_STATUS_OK) {
    fail(rollout_status_name(status), error->text);
  }
}

static void* allocate(size_t count, size_t size) {
  void* memory = calloc(count, size);
  if (!memory) {
    fail("calloc", "out of memory");
  }
  return memory;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// The next number in [-1, 1) of a random sequence, the same in every run.
static double noise(uint64_t* seed) {
  *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (double)(*seed >> 11) * 0x1p-52 - 1;
}

// Random controls, each held for a few steps. Zero is not always the middle of a
// control's range (the quadruped's controls are joint angles, and zero is how it
// stands), so each side of zero is scaled by its own end of the range.
static void fill_control(Robot* robot, double scale) {
  const size_t nu = robot->nu;
  uint64_t seed = 1;
  for (size_t i = 0; i < NBATCH * NSTEP * nu; i++) {
    const double* range = robot->m->actuator_ctrlrange + 2 * (i % nu);
    const double x = noise(&seed), jump = scale * (x < 0 ? -x * range[0] : x * range[1]);
    robot->control[i] = i / nu % NHOLD == 0 ? jump : robot->control[i - nu];
  }
}

static Robot load(const char* folder, const char* name, double scale, size_t ndata) {
  char path[4096], error[1000];
  snprintf(path, sizeof(path), "%s/%s.xml", folder, name);
  mjModel* m = mj_loadXML(path, NULL, error, sizeof(error));
  if (!m) {
    fail(path, error);
  }
  Robot robot = {.m = m, .ndata = ndata};
  robot.nu = (size_t)m->nu;
  robot.nstate = rollout_mujoco_nstate(m);
  robot.nsensordata = (size_t)m->nsensordata;
  robot.data = allocate(ndata, sizeof(RolloutData));
  for (size_t i = 0; i < ndata; i++) {
    mjData* d = mj_makeData(m);
    if (!d) {
      fail(path, "no memory for its data");
    }
    robot.data[i] = rollout_mujoco_data(d);
  }
  const int stand = mj_name2id(m, mjOBJ_KEY, "stand");
  if (stand < 0) {
    fail(path, "no keyframe `stand`");
  }
  robot.start = allocate(robot.nstate, sizeof(double));
  mj_resetDataKeyframe(m, robot.data[0].data, stand);
  mj_getState(m, robot.data[0].data, robot.start, mjSTATE_FULLPHYSICS);
  robot.control = allocate(NBATCH * NSTEP * robot.nu, sizeof(double));
  fill_control(&robot, scale);
  return robot;
}

static void unload(Robot* robot) {
  for (size_t i = 0; i < robot->ndata; i++) {
    mj_deleteData(robot->data[i].data);
  }
  mj_deleteModel(robot->m);
  free(robot->data);
  free(robot->start);
  free(robot->control);
}

// Runs the NREQUEST rollouts from `first` on without the library.
static void run_in_loop(const Robot* robot, size_t first, Result* result) {
  const size_t nu = robot->nu, nstate = robot->nstate, nsensordata = robot->nsensordata;
  const mjModel* m = robot->m;
  mjData* d = robot->data[0].data;
  for (size_t rollout = first; rollout < first + NREQUEST; rollout++) {
    mj_setState(m, d, robot->start, mjSTATE_FULLPHYSICS);
    // The solver begins with the last solution it knows, which is not part of the
    // state. Left as it is, a rollout would depend on the one before.
    mju_zero(d->qacc_warmstart, (int)m->nv);
    for (size_t row = rollout * NSTEP; row < (rollout + 1) * NSTEP; row++) {
      memcpy(d->ctrl, robot->control + row * nu, nu * sizeof(double));
      mj_step(m, d);
      mj_getState(m, d, result->state + row * nstate, mjSTATE_FULLPHYSICS);
      memcpy(result->sensordata + row * nsensordata, d->sensordata, nsensordata * sizeof(double));
    }
  }
}

// Runs the NREQUEST rollouts from `first` on with the library.
static void run_on_pool(RolloutPool* pool, const Robot* robot, size_t nthread, size_t first,
                        Result* result) {
  const size_t nu = robot->nu, nstate = robot->nstate, nsensordata = robot->nsensordata;
  const size_t row = first * NSTEP, nrow = NREQUEST * NSTEP;  // their part of the arrays
  const RolloutEngine engine = rollout_mujoco_engine();
  const RolloutModel model = rollout_mujoco_model(robot->m);

  RolloutRequest request = rollout_request();
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = robot->data;
  request.ndata = nthread;  // as many threads take part as there are data
  request.nbatch = NREQUEST;
  request.nstep = NSTEP;
  request.initial_state = rollout_shared(robot->start, nstate);
  request.control = rollout_steps(robot->control + row * nu, NREQUEST, NSTEP, nu);
  request.state = rollout_output(result->state + row * nstate, nrow * nstate);
  request.sensordata = rollout_output(result->sensordata + row * nsensordata, nrow * nsensordata);
  request.outcomes = result->outcomes + first;
  request.noutcome = NREQUEST;

  RolloutError error = rollout_error();
  check(rollout_run(pool, &request, &error), &error);
}

// A bar on the current line of a terminal, which the next text will replace.
static void show_progress(size_t done) {
  char bar[] = "........................................";
  memset(bar, '=', strlen(bar) * done / NBATCH);
  if (isatty(STDOUT_FILENO)) {
    printf("%s %4zu/%d\r", bar, done, NBATCH);
  }
  fflush(stdout);
}

// Runs all rollouts on the pool, or in the plain loop if nthread is 0.
static Result run(RolloutPool* pool, const Robot* robot, size_t nthread) {
  Result result = {0};
  result.state = allocate(NBATCH * NSTEP * robot->nstate, sizeof(double));
  result.sensordata = allocate(NBATCH * NSTEP * robot->nsensordata, sizeof(double));
  for (size_t first = 0; first < NBATCH; first += NREQUEST) {
    show_progress(first);
    const double start = now();
    if (nthread == 0) {
      run_in_loop(robot, first, &result);
    } else {
      run_on_pool(pool, robot, nthread, first, &result);
    }
    result.seconds += now() - start;
  }
  return result;
}

static int equal_bits(const Robot* robot, const Result* a, const Result* b) {
  const size_t row = NBATCH * NSTEP * sizeof(double);
  return memcmp(a->state, b->state, row * robot->nstate) == 0 &&
         memcmp(a->sensordata, b->sensordata, row * robot->nsensordata) == 0;
}

static void print_outcomes(const RolloutOutcome* outcomes) {
  int counts[ROLLOUT_OUTCOME_STATUS_NOT_STARTED + 1] = {0};
  for (size_t i = 0; i < NBATCH; i++) {
    counts[outcomes[i].status]++;
  }
  printf("  %d completed, %d warned, %d diverged", counts[ROLLOUT_OUTCOME_STATUS_COMPLETED],
         counts[ROLLOUT_OUTCOME_STATUS_WARNED], counts[ROLLOUT_OUTCOME_STATUS_DIVERGED]);
}

// Writes the first columns of the state as an array of shape (NBATCH, NSTEP, NROOT)
// in NumPy's format 1.0: magic, version, length of the text that follows (low byte
// first), the text, padded so that all this takes 128 bytes, and the numbers.
static void write_npy(const char* folder, const char* name, size_t nstate, const double* state) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s.npy", folder, name);
  FILE* file = fopen(path, "wb");
  if (!file) {
    fail(path, "cannot be written");
  }
  const int length = fprintf(
      file, "\x93NUMPY%c%c%c%c{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d, %d)}", 1,
      0, 118, 0, NBATCH, NSTEP, NROOT);
  fprintf(file, "%*s\n", 127 - length, "");
  for (size_t row = 0; row < NBATCH * NSTEP; row++) {
    fwrite(state + row * nstate, sizeof(double), NROOT, file);
  }
  if (ferror(file) || fclose(file)) {
    fail(path, "cannot be written");
  }
}

// Rolls one robot out in all ways; returns whether all gave the same bits.
static int demo(RolloutPool* pool, const char* models, const char* out, const char* name,
                double scale) {
  const size_t ncpu = (size_t)rollout_default_nthread();
  const size_t nthreads[] = {0, 1, ncpu};
  Robot robot = load(models, name, scale, ncpu);
  Result results[3], *loop = &results[0];
  int all_equal = 1;
  for (size_t i = 0; i < 3; i++) {
    Result* result = &results[i];
    *result = run(pool, &robot, nthreads[i]);
    const int equal = equal_bits(&robot, result, loop);
    all_equal &= equal;
    char way[32] = "plain loop";
    if (i > 0) {
      snprintf(way, sizeof(way), "%zu thread%s", nthreads[i], nthreads[i] == 1 ? "" : "s");
    }
    printf("%-10s  %-10s  %8.0f  %7.2f x  %10s", name, way, NBATCH * NSTEP / result->seconds,
           loop->seconds / result->seconds, equal ? "yes" : "NO");
    if (i > 0) {
      print_outcomes(result->outcomes);
    }
    putchar('\n');
  }
  write_npy(out, name, robot.nstate, results[2].state);
  for (size_t i = 0; i < 3; i++) {
    free(results[i].state);
    free(results[i].sensordata);
  }
  unload(&robot);
  return all_equal;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fail("usage", "demo <models dir> <out dir>");
  }
  // A program makes one pool and keeps it. This one has a thread for each CPU that
  // the process may use.
  RolloutPool* pool = NULL;
  RolloutError error = rollout_error();
  check(rollout_pool_create(ROLLOUT_NTHREAD_DEFAULT, &pool, &error), &error);

  printf("%d rollouts of %d steps from one state, each with random controls of its own\n\n",
         NBATCH, NSTEP);
  puts("robot       way          steps/s  vs. loop  bits equal  outcomes");
  int equal = demo(pool, argv[1], argv[2], "humanoid", 0.5);
  equal &= demo(pool, argv[1], argv[2], "quadruped", 0.8);
  putchar('\n');
  rollout_pool_destroy(pool);
  return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}
