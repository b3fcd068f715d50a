/* What calls cost while many receives are outstanding, and after that. One thread, loopback, manual progress.
   usage: rdma_many [RECEIVES [STEPS [PEERS]]]; the receives are shared among so many senders, a manager each.
   Prints nanoseconds, medians. See docs/performance.md. */
#include <rdma_transport.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { CALLS = 1001, TOGETHER = 64 /* senders that have their turn with one of the receiver's */ };
static rdma_mgr_t **senders, *receiver;
static long peers;
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

static const char *name_of(long peer) {
  static char name[32];
  snprintf(name, sizeof name, "sender%ld", peer);
  return name;
}

static void ask(long peer, int64_t step, long key) {
  char text[24];
  int n = snprintf(text, sizeof text, "key%ld", key);
  rdma_recv_options_t o;
  must(rdma_recv_options_init(&o, sizeof o), "options");
  o.dst = target;
  o.dst_len = sizeof target;
  o.timeout_ms = 3600 * 1000;
  must(rdma_recv_async(receiver, name_of(peer), text, (size_t)n, step, &o, received, NULL, NULL), "rdma_recv_async");
}

static void turns(int n) {
  static long next;
  while (n-- > 0) {
    must(rdma_mgr_progress(receiver, NULL), "progress");
    for (long i = 0; i < peers && i < TOGETHER; i++) must(rdma_mgr_progress(senders[next++ % peers], NULL), "progress");
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
  ask(i % peers, 2000000000 + i, 0);
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

/* Each sender has a socket that listens, and one more for its peer, which has one, too. */
static void meet(void) {
  struct rlimit files;
  char address[256];
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  senders = calloc((size_t)peers, sizeof *senders);
  if (!senders) exit(1);
  receiver = open_manager("receiver");
  for (long i = 0; i < peers; i++) {
    senders[i] = open_manager(name_of(i));
    must(rdma_mgr_listen(senders[i], "127.0.0.1:0", address, sizeof address, NULL), "listen");
    must(rdma_mgr_add_peer(receiver, name_of(i), address), "add_peer");
    rdma_peer_info_t info = {.struct_size = sizeof info};
    for (must(rdma_mgr_connect(receiver, name_of(i), 0), "connect"); info.state != RDMA_PEER_CONNECTED;) {
      must(rdma_mgr_progress(receiver, NULL), "progress");
      must(rdma_mgr_progress(senders[i], NULL), "progress");
      must(rdma_mgr_peer_info(receiver, name_of(i), &info), "peer_info");
      if (info.state == RDMA_PEER_FAILED) fprintf(stderr, "%s: %s\n", name_of(i), info.reason), exit(1);
    }
  }
}

int main(int argc, char **argv) {
  long receives = argc > 1 ? atol(argv[1]) : 1000000, steps = argc > 2 ? atol(argv[2]) : 10000;
  peers = argc > 3 ? atol(argv[3]) : 1;
  if (receives < 1 || steps < 1 || peers < 1) {
    fprintf(stderr, "usage: rdma_many [RECEIVES [STEPS [PEERS]]]\n");
    return 2;
  }
  meet();
  printf("%ld receives, %ld steps, %ld peers\n", receives, steps, peers);
  printf("%-32s %14s %14s %14s\n", "ns", "empty cleanup", "turn", "ask, cleanup");
  ask(0, -1, 0);
  turns(100);
  report("one receive outstanding");
  for (long i = 0; i < receives; i++) {
    ask((i + i / steps) % peers, i % steps, i / steps); /* those of a step are at as many peers as it has receives */
    if (i % 64 == 0) turns(1);
  }
  turns(1000);
  report("so many outstanding");
  ended = 0;
  for (long i = 0; i < steps; i++) must(rdma_step_abort(receiver, i, RDMA_ABORTED, "over", 4), "rdma_step_abort");
  for (int i = 0; ended < receives && i < 1000000; i++) turns(16);
  for (long i = 0; i < steps; i++) must(rdma_step_cleanup(receiver, i), "rdma_step_cleanup");
  turns(1000);
  report("after that");
  must(rdma_mgr_destroy(receiver), "destroy");
  for (long i = 0; i < peers; i++) must(rdma_mgr_destroy(senders[i]), "destroy");
  free(senders);
  return 0;
}
