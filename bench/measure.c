/* The measurements. Client and server walk through the same schedule. */
#include "bench.h"

const char *const mode_names[MODES] = {"latency", "ready", "rate", "bandwidth"};
const char *const mem_names[MEMS] = {"malloc", "registered", "pool"};
const char *const wait_names[WAITS] = {"mgr", "condvar", "block"};

static bool blocks(const side *x) { return x->s->progress == RDMA_PROGRESS_THREAD && x->s->wait == WAIT_BLOCK; }

/* Rounds for about so many seconds, were it as slow as 3 GB/s and so many microseconds. */
static int64_t rounds(const settings *s, uint64_t n, double us) {
  double each = us * 1e-6 + (double)n / 3e9;
  int64_t r = (int64_t)(s->seconds / each);
  return r < 8 ? 8 : r > 200000 ? 200000 : r;
}
static int64_t warm(int mode, uint64_t n) { return n >= 4 << 20 ? 4 : mode == MODE_RATE ? 4096 : 256; }

/* One way: a send whose receive already waits. Half of a ping-pong; each side keeps two receives
 * ahead, so that asking for the next tensor is not on the way of this one. */
static double latency(side *x, uint64_t n, int64_t total, int64_t skip) {
  double start = 0;
  if (!blocks(x)) {
    post_recv(x, 0, n);
    post_recv(x, 1, n);
  }
  for (int64_t i = 0; i < total; i++) {
    if (i == skip) start = now();
    bool ahead = !blocks(x) && i + 2 < total;
    if (x->client) {
      post_send(x, i, n);
      if (ahead) post_recv(x, i + 2, n);
    }
    if (blocks(x)) block_recv(x, i, n);
    else wait_recvs(x, i + 1);
    if (!x->client) {
      post_send(x, i, n);
      if (ahead) post_recv(x, i + 2, n);
    }
    tidy(x, i);
  }
  double end = now();
  wait_sends(x, total);
  return (end - start) / (double)(total - skip) / 2;
}

/* Keeps a bounded number of sends on offer. */
static void offer(side *x, uint64_t n, int64_t total, int64_t most) {
  for (int64_t i = 0; i < total; i++) {
    if (i >= most && i % (most / 2) == 0) wait_sends(x, i - most / 2);
    post_send(x, i, n);
    tidy(x, i);
  }
  wait_sends(x, total);
}

/* Round trip: a receive of a tensor that is there. */
static double ready(side *x, uint64_t n, int64_t total, int64_t skip) {
  double start = 0;
  if (!x->client) {
    offer(x, n, total, 128);
    return 0;
  }
  for (int64_t i = 0; i < total; i++) {
    if (i == skip) start = now();
    if (blocks(x)) {
      block_recv(x, i, n);
    } else {
      post_recv(x, i, n);
      wait_recvs(x, i + 1);
    }
    tidy(x, i);
  }
  return (now() - start) / (double)(total - skip);
}

/* Many receives at once; the time of each, in the middle. */
static double stream(side *x, uint64_t n, int64_t total, int64_t skip, int64_t window) {
  double start = 0;
  if (!x->client) {
    offer(x, n, total, window > 64 ? 2 * window : 128);
    return 0;
  }
  for (int64_t i = 0; i < total; i++) {
    if (i == skip) {
      wait_recvs(x, i);
      start = now();
    }
    if (i >= window) wait_recvs(x, i - window + 1);
    post_recv(x, i, n);
    tidy(x, i);
  }
  wait_recvs(x, total);
  return (now() - start) / (double)(total - skip);
}
static double rate(side *x, uint64_t n, int64_t total, int64_t skip) { return 1e-6 / stream(x, n, total, skip, 256); }
static double bandwidth(side *x, uint64_t n, int64_t total, int64_t skip) {
  return (double)n / 1e9 / stream(x, n, total, skip, n >= 16 << 20 ? 4 : n >= 1 << 20 ? 8 : 32);
}

/* Both ends are here before a point begins, and have forgotten the one before. */
static void meet(side *x) {
  int64_t steps = 1;
  begin_point(x);
  post_send(x, 0, 8);
  if (blocks(x)) {
    block_recv(x, 0, 8);
  } else {
    post_recv(x, 0, 8);
    wait_recvs(x, 1);
  }
  wait_sends(x, 1);
  x->step += steps;
  begin_point(x);
}

static void report(const side *x, int mode, uint64_t n, double value) {
  static const char *const units[] = {"us", "us", "M/s", "GB/s"};
  static const char *const progress[] = {"thread", "manual"};
  bool time = mode == MODE_LATENCY || mode == MODE_READY;
  if (!x->client) return;
  printf("%s,%s,%s,%s,%llu,%.4f,%s\n", x->s->provider, progress[x->s->progress], mem_names[x->s->memory],
         mode_names[mode], (unsigned long long)n, time ? value * 1e6 : value, units[mode]);
  fflush(stdout);
}

static uint64_t next_size(const settings *s, uint64_t n) {
  if (n >= s->max) return 0;
  return n * 8 < s->max ? n * 8 : s->max;
}

void run_schedule(side *x) {
  static double (*const run[MODES])(side *, uint64_t, int64_t, int64_t) = {latency, ready, rate, bandwidth};
  /* Microseconds of one, to begin with: polled, or handed over between threads. */
  static const double guess[2][MODES] = {{20, 20, 3, 3}, {4, 4, 1, 1}};
  for (int mode = 0; mode < MODES; mode++) {
    if (!(x->s->modes & 1u << mode)) continue;
    for (uint64_t n = x->s->min; n; n = next_size(x->s, n)) {
      int64_t skip = warm(mode, n), total = skip + rounds(x->s, n, guess[x->s->progress == RDMA_PROGRESS_MANUAL][mode]);
      meet(x);
      double value = run[mode](x, n, total, skip);
      x->step += total / 64 + 2;
      meet(x);
      for (int64_t back = 1; back < OPEN_STEPS + 6; back++) must(rdma_step_cleanup(x->mgr, x->step - back), "rdma_step_cleanup");
      report(x, mode, n, value);
    }
  }
}
