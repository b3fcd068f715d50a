/* Tagged messages in the measures of OSU's benchmarks: two processes, a core each. See bench/messages.
   usage: rdma_messages PROVIDER thread|manual malloc|pool latency|stream|typical BYTES WINDOW ROUNDS; prints microseconds of one
   With "active-" before latency or stream: the same by active messages. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <rdma_transport.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 256, REPLY = 4 };
static rdma_mgr_t *mgr;
static rdma_peer_t peer;
static bool first; /* the one that sends in a stream, and measures */
static char *out, *in;
static size_t size;
static int window;

static void must(rdma_code_t code, const char *what) {
  char why[512];
  if (code == RDMA_OK) return;
  why[0] = 0;
  rdma_last_error(why, sizeof why);
  fprintf(stderr, "rdma_messages: %s: %s: %s\n", what, rdma_code_name(code), why);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void say(size_t n) { must(rdma_msg_send(mgr, peer, 0, 1, out, n, NULL), "rdma_msg_send"); }
static void hear(size_t n) {
  must(rdma_msg_recv(mgr, peer, 0, 1, RDMA_MSG_TAG_MASK, in, n, NULL, NULL), "rdma_msg_recv");
}

/* osu_latency: half of a ping-pong. */
static double latency(long total, long skip) {
  double start = 0;
  for (long i = 0; i < total; i++) {
    if (i == skip) start = now();
    if (first) say(size);
    hear(size);
    if (!first) say(size);
  }
  return (now() - start) / (double)(total - skip) / 2;
}

/* The same, each round trip by itself: half of their median, as perftest's t_typical. */
static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}
static double typical(long total, long skip) {
  double *took = malloc((size_t)total * sizeof *took);
  if (!took) exit(1);
  for (long i = 0; i < total; i++) {
    double start = now();
    if (first) say(size);
    hear(size);
    if (!first) say(size);
    took[i] = now() - start;
  }
  qsort(took + skip, (size_t)(total - skip), sizeof *took, by_size);
  double median = took[skip + (total - skip) / 2];
  free(took);
  return median / 2;
}

/* osu_bw, osu_mbw_mr of one pair: so many at once, whose arrival is answered before the next begin. */
static double stream(long total, long skip) {
  static rdma_msg_request_t requests[MOST];
  double start = 0;
  for (long i = 0; i < total; i++) {
    size_t done;
    if (i == skip) start = now();
    for (int w = 0; w < window; w++) {
      if (first) must(rdma_msg_isend(mgr, peer, 0, 1, out, size, NULL, &requests[w]), "rdma_msg_isend");
      else must(rdma_msg_irecv(mgr, peer, 0, 1, RDMA_MSG_TAG_MASK, in, size, NULL, NULL, &requests[w]), "rdma_msg_irecv");
    }
    must(rdma_msg_wait(mgr, requests, (size_t)window, RDMA_MSG_ALL, 60000, NULL, NULL, &done), "rdma_msg_wait");
    if (first) hear(REPLY);
    else say(REPLY);
  }
  return (now() - start) / (double)(total - skip) / window;
}

/* The same by active messages: what the handler has counted is all that arrived, in order. */
static atomic_long arrived;
static bool polls;
static void on_large(const rdma_msg_status_t *status, void *userdata) {
  (void)userdata;
  must(status->code, "a large active message");
  atomic_fetch_add_explicit(&arrived, 1, memory_order_release);
}
static uint32_t on_message(rdma_mgr_t *m, const rdma_msg_status_t *status, const void *data, void *userdata) {
  static rdma_msg_request_t large;
  (void)data, (void)userdata;
  if (status->message == 0) {
    atomic_fetch_add_explicit(&arrived, 1, memory_order_release);
    return RDMA_MSG_HANDLED;
  }
  rdma_msg_options_t options;
  must(rdma_msg_options_init(&options, sizeof options), "rdma_msg_options_init");
  options.done = on_large;
  must(rdma_msg_imrecv(m, status->message, in, size, &options, NULL, &large), "rdma_msg_imrecv");
  return RDMA_MSG_LATER;
}

static void await(long count) {
  while (atomic_load_explicit(&arrived, memory_order_acquire) < count)
    must(polls ? rdma_mgr_progress(mgr, NULL) : rdma_mgr_wait(mgr, 60000), "progress");
}

static void act(size_t n, rdma_msg_request_t *request) {
  must(rdma_msg_am_isend(mgr, peer, 1, 1, out, n, NULL, request), "rdma_msg_am_isend");
}
static void finish(rdma_msg_request_t *requests, int count) {
  size_t done;
  must(rdma_msg_wait(mgr, requests, (size_t)count, RDMA_MSG_ALL, 60000, NULL, NULL, &done), "rdma_msg_wait");
}

static double active_latency(long total, long skip) {
  double start = 0;
  rdma_msg_request_t sent = 0;
  for (long i = 0; i < total; i++) {
    if (i == skip) start = now();
    if (!first) await(i + 1);
    act(size, &sent);
    if (sent != 0) finish(&sent, 1);
    if (first) await(i + 1);
  }
  return (now() - start) / (double)(total - skip) / 2;
}

static double active_stream(long total, long skip) {
  static rdma_msg_request_t requests[MOST];
  double start = 0;
  for (long i = 0; i < total; i++) {
    if (i == skip) start = now();
    if (first) {
      for (int w = 0; w < window; w++) act(size, &requests[w]);
      finish(requests, window);
      await(i + 1);
    } else {
      await((i + 1) * window);
      act(REPLY, &requests[0]);
      if (requests[0] != 0) finish(requests, 1);
    }
  }
  return (now() - start) / (double)(total - skip) / window;
}

static void *allocate(bool pool) {
  size_t n = size < REPLY ? REPLY : size;
  void *p = NULL;
  if (pool) must(rdma_mem_alloc(mgr, n, &p), "rdma_mem_alloc");
  else if (!(p = aligned_alloc(4096, (n + 4095) / 4096 * 4096))) exit(1);
  memset(p, 1, n);
  return p;
}

static void open_end(const char *provider, int to, int from) {
  char own[256] = "", other[256];
  const char *name = first ? "first" : "second", *its = first ? "second" : "first";
  rdma_mgr_options_t o;
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(first ? 0 : 1, &core);
  if (sched_setaffinity(0, sizeof core, &core) != 0) perror("rdma_messages: pinning");
  must(rdma_mgr_options_init(&o, sizeof o), "rdma_mgr_options_init");
  o.name = name;
  o.provider = provider;
  o.progress = polls ? RDMA_PROGRESS_MANUAL : RDMA_PROGRESS_THREAD;
  must(rdma_mgr_create(&o, &mgr), "rdma_mgr_create");
  must(rdma_mgr_listen(mgr, "127.0.0.1:0", own, sizeof own, NULL), "rdma_mgr_listen");
  if (write(to, own, sizeof own) != sizeof own || read(from, other, sizeof other) != sizeof other) exit(1);
  must(rdma_mgr_add_peer(mgr, its, other), "rdma_mgr_add_peer");
  must(rdma_peer_lookup(mgr, its, &peer), "rdma_peer_lookup");
}

static int usage(void) {
  fputs("usage: rdma_messages PROVIDER thread|manual malloc|pool [active-]latency|stream|typical BYTES WINDOW ROUNDS; prints microseconds of one\n", stderr);
  return 2;
}

int main(int argc, char **argv) {
  int down[2], up[2], status = 0;
  if (argc != 8) return usage();
  const char *how = argv[4];
  bool pool = strcmp(argv[3], "pool") == 0, active = strncmp(how, "active-", 7) == 0;
  bool pings = strcmp(how + (active ? 7 : 0), "latency") == 0;
  polls = strcmp(argv[2], "manual") == 0;
  size = strtoul(argv[5], NULL, 10);
  window = atoi(argv[6]);
  long rounds = atol(argv[7]), skip = rounds / 10 + 4;
  if (size < 1 || window < 1 || window > MOST || rounds < 1) return usage();
  if (pipe(down) != 0 || pipe(up) != 0) return 1;
  pid_t child = fork(); /* before there is a manager */
  first = child != 0;
  if (!first) prctl(PR_SET_PDEATHSIG, SIGKILL);
  open_end(argv[1], first ? down[1] : up[1], first ? up[0] : down[0]);
  out = allocate(pool);
  in = allocate(pool);
  if (first) say(REPLY); /* connects */
  hear(REPLY);
  if (!first) say(REPLY);
  if (active) must(rdma_msg_handler_in_place(mgr, 1, on_message, NULL), "rdma_msg_handler_in_place");
  double (*measure)(long, long) = active ? pings ? active_latency : active_stream : pings ? latency : stream;
  if (strcmp(how, "typical") == 0) measure = typical;
  double each = measure(skip + rounds, skip);
  if (first) printf("%.4f\n", each * 1e6);
  /* What was sent last is still to be told to the other end. */
  if (first) say(REPLY);
  hear(REPLY);
  if (!first) say(REPLY);
  if (pool) {
    must(rdma_mem_free(mgr, out), "rdma_mem_free");
    must(rdma_mem_free(mgr, in), "rdma_mem_free");
  }
  must(rdma_mgr_destroy(mgr), "rdma_mgr_destroy");
  if (!pool) free(out), free(in);
  if (!first) return 0;
  waitpid(child, &status, 0);
  return status ? 1 : 0;
}
