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
//
// The engine runs with the floating-point mode of the host that has asked for it, and
// Rust with its own, so this is also where the one changes to the other.

#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "rollout.h"

// ---------------------------------------------------------------- floating point

// A floating-point mode: how the processor rounds, whether it flushes subnormal numbers
// to zero, which exceptions trap, how exact the x87 is. The flags of exceptions that have
// come up are no part of it: they stay as they are when it changes. Never 0.
typedef uint64_t Mode;

#if defined(__x86_64__)

// MXCSR without its flags, and the x87's control word.
enum { SSE_FLAGS = 0x3f, X87_TRAPS = 0x3f };

// What the ABI starts a process with, and Rust takes for granted.
static const Mode RUSTS_MODE = (Mode)0x037f << 32 | 0x1f80;

static inline Mode mode_now(void) {
  uint32_t sse;
  uint16_t x87;
  __asm__ volatile("stmxcsr %0" : "=m"(sse));
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  return (Mode)x87 << 32 | (sse & ~(uint32_t)SSE_FLAGS);
}

static void set_mode(Mode mode) {
  uint32_t sse;
  uint16_t x87 = (uint16_t)(mode >> 32), x87_now, flags;
  __asm__ volatile("stmxcsr %0" : "=m"(sse));
  sse = (sse & SSE_FLAGS) | (uint32_t)mode;
  __asm__ volatile("ldmxcsr %0" : : "m"(sse) : "memory");
  __asm__ volatile("fnstcw %0" : "=m"(x87_now));
  if (x87_now != x87) {
    // Of what once was no trap the x87 would make one at its next operation.
    __asm__ volatile("fnstsw %0" : "=m"(flags));
    if (flags & ~x87 & X87_TRAPS) {
      __asm__ volatile("fnclex");
    }
    __asm__ volatile("fldcw %0" : : "m"(x87) : "memory");
  }
}

#elif defined(__aarch64__)

// FPCR, and a bit that it does not have. The flags are in another register.
static const Mode RUSTS_MODE = (Mode)1 << 63;

static inline Mode mode_now(void) {
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  return RUSTS_MODE | control;
}

static void set_mode(Mode mode) {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode & ~RUSTS_MODE) : "memory");
}

#else
#error "the floating-point mode of this processor is not known here"
#endif

// The mode in which this thread's host has called the library; 0 outside of such calls.
static __thread Mode hosts_mode = 0;

// The host has called: its mode is kept, and Rust's set, until `rollout_trap_to_host`
// gets what this returns.
uint64_t rollout_trap_from_host(void) {
  Mode outer = hosts_mode;
  hosts_mode = mode_now();
  if (hosts_mode != RUSTS_MODE) {
    set_mode(RUSTS_MODE);
  }
  return outer;
}

void rollout_trap_to_host(uint64_t outer) {
  if (mode_now() != hosts_mode) {
    set_mode(hosts_mode);
  }
  hosts_mode = outer;
}

// The mode that the host wants its engine to be called in.
uint64_t rollout_trap_mode(void) { return hosts_mode ? hosts_mode : mode_now(); }

// Sets Rust's mode, where a function of the host's has left another one behind.
void rollout_trap_rusts_mode(void) {
  if (mode_now() != RUSTS_MODE) {
    set_mode(RUSTS_MODE);
  }
}

// ---------------------------------------------------------------- what a thread keeps

// One call of a list: which, its state spec (for HEALTHY the number of warning
// counters, for TEXT the kind of warning), and what it reads or writes.
typedef struct Call {
  uint32_t operation;
  uint32_t spec;
  void* values;
} Call;

enum { FORGET = 0, SIZE = 1, RESET = 2, SET = 3, GET = 4, STEP = 5, HEALTHY = 6, TEXT = 7 };

// A warning's text, from the number that the engine has kept with it.
typedef struct Text {
  size_t info;
  const char* text;
} Text;

// What a list came to.
enum { DONE = 0, FAILED = 1, WARNED = 2 };

// Distance between two warning counters, in counters.
enum { WARNING_STRIDE = 2 };

// Facts that Rust states too, one after the other, and then SIZE_MAX: only for a test of
// `trap.rs`, which compares.
size_t rollout_trap_fact(size_t i) {
  static const size_t facts[] = {
      FORGET, SIZE, RESET, SET, GET, STEP, HEALTHY, TEXT,
      DONE, FAILED, WARNED,
      WARNING_STRIDE,
      sizeof(Call), offsetof(Call, spec), offsetof(Call, values),
      sizeof(Text), offsetof(Text, text),
      // That the header which this was compiled with is today's.
      sizeof(RolloutEngine), offsetof(RolloutEngine, take_error),
      offsetof(RolloutEngine, warning_text), offsetof(RolloutEngine, hooks),
      sizeof(RolloutHooks), offsetof(RolloutHooks, process_error),
      offsetof(RolloutHooks, log_level), offsetof(RolloutHooks, flags),
      ROLLOUT_HOOKS_RETIRE_THREAD,
  };
  return i < sizeof(facts) / sizeof(facts[0]) ? facts[i] : SIZE_MAX;
}

// The kinds of handlers: of a text that is an error or a warning, or of any message.
enum { ERROR = 0, WARNING = 1, LOG = 2, NKIND = 3 };

// An arming, on this thread's stack. They nest where a callback of the engine calls the
// library.
typedef struct Frame {
  jmp_buf recover;
  const RolloutHooks* hooks;
  struct Frame* outer;
  // What the thread had before; ours for a kind that the engine does not have.
  RolloutHandler before[NKIND];
  // The floating-point mode that the thread had before.
  Mode mode;
  // Not zero while a callback of the engine is inside the library: whatever errs then
  // has frames of Rust below it, and does not end here.
  int outside;
} Frame;

static __thread Frame* innermost = NULL;

// Why this thread's last list of calls has failed: what MuJoCo's messages hold, and a
// function's name.
static __thread char reason[1280];

// This thread has seen an error of an engine whose threads must then be retired.
static __thread char spent = 0;

// Calls of such an engine that this thread is in and that need no arming.
static __thread int unarmed = 0;

// How often this thread is among the users of the process's handlers.
static __thread size_t uses = 0;

// The process's handlers, one state for all threads.
static struct {
  char locked;
  // How many need ours.
  size_t users;
  RolloutHooks hooks;
  // What the process had before; stays when ours are gone. Read without the lock, as a
  // message can come at any time, and in a forked child.
  RolloutHandler before[NKIND];
} process;

// The sections are a few dozen instructions long, and nothing in them sends a message.
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

static void on_error(const void* text);
static void on_warning(const void* text);
static void on_log(const void* message);

static const RolloutHandler OURS[NKIND] = {on_error, on_warning, on_log};

// The arming that an error or warning of this thread belongs to; none if there is
// none, or if it is somebody else's.
static Frame* armed(void) { return innermost && !innermost->outside ? innermost : NULL; }

static void saw_error(const RolloutHooks* hooks) {
  if (hooks->flags & ROLLOUT_HOOKS_RETIRE_THREAD) {
    spent = 1;
  }
}

// Leaves the engine. `function`, where the error comes from, may be NULL.
static void __attribute__((noreturn)) leave(Frame* frame, const char* function, const char* text) {
  if (function) {
    snprintf(reason, sizeof(reason), "%s: %s", function, text);
  } else {
    snprintf(reason, sizeof(reason), "%s", text);
  }
  saw_error(frame->hooks);
  longjmp(frame->recover, 1);
}

static RolloutHandler process_handler(const RolloutHooks* hooks, int kind) {
  if (kind == LOG) {
    return hooks->get_process_log ? hooks->get_process_log() : on_log;
  }
  if (!hooks->process_error) {
    return OURS[kind];
  }
  return kind == ERROR ? *hooks->process_error : *hooks->process_warning;
}

// What the engine would have called without us: the thread's handler, which is with
// the first arming that found one, or else the process's. NULL if there is none.
static RolloutHandler before(int kind) {
  RolloutHandler handler = OURS[kind];
  const Frame* frame;
  for (frame = innermost; frame && handler == OURS[kind]; frame = frame->outer) {
    handler = frame->before[kind];
  }
  if (handler && handler != OURS[kind]) {
    return handler;
  }
  handler = innermost ? process_handler(innermost->hooks, kind) : OURS[kind];
  if (handler == OURS[kind]) {
    handler = __atomic_load_n(&process.before[kind], __ATOMIC_ACQUIRE);
  }
  return handler;
}

static void on_error(const void* text) {
  RolloutHandler handler;
  Frame* frame = armed();
  if (frame) {
    leave(frame, NULL, (const char*)text);
  }
  handler = before(ERROR);
  if (handler) {
    handler(text);
    return;
  }
  // As the engine does where nobody handles its errors.
  fprintf(stderr, "ERROR: %s\n", (const char*)text);
  exit(EXIT_FAILURE);
}

static void on_warning(const void* text) {
  RolloutHandler handler;
  // Ours are counted in the data, where the library finds them.
  if (armed()) {
    return;
  }
  handler = before(WARNING);
  if (handler) {
    handler(text);
  } else {
    fprintf(stderr, "WARNING: %s\n", (const char*)text);
  }
}

static void on_log(const void* message) {
  Frame* frame = armed();
  if (frame) {
    const RolloutHooks* hooks = frame->hooks;
    const char* bytes = (const char*)message;
    int level = *(const int*)(const void*)(bytes + hooks->log_level);
    if (level == hooks->log_error) {
      leave(frame, *(const char* const*)(const void*)(bytes + hooks->log_function),
            bytes + hooks->log_text);
    }
    // Not by a jump, which would leave the engine in the belief that it is still inside
    // its handler: it would never report anything again.
    if (level == hooks->log_warning) {
      return;
    }
  }
  before(LOG)(message);
}

// ---------------------------------------------------------------- arming

static void arm(Frame* frame) {
  const RolloutHooks* hooks = frame->hooks;
  frame->outer = innermost;
  frame->outside = 0;
  frame->before[ERROR] = on_error;
  frame->before[WARNING] = on_warning;
  frame->before[LOG] = on_log;
  innermost = frame;
  if (hooks->exchange_thread_log) {
    frame->before[LOG] = hooks->exchange_thread_log(on_log);
  } else if (hooks->set_thread_error) {
    frame->before[ERROR] = hooks->get_thread_error();
    frame->before[WARNING] = hooks->get_thread_warning();
    hooks->set_thread_error(on_error);
    hooks->set_thread_warning(on_warning);
  }
}

static void disarm(Frame* frame) {
  const RolloutHooks* hooks = frame->hooks;
  if (hooks->exchange_thread_log) {
    hooks->exchange_thread_log(frame->before[LOG]);
  } else if (hooks->set_thread_error) {
    hooks->set_thread_error(frame->before[ERROR]);
    hooks->set_thread_warning(frame->before[WARNING]);
  }
  innermost = frame->outer;
}

// Calls `body(user)` in this floating-point mode. Returns 0 if that returned, and 1 if the
// engine left it by an error, for `reason`. Whatever the engine, or a callback, has made
// of the mode, and after a jump too, the thread then has the one that it had.
static int trapped(const RolloutHooks* hooks, Mode mode, void (*body)(void*), void* user) {
  Frame frame;
  int failed;
  frame.mode = mode_now();
  if (frame.mode != mode) {
    set_mode(mode);
  }
  if (!of_threads(hooks) && !of_process(hooks)) {
    int retires = (hooks->flags & ROLLOUT_HOOKS_RETIRE_THREAD) != 0;
    unarmed += retires;
    body(user);
    unarmed -= retires;
    failed = 0;
  } else {
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
  }
  if (mode_now() != frame.mode) {
    set_mode(frame.mode);
  }
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
      case FORGET:
        if (engine->take_error) {
          engine->take_error(data, reason, sizeof(reason));
        }
        continue;
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
      case TEXT: {
        // Knows no data either.
        Text* text = (Text*)call->values;
        text->text = engine->warning_text((int)call->spec, text->info);
        continue;
      }
    }
    if (engine->take_error && engine->take_error(data, reason, sizeof(reason))) {
      // An engine that forgets to end its text shall not make anybody read on.
      reason[sizeof(reason) - 1] = '\0';
      saw_error(&engine->hooks);
      list->result = FAILED;
      return;
    }
  }
}

// Makes a list of calls, up to the first that fails.
int rollout_trap_run(const RolloutEngine* engine, uint64_t mode, const void* model, void* data,
                     const Call* calls, size_t ncall) {
  List list;
  list.engine = engine;
  list.model = model;
  list.data = data;
  list.calls = calls;
  list.ncall = ncall;
  list.result = DONE;
  return trapped(&engine->hooks, mode, run, &list) ? FAILED : list.result;
}

// Why this thread's last list of calls has failed.
const char* rollout_trap_reason(void) { return reason; }

// Runs `call(user)` as if it were a call of the engine.
int rollout_trap_call(const RolloutHooks* hooks, uint64_t mode, void (*call)(void*), void* user) {
  return trapped(hooks, mode, call, user);
}

// Whether this thread has seen an error of an engine whose threads must be retired, or
// could see one and must go on: in a callback of the engine.
int rollout_trap_spent(void) { return spent || innermost || unarmed; }

// ---------------------------------------------------------------- around the calls

// Tells the innermost arming, if there is one, that a callback is inside the library,
// until `rollout_trap_return`.
void* rollout_trap_outside(void) {
  if (innermost) {
    innermost->outside++;
  }
  return innermost;
}

void rollout_trap_return(void* frame) { ((Frame*)frame)->outside--; }

// Keeps what the process had before. Ours can be there already: a host that has saved
// it earlier and put it back now.
static void found(int kind, RolloutHandler handler) {
  if (handler != OURS[kind]) {
    __atomic_store_n(&process.before[kind], handler, __ATOMIC_RELEASE);
  }
}

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
      found(LOG, hooks->exchange_process_log(on_log));
    } else {
      found(ERROR, *hooks->process_error);
      found(WARNING, *hooks->process_warning);
      *hooks->process_error = on_error;
      *hooks->process_warning = on_warning;
    }
  } else {
    // A second copy of the engine in this process gets no handlers meanwhile: a message
    // does not say whose it is.
    ours = process.hooks.exchange_process_log == hooks->exchange_process_log &&
           process.hooks.process_error == hooks->process_error;
  }
  process.users += (size_t)ours;
  uses += (size_t)ours;
  unlock();
  return ours;
}

// Puts back what the process had before, under the lock.
static void put_back(void) {
  const RolloutHooks* hooks = &process.hooks;
  // What the host has set meanwhile stays.
  if (hooks->exchange_process_log) {
    RolloutHandler last = hooks->exchange_process_log(process.before[LOG]);
    if (last != on_log) {
      hooks->exchange_process_log(last);
    }
  } else {
    if (*hooks->process_error == on_error) {
      *hooks->process_error = process.before[ERROR];
    }
    if (*hooks->process_warning == on_warning) {
      *hooks->process_warning = process.before[WARNING];
    }
  }
}

void rollout_trap_leave(void) {
  lock();
  uses--;
  if (--process.users == 0) {
    put_back();
  }
  unlock();
}

// ---------------------------------------------------------------- forks

// Of a process's threads only the one that forks is in the child. So nobody else may be
// changing the process's handlers at that moment, and of those who need ours only that
// thread is left.
static void in_child(void) {
  if (process.users > uses) {
    process.users = uses;
    if (uses == 0) {
      put_back();
    }
  }
  unlock();
}

// When the library is loaded, since nobody could be waited for who does it later: a fork
// in the middle of that would leave a child that waits for ever. With the library's own
// copy of pthread_atfork, which glibc links into each library, this ends when it is
// unloaded.
static void __attribute__((constructor)) watch_forks(void) {
  // Where memory for this is refused, so is that for a pool (`fork.rs`).
  pthread_atfork(lock, unlock, in_child);
}
