// The trap: engine calls that may end in a jump.
//
// MuJoCo reports an error by calling a handler that must not return, so a longjmp out
// of it is the only way on. Between the setjmp below and the handler there are frames
// of the engine and of this file, never one of Rust's. `trap.rs` has the other side.
//
// The engine looks for a handler in two places: first the thread's own, then the
// process's. Ours is the thread's for as long as the calls last, and then what was
// there before is put back, so a thread that is outside the engine never has it.
// Where the engine has no handlers of threads, ours is the process's while anybody
// needs it (`rollout_trap_enter`).

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include "rollout.h"

// One call of a list: which, its state spec (for HEALTHY the number of warning
// counters), and what it reads or writes.
typedef struct Call {
  uint32_t operation;
  uint32_t spec;
  void* values;
} Call;

enum { FORGET = 0, SIZE = 1, RESET = 2, SET = 3, GET = 4, STEP = 5, HEALTHY = 6 };

// What a list came to.
enum { DONE = 0, FAILED = 1, WARNED = 2 };

// Distance between two warning counters, in counters.
enum { WARNING_STRIDE = 2 };

// An arming on this thread's stack. They nest where a callback of the engine calls
// the library.
typedef struct Frame {
  jmp_buf recover;
  const RolloutHooks* hooks;
  struct Frame* outer;
  // The thread's handlers before. A log handler is both: it stands in `error`.
  RolloutHandler error;
  RolloutHandler warning;
} Frame;

static __thread Frame* innermost = NULL;

// Why this thread's last list of calls has failed: what MuJoCo's messages hold, and a
// function's name.
static __thread char reason[1280];

// The process's handlers, one state for all threads.
static struct {
  char locked;
  // How many need ours. While it is not zero the rest is valid.
  size_t users;
  RolloutHooks hooks;
  RolloutHandler error;
  RolloutHandler warning;
} process;

// The sections are a few dozen instructions long.
static void lock(void) {
  while (__atomic_test_and_set(&process.locked, __ATOMIC_ACQUIRE)) {
  }
}

static void unlock(void) { __atomic_clear(&process.locked, __ATOMIC_RELEASE); }

static int of_threads(const RolloutHooks* hooks) {
  return hooks->exchange_thread_log || hooks->set_thread_error;
}

static int of_process(const RolloutHooks* hooks) {
  return hooks->exchange_process_log || hooks->process_error;
}

// ---------------------------------------------------------------- handlers

// Leaves the engine. `function`, where the error comes from, may be NULL.
static void __attribute__((noreturn)) leave(Frame* frame, const char* function, const char* text) {
  if (function) {
    snprintf(reason, sizeof(reason), "%s: %s", function, text);
  } else {
    snprintf(reason, sizeof(reason), "%s", text);
  }
  longjmp(frame->recover, 1);
}

// Calls what would have been called without us, as if we were not there: what that
// does in the engine belongs to the outer frame.
static void pass_on(Frame* frame, RolloutHandler handler, const void* message) {
  innermost = frame->outer;
  handler(message);
  innermost = frame;
}

// What was the process's handler before, on a thread that is not armed. What is done
// without one is up to the engine, and must be imitated: an error ends the process.
static void not_ours(const void* message, int is_error) {
  RolloutHandler handler;
  lock();
  handler = is_error ? process.error : process.warning;
  unlock();
  if (handler) {
    handler(message);
    return;
  }
  fprintf(stderr, "%s: %s\n", is_error ? "ERROR" : "WARNING", (const char*)message);
  if (is_error) {
    exit(EXIT_FAILURE);
  }
}

static void on_error(const void* text) {
  if (innermost) {
    leave(innermost, NULL, (const char*)text);
  }
  not_ours(text, 1);
}

static void on_warning(const void* text) {
  if (!innermost) {
    not_ours(text, 0);
  }
  // Else it is counted in the data, where the library finds it.
}

static void on_log(const void* message) {
  Frame* frame = innermost;
  const char* bytes = (const char*)message;
  RolloutHandler handler;
  if (frame) {
    const RolloutHooks* hooks = frame->hooks;
    int level = *(const int*)(const void*)(bytes + hooks->log_level);
    if (level == hooks->log_error) {
      leave(frame, *(const char* const*)(const void*)(bytes + hooks->log_function),
            bytes + hooks->log_text);
    }
    // A jump out of here would leave the engine in the belief that it is still inside
    // its handler, and it would never report anything again.
    if (level == hooks->log_warning) {
      return;
    }
    if (of_threads(hooks)) {
      handler = frame->error ? frame->error : hooks->get_process_log();
      pass_on(frame, handler, message);
      return;
    }
  }
  lock();
  handler = process.error;
  unlock();
  if (frame) {
    pass_on(frame, handler, message);
  } else {
    handler(message);
  }
}

// ---------------------------------------------------------------- arming

static void arm(Frame* frame) {
  const RolloutHooks* hooks = frame->hooks;
  frame->outer = innermost;
  innermost = frame;
  if (hooks->exchange_thread_log) {
    frame->error = hooks->exchange_thread_log(on_log);
  } else if (hooks->set_thread_error) {
    frame->error = hooks->get_thread_error();
    frame->warning = hooks->get_thread_warning();
    hooks->set_thread_error(on_error);
    hooks->set_thread_warning(on_warning);
  }
}

static void disarm(Frame* frame) {
  const RolloutHooks* hooks = frame->hooks;
  if (hooks->exchange_thread_log) {
    hooks->exchange_thread_log(frame->error);
  } else if (hooks->set_thread_error) {
    hooks->set_thread_error(frame->error);
    hooks->set_thread_warning(frame->warning);
  }
  innermost = frame->outer;
}

// Calls `body(user)`. Returns 0 if that returned, and 1 if the engine left it by an
// error, for `reason`.
static int trapped(const RolloutHooks* hooks, void (*body)(void*), void* user) {
  Frame frame;
  int failed;
  if (!of_threads(hooks) && !of_process(hooks)) {
    body(user);
    return 0;
  }
  frame.hooks = hooks;
  // Before the setjmp, so that nothing in this function changes after it.
  arm(&frame);
  if (_setjmp(frame.recover) == 0) {
    body(user);
    failed = 0;
  } else {
    failed = 1;
  }
  disarm(&frame);
  return failed;
}

// ---------------------------------------------------------------- lists of calls

typedef struct List {
  const RolloutEngine* engine;
  const void* model;
  void* data;
  const Call* calls;
  size_t ncall;
  int result;
} List;

static int healthy(const Call* call) {
  const int32_t* number = (const int32_t*)call->values;
  uint32_t kind;
  for (kind = 0; kind < call->spec; kind++) {
    if (number[kind * WARNING_STRIDE] != 0) {
      return 0;
    }
  }
  return 1;
}

static void run(void* user) {
  List* list = (List*)user;
  const RolloutEngine* engine = list->engine;
  const void* model = list->model;
  void* data = list->data;
  const Call* call;
  for (call = list->calls; call < list->calls + list->ncall; call++) {
    switch (call->operation) {
      case SIZE:
        // Needs no data, and so has none whose errors could be asked for.
        *(int*)call->values = engine->state_size(model, call->spec);
        continue;
      case RESET:
        engine->reset(model, data);
        break;
      case SET:
        engine->set_state(model, data, (const double*)call->values, call->spec);
        break;
      case GET:
        engine->get_state(model, data, (double*)call->values, call->spec);
        break;
      case STEP:
        engine->step(model, data);
        break;
      case HEALTHY:
        if (healthy(call)) {
          continue;
        }
        list->result = WARNED;
        return;
    }
    if (engine->take_error && engine->take_error(data, reason, sizeof(reason))) {
      // An engine that forgets to end its text shall not make anybody read on.
      reason[sizeof(reason) - 1] = '\0';
      if (call->operation != FORGET) {
        list->result = FAILED;
        return;
      }
    }
  }
}

// Makes a list of calls, up to the first that fails.
int rollout_trap_run(const RolloutEngine* engine, const void* model, void* data, const Call* calls,
                     size_t ncall) {
  List list;
  list.engine = engine;
  list.model = model;
  list.data = data;
  list.calls = calls;
  list.ncall = ncall;
  list.result = DONE;
  return trapped(&engine->hooks, run, &list) ? FAILED : list.result;
}

// Why this thread's last list of calls has failed.
const char* rollout_trap_reason(void) { return reason; }

// Makes our handlers the process's, if the engine has no handlers of threads: until as
// many calls of `rollout_trap_leave`. Returns whether there is anything to leave.
int rollout_trap_enter(const RolloutHooks* hooks) {
  int ours = 1;
  if (of_threads(hooks) || !of_process(hooks)) {
    return 0;
  }
  lock();
  if (process.users == 0) {
    process.hooks = *hooks;
    if (hooks->exchange_process_log) {
      process.error = hooks->exchange_process_log(on_log);
    } else {
      process.error = *hooks->process_error;
      process.warning = *hooks->process_warning;
      *hooks->process_error = on_error;
      *hooks->process_warning = on_warning;
    }
  } else {
    // A second copy of the engine in this process must wait for the first: a message
    // does not say whose it is.
    ours = process.hooks.exchange_process_log == hooks->exchange_process_log &&
           process.hooks.process_error == hooks->process_error;
  }
  process.users += (size_t)ours;
  unlock();
  return ours;
}

void rollout_trap_leave(void) {
  const RolloutHooks* hooks = &process.hooks;
  lock();
  if (--process.users == 0) {
    // What the host has set meanwhile stays.
    if (hooks->exchange_process_log) {
      RolloutHandler last = hooks->exchange_process_log(process.error);
      if (last != on_log) {
        hooks->exchange_process_log(last);
      }
    } else {
      if (*hooks->process_error == on_error) {
        *hooks->process_error = process.error;
      }
      if (*hooks->process_warning == on_warning) {
        *hooks->process_warning = process.warning;
      }
    }
  }
  unlock();
}
