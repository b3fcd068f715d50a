/* Send and receive by name: order, waiters, dead and empty tensors, duplicates, local receives. */
#include "harness.h"

static void send_before_receive(void) {
  pair p = pair_new(NULL);
  rdma_tensor_t t = tensor_of(NULL, 1000, 7);
  op *s = op_send(p.b, "w", 1, &t);
  CHECK_OK(s->rc);
  pump_for(20);
  op *r = op_recv(p.a, "beta", "w", 1, 7, NULL);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK_INT(1000, r->tensor.nbytes);
  CHECK_INT(1, r->tensor.ndims);
  CHECK_INT(1000, r->dims[0]);
  CHECK_INT(4, r->tensor.dtype);
  CHECK_INT(1000, r->info.bytes);
  CHECK_STR("beta", r->peer);
  CHECK_STR("alpha", s->peer);
  CHECK_STR(s->provider, r->provider);
  if (!is_provider("auto")) CHECK_STR(env.provider, r->provider);
  CHECK_MSG(r->info.protocol >= RDMA_PROTOCOL_EAGER && r->info.protocol <= RDMA_PROTOCOL_PIPELINE,
            "protocol is %u", r->info.protocol);
  CHECK_INT(RDMA_REASON_NONE, r->info.reason);
  CHECK(r->info.elapsed_ns > 0);
}

static void receive_before_send(void) {
  pair p = pair_new(NULL);
  op *r = op_recv(p.a, "beta", "late", 5, 9, NULL);
  pump_for(30);
  CHECK(!op_ended(r));
  rdma_tensor_t t = tensor_of(NULL, 333, 9);
  op *s = op_send(p.b, "late", 5, &t);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
}

static void many_waiters(void) {
  enum { N = 200 };
  pair p = pair_new(NULL);
  op *r[N], *s[N];
  char key[32];
  for (int i = 0; i < N; i++) {
    snprintf(key, sizeof key, "waiter/%d", i);
    r[i] = op_recv(p.a, "beta", key, 3, (uint64_t)i, NULL);
  }
  for (int i = N - 1; i >= 0; i--) {
    rdma_tensor_t t = tensor_of(NULL, (size_t)i * 17, (uint64_t)i);
    snprintf(key, sizeof key, "waiter/%d", i);
    s[i] = op_send(p.b, key, 3, &t);
  }
  for (int i = 0; i < N; i++) {
    op_wait(r[i], RDMA_OK);
    op_wait(s[i], RDMA_OK);
    CHECK_INT(i * 17, r[i]->tensor.nbytes);
  }
}

static void both_directions(void) {
  pair p = pair_new(NULL);
  for (int64_t step = 0; step < 50; step++) {
    rdma_tensor_t x = tensor_of(NULL, 5000, 1), y = tensor_of(NULL, 50000, 2);
    op *s1 = op_send(p.a, "k", step, &x), *s2 = op_send(p.b, "k", step, &y);
    op *r1 = op_recv(p.b, "alpha", "k", step, 1, NULL), *r2 = op_recv(p.a, "beta", "k", step, 2, NULL);
    op_wait(r1, RDMA_OK);
    op_wait(r2, RDMA_OK);
    op_wait(s1, RDMA_OK);
    op_wait(s2, RDMA_OK);
  }
}

static void blocking_receive(void) {
  pair p = pair_new(NULL);
  drive(p.b);
  for (int i = 0; i < 20; i++) {
    rdma_tensor_t t = tensor_of(NULL, 4096, (uint64_t)i), out;
    rdma_request_t request = 0;
    CHECK_OK(rdma_tensor_init(&out, sizeof out));
    op *s = op_send(p.b, "blocking", i, &t);
    CHECK_OK(rdma_recv(p.a, "beta", "blocking", 8, i, NULL, &out, &request));
    CHECK(request != 0);
    CHECK_INT(4096, out.nbytes);
    CHECK_INT(-1, mismatch(out.data, 4096, (uint64_t)i));
    CHECK_OK(rdma_request_release(p.a, request));
    CHECK_BAD(RDMA_NOT_FOUND, rdma_request_release(p.a, request));
    op_wait(s, RDMA_OK);
  }
}

static void dead_tensor(void) {
  pair p = pair_new(NULL);
  rdma_tensor_t t = tensor_of(NULL, 0, 0);
  t.flags = RDMA_TENSOR_DEAD;
  for (int64_t step = 0; step < 3; step++) {
    op *r = op_recv(p.a, "beta", "dead", step, 0, NULL);
    op *s = op_send(p.b, "dead", step, &t);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(RDMA_TENSOR_DEAD, r->tensor.flags);
    CHECK_INT(0, r->tensor.nbytes);
  }
  /* Alive, dead and alive again under one key: the metadata changes each time. */
  for (int64_t step = 10; step < 16; step++) {
    rdma_tensor_t alive = tensor_of(NULL, 100000, 5);
    op *s = op_send(p.b, "mixed", step, step % 2 ? &t : &alive);
    op *r = op_recv(p.a, "beta", "mixed", step, 5, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(step % 2 ? 0 : 100000, r->tensor.nbytes);
    CHECK_INT(step % 2 ? RDMA_TENSOR_DEAD : 0, r->tensor.flags);
  }
}

static void empty_tensor(void) {
  pair p = pair_new(NULL);
  int64_t dims[3] = {4, 0, 7};
  rdma_tensor_t t = tensor_of(NULL, 0, 0);
  t.dims = dims;
  t.ndims = 3;
  t.dtype = 1;
  for (int64_t step = 0; step < 3; step++) {
    op *s = op_send(p.b, "empty", step, &t);
    op *r = op_recv(p.a, "beta", "empty", step, 0, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(0, r->tensor.nbytes);
    CHECK_INT(3, r->tensor.ndims);
    CHECK_INT(7, r->dims[2]);
    CHECK_INT(0, r->tensor.flags);
  }
}

static void scalars_and_many_dimensions(void) {
  pair p = pair_new(NULL);
  int64_t dims[RDMA_MAX_DIMS];
  for (uint32_t n = 0; n <= RDMA_MAX_DIMS; n += n < 8 ? 1 : 41) {
    rdma_tensor_t t = tensor_of(NULL, 8, n);
    for (uint32_t i = 0; i < n; i++) dims[i] = i + 1;
    t.dims = n ? dims : NULL;
    t.ndims = n;
    op *s = op_send(p.b, "dims", n, &t);
    op *r = op_recv(p.a, "beta", "dims", n, n, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(n, r->tensor.ndims);
    for (uint32_t i = 0; i < n; i++) CHECK_INT(i + 1, r->dims[i]);
  }
}

static void serialized_flag(void) {
  pair p = pair_new(NULL);
  size_t sizes[] = {3, 3000, 300000};
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    rdma_tensor_t t = tensor_of(NULL, sizes[i], i);
    t.flags = RDMA_TENSOR_SERIALIZED;
    t.dtype = 0xFFFFFFFFu;
    op *s = op_send(p.b, "strings", (int64_t)i, &t);
    op *r = op_recv(p.a, "beta", "strings", (int64_t)i, i, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(RDMA_TENSOR_SERIALIZED, r->tensor.flags);
    CHECK_INT(0xFFFFFFFFu, r->tensor.dtype);
  }
}

static void duplicate_send(void) {
  pair p = pair_new(NULL);
  rdma_tensor_t t = tensor_of(NULL, 10, 1);
  op *first = op_send(p.b, "twice", 0, &t);
  CHECK_OK(first->rc);
  op *second = op_send(p.b, "twice", 0, &t);
  if (second->rc == RDMA_OK) op_wait(second, RDMA_ABORTED);
  else CHECK_CODE(RDMA_ABORTED, second->rc);
  op *r = op_recv(p.a, "beta", "twice", 0, 1, NULL);
  op_wait(r, RDMA_OK);
  op_wait(first, RDMA_OK);
}

static void duplicate_receive(void) {
  pair p = pair_new(NULL);
  recv_call call = {.mgr = p.a, .peer = "beta", .key = "dup", .step = 4, .check_content = true, .seed = 2};
  op *first = op_recv_call(&call);
  CHECK_OK(first->rc);
  op *second = op_recv_call(&call);
  if (second->rc == RDMA_OK) op_wait(second, RDMA_ABORTED);
  else CHECK_CODE(RDMA_ABORTED, second->rc);
  CHECK(!op_ended(first));
  rdma_tensor_t t = tensor_of(NULL, 10, 2);
  op *s = op_send(p.b, "dup", 4, &t);
  op_wait(first, RDMA_OK);
  op_wait(s, RDMA_OK);
}

static void tolerate(rdma_mgr_options_t *o) { o->tolerate_dup_recv = 1; }
static void duplicate_receive_tolerated(void) {
  pair p = pair_new(tolerate);
  op *first = op_recv(p.a, "beta", "dup", 4, 2, NULL), *second = op_recv(p.a, "beta", "dup", 4, 2, NULL);
  rdma_tensor_t t = tensor_of(NULL, 10, 2);
  op *s = op_send(p.b, "dup", 4, &t);
  op_wait(s, RDMA_OK);
  CHECK(pump_until(op_ended_fn, first, 5000) ||
        pump_until(op_ended_fn, second, 5000));
  pump_for(50);
  CHECK_MSG(op_ended(first) != op_ended(second), "one tensor for two receives: %d and %d have ended",
            op_ended(first), op_ended(second));
  op *waiting = op_ended(first) ? second : first;
  op *done = op_ended(first) ? first : second;
  CHECK_CODE(RDMA_OK, done->code);
  CHECK_OK(rdma_step_abort(p.a, 4, RDMA_CANCELLED, "over", 4));
  op_wait(waiting, RDMA_CANCELLED);
}

static void local_receive(void) {
  rdma_mgr_t *m = mgr_new("alone", NULL);
  const char *const own[] = {NULL, "alone"};
  for (int64_t i = 0; i < 4; i++) {
    size_t n = i < 2 ? 100 : 3 * MIB;
    rdma_tensor_t t = tensor_of(NULL, n, 3);
    op *s = i % 2 ? op_send(m, "own", i, &t) : NULL;
    op *r = op_recv(m, own[i % 2], "own", i, 3, NULL);
    if (!s) s = op_send(m, "own", i, &t);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_STR("local", r->provider);
    CHECK_INT(RDMA_PROTOCOL_LOCAL, r->info.protocol);
    CHECK_STR("", r->peer);
  }
  void *dst = scratch(1000);
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = 1000;
  rdma_tensor_t t = tensor_of(NULL, 1000, 8);
  op *r = op_recv(m, "alone", "given", 0, 8, &o), *s = op_send(m, "given", 0, &t);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK(r->data == dst);
  CHECK_INT(-1, mismatch(dst, 1000, 8));
}

static void same_key_in_many_steps(void) {
  enum { N = 300 };
  pair p = pair_new(NULL);
  op *s[N], *r[N];
  for (int i = 0; i < N; i++) {
    rdma_tensor_t t = tensor_of(NULL, 64, (uint64_t)i);
    s[i] = op_send(p.b, "same", i, &t);
  }
  for (int i = N - 1; i >= 0; i--) r[i] = op_recv(p.a, "beta", "same", i, (uint64_t)i, NULL);
  for (int i = 0; i < N; i++) {
    op_wait(r[i], RDMA_OK);
    op_wait(s[i], RDMA_OK);
  }
}

static const test_case cases[] = {
    CASE(send_before_receive), CASE(receive_before_send), CASE(many_waiters), CASE(both_directions),
    CASE(blocking_receive), CASE(dead_tensor), CASE(empty_tensor), CASE(scalars_and_many_dimensions),
    CASE(serialized_flag), CASE(duplicate_send), CASE(duplicate_receive),
    CASE(duplicate_receive_tolerated), CASE(local_receive), CASE(same_key_in_many_steps),
};
TEST_MAIN(cases)
