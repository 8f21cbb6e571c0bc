// What is run: the workloads, and their start states and controls, which are the
// same in every run of the program.

#ifndef BENCH_PROBLEM_H_
#define BENCH_PROBLEM_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <mujoco/mujoco.h>

#include "rollout_mujoco.h"
#include "tools.h"

enum { NSETTLE = 200 };  // steps from a model's first state to where its rollouts start

// What a contender is asked to do.
typedef struct {
  const char* model;
  size_t nbatch, nstep;
  size_t ncall;  // calls that are timed together
} Workload;

// Long rollouts, one step of many, something in between, and calls so small that
// only what they cost beside the steps matters.
static const Workload kWorkload[] = {
    {"hopper", 50, 1000, 1},  {"quadruped", 3000, 1, 1}, {"humanoid", 100, 50, 1},
    {"cartpole", 8, 1, 1000}, {"cartpole", 1, 1, 4000},
};
enum { NWORKLOAD = sizeof(kWorkload) / sizeof(kWorkload[0]) };

// A workload with its inputs, the same for every contender.
typedef struct {
  Workload work;
  mjModel* m;
  size_t nstate, ncontrol, nsensordata;
  double* start;    // nbatch x nstate
  double* control;  // nbatch x nstep x ncontrol
} Problem;

static void random_control(const mjModel* m, double* control, uint64_t* seed) {
  for (size_t i = 0; i < (size_t)m->nu; i++) {
    const double* range = m->actuator_ctrlrange + 2 * i;
    const int limited = m->actuator_ctrllimited[i];
    control[i] = uniform(seed, limited ? range[0] : -1, limited ? range[1] : 1);
  }
}

// Start states where things happen: the model has come down to the floor and moves,
// and each rollout finds it a little different.
static void random_starts(Problem* problem, mjData* d, uint64_t* seed) {
  const mjModel* m = problem->m;
  double* settled = numbers(problem->nstate);
  double* push = numbers((size_t)m->nv);
  mj_resetData(m, d);
  for (int step = 0; step < NSETTLE; step++) {
    random_control(m, d->ctrl, seed);
    mj_step(m, d);
  }
  mj_getState(m, d, settled, mjSTATE_FULLPHYSICS);
  for (size_t i = 0; i < problem->work.nbatch; i++) {
    mj_setState(m, d, settled, mjSTATE_FULLPHYSICS);
    for (size_t dof = 0; dof < (size_t)m->nv; dof++) {
      push[dof] = uniform(seed, -0.2, 0.2);
      d->qvel[dof] += push[dof];
    }
    mj_integratePos(m, d->qpos, push, 0.01);
    mj_getState(m, d, problem->start + i * problem->nstate, mjSTATE_FULLPHYSICS);
  }
  free(settled);
  free(push);
}

static Problem load(const char* suite, const Workload* work) {
  char path[4096], error[1000];
  snprintf(path, sizeof(path), "%s/%s.xml", suite, work->model);
  mjModel* m = mj_loadXML(path, NULL, error, sizeof(error));
  mjData* d = m ? mj_makeData(m) : NULL;
  if (!d) {
    fail("cannot load %s: %s", path, m ? "no memory" : error);
  }
  Problem problem = {.work = *work, .m = m};
  problem.nstate = rollout_mujoco_nstate(m);
  problem.ncontrol = (size_t)m->nu;
  problem.nsensordata = (size_t)m->nsensordata;
  const size_t nrow = work->nbatch * work->nstep;
  problem.start = numbers(work->nbatch * problem.nstate);
  problem.control = numbers(nrow * problem.ncontrol);
  uint64_t seed = 1;
  random_starts(&problem, d, &seed);
  for (size_t row = 0; row < nrow; row++) {
    random_control(m, problem.control + row * problem.ncontrol, &seed);
  }
  mj_deleteData(d);
  return problem;
}

static void unload(Problem* problem) {
  mj_deleteModel(problem->m);
  free(problem->start);
  free(problem->control);
}

#endif  // BENCH_PROBLEM_H_
