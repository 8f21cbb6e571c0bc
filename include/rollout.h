// rollout: thousands of simulator rollouts on a persistent pool of threads.
//
// This file is generated (cargo xtask header); it is also the manual. A host
//
//   1. makes a pool once:            rollout_pool_create(...)
//   2. describes what to simulate:   an engine, models, data. For MuJoCo the header
//                                    rollout_mujoco.h fills these in.
//   3. fills a RolloutRequest:       start states, controls, where results go
//   4. runs it, again and again:     rollout_run(pool, &request, &error)
//      or hands it over:             rollout_submit(pool, &request, &ticket, &error)
//   5. ends the pool:                rollout_pool_destroy(pool)
//
// or uses the pool for tasks of its own: rollout_pool_schedule and what follows it.
//
// With MuJoCo, for one model m and two data d0, d1 made from it:
//
//   RolloutPool* pool = NULL;
//   RolloutError error = rollout_error();
//   if (rollout_pool_create(ROLLOUT_NTHREAD_DEFAULT, &pool, &error)) puts(error.text);
//
//   size_t nstate = rollout_mujoco_nstate(m);
//   RolloutEngine engine = rollout_mujoco_engine();
//   RolloutModel model = rollout_mujoco_model(m);
//   RolloutData data[2] = {rollout_mujoco_data(d0), rollout_mujoco_data(d1)};
//   RolloutRequest request = rollout_request();
//   request.engine = &engine;
//   request.models = &model;
//   request.nmodel = 1;
//   request.data = data;
//   request.ndata = 2;
//   request.nbatch = 1000;
//   request.nstep = 100;
//   request.initial_state = rollout_shared(start, nstate);
//   request.control = rollout_steps(control, 1000, 100, m->nu);
//   request.state = rollout_output(state, 1000 * 100 * nstate);
//   if (rollout_run(pool, &request, &error)) puts(error.text);
//
// With other work to do meanwhile, and 5 ms for the rollouts:
//
//   RolloutTicket* ticket = NULL;
//   request.budget_ns = 5000000;
//   if (rollout_submit(pool, &request, &ticket, &error)) puts(error.text);
//   ...
//   if (rollout_ticket_wait(ticket, -1, &error)) puts(error.text);
//   rollout_ticket_release(ticket, NULL);
//
// Link with -lrollout, or with librollout.a -lpthread -ldl -lm.
//
// Rules that hold for every function, unless it says otherwise:
//
// * Results. A call that can fail returns a RolloutStatus, 0 for success; what is
//   named under "Errors" has the prefix ROLLOUT_STATUS_. Outputs are written only
//   on success (and those of a request unless it is refused). No call ends the process:
//   an error inside MuJoCo (mju_error) ends the rollout that it came from and no other
//   (see RolloutHooks).
// * Threads. Every function may be called from any thread, and on one pool from
//   several threads at once.
// * Forks. A pool works in a child after fork() too, whatever other threads were at: it
//   begins anew there, with a count of 0, and with as many threads, which are started when
//   they are first needed (NO_THREAD where the system refuses one). What was in flight or
//   scheduled is the parent's: whoever waits for it in the child gets FORKED, and whoever
//   destroys a pool there waits for none of the parent's threads. A data that the parent
//   had in a request in flight is reset before a request of the child uses it (`reset` must
//   be able to do that wherever a step was interrupted). In a callback of a rollout, and in
//   a task, the child should end or execute another program. It may return where the
//   thread is one that the host has made: the request ends with FORKED. A thread of the
//   pool's ends there when its task returns, and with it a process that has no other one;
//   from a rollout it must not return.
// * Ownership. What the host passes stays the host's. The library keeps no pointer
//   of the host's after a call, but for tasks that have not run yet and requests that
//   were submitted and are not done (rollout_submit says which pointers).
// * The floating-point mode of the calling thread is what the engine runs in, on every
//   thread (see rollout_run), and is the same after a call.
// * Numbers are double, counted in numbers, not in bytes; arrays are in C order.
// * NULL is refused with NULL_POINTER where something is needed, and is fine for
//   arrays of length 0 and for error objects.
// * Structs that begin with a field `size` grow at their end in later versions.

#ifndef ROLLOUT_H_
#define ROLLOUT_H_




#include <stddef.h>
#include <stdint.h>
#include <string.h>


// Bytes of the text in a `RolloutError`, its end included.
#define ROLLOUT_ERROR_TEXT_SIZE 488

// For rollout_pool_create: as many threads as the process may keep busy
// (rollout_default_nthread).
#define ROLLOUT_NTHREAD_DEFAULT (-1)

// Flag of a request that is submitted: the thread that submits it waits for the ticket
// next (rollout_ticket_wait) and works itself. The pool's threads are then woken only if
// there is enough to do for them, as in rollout_run, which saves a small request the
// microseconds of a wake-up. If nobody waits, it may never begin.
#define ROLLOUT_REQUEST_ATTENDED (1 << 0)

// The version of the ABI that this header declares. A host that loads the
// library at run time compares it with `rollout_abi_version()`.
#define ROLLOUT_ABI_VERSION 1

// The version of the meaning of the engine table.
#define ROLLOUT_ENGINE_VERSION 1

// Flag of a model: its data have state outside the state vector, which a reset
// restores (MuJoCo: sleep is enabled, or there are plugins). The data is then
// reset before every rollout.
#define ROLLOUT_MODEL_HIDDEN_STATE (1 << 0)

// Flag of a model: its data have state outside the state vector, which not even
// a reset restores. Such a model is refused.
#define ROLLOUT_MODEL_UNRESETTABLE_STATE (1 << 1)

// Flag of a data: an engine thread pool is attached to it (MuJoCo:
// mju_bindThreadPool). Such a data is refused.
#define ROLLOUT_DATA_ENGINE_THREADS (1 << 0)

// Flag of the hooks: a thread that saw an error must not use any data any more, since
// the engine has left something behind in its thread-local memory (MuJoCo 3.9.0 to
// 3.13.0). A pool's thread is then replaced by a new one; for a thread of the host's a
// new one does the work, in this and in each later request, which takes some tens of
// microseconds.
#define ROLLOUT_HOOKS_RETIRE_THREAD (1 << 0)

// What a call came to. The numbers are grouped and are never used again for
// something else: 0 success; 1 to 99 the request was run, but look at the
// outcomes; 100 to 199 an argument was refused and nothing has happened; 200 to
// 299 not now or not here; 300 to 399 the system refused; 400 to 499 something
// panicked; 500 to 599 the engine failed.
enum RolloutStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Success.
  ROLLOUT_STATUS_OK = 0,
  // All rollouts were run; at least one ended with an engine error. In the error
  // object `index` is the first of them, `text` the engine's reason for it in the
  // engine's own words, and `nfailed` their number.
  ROLLOUT_STATUS_ROLLOUTS_FAILED = 1,
  // The request was cancelled, by rollout_ticket_cancel or by the end of its pool,
  // before all of its rollouts had ended; the outcomes say what was done. `nfailed` and
  // `index` as for ROLLOUTS_FAILED.
  ROLLOUT_STATUS_CANCELLED = 2,
  // The request's time was up before all of its rollouts had ended; the outcomes say
  // what was done. `nfailed` and `index` as for ROLLOUTS_FAILED.
  ROLLOUT_STATUS_OUT_OF_TIME = 3,
  // A pointer is NULL where something must be read or written.
  ROLLOUT_STATUS_NULL_POINTER = 100,
  // A pointer is not aligned for what it points to.
  ROLLOUT_STATUS_MISALIGNED = 101,
  // A count, length or size is not the one that the request needs, or the size
  // field of a struct is not its sizeof.
  ROLLOUT_STATUS_WRONG_SIZE = 102,
  // A product of sizes does not fit the address space.
  ROLLOUT_STATUS_OVERFLOW = 103,
  // A list that needs at least one element is empty.
  ROLLOUT_STATUS_EMPTY_LIST = 104,
  // A state spec has bits that are unknown or not allowed there.
  ROLLOUT_STATUS_BAD_SPEC = 105,
  // The engine table is incomplete or contradicts itself.
  ROLLOUT_STATUS_BAD_ENGINE = 106,
  // A model and a data, or two models, do not belong together.
  ROLLOUT_STATUS_LAYOUT_MISMATCH = 107,
  // The same data stands twice in one request.
  ROLLOUT_STATUS_DUPLICATE_DATA = 108,
  // Two arrays of which one is written share memory.
  ROLLOUT_STATUS_OVERLAP = 109,
  // An option or flag has a value without a meaning.
  ROLLOUT_STATUS_BAD_OPTION = 110,
  // A model or data that the library cannot run with its promises kept.
  ROLLOUT_STATUS_UNSUPPORTED = 111,
  // A data is in use by another request in flight, in any pool of this library
  // (of this copy of it, should a process have loaded two).
  ROLLOUT_STATUS_BUSY = 200,
  // The wait could never end: it was asked for inside the same pool, by one of its
  // tasks or in a callback of one of its rollouts, or no thread is left or was ever
  // there to do what is waited for.
  ROLLOUT_STATUS_WOULD_DEADLOCK = 201,
  // The request is not done yet. Nothing is lost: it goes on, and can be waited for
  // again.
  ROLLOUT_STATUS_TIMEOUT = 202,
  // It belongs to the process that this one was forked from: a request that was in
  // flight then, or tasks. Nobody works on it here.
  ROLLOUT_STATUS_FORKED = 203,
  // The system refused to start a thread. From rollout_run and rollout_ticket_wait: one
  // that was needed after an engine error (ROLLOUT_HOOKS_RETIRE_THREAD), or in a forked
  // child one of the pool's. The rollouts that nobody could run are "not started" in
  // their outcomes, or "cancelled" if they had begun; the others have been run.
  ROLLOUT_STATUS_NO_THREAD = 300,
  // A part of the library panicked: a fault of the library. Rollouts that it
  // hit are "not started" in their outcomes, though rows may have been written;
  // the others have been run.
  ROLLOUT_STATUS_PANIC = 400,
  // A scheduled task panicked (a Rust host's; a C task cannot).
  ROLLOUT_STATUS_TASK_PANICKED = 401,
  // An error inside the engine, from rollout_guard; `text` in the error object is the
  // engine's reason.
  ROLLOUT_STATUS_ENGINE_ERROR = 500,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum RolloutStatus RolloutStatus;
#else
typedef int32_t RolloutStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a rollout ended. The numbers are grouped by who ended it and are never used
// again for something else.
enum RolloutOutcomeStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // All steps were made without a warning.
  ROLLOUT_OUTCOME_STATUS_COMPLETED = 0,
  // The engine warned during a step; the rollout ended there.
  ROLLOUT_OUTCOME_STATUS_WARNED = 1,
  // The engine warned of a bad position, velocity or acceleration: the
  // simulation diverged. MuJoCo has then reset the state by itself, unless that
  // is disabled.
  ROLLOUT_OUTCOME_STATUS_DIVERGED = 2,
  // The engine reported an error during a step.
  ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR = 10,
  // The rollout was not run.
  ROLLOUT_OUTCOME_STATUS_NOT_STARTED = 30,
  // The request was cancelled in the middle of the rollout.
  ROLLOUT_OUTCOME_STATUS_CANCELLED = 31,
  // The request's time was up in the middle of the rollout.
  ROLLOUT_OUTCOME_STATUS_OUT_OF_TIME = 32,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum RolloutOutcomeStatus RolloutOutcomeStatus;
#else
typedef int32_t RolloutOutcomeStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What the output rows of a rollout hold that are not valid: from the step on that
// warned or failed, or before which it was cancelled or out of time.
enum RolloutFill
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // NaN: no such row can be taken for a valid one.
  ROLLOUT_FILL_NAN = 0,
  // After a warning what mujoco.rollout gives: the state after the engine's
  // automatic reset. Otherwise the last valid row; if there is none, the start
  // state and zero sensordata.
  ROLLOUT_FILL_HOLD = 1,
  // What was there before.
  ROLLOUT_FILL_UNTOUCHED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum RolloutFill RolloutFill;
#else
typedef int32_t RolloutFill;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Tasks of one caller on a pool that others use too, with a count of their own: what is
// scheduled on a group is counted there, and not in the pool's count. The host owns it:
// made by `rollout_group_create`, ended by `rollout_group_destroy`. Between the two, any
// number of threads may use it at once.
//
// A group may outlive its pool. A task that is scheduled then never runs, and a wait for
// it gives WOULD_DEADLOCK.
typedef struct RolloutGroup RolloutGroup;

// A pool of threads. The host owns it: made by `rollout_pool_create`, ended by
// `rollout_pool_destroy`. Between the two, any number of threads may use it at
// once.
typedef struct RolloutPool RolloutPool;

// A request in flight, and later its result. The host owns it: made by `rollout_submit`,
// ended by `rollout_ticket_release`. Between the two, any number of threads may use it at
// once, also when its pool has been destroyed.
//
// The request is done when all of its rollouts have ended, or when it was ended early and
// each thread has ended the step that it was in. From then on the library does not use
// its arrays, models and data.
typedef struct RolloutTicket RolloutTicket;

// What went wrong, in words. The host owns it, on the stack or elsewhere, sets
// `size` once (`rollout_error()` does) and passes it to any number of calls, one
// after the other; each call sets the other fields. One thread at a time may use
// it. Every function accepts NULL instead.
typedef struct RolloutError {
  // sizeof(RolloutError); set by the host.
  size_t size;
  // The status that the call returned.
  int32_t status;
  // Rollouts that ended with an engine error.
  int32_t nfailed;
  // The rollout or slot that the error is about, or -1.
  int64_t index;
  // The reason: for a refusal it names the argument at fault, for ROLLOUTS_FAILED it
  // is what the engine said. Ends in NUL, empty on success.
  char text[ROLLOUT_ERROR_TEXT_SIZE];
} RolloutError;

// A task: `function(user)` runs on one of the pool's threads. It must return:
// neither a C++ exception nor a longjmp may leave it.
typedef void (*RolloutTask)(void *user);

// A function that an engine calls with an error or a warning. What it is given is up
// to the engine: a text (`const char*`, MuJoCo to 3.9.0) or a struct (mjLogMessage).
typedef void (*RolloutHandler)(const void *message);

// The places where an engine looks for the handlers of its errors and warnings, so
// that an error ends a rollout and not the process, and a warning is told in the
// outcome and not in a log file. For MuJoCo from rollout_mujoco_engine(). All zero for
// an engine that never fails or that reports errors by `take_error`; MuJoCo without
// hooks ends the process at an error, and prints its warnings, as it does without this
// library: no outcome tells of it then.
//
// There are two kinds of handlers, those that take a text (MuJoCo to 3.9.0) and those
// that take a log message (from 3.10.0), and for each kind the handlers of a thread,
// which the engine asks first, and those of the process. An engine has one kind, and
// all functions of a group or none. With the thread's handlers those of the process
// are not touched. An error handler leaves by a jump (longjmp) over the engine's
// frames, so these must be such that nothing is to be done when they are left, as C's
// are; a warning handler returns.
typedef struct RolloutHooks {
  // Sets the calling thread's log handler and returns the one before; NULL stands
  // for none (_mjPRIVATE_setTlsLogHandler).
  RolloutHandler (*exchange_thread_log)(RolloutHandler handler);
  // The process's log handler, never NULL (_mjPRIVATE_getGlobalLogHandler). It gets
  // the messages that are neither errors nor warnings. Given together with
  // `exchange_thread_log`.
  RolloutHandler (*get_process_log)(void);
  // Sets the process's log handler and returns the one before, never NULL
  // (mju_setLogHandler).
  RolloutHandler (*exchange_process_log)(RolloutHandler handler);
  // The calling thread's error handler (_mjPRIVATE__get_tls_error_fn). Given
  // together with the next three.
  RolloutHandler (*get_thread_error)(void);
  // Sets it (_mjPRIVATE__set_tls_error_fn).
  void (*set_thread_error)(RolloutHandler handler);
  // The calling thread's warning handler (_mjPRIVATE__get_tls_warning_fn).
  RolloutHandler (*get_thread_warning)(void);
  // Sets it (_mjPRIVATE__set_tls_warning_fn).
  void (*set_thread_warning)(RolloutHandler handler);
  // The variable with the process's error handler (&mju_user_error). Given together
  // with `process_warning`.
  RolloutHandler *process_error;
  // The variable with the process's warning handler (&mju_user_warning).
  RolloutHandler *process_warning;
  // Where in a log message its level is, an int, in bytes. This and the next four are
  // 0 without log handlers.
  uint32_t log_level;
  // Where its text begins, which ends in NUL.
  uint32_t log_text;
  // Where the pointer to the name of the function is that it comes from, or NULL.
  uint32_t log_function;
  // The level of an error (mjLOG_ERROR).
  int32_t log_error;
  // The level of a warning (mjLOG_WARNING).
  int32_t log_warning;
  // ROLLOUT_HOOKS_RETIRE_THREAD, or 0.
  uint32_t flags;
} RolloutHooks;

// A table of functions that steps a simulation, with MuJoCo's shapes and
// meanings: mj_step, mj_stateSize, mj_getState, mj_setState and mj_resetData fit
// it as they are. The functions are called from several threads at once, each
// with another data. They must return, but for a jump out of the handler of an error
// (see `hooks`), and no exception may leave them.
//
// A state spec is a set of bits, each for one component of the state. Their
// values differ between engines and between releases of MuJoCo, so the host
// states those of the release it has.
typedef struct RolloutEngine {
  // The sizeof of this struct; set by the host.
  size_t size;
  // ROLLOUT_ENGINE_VERSION.
  uint32_t version;
  // Bytes of one number: 8. A single precision engine is refused.
  uint32_t number_size;
  // The release whose headers the host was compiled with (mjVERSION_HEADER);
  // any number where the engine has no releases.
  int32_t header_release;
  // The release that is loaded (mj_version()). Must be equal to
  // `header_release`, since addresses were taken from the headers.
  int32_t library_release;
  // Advances `data` by one time step of `model`, and leaves in the data's
  // sensor values those of the state before the step (mj_step).
  void (*step)(const void *model, void *data);
  // The numbers in the components named by `spec` (mj_stateSize).
  int (*state_size)(const void *model, uint32_t spec);
  // Writes the components named by `spec`, in the order of their bits, to
  // `state` (mj_getState).
  void (*get_state)(const void *model, const void *data, double *state, uint32_t spec);
  // Sets the components named by `spec`, in the order of their bits, from
  // `state` (mj_setState).
  void (*set_state)(const void *model, void *data, const double *state, uint32_t spec);
  // Sets `data` to the initial state of `model`, as if it had just been made
  // (mj_resetData).
  void (*reset)(const void *model, void *data);
  // How an engine that is not MuJoCo reports an error; NULL if it has no such
  // report. Asked after each of the calls above but state_size, on the thread that
  // made it. Returns 0 if it succeeded; otherwise another value, and then writes
  // the reason to `text`, at most `size` bytes with the NUL that ends it, and
  // forgets the error.
  int (*take_error)(void *data, char *text, size_t size);
  // Spec of the state that a rollout starts from and records
  // (mjSTATE_FULLPHYSICS).
  uint32_t full_physics;
  // Spec of all inputs (mjSTATE_USER).
  uint32_t user;
  // Spec of the solver's warm start (mjSTATE_WARMSTART); 0 if there is none.
  uint32_t warmstart;
  // Spec of the controls, a part of `user` (mjSTATE_CTRL).
  uint32_t ctrl;
  // Spec of the inputs whose defaults are not zero but come from the model, a
  // part of `user` (mjSTATE_EQ_ACTIVE | mjSTATE_MOCAP_POS | mjSTATE_MOCAP_QUAT).
  uint32_t model_inputs;
  // The kinds of warning that mean divergence: bit k stands for kind k
  // (mjWARN_BADQPOS, mjWARN_BADQVEL, mjWARN_BADQACC).
  uint32_t diverged_warnings;
  // The text of a warning, from its kind and the number that stands before its
  // counter (mju_warningText); NULL if there are no texts. It is read before the
  // next call on the same thread.
  const char *(*warning_text)(int kind, size_t info);
  // Where to set handlers of errors and warnings.
  struct RolloutHooks hooks;
} RolloutEngine;

// What one of the pool's threads has done since the pool was made. The layout of this
// struct is fixed.
typedef struct RolloutWorkerStats {
  // Nanoseconds that it has worked, on tasks and on rollouts.
  uint64_t busy_ns;
  // Nanoseconds that it has not. The two add up to the age of the pool, in a child after
  // fork() since its threads were started there.
  uint64_t idle_ns;
  // Tasks that it has run to their end.
  uint64_t tasks;
  // Rollouts that have ended on it.
  uint64_t rollouts;
  // Steps that it has made, those that failed included.
  uint64_t steps;
} RolloutWorkerStats;

// What a host says about one model; for MuJoCo from rollout_mujoco_model(). The
// layout of this struct is fixed.
typedef struct RolloutModel {
  // The model (const mjModel*). Only read, by all threads at once; it must not
  // change while a request uses it.
  const void *model;
  // Signature of the layout of the data that belong to this model. Models of
  // one request have equal signatures.
  uint64_t layout;
  // Signature of the structure that its data are made for besides their layout
  // (which body is whose child, and so on), or 0 if it is not known. Signatures
  // of one request that are known are equal.
  uint64_t structure;
  // Numbers in the data's sensor values (mjModel.nsensordata).
  size_t nsensordata;
  // Number of plugin instances (mjModel.nplugin).
  size_t nplugin;
  // ROLLOUT_MODEL_HIDDEN_STATE, ROLLOUT_MODEL_UNRESETTABLE_STATE, or 0.
  uint32_t flags;
} RolloutModel;

// What a host says about one data; for MuJoCo from rollout_mujoco_data(). The
// addresses must belong to this data as long as a request uses it. The layout of
// this struct is fixed.
typedef struct RolloutData {
  // The data (mjData*). During a request one thread at a time uses it, and
  // nobody else may.
  void *data;
  // The sensor values (mjData.sensordata); may be NULL if there are none.
  double *sensordata;
  // The first warning counter (the `number` of the first mjData.warning). The
  // counters are 8 bytes apart, and before each there are 4 bytes for the number
  // that `warning_text` takes. May be NULL if `nwarning` is 0.
  int32_t *warning_number;
  // Number of warning kinds (mjNWARNING), at most 32.
  uint32_t nwarning;
  // ROLLOUT_DATA_ENGINE_THREADS, or 0.
  uint32_t flags;
  // Signature of the layout of this data; equal to that of its model.
  uint64_t layout;
  // Signature of the structure that this data was made for, or 0 if it is not
  // known.
  uint64_t structure;
  // Number of plugin instances (mjData.nplugin).
  size_t nplugin;
} RolloutData;

// An array that a request reads. The row of rollout r at step t begins at
// `values[r * rollout_stride + t * step_stride]`. A stride of 0 lets one row
// serve all rollouts or all steps without a copy.
//
// `rollout_rows`, `rollout_shared`, `rollout_steps` and `rollout_shared_steps`
// make one for each usual case. An array with NULL and count 0 is not given.
typedef struct RolloutInput {
  // The numbers; only read, and not to change during the call.
  const double *values;
  // Numbers from the first to the last that will be read, exactly: a count
  // that does not fit the sizes and strides is refused. (Where nbatch or nstep
  // is 0 nothing is read, and any count will do.)
  size_t count;
  // Numbers from one rollout's row to the next one's.
  size_t rollout_stride;
  // Numbers from one step's row to the next one's; 0 for arrays without steps.
  size_t step_stride;
} RolloutInput;

// An array that a request writes, contiguous in C order. It need not be
// initialised, and must not overlap any other array of the request.
typedef struct RolloutOutput {
  // Where to write; NULL (with count 0) if the output is not wanted.
  double *values;
  // Numbers in the array, exactly: nbatch x nstep x size of a row.
  size_t count;
} RolloutOutput;

// What became of one rollout. The layout of this struct is fixed.
typedef struct RolloutOutcome {
  // A RolloutOutcomeStatus (in Rust an `OutcomeStatus`) as a number.
  int32_t status;
  // The kind of the engine's warning that ended the rollout, in the engine's
  // own numbering (MuJoCo's `mjtWarning`), or -1.
  int32_t warning;
  // Valid steps: the steps before the one that warned or failed, or before the end that
  // the request was given.
  uint64_t steps;
} RolloutOutcome;

// Everything that one call needs. Zero all of it first and set `size`
// (`rollout_request()` does), then the fields that are wanted. The library reads
// it during the call only, that of rollout_submit too; what it points to stays the
// host's.
//
// To run a part of larger arrays, point to its first row: rows lie one behind the
// other. One request can be passed again and again.
//
// In this documentation nstate, ncontrol and nwarmstart are the engine's sizes
// (`mj_stateSize`) of `engine->full_physics`, `control_spec` and
// `engine->warmstart`; nsensordata is the model's.
typedef struct RolloutRequest {
  // sizeof(RolloutRequest); set by the host.
  size_t size;
  // The engine's functions; for MuJoCo from `rollout_mujoco_engine()`. Any number of
  // requests may name the same table and the same models at once.
  const struct RolloutEngine *engine;
  // One model for all rollouts, or one for each.
  const struct RolloutModel *models;
  // 1 or nbatch.
  size_t nmodel;
  // The data that the rollouts run on: as many threads take part as there are
  // data. Which data a rollout ran on, and what it held before, never changes
  // the result; what it holds afterwards is not defined.
  const struct RolloutData *data;
  // At least 1.
  size_t ndata;
  // Number of rollouts.
  size_t nbatch;
  // Steps of each rollout.
  size_t nstep;
  // Which inputs `control` holds: bits of `engine->user`. 0 for `engine->ctrl`.
  // Without `control` it says nothing.
  uint32_t control_spec;
  // What output rows hold from the step on that warned or failed, or that was not made
  // because the request was cancelled or out of time: ROLLOUT_FILL_NAN (0),
  // ROLLOUT_FILL_HOLD or ROLLOUT_FILL_UNTOUCHED. Rows of a rollout that was not started
  // are untouched in any case.
  int32_t fill;
  // Start states (nbatch x nstate).
  struct RolloutInput initial_state;
  // Warm starts of the solver (nbatch x nwarmstart). Not given: zero.
  struct RolloutInput initial_warmstart;
  // Inputs of each step (nbatch x nstep x ncontrol). Inputs that are not given
  // have their defaults: mocap poses and the activity of equality constraints
  // those of the model, all others zero.
  struct RolloutInput control;
  // State after each step (nbatch x nstep x nstate).
  struct RolloutOutput state;
  // Sensor values (nbatch x nstep x nsensordata). As in MuJoCo they belong to
  // the state before the step.
  struct RolloutOutput sensordata;
  // One outcome for each rollout, or NULL.
  struct RolloutOutcome *outcomes;
  // nbatch, or 0 if `outcomes` is NULL.
  size_t noutcome;
  // nbatch texts of `message_size` bytes, one behind the other, or NULL. What the
  // engine said of the error or warning that ended a rollout, cut to fit and ending
  // in NUL; empty for those that completed.
  char *messages;
  // nbatch x message_size, or 0 if `messages` is NULL.
  size_t nmessage;
  // Bytes of one text.
  size_t message_size;
  // Rollouts that a thread takes at a time; 0 for the library's choice. The
  // results do not depend on it.
  size_t chunk_size;
  // Requests of a higher priority are taken up first, and the pool's threads leave
  // others for them when they have ended a rollout. Among equals they go where the
  // fewest threads are. 0 is the usual one.
  int32_t priority;
  // ROLLOUT_REQUEST_ATTENDED, or 0. For rollout_run it says nothing: the caller of that
  // works in any case.
  uint32_t flags;
  // The time that the request has, in nanoseconds from the call on; 0 for no limit. When
  // it is up, each thread ends its rollout after the step that it is in, and begins no
  // other one: the outcomes say which steps are valid, and which rollouts were not
  // started. Costs one reading of the clock for each step (some 20 ns).
  uint64_t budget_ns;
  // The same as a time of rollout_clock_ns(); 0 for none. The earlier of the two counts.
  // If it has passed already, no step is made.
  uint64_t deadline_ns;
} RolloutRequest;

// How far a request has come. The layout of this struct is fixed.
typedef struct RolloutProgress {
  // Rollouts that have ended, however they did.
  uint64_t rollouts;
  // Steps that were made, those that failed included.
  uint64_t steps;
  // Rollouts of the request.
  uint64_t nbatch;
  // Steps of each of its rollouts, if nothing ends it early.
  uint64_t nstep;
} RolloutProgress;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The time now in nanoseconds, for the `deadline_ns` of a request. It is that of
// CLOCK_MONOTONIC, and so of std::chrono::steady_clock and Python's time.monotonic_ns().
// Costs some 20 ns.
uint64_t rollout_clock_ns(void);

// The name of a status, such as "null pointer"; "unknown status" for a number
// that is none. Never NULL, and valid for as long as the library is loaded.
const char *rollout_status_name(int32_t status);

// Makes a group of tasks on a pool and writes its handle to `*group`. Costs less than a
// microsecond; starts no thread.
//
// Errors: NULL_POINTER, MISALIGNED. `*group` is written only on success.
//
// The caller promises:
// `pool` is NULL or a live handle; `group` is NULL or points to a place for a handle;
// `error` is NULL or an error object.
RolloutStatus rollout_group_create(struct RolloutPool *pool,
                                   struct RolloutGroup **group,
                                   struct RolloutError *error);

// Ends a group. Does nothing for NULL. It waits for nothing: tasks that were scheduled
// are run by the pool all the same. But for calls that have begun, nobody may use the
// handle any more, its tasks included.
//
// The caller promises:
// `group` is NULL or a handle that has not been destroyed.
void rollout_group_destroy(struct RolloutGroup *group);

// As rollout_pool_schedule, counted in the group.
//
// Errors: NULL_POINTER, MISALIGNED; NO_THREAD in a child after fork().
//
// The caller promises:
// `group` is NULL or a live handle; `task(user)` can be called from any thread,
// until it has run.
RolloutStatus rollout_group_schedule(struct RolloutGroup *group,
                                     RolloutTask task,
                                     void *user,
                                     struct RolloutError *error);

// Writes the number of the group's tasks completed since its last reset to `*count`. What
// the counted tasks wrote is visible to the caller.
//
// Errors: NULL_POINTER, MISALIGNED.
//
// The caller promises:
// `group` is NULL or a live handle; the other pointers are NULL or valid.
RolloutStatus rollout_group_count(const struct RolloutGroup *group,
                                  uint64_t *count,
                                  struct RolloutError *error);

// Sets the group's count of completed tasks to zero.
//
// Errors: NULL_POINTER, MISALIGNED.
//
// The caller promises:
// `group` is NULL or a live handle, `error` is NULL or an error object.
RolloutStatus rollout_group_reset_count(struct RolloutGroup *group, struct RolloutError *error);

// Waits until the group's count of completed tasks is at least `value`. What the counted
// tasks wrote is visible afterwards. Any number of threads may wait at once.
//
// Errors: NULL_POINTER, MISALIGNED; WOULD_DEADLOCK, FORKED and TASK_PANICKED as for
// rollout_pool_wait_count, for the group's tasks.
//
// The caller promises:
// `group` is NULL or a live handle, `error` is NULL or an error object.
RolloutStatus rollout_group_wait_count(struct RolloutGroup *group,
                                       uint64_t value,
                                       struct RolloutError *error);

// Runs `call(user)`, in which the host calls the engine, as the library runs the
// engine's own functions: an error inside the engine (mju_error) ends `call` by a jump
// (longjmp) instead of the process, and its text goes to the error object. So let there
// be nothing in `call` that must be undone when it is left in the middle: no C++
// destructor, no lock, no memory that only it knows of.
//
// Whatever the engine was working on when it failed is in an undefined state: a data
// must be reset (mj_resetData, in a call like this one) before any other use. With
// ROLLOUT_HOOKS_RETIRE_THREAD the calling thread should end, as the engine may write to
// that data when it steps another one. Warnings are counted in the data, as always, and
// reach no handler.
//
// Costs about as much as two calls of a function of another library. May be called
// from any thread, in a task, and in a callback of an engine.
//
// Errors: NULL_POINTER; ENGINE_ERROR, and the text is the engine's; all that
// rollout_run finds wrong in an engine table.
//
// The caller promises:
// `engine` is NULL or a table as for `rollout_run`. `call(user)` can be called, and can
// be left by a jump.
RolloutStatus rollout_guard(const struct RolloutEngine *engine,
                            RolloutTask call,
                            void *user,
                            struct RolloutError *error);

// The number of threads that the process may keep busy: what
// `ROLLOUT_NTHREAD_DEFAULT` stands for. The least of the number of CPUs in the calling
// thread's affinity mask (taskset, sched_setaffinity) and of the whole CPUs in the CPU
// quotas of the process's cgroups, v1 or v2 (containers), but at least 1. Of a quota of
// 1.5 CPUs two threads would use up what there is for a period before its end, and all
// threads would be stopped until then, so that is 1. Reads a few small files each time.
int32_t rollout_default_nthread(void);

// Makes a pool of `nthread` threads, or of `ROLLOUT_NTHREAD_DEFAULT`, and writes
// its handle to `*pool`. The threads sleep until there is work; they are named
// rollout-0, rollout-1, ..., have stacks of 8 MiB and block all signals but those
// that report a fault of their own. With 0 threads everything runs inside the
// calls that ask for it. Starting a thread takes some tens of microseconds: make a
// pool once and keep it. (With ROLLOUT_HOOKS_RETIRE_THREAD a thread is replaced after
// an engine error, by one of its id and name.)
//
// `rollout_run` works on the calling thread too, so a host that calls it from
// one thread keeps n CPUs busy with n - 1 threads and n data; more threads do no
// harm.
//
// Errors: NULL_POINTER, MISALIGNED, BAD_OPTION, NO_THREAD. `*pool` is written
// only on success.
//
// The caller promises:
// `pool` points to a place for a handle, `error` is NULL or an error object.
RolloutStatus rollout_pool_create(int32_t nthread,
                                  struct RolloutPool **pool,
                                  struct RolloutError *error);

// Makes a pool as `rollout_pool_create` does, of one thread for each CPU of a list, on
// which it stays: thread i on CPU `cpus[i]`, numbered as the system does (from 0). For
// hosts that divide a machine between pools, or keep rollouts away from a CPU on which
// something else must not wait. The list is read during the call only.
//
// The calling thread itself is not moved. The memory of the threads (stacks) is first
// touched by themselves, and so is near their CPUs on machines where memory is; the data
// that they use are the host's, who may let each thread touch its own in a task.
//
// Errors: NULL_POINTER, MISALIGNED; EMPTY_LIST; BAD_OPTION for more than 4096 CPUs, for
// one that stands twice in the list, and for one that the calling thread's affinity mask
// does not have (sched_getaffinity); NO_THREAD. `*pool` is written only on success.
//
// The caller promises:
// `cpus` is NULL or points to `ncpu` numbers. `pool` points to a place for a handle,
// `error` is NULL or an error object.
RolloutStatus rollout_pool_create_on(const int32_t *cpus,
                                     size_t ncpu,
                                     struct RolloutPool **pool,
                                     struct RolloutError *error);

// Writes the CPU that a thread of the pool stays on to `*cpu`: what
// `rollout_pool_create_on` was told, or -1 in a pool that it has not made. `thread` is
// 0 .. nthread-1, the `rollout_worker_id` of that thread.
//
// Errors: NULL_POINTER, MISALIGNED; BAD_OPTION where the pool has no such thread.
//
// The caller promises:
// `pool` is NULL or a live handle; the other pointers are NULL or valid.
RolloutStatus rollout_pool_cpu(const struct RolloutPool *pool,
                               int32_t thread,
                               int32_t *cpu,
                               struct RolloutError *error);

// Ends a pool. Does nothing for NULL. What is in flight has a defined end:
//
// * Tasks that were scheduled are run, those of groups and those that they schedule
//   included. They may use the pool, and run requests on it, to their end.
// * Requests are cancelled: those of tickets that were submitted, and those of
//   rollout_run in other threads than tasks. Each ends after the step that its threads
//   are in, and who waits for it is told CANCELLED.
// * The pool's threads are ended and waited for.
//
// But for those tasks, nobody may begin another call with the handle. Calls that have
// begun (rollout_run, rollout_pool_wait_count, rollout_ticket_wait) end as described.
// Tickets and groups outlive the pool, and are still to be released and destroyed.
//
// Called inside this very pool, by one of its tasks or in a callback of a rollout, it
// cannot wait: the pool ends by itself then, and no task may use the handle any more.
// When it has returned elsewhere, no thread of the pool's is left, and the library can be
// unloaded.
//
// The destructor of a static object may call this when the process ends, also where a
// task or a callback of a rollout has asked for that (exit()).
//
// The caller promises:
// `pool` is NULL or a handle that has not been destroyed.
void rollout_pool_destroy(struct RolloutPool *pool);

// Writes the number of threads of the pool to `*nthread`.
//
// Errors: NULL_POINTER, MISALIGNED.
//
// The caller promises:
// `pool` is NULL or a live handle; the other pointers are NULL or valid.
RolloutStatus rollout_pool_num_threads(const struct RolloutPool *pool,
                                       int32_t *nthread,
                                       struct RolloutError *error);

// The id of the calling thread in its pool, 0 .. nthread-1, or -1 if it is not
// a pool's thread.
int32_t rollout_worker_id(void);

// Hands a task to the pool and returns. The task runs as soon as a thread is
// free, whether or not anybody waits, after the tasks scheduled before it have
// begun. Tasks may schedule tasks. In a pool of 0 threads the task runs before
// this call returns. On whichever thread, it has the default floating-point mode.
//
// Errors: NULL_POINTER, MISALIGNED; NO_THREAD in a child after fork().
//
// The caller promises:
// `pool` is NULL or a live handle; `task(user)` can be called from any thread,
// until it has run.
RolloutStatus rollout_pool_schedule(struct RolloutPool *pool,
                                    RolloutTask task,
                                    void *user,
                                    struct RolloutError *error);

// Writes the number of tasks completed since the last reset to `*count`. What
// the counted tasks wrote is visible to the caller. There is one count for the pool,
// which all who schedule on it share; a RolloutGroup has one of its own, and its tasks
// are counted there only. Requests are not counted.
//
// Errors: NULL_POINTER, MISALIGNED.
//
// The caller promises:
// `pool` is NULL or a live handle; the other pointers are NULL or valid.
RolloutStatus rollout_pool_count(const struct RolloutPool *pool,
                                 uint64_t *count,
                                 struct RolloutError *error);

// Sets the count of completed tasks to zero. There is one count for the pool:
// threads that share a pool must agree on who resets it, or have a RolloutGroup each.
//
// Errors: NULL_POINTER, MISALIGNED.
//
// The caller promises:
// `pool` is NULL or a live handle, `error` is NULL or an error object.
RolloutStatus rollout_pool_reset_count(struct RolloutPool *pool, struct RolloutError *error);

// Waits until the count of completed tasks is at least `value`. What the counted
// tasks wrote is visible afterwards. Any number of threads may wait at once.
//
// Errors: NULL_POINTER, MISALIGNED; WOULD_DEADLOCK at once, inside the same pool (in one of its
// tasks, or in a callback of a rollout) or where a pool without threads has run too few
// tasks, and when a pool ends that has run too few; FORKED at once, in a child after
// fork() that has not scheduled anything; TASK_PANICKED after the wait.
//
// The caller promises:
// `pool` is NULL or a live handle, `error` is NULL or an error object.
RolloutStatus rollout_pool_wait_count(struct RolloutPool *pool,
                                      uint64_t value,
                                      struct RolloutError *error);

// Writes what each of the pool's threads has done to `stats`, in the order of their ids.
// What callers have done, inside rollout_run and rollout_ticket_wait, is not in it. The
// times go on while a thread works; the counts are those of the work that it has left,
// which for rollouts is when it leaves their request.
//
// The numbers are read one after the other while the threads go on, and publish nothing
// of what the threads have written. Costs some nanoseconds for each thread.
//
// Errors: NULL_POINTER, MISALIGNED; WRONG_SIZE if `count` is not the number of threads.
//
// The caller promises:
// `pool` is NULL or a live handle; `stats` is NULL or has room for `count` structs;
// `error` is NULL or an error object.
RolloutStatus rollout_pool_stats(const struct RolloutPool *pool,
                                 struct RolloutWorkerStats *stats,
                                 size_t count,
                                 struct RolloutError *error);

// Runs all rollouts of a request and returns when they are done. The calling
// thread takes one of the request's data and works; the pool's threads take the
// others. A request with one data, or with little to do, runs on the calling
// thread alone. (In a pool of `rollout_pool_create_on` the pool's threads do all of it,
// and the caller waits.) Any number of threads may call this at once, each with data of
// its own.
//
// Equal requests give equal bits, for every number of threads, chunk size and
// history of the data, and up to the first warning of a rollout the same bits as a
// plain loop over the engine's step. A rollout that warned or diverged is no
// failure of the call: `outcomes` tells, and the rows from there on are as `fill`
// says. An engine error ends its rollout likewise, and no other one; when all have been
// run, the status is ROLLOUTS_FAILED. The data that it came from has been reset by then.
//
// Whichever thread runs a rollout, the engine computes there in the floating-point mode
// that the calling thread has when it calls (rounding, subnormal numbers, traps), as in
// that loop. A mode that the engine or a callback leaves behind ends with the step.
//
// What it costs: a microsecond or so beside the engine's own work; with
// ROLLOUT_MODEL_HIDDEN_STATE, or with a model for each rollout that has mocap bodies
// or equality constraints, a reset before each rollout (in MuJoCo as long as 0.05 to
// 2 steps).
//
// Everything is checked first; a request that is refused has changed nothing,
// and the error's text names the argument.
//
// When the request's time is up (`budget_ns`, `deadline_ns`) the call returns within a
// step of each thread, with OUT_OF_TIME unless all rollouts had ended; so it does, with
// CANCELLED, when the pool is destroyed meanwhile. What was done is in the outcomes, and
// its rows are as good as ever.
//
// Errors: ROLLOUTS_FAILED, CANCELLED and OUT_OF_TIME after the run; all statuses from 100
// to 199; BUSY; FORKED in a child that a callback of a rollout has forked; NO_THREAD;
// PANIC.
//
// The caller promises:
// `pool` is NULL or a live handle. `request` is NULL or a request whose pointers
// are NULL or point to as much as its counts say; nobody else uses the data and
// the outputs, or changes the inputs, during the call, except that another
// request may name the same data (and one of the two is refused). The engine table,
// the lists of models and data and the request itself do not change during the call
// either.
RolloutStatus rollout_run(struct RolloutPool *pool,
                          const struct RolloutRequest *request,
                          struct RolloutError *error);

// Hands a request to the pool, writes its ticket to `*ticket`, and returns. The pool's
// threads begin with it at once, as many as it has data. With a pool of 0 threads, and
// where all threads have other work, it runs in those that wait for it
// (rollout_ticket_wait). Any number of threads may submit at once, and any number of
// requests may be in flight, of different engines, models and sizes, each with data of
// its own: the threads spread over them evenly (`priority`), and each ends on its own.
//
// The struct `request`, the engine table and the lists of models and data are copied: they
// may go away after the call. The arrays that it names (inputs, outputs, outcomes,
// messages), and the models and data themselves, must stay until the request is done, and
// nobody else may use the data and the outputs or change the inputs and models.
//
// Everything is checked as by rollout_run, at once: a request that is refused has changed
// nothing, and there is no ticket to release. The results are those of rollout_run, bit
// for bit. Costs a microsecond or so, and a wake-up of each thread that sleeps and can
// take part (some 10 microseconds each; ROLLOUT_REQUEST_ATTENDED).
//
// Errors: all statuses from 100 to 199; BUSY; in a child after fork() also NO_THREAD.
// `*ticket` is written only on success. What
// comes of the rollouts is told by rollout_ticket_wait.
//
// The caller promises:
// As for `rollout_run`, but until the request is done, but for what is copied: that does
// not change during the call. `ticket` is NULL or points to a place for a handle. The
// engine's functions can be called as long as the ticket has not been released.
RolloutStatus rollout_submit(struct RolloutPool *pool,
                             const struct RolloutRequest *request,
                             struct RolloutTicket **ticket,
                             struct RolloutError *error);

// Waits until a request is done, at most for `timeout_ns` nanoseconds, and tells what came
// of it. A negative timeout waits for ever, 0 only looks. What the rollouts wrote is
// visible afterwards.
//
// The waiting thread works on the rollouts too while one of the request's data is free, so
// with a pool of 0 threads this is where they run. It returns within a step after the time:
// a rollout that it was in the middle of goes on where it was, on whichever thread comes
// next, with the same bits. So a thread that has other things to do, such as signals to
// handle, calls this again and again with a timeout of some milliseconds. (A timeout of 0
// makes no step: with a pool of 0 threads a request that is only looked at does not go on.)
//
// Any number of threads may wait at once, and may ask again when it is done: the status and
// the error object are the same each time.
//
// Errors: TIMEOUT if it is not done in time; else what rollout_run would give:
// ROLLOUTS_FAILED, CANCELLED, OUT_OF_TIME, NO_THREAD, PANIC. NULL_POINTER, MISALIGNED.
// WOULD_DEADLOCK at once, if it is not done and the calling thread is inside the same pool
// (in one of its tasks, or in a callback of a rollout) and would wait. FORKED at once, in a
// child that was forked while the request was in flight.
//
// The caller promises:
// `ticket` is NULL or a live handle, `error` is NULL or an error object.
RolloutStatus rollout_ticket_wait(struct RolloutTicket *ticket,
                                  int64_t timeout_ns,
                                  struct RolloutError *error);

// Ends a request early: each thread ends its rollout after the step that it is in, and
// begins no other one. Returns at once; rollout_ticket_wait waits for the end, and says
// CANCELLED, unless all rollouts had ended by themselves. May be called from any thread
// and in any callback, and does nothing when the request is done.
//
// Errors: NULL_POINTER, MISALIGNED; FORKED.
//
// The caller promises:
// `ticket` is NULL or a live handle, `error` is NULL or an error object.
RolloutStatus rollout_ticket_cancel(struct RolloutTicket *ticket, struct RolloutError *error);

// Writes 1 to `*done` if the request is done, and 0 if it is not. If it is, what the
// rollouts wrote is visible to the caller. Returns at once, but that what others have left
// of a request whose time is up is ended here: rows are filled, and a data may be reset.
//
// Errors: NULL_POINTER, MISALIGNED; FORKED.
//
// The caller promises:
// `ticket` is NULL or a live handle; the other pointers are NULL or valid.
RolloutStatus rollout_ticket_done(const struct RolloutTicket *ticket,
                                  int32_t *done,
                                  struct RolloutError *error);

// Writes how far the request has come to `*progress`. The numbers grow while it is in
// flight, and publish nothing of what the rollouts have written. Returns at once; costs
// some nanoseconds for each of the request's data.
//
// Errors: NULL_POINTER, MISALIGNED; FORKED.
//
// The caller promises:
// `ticket` is NULL or a live handle; the other pointers are NULL or valid.
RolloutStatus rollout_ticket_progress(const struct RolloutTicket *ticket,
                                      struct RolloutProgress *progress,
                                      struct RolloutError *error);

// Ends a ticket: cancels the request if it is in flight, waits until it is done, which
// takes at most the step that each thread is in, and frees it. Afterwards the request's
// arrays, models and data may go away. Does nothing for NULL. Threads that wait for the
// ticket meanwhile are told CANCELLED; but for calls that have begun, nobody may use the
// handle any more.
//
// It may be called inside the pool, but not in a callback of the ticket's own rollouts,
// which would wait for itself: there it is WOULD_DEADLOCK, and nothing has happened. (Two
// callbacks that release each other's tickets do wait for ever.) In a child that was forked
// while the request was in flight it returns at once.
//
// Errors: MISALIGNED; WOULD_DEADLOCK.
//
// The caller promises:
// `ticket` is NULL or a handle that has not been released, `error` is NULL or an error
// object.
RolloutStatus rollout_ticket_release(struct RolloutTicket *ticket, struct RolloutError *error);

// The version of the ABI of the loaded library. It grows when a change would
// break a host that was compiled earlier; new functions, and new fields at the
// end of structs that begin with their size, do not change it.
uint32_t rollout_abi_version(void);

// The version of the loaded library as a text such as "0.1.0". Never NULL, and
// valid for as long as the library is loaded.
const char *rollout_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

// Helpers, compiled into the host.

// An empty request of the host's size.
static inline RolloutRequest rollout_request(void) {
  RolloutRequest request;
  memset(&request, 0, sizeof(request));
  request.size = sizeof(request);
  return request;
}

// An error object, ready to be passed.
static inline RolloutError rollout_error(void) {
  RolloutError error;
  memset(&error, 0, sizeof(error));
  error.size = sizeof(error);
  error.index = -1;
  return error;
}

// An input with strides, in numbers.
static inline RolloutInput rollout_strided(const double* values, size_t count,
                                           size_t rollout_stride, size_t step_stride) {
  RolloutInput input;
  input.values = values;
  input.count = count;
  input.rollout_stride = rollout_stride;
  input.step_stride = step_stride;
  return input;
}

// One row for each rollout (nbatch x size).
static inline RolloutInput rollout_rows(const double* values, size_t nbatch, size_t size) {
  return rollout_strided(values, nbatch * size, size, 0);
}

// One row (size) for all rollouts, and for all steps where the array has steps.
static inline RolloutInput rollout_shared(const double* values, size_t size) {
  return rollout_strided(values, size, 0, 0);
}

// One row for each rollout and step (nbatch x nstep x size).
static inline RolloutInput rollout_steps(const double* values, size_t nbatch, size_t nstep,
                                         size_t size) {
  return rollout_strided(values, nbatch * nstep * size, nstep * size, size);
}

// One row for each step (nstep x size), the same for all rollouts.
static inline RolloutInput rollout_shared_steps(const double* values, size_t nstep, size_t size) {
  return rollout_strided(values, nstep * size, 0, size);
}

// An output of count numbers.
static inline RolloutOutput rollout_output(double* values, size_t count) {
  RolloutOutput output;
  output.values = values;
  output.count = count;
  return output;
}

#endif  // ROLLOUT_H_
