// Compiles against every release: each helper of both headers is used once.

#include "rollout.h"
#include "rollout_mujoco.h"

int rollout_headers_use(const mjModel* m, mjData* d);

int rollout_headers_use(const mjModel* m, mjData* d) {
  RolloutEngine engine = rollout_mujoco_engine();
  RolloutModel model = rollout_mujoco_model(m);
  RolloutData data = rollout_mujoco_data(d);
  RolloutError error = rollout_error();
  RolloutRequest request = rollout_request();
  size_t nstate = rollout_mujoco_nstate(m);
  request.engine = &engine;
  request.models = &model;
  request.data = &data;
  request.initial_state = rollout_rows(d->qpos, 1, nstate);
  request.initial_warmstart = rollout_shared(d->qacc, nstate);
  request.control = rollout_steps(d->ctrl, 1, 1, nstate);
  request.control = rollout_shared_steps(d->ctrl, 1, nstate);
  request.state = rollout_output(d->qpos, nstate);
  return (int)rollout_run(NULL, &request, &error);
}
