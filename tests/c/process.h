// What the running process has, memory and threads, and how to run it once more.
#ifndef ROLLOUT_TESTS_PROCESS_H_
#define ROLLOUT_TESTS_PROCESS_H_

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

// Bytes of memory in use.
static inline long process_memory(void) {
  long size = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2) {
    resident = 0;
  }
  if (file) {
    fclose(file);
  }
  return resident * sysconf(_SC_PAGESIZE);
}

// Whether that says anything: some tools keep for a while what was freed.
#ifdef __SANITIZE_ADDRESS__
#define PROCESS_MEMORY_COUNTS 0
#else
#define PROCESS_MEMORY_COUNTS (check_parts == 1)
#endif

static inline int process_threads(void) {
  int threads = 0;
  const struct dirent* entry;
  DIR* folder = opendir("/proc/self/task");
  while (folder && (entry = readdir(folder))) {
    threads += entry->d_name[0] != '.';
  }
  if (folder) {
    closedir(folder);
  }
  return threads;
}

// Whether there are as many threads as that. Those that were replaced end at their
// leisure, but they do end.
static inline int process_threads_become(int expected) {
  struct timespec pause = {0, 10000000};
  int tries;
  for (tries = 0; tries < 6000 && process_threads() != expected; tries++) {
    nanosleep(&pause, NULL);
  }
  return process_threads() == expected;
}

// Runs this program in a process of its own with two arguments, its standard input open
// and nothing in it, or closed, and what it prints in output.txt. Returns its exit
// status, or -1 if it ended otherwise or had to be killed.
static inline int process_again(const char* first, const char* second, int open_input) {
  char program[4096];
  int input[2], status = -1, tries;
  pid_t child;
  // Not the link itself, which a tool that runs this program may be behind.
  ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length < 0 || pipe(input)) {
    return -1;
  }
  program[length] = '\0';
  child = fork();
  if (child == 0) {
    int output = open("output.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    close(input[1]);
    if (open_input) {
      dup2(input[0], 0);
    } else {
      close(0);
    }
    close(input[0]);
    dup2(output, 1);
    dup2(output, 2);
    execl(program, program, first, second, (char*)NULL);
    _exit(99);
  }
  close(input[0]);
  for (tries = 0; tries < 12000; tries++) {
    struct timespec pause = {0, 10000000};
    if (waitpid(child, &status, WNOHANG) == child) {
      close(input[1]);
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    nanosleep(&pause, NULL);
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  close(input[1]);
  return -1;
}

// Bytes of a file, or -1 if there is none.
static inline long process_file_size(const char* path) {
  long size = -1;
  FILE* file = fopen(path, "r");
  if (file) {
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    fclose(file);
  }
  return size;
}

#endif  // ROLLOUT_TESTS_PROCESS_H_
