/* One thread, two managers, manual progress: for counting instructions with callgrind.
   usage: rdma_ops OPERATION BYTES COUNT PROVIDER; see bench/instructions. */
#define _GNU_SOURCE
#include "ops.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The library's clock, in place of the C library's: under callgrind a program runs some fifty times slower, and what
   the library does now and then, by the clock, would be counted fifty times too often, and more often where the
   machine is busy. This one goes on by what passes between two readings when nothing slows the program. */
#define TICK_NS 250
int clock_gettime(clockid_t id, struct timespec *at) {
  static _Atomic uint64_t readings;
  if (id != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, id, at);
  /* One thread reads it; a sum without a lock, which would be counted among the library's. */
  uint64_t before = atomic_load_explicit(&readings, memory_order_relaxed), ns = 1000000000u + TICK_NS * before;
  atomic_store_explicit(&readings, before + 1, memory_order_relaxed);
  at->tv_sec = (time_t)(ns / 1000000000u), at->tv_nsec = (long)(ns % 1000000000u);
  return 0;
}

void must(rdma_code_t code, const char *what) {
  char text[512];
  if (code == RDMA_OK) return;
  text[0] = 0;
  rdma_last_error(text, sizeof text);
  fprintf(stderr, "%s: %s: %s\n", what, rdma_code_name(code), text);
  exit(1);
}

static rdma_mgr_t *open_manager(const char *name, const char *provider) {
  rdma_mgr_options_t o;
  rdma_mgr_t *m = NULL;
  must(rdma_mgr_options_init(&o, sizeof o), "options");
  o.name = name;
  o.provider = provider;
  o.progress = RDMA_PROGRESS_MANUAL;
  must(rdma_mgr_create(&o, &m), "manager");
  return m;
}

int ended;
static void send_done(rdma_code_t code, const char *message, size_t len, const rdma_transfer_info_t *info,
                      void *userdata) {
  (void)message, (void)len, (void)info, (void)userdata;
  must(code, "send");
  ended++;
}
static void recv_done(rdma_code_t code, const char *message, size_t len, const rdma_tensor_t *tensor,
                      const rdma_transfer_info_t *info, void *userdata) {
  (void)message, (void)len, (void)tensor, (void)info, (void)userdata;
  must(code, "receive");
  ended++;
}

void turn(scene *s, int until) {
  while (ended < until) {
    must(rdma_mgr_progress(s->to, NULL), "progress");
    must(rdma_mgr_progress(s->from, NULL), "progress");
  }
}

void offer(scene *s, const char *key, int64_t step) {
  must(rdma_send(s->from, key, strlen(key), step, &s->tensor, NULL, send_done, NULL), "rdma_send");
}
void ask(scene *s, const char *key, int64_t step) {
  must(rdma_recv_async(s->to, "from", key, strlen(key), step, &s->options, recv_done, NULL, NULL), "rdma_recv_async");
}

/* The tensor is there before it is asked for, or the receiver waits for it. */
static void transfer(scene *s, int64_t step, int waiting) {
  ended = 0;
  if (waiting) {
    ask(s, "key", step);
    for (int i = 0; i < 2; i++) must(rdma_mgr_progress(s->from, NULL), "progress");
    offer(s, "key", step);
  } else {
    offer(s, "key", step);
    ask(s, "key", step);
  }
  turn(s, 2);
  must(rdma_step_cleanup(s->from, step), "cleanup");
  must(rdma_step_cleanup(s->to, step), "cleanup");
}

/* A tagged message to a receive that waits: the receive, the send, and the turns of the receiver that end it. */
static void message(scene *s, uint64_t tag) {
  rdma_msg_request_t receive = 0, sent = 0;
  size_t done = 0;
  must(rdma_msg_irecv(s->to, s->peer_from, 0, tag, RDMA_MSG_TAG_MASK, s->options.dst, s->options.dst_len, NULL, NULL,
                      &receive), "rdma_msg_irecv");
  must(rdma_msg_isend(s->from, s->peer_to, 0, tag, s->tensor.data, s->tensor.nbytes, NULL, &sent), "rdma_msg_isend");
  while (receive != 0) {
    must(rdma_msg_test(s->to, &receive, 1, RDMA_MSG_ALL, NULL, NULL, &done), "rdma_msg_test");
    if (receive != 0) must(rdma_mgr_progress(s->from, NULL), "progress");
  }
  /* Word of more room comes to the sender. */
  if (++ended % 64 == 0) must(rdma_mgr_progress(s->from, NULL), "progress");
  while (sent != 0) {
    must(rdma_msg_test(s->from, &sent, 1, RDMA_MSG_ALL, NULL, NULL, &done), "rdma_msg_test");
    must(rdma_mgr_progress(s->to, NULL), "progress");
  }
}

/* The same with eight bytes beside the content, to a receive that is told by a callback: as MPI over libfabric has it. */
static void message_done(const rdma_msg_status_t *status, void *userdata) {
  (void)userdata;
  must(status->code, "message");
  if (status->header_len == 8) ended++;
}
static void message_with_header(scene *s, uint64_t tag) {
  static long sent_in_all;
  rdma_msg_options_t receive, send;
  rdma_msg_request_t request = 0;
  must(rdma_msg_options_init(&receive, sizeof receive), "options");
  must(rdma_msg_options_init(&send, sizeof send), "options");
  receive.done = send.done = message_done;
  send.header = &tag;
  send.header_len = sizeof tag;
  ended = 0;
  must(rdma_msg_irecv(s->to, s->peer_from, 0, tag, RDMA_MSG_TAG_MASK, s->options.dst, s->options.dst_len, &receive, NULL,
                      &request), "rdma_msg_irecv");
  must(rdma_msg_isend(s->from, s->peer_to, 0, tag, s->tensor.data, s->tensor.nbytes, &send, &request), "rdma_msg_isend");
  while (ended == 0) must(rdma_mgr_progress(s->to, NULL), "progress");
  if (++sent_in_all % 64 == 0) must(rdma_mgr_progress(s->from, NULL), "progress");
}

/* An active message with eight bytes of header. */
static uint32_t acted(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  (void)mgr, (void)data, (void)userdata;
  if (status->header_len == 8) ended++;
  return RDMA_MSG_HANDLED;
}
static void active(scene *s, uint64_t tag) {
  static long sent_in_all;
  rdma_msg_options_t send;
  rdma_msg_request_t request = 0;
  must(rdma_msg_options_init(&send, sizeof send), "options");
  send.header = &tag;
  send.header_len = sizeof tag;
  ended = 0;
  must(rdma_msg_am_isend(s->from, s->peer_to, 1, tag, s->tensor.data, s->tensor.nbytes, &send, &request), "rdma_msg_am_isend");
  while (ended == 0) must(rdma_mgr_progress(s->to, NULL), "progress");
  if (++sent_in_all % 64 == 0) must(rdma_mgr_progress(s->from, NULL), "progress");
}

/* Both know each other's number. */
static void meet(scene *s) {
  transfer(s, -1, 0); /* connects */
  must(rdma_peer_lookup(s->from, "to", &s->peer_to), "lookup");
  must(rdma_peer_lookup(s->to, "from", &s->peer_from), "lookup");
}

static const operation own[] = {
    {"message", NULL, message}, {"header", NULL, message_with_header}, {"active", NULL, active}, {NULL, NULL, NULL}};

int main(int argc, char **argv) {
  scene s;
  char address[256];
  if (argc != 5) {
    fprintf(stderr, "usage: rdma_ops OPERATION BYTES COUNT PROVIDER, where OPERATION is waiting, ready, idle");
    for (const operation *each = own; each->name; each++) fprintf(stderr, ", %s", each->name);
    for (const operation *each = more; each->name; each++) fprintf(stderr, ", %s", each->name);
    fprintf(stderr, "\n");
    return 2;
  }
  int waiting = strcmp(argv[1], "waiting") == 0;
  size_t n = strtoul(argv[2], NULL, 10);
  long count = strtol(argv[3], NULL, 10);
  void *source = calloc(1, n), *target = calloc(1, n);
  if (!source || !target) return 1;
  s.from = open_manager("from", argv[4]);
  s.to = open_manager("to", argv[4]);
  must(rdma_mgr_listen(s.from, "127.0.0.1:0", address, sizeof address, NULL), "listen");
  must(rdma_mgr_add_peer(s.to, "from", address), "add_peer");
  must(rdma_recv_options_init(&s.options, sizeof s.options), "options");
  s.options.dst = target;
  s.options.dst_len = n;
  memset(&s.tensor, 0, sizeof s.tensor);
  s.tensor.struct_size = sizeof s.tensor;
  s.tensor.data = source;
  s.tensor.nbytes = n;
  if (strcmp(argv[1], "idle") == 0) {
    transfer(&s, -1, 0);
    for (long i = 0; i < count; i++) must(rdma_mgr_progress(s.to, NULL), "progress");
    count = 0;
  }
  const operation *op = NULL;
  for (const operation *each = own; each->name && !op; each++) op = strcmp(each->name, argv[1]) == 0 ? each : NULL;
  for (const operation *each = more; each->name && !op; each++) op = strcmp(each->name, argv[1]) == 0 ? each : NULL;
  if (op) {
    meet(&s);
    must(rdma_msg_handler(s.to, 1, acted, NULL), "rdma_msg_handler");
    if (op->prepare) op->prepare(&s);
    for (long i = 0; i < count; i++) op->one(&s, 7);
    count = 0;
  } else if (!waiting && strcmp(argv[1], "ready") != 0 && strcmp(argv[1], "idle") != 0) {
    fprintf(stderr, "%s: unknown operation\n", argv[1]);
    return 2;
  }
  for (long i = 0; i < count; i++) transfer(&s, i, waiting);
  must(rdma_mgr_destroy(s.to), "destroy");
  must(rdma_mgr_destroy(s.from), "destroy");
  free(source);
  free(target);
  return 0;
}
