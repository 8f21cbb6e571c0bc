// The contenders: four ways of doing one problem.

#ifndef BENCH_CONTENDERS_H_
#define BENCH_CONTENDERS_H_

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <mujoco/mjbatch.h>
#include <mujoco/mujoco.h>

#include "problem.h"
#include "rollout.h"
#include "rollout_mujoco.h"
#include "tools.h"

enum { LOOP, IDEAL, ROLLOUT, MJB, NCONTENDER };
static const char* const kName[NCONTENDER] = {"loop", "ideal", "rollout", "mjb"};

// What every contender has to write.
typedef struct {
  double* state;       // nbatch x nstep x nstate
  double* sensordata;  // nbatch x nstep x nsensordata
} Output;

// A problem, and what each contender keeps from call to call.
typedef struct {
  Problem problem;
  size_t nthread;
  Output output[NCONTENDER];
  mjData** d;  // nthread; loop, ideal and rollout take turns with them

  RolloutPool* pool;
  RolloutEngine engine;
  RolloutModel model;
  RolloutData* data;  // nthread
  RolloutRequest request;

  mjBatch* batch;
  double* rows;  // the start states as rows of the batch
  mjBatchRecord record[2];
} Rig;

static void make_request(Rig* rig) {
  const Problem* problem = &rig->problem;
  const Workload* work = &problem->work;
  const Output* output = &rig->output[ROLLOUT];
  const size_t nrow = work->nbatch * work->nstep;
  RolloutError error = rollout_error();
  check(rollout_pool_create((int32_t)rig->nthread, &rig->pool, &error), &error);
  rig->engine = rollout_mujoco_engine();
  rig->model = rollout_mujoco_model(problem->m);
  rig->data = allocate(rig->nthread, sizeof(RolloutData));
  for (size_t i = 0; i < rig->nthread; i++) {
    rig->data[i] = rollout_mujoco_data(rig->d[i]);
  }
  RolloutRequest* request = &rig->request;
  *request = rollout_request();
  request->engine = &rig->engine;
  request->models = &rig->model;
  request->nmodel = 1;
  request->data = rig->data;
  request->ndata = rig->nthread;
  request->nbatch = work->nbatch;
  request->nstep = work->nstep;
  request->initial_state = rollout_rows(problem->start, work->nbatch, problem->nstate);
  request->control = rollout_steps(problem->control, work->nbatch, work->nstep, problem->ncontrol);
  request->state = rollout_output(output->state, nrow * problem->nstate);
  request->sensordata = rollout_output(output->sensordata, nrow * problem->nsensordata);
}

static void make_batch(Rig* rig) {
  const Problem* problem = &rig->problem;
  const size_t nbatch = problem->work.nbatch;
  const mjBatchConfig config = {.nthread = (int)rig->nthread, .persistent = 0};
  char error[1000];
  rig->batch = mjb_makeBatch(problem->m, (int)nbatch, &config, error, sizeof(error));
  if (!rig->batch) {
    fail("mjb_makeBatch: %s", error);
  }
  // A row has all that a simulation depends on: beside the start state a warm start
  // and inputs, which are those of a new data, as for the other contenders.
  const size_t size = (size_t)mjb_nstate(rig->batch);
  rig->rows = numbers(nbatch * size);
  for (size_t i = 0; i < nbatch; i++) {
    mj_resetData(problem->m, rig->d[0]);
    mj_setState(problem->m, rig->d[0], problem->start + i * problem->nstate, mjSTATE_FULLPHYSICS);
    mj_getState(problem->m, rig->d[0], rig->rows + i * size, mjSTATE_INTEGRATION);
  }
  rig->record[0].spec = mjSTATE_FULLPHYSICS;
  rig->record[0].buf = rig->output[MJB].state;
  rig->record[1].field = "sensordata";
  rig->record[1].buf = rig->output[MJB].sensordata;
}

static Rig* make_rig(const char* suite, size_t nthread, const Workload* work) {
  Rig* rig = allocate(1, sizeof(Rig));
  rig->problem = load(suite, work);
  rig->nthread = nthread;
  rig->d = allocate(rig->nthread, sizeof(mjData*));
  for (size_t i = 0; i < rig->nthread; i++) {
    rig->d[i] = mj_makeData(rig->problem.m);
    if (!rig->d[i]) {
      fail("no memory for a data");
    }
  }
  const size_t nrow = work->nbatch * work->nstep;
  for (size_t c = 0; c < NCONTENDER; c++) {
    // Rows that are never written differ between contenders.
    Output* output = &rig->output[c];
    output->state = numbers(nrow * rig->problem.nstate);
    output->sensordata = numbers(nrow * rig->problem.nsensordata);
    memset(output->state, (int)c + 1, nrow * rig->problem.nstate * sizeof(double));
    memset(output->sensordata, (int)c + 1, nrow * rig->problem.nsensordata * sizeof(double));
  }
  make_request(rig);
  make_batch(rig);
  return rig;
}

static void free_rig(Rig* rig) {
  rollout_pool_destroy(rig->pool);
  mjb_deleteBatch(rig->batch);
  for (size_t i = 0; i < rig->nthread; i++) {
    mj_deleteData(rig->d[i]);
  }
  for (size_t c = 0; c < NCONTENDER; c++) {
    free(rig->output[c].state);
    free(rig->output[c].sensordata);
  }
  unload(&rig->problem);
  free(rig->d);
  free(rig->data);
  free(rig->rows);
  free(rig);
}

// A plain loop over rollouts first .. end - 1. It sets all that a rollout depends on
// and that an earlier use of the data may have changed.
static void run_rollouts(const Problem* problem, mjData* d, size_t first, size_t end,
                         Output output) {
  const mjModel* m = problem->m;
  const size_t nstate = problem->nstate, ncontrol = problem->ncontrol;
  const size_t nsensordata = problem->nsensordata, nstep = problem->work.nstep;
  for (size_t rollout = first; rollout < end; rollout++) {
    mj_setState(m, d, problem->start + rollout * nstate, mjSTATE_FULLPHYSICS);
    memset(d->qacc_warmstart, 0, (size_t)m->nv * sizeof(double));
    memset(d->qfrc_applied, 0, (size_t)m->nv * sizeof(double));
    memset(d->xfrc_applied, 0, (size_t)m->nbody * 6 * sizeof(double));
    memset(d->userdata, 0, (size_t)m->nuserdata * sizeof(double));
    for (int kind = 0; kind < mjNWARNING; kind++) {
      d->warning[kind].number = 0;
    }
    for (size_t row = rollout * nstep; row < (rollout + 1) * nstep; row++) {
      memcpy(d->ctrl, problem->control + row * ncontrol, ncontrol * sizeof(double));
      mj_step(m, d);
      mj_getState(m, d, output.state + row * nstate, mjSTATE_FULLPHYSICS);
      memcpy(output.sensordata + row * nsensordata, d->sensordata, nsensordata * sizeof(double));
    }
  }
}

static void call_loop(Rig* rig) {
  run_rollouts(&rig->problem, rig->d[0], 0, rig->problem.work.nbatch, rig->output[LOOP]);
}

static void call_rollout(Rig* rig) {
  RolloutError error = rollout_error();
  check(rollout_run(rig->pool, &rig->request, &error), &error);
}

static void call_mjb(Rig* rig) {
  const Problem* problem = &rig->problem;
  const Workload* work = &problem->work;
  const size_t nrow = work->nbatch * (size_t)mjb_nstate(rig->batch);
  // A call leaves the last states in the batch, so each begins with the start states.
  memcpy(mjb_state(rig->batch), rig->rows, nrow * sizeof(double));
  const int nfailed = mjb_rollout(rig->batch, NULL, 0, (int)work->nstep, problem->control,
                                  mjSTATE_CTRL, rig->record, problem->nsensordata > 0 ? 2 : 1);
  if (nfailed > 0) {
    fail("mjb_rollout: %d simulations failed", nfailed);
  }
}

// Times ncall calls one by one, and together.
static double time_calls(Rig* rig, void (*call)(Rig*), double* times) {
  const double start = now();
  double before = start;
  for (size_t i = 0; i < rig->problem.work.ncall; i++) {
    call(rig);
    const double after = now();
    times[i] = after - before;
    before = after;
  }
  return before - start;
}

// Holds the threads of `ideal` back until all of them are there.
typedef struct {
  size_t nwaiting;
  int open;
} Gate;

// One thread of `ideal`.
typedef struct {
  Rig* rig;
  Gate* gate;
  pthread_t thread;
  mjData* d;
  size_t first, end;  // its rollouts
  double done;        // when it was done
} Share;

static void run_share(Share* share) {
  for (size_t i = 0; i < share->rig->problem.work.ncall; i++) {
    run_rollouts(&share->rig->problem, share->d, share->first, share->end,
                 share->rig->output[IDEAL]);
    share->done = now();
  }
}

static void* share_thread(void* argument) {
  Share* share = argument;
  __atomic_add_fetch(&share->gate->nwaiting, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&share->gate->open, __ATOMIC_ACQUIRE)) {
    sched_yield();
  }
  run_share(share);
  return NULL;
}

// From when all threads are ready to when the last one is done. This thread has the
// first share, so that as many threads run as with the other contenders.
static double time_ideal(Rig* rig) {
  const size_t nthread = rig->nthread, nbatch = rig->problem.work.nbatch;
  Gate gate = {0, 0};
  Share* share = allocate(nthread, sizeof(Share));
  for (size_t i = 0; i < nthread; i++) {
    share[i].rig = rig;
    share[i].gate = &gate;
    share[i].d = rig->d[i];
    share[i].first = (nbatch * i + nthread - 1) / nthread;
    share[i].end = (nbatch * (i + 1) + nthread - 1) / nthread;
    if (i > 0 && pthread_create(&share[i].thread, NULL, share_thread, &share[i]) != 0) {
      fail("cannot start a thread");
    }
  }
  while (__atomic_load_n(&gate.nwaiting, __ATOMIC_ACQUIRE) < nthread - 1) {
    sched_yield();
  }
  const double start = now();
  __atomic_store_n(&gate.open, 1, __ATOMIC_RELEASE);
  run_share(&share[0]);
  double done = share[0].done;
  for (size_t i = 1; i < nthread; i++) {
    pthread_join(share[i].thread, NULL);
    done = share[i].done > done ? share[i].done : done;
  }
  free(share);
  return done - start;
}

#endif  // BENCH_CONTENDERS_H_
