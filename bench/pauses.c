/* A round trip of 8 bytes between two processes that sleep in between, by blocking calls; and the same over a Unix socket.
   usage: rdma_pauses shm|tcp|unix thread|manual PAUSE_US ROUNDS [PROCESSORS], the two processors as "1,1" or "0,1".
   Prints the median and the 90th percentile in microseconds, and what a round takes of both processes' processor time. */
#define _GNU_SOURCE
#include <rdma_transport.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ADDRESS = 256, TIMEOUT_MS = 10000 };

static rdma_mgr_t *mgr;
static rdma_peer_t peer;
static int unix_socket = -1;
static char bytes[8];

static void must(rdma_code_t code, const char *what) {
  char text[512] = "";
  if (code == RDMA_OK) return;
  rdma_last_error(text, sizeof text);
  fprintf(stderr, "rdma_pauses: %s: %s: %s\n", what, rdma_code_name(code), text);
  _exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double spent(const struct rusage *r) {
  return (double)(r->ru_utime.tv_sec + r->ru_stime.tv_sec) * 1e6 + (double)(r->ru_utime.tv_usec + r->ru_stime.tv_usec);
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void put(void) {
  if (unix_socket >= 0) {
    if (write(unix_socket, bytes, sizeof bytes) != sizeof bytes) _exit(1);
    return;
  }
  must(rdma_msg_send(mgr, peer, 0, 7, bytes, sizeof bytes, NULL), "rdma_msg_send");
}

static void get(void) {
  rdma_msg_status_t st;
  if (unix_socket >= 0) {
    if (read(unix_socket, bytes, sizeof bytes) != sizeof bytes) _exit(1);
    return;
  }
  memset(&st, 0, sizeof st);
  st.struct_size = sizeof st;
  must(rdma_msg_recv(mgr, peer, 0, 7, RDMA_MSG_TAG_MASK, bytes, sizeof bytes, NULL, &st), "rdma_msg_recv");
}

static void meet(bool first, const char *provider, bool thread, int to, int from) {
  rdma_mgr_options_t o;
  char mine[ADDRESS], theirs[ADDRESS];
  const char *other = first ? "second" : "first";
  must(rdma_mgr_options_init(&o, sizeof o), "options");
  o.name = first ? "first" : "second";
  o.provider = provider;
  o.progress = thread ? RDMA_PROGRESS_THREAD : RDMA_PROGRESS_MANUAL;
  must(rdma_mgr_create(&o, &mgr), "rdma_mgr_create");
  must(rdma_mgr_listen(mgr, "127.0.0.1:0", mine, sizeof mine, NULL), "rdma_mgr_listen");
  if (write(to, mine, sizeof mine) != sizeof mine || read(from, theirs, sizeof theirs) != sizeof theirs) _exit(1);
  must(rdma_mgr_add_peer(mgr, other, theirs), "rdma_mgr_add_peer");
  if (first) must(rdma_mgr_connect(mgr, other, TIMEOUT_MS), "rdma_mgr_connect");
  must(rdma_peer_lookup(mgr, other, &peer), "rdma_peer_lookup");
}

static void pin(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) perror("rdma_pauses: pinning");
}

int main(int argc, char **argv) {
  int there[2], back[2], pair[2] = {-1, -1}, processors[2] = {-1, -1};
  const long pause_us = argc > 4 ? atol(argv[3]) : 0, rounds = argc > 4 ? atol(argv[4]) : 0;
  if (rounds < 1 || (argc > 5 && sscanf(argv[5], "%d,%d", &processors[0], &processors[1]) != 2) || pipe(there) != 0 ||
      pipe(back) != 0) {
    fprintf(stderr, "usage: rdma_pauses shm|tcp|unix thread|manual PAUSE_US ROUNDS [PROCESSORS]\n");
    return 2;
  }
  const bool plain = strcmp(argv[1], "unix") == 0;
  if (plain && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return perror("socketpair"), 1;
  const pid_t child = fork();
  const bool first = child != 0;
  if (processors[!first] >= 0) pin(processors[!first]);
  if (plain)
    unix_socket = pair[!first];
  else
    meet(first, argv[1], strcmp(argv[2], "thread") == 0, first ? there[1] : back[1], first ? back[0] : there[0]);
  while (!first) {
    get();
    put();
  }
  double *times = malloc((size_t)rounds * sizeof *times);
  if (times == NULL) return fputs("rdma_pauses: no memory\n", stderr), 1;
  struct rusage before, after, other;
  getrusage(RUSAGE_SELF, &before);
  for (long i = 0; i < rounds; i++) {
    if (pause_us > 0) usleep((useconds_t)pause_us);
    const double begun = now();
    put();
    get();
    times[i] = now() - begun;
  }
  getrusage(RUSAGE_SELF, &after);
  kill(child, SIGKILL);
  wait4(child, NULL, 0, &other);
  qsort(times, (size_t)rounds, sizeof *times, by_size);
  printf("%.1f,%.1f,%.1f\n", times[rounds / 2], times[rounds * 9 / 10],
         (spent(&after) - spent(&before) + spent(&other)) / (double)rounds);
  fflush(stdout);
  _exit(0);
}
