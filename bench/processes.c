/* A parameter server: two servers, two workers, a scheduler, each a process with one thread of its own, all on the same
   processors. A worker pushes BYTES to both servers and waits for an answer of as many from each; after every few of these
   rounds the workers meet at the scheduler, which says how it goes on. See bench/processes. */
#include "processes.h"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <getopt.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "rdma_processes --transport rdma|zmq [--bytes N] [--seconds S] [--processors N]\n"
    "               [--wait mgr|condvar] [--memory malloc|pool] [--busy-poll-us N]\n"
    "--wait mgr: threads wait in rdma_mgr_wait; condvar: callbacks wake them by a condition variable.\n"
    "Prints transport,bytes,rounds,median_us,p90_us,processor_us_per_round,switches_per_round.\n";

enum { BETWEEN_BARRIERS = 8, MAX_ROUNDS = 1 << 18 };
/* First byte of each message: what the sender is at. Each has its own part of the memory. */
enum { WARM, MEASURED, STOP, STATES };

typedef struct shared {
  pthread_barrier_t all;
  char addresses[NODES][256];
  double cpu[NODES], switches[NODES];
  int rounds[WORKERS];
  float us[WORKERS][MAX_ROUNDS];
} shared;

static shared *page;
static const transport *net;
static char *memory;
static size_t bytes = 1024;
static double seconds = 0.5;

void fail(const char *what, const char *why) {
  fprintf(stderr, "rdma_processes: %s: %s\n", what, why);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Counts this process from the first call on, until the last. */
static void count(int me) {
  static double cpu, switches;
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  double c = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
  double s = (double)(u.ru_nvcsw + u.ru_nivcsw);
  if (cpu == 0) {
    cpu = c;
    switches = s;
  }
  page->cpu[me] = c - cpu;
  page->switches[me] = s - switches;
}

static void tell(int to, char state, size_t len) { net->send(to, memory + (size_t)state * bytes, len); }

/* The next message, whose content is what its sender sends always; its first byte. */
static char take(size_t len, int *from) {
  message m = net->next();
  char first = m.data[0];
  size_t expected = first == STOP ? 1 : len;
  if (m.len != expected || (m.len > 1 && m.data[m.len - 1] != (char)(m.from + 1))) fail("message", "wrong content");
  if (from) *from = m.from;
  net->done(&m);
  return first;
}

static void server(int me) {
  bool counting = false;
  for (int left = WORKERS, from; left > 0;) {
    char first = take(bytes, &from);
    if (first == STOP) {
      left--;
      continue;
    }
    if (first == MEASURED && !counting) {
      count(me);
      counting = true;
    }
    tell(from, first, bytes);
  }
  count(me);
}

static void scheduler(int me) {
  double start = now(), warm = start + seconds * 0.3, end = warm + seconds;
  for (char state = WARM; state != STOP;) {
    for (int i = 0; i < WORKERS; i++) take(1, NULL);
    if (state == WARM && now() >= warm) {
      state = MEASURED;
      count(me);
    } else if (state == MEASURED && now() >= end) {
      state = STOP;
      count(me);
    }
    for (int i = 0; i < WORKERS; i++) tell(SERVERS + i, state, 1);
  }
}

static void worker(int me) {
  int rounds = 0;
  for (char state = WARM;;) {
    for (int i = 0; i < BETWEEN_BARRIERS; i++) {
      double start = now();
      for (int to = 0; to < SERVERS; to++) tell(to, state, bytes);
      for (int to = 0; to < SERVERS; to++) take(bytes, NULL);
      if (state == MEASURED && rounds < MAX_ROUNDS) page->us[me - SERVERS][rounds++] = (float)((now() - start) * 1e6);
    }
    tell(SCHEDULER, state, 1);
    char next = take(1, NULL);
    if (next != state) count(me);
    if (next == STOP) break;
    state = next;
  }
  for (int to = 0; to < SERVERS; to++) tell(to, STOP, 1);
  page->rounds[me - SERVERS] = rounds;
}

static void node(setup s) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  memory = net->open(&s, STATES * bytes);
  memset(memory, s.me + 1, STATES * bytes);
  for (char state = 0; state < STATES; state++) memory[(size_t)state * bytes] = state;
  pthread_barrier_wait(&page->all);
  (is_server(s.me) ? server : s.me == SCHEDULER ? scheduler : worker)(s.me);
  pthread_barrier_wait(&page->all);
  net->close();
  exit(0);
}

static int by_size(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void report(void) {
  static float all[WORKERS * MAX_ROUNDS];
  size_t n = 0;
  double cpu = 0, switches = 0;
  for (int w = 0; w < WORKERS; w++) {
    memcpy(all + n, page->us[w], (size_t)page->rounds[w] * sizeof *all);
    n += (size_t)page->rounds[w];
  }
  if (n == 0) fail("measuring", "too few seconds");
  for (int i = 0; i < NODES; i++) {
    cpu += page->cpu[i];
    switches += page->switches[i];
  }
  qsort(all, n, sizeof *all, by_size);
  printf("%s,%zu,%zu,%.1f,%.1f,%.1f,%.1f\n", net->name, bytes, n, (double)all[n / 2], (double)all[n * 9 / 10],
         cpu * 1e6 / (double)n, switches / (double)n);
}

static bool is(const char *text, const char *yes, const char *no) {
  if (strcmp(text, yes) != 0 && strcmp(text, no) != 0) fail(text, usage);
  return strcmp(text, yes) == 0;
}

int main(int argc, char **argv) {
  static const struct option options[] = {{"transport", 1, NULL, 't'}, {"bytes", 1, NULL, 'b'}, {"seconds", 1, NULL, 's'},
                                          {"wait", 1, NULL, 'w'}, {"memory", 1, NULL, 'm'}, {"busy-poll-us", 1, NULL, 'p'},
                                          {"processors", 1, NULL, 'n'}, {NULL, 0, NULL, 0}};
  setup s = {.busy_poll_us = -1};
  int processors = 2;
  for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (o) {
      case 't': net = is(optarg, "rdma", "zmq") ? &over_rdma : &over_zmq; break;
      case 'b': bytes = strtoull(optarg, NULL, 0); break;
      case 's': seconds = atof(optarg); break;
      case 'w': s.condvar = is(optarg, "condvar", "mgr"); break;
      case 'm': s.pool = is(optarg, "pool", "malloc"); break;
      case 'p': s.busy_poll_us = atoll(optarg); break;
      case 'n': processors = atoi(optarg); break;
      default: fputs(usage, stderr); return 2;
    }
  if (!net || bytes < 2 || !(seconds > 0) || processors < 1) {
    fputs(usage, stderr);
    return 2;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < processors; i++) CPU_SET(i, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) perror("rdma_processes: processors");

  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) fail("memory", "none");
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&page->all, &attributes, NODES);
  s.room = bytes;
  s.addresses = page->addresses;
  s.all = &page->all;
  for (s.me = 0; s.me < NODES; s.me++)
    if (fork() == 0) node(s);
  /* One that fails leaves the others waiting: they end with this process. */
  for (int i = 0, status; i < NODES; i++)
    if (wait(&status) < 0 || status != 0) fail("a process", "failed");
  report();
  return 0;
}
