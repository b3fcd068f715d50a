/* What calls cost while many receives are outstanding, and after that. One thread, loopback, manual progress.
   usage: rdma_many [RECEIVES [STEPS]]; prints nanoseconds, medians. See docs/performance.md. */
#include <rdma_transport.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS = 1001 };
static rdma_mgr_t *sender, *receiver;
static char target[64];
static long ended;

static void must(rdma_code_t code, const char *what) {
  char text[512] = "";
  if (code == RDMA_OK) return;
  rdma_last_error(text, sizeof text);
  fprintf(stderr, "%s: %s: %s\n", what, rdma_code_name(code), text);
  exit(1);
}

static rdma_mgr_t *open_manager(const char *name) {
  rdma_mgr_options_t o;
  rdma_mgr_t *m = NULL;
  must(rdma_mgr_options_init(&o, sizeof o), "options");
  o.name = name;
  o.provider = "loopback";
  o.progress = RDMA_PROGRESS_MANUAL;
  must(rdma_mgr_create(&o, &m), "manager");
  return m;
}

static void received(rdma_code_t code, const char *message, size_t len, const rdma_tensor_t *tensor,
                     const rdma_transfer_info_t *info, void *userdata) {
  (void)code, (void)message, (void)len, (void)tensor, (void)info, (void)userdata;
  ended++;
}

static void ask(int64_t step, long key) {
  char text[24];
  int n = snprintf(text, sizeof text, "key%ld", key);
  rdma_recv_options_t o;
  must(rdma_recv_options_init(&o, sizeof o), "options");
  o.dst = target;
  o.dst_len = sizeof target;
  o.timeout_ms = 3600 * 1000;
  must(rdma_recv_async(receiver, "sender", text, (size_t)n, step, &o, received, NULL, NULL), "rdma_recv_async");
}

static void turns(int n) {
  while (n-- > 0) {
    must(rdma_mgr_progress(receiver, NULL), "progress");
    must(rdma_mgr_progress(sender, NULL), "progress");
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

/* An empty step is cleaned up; a turn has nothing to do; a receive is asked for and its step cleaned up. */
static void cleanup(int i) { must(rdma_step_cleanup(receiver, 1000000000 + i), "rdma_step_cleanup"); }
static void turn(int i) {
  (void)i;
  must(rdma_mgr_progress(receiver, NULL), "progress");
}
static void one(int i) {
  ask(2000000000 + i, 0);
  must(rdma_step_cleanup(receiver, 2000000000 + i), "rdma_step_cleanup");
}

static double median(void (*call)(int)) {
  static double each[CALLS];
  for (int i = 0; i < CALLS; i++) {
    double start = now();
    call(i);
    each[i] = now() - start;
  }
  turns(4 * CALLS / 64);
  qsort(each, CALLS, sizeof *each, by_size);
  return each[CALLS / 2];
}

static void report(const char *when) {
  double a = median(cleanup), b = median(turn), c = median(one);
  printf("%-32s %14.0f %14.0f %14.0f\n", when, a, b, c);
  fflush(stdout);
}

int main(int argc, char **argv) {
  long receives = argc > 1 ? atol(argv[1]) : 1000000, steps = argc > 2 ? atol(argv[2]) : 10000;
  char address[256];
  sender = open_manager("sender");
  receiver = open_manager("receiver");
  must(rdma_mgr_listen(sender, "127.0.0.1:0", address, sizeof address, NULL), "listen");
  must(rdma_mgr_add_peer(receiver, "sender", address), "add_peer");
  printf("%-32s %14s %14s %14s\n", "ns", "empty cleanup", "turn", "ask, cleanup");
  ask(-1, 0);
  turns(100);
  report("one receive outstanding");
  for (long i = 0; i < receives; i++) {
    ask(i % steps, i / steps);
    if (i % 64 == 0) turns(1);
  }
  turns(1000);
  report("so many outstanding");
  for (long i = 0; i < steps; i++) must(rdma_step_abort(receiver, i, RDMA_ABORTED, "over", 4), "rdma_step_abort");
  for (int i = 0; ended < receives && i < 1000000; i++) turns(16);
  for (long i = 0; i < steps; i++) must(rdma_step_cleanup(receiver, i), "rdma_step_cleanup");
  turns(1000);
  report("after that");
  must(rdma_mgr_destroy(receiver), "destroy");
  must(rdma_mgr_destroy(sender), "destroy");
  return 0;
}
