/* The neighbours of the operations in ops.c: the same content by other options, layouts and front ends. */
#include "ops.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tagged messages ---- */
static rdma_msg_options_t sending, receiving;
static rdma_msg_layout_t from_pieces, to_pieces;
static rdma_msg_piece_t pieces[2][4];
static rdma_msg_persistent_t send_again, receive_again;
static rdma_peer_t source;
static bool early, probes;

static void plain(scene *s) {
  must(rdma_msg_options_init(&sending, sizeof sending), "options");
  must(rdma_msg_options_init(&receiving, sizeof receiving), "options");
  source = s->peer_from;
}
static void any_source(scene *s) {
  plain(s);
  source = RDMA_PEER_ANY;
}
static void unexpected(scene *s) {
  plain(s);
  early = true;
}
static void probed(scene *s) {
  plain(s);
  probes = true;
}
static void synchronous(scene *s) {
  plain(s);
  sending.mode = RDMA_MSG_SYNCHRONOUS;
}
static void buffered(scene *s) {
  plain(s);
  sending.mode = RDMA_MSG_BUFFERED;
  must(rdma_msg_attach(s->from, 1 << 20), "rdma_msg_attach");
}

/* Four pieces of a quarter each, at both ends. */
static void in_pieces(scene *s, uint32_t kind) {
  size_t part = s->tensor.nbytes / 4;
  plain(s);
  for (size_t i = 0; i < 4; i++) {
    pieces[0][i].data = (char *)s->tensor.data + i * part;
    pieces[1][i].data = (char *)s->options.dst + i * part;
    pieces[0][i].len = pieces[1][i].len = part;
  }
  from_pieces.struct_size = to_pieces.struct_size = sizeof from_pieces;
  from_pieces.kind = to_pieces.kind = kind;
  from_pieces.count = to_pieces.count = 4;
  if (kind == RDMA_MSG_STRIDED) {
    from_pieces.base = (void *)s->tensor.data;
    to_pieces.base = s->options.dst;
    from_pieces.block = to_pieces.block = from_pieces.stride = to_pieces.stride = part;
  } else {
    from_pieces.pieces = pieces[0];
    to_pieces.pieces = pieces[1];
  }
  sending.layout = &from_pieces;
  receiving.layout = &to_pieces;
}
static void iovec(scene *s) { in_pieces(s, RDMA_MSG_IOVEC); }
static void strided(scene *s) { in_pieces(s, RDMA_MSG_STRIDED); }
static void parts(scene *s) { in_pieces(s, RDMA_MSG_PARTS); }

/* Until both have ended. */
static void both(scene *s, rdma_msg_request_t receive, rdma_msg_request_t sent) {
  static long all;
  size_t done = 0;
  while (receive != 0 || sent != 0) {
    if (receive != 0) must(rdma_msg_test(s->to, &receive, 1, RDMA_MSG_ALL, NULL, NULL, &done), "rdma_msg_test");
    if (sent != 0) must(rdma_msg_test(s->from, &sent, 1, RDMA_MSG_ALL, NULL, NULL, &done), "rdma_msg_test");
  }
  /* Word of more room comes to the sender. */
  if (++all % 64 == 0) must(rdma_mgr_progress(s->from, NULL), "progress");
}

static rdma_msg_request_t begin_receive(scene *s, uint64_t tag) {
  rdma_msg_request_t receive = 0;
  bool layout = receiving.layout != NULL;
  must(rdma_msg_irecv(s->to, source, 0, tag, RDMA_MSG_TAG_MASK, layout ? NULL : s->options.dst,
                      layout ? 0 : s->options.dst_len, &receiving, NULL, &receive), "rdma_msg_irecv");
  return receive;
}

static void message(scene *s, uint64_t tag) {
  rdma_msg_request_t receive = 0, sent = 0;
  bool layout = sending.layout != NULL;
  if (!early && !probes) receive = begin_receive(s, tag);
  must(rdma_msg_isend(s->from, s->peer_to, 0, tag, layout ? NULL : s->tensor.data, layout ? 0 : s->tensor.nbytes, &sending,
                      &sent), "rdma_msg_isend");
  if (early) must(rdma_mgr_progress(s->to, NULL), "progress");
  if (probes) {
    rdma_msg_status_t found;
    rdma_code_t code;
    memset(&found, 0, sizeof found);
    found.struct_size = sizeof found;
    do code = rdma_msg_probe(s->to, source, 0, tag, RDMA_MSG_TAG_MASK, true, 0, &found);
    while (code == RDMA_DEADLINE_EXCEEDED);
    must(code, "rdma_msg_probe");
    must(rdma_msg_imrecv(s->to, found.message, s->options.dst, s->options.dst_len, &receiving, NULL, &receive),
         "rdma_msg_imrecv");
  } else if (early) {
    receive = begin_receive(s, tag);
  }
  both(s, receive, sent);
}

static void persistent(scene *s) {
  plain(s);
  must(rdma_msg_send_init(s->from, s->peer_to, 0, 7, s->tensor.data, s->tensor.nbytes, NULL, &send_again), "rdma_msg_send_init");
  must(rdma_msg_recv_init(s->to, s->peer_from, 0, 7, RDMA_MSG_TAG_MASK, s->options.dst, s->options.dst_len, NULL,
                          &receive_again), "rdma_msg_recv_init");
}
static void start(scene *s, uint64_t tag) {
  rdma_msg_request_t receive = 0, sent = 0;
  (void)tag;
  must(rdma_msg_start(s->to, receive_again, NULL, &receive), "rdma_msg_start");
  must(rdma_msg_start(s->from, send_again, NULL, &sent), "rdma_msg_start");
  both(s, receive, sent);
}

/* ---- pairs and unbound buffers ---- */
enum { SLOT = 3, COMM = 3 };
static rdma_buffer_t buffer_from, buffer_to;
static rdma_unbound_t unbound_from, unbound_to;

static void pair(scene *s) {
  uint8_t addresses[2][512];
  size_t lens[2];
  rdma_pair_t from, to;
  must(rdma_pair_create(s->from, 1, 0, &from), "rdma_pair_create");
  must(rdma_pair_create(s->to, 0, 0, &to), "rdma_pair_create");
  must(rdma_pair_address(s->from, from, addresses[0], sizeof addresses[0], &lens[0]), "rdma_pair_address");
  must(rdma_pair_address(s->to, to, addresses[1], sizeof addresses[1], &lens[1]), "rdma_pair_address");
  must(rdma_pair_connect(s->from, from, addresses[1], lens[1], 0), "rdma_pair_connect");
  must(rdma_pair_connect(s->to, to, addresses[0], lens[0], 0), "rdma_pair_connect");
  must(rdma_buffer_create_send(s->from, from, SLOT, (void *)s->tensor.data, s->tensor.nbytes, NULL, NULL, &buffer_from), "send buffer");
  must(rdma_buffer_create_recv(s->to, to, SLOT, s->options.dst, s->options.dst_len, NULL, NULL, &buffer_to), "receive buffer");
}
static void pair_send(scene *s, uint64_t tag) {
  uint64_t sent = 0, received = 0;
  (void)tag;
  must(rdma_buffer_send(s->from, buffer_from, 0, s->tensor.nbytes, 0), "rdma_buffer_send");
  while (received == 0) {
    must(rdma_buffer_test(s->to, buffer_to, NULL, &received), "rdma_buffer_test");
    if (received == 0) must(rdma_mgr_progress(s->from, NULL), "progress"); /* the first waits for its slot */
  }
  must(rdma_buffer_wait_recv(s->to, buffer_to, 0), "rdma_buffer_wait_recv");
  while (sent == 0) {
    must(rdma_buffer_test(s->from, buffer_from, &sent, NULL), "rdma_buffer_test");
    if (sent == 0) must(rdma_mgr_progress(s->to, NULL), "progress");
  }
  must(rdma_buffer_wait_send(s->from, buffer_from, 0), "rdma_buffer_wait_send");
}

static void unbound(scene *s) {
  must(rdma_unbound_create(s->from, COMM, (void *)s->tensor.data, s->tensor.nbytes, &unbound_from), "rdma_unbound_create");
  must(rdma_unbound_create(s->to, COMM, s->options.dst, s->options.dst_len, &unbound_to), "rdma_unbound_create");
}
static void unbound_send(scene *s, uint64_t tag) {
  uint64_t sent = 0, received = 0;
  must(rdma_unbound_recv(s->to, unbound_to, &s->peer_from, 1, tag, 0, s->options.dst_len, 0), "rdma_unbound_recv");
  must(rdma_unbound_send(s->from, unbound_from, s->peer_to, tag, 0, s->tensor.nbytes, 0), "rdma_unbound_send");
  while (received == 0) {
    must(rdma_unbound_test(s->to, unbound_to, NULL, &received), "rdma_unbound_test");
    if (received == 0) must(rdma_mgr_progress(s->from, NULL), "progress"); /* word of more room comes to it */
  }
  must(rdma_unbound_wait_recv(s->to, unbound_to, 0, NULL), "rdma_unbound_wait_recv");
  while (sent == 0) {
    must(rdma_unbound_test(s->from, unbound_from, &sent, NULL), "rdma_unbound_test");
    if (sent == 0) must(rdma_mgr_progress(s->to, NULL), "progress");
  }
  must(rdma_unbound_wait_send(s->from, unbound_from, 0, NULL), "rdma_unbound_wait_send");
}

/* ---- tensors, to a receive that waits ---- */
static const char *key_of(int64_t step) {
  (void)step;
  return "key";
}
/* As TensorFlow's are. */
static const char *long_key(int64_t step) {
  (void)step;
  return "/job:ps/replica:0/task:0/device:CPU:0;4a6b1c2d3e4f5061;/job:worker/replica:0/task:0/device:CPU:0;"
         "edge_1234_gradients/dense/MatMul_grad/tuple/control_dependency;0:0";
}
static const char *new_key(int64_t step) {
  static char text[64];
  snprintf(text, sizeof text, "key %lld", (long long)step);
  return text;
}
static const char *(*name_of)(int64_t) = key_of;

static void with_long_key(scene *s) {
  (void)s;
  name_of = long_key;
}
static void with_new_key(scene *s) {
  (void)s;
  name_of = new_key;
}
static void to_library(scene *s) {
  s->options.dst = NULL;
  s->options.dst_len = 0;
}
static void tensor(scene *s, uint64_t tag) {
  static int64_t step = 1;
  const char *key = name_of(++step);
  (void)tag;
  ended = 0;
  ask(s, key, step);
  for (int i = 0; i < 2; i++) must(rdma_mgr_progress(s->from, NULL), "progress");
  offer(s, key, step);
  turn(s, 2);
  must(rdma_step_cleanup(s->from, step), "cleanup");
  must(rdma_step_cleanup(s->to, step), "cleanup");
}

const operation more[] = {
    {"any", any_source, message},     {"unexpected", unexpected, message},
    {"probe", probed, message},       {"synchronous", synchronous, message},
    {"buffered", buffered, message},  {"iovec", iovec, message},
    {"strided", strided, message},    {"parts", parts, message},
    {"persistent", persistent, start}, {"pair", pair, pair_send},
    {"unbound", unbound, unbound_send}, {"library", to_library, tensor},
    {"long-key", with_long_key, tensor}, {"new-key", with_new_key, tensor},
    {NULL, NULL, NULL},
};
