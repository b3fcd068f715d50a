/* The heartbeat of the Soft-RoCE machine: how late its processors run what has to run at once, and how fast. A test about
 * time that failed while they stood still says nothing about the library.
 *
 * pulse FILE [CONSOLE]: a thread on each processor, before all else that is scheduled, sleeps 20 ms at a time. Whenever
 * one wakes late by 100 ms or more, FILE gets a line "gap UPTIME_MS CPU LATE_MS". Once a second the first does some fixed work
 * and writes "speed UPTIME_MS PERCENT": 100 is as fast as ever seen, 50 half as fast. CONSOLE gets a line, too, for the
 * host, which ends a machine that stands still. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_MS = 20, LATE_MS = 100, WORK = 1500000 };
static int out, console = -1;

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void say(int fd, const char *what, int64_t a, int64_t b) {
  char line[96];
  int n = snprintf(line, sizeof line, "%s %lld %lld\n", what, (long long)a, (long long)b);
  if (write(fd, line, (size_t)n) != n) return; /* nobody to tell */
}

/* Microseconds of the fixed work. */
static int64_t work(void) {
  static volatile uint64_t sink;
  int64_t start = now_us();
  for (int i = 0; i < WORK; i++) sink = sink * 6364136223846793005u + 1;
  return now_us() - start;
}

static void *beat(void *arg) {
  int cpu = (int)(intptr_t)arg;
  cpu_set_t set;
  struct sched_param p = {.sched_priority = 50};
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  pthread_setschedparam(pthread_self(), SCHED_FIFO, &p);
  int64_t best = INT64_MAX;
  for (int n = 0;; n++) {
    int64_t due = now_us() + PERIOD_MS * 1000;
    usleep(PERIOD_MS * 1000);
    int64_t late = (now_us() - due) / 1000;
    if (late >= LATE_MS) {
      char what[32];
      snprintf(what, sizeof what, "gap %lld", (long long)(due / 1000));
      say(out, what, cpu, late);
    }
    if (cpu == 0 && n % (1000 / PERIOD_MS) == 0) {
      int64_t took = work();
      if (took < best) best = took;
      say(out, "speed", now_us() / 1000, took > 0 ? best * 100 / took : 100);
      if (console >= 0) say(console, "beat", now_us() / 1000, late);
    }
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  out = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (out < 0) return 1;
  if (argc > 2) console = open(argv[2], O_WRONLY | O_NOCTTY | O_NONBLOCK);
  mlockall(MCL_CURRENT | MCL_FUTURE);
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  for (long cpu = 1; cpu < cpus; cpu++) {
    pthread_t t;
    if (pthread_create(&t, NULL, beat, (void *)(intptr_t)cpu)) return 1;
  }
  beat((void *)0);
  return 0;
}
