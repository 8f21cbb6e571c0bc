// The library loaded at run time, and unloaded: what stays behind, and that forks do not
// call what is gone. A copy of it under another name, as this program has the library
// itself.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dlfcn.h>
#include <unistd.h>

#include "check.h"
#include "counter.h"
#include "process.h"
#include "shared.h"

#define COPY "./unload-copy.so"

// What is used of the copy.
typedef struct Library {
  void* handle;
  int32_t (*create)(int32_t, RolloutPool**, RolloutError*);
  void (*destroy)(RolloutPool*);
  int32_t (*run)(RolloutPool*, const RolloutRequest*, RolloutError*);
  int32_t (*schedule)(RolloutPool*, RolloutTask, void*, RolloutError*);
  int32_t (*wait_count)(RolloutPool*, uint64_t, RolloutError*);
  RolloutStatus (*submit)(RolloutPool*, const RolloutRequest*, RolloutTicket**, RolloutError*);
  RolloutStatus (*release)(RolloutTicket*, RolloutError*);
} Library;

// A function of the copy, in a way that C allows.
static void find(const Library* library, const char* name, void* function) {
  void* symbol = dlsym(library->handle, name);
  CHECK(symbol != NULL);
  memcpy(function, &symbol, sizeof(symbol));
}

static int load(Library* library) {
  library->handle = dlopen(COPY, RTLD_NOW | RTLD_LOCAL);
  if (!CHECK(library->handle != NULL)) {
    return 0;
  }
  find(library, "rollout_pool_create", &library->create);
  find(library, "rollout_pool_destroy", &library->destroy);
  find(library, "rollout_run", &library->run);
  find(library, "rollout_pool_schedule", &library->schedule);
  find(library, "rollout_pool_wait_count", &library->wait_count);
  find(library, "rollout_submit", &library->submit);
  find(library, "rollout_ticket_release", &library->release);
  return !check_why[0];
}

// Whether the copy is in memory.
static int is_loaded(void) {
  char line[4096];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof(line), maps)) {
    found |= strstr(line, COPY + 2) != NULL;
  }
  if (maps) {
    fclose(maps);
  }
  return found;
}

static void add_one(void* number) { add((int*)number, 1); }

// All that a host does between loading and unloading.
static void use(const Library* library, int32_t nthread) {
  static Run run;
  RolloutPool* pool = NULL;
  RolloutTicket* ticket = NULL;
  int ran = 0;
  run_set_up(&run, NBATCH, 2, NULL);
  CHECK(library->create(nthread, &pool, NULL) == 0);
  CHECK(library->run(pool, &run.request, &run.error) == 0 && run_is_right(&run));
  CHECK(library->schedule(pool, add_one, &ran, NULL) == 0);
  CHECK(library->wait_count(pool, 1, NULL) == 0 && get(&ran) == 1);
  CHECK(library->submit(pool, &run.request, &ticket, NULL) == 0);
  CHECK(library->release(ticket, NULL) == 0);
  library->destroy(pool);
}

static void load_and_use(int32_t nthread) {
  Library library;
  if (load(&library)) {
    use(&library, nthread);
    CHECK(dlclose(library.handle) == 0);
  }
}

// A child of a fork, which ends at once.
static int fork_goes_well(void) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void the_library_is_gone_after_each_close(void) {
  int32_t nthread;
  for (nthread = 0; nthread <= 3; nthread++) {
    load_and_use(nthread);
    CHECK(!is_loaded());
    CHECK(fork_goes_well());
  }
}

static void r68_loaded_and_closed_a_hundred_times_it_leaves_one_thread(void) {
  long before = 0;
  int round;
  for (round = 0; round < 100; round++) {
    load_and_use(2);
    CHECK(!is_loaded());
    CHECK(process_threads_become(1));
    if (round == 20) {
      before = process_memory();
    }
  }
  CHECK(!PROCESS_MEMORY_COUNTS || process_memory() - before < (2 << 20));
  CHECK(fork_goes_well());
}

// Copies the library that this program has loaded.
static void copy_library(void) {
  Dl_info info;
  char bytes[1 << 16];
  size_t count;
  FILE *from, *to;
  const char* (*version)(void) = rollout_version;
  void* address;
  memcpy(&address, &version, sizeof(address));
  CHECK(dladdr(address, &info));
  from = fopen(info.dli_fname, "rb");
  to = fopen(COPY, "wb");
  if (!CHECK(from && to)) {
    return;
  }
  while ((count = fread(bytes, 1, sizeof(bytes), from)) > 0) {
    CHECK(fwrite(bytes, 1, count, to) == count);
  }
  fclose(from);
  fclose(to);
}

static void a_copy_can_be_made(void) { copy_library(); }

int main(void) {
  check_begin();
  CASE(a_copy_can_be_made);
  CASE(the_library_is_gone_after_each_close);
  CASE(r68_loaded_and_closed_a_hundred_times_it_leaves_one_thread);
  remove(COPY);
  return check_failures;
}
