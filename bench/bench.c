// bench: what a call to rollout_run costs, beside its peers.
//
//   bench <dm_control suite dir> [--rounds N] [--threads N] [--json FILE]
//
// Four contenders do the same work, from the same start states and controls to
// arrays of states and sensor values:
//
//   loop     one plain loop over mj_step: what a careful user writes;
//   ideal    one such loop per thread, each with an equal share of the rollouts and
//            all of them running free: parallel work without any cost for it, but
//            at the mercy of how equal the shares are;
//   rollout  rollout_run on a pool that lives through the run;
//   mjb      mjb_rollout, MuJoCo's own batches (mjbatch.h), on threads that do too.
//
// Machines are noisy: others use them, and clocks go up and down. So nothing is
// compared with something measured much later. A round runs each contender once, in
// an order that rotates, and times are divided by each other within a round; the
// medians of these ratios over all rounds are reported, with their quartiles. Work
// that is too short to be timed is repeated back to back, as a control loop does.
//
// All contenders must give the same bits, or it was not the same work. That is
// checked after every round, and the program fails if it is not so.

#define _POSIX_C_SOURCE 200809L  // clock_gettime, nanosleep

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "contenders.h"
#include "problem.h"
#include "report.h"
#include "rollout.h"
#include "tools.h"

enum { NWARMUP = 2 };  // rounds that do not count, before those that do

static double sample(Rig* rig, size_t contender, double* calls) {
  // Threads that still look out for the last contender's next call fall asleep.
  const struct timespec pause = {0, 500 * 1000};
  nanosleep(&pause, NULL);
  switch (contender) {
    case LOOP:
      return time_calls(rig, call_loop, calls);
    case ROLLOUT:
      return time_calls(rig, call_rollout, calls);
    case MJB:
      return time_calls(rig, call_mjb, calls);
    default:
      return time_ideal(rig);
  }
}

// Compares what the contenders wrote with what the loop wrote.
static void check_bits(const Rig* rig) {
  const Problem* problem = &rig->problem;
  const Workload* work = &problem->work;
  const size_t row = work->nbatch * work->nstep * sizeof(double);
  const Output* loop = &rig->output[LOOP];
  for (size_t c = 0; c < NCONTENDER; c++) {
    const Output* output = &rig->output[c];
    const int state = memcmp(output->state, loop->state, row * problem->nstate);
    const int sensordata = memcmp(output->sensordata, loop->sensordata, row * problem->nsensordata);
    if (state != 0 || sensordata != 0) {
      fail("%s %zu x %zu: %s of `%s` differs from that of `loop`", work->model, work->nbatch,
           work->nstep, state != 0 ? "the state" : "the sensordata", kName[c]);
    }
  }
}

static Times measure(const Run* run, const Workload* work) {
  Rig* rig = make_rig(run->suite, run->nthread, work);
  Times times = make_times(work, run->nround);
  for (size_t round = 0; round < NWARMUP + run->nround; round++) {
    // The times of the warm-up are overwritten.
    const size_t kept = round < NWARMUP ? 0 : round - NWARMUP;
    for (size_t position = 0; position < NCONTENDER; position++) {
      const size_t c = (round + position) % NCONTENDER;
      times.sample[c][kept] = sample(rig, c, times.call[c] + kept * work->ncall);
    }
    check_bits(rig);
  }
  free_rig(rig);
  return times;
}

// Blanks stand for what would not fit into a JSON string.
static void read_cpu_name(char* name, size_t size) {
  snprintf(name, size, "unknown CPU");
  FILE* file = fopen("/proc/cpuinfo", "r");
  char line[512];
  while (file && fgets(line, sizeof(line), file)) {
    const char* colon = strstr(line, ": ");
    if (colon && strncmp(line, "model name", strlen("model name")) == 0) {
      snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
      break;
    }
  }
  for (char* c = name; *c; c++) {
    *c = *c == '"' || *c == '\\' || *c < ' ' ? ' ' : *c;
  }
  if (file) {
    fclose(file);
  }
}

static size_t parse_count(const char* option, const char* text) {
  char* end;
  const long count = strtol(text, &end, 10);
  if (*end != '\0' || count < 1 || count > 10000) {
    fail("%s: `%s` is not a number from 1 to 10000", option, text);
  }
  return (size_t)count;
}

static void parse(int argc, char** argv, Run* run) {
  for (int i = 1; i < argc; i++) {
    const char* value = i + 1 < argc ? argv[i + 1] : NULL;
    if (strncmp(argv[i], "--", 2) != 0 && !run->suite) {
      run->suite = argv[i];
      continue;
    }
    if (strcmp(argv[i], "--rounds") == 0 && value) {
      run->nround = parse_count(argv[i], value);
    } else if (strcmp(argv[i], "--threads") == 0 && value) {
      run->nthread = parse_count(argv[i], value);
    } else if (strcmp(argv[i], "--json") == 0 && value) {
      run->json = value;
    } else {
      run->suite = NULL;
      break;
    }
    i++;
  }
  if (!run->suite) {
    fail("usage: bench <dm_control suite dir> [--rounds N] [--threads N] [--json FILE]");
  }
}

int main(int argc, char** argv) {
  Run run = {.nround = 15, .ncpu = (size_t)rollout_default_nthread()};
  run.nthread = run.ncpu;
  read_cpu_name(run.cpu, sizeof(run.cpu));
  const time_t seconds = time(NULL);
  strftime(run.date, sizeof(run.date), "%Y-%m-%dT%H:%M:%SZ", gmtime(&seconds));
  parse(argc, argv, &run);

  Times times[NWORKLOAD];
  print_head(&run);
  for (size_t i = 0; i < NWORKLOAD; i++) {
    times[i] = measure(&run, &kWorkload[i]);
    print_times(&kWorkload[i], &times[i], run.nround);
  }
  puts("bits equal: all contenders, in every round");
  if (run.json) {
    write_json(&run, times);
  }
  for (size_t i = 0; i < NWORKLOAD; i++) {
    free_times(&times[i]);
  }
  return EXIT_SUCCESS;
}
