/* One end: a manager, its buffer, and operations whose endings are counted. */
#include "bench.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEYS 64 /* tensors per step */

void die(const char *what) {
  char why[512] = "";
  rdma_last_error(why, sizeof why);
  fprintf(stderr, "rdma_bench: %s: %s\n", what, why);
  exit(1);
}
void must(rdma_code_t code, const char *what) {
  if (code != RDMA_OK) die(what);
}

double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void pin(int core) {
  cpu_set_t set;
  if (core < 0) return;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) perror("rdma_bench: pinning");
}

static void *allocate(side *x) {
  size_t n = 2 * x->room;
  void *p = NULL;
  if (x->s->memory == MEM_POOL) {
    must(rdma_mem_alloc(x->mgr, n, &p), "rdma_mem_alloc");
  } else {
    p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    if (!p) die("memory");
    if (x->s->memory == MEM_REGISTERED) must(rdma_mem_register(x->mgr, p, n, RDMA_DEVICE_HOST), "rdma_mem_register");
  }
  memset(p, x->client ? 1 : 2, n);
  return p;
}

side *side_open(const settings *s, bool client, char address[256]) {
  rdma_mgr_options_t o;
  side *x = calloc(1, sizeof *x);
  if (!x) die("memory");
  must(rdma_mgr_options_init(&o, sizeof o), "options");
  pthread_mutex_init(&x->lock, NULL);
  pthread_cond_init(&x->reached, NULL);
  x->s = s;
  x->client = client;
  x->name = client ? "client" : "server";
  x->peer = client ? "server" : "client";
  o.name = x->name;
  o.provider = s->provider;
  o.progress = s->progress;
  o.protocol = s->protocol;
  must(rdma_mgr_create(&o, &x->mgr), "manager");
  must(rdma_mgr_listen(x->mgr, "127.0.0.1:0", address, 256, NULL), "listen");
  x->room = s->max < 4096 ? 4096 : s->max;
  x->buffer = allocate(x);
  return x;
}

void side_peer(side *x, const char *address) { must(rdma_mgr_add_peer(x->mgr, x->peer, address), "add_peer"); }

void side_close(side *x) {
  if (x->s->memory == MEM_POOL) must(rdma_mem_free(x->mgr, x->buffer), "rdma_mem_free");
  if (x->s->memory == MEM_REGISTERED) must(rdma_mem_unregister(x->mgr, x->buffer), "rdma_mem_unregister");
  must(rdma_mgr_destroy(x->mgr), "destroy");
  if (x->s->memory != MEM_POOL) free(x->buffer);
  free(x);
}

/* ---- operations: number i of a point goes by key i % KEYS in step base + i / KEYS ---- */
typedef struct name {
  char text[24];
  size_t len;
  int64_t step;
} name;
static name name_of(const side *x, int64_t i) {
  name k;
  k.len = 10;
  memcpy(k.text, "variable/", 9);
  k.text[9] = (char)('0' + i % KEYS);
  k.step = x->step + i / KEYS;
  return k;
}

/* Something ended; a thread that waits by the condition variable is woken once it has what it waits for. */
static void count(side *x, _Atomic int64_t *counter) {
  if (x->s->wait != WAIT_CONDVAR) {
    atomic_fetch_add_explicit(counter, 1, memory_order_release);
    return;
  }
  pthread_mutex_lock(&x->lock);
  bool due = atomic_fetch_add_explicit(counter, 1, memory_order_release) + 1 >= x->target && x->awaited == counter;
  pthread_mutex_unlock(&x->lock);
  if (due) pthread_cond_signal(&x->reached);
}

static void sent(rdma_code_t code, const char *message, size_t message_len, const rdma_transfer_info_t *info,
                 void *userdata) {
  (void)info;
  if (code != RDMA_OK) {
    fprintf(stderr, "rdma_bench: send: %s: %.*s\n", rdma_code_name(code), (int)message_len, message);
    exit(1);
  }
  count(userdata, &((side *)userdata)->sends);
}

static void received(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                     const rdma_transfer_info_t *info, void *userdata) {
  (void)info, (void)tensor;
  if (code != RDMA_OK) {
    fprintf(stderr, "rdma_bench: receive: %s: %.*s\n", rdma_code_name(code), (int)message_len, message);
    exit(1);
  }
  count(userdata, &((side *)userdata)->recvs);
}

void post_send(side *x, int64_t i, uint64_t n) {
  int64_t dims[1] = {(int64_t)n};
  rdma_tensor_t t = {.struct_size = sizeof t, .data = x->buffer, .nbytes = n, .dims = dims, .ndims = 1, .dtype = 4};
  name k = name_of(x, i);
  must(rdma_send(x->mgr, k.text, k.len, k.step, &t, NULL, sent, x), "rdma_send");
}

static rdma_recv_options_t into(side *x, uint64_t n) {
  rdma_recv_options_t o = {.struct_size = sizeof o, .dst = (char *)x->buffer + x->room, .dst_len = n};
  return o;
}

void post_recv(side *x, int64_t i, uint64_t n) {
  rdma_recv_options_t o = into(x, n);
  name k = name_of(x, i);
  must(rdma_recv_async(x->mgr, x->peer, k.text, k.len, k.step, &o, received, x, NULL), "rdma_recv_async");
}

void block_recv(side *x, int64_t i, uint64_t n) {
  rdma_recv_options_t o = into(x, n);
  rdma_tensor_t out = {.struct_size = sizeof out};
  rdma_request_t request = 0;
  name k = name_of(x, i);
  must(rdma_recv(x->mgr, x->peer, k.text, k.len, k.step, &o, &out, &request), "rdma_recv");
  must(rdma_request_release(x->mgr, request), "rdma_request_release");
}

static void wait_count(side *x, _Atomic int64_t *counter, int64_t count) {
  bool polls = x->s->progress == RDMA_PROGRESS_MANUAL;
  if (!polls && x->s->wait == WAIT_CONDVAR) {
    pthread_mutex_lock(&x->lock);
    x->awaited = counter;
    x->target = count;
    while (atomic_load_explicit(counter, memory_order_relaxed) < count) pthread_cond_wait(&x->reached, &x->lock);
    x->awaited = NULL;
    pthread_mutex_unlock(&x->lock);
    return;
  }
  while (atomic_load_explicit(counter, memory_order_acquire) < count) {
    if (polls) {
      must(rdma_mgr_progress(x->mgr, NULL), "rdma_mgr_progress");
    } else {
      rdma_code_t code = rdma_mgr_wait(x->mgr, 1000);
      if (code != RDMA_DEADLINE_EXCEEDED) must(code, "rdma_mgr_wait");
    }
  }
}
void wait_sends(side *x, int64_t count) { wait_count(x, &x->sends, count); }
void wait_recvs(side *x, int64_t count) { wait_count(x, &x->recvs, count); }

void begin_point(side *x) {
  atomic_store(&x->sends, 0);
  atomic_store(&x->recvs, 0);
}

/* As a runtime does: a step that is over is cleaned up. Receives are counted, and a thread that loses its processor with one
 * in its hands is overtaken by hundreds of others: so not the newest steps. */
void tidy(side *x, int64_t i) {
  if (i % KEYS == 0 && i >= OPEN_STEPS * KEYS) must(rdma_step_cleanup(x->mgr, x->step + i / KEYS - OPEN_STEPS), "rdma_step_cleanup");
}
