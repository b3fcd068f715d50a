/* Bytes of the application beside a tensor: each transfer has its own, whatever carries it. */
#include "harness.h"

/* What goes with the tensors of one name, one step after the other. */
static const size_t lens[] = {0, 1, RDMA_MAX_USER_LEN, 0, 17, 17, 300};

static rdma_tensor_t with_user(size_t nbytes, uint64_t seed, size_t len) {
  rdma_tensor_t t = tensor_of(NULL, nbytes, seed);
  if (len) fill((void *)(uintptr_t)(t.user = scratch(len)), len, seed + 1000);
  t.user_len = len;
  return t;
}

typedef struct seen {
  size_t len;
  uint64_t seed;
  int heard;
} seen;

static void compare(const rdma_tensor_t *t, size_t len, uint64_t seed) {
  CHECK_INT(len, t->user_len);
  CHECK_MSG((len == 0) == (t->user == NULL), "%zu user bytes at %p", len, t->user);
  if (len) CHECK_INT(-1, mismatch(t->user, len, seed + 1000));
}

static void on_recv(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                    const rdma_transfer_info_t *info, void *userdata) {
  op *o = userdata;
  seen *s = o->also_arg;
  if (tensor) compare(tensor, s->len, s->seed);
  s->heard++;
  op_recv_done(code, message, message_len, tensor, info, userdata);
}

static op *recv_user(rdma_mgr_t *mgr, const char *peer, const char *key, int64_t step,
                     const rdma_recv_options_t *options, seen *expected) {
  op *o = op_adopt(key);
  o->check_content = true;
  o->seed = expected->seed;
  o->also_arg = expected;
  o->rc = rdma_recv_async(mgr, peer, key, strlen(key), step, options, on_recv, o, NULL);
  atomic_store(&o->returned, true);
  CHECK_CODE(RDMA_OK, o->rc);
  return o;
}

/* The sender's memory is its own as soon as the call has returned. */
static op *send_user(rdma_mgr_t *mgr, const char *key, int64_t step, size_t nbytes, uint64_t seed, size_t len) {
  rdma_tensor_t t = with_user(nbytes, seed, len);
  op *s = op_send(mgr, key, step, &t);
  CHECK_OK(s->rc);
  if (len) memset((void *)(uintptr_t)t.user, 0xEE, len);
  return s;
}

typedef struct memory {
  void *at;
  int asked;
} memory;

static void *allocate(const rdma_tensor_t *meta, void *userdata) {
  memory *m = userdata;
  CHECK_MSG(meta->user_len == 0 || meta->user, "%zu user bytes at NULL", meta->user_len);
  m->asked++;
  return m->at;
}

static void no_tweak(rdma_mgr_options_t *o) { (void)o; }
static void checked(rdma_mgr_options_t *o) { o->checksum = true; }

static void each_transfer_has_its_own(tweak_fn tweak) {
  static const size_t sizes[] = {0, 8, 5000, 100000, 3000000};
  pair p = pair_new(tweak);
  int64_t step = 0;
  for (size_t n = 0; n < COUNT_OF(sizes); n++) {
    for (int into = 0; into < 3; into++) {
      char key[32];
      snprintf(key, sizeof key, "user/%zu/%d", sizes[n], into);
      memory m = {scratch(sizes[n] + 1), 0};
      rdma_recv_options_t o = recv_options();
      if (into == 1) o.dst = m.at, o.dst_len = sizes[n];
      if (into == 2) o.alloc = allocate, o.alloc_userdata = &m;
      for (size_t i = 0; i < COUNT_OF(lens); i++, step++) {
        seen expected = {lens[i], (uint64_t)step, 0};
        op *r = i % 2 ? recv_user(p.a, "beta", key, step, &o, &expected) : NULL;
        if (r) pump_for(1);
        op *s = send_user(p.b, key, step, sizes[n], (uint64_t)step, lens[i]);
        if (!r) r = recv_user(p.a, "beta", key, step, &o, &expected);
        op_wait(r, RDMA_OK);
        op_wait(s, RDMA_OK);
        CHECK_INT(1, expected.heard);
        CHECK_INT(sizes[n], r->tensor.nbytes);
      }
      /* The tensor is the same each time, so memory for it is asked for once each time. */
      if (into == 2) CHECK_INT(sizes[n] ? COUNT_OF(lens) : 0, m.asked);
    }
  }
}

static void user_bytes(void) { each_transfer_has_its_own(no_tweak); }
static void user_bytes_with_checksums(void) { each_transfer_has_its_own(checked); }

static void user_bytes_of_blocking_receives(void) {
  pair p = pair_new(NULL);
  drive(p.b);
  rdma_request_t kept[COUNT_OF(lens)];
  rdma_tensor_t out[COUNT_OF(lens)];
  void *dst = scratch(5000);
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = 5000;
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    op *s = send_user(p.b, "blocking", (int64_t)i, 5000, i, lens[i]);
    CHECK_OK(rdma_tensor_init(&out[i], sizeof out[i]));
    CHECK_OK(rdma_recv(p.a, "beta", "blocking", 8, (int64_t)i, NULL, &out[i], &kept[i]));
    op_wait(s, RDMA_OK);
    /* Without a request they live until the thread's next receive. */
    rdma_tensor_t last;
    s = send_user(p.b, "given", (int64_t)i, 5000, i, lens[i]);
    CHECK_OK(rdma_tensor_init(&last, sizeof last));
    CHECK_OK(rdma_recv(p.a, "beta", "given", 5, (int64_t)i, &o, &last, NULL));
    compare(&last, lens[i], i);
    op_wait(s, RDMA_OK);
  }
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    compare(&out[i], lens[i], i);
    CHECK_OK(rdma_request_release(p.a, kept[i]));
  }
}

static void user_bytes_of_dead_and_local_tensors(void) {
  pair p = pair_new(NULL);
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    rdma_tensor_t t = with_user(0, i, lens[i]);
    t.flags = RDMA_TENSOR_DEAD;
    seen dead = {lens[i], i, 0}, local = dead;
    op *s = op_send(p.b, "dead", (int64_t)i, &t);
    op *r = recv_user(p.a, "beta", "dead", (int64_t)i, NULL, &dead);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(RDMA_TENSOR_DEAD, r->tensor.flags);
    s = send_user(p.b, "local", (int64_t)i, 70000, i, lens[i]);
    r = recv_user(p.b, NULL, "local", (int64_t)i, NULL, &local);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(2, dead.heard + local.heard);
  }
}

static void answer(rdma_mgr_t *mgr, rdma_response_t response, const char *peer, size_t peer_len, const char *key,
                   size_t key_len, int64_t step, void *userdata) {
  (void)peer, (void)peer_len, (void)key, (void)key_len, (void)userdata;
  rdma_tensor_t t = with_user(5000, (uint64_t)step, lens[step]);
  CHECK_OK(rdma_response_send(mgr, response, &t, NULL, NULL));
}

static void user_bytes_of_a_source(void) {
  pair p = pair_new(NULL);
  CHECK_OK(rdma_mgr_set_source(p.b, answer, NULL));
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    seen expected = {lens[i], i, 0};
    op_wait(recv_user(p.a, "beta", "source", (int64_t)i, NULL, &expected), RDMA_OK);
    CHECK_INT(1, expected.heard);
  }
  pair_end(&p); /* before the content goes */
}

/* An application of the header before this one has no such fields. */
static void applications_without_the_fields(void) {
  pair p = pair_new(NULL);
  drive(p.b);
  struct {
    rdma_tensor_t t;
    char behind[8];
  } out;
  enum { BEFORE = offsetof(rdma_tensor_t, user) };
  memset(&out, 0x5A, sizeof out);
  op *s = send_user(p.b, "old", 1, 100, 1, 17);
  rdma_request_t request;
  CHECK_OK(rdma_tensor_init(&out.t, BEFORE));
  CHECK_OK(rdma_recv(p.a, "beta", "old", 3, 1, NULL, &out.t, &request));
  CHECK_INT(BEFORE, out.t.struct_size);
  CHECK_INT(100, out.t.nbytes);
  CHECK_INT(0x5A, ((unsigned char *)&out)[BEFORE]);
  CHECK_OK(rdma_request_release(p.a, request));
  op_wait(s, RDMA_OK);
  rdma_tensor_t t = with_user(100, 2, 17);
  t.struct_size = BEFORE;
  s = op_send(p.b, "old", 2, &t);
  seen none = {0, 2, 0};
  op_wait(recv_user(p.a, "beta", "old", 2, NULL, &none), RDMA_OK);
  op_wait(s, RDMA_OK);
}

static void too_many_user_bytes(void) {
  rdma_mgr_t *m = mgr_new("alone", NULL);
  rdma_tensor_t t = with_user(8, 1, RDMA_MAX_USER_LEN);
  char why[256];
  t.user_len = RDMA_MAX_USER_LEN + 1;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_send(m, "k", 1, 1, &t, NULL, NULL, NULL));
  CHECK(rdma_last_error(why, sizeof why) > 0);
  CHECK_HAS(why, "tensor.user_len is 513, allowed are 0 to 512");
  t.user_len = 1;
  t.user = NULL;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_send(m, "k", 1, 1, &t, NULL, NULL, NULL));
  CHECK(rdma_last_error(why, sizeof why) > 0);
  CHECK_HAS(why, "tensor.user is NULL");
}

static const test_case cases[] = {
    CASE(user_bytes), CASE(user_bytes_with_checksums), CASE(user_bytes_of_blocking_receives),
    CASE(user_bytes_of_dead_and_local_tensors), CASE(user_bytes_of_a_source),
    CASE(applications_without_the_fields), CASE(too_many_user_bytes),
};
TEST_MAIN(cases)
