// Plugins for the tests, one with state in the state vector and one with memory of its own.

#include <stdlib.h>

#include <mujoco/mujoco.h>

// A spring between a slider and the place where the slider has been on average. The place
// is the plugin's state, so a rollout that does not carry it gives other numbers.

static int follower_states(const mjModel* m, int instance) {
  (void)m, (void)instance;
  return 1;
}

static int follower_init(const mjModel* m, mjData* d, int instance) {
  (void)m, (void)d, (void)instance;
  return 0;
}

static void follower_reset(const mjModel* m, mjtNum* state, void* data, int instance) {
  (void)m, (void)data, (void)instance;
  state[0] = 0;
}

static void follower_compute(const mjModel* m, mjData* d, int instance, int capability) {
  mjtNum stiffness = atof(mj_getPluginConfig(m, instance, "stiffness"));
  mjtNum place = d->plugin_state[m->plugin_stateadr[instance]];
  (void)capability;
  d->qfrc_passive[0] += stiffness * (place - d->qpos[0]);
}

static void follower_advance(const mjModel* m, mjData* d, int instance) {
  mjtNum* place = d->plugin_state + m->plugin_stateadr[instance];
  *place += 0.1 * (d->qpos[0] - *place);
}

// A motor that grows weaker with each step since the last reset. The steps are counted in
// memory of the plugin's own, so only a reset makes rollouts independent of each other.

static int tiring_states(const mjModel* m, int instance) {
  (void)m, (void)instance;
  return 0;
}

static int tiring_init(const mjModel* m, mjData* d, int instance) {
  (void)m;
  d->plugin_data[instance] = (uintptr_t)calloc(1, sizeof(int));
  return d->plugin_data[instance] ? 0 : -1;
}

static void tiring_destroy(mjData* d, int instance) {
  free((void*)d->plugin_data[instance]);
  d->plugin_data[instance] = 0;
}

static void tiring_reset(const mjModel* m, mjtNum* state, void* data, int instance) {
  (void)m, (void)state, (void)instance;
  *(int*)data = 0;
}

static void tiring_compute(const mjModel* m, mjData* d, int instance, int capability) {
  mjtNum force = atof(mj_getPluginConfig(m, instance, "force"));
  (void)capability;
  d->qfrc_passive[0] += force / (1 + *(int*)d->plugin_data[instance]);
}

static void tiring_advance(const mjModel* m, mjData* d, int instance) {
  (void)m;
  ++*(int*)d->plugin_data[instance];
}

// Runs when the library is loaded.
__attribute__((constructor)) static void register_plugins(void) {
  static const char* const follower_attributes[] = {"stiffness"};
  static const char* const tiring_attributes[] = {"force"};
  mjpPlugin plugin;
  mjp_defaultPlugin(&plugin);
  plugin.capabilityflags = mjPLUGIN_PASSIVE;
  plugin.needstage = mjSTAGE_POS;
  plugin.nattribute = 1;

  plugin.name = "rollout.tests.follower";
  plugin.attributes = follower_attributes;
  plugin.nstate = follower_states;
  plugin.init = follower_init;
  plugin.reset = follower_reset;
  plugin.compute = follower_compute;
  plugin.advance = follower_advance;
  mjp_registerPlugin(&plugin);

  plugin.name = "rollout.tests.tiring";
  plugin.attributes = tiring_attributes;
  plugin.nstate = tiring_states;
  plugin.init = tiring_init;
  plugin.destroy = tiring_destroy;
  plugin.reset = tiring_reset;
  plugin.compute = tiring_compute;
  plugin.advance = tiring_advance;
  mjp_registerPlugin(&plugin);
}
