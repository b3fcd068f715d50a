/* Messages by ZeroMQ over Unix sockets, as parameter servers do it: each node has one socket for all that comes, and one for
   each peer for what goes there. */
#include "processes.h"
#ifdef HAVE_ZMQ
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

/* Below this ZeroMQ is faster if it copies. */
enum { COPIED = 8192 };

static void *context, *incoming, *outgoing[NODES];
static char *memory;
static setup own;

static void must(int code, const char *what) {
  if (code < 0) fail(what, zmq_strerror(errno));
}

static void *socket_of(int type) {
  int zero = 0;
  void *socket = zmq_socket(context, type);
  if (!socket) fail("zmq_socket", zmq_strerror(errno));
  must(zmq_setsockopt(socket, ZMQ_SNDHWM, &zero, sizeof zero), "ZMQ_SNDHWM");
  must(zmq_setsockopt(socket, ZMQ_RCVHWM, &zero, sizeof zero), "ZMQ_RCVHWM");
  return socket;
}

static char *zmq_open(const setup *s, size_t bytes) {
  own = *s;
  context = zmq_ctx_new();
  incoming = socket_of(ZMQ_ROUTER);
  memory = malloc(bytes);
  if (!memory) fail("memory", "none");
  snprintf(own.addresses[own.me], sizeof own.addresses[0], "ipc://@rdma-processes-%d", (int)getpid());
  must(zmq_bind(incoming, own.addresses[own.me]), "zmq_bind");
  pthread_barrier_wait(own.all);
  for (int i = 0; i < NODES; i++) {
    if (!talks(own.me, i)) continue;
    char name = (char)(own.me + 1);
    outgoing[i] = socket_of(ZMQ_DEALER);
    must(zmq_setsockopt(outgoing[i], ZMQ_IDENTITY, &name, 1), "ZMQ_IDENTITY");
    must(zmq_connect(outgoing[i], own.addresses[i]), "zmq_connect");
  }
  return memory;
}

static void keep(void *data, void *hint) { (void)data, (void)hint; }

static void zmq_send_to(int to, const char *data, size_t len) {
  if (len <= COPIED) {
    must(zmq_send(outgoing[to], data, len, 0), "zmq_send");
    return;
  }
  zmq_msg_t m;
  must(zmq_msg_init_data(&m, (void *)(uintptr_t)data, len, keep, NULL), "zmq_msg_init_data");
  must(zmq_msg_send(&m, outgoing[to], 0), "zmq_msg_send");
}

static message zmq_next(void) {
  static zmq_msg_t m;
  char name;
  must(zmq_recv(incoming, &name, 1, 0), "zmq_recv");
  zmq_msg_init(&m);
  must(zmq_msg_recv(&m, incoming, 0), "zmq_msg_recv");
  return (message){name - 1, zmq_msg_data(&m), zmq_msg_size(&m), &m};
}

static void zmq_done(message *m) { zmq_msg_close(m->own); }

static void zmq_end(void) {
  for (int i = 0; i < NODES; i++)
    if (outgoing[i]) zmq_close(outgoing[i]);
  zmq_close(incoming);
  zmq_ctx_term(context);
}

const transport over_zmq = {"zmq", zmq_open, zmq_send_to, zmq_next, zmq_done, zmq_end};
#else
static char *none(const setup *s, size_t bytes) {
  (void)s, (void)bytes;
  fail("zmq", "built without it (Debian: libzmq3-dev)");
}
const transport over_zmq = {"zmq", none, NULL, NULL, NULL, NULL};
#endif
