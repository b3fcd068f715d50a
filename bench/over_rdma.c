/* Messages by this library: at each node one receive waits for the next message of each peer. */
#include "processes.h"
#include <rdma_transport.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 64 }; /* messages per step */

typedef struct peer {
  int node;
  char name[16];
  char *buffer;
  int64_t sent, received;
} peer;

static setup own;
static rdma_mgr_t *mgr;
static peer peers[NODES];
static char *memory;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static message queue[NODES]; /* at most one of each peer */
static int queued;

static void must(rdma_code_t code, const char *what) {
  char why[512] = "";
  if (code == RDMA_OK) return;
  rdma_last_error(why, sizeof why);
  fail(what, why);
}

static void *allocate(size_t n) {
  void *p = NULL;
  if (own.pool) must(rdma_mem_alloc(mgr, n, &p), "rdma_mem_alloc");
  else if (!(p = malloc(n))) fail("memory", "none");
  return p;
}

/* Each pair and direction has steps of its own; what is over is cleaned up, as a runtime does. */
static int64_t step_of(int from, int to, int64_t number) { return (number / KEYS * NODES + from) * NODES + to; }
static char key_of(int from, int to, int64_t *number, int64_t *step) {
  int64_t n = (*number)++;
  *step = step_of(from, to, n);
  if (n % KEYS == 0 && n >= 2 * KEYS) must(rdma_step_cleanup(mgr, step_of(from, to, n - 2 * KEYS)), "rdma_step_cleanup");
  return (char)('0' + n % KEYS);
}

static void received(rdma_code_t code, const char *why, size_t why_len, const rdma_tensor_t *tensor,
                     const rdma_transfer_info_t *info, void *userdata) {
  (void)why_len;
  peer *p = userdata;
  /* The end, here or there; of one that failed the parent tells. */
  if (code == RDMA_CANCELLED || info->reason == RDMA_REASON_PEER_GONE) return;
  if (code != RDMA_OK) fail("receive", why);
  pthread_mutex_lock(&lock);
  queue[queued++] = (message){p->node, tensor->data, tensor->nbytes, p};
  pthread_mutex_unlock(&lock);
  if (own.condvar) pthread_cond_signal(&arrived);
}

static void ask(peer *p) {
  rdma_recv_options_t o = {.struct_size = sizeof o, .dst = p->buffer, .dst_len = own.room};
  int64_t step;
  char key = key_of(p->node, own.me, &p->received, &step);
  must(rdma_recv_async(mgr, p->name, &key, 1, step, &o, received, p, NULL), "rdma_recv_async");
}

static void sent(rdma_code_t code, const char *why, size_t why_len, const rdma_transfer_info_t *info, void *userdata) {
  (void)why_len, (void)userdata;
  if (code != RDMA_OK && code != RDMA_CANCELLED && info->reason != RDMA_REASON_PEER_GONE) fail("send", why);
}

static char *rdma_open(const setup *s, size_t bytes) {
  rdma_mgr_options_t o;
  char name[16];
  own = *s;
  snprintf(name, sizeof name, "node%d", own.me);
  must(rdma_mgr_options_init(&o, sizeof o), "options");
  o.name = name;
  o.provider = "shm";
  if (own.busy_poll_us >= 0) o.busy_poll_us = own.busy_poll_us;
  must(rdma_mgr_create(&o, &mgr), "manager");
  must(rdma_mgr_listen(mgr, "127.0.0.1:0", own.addresses[own.me], sizeof own.addresses[0], NULL), "listen");
  memory = allocate(bytes);
  pthread_barrier_wait(own.all);
  for (int i = 0; i < NODES; i++) {
    if (!talks(own.me, i)) continue;
    peer *p = &peers[i];
    p->node = i;
    snprintf(p->name, sizeof p->name, "node%d", i);
    p->buffer = allocate(own.room);
    must(rdma_mgr_add_peer(mgr, p->name, own.addresses[i]), "rdma_mgr_add_peer");
    if (own.me < i) must(rdma_mgr_connect(mgr, p->name, 10000), "rdma_mgr_connect");
  }
  pthread_barrier_wait(own.all);
  for (int i = 0; i < NODES; i++)
    if (talks(own.me, i)) ask(&peers[i]);
  return memory;
}

static void rdma_send_to(int to, const char *data, size_t len) {
  int64_t step, dims[1] = {(int64_t)len};
  rdma_tensor_t t = {.struct_size = sizeof t, .data = data, .nbytes = len, .dims = dims, .ndims = 1, .dtype = 4};
  char key = key_of(own.me, to, &peers[to].sent, &step);
  must(rdma_send(mgr, &key, 1, step, &t, NULL, sent, NULL), "rdma_send");
}

static message rdma_next(void) {
  pthread_mutex_lock(&lock);
  while (queued == 0) {
    if (own.condvar) {
      pthread_cond_wait(&arrived, &lock);
      continue;
    }
    pthread_mutex_unlock(&lock);
    rdma_code_t code = rdma_mgr_wait(mgr, 1000);
    if (code != RDMA_DEADLINE_EXCEEDED) must(code, "rdma_mgr_wait");
    pthread_mutex_lock(&lock);
  }
  message m = queue[0];
  memmove(queue, queue + 1, (size_t)--queued * sizeof *queue);
  pthread_mutex_unlock(&lock);
  return m;
}

static void rdma_done(message *m) { ask(m->own); }

static void rdma_close(void) { must(rdma_mgr_destroy(mgr), "rdma_mgr_destroy"); }

const transport over_rdma = {"rdma", rdma_open, rdma_send_to, rdma_next, rdma_done, rdma_close};
