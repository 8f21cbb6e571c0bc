// The trap, on an engine of our own that reports errors in each of the ways in which an
// engine can: whatever fails, and wherever, a rollout that fails fails alone. MuJoCo's
// part in this is in errors.c.

#define _POSIX_C_SOURCE 200809L

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "check.h"
#include "process.h"
#include "rollout.h"
#include "ways.h"

// ---------------------------------------------------------------- the engine's messages

typedef struct {
  long padding;
  int level;
  char text[200];
  const char* function;
} Message;

enum { INFO = 1, WARNING = 2, ERROR = 3 };

// How the engine reports.
typedef enum { TEXT_THREAD, TEXT_PROCESS, LOG_THREAD, LOG_PROCESS, TAKE_ERROR, NWAY } Way;
static const char* WAYS[NWAY] = {"handlers of texts", "handlers of texts, the process's",
                                 "log handlers", "log handlers, the process's", "take_error"};
static Way way;

static void default_log(const void* message);

// The process's handlers.
static RolloutHandler process_error, process_warning;
static RolloutHandler process_log = default_log;
// Those of a thread.
static __thread RolloutHandler thread_error, thread_warning, thread_log;
// An error that nobody has taken yet.
static __thread char pending[200];
// This thread has seen an error, and was to be retired after it.
static __thread int spent;
static int retires;
// The system refuses threads.
static int refused;

// What must not happen: calls on a thread that was to be retired, or on a data that an
// error has left undefined.
static int violations;

static void violate(void) { __atomic_fetch_add(&violations, 1, __ATOMIC_RELAXED); }

static RolloutHandler exchange_thread_log(RolloutHandler handler) {
  RolloutHandler before = thread_log;
  thread_log = handler;
  return before;
}
static RolloutHandler get_process_log(void) { return process_log; }
static RolloutHandler exchange_process_log(RolloutHandler handler) {
  RolloutHandler before = process_log;
  process_log = handler;
  return before;
}
static RolloutHandler get_thread_error(void) { return thread_error; }
static void set_thread_error(RolloutHandler handler) { thread_error = handler; }
static RolloutHandler get_thread_warning(void) { return thread_warning; }
static void set_thread_warning(RolloutHandler handler) { thread_warning = handler; }

// The thread's handler where the engine has any, or else the process's.
static RolloutHandler handler_of(RolloutHandler thread, RolloutHandler process) {
  int threads = way == TEXT_THREAD || way == LOG_THREAD;
  return threads && thread ? thread : process;
}

static void send(int level, const char* function, const char* text) {
  if (way == LOG_THREAD || way == LOG_PROCESS) {
    Message message;
    memset(&message, 0, sizeof(message));
    message.level = level;
    message.function = function;
    snprintf(message.text, sizeof(message.text), "%s", text);
    handler_of(thread_log, process_log)(&message);
  } else {
    char whole[300];
    snprintf(whole, sizeof(whole), "%s%s%s", function ? function : "", function ? ": " : "", text);
    if (level == ERROR) {
      handler_of(thread_error, process_error)(whole);
    } else {
      handler_of(thread_warning, process_warning)(whole);
    }
  }
}

// Ends the call by a jump, or tells at the end of it.
static void fail(const char* function, const char* text) {
  spent |= retires;
  if (way == TAKE_ERROR) {
    snprintf(pending, sizeof(pending), "%s: %s", function, text);
    return;
  }
  send(ERROR, function, text);
  printf("FAILED a handler of an error has returned\n");
  exit(1);
}

static int take_error(void* data, char* text, size_t size) {
  (void)data;
  if (!pending[0]) {
    return 0;
  }
  // Without an end, as nobody should.
  memset(text, 'x', size);
  memcpy(text, pending, strlen(pending) + 1 < size ? strlen(pending) + 1 : size);
  pending[0] = '\0';
  return 1;
}

// ---------------------------------------------------------------- the engine

enum { NSENSORDATA = 2, NWARNING = 3, SPEC_STATE = 1, SPEC_CTRL = 2, SPEC_PLACE = 4 };

// What fails in a rollout. (The last two warn, and fail when they are asked what became
// of them.)
typedef enum {
  NOTHING,
  RESET,
  START,
  CONTROL,
  STEP,
  GET,
  WARN,
  WARN_GET,
  WARN_TEXT,
  NFAULT
} Fault;

// What the engine keeps with its warnings; of the second one there is no text.
enum { INFO_OF_WARNING = 7, INFO_WITHOUT_TEXT = 13 };

typedef struct {
  double id;
  Fault fault;
  // The step in which.
  int step;
} Model;

typedef struct {
  double x[2];  // time and position
  double ctrl;
  double sensordata[NSENSORDATA];
  struct {
    int32_t lastinfo, number;
  } warning[NWARNING];
  int undefined;
} Data;

// What a step does besides, if anything.
static void (*in_step)(const Model* m, Data* d);

static int state_size(const void* model, uint32_t spec) {
  (void)model;
  return (spec & SPEC_STATE ? 2 : 0) + (spec & SPEC_CTRL ? 1 : 0) + (spec & SPEC_PLACE ? 1 : 0);
}

static int time_of(const Data* d) { return (int)d->x[0]; }

// (Where there is no other thread, a reset is all that may be done.)
static void check_thread(int is_reset) {
  if (spent && retires && !(refused && is_reset)) {
    violate();
  }
}

// Whether the call must not go on. Fails if it is the one to.
static int fails(const Model* m, Data* d, Fault fault, const char* function) {
  check_thread(fault == RESET);
  if (d->undefined && fault != RESET) {
    violate();
  }
  if (m->fault != fault || (fault >= CONTROL && m->step != time_of(d))) {
    return 0;
  }
  d->undefined = 1;
  fail(function, "is asked to fail");
  return 1;
}

static void reset(const void* model, void* data) {
  const Model* m = (const Model*)model;
  Data* d = (Data*)data;
  if (!fails(m, d, RESET, "reset")) {
    memset(d, 0, sizeof(*d));
  }
}

static void set_state(const void* model, void* data, const double* state, uint32_t spec) {
  const Model* m = (const Model*)model;
  Data* d = (Data*)data;
  if (spec == SPEC_CTRL) {
    // The default is set before the start state is.
    if (state[0] == 0 || !fails(m, d, CONTROL, "set control")) {
      d->ctrl = state[0];
    }
  } else if (!fails(m, d, START, "set start")) {
    memcpy(d->x, state, sizeof(d->x));
  }
}

static void step(const void* model, void* data) {
  const Model* m = (const Model*)model;
  Data* d = (Data*)data;
  d->sensordata[0] = d->x[1];
  d->sensordata[1] = m->id;
  if (in_step) {
    in_step(m, d);
  }
  if (fails(m, d, STEP, "step")) {
    return;
  }
  if (m->fault >= WARN && m->step == time_of(d)) {
    d->warning[1].lastinfo = m->fault == WARN_TEXT ? INFO_WITHOUT_TEXT : INFO_OF_WARNING;
    d->warning[1].number++;
    if (way != TAKE_ERROR) {
      send(WARNING, NULL, "a warning");
    }
  }
  d->x[0] += 1;
  d->x[1] += 0.5 * d->ctrl + m->id;
}

static void get_state(const void* model, const void* data, double* state, uint32_t spec) {
  Data read = *(const Data*)data;
  Data* d = (Data*)data;
  (void)spec;
  // The step before has counted the time on.
  d->x[0] -= 1;
  // (A step that has warned is read only where its rows are held.)
  if (!fails((const Model*)model, d, GET, "get") &&
      !fails((const Model*)model, d, WARN_GET, "get")) {
    memcpy(state, read.x, sizeof(read.x));
    d->x[0] += 1;
  }
}

static const char* warning_text(int kind, size_t info) {
  static __thread char text[64];
  check_thread(0);
  // (Nobody asks for errors of a call that has no data.)
  if (info == INFO_WITHOUT_TEXT && way != TAKE_ERROR) {
    fail("text", "is asked to fail");
  }
  snprintf(text, sizeof(text), "warning %d about %d", kind, (int)info);
  return text;
}

static RolloutEngine make_engine(void) {
  RolloutEngine engine;
  memset(&engine, 0, sizeof(engine));
  engine.size = sizeof(engine);
  engine.version = ROLLOUT_ENGINE_VERSION;
  engine.number_size = sizeof(double);
  engine.step = step;
  engine.state_size = state_size;
  engine.get_state = get_state;
  engine.set_state = set_state;
  engine.reset = reset;
  engine.full_physics = SPEC_STATE;
  engine.user = SPEC_CTRL;
  engine.ctrl = SPEC_CTRL;
  engine.warning_text = warning_text;
  switch (way) {
    case TEXT_THREAD:
      engine.hooks.get_thread_error = get_thread_error;
      engine.hooks.set_thread_error = set_thread_error;
      engine.hooks.get_thread_warning = get_thread_warning;
      engine.hooks.set_thread_warning = set_thread_warning;
      // fall through
    case TEXT_PROCESS:
      engine.hooks.process_error = &process_error;
      engine.hooks.process_warning = &process_warning;
      break;
    case LOG_THREAD:
      engine.hooks.exchange_thread_log = exchange_thread_log;
      engine.hooks.get_process_log = get_process_log;
      // fall through
    case LOG_PROCESS:
      engine.hooks.exchange_process_log = exchange_process_log;
      engine.hooks.log_level = (uint32_t)offsetof(Message, level);
      engine.hooks.log_text = (uint32_t)offsetof(Message, text);
      engine.hooks.log_function = (uint32_t)offsetof(Message, function);
      engine.hooks.log_error = ERROR;
      engine.hooks.log_warning = WARNING;
      break;
    default:
      engine.take_error = take_error;
  }
  engine.hooks.flags = retires ? ROLLOUT_HOOKS_RETIRE_THREAD : 0;
  return engine;
}

// ---------------------------------------------------------------- the host's handlers

// How often they were called.
static int host_errors, host_warnings, host_infos;

static void count(int* calls) { __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED); }

// Where the host wants errors of its own calls to end, on this thread.
static __thread jmp_buf* host_recover;

static void end_error(void) {
  count(&host_errors);
  if (host_recover) {
    longjmp(*host_recover, 1);
  }
  printf("FAILED an error of the library's has come to the host\n");
  exit(1);
}

static void host_error(const void* text) {
  (void)text;
  end_error();
}
static void host_warning(const void* text) {
  (void)text;
  count(&host_warnings);
}
static void host_log(const void* message) {
  int level = ((const Message*)message)->level;
  if (level == ERROR) {
    end_error();
  }
  count(level == WARNING ? &host_warnings : &host_infos);
}

static void default_log(const void* message) {
  printf("FAILED unhandled: %s\n", ((const Message*)message)->text);
  exit(1);
}

static void host_thread_handlers(int set) {
  thread_error = set ? host_error : NULL;
  thread_warning = set ? host_warning : NULL;
  thread_log = set ? host_log : NULL;
}

static void check_thread_handlers(int set) {
  CHECK(thread_error == (set ? host_error : NULL));
  CHECK(thread_warning == (set ? host_warning : NULL));
  CHECK(thread_log == (set ? host_log : NULL));
}

static void check_process_handlers(void) {
  CHECK(process_error == host_error);
  CHECK(process_warning == host_warning);
  CHECK(process_log == host_log);
}

// ---------------------------------------------------------------- requests

enum { MAX_BATCH = 12, MAX_STEP = 6, NDATA = 9, NPOOL = 4, TEXT = 40 };

static const int NTHREAD[NPOOL] = {0, 1, 2, 8};
static RolloutPool* pools[NPOOL];
// All threads of this process. Counted beforehand they could be too many: one that was
// replaced may not have ended yet.
enum { ALL_THREADS = 1 + 0 + 1 + 2 + 8 };
static uint64_t random_state = 1;

static uint64_t random_bits(void) {
  uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}
static int below(int bound) { return (int)(random_bits() % (uint64_t)bound); }

typedef struct {
  RolloutOutcome outcome;
  char message[TEXT];
  double state[MAX_STEP][2];
  double sensordata[MAX_STEP][NSENSORDATA];
} Result;

typedef struct {
  int nbatch, nstep, ndata, fill, chunk_size, hidden;
  Model models[MAX_BATCH];
  double start[MAX_BATCH][2];
  double control[MAX_BATCH][MAX_STEP];
  Result expected[MAX_BATCH];
} Case;

static const double UNTOUCHED = -77;

// What becomes of one rollout, said as simply as possible.
static Result reference(const Case* c, int r) {
  static const char* functions[NFAULT] = {"", "reset", "set start", "set control",
                                          "step", "get", "", "get", "text"};
  const Model* m = &c->models[r];
  Result result;
  double x[2], last[2], sensed[2] = {0, 0};
  int t, k, end = c->nstep;
  int unreadable = (m->fault == WARN_GET && c->fill == ROLLOUT_FILL_HOLD) ||
                   (m->fault == WARN_TEXT && way != TAKE_ERROR);
  int warns = m->fault >= WARN && !unreadable;
  memset(&result, 0, sizeof(result));
  memcpy(x, c->start[r], sizeof(x));
  memcpy(last, x, sizeof(x));
  result.outcome.warning = -1;
  if ((m->fault == RESET && c->hidden) || m->fault == START) {
    end = 0;
    result.outcome.status = ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR;
  } else if (m->fault >= CONTROL && m->step < c->nstep) {
    end = m->step;
    result.outcome.status =
        warns ? ROLLOUT_OUTCOME_STATUS_WARNED : ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR;
  }
  result.outcome.steps = (uint64_t)end;
  for (t = 0; t < c->nstep; t++) {
    if (t < end || (t == end && warns)) {
      sensed[0] = x[1];
      sensed[1] = m->id;
      x[0] += 1;
      x[1] += 0.5 * c->control[r][t] + m->id;
      memcpy(last, x, sizeof(x));
    }
    for (k = 0; k < 2; k++) {
      int invalid = t >= end;
      result.state[t][k] = last[k];
      result.sensordata[t][k] = sensed[k];
      if (invalid && c->fill != ROLLOUT_FILL_HOLD) {
        double filled = c->fill == ROLLOUT_FILL_NAN ? NAN : UNTOUCHED;
        result.state[t][k] = result.sensordata[t][k] = filled;
      }
    }
  }
  if (result.outcome.status == ROLLOUT_OUTCOME_STATUS_WARNED) {
    result.outcome.warning = 1;
    snprintf(result.message, TEXT, "warning 1 about %d",
             m->fault == WARN_TEXT ? INFO_WITHOUT_TEXT : INFO_OF_WARNING);
  } else if (result.outcome.status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR) {
    snprintf(result.message, TEXT, "%s: is asked to fail", functions[m->fault]);
  }
  return result;
}

static void make_case(Case* c, int trouble) {
  int r, t;
  memset(c, 0, sizeof(*c));
  c->nbatch = 1 + below(MAX_BATCH);
  c->nstep = below(MAX_STEP + 1);
  c->ndata = 1 + below(NDATA);
  c->fill = below(3);
  c->chunk_size = below(4);
  c->hidden = below(2);
  for (r = 0; r < c->nbatch; r++) {
    Model* m = &c->models[r];
    m->id = r + 1;
    m->step = below(MAX_STEP);
    m->fault = below(100) < trouble ? (Fault)(1 + below(NFAULT - 1)) : NOTHING;
    if (m->fault == RESET && !c->hidden) {
      m->fault = NOTHING;
    }
    c->start[r][1] = below(1000);
    for (t = 0; t < MAX_STEP; t++) {
      c->control[r][t] = 1 + below(1000);
    }
  }
  for (r = 0; r < c->nbatch; r++) {
    c->expected[r] = reference(c, r);
  }
}

// Whether these are the same numbers; any NaN is as good as another.
static int same(const double* a, const double* b, size_t n) {
  size_t i;
  for (i = 0; i < n; i++) {
    if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i]))) {
      return 0;
    }
  }
  return 1;
}

static void describe(RolloutModel* model, const Model* m, int hidden) {
  memset(model, 0, sizeof(*model));
  model->model = m;
  model->nsensordata = NSENSORDATA;
  model->flags = hidden ? ROLLOUT_MODEL_HIDDEN_STATE : 0;
}

static void describe_data(RolloutData* data, Data* d) {
  memset(data, 0, sizeof(*data));
  data->data = d;
  data->sensordata = d->sensordata;
  data->warning_number = &d->warning[0].number;
  data->nwarning = NWARNING;
}

// Runs a case and compares. Returns whether all is as it should be, for threads that
// must not check.
static int run_case(const Case* c, RolloutPool* pool) {
  double state[MAX_BATCH * MAX_STEP * 2], sensordata[MAX_BATCH * MAX_STEP * NSENSORDATA];
  RolloutOutcome outcomes[MAX_BATCH];
  char messages[MAX_BATCH][TEXT];
  RolloutEngine engine = make_engine();
  RolloutModel models[MAX_BATCH];
  RolloutData data[NDATA];
  Data memory[NDATA];
  RolloutRequest request = rollout_request();
  RolloutError error = rollout_error();
  RolloutStatus status;
  size_t rows = (size_t)(c->nbatch * c->nstep), i;
  int r, nfailed = 0, first = -1, good = 1;
  memset(memory, 0, sizeof(memory));
  for (r = 0; r < c->nbatch; r++) {
    describe(&models[r], &c->models[r], c->hidden);
    if (c->expected[r].outcome.status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR) {
      first = first < 0 ? r : first;
      nfailed++;
    }
  }
  for (r = 0; r < c->ndata; r++) {
    memory[r].ctrl = 1e9;
    memory[r].sensordata[0] = 1e9;
    memory[r].warning[2].number = 3;
    describe_data(&data[r], &memory[r]);
  }
  for (i = 0; i < rows * 2; i++) {
    state[i] = sensordata[i] = UNTOUCHED;
  }
  request.engine = &engine;
  request.models = models;
  request.nmodel = (size_t)c->nbatch;
  request.data = data;
  request.ndata = (size_t)c->ndata;
  request.nbatch = (size_t)c->nbatch;
  request.nstep = (size_t)c->nstep;
  request.fill = c->fill;
  request.chunk_size = (size_t)c->chunk_size;
  request.initial_state = rollout_rows(c->start[0], request.nbatch, 2);
  // Rows of MAX_STEP controls, of which nstep are read.
  request.control = rollout_strided(
      c->control[0], rows ? (request.nbatch - 1) * MAX_STEP + request.nstep : 0, MAX_STEP, 1);
  request.state = rollout_output(state, rows * 2);
  request.sensordata = rollout_output(sensordata, rows * NSENSORDATA);
  request.outcomes = outcomes;
  request.noutcome = request.nbatch;
  request.messages = messages[0];
  request.nmessage = request.nbatch * TEXT;
  request.message_size = TEXT;
  status = run_in_some_way(pool, &request, &error);
  good &= status == (nfailed ? ROLLOUT_STATUS_ROLLOUTS_FAILED : ROLLOUT_STATUS_OK);
  good &= error.nfailed == nfailed && error.index == first;
  good &= strcmp(error.text, nfailed ? c->expected[first].message : "") == 0;
  for (r = 0; r < c->nbatch; r++) {
    const Result* expected = &c->expected[r];
    size_t row = (size_t)(r * c->nstep) * 2, size = (size_t)c->nstep * 2;
    good &= memcmp(&outcomes[r], &expected->outcome, sizeof(RolloutOutcome)) == 0;
    good &= strcmp(messages[r], expected->message) == 0;
    good &= same(state + row, expected->state[0], size);
    good &= same(sensordata + row, expected->sensordata[0], size);
  }
  for (r = 0; r < c->ndata; r++) {
    int unresettable = 0, k;
    for (k = 0; k < c->nbatch; k++) {
      unresettable |= c->models[k].fault == RESET;
    }
    good &= !memory[r].undefined || unresettable;
  }
  if (!good) {
    for (r = 0; r < c->nbatch; r++) {
      fprintf(stderr, "rollout %d: fault %d in step %d: status %d, steps %d, %s\n", r,
              c->models[r].fault, c->models[r].step, outcomes[r].status,
              (int)outcomes[r].steps, messages[r]);
    }
    fprintf(stderr, "way %d, retires %d: status %d, %s\n", way, retires, status, error.text);
  }
  return good;
}

// So many repetitions, or some of them under a tool in which everything takes long.
static int repetitions(int count) { return check_parts == 1 ? count : (count + 4) / 5; }

// Does something for each way to report errors, with and without retiring threads.
static void each_way(void (*body)(void)) {
  for (way = TEXT_THREAD; way < NWAY; way = (Way)(way + 1)) {
    for (retires = 0; retires < 2; retires++) {
      spent = 0;
      body();
      if (check_why[0] && !strstr(check_why, " [")) {
        size_t used = strlen(check_why);
        snprintf(check_why + used, sizeof(check_why) - used, " [%s%s]", WAYS[way],
                 retires ? ", threads are retired" : "");
      }
    }
  }
  way = TEXT_THREAD;
  retires = 0;
}

// ---------------------------------------------------------------- cases

static void random_errors(void) {
  int round, p;
  for (round = 0; round < repetitions(60); round++) {
    Case c;
    make_case(&c, (round % 4) * 30);
    for (p = 0; p < NPOOL; p++) {
      int set = below(2);
      host_thread_handlers(set);
      CHECK(run_case(&c, pools[p]));
      check_thread_handlers(set);
      check_process_handlers();
    }
  }
  host_thread_handlers(0);
  CHECK(violations == 0);
  CHECK(host_errors == 0 && host_warnings == 0 && host_infos == 0);
}

static void errors_of_any_kind_stay_with_their_rollout(void) { each_way(random_errors); }

// Threads of the host that come and go, each with requests of its own.
static void* short_lived_caller(void* argument) {
  const Case* c = (const Case*)argument;
  void* result = NULL;
  int round;
  host_thread_handlers(1);
  for (round = 0; round < 3; round++) {
    if (!run_case(c, pools[round % NPOOL])) {
      result = argument;
    }
    if (thread_error != host_error || thread_warning != host_warning || thread_log != host_log) {
      result = argument;
    }
  }
  return result;
}

static void callers(void) {
  enum { NCALLER = 4 };
  static Case cases[NCALLER];
  int round, i;
  for (round = 0; round < repetitions(10); round++) {
    pthread_t threads[NCALLER];
    for (i = 0; i < NCALLER; i++) {
      make_case(&cases[i], 50);
      CHECK(pthread_create(&threads[i], NULL, short_lived_caller, &cases[i]) == 0);
    }
    for (i = 0; i < NCALLER; i++) {
      void* result;
      CHECK(pthread_join(threads[i], &result) == 0);
      CHECK(result == NULL);
    }
    check_process_handlers();
  }
  CHECK(violations == 0);
}

static void several_callers_at_once(void) { each_way(callers); }

// ---------------------------------------------------------------- messages of others

static void send_info(const Model* m, Data* d) {
  (void)m;
  (void)d;
  send(INFO, NULL, "an information");
}

// Messages that are neither errors nor warnings go where they would have gone.
static void informations(void) {
  Case c;
  int set;
  // (This thread may have been spent by another case, and rollouts run elsewhere then.)
  if (retires || (way != LOG_THREAD && way != LOG_PROCESS)) {
    return;
  }
  memset(&c, 0, sizeof(c));
  c.nbatch = 1;
  c.nstep = 3;
  c.ndata = 1;
  c.expected[0] = reference(&c, 0);
  in_step = send_info;
  for (set = 0; set < 2; set++) {
    host_infos = 0;
    // The thread's handler must see them where there is one. (With handlers of the
    // process only there is none of threads.)
    process_log = set && way == LOG_THREAD ? default_log : host_log;
    thread_log = set && way == LOG_THREAD ? host_log : NULL;
    CHECK(run_case(&c, pools[0]));
    CHECK(host_infos == 3);
    thread_log = NULL;
    process_log = host_log;
  }
  in_step = NULL;
  host_infos = 0;
}

static void other_messages_go_where_they_went(void) { each_way(informations); }

// A thread that has nothing to do with the library warns, informs and fails all the
// while, and sees its own handlers called.
typedef struct {
  int stop, rounds, errors;
} Bystander;

static void* stand_by(void* argument) {
  Bystander* bystander = (Bystander*)argument;
  jmp_buf recover;
  while (!__atomic_load_n(&bystander->stop, __ATOMIC_RELAXED)) {
    send(WARNING, NULL, "a warning of the host's");
    if (way == LOG_THREAD || way == LOG_PROCESS) {
      send(INFO, NULL, "an information of the host's");
    }
    host_recover = &recover;
    if (setjmp(recover) == 0) {
      send(ERROR, NULL, "an error of the host's");
    }
    __atomic_fetch_add(&bystander->rounds, 1, __ATOMIC_RELAXED);
    sched_yield();
  }
  return NULL;
}

static void bystanders(void) {
  Bystander bystander = {0, 0, 0};
  pthread_t thread;
  struct timespec pause = {0, 1000000};
  int round, logs = way == LOG_THREAD || way == LOG_PROCESS;
  if (way == TAKE_ERROR) {
    return;
  }
  CHECK(pthread_create(&thread, NULL, stand_by, &bystander) == 0);
  for (round = 0; round < repetitions(40) ||
                  __atomic_load_n(&bystander.rounds, __ATOMIC_RELAXED) < 10;
       round++) {
    Case c;
    // Where one thread at a time runs, the other one may have had no turn yet.
    if (round >= repetitions(40)) {
      nanosleep(&pause, NULL);
    }
    make_case(&c, 60);
    CHECK(run_case(&c, pools[round % NPOOL]));
  }
  __atomic_store_n(&bystander.stop, 1, __ATOMIC_RELAXED);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(host_errors == bystander.rounds);
  CHECK(host_warnings == bystander.rounds);
  CHECK(host_infos == (logs ? bystander.rounds : 0));
  check_process_handlers();
  host_errors = host_warnings = host_infos = 0;
}

static void other_threads_keep_their_handlers(void) { each_way(bystanders); }

// ---------------------------------------------------------------- callbacks of the engine

static Case inner;
static int inner_good, inner_runs;

static void run_inner(const Model* m, Data* d) {
  // The inner rollouts step too, and on their own models.
  if (m->id < 100 || d->x[0] != 0) {
    return;
  }
  inner_runs++;
  inner_good &= run_case(&inner, pools[1 + inner_runs % (NPOOL - 1)]);
}

static void make_outer(Case* c, Fault fault) {
  int r;
  memset(c, 0, sizeof(*c));
  c->nbatch = 3;
  c->nstep = 2;
  c->ndata = 3;
  c->fill = ROLLOUT_FILL_NAN;
  for (r = 0; r < c->nbatch; r++) {
    c->models[r].id = 100 + r;
    c->control[r][0] = c->control[r][1] = 1;
  }
  c->models[1].fault = fault;
  for (r = 0; r < c->nbatch; r++) {
    c->expected[r] = reference(c, r);
  }
}

// A callback runs rollouts that fail, and then its own rollout fails.
static void nested(void) {
  Case outer;
  int round, fault;
  for (round = 0; round < 4; round++) {
    for (fault = NOTHING; fault < NFAULT; fault++) {
      if (fault == RESET) {
        continue;
      }
      make_outer(&outer, (Fault)fault);
      make_case(&inner, 60);
      inner_good = 1;
      inner_runs = 0;
      in_step = run_inner;
      CHECK(run_case(&outer, pools[0]));
      in_step = NULL;
      CHECK(inner_good);
      CHECK(inner_runs == (fault == START || fault == CONTROL ? 2 : 3));
    }
  }
  CHECK(violations == 0);
  violations = 0;
  check_process_handlers();
}

static void rollouts_inside_a_callback(void) { each_way(nested); }

// A task that a callback has scheduled fails: that is the host's error, since between it
// and the trap there are frames of the library.
static int task_errors;

static void failing_task(void* user) {
  jmp_buf recover;
  (void)user;
  host_recover = &recover;
  if (setjmp(recover) == 0) {
    send(ERROR, NULL, "an error of a task");
  }
  host_recover = NULL;
  task_errors++;
}

static void warning_task(void* user) {
  (void)user;
  send(WARNING, NULL, "a warning of a task");
}

static void schedule_inside(const Model* m, Data* d) {
  (void)m;
  (void)d;
  // A pool of no threads runs them here.
  rollout_pool_schedule(pools[0], failing_task, NULL, NULL);
  rollout_pool_schedule(pools[0], warning_task, NULL, NULL);
}

static void tasks_inside(void) {
  Case c;
  int set;
  if (way == TAKE_ERROR) {
    return;
  }
  for (set = 0; set < 2; set++) {
    make_outer(&c, STEP);
    task_errors = 0;
    in_step = schedule_inside;
    host_thread_handlers(set);
    CHECK(run_case(&c, pools[0]));
    check_thread_handlers(set);
    host_thread_handlers(0);
    in_step = NULL;
    // Two rollouts of two steps, and one that fails in its first.
    CHECK(task_errors == 5 && host_errors == 5 && host_warnings == 5);
    host_errors = host_warnings = 0;
    check_process_handlers();
  }
}

static void errors_of_a_task_inside_a_callback_are_the_hosts(void) { each_way(tasks_inside); }

// ---------------------------------------------------------------- what the host changes

static void other_error(const void* text) { host_error(text); }
static void other_warning(const void* text) { host_warning(text); }
static void other_log(const void* message) { host_log(message); }

static void change_handlers(const Model* m, Data* d) {
  (void)m;
  (void)d;
  process_error = other_error;
  process_warning = other_warning;
  process_log = other_log;
}

static void changed_during_a_run(void) {
  Case c;
  memset(&c, 0, sizeof(c));
  c.nbatch = 1;
  c.nstep = 1;
  c.ndata = 1;
  c.expected[0] = reference(&c, 0);
  in_step = change_handlers;
  CHECK(run_case(&c, pools[0]));
  in_step = NULL;
  CHECK(process_error == other_error);
  CHECK(process_warning == other_warning);
  CHECK(process_log == other_log);
  process_error = host_error;
  process_warning = host_warning;
  process_log = host_log;
}

static void handlers_that_the_host_sets_meanwhile_stay(void) { each_way(changed_during_a_run); }

// A host that saves the handlers while ours are there and puts them back later must not
// send us round in circles.
static RolloutHandler saved_error, saved_log;

static void save_handlers(const Model* m, Data* d) {
  (void)m;
  (void)d;
  saved_error = process_error;
  saved_log = process_log;
}

static void saved_during_a_run(void) {
  Case c;
  int round;
  if (way != TEXT_PROCESS && way != LOG_PROCESS) {
    return;
  }
  make_outer(&c, STEP);
  in_step = save_handlers;
  CHECK(run_case(&c, pools[0]));
  in_step = NULL;
  CHECK(way != TEXT_PROCESS || saved_error != host_error);
  CHECK(way != LOG_PROCESS || saved_log != host_log);
  for (round = 0; round < 2; round++) {
    process_error = saved_error;
    process_log = saved_log;
    failing_task(NULL);
    CHECK(host_errors == round + 1);
    CHECK(run_case(&c, pools[1]));
  }
  process_error = host_error;
  process_log = host_log;
  host_errors = 0;
}

static void handlers_that_the_host_has_saved_meanwhile_do_no_harm(void) {
  each_way(saved_during_a_run);
}

// ---------------------------------------------------------------- the guard

typedef struct {
  const char* text;
  int calls;
  RolloutEngine engine;
} Guarded;

static void guarded_call(void* user) {
  Guarded* guarded = (Guarded*)user;
  guarded->calls++;
  send(WARNING, NULL, "a warning");
  if (guarded->text) {
    send(ERROR, NULL, guarded->text);
  }
}

// Calls itself under the guard, and then fails for another reason.
static void guarded_twice(void* user) {
  Guarded* guarded = (Guarded*)user;
  RolloutError error = rollout_error();
  RolloutStatus status = rollout_guard(&guarded->engine, guarded_call, guarded, &error);
  if (status == ROLLOUT_STATUS_ENGINE_ERROR && strcmp(error.text, "inner") == 0) {
    send(ERROR, "here", "outer");
  }
}

static void guard(void) {
  Guarded guarded = {NULL, 0, make_engine()};
  RolloutError error = rollout_error();
  char text[201];
  if (way == TAKE_ERROR) {
    return;
  }
  host_thread_handlers(1);
  CHECK_STATUS(rollout_guard(&guarded.engine, guarded_call, &guarded, &error), ROLLOUT_STATUS_OK,
               &error);
  CHECK(guarded.calls == 1 && error.text[0] == '\0');
  guarded.text = "the reason";
  CHECK_STATUS(rollout_guard(&guarded.engine, guarded_call, &guarded, &error),
               ROLLOUT_STATUS_ENGINE_ERROR, &error);
  CHECK(guarded.calls == 2 && strcmp(error.text, "the reason") == 0 && error.index == -1);
  CHECK_STATUS(rollout_guard(&guarded.engine, guarded_call, &guarded, NULL),
               ROLLOUT_STATUS_ENGINE_ERROR, &error);
  // An empty reason is told as one.
  guarded.text = "";
  CHECK_STATUS(rollout_guard(&guarded.engine, guarded_call, &guarded, &error),
               ROLLOUT_STATUS_ENGINE_ERROR, &error);
  CHECK(strstr(error.text, "without a reason") != NULL);
  memset(text, 'y', sizeof(text) - 1);
  text[sizeof(text) - 1] = '\0';
  guarded.text = text;
  CHECK_STATUS(rollout_guard(&guarded.engine, guarded_call, &guarded, &error),
               ROLLOUT_STATUS_ENGINE_ERROR, &error);
  CHECK(strncmp(error.text, text, 199) == 0);
  guarded.text = "inner";
  CHECK_STATUS(rollout_guard(&guarded.engine, guarded_twice, &guarded, &error),
               ROLLOUT_STATUS_ENGINE_ERROR, &error);
  CHECK(strcmp(error.text, "here: outer") == 0);
  guarded.engine.hooks.flags = 77;
  CHECK_STATUS(rollout_guard(&guarded.engine, guarded_call, &guarded, &error),
               ROLLOUT_STATUS_BAD_ENGINE, &error);
  CHECK(host_errors == 0 && host_warnings == 0);
  check_thread_handlers(1);
  check_process_handlers();
  host_thread_handlers(0);
}

static void the_guard_returns_what_the_engine_says(void) { each_way(guard); }

// ---------------------------------------------------------------- sizes

static int failing_size(const void* model, uint32_t spec) {
  (void)model;
  (void)spec;
  send(ERROR, "size", "is asked to fail");
  return 1;
}

static void sizes(void) {
  RolloutEngine engine = make_engine();
  Model m = {0, NOTHING, 0};
  Data d;
  RolloutModel model;
  RolloutData data;
  double start[2] = {0, 0};
  RolloutRequest request = rollout_request();
  RolloutError error = rollout_error();
  if (way == TAKE_ERROR) {
    return;
  }
  memset(&d, 0, sizeof(d));
  engine.state_size = failing_size;
  describe(&model, &m, 0);
  describe_data(&data, &d);
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = &data;
  request.ndata = 1;
  request.nbatch = 1;
  request.initial_state = rollout_shared(start, 2);
  CHECK_STATUS(rollout_run(pools[0], &request, &error), ROLLOUT_STATUS_BAD_ENGINE, &error);
  CHECK(strcmp(error.text, "engine.state_size: size: is asked to fail") == 0);
  check_process_handlers();
}

static void an_error_in_state_size_refuses_the_request(void) { each_way(sizes); }

// ---------------------------------------------------------------- defaults

static int failing_defaults;

// The place is an input whose default comes from the model, and cannot be read.
static void get_place(const void* model, const void* data, double* state, uint32_t spec) {
  if (spec == SPEC_PLACE) {
    failing_defaults++;
    ((Data*)data)->undefined = 1;
    fail("get place", "is asked to fail");
    return;
  }
  get_state(model, data, state, spec);
}

typedef struct {
  RolloutRequest request;
  RolloutError error;
  RolloutStatus status;
} Run;

static void run_without_threads(void* user) {
  Run* run = (Run*)user;
  run->status = rollout_run(pools[0], &run->request, &run->error);
}

// A request that cannot read the model's defaults resets before each rollout, and has
// nothing else to tell. On a worker of another pool, which prefers the second data, so
// that no rollout uses the first one, with which the defaults were to be read.
static void unreadable_defaults(void) {
  enum { NBATCH = 5 };
  RolloutEngine engine = make_engine();
  Model m = {1, NOTHING, 0};
  RolloutModel model;
  Data memory[2];
  RolloutData data[2];
  double start[2] = {0, 0}, state[NBATCH * 2];
  RolloutError error = rollout_error();
  Run run;
  int i;
  engine.get_state = get_place;
  engine.user = SPEC_CTRL | SPEC_PLACE;
  engine.model_inputs = SPEC_PLACE;
  memset(memory, 0, sizeof(memory));
  describe(&model, &m, 0);
  for (i = 0; i < 2; i++) {
    memory[i].ctrl = 1e9;
    describe_data(&data[i], &memory[i]);
  }
  run.request = rollout_request();
  run.error = rollout_error();
  run.request.engine = &engine;
  run.request.models = &model;
  run.request.nmodel = 1;
  run.request.data = data;
  run.request.ndata = 2;
  run.request.nbatch = NBATCH;
  run.request.nstep = 1;
  run.request.initial_state = rollout_shared(start, 2);
  run.request.state = rollout_output(state, NBATCH * 2);
  failing_defaults = 0;
  rollout_pool_reset_count(pools[1], NULL);
  rollout_pool_schedule(pools[1], run_without_threads, &run, &error);
  CHECK_STATUS(rollout_pool_wait_count(pools[1], 1, &error), ROLLOUT_STATUS_OK, &error);
  CHECK_STATUS(run.status, ROLLOUT_STATUS_OK, &run.error);
  CHECK(failing_defaults == 1);
  for (i = 0; i < NBATCH; i++) {
    CHECK(state[2 * i] == 1 && state[2 * i + 1] == 1);
  }
  // (A thread that is to be retired has no right to reset it.)
  CHECK(retires || !memory[0].undefined);
  CHECK(violations == 0);
  violations = 0;
}

static void defaults_that_cannot_be_read_cost_a_reset(void) { each_way(unreadable_defaults); }

// ---------------------------------------------------------------- again and again

static void again_and_again(void) {
  // Starting a thread takes as long as some hundred steps.
  size_t nbatch = (retires ? 2000 : 125000) / check_parts, half = 0;
  RolloutEngine engine = make_engine();
  Model m = {1, STEP, 0};
  RolloutModel model;
  Data memory[NDATA];
  RolloutData data[NDATA];
  double start[2] = {0, 0};
  RolloutRequest request = rollout_request();
  int r;
  long before = 0;
  memset(memory, 0, sizeof(memory));
  describe(&model, &m, 0);
  for (r = 0; r < NDATA; r++) {
    describe_data(&data[r], &memory[r]);
  }
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = data;
  request.ndata = NDATA;
  request.nbatch = nbatch;
  request.nstep = 1;
  request.initial_state = rollout_shared(start, 2);
  for (half = 0; half < 2; half++) {
    RolloutError error = rollout_error();
    CHECK_STATUS(rollout_run(pools[2], &request, &error), ROLLOUT_STATUS_ROLLOUTS_FAILED, &error);
    CHECK(error.nfailed == (int)nbatch);
    CHECK(process_threads_become(ALL_THREADS));
    if (half == 0) {
      before = process_memory();
    }
  }
  // A megabyte is eight bytes for each error; none has kept even one allocation. (New
  // threads may each have begun an arena of malloc's, but none has kept a stack.)
  CHECK(!PROCESS_MEMORY_COUNTS || process_memory() - before < (retires ? 4 : 1) << 20);
  CHECK(violations == 0);
  violations = 0;
}

static void a_million_errors_leave_nothing_behind(void) { each_way(again_and_again); }

// ---------------------------------------------------------------- no thread to be had

// The system refuses a thread's stack.
static void refuse_threads(int refuse) {
  struct rlimit limit;
  long pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld", &pages) != 1 || getrlimit(RLIMIT_AS, &limit)) {
    CHECK(!"limits can be read");
  }
  if (file) {
    fclose(file);
  }
  // Less than the 8 MiB of a stack, and enough for everything else.
  limit.rlim_cur = refuse ? (rlim_t)(pages * sysconf(_SC_PAGESIZE) + (6 << 20)) : limit.rlim_max;
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

// Every rollout fails, and so each thread that takes part must be replaced. The caller
// is the first one that there is no thread for. In a process of its own, where no thread
// has left its stack for another one.
static int child_refused(const char* nthread) {
  enum { NBATCH = 8 };
  RolloutEngine engine;
  Model m = {1, STEP, 1};
  RolloutModel model;
  Data memory[3];
  RolloutData data[3];
  double start[2] = {0, 0};
  double state[NBATCH * 3 * 2];
  RolloutOutcome outcomes[NBATCH];
  RolloutRequest request = rollout_request();
  RolloutError error = rollout_error();
  RolloutPool* pool = NULL;
  int round, i, failed;
  // No memory that threads map for themselves, which would make the limit uncertain.
  mallopt(M_ARENA_MAX, 1);
  way = LOG_THREAD;
  retires = refused = 1;
  engine = make_engine();
  memset(memory, 0, sizeof(memory));
  describe(&model, &m, 0);
  for (i = 0; i < 3; i++) {
    describe_data(&data[i], &memory[i]);
  }
  if (rollout_pool_create(atoi(nthread), &pool, &error)) {
    return 1;
  }
  request.engine = &engine;
  request.models = &model;
  request.nmodel = 1;
  request.data = data;
  request.ndata = 3;
  request.nbatch = NBATCH;
  request.nstep = 3;
  request.chunk_size = 2;
  request.initial_state = rollout_shared(start, 2);
  request.state = rollout_output(state, NBATCH * 3 * 2);
  request.outcomes = outcomes;
  request.noutcome = NBATCH;
  // (Once a worker has been replaced, its stack can serve another thread.)
  for (round = 0; round < (atoi(nthread) ? 1 : 3); round++) {
    for (i = 0; i < NBATCH * 3 * 2; i++) {
      state[i] = UNTOUCHED;
    }
    refuse_threads(1);
    CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_NO_THREAD, &error);
    refuse_threads(0);
    CHECK(strstr(error.text, "must be retired after an engine error") != NULL);
    failed = 0;
    for (i = 0; i < NBATCH; i++) {
      const double* rows = state + i * 3 * 2;
      if (outcomes[i].status == ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR) {
        CHECK(outcomes[i].steps == 1 && rows[0] == 1 && isnan(rows[2]) && isnan(rows[5]));
        failed++;
      } else {
        CHECK(outcomes[i].status == ROLLOUT_OUTCOME_STATUS_NOT_STARTED);
        CHECK(rows[0] == UNTOUCHED && rows[5] == UNTOUCHED);
      }
    }
    // In the first round the caller at least has run one.
    CHECK(failed < NBATCH && (round > 0 || failed > 0));
  }
  CHECK(violations == 0);
  for (i = 0; i < 3; i++) {
    CHECK(!memory[i].undefined);
  }
  refused = 0;
  // Whatever was refused is made good as soon as there are threads again.
  CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_ROLLOUTS_FAILED, &error);
  CHECK(error.nfailed == NBATCH);
  m.fault = NOTHING;
  CHECK_STATUS(rollout_run(pool, &request, &error), ROLLOUT_STATUS_OK, &error);
  CHECK(violations == 0);
  rollout_pool_destroy(pool);
  CHECK(process_threads_become(1));
  if (check_why[0]) {
    printf("%s\n", check_why);
  }
  return check_why[0] != '\0';
}

static void where_the_system_refuses_a_thread_the_status_says_so(void) {
  static const char* nthread[] = {"0", "1", "2"};
  int i;
  for (i = 0; i < 3; i++) {
    if (!CHECK(process_again("refused", nthread[i], 0) == 0)) {
      char why[500] = "";
      FILE* file = fopen("output.txt", "r");
      if (file && fgets(why, sizeof(why), file)) {
        fprintf(stderr, "%s threads: %s\n", nthread[i], why);
      }
      if (file) {
        fclose(file);
      }
    }
  }
}

int main(int argc, char** argv) {
  int p;
  check_begin();
  if (argc == 3 && strcmp(argv[1], "refused") == 0) {
    return child_refused(argv[2]);
  }
  process_error = host_error;
  process_warning = host_warning;
  process_log = host_log;
  for (p = 0; p < NPOOL; p++) {
    RolloutError error = rollout_error();
    if (rollout_pool_create(NTHREAD[p], &pools[p], &error)) {
      printf("FAILED pools: %s\n", error.text);
      return 1;
    }
  }
  CASE(errors_of_any_kind_stay_with_their_rollout);
  CASE(several_callers_at_once);
  CASE(other_messages_go_where_they_went);
  CASE(other_threads_keep_their_handlers);
  CASE(rollouts_inside_a_callback);
  CASE(errors_of_a_task_inside_a_callback_are_the_hosts);
  CASE(handlers_that_the_host_sets_meanwhile_stay);
  CASE(handlers_that_the_host_has_saved_meanwhile_do_no_harm);
  CASE(the_guard_returns_what_the_engine_says);
  CASE(an_error_in_state_size_refuses_the_request);
  CASE(defaults_that_cannot_be_read_cost_a_reset);
  CASE(a_million_errors_leave_nothing_behind);
  CASE(where_the_system_refuses_a_thread_the_status_says_so);
  for (p = 0; p < NPOOL; p++) {
    rollout_pool_destroy(pools[p]);
  }
  return check_failures;
}
