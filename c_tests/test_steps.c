/* Steps, keys, cancel, deadlines, callbacks that call back. */
#include "harness.h"

static void abort_pending(void) {
  pair p = pair_new(NULL);
  rdma_tensor_t t = tensor_of(NULL, 100, 1);
  op *remote = op_recv(p.a, "beta", "never", 7, 0, NULL);
  op *local = op_recv(p.a, NULL, "never either", 7, 0, NULL);
  op *unsent = op_send(p.a, "not taken", 7, &t);
  op *other = op_recv(p.a, "beta", "other", 8, 2, NULL);
  pump_for(20);
  CHECK_OK(rdma_step_abort(p.a, 7, RDMA_DATA_LOSS, "the disk burns", 14));
  op_wait(remote, RDMA_DATA_LOSS);
  op_wait(local, RDMA_DATA_LOSS);
  op_wait(unsent, RDMA_DATA_LOSS);
  CHECK_HAS(remote->message, "the disk burns");
  CHECK_HAS(local->message, "the disk burns");
  CHECK_INT(RDMA_REASON_STEP_ABORTED, remote->info.reason);
  CHECK_INT(RDMA_REASON_STEP_ABORTED, local->info.reason);
  /* Future operations of the step fail, too; other steps go on. */
  recv_call again = {.mgr = p.a, .peer = "beta", .key = "afterwards", .step = 7};
  op *later = op_recv_call(&again);
  if (later->rc == RDMA_OK) op_wait(later, RDMA_DATA_LOSS);
  else CHECK_CODE(RDMA_DATA_LOSS, later->rc);
  op *send_later = op_send(p.a, "sent afterwards", 7, &t);
  if (send_later->rc == RDMA_OK) op_wait(send_later, RDMA_DATA_LOSS);
  else CHECK_CODE(RDMA_DATA_LOSS, send_later->rc);
  rdma_tensor_t u = tensor_of(NULL, 10, 2);
  op *s = op_send(p.b, "other", 8, &u);
  op_wait(other, RDMA_OK);
  op_wait(s, RDMA_OK);
}

static void abort_reaches_the_peer(void) {
  pair p = pair_new(NULL);
  op *r = op_recv(p.a, "beta", "asked for", 3, 0, NULL);
  pump_for(30);
  CHECK_OK(rdma_step_abort(p.b, 3, RDMA_INTERNAL, "sender gave up", 14));
  op_wait(r, RDMA_INTERNAL);
  CHECK_HAS(r->message, "sender gave up");
  op *later = op_recv(p.a, "beta", "asked later", 3, 0, NULL);
  op_wait(later, RDMA_INTERNAL);
}

/* How a receive was told of its end: the length of the text, and its last bytes. */
typedef struct {
  atomic_bool is;
  size_t len;
  char end[5];
} told;

static void on_told(rdma_code_t code, const char *text, size_t len, const rdma_tensor_t *tensor,
                    const rdma_transfer_info_t *info, void *userdata) {
  told *t = userdata;
  (void)tensor, (void)info;
  CHECK_INT(RDMA_INTERNAL, code);
  CHECK(strlen(text) == len && len >= 4);
  t->len = len;
  memcpy(t->end, text + len - 4, 4);
  atomic_store(&t->is, true);
}

static bool is_told(void *t) { return atomic_load(&((told *)t)->is); }

/* All of a long text ends what waits here; the peer hears its beginning, and that it was cut. */
static void abort_with_a_long_text(void) {
  pair p = pair_new(NULL);
  const size_t most = 65535;
  char *text = scratch(most);
  memset(text, 'x', most);
  told here = {0}, other = {0}, there = {0};
  CHECK_OK(rdma_recv_async(p.a, NULL, "here", 4, 3, NULL, on_told, &here, NULL));
  CHECK_OK(rdma_recv_async(p.a, NULL, "other", 5, 3, NULL, on_told, &other, NULL));
  CHECK_OK(rdma_step_abort(p.a, 3, RDMA_INTERNAL, text, most));
  CHECK(pump_until(is_told, &here, 5000) && pump_until(is_told, &other, 5000));
  CHECK(here.len == most && other.len == most && !strcmp(other.end, "xxxx"));
  CHECK_OK(rdma_recv_async(p.a, "beta", "there", 5, 4, NULL, on_told, &there, NULL));
  pump_for(30);
  CHECK_OK(rdma_step_abort(p.b, 4, RDMA_INTERNAL, text, most));
  CHECK(pump_until(is_told, &there, 5000));
  CHECK_MSG(there.len == 4096 && !strcmp(there.end, "x..."), "%zu bytes", there.len);
}

static void cleanup_frees(void) {
  pair p = pair_new(NULL);
  rdma_tensor_t t = tensor_of(NULL, 100, 1);
  op *unsent = op_send(p.b, "left over", 1, &t);
  CHECK_OK(rdma_step_cleanup(p.b, 1));
  CHECK(pump_until(op_ended_fn, unsent, 5000));
  CHECK_MSG(unsent->code == RDMA_ABORTED || unsent->code == RDMA_CANCELLED, "a send of a cleaned step ends with %s",
            rdma_code_name(unsent->code));
  CHECK_OK(rdma_step_cleanup(p.b, 1));
  CHECK_OK(rdma_step_cleanup(p.b, 123456789));
  /* An aborted step is forgotten by cleanup. */
  CHECK_OK(rdma_step_abort(p.a, 2, RDMA_ABORTED, "x", 1));
  CHECK_OK(rdma_step_cleanup(p.a, 2));
}

static void held_until_the_step_exists(void) {
  pair p = pair_new(NULL);
  const int64_t steps[] = {0, -5, INT64_MAX, INT64_MIN, 1LL << 40};
  for (size_t i = 0; i < COUNT_OF(steps); i++) {
    op *r = op_recv(p.a, "beta", "future", steps[i], i, NULL);
    pump_for(10);
    rdma_tensor_t t = tensor_of(NULL, 20, i);
    op *s = op_send(p.b, "future", steps[i], &t);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
  }
}

static void long_keys(void) {
  pair p = pair_new(NULL);
  char *key = scratch(RDMA_MAX_KEY_LEN + 1);
  const size_t lengths[] = {1, 255, 256, 4095, 4096, 32768, RDMA_MAX_KEY_LEN - 1, RDMA_MAX_KEY_LEN};
  const size_t sizes[] = {10, 100000, 3 * MIB};
  fill(key, RDMA_MAX_KEY_LEN + 1, 99); /* any bytes, zeros among them */
  for (size_t i = 0; i < COUNT_OF(lengths) * COUNT_OF(sizes); i++) {
    size_t n = lengths[i / COUNT_OF(sizes)], bytes = sizes[i % COUNT_OF(sizes)];
    rdma_tensor_t t = tensor_of(NULL, bytes, i);
    recv_call call = {.mgr = p.a, .peer = "beta", .key = key, .key_len = n, .step = (int64_t)i,
                      .check_content = true, .seed = i};
    op *s = op_send_opt(p.b, key, n, (int64_t)i, &t, NULL), *r = op_recv_call(&call);
    CHECK_OK(s->rc);
    CHECK_OK(r->rc);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
  }
  recv_call call = {.mgr = p.a, .peer = "beta", .key = key, .key_len = RDMA_MAX_KEY_LEN + 1};
  CHECK_CODE(RDMA_INVALID_ARGUMENT, op_recv_call(&call)->rc);
  rdma_tensor_t t = tensor_of(NULL, 1, 1);
  CHECK_CODE(RDMA_INVALID_ARGUMENT, op_send_opt(p.b, key, RDMA_MAX_KEY_LEN + 1, 0, &t, NULL)->rc);
}

static void cancel(void) {
  pair p = pair_new(NULL);
  recv_call call = {.mgr = p.a, .peer = "beta", .key = "c", .step = 1, .keep = true,
                    .check_content = true, .seed = 6};
  op *r = op_recv_call(&call);
  CHECK_OK(r->rc);
  CHECK(r->request != 0);
  pump_for(20);
  CHECK_OK(rdma_request_cancel(p.a, r->request));
  op_wait(r, RDMA_CANCELLED);
  CHECK_INT(RDMA_REASON_CANCELLED, r->info.reason);
  CHECK_OK(rdma_request_release(p.a, r->request));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_request_cancel(p.a, r->request));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_request_cancel(p.a, UINT64_MAX));
  /* Local, and after the end. */
  call.peer = NULL;
  call.key = "local";
  op *l = op_recv_call(&call);
  CHECK_OK(rdma_request_cancel(p.a, l->request));
  op_wait(l, RDMA_CANCELLED);
  CHECK_OK(rdma_request_release(p.a, l->request));
  call.key = "finished";
  rdma_tensor_t t = tensor_of(NULL, 64, 6);
  op *s = op_send(p.a, "finished", 1, &t), *f = op_recv_call(&call);
  op_wait(f, RDMA_OK);
  rdma_code_t rc = rdma_request_cancel(p.a, f->request);
  CHECK_MSG(rc == RDMA_NOT_FOUND || rc == RDMA_OK, "cancel of an ended request: %s", rdma_code_name(rc));
  CHECK_INT(-1, mismatch(f->data, 64, 6)); /* library memory lives until the release */
  CHECK_OK(rdma_request_release(p.a, f->request));
  op_wait(s, RDMA_OK); /* the sender's own memory was lent until then: nothing is copied locally */
}

static void cancelled_memory_is_left_alone(void) {
  enum { N = 60 };
  pair p = pair_new(NULL);
  size_t n = 4 * MIB;
  unsigned char *dst = scratch(n);
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = n;
  for (int i = 0; i < N; i++) {
    rdma_tensor_t t = tensor_of(NULL, n, 1);
    op *s = op_send(p.b, "race", i, &t);
    recv_call call = {.mgr = p.a, .peer = "beta", .key = "race", .step = i, .options = &o, .keep = true};
    op *r = op_recv_call(&call);
    CHECK_OK(r->rc);
    for (int k = 0; k < i % 12; k++) pump_for(0);
    CHECK_MSG(rdma_request_cancel(p.a, r->request) != RDMA_INVALID_ARGUMENT, "cancel of a pending request");
    CHECK(pump_until(op_ended_fn, r, 30000));
    CHECK_MSG(r->code == RDMA_CANCELLED || r->code == RDMA_OK, "ended with %s", rdma_code_name(r->code));
    if (r->code == RDMA_OK) CHECK_INT(-1, mismatch(dst, n, 1));
    memset(dst, 0x5a, n);
    pump_for(2);
    for (size_t k = 0; k < n; k++) CHECK_MSG(dst[k] == 0x5a, "round %d: byte %zu was written after the end", i, k);
    CHECK_OK(rdma_request_release(p.a, r->request));
    (void)s;
    CHECK_OK(rdma_step_cleanup(p.b, i));
  }
}

static void deadlines(void) {
  pair p = pair_new(NULL);
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = 50;
  op *remote = op_recv(p.a, "beta", "no", 1, 0, &o), *local = op_recv(p.a, NULL, "no", 1, 0, &o);
  op_wait(remote, RDMA_DEADLINE_EXCEEDED);
  op_wait(local, RDMA_DEADLINE_EXCEEDED);
  CHECK_INT(RDMA_REASON_DEADLINE, remote->info.reason);
  CHECK_INT(RDMA_REASON_DEADLINE, local->info.reason);
  rdma_send_options_t so;
  CHECK_OK(rdma_send_options_init(&so, sizeof so));
  so.timeout_ms = 50;
  rdma_tensor_t t = tensor_of(NULL, 10, 0), out;
  op *s = op_send_opt(p.a, "nobody asks", 11, 1, &t, &so);
  op_wait(s, RDMA_DEADLINE_EXCEEDED);
  CHECK_INT(RDMA_REASON_DEADLINE, s->info.reason);
  drive(p.b);
  rdma_request_t request = 0;
  CHECK_OK(rdma_tensor_init(&out, sizeof out));
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_recv(p.a, "beta", "blocking", 8, 1, &o, &out, &request));
}

static rdma_mgr_t *chain_mgr;
static _Atomic int chain_left;
static void chain(op *o, void *arg) {
  (void)o;
  (void)arg;
  int left = atomic_fetch_sub(&chain_left, 1) - 1;
  if (left <= 0) return;
  recv_call call = {.mgr = chain_mgr, .peer = "beta", .key = "chain", .step = left, .check_content = true,
                    .seed = 1, .also = chain};
  CHECK_OK(op_recv_call(&call)->rc);
  uint32_t events;
  char text[64];
  size_t len;
  rdma_mgr_progress(chain_mgr, &events); /* allowed; must neither hang nor break */
  rdma_mgr_stats_json(chain_mgr, text, sizeof text, &len);
  rdma_tensor_t out;
  rdma_tensor_init(&out, sizeof out);
  rdma_request_t request;
  CHECK_CODE(RDMA_FAILED_PRECONDITION, rdma_recv(chain_mgr, "beta", "chain", 5, 1, NULL, &out, &request));
  CHECK_CODE(RDMA_FAILED_PRECONDITION, rdma_mgr_destroy(chain_mgr));
}

static void callbacks_call_back(void) {
  enum { N = 50 };
  pair p = pair_new(NULL);
  rdma_tensor_t t = tensor_of(NULL, 2000, 1);
  chain_mgr = p.a;
  atomic_store(&chain_left, N);
  for (int i = 1; i <= N; i++) op_send(p.b, "chain", i, &t);
  recv_call call = {.mgr = p.a, .peer = "beta", .key = "chain", .step = N, .check_content = true,
                    .seed = 1, .also = chain};
  op_recv_call(&call);
  for (int64_t end = now_ms() + 30000; atomic_load(&chain_left) > 0 && now_ms() < end;) pump_for(1);
  CHECK_INT(0, atomic_load(&chain_left));
}

static void destroy_ends_everything(void) {
  pair p = pair_new(NULL);
  rdma_tensor_t t = tensor_of(NULL, 100, 1);
  op *r = op_recv(p.a, "beta", "pending", 1, 0, NULL), *l = op_recv(p.a, NULL, "local", 1, 0, NULL);
  op *s = op_send(p.a, "unsent", 1, &t);
  pump_for(10);
  mgr_end(p.a);
  CHECK_INT(1, atomic_load(&r->ended));
  CHECK_INT(1, atomic_load(&l->ended));
  CHECK_INT(1, atomic_load(&s->ended));
  CHECK_CODE(RDMA_CANCELLED, r->code);
  CHECK_CODE(RDMA_CANCELLED, l->code);
  CHECK_CODE(RDMA_CANCELLED, s->code);
  pump_for(50);
}

static const test_case cases[] = {
    CASE(abort_pending), CASE(abort_reaches_the_peer), CASE(abort_with_a_long_text), CASE(cleanup_frees),
    CASE(held_until_the_step_exists), CASE(long_keys), CASE(cancel),
    CASE(cancelled_memory_is_left_alone), CASE(deadlines), CASE(callbacks_call_back),
    CASE(destroy_ends_everything),
};
TEST_MAIN(cases)
