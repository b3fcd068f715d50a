/* A runtime with its own rendezvous: the source callback and its responses. */
#include "harness.h"
#include <pthread.h>

enum { ANSWER_NOW, ANSWER_LATER, ANSWER_FAIL, ANSWER_NEVER };
static atomic_int mode; // read by the progress thread
static _Atomic int asked, held;
static rdma_response_t held_id[4096];
static char held_key[4096][64];

static op *respond(rdma_mgr_t *m, rdma_response_t id, const rdma_tensor_t *t) {
  op *o = op_adopt("response");
  o->rc = rdma_response_send(m, id, t, op_send_done, o);
  return o;
}

static void source(rdma_mgr_t *m, rdma_response_t id, const char *peer, size_t peer_len, const char *key,
                   size_t key_len, int64_t step, void *userdata) {
  CHECK(userdata == &mode);
  CHECK_INT(5, peer_len);
  CHECK(memcmp(peer, "alpha", 5) == 0);
  CHECK(id != 0);
  atomic_fetch_add(&asked, 1);
  if (mode == ANSWER_NOW) {
    rdma_tensor_t t = tensor_of(NULL, (size_t)step, (uint64_t)step);
    CHECK_OK(respond(m, id, &t)->rc);
    CHECK_CODE(RDMA_NOT_FOUND, rdma_response_fail(m, id, RDMA_INTERNAL, "twice", 5));
  } else if (mode == ANSWER_FAIL) {
    CHECK_OK(rdma_response_fail(m, id, RDMA_PERMISSION_DENIED, "not for you", 11));
  } else if (mode == ANSWER_LATER) {
    int i = atomic_load(&held);
    held_id[i] = id;
    snprintf(held_key[i], sizeof held_key[i], "%.*s", (int)key_len, key);
    atomic_store(&held, i + 1);
  }
}

static pair source_pair(int how) {
  pair p = pair_new(NULL);
  mode = how;
  CHECK_OK(rdma_mgr_set_source(p.b, source, &mode));
  return p;
}

static void answer_now(void) {
  pair p = source_pair(ANSWER_NOW);
  static const int64_t n[] = {0, 10, 100000, 4000000, 10, 0};
  for (size_t i = 0; i < COUNT_OF(n); i++) {
    op *r = op_recv(p.a, "beta", i < 4 ? "a" : "b", n[i], (uint64_t)n[i], NULL);
    op_wait(r, RDMA_OK);
    CHECK_INT(n[i], r->tensor.nbytes);
  }
  CHECK_INT(COUNT_OF(n), atomic_load(&asked));
}

static void table_first(void) {
  pair p = source_pair(ANSWER_FAIL);
  rdma_tensor_t t = tensor_of(NULL, 100, 4);
  op *s = op_send(p.b, "in the table", 1, &t), *r = op_recv(p.a, "beta", "in the table", 1, 4, NULL);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK_INT(0, atomic_load(&asked));
  CHECK_OK(rdma_mgr_set_source(p.b, NULL, NULL));
  op *waiting = op_recv(p.a, "beta", "no source", 1, 5, NULL);
  pump_for(50);
  CHECK(!op_ended(waiting));
  rdma_tensor_t u = tensor_of(NULL, 100, 5);
  op *sent = op_send(p.b, "no source", 1, &u);
  op_wait(waiting, RDMA_OK);
  op_wait(sent, RDMA_OK);
}

static void answer_fail(void) {
  pair p = source_pair(ANSWER_FAIL);
  for (int i = 0; i < 10; i++) {
    op *r = op_recv(p.a, "beta", "denied", i, 0, NULL);
    op_wait(r, RDMA_PERMISSION_DENIED);
    CHECK_HAS(r->message, "not for you");
    CHECK_INT(RDMA_REASON_REMOTE_ERROR, r->info.reason);
  }
}

static rdma_mgr_t *answering;
static void *answer_thread(void *arg) {
  int n = *(int *)arg;
  for (int i = n - 1; i >= 0; i--) {
    uint64_t seed = strtoull(held_key[i], NULL, 10);
    rdma_tensor_t t = tensor_of(NULL, seed * 500, seed);
    CHECK_OK(respond(answering, held_id[i], &t)->rc);
  }
  return NULL;
}

static void answer_later(void) {
  enum { N = 300 };
  pair p = source_pair(ANSWER_LATER);
  op *r[N];
  char key[16];
  int n = N;
  pthread_t thread;
  for (int i = 0; i < N; i++) {
    snprintf(key, sizeof key, "%d", i);
    r[i] = op_recv(p.a, "beta", key, 1, (uint64_t)i, NULL);
  }
  CHECK(count_reached(&held, N, 20000));
  answering = p.b;
  CHECK(pthread_create(&thread, NULL, answer_thread, &n) == 0);
  for (int i = 0; i < N; i++) op_wait(r[i], RDMA_OK);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_response_fail(p.b, held_id[0], RDMA_INTERNAL, "late", 4));
}

static bool is_connected(void *a) {
  rdma_peer_info_t info = {.struct_size = sizeof info};
  return rdma_mgr_peer_info(a, "beta", &info) == RDMA_OK && info.state == RDMA_PEER_CONNECTED;
}

/* Whoever waits for a short deadline must not spend it on the handshake. */
static void connect_first(pair p) {
  CHECK_OK(rdma_mgr_connect(p.a, "beta", 0));
  CHECK(pump_until(is_connected, p.a, 10000));
}

static void never_answered(void) {
  pair p = source_pair(ANSWER_NEVER);
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = 100;
  connect_first(p);
  op *r = op_recv(p.a, "beta", "silence", 1, 0, &o);
  op_wait(r, RDMA_DEADLINE_EXCEEDED);
  /* The receiver is not told that its peer has asked the application. */
  CHECK_HAS(r->message, "had no tensor of this key, or its application was not done with it");
  CHECK(count_reached(&asked, 1, 10000));
}

static void answered_after_the_deadline(void) {
  pair p = source_pair(ANSWER_LATER);
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = 60;
  connect_first(p);
  op *r = op_recv(p.a, "beta", "1", 1, 0, &o);
  op_wait(r, RDMA_DEADLINE_EXCEEDED);
  CHECK(count_reached(&held, 1, 5000));
  pump_for(50);
  rdma_tensor_t t = tensor_of(NULL, MIB, 1);
  op *late = respond(p.b, held_id[0], &t);
  if (late->rc == RDMA_OK) CHECK(pump_until(op_ended_fn, late, 10000));
  else CHECK_CODE(RDMA_NOT_FOUND, late->rc);
  mode = ANSWER_NOW;
  op *next = op_recv(p.a, "beta", "next", 300000, 300000, NULL);
  op_wait(next, RDMA_OK);
}

/* A tensor on a device that is not known: the response is over, and the receiver hears of it. */
static void unknown_device(void) {
  pair p = source_pair(ANSWER_LATER);
  op *r = op_recv(p.a, "beta", "1", 1, 1, NULL);
  CHECK(count_reached(&held, 1, 10000));
  rdma_tensor_t t = tensor_of(NULL, 8, 1);
  t.device = 99;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_response_send(p.b, held_id[0], &t, NULL, NULL));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_response_fail(p.b, held_id[0], RDMA_INTERNAL, "again", 5));
  op_wait(r, RDMA_NOT_FOUND);
}

static void bad_responses(void) {
  pair p = source_pair(ANSWER_LATER);
  rdma_tensor_t t = tensor_of(NULL, 10, 1);
  op *o = respond(p.b, 12345, &t);
  CHECK_CODE(RDMA_NOT_FOUND, o->rc);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_response_fail(p.b, 12345, RDMA_INTERNAL, "x", 1));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_response_fail(p.b, 0, RDMA_INTERNAL, "x", 1));
  op *r = op_recv(p.a, "beta", "1", 1, 1, NULL);
  CHECK(count_reached(&held, 1, 10000));
  /* A response refused for its arguments can still be given. */
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_response_fail(p.b, held_id[0], RDMA_OK, "x", 1));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_response_fail(p.b, held_id[0], 99, "x", 1));
  o = respond(p.b, held_id[0], &t);
  CHECK_OK(o->rc);
  op_wait(r, RDMA_OK);
}

static const test_case cases[] = {CASE(answer_now),     CASE(table_first),    CASE(answer_fail),
                                  CASE(answer_later),   CASE(never_answered), CASE(answered_after_the_deadline),
                                  CASE(unknown_device), CASE(bad_responses)};
TEST_MAIN(cases)
