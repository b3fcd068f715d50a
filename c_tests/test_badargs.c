/* Every function with arguments that are not allowed: a status and a message, nothing else. */
#include "harness.h"

#define BAD(expr) CHECK_BAD(RDMA_INVALID_ARGUMENT, expr)

static char long_name[400];
static const char not_utf8[] = "abc\xff\xfe";
static rdma_mgr_t *m;

static void begin(void) {
  memset(long_name, 'n', sizeof long_name - 1);
  m = mgr_new("m", NULL);
}

static void with_init(void) {
  rdma_mgr_options_t mo;
  rdma_recv_options_t ro;
  rdma_send_options_t so;
  rdma_tensor_t t;
  const size_t sizes[] = {0, 1, sizeof(size_t) - 1};
  BAD(rdma_mgr_options_init(NULL, sizeof mo));
  BAD(rdma_recv_options_init(NULL, sizeof ro));
  BAD(rdma_send_options_init(NULL, sizeof so));
  BAD(rdma_tensor_init(NULL, sizeof t));
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    BAD(rdma_mgr_options_init(&mo, sizes[i]));
    BAD(rdma_recv_options_init(&ro, sizes[i]));
    BAD(rdma_send_options_init(&so, sizes[i]));
    BAD(rdma_tensor_init(&t, sizes[i]));
  }
  CHECK_OK(rdma_mgr_options_init(&mo, sizeof mo));
  CHECK_INT(sizeof mo, mo.struct_size);
  CHECK_OK(rdma_recv_options_init(&ro, sizeof ro));
  CHECK_OK(rdma_send_options_init(&so, sizeof so));
  CHECK_OK(rdma_tensor_init(&t, sizeof t));
}

typedef void (*spoil_fn)(rdma_mgr_options_t *);
static void s_size0(rdma_mgr_options_t *o) { o->struct_size = 0; }
static void s_size4(rdma_mgr_options_t *o) { o->struct_size = 4; }
static void s_name_long(rdma_mgr_options_t *o) { o->name = long_name; }
static void s_name_bytes(rdma_mgr_options_t *o) { o->name = not_utf8; }
static void s_name_empty(rdma_mgr_options_t *o) { o->name = ""; }
static void s_provider(rdma_mgr_options_t *o) { o->provider = "pigeon"; }
static void s_provider_bytes(rdma_mgr_options_t *o) { o->provider = not_utf8; }
static void s_listen(rdma_mgr_options_t *o) { o->listen = "127.0.0.1:port"; }
static void s_listen_bytes(rdma_mgr_options_t *o) { o->listen = not_utf8; }
static void s_secret(rdma_mgr_options_t *o) { o->secret = NULL, o->secret_len = 5; }
static void s_progress(rdma_mgr_options_t *o) { o->progress = 2; }
static void s_progress_neg(rdma_mgr_options_t *o) { o->progress = -1; }
static void s_protocol(rdma_mgr_options_t *o) { o->protocol = 77; }
static void s_protocol_neg(rdma_mgr_options_t *o) { o->protocol = -1; }
static void s_timeout(rdma_mgr_options_t *o) { o->timeout_ms = -1; }
static void s_timeout0(rdma_mgr_options_t *o) { o->timeout_ms = 0; }
static void s_poll(rdma_mgr_options_t *o) { o->busy_poll_us = -1; }
static void s_peer_timeout(rdma_mgr_options_t *o) { o->peer_timeout_ms = -5; }
static void s_depth(rdma_mgr_options_t *o) { o->queue_depth = 0; }
static void s_rails(rdma_mgr_options_t *o) { o->max_rdma_per_request = 9; }
static void s_bool(rdma_mgr_options_t *o) { o->checksum = 2; }
static void s_port(rdma_mgr_options_t *o) { o->ib_port = 256; }
static void s_gid(rdma_mgr_options_t *o) { o->ib_gid_index = -2; }
static void s_pkey(rdma_mgr_options_t *o) { o->ib_pkey_index = 65536; }
static void s_ib_timeout(rdma_mgr_options_t *o) { o->ib_timeout = 32; }
static void s_retry(rdma_mgr_options_t *o) { o->ib_retry_count = 8; }
static void s_sl(rdma_mgr_options_t *o) { o->ib_sl = 16; }
static void s_mtu(rdma_mgr_options_t *o) { o->ib_mtu = 1000; }
static void s_tc(rdma_mgr_options_t *o) { o->ib_traffic_class = 256; }

static void create(void) {
  static const spoil_fn spoils[] = {
      s_size0, s_size4, s_name_long, s_name_bytes, s_name_empty, s_provider, s_provider_bytes, s_listen,
      s_listen_bytes, s_secret, s_progress, s_progress_neg, s_protocol, s_protocol_neg, s_timeout, s_timeout0,
      s_poll, s_peer_timeout, s_depth, s_rails, s_bool, s_port, s_gid, s_pkey, s_ib_timeout, s_retry, s_sl, s_mtu, s_tc};
  rdma_mgr_options_t o;
  CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
  BAD(rdma_mgr_create(&o, NULL));
  BAD(rdma_mgr_create(NULL, NULL));
  for (size_t i = 0; i < COUNT_OF(spoils); i++) {
    rdma_mgr_t *out = (rdma_mgr_t *)&o;
    CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
    spoils[i](&o);
    rdma_code_t rc = rdma_mgr_create(&o, &out);
    char text[512];
    rdma_last_error(text, sizeof text);
    CHECK_MSG(rc == RDMA_INVALID_ARGUMENT && text[0], "spoilt option %zu: %s, \"%s\"", i, rdma_code_name(rc), text);
    CHECK_MSG(out == (rdma_mgr_t *)&o, "spoilt option %zu: output written", i);
  }
  rdma_mgr_t *plain = NULL;
  CHECK_OK(rdma_mgr_create(NULL, &plain));
  CHECK_OK(rdma_mgr_destroy(plain));
  BAD(rdma_mgr_destroy(NULL));
}

static void bigger_struct(void) { /* a newer caller: unknown fields that are zero are allowed */
  struct {
    rdma_mgr_options_t o;
    uint64_t more[4];
  } newer;
  rdma_mgr_t *out = NULL;
  memset(&newer, 0, sizeof newer);
  CHECK_OK(rdma_mgr_options_init(&newer.o, sizeof newer));
  newer.o.name = "newer";
  CHECK_OK(rdma_mgr_create(&newer.o, &out));
  CHECK_OK(rdma_mgr_destroy(out));
}

static void peers(void) {
  begin();
  char buf[256];
  size_t len = 12345;
  rdma_peer_info_t i;
  memset(&i, 0, sizeof i);
  BAD(rdma_mgr_listen(NULL, "127.0.0.1:0", buf, sizeof buf, &len));
  BAD(rdma_mgr_listen(m, NULL, buf, sizeof buf, &len));
  BAD(rdma_mgr_listen(m, not_utf8, buf, sizeof buf, &len));
  BAD(rdma_mgr_listen(m, "127.0.0.1:0", NULL, 5, &len));
  CHECK_INT(12345, len);
  const char *const names[] = {NULL, "", long_name, not_utf8};
  for (size_t k = 0; k < COUNT_OF(names); k++) {
    if (names[k]) BAD(rdma_mgr_add_peer(m, names[k], "127.0.0.1:1"));
    if (names[k]) BAD(rdma_mgr_flush(m, names[k], 0));
    BAD(rdma_mgr_set_name(m, names[k]));
    BAD(rdma_mgr_connect(m, names[k], 1));
    BAD(rdma_mgr_disconnect(m, names[k]));
    i.struct_size = sizeof i;
    BAD(rdma_mgr_peer_info(m, names[k], &i));
  }
  BAD(rdma_mgr_add_peer(NULL, "p", "127.0.0.1:1"));
  BAD(rdma_mgr_add_peer(m, "p", NULL));
  BAD(rdma_mgr_add_peer(m, "p", ""));
  BAD(rdma_mgr_add_peer(m, "p", not_utf8));
  BAD(rdma_mgr_add_peer(m, "p", "127.0.0.1:port"));
  const char *nowhere[] = {"127.0.0.1", "127.0.0.1:0", "[::1]", "[::1]:0", "::1:5", "localhost", "localhost:0"};
  for (size_t k = 0; k < COUNT_OF(nowhere); k++) {
    BAD(rdma_mgr_add_peer(m, "p", nowhere[k]));
    BAD(rdma_mgr_add_peer(m, NULL, nowhere[k]));
    CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_meet(m, nowhere[k], 1, buf, sizeof buf, &len));
    error_has("has no port to connect to; allowed is '");
    error_has(nowhere[k]);
  }
  CHECK_OK(rdma_mgr_add_peer(m, "p", "127.0.0.1:1"));
  BAD(rdma_mgr_add_peer(m, NULL, "127.0.0.1:port"));
  BAD(rdma_mgr_meet(NULL, "127.0.0.1:1", 1, buf, sizeof buf, &len));
  BAD(rdma_mgr_meet(m, NULL, 1, buf, sizeof buf, &len));
  for (int64_t wrong = -1; wrong <= 0; wrong++) {
    CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_meet(m, "127.0.0.1:1", wrong, buf, sizeof buf, &len));
    error_has(wrong ? "timeout_ms is -1, allowed are 1 and above" : "timeout_ms is 0, allowed are 1 and above");
  }
  BAD(rdma_mgr_meet(m, "127.0.0.1:1", 1, NULL, 5, &len));
  BAD(rdma_mgr_set_name(NULL, "n"));
  BAD(rdma_mgr_flush(NULL, NULL, 0));
  BAD(rdma_mgr_flush(m, NULL, -1));
  BAD(rdma_mgr_wake(NULL));
  BAD(rdma_mgr_connect(NULL, "p", 1));
  BAD(rdma_mgr_connect(m, "p", -1));
  BAD(rdma_mgr_connect(m, "p", INT64_MIN));
  BAD(rdma_mgr_disconnect(NULL, "p"));
  i.struct_size = sizeof i;
  BAD(rdma_mgr_peer_info(NULL, "p", &i));
  BAD(rdma_mgr_peer_info(m, "p", NULL));
  i.struct_size = 3;
  BAD(rdma_mgr_peer_info(m, "p", &i));
  CHECK_INT(0, i.name[0]);
}

static void addresses(void) {
  begin();
  uint8_t blob[2048];
  char name[256];
  size_t len = 0;
  BAD(rdma_mgr_export_address(NULL, blob, sizeof blob, &len));
  BAD(rdma_mgr_export_address(m, NULL, sizeof blob, &len));
  BAD(rdma_mgr_export_address(m, NULL, 0, NULL));
  memset(blob, 0xa5, sizeof blob);
  BAD(rdma_mgr_import_address(NULL, blob, 10, name, sizeof name, &len));
  BAD(rdma_mgr_import_address(m, NULL, 10, name, sizeof name, &len));
  BAD(rdma_mgr_import_address(m, blob, 0, name, sizeof name, &len));
  BAD(rdma_mgr_import_address(m, blob, sizeof blob, name, sizeof name, &len));
  memset(blob, 0, sizeof blob);
  BAD(rdma_mgr_import_address(m, blob, sizeof blob, name, sizeof name, &len));
  BAD(rdma_mgr_import_address(m, blob, sizeof blob, NULL, 5, &len));
}

static void progress(void) {
  begin();
  uint32_t events;
  int fd;
  BAD(rdma_mgr_progress(NULL, &events));
  rdma_code_t rc = rdma_mgr_progress(m, NULL); /* the count may be of no interest, or not */
  CHECK_MSG(rc == RDMA_OK || rc == RDMA_INVALID_ARGUMENT || rc == RDMA_FAILED_PRECONDITION, "%s", rdma_code_name(rc));
  BAD(rdma_mgr_wait(NULL, 1));
  BAD(rdma_mgr_wait(m, -1));
  BAD(rdma_mgr_event_fd(NULL, &fd));
  BAD(rdma_mgr_event_fd(m, NULL));
}

static void memory(void) {
  begin();
  char block[64];
  void *out = block;
  uint32_t id = 77;
  rdma_device_ops_t ops;
  BAD(rdma_mem_register(NULL, block, sizeof block, 0));
  BAD(rdma_mem_register(m, NULL, sizeof block, 0));
  BAD(rdma_mem_register(m, block, 0, 0));
  BAD(rdma_mem_register(m, block, SIZE_MAX, 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mem_register(m, block, sizeof block, 99));
  BAD(rdma_mem_unregister(NULL, block));
  BAD(rdma_mem_unregister(m, NULL));
  BAD(rdma_mem_invalidate(NULL, block, sizeof block));
  BAD(rdma_mem_invalidate(m, NULL, sizeof block));
  BAD(rdma_mem_invalidate(m, block, 0));
  BAD(rdma_mem_invalidate(m, block, SIZE_MAX));
  CHECK_OK(rdma_mem_invalidate(m, block, sizeof block)); /* nothing is kept of it */
  BAD(rdma_mem_alloc(NULL, 10, &out));
  BAD(rdma_mem_alloc(m, 10, NULL));
  BAD(rdma_mem_alloc(m, 0, &out));
  CHECK(out == block);
  BAD(rdma_mem_free(NULL, block));
  BAD(rdma_mem_free(m, NULL));
  BAD(rdma_pool_create(0, NULL));
  rdma_pool_t *pool = NULL;
  BAD(rdma_pool_create(1, &pool));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pool_create((2 << 20) - 1, &pool));
  error_has("max_bytes is 2097151, allowed are 0 (as much as there is physical memory), and 2097152");
  CHECK(pool == NULL);
  CHECK_OK(rdma_pool_create(2 << 20, &pool));
  CHECK_OK(rdma_pool_alloc(pool, 64, &out));
  CHECK_OK(rdma_pool_destroy(pool));
  BAD(rdma_pool_alloc(NULL, 10, &out));
  BAD(rdma_pool_free(NULL, block));
  BAD(rdma_pool_usage(NULL, NULL, NULL));
  BAD(rdma_pool_destroy(NULL));
  BAD(rdma_pool_destroy((rdma_pool_t *)m)); /* no pool */
  memset(&ops, 0, sizeof ops);
  BAD(rdma_mgr_register_device(m, &ops, NULL, &id)); /* struct_size 0 */
  ops.struct_size = sizeof ops;
  BAD(rdma_mgr_register_device(m, &ops, NULL, &id)); /* no functions */
  BAD(rdma_mgr_register_device(m, NULL, NULL, &id));
  BAD(rdma_mgr_register_device(NULL, &ops, NULL, &id));
  BAD(rdma_mgr_register_device(m, &ops, NULL, NULL));
  CHECK_INT(77, id);
}

static void never_done(rdma_code_t code, const char *message, size_t message_len,
                       const rdma_transfer_info_t *info, void *userdata) {
  (void)message, (void)message_len, (void)info, (void)userdata;
  FAIL("a refused call ran its callback with %s", rdma_code_name(code));
}

static void sending(void) {
  begin();
  char *key = scratch(RDMA_MAX_KEY_LEN + 1);
  int64_t dims[2] = {2, 3}, bad_dims[2] = {2, -3};
  rdma_tensor_t good = tensor_of(NULL, 24, 1), t;
  rdma_send_options_t o;
  CHECK_OK(rdma_send_options_init(&o, sizeof o));
  memset(key, 'k', RDMA_MAX_KEY_LEN + 1);
#define SEND(mgr, k, n, tensor, options) BAD(rdma_send(mgr, k, n, 1, tensor, options, never_done, NULL))
  SEND(NULL, "k", 1, &good, NULL);
  SEND(m, NULL, 1, &good, NULL);
  SEND(m, "k", 0, &good, NULL);
  SEND(m, key, RDMA_MAX_KEY_LEN + 1, &good, NULL);
  SEND(m, key, SIZE_MAX, &good, NULL);
  SEND(m, "k", 1, NULL, NULL);
  t = good, t.struct_size = 0;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.struct_size = 7;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.data = NULL;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.dims = NULL;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.ndims = RDMA_MAX_DIMS + 1;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.ndims = UINT32_MAX;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.dims = bad_dims, t.ndims = 2;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.flags = 4;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.flags = UINT32_MAX;
  SEND(m, "k", 1, &t, NULL);
  t = good, t.flags = RDMA_TENSOR_DEAD; /* dead, but with content */
  SEND(m, "k", 1, &t, NULL);
  t = good, t.device = 99;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_send(m, "k", 1, 1, &t, NULL, never_done, NULL));
  t = good, t.nbytes = UINT64_MAX;
  SEND(m, "k", 1, &t, NULL);
  o.timeout_ms = -1;
  SEND(m, "k", 1, &good, &o);
  o.timeout_ms = 0, o.struct_size = 1;
  SEND(m, "k", 1, &good, &o);
  /* Nothing of it is in the table. */
  t = good, t.dims = dims, t.ndims = 2;
  op *s = op_send(m, "k", 1, &t), *r = op_recv(m, NULL, "k", 1, 1, NULL);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
}

static void never_received(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                           const rdma_transfer_info_t *info, void *userdata) {
  (void)message, (void)message_len, (void)info, (void)userdata, (void)tensor;
  FAIL("a refused call ran its callback with %s", rdma_code_name(code));
}

static void receiving(void) {
  begin();
  rdma_tensor_t out;
  rdma_request_t id = 5;
  rdma_recv_options_t o = recv_options();
  char dst[8];
  CHECK_OK(rdma_tensor_init(&out, sizeof out));
#define RECV(mgr, peer, k, n, options)                                                           \
  (BAD(rdma_recv_async(mgr, peer, k, n, 1, options, never_received, NULL, &id)),                 \
   BAD(rdma_recv(mgr, peer, k, n, 1, options, &out, &id)))
  RECV(NULL, NULL, "k", 1, NULL);
  RECV(m, NULL, NULL, 1, NULL);
  RECV(m, NULL, "k", 0, NULL);
  RECV(m, NULL, "k", RDMA_MAX_KEY_LEN + 1, NULL);
  RECV(m, NULL, "k", SIZE_MAX, NULL);
  RECV(m, "", "k", 1, NULL);
  RECV(m, long_name, "k", 1, NULL);
  RECV(m, not_utf8, "k", 1, NULL);
  o.timeout_ms = -1;
  RECV(m, NULL, "k", 1, &o);
  o = recv_options(), o.struct_size = 0;
  RECV(m, NULL, "k", 1, &o);
  o = recv_options(), o.device = 99;
  RECV(m, NULL, "k", 1, &o);
  o = recv_options(), o.dst = dst, o.dst_len = UINT64_MAX;
  RECV(m, NULL, "k", 1, &o);
  BAD(rdma_recv(m, NULL, "k", 1, 1, NULL, NULL, &id));
  BAD(rdma_recv(m, NULL, "k", 1, 1, NULL, &out, NULL));
  out.struct_size = 2;
  BAD(rdma_recv(m, NULL, "k", 1, 1, NULL, &out, &id));
  CHECK_INT(5, id);
  BAD(rdma_request_cancel(NULL, 1));
  BAD(rdma_request_release(NULL, 1));
  BAD(rdma_request_cancel(m, 0));
  BAD(rdma_request_release(m, 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_request_release(m, UINT64_MAX));
}

static void steps_and_keys(void) {
  begin();
  rdma_parsed_key_t k;
  char buf[64];
  size_t len = 3;
  BAD(rdma_step_abort(NULL, 1, RDMA_INTERNAL, "x", 1));
  BAD(rdma_step_abort(m, 1, RDMA_OK, "x", 1));
  BAD(rdma_step_abort(m, 1, 17, "x", 1));
  BAD(rdma_step_abort(m, 1, -1, "x", 1));
  BAD(rdma_step_abort(m, 1, RDMA_INTERNAL, NULL, 1));
  CHECK_OK(rdma_step_abort(m, 1, RDMA_INTERNAL, NULL, 0));
  CHECK_OK(rdma_step_abort(m, 2, RDMA_INTERNAL, not_utf8, sizeof not_utf8));
  BAD(rdma_step_cleanup(NULL, 1));
  memset(&k, 0, sizeof k);
  BAD(rdma_key_parse("a", 1, &k)); /* struct_size 0 */
  k.struct_size = sizeof k;
  BAD(rdma_key_parse(NULL, 1, &k));
  BAD(rdma_key_parse("a", 1, NULL));
  BAD(rdma_key_parse("a", RDMA_MAX_KEY_LEN + 1, &k));
  BAD(rdma_key_build(NULL, buf, sizeof buf, &len));
  BAD(rdma_key_build(&k, NULL, sizeof buf, &len));
  k.struct_size = 1;
  BAD(rdma_key_build(&k, buf, sizeof buf, &len));
  CHECK_INT(3, len);
}

static void sources(void) {
  begin();
  rdma_tensor_t t = tensor_of(NULL, 8, 1), bad = t;
  bad.struct_size = 0;
  BAD(rdma_mgr_set_source(NULL, NULL, NULL));
  BAD(rdma_response_send(NULL, 1, &t, never_done, NULL));
  BAD(rdma_response_send(m, 1, NULL, never_done, NULL));
  BAD(rdma_response_send(m, 1, &bad, never_done, NULL));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_response_send(m, 1, &t, never_done, NULL));
  BAD(rdma_response_fail(NULL, 1, RDMA_INTERNAL, "x", 1));
  BAD(rdma_response_fail(m, 1, RDMA_OK, "x", 1));
  BAD(rdma_response_fail(m, 1, 1000, "x", 1));
  BAD(rdma_response_fail(m, 1, RDMA_INTERNAL, NULL, 1));
}

static void observing(void) {
  begin();
  char buf[256];
  size_t len = 9;
  BAD(rdma_mgr_stats_json(NULL, buf, sizeof buf, &len));
  BAD(rdma_mgr_stats_json(m, NULL, sizeof buf, &len));
  BAD(rdma_mgr_stats_json(m, NULL, 0, NULL));
  BAD(rdma_mgr_metrics(NULL, buf, sizeof buf, &len));
  BAD(rdma_mgr_metrics(m, NULL, sizeof buf, &len));
  BAD(rdma_mgr_metrics(m, NULL, 0, NULL));
  BAD(rdma_providers(NULL, sizeof buf, &len));
  BAD(rdma_providers(NULL, 0, NULL));
  BAD(rdma_trace_start(NULL, "/tmp/x"));
  BAD(rdma_trace_start(m, NULL));
  BAD(rdma_trace_start(m, ""));
  BAD(rdma_trace_stop(NULL));
  BAD(rdma_set_log_callback(NULL, 0, NULL));
  BAD(rdma_set_log_callback(NULL, 5, NULL));
  BAD(rdma_set_log_callback(NULL, -1, NULL));
  CHECK_INT(9, len);
}

static const test_case cases[] = {CASE(with_init), CASE(create),   CASE(bigger_struct), CASE(peers),
                                  CASE(addresses), CASE(progress), CASE(memory),        CASE(sending),
                                  CASE(receiving), CASE(steps_and_keys), CASE(sources), CASE(observing)};
TEST_MAIN(cases)
