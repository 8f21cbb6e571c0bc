// rollout_mujoco.h: what rollout.h needs to know of MuJoCo, from the host's own
// mujoco.h. Header-only; C99 and C++11 (MuJoCo's own headers need C++17 from 3.2.3
// on). MuJoCo 3.0.0 to 4.0.0.
//
// The library itself neither links MuJoCo nor reads any of its structs, so one
// librollout serves every release. What is read here is compiled into the host,
// which has the headers that fit its libmujoco; the library refuses an engine
// whose headers and libmujoco are of different releases.
//
//   RolloutEngine engine = rollout_mujoco_engine();
//   RolloutModel model = rollout_mujoco_model(m);      // m: const mjModel*
//   RolloutData data = rollout_mujoco_data(d);         // d: mjData* made from m
//
// The descriptions cost little and hold addresses: make a new one when a model or
// data was made anew, when a model was recompiled, when the model's plugins or its
// sleep flag have changed, and when an engine thread pool was bound to a data. One
// model serves any number of data. The host must not change a model, or use a data,
// while a request uses it.
//
// A data must have been made from the model that it is used with, or from one that
// differs in numbers only (masses, sizes, gains, ...): a data of other sizes is
// refused, and one of another structure where MuJoCo lets it be seen (from 3.3.1 on).
// With plugins, whose settings a data carries, it must be the model itself or a copy.
//
// Callbacks of the host (mjcb_control and the like) are called on every thread that
// takes part. An error inside MuJoCo (mju_error), in a callback too, ends the rollout
// that it came from by a jump (longjmp) over the frames in between: in a callback let
// there be nothing then that must be undone, such as a C++ destructor. Errors and
// warnings of rollouts do not reach the handlers of the host (mju_user_error,
// mju_user_warning, mju_setLogHandler), which get all others, as before; other log
// messages do.

#ifndef ROLLOUT_MUJOCO_H_
#define ROLLOUT_MUJOCO_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <mujoco/mjxmacro.h>
#include <mujoco/mujoco.h>

#include "rollout.h"

// MuJoCo's handlers of the calling thread. Every release exports these functions and no
// header declares them. A libmujoco without them has only the process's handlers.
#ifdef __cplusplus
extern "C" {
#endif
#if mjVERSION_HEADER >= 3010000
__attribute__((weak)) mjfLogHandler _mjPRIVATE_setTlsLogHandler(mjfLogHandler handler);
__attribute__((weak)) mjfLogHandler _mjPRIVATE_getGlobalLogHandler(void);
#else
typedef void (*rollout_mujoco_handler)(const char*);
__attribute__((weak)) rollout_mujoco_handler _mjPRIVATE__get_tls_error_fn(void);
__attribute__((weak)) void _mjPRIVATE__set_tls_error_fn(rollout_mujoco_handler handler);
__attribute__((weak)) rollout_mujoco_handler _mjPRIVATE__get_tls_warning_fn(void);
__attribute__((weak)) void _mjPRIVATE__set_tls_warning_fn(rollout_mujoco_handler handler);
#endif
#ifdef __cplusplus
}
#endif

// Where MuJoCo looks for the handlers of its errors and warnings.
static inline RolloutHooks rollout_mujoco_hooks(void) {
  RolloutHooks hooks;
  memset(&hooks, 0, sizeof(hooks));
  // The casts only forget what a handler's argument points to.
#if mjVERSION_HEADER >= 3010000
  if (_mjPRIVATE_setTlsLogHandler && _mjPRIVATE_getGlobalLogHandler) {
    hooks.exchange_thread_log = (RolloutHandler(*)(RolloutHandler))_mjPRIVATE_setTlsLogHandler;
    hooks.get_process_log = (RolloutHandler(*)(void))_mjPRIVATE_getGlobalLogHandler;
  }
  hooks.exchange_process_log = (RolloutHandler(*)(RolloutHandler))mju_setLogHandler;
  hooks.log_level = (uint32_t)offsetof(mjLogMessage, level);
  hooks.log_text = (uint32_t)offsetof(mjLogMessage, subject);
  hooks.log_function = (uint32_t)offsetof(mjLogMessage, func);
  hooks.log_error = mjLOG_ERROR;
  hooks.log_warning = mjLOG_WARNING;
#else
  if (_mjPRIVATE__get_tls_error_fn && _mjPRIVATE__set_tls_error_fn &&
      _mjPRIVATE__get_tls_warning_fn && _mjPRIVATE__set_tls_warning_fn) {
    hooks.get_thread_error = (RolloutHandler(*)(void))_mjPRIVATE__get_tls_error_fn;
    hooks.set_thread_error = (void (*)(RolloutHandler))_mjPRIVATE__set_tls_error_fn;
    hooks.get_thread_warning = (RolloutHandler(*)(void))_mjPRIVATE__get_tls_warning_fn;
    hooks.set_thread_warning = (void (*)(RolloutHandler))_mjPRIVATE__set_tls_warning_fn;
  }
  hooks.process_error = (RolloutHandler*)&mju_user_error;
  hooks.process_warning = (RolloutHandler*)&mju_user_warning;
#endif
  // An error that leaves a collision function leaves a pointer to its stack behind, for
  // the next step of a flex on the same thread.
#if mjVERSION_HEADER >= 3009000 && mjVERSION_HEADER < 3014000
  hooks.flags = ROLLOUT_HOOKS_RETIRE_THREAD;
#endif
  return hooks;
}

// The table of MuJoCo's functions and of the state specs of this release.
static inline RolloutEngine rollout_mujoco_engine(void) {
  RolloutEngine engine;
  memset(&engine, 0, sizeof(engine));
  engine.size = sizeof(engine);
  engine.version = ROLLOUT_ENGINE_VERSION;
  engine.number_size = sizeof(mjtNum);
  engine.header_release = mjVERSION_HEADER;
  engine.library_release = mj_version();
  // The casts only forget what the pointers point to, and the sign of a spec.
  engine.step = (void (*)(const void*, void*))mj_step;
  engine.state_size = (int (*)(const void*, uint32_t))mj_stateSize;
  engine.get_state = (void (*)(const void*, const void*, double*, uint32_t))mj_getState;
  engine.set_state = (void (*)(const void*, void*, const double*, uint32_t))mj_setState;
  engine.reset = (void (*)(const void*, void*))mj_resetData;
  engine.full_physics = mjSTATE_FULLPHYSICS;
  engine.user = mjSTATE_USER;
  engine.warmstart = mjSTATE_WARMSTART;
  engine.ctrl = mjSTATE_CTRL;
  engine.model_inputs = mjSTATE_EQ_ACTIVE | mjSTATE_MOCAP_POS | mjSTATE_MOCAP_QUAT;
  engine.diverged_warnings =
      (1u << mjWARN_BADQPOS) | (1u << mjWARN_BADQVEL) | (1u << mjWARN_BADQACC);
  engine.warning_text = mju_warningText;
  engine.hooks = rollout_mujoco_hooks();
  return engine;
}

// Numbers in a start state and in a row of the state output.
static inline size_t rollout_mujoco_nstate(const mjModel* m) {
  return (size_t)mj_stateSize(m, mjSTATE_FULLPHYSICS);
}

// Takes one more number into a signature (the step of the hash FNV-1a).
static inline uint64_t rollout_mujoco_mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * UINT64_C(1099511628211);
}

// The signature of a layout: where each array of a data begins, the size of its
// arena, and which plugins it was made for. It can be made from a data and from the
// model that the data belongs to, and is equal for all models of one shape.
// MuJoCo's own signature (from 3.3.1) does not serve here: it is the same for models
// with different sizes of user data.

// Where mj_makeData puts the arrays of a data of this model: one behind the other,
// each at a multiple of 64 bytes (so in every release from 3.0.0 to 4.0.0; a test
// compares it with the data).
static inline uint64_t rollout_mujoco_model_layout(const mjModel* m) {
  uint64_t hash = (uint64_t)m->narena;
  uint64_t offset = 0;
  int i;
#ifdef MJDATA_POINTERS_PREAMBLE
  MJDATA_POINTERS_PREAMBLE(m)
  (void)nv;
#endif
#pragma push_macro("X")
#undef X
#define X(type, name, nr, nc)              \
  offset = (offset + 63) / 64 * 64;        \
  hash = rollout_mujoco_mix(hash, offset); \
  offset += (uint64_t)sizeof(type) * (uint64_t)(m->nr) * (uint64_t)(nc);
  MJDATA_POINTERS
#undef X
#pragma pop_macro("X")
  for (i = 0; i < (int)m->nplugin; i++) {
    hash = rollout_mujoco_mix(hash, (uint64_t)m->plugin[i]);
  }
  return hash;
}

// Where the arrays of this data are.
static inline uint64_t rollout_mujoco_data_layout(const mjData* d) {
  uint64_t hash = (uint64_t)d->narena;
  int i;
#pragma push_macro("X")
#undef X
#define X(type, name, nr, nc) \
  hash = rollout_mujoco_mix(hash, (uint64_t)((uintptr_t)d->name - (uintptr_t)d->buffer));
  MJDATA_POINTERS
#undef X
#pragma pop_macro("X")
  for (i = 0; i < d->nplugin; i++) {
    hash = rollout_mujoco_mix(hash, (uint64_t)d->plugin[i]);
  }
  return hash;
}

// The signature of a model's structure: MuJoCo's own where there is one (0 in a model
// that was loaded from MJB), else made of the kinematic tree.
static inline uint64_t rollout_mujoco_structure(const mjModel* m) {
#if mjVERSION_HEADER >= 331
  return m->signature;
#else
  uint64_t hash = 1;
  int i;
  for (i = 0; i < (int)m->nbody; i++) {
    hash = rollout_mujoco_mix(hash, (uint64_t)m->body_parentid[i]);
    hash = rollout_mujoco_mix(hash, (uint64_t)m->body_dofnum[i]);
  }
  return hash;
#endif
}

// What the library needs to know of a model. NULL gives a description that the
// library refuses.
static inline RolloutModel rollout_mujoco_model(const mjModel* m) {
  RolloutModel model;
  memset(&model, 0, sizeof(model));
  if (!m) {
    return model;
  }
  model.model = m;
  model.layout = rollout_mujoco_model_layout(m);
  model.structure = rollout_mujoco_structure(m);
  model.nsensordata = (size_t)m->nsensordata;
  model.nplugin = (size_t)m->nplugin;
  // A plugin may keep state of its own, which mj_resetData makes anew.
  if (m->nplugin > 0) {
    model.flags |= ROLLOUT_MODEL_HIDDEN_STATE;
  }
#if mjVERSION_HEADER >= 340
  // Which trees are asleep is not part of the state.
  if (m->opt.enableflags & mjENBL_SLEEP) {
    model.flags |= ROLLOUT_MODEL_HIDDEN_STATE;
  }
#endif
  return model;
}

// What the library needs to know of a data. NULL gives a description that the
// library refuses.
static inline RolloutData rollout_mujoco_data(mjData* d) {
  RolloutData data;
  memset(&data, 0, sizeof(data));
  if (!d) {
    return data;
  }
  data.data = d;
  data.sensordata = d->sensordata;
  data.warning_number = &d->warning[0].number;
  data.nwarning = mjNWARNING;
  data.layout = rollout_mujoco_data_layout(d);
#if mjVERSION_HEADER >= 331
  data.structure = d->signature;
#endif
  data.nplugin = (size_t)d->nplugin;
  if (d->threadpool) {
    data.flags |= ROLLOUT_DATA_ENGINE_THREADS;
  }
  return data;
}

#endif  // ROLLOUT_MUJOCO_H_
