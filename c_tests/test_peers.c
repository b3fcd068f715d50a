/* Connect, disconnect, peer_info, address blobs, secrets, waiting for progress. */
#include "harness.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

static rdma_peer_info_t info_of(rdma_mgr_t *m, const char *peer) {
  rdma_peer_info_t i;
  memset(&i, 0, sizeof i);
  i.struct_size = sizeof i;
  CHECK_OK(rdma_mgr_peer_info(m, peer, &i));
  return i;
}

static void transfer(pair *p, const char *key, int64_t step) {
  rdma_tensor_t t = tensor_of(NULL, 5000, 3);
  op *s = op_send(p->b, key, step, &t), *r = op_recv(p->a, "beta", key, step, 3, NULL);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
}

/* Further ones may be there already when the first is told of. */
static uint32_t most_channels(void) {
  const char *rails = getenv("RDMA_MAX_RDMA_PER_REQUEST");
  return rails ? (uint32_t)strtoul(rails, NULL, 10) : 1;
}

static void connect_and_info(void) {
  static const uint8_t zero[16];
  pair p = pair_new(NULL);
  drive(p.b);
  rdma_peer_info_t i = info_of(p.a, "beta");
  CHECK_STR("beta", i.name);
  CHECK_STR("", i.provider);
  CHECK_INT(RDMA_PEER_IDLE, i.state);
  CHECK_STR(p.b_address, i.address);
  for (int k = 0; k < 3; k++) CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS)); /* idempotent */
  i = info_of(p.a, "beta");
  CHECK_INT(RDMA_PEER_CONNECTED, i.state);
  CHECK(i.channels >= 1 && i.channels <= most_channels());
  CHECK(i.reason[0] != 0);
  CHECK(memcmp(i.incarnation, zero, 16) != 0);
  if (!is_provider("auto")) CHECK_STR(env.provider, i.provider);
  transfer(&p, "k", 1);
  i = info_of(p.a, "beta");
  CHECK_INT(5000, i.bytes_received);
  CHECK_INT(1, i.requests_sent);
  i = info_of(p.b, "alpha");
  CHECK_INT(5000, i.bytes_sent);
  CHECK_INT(1, i.requests_received);
  CHECK_INT(RDMA_PEER_CONNECTED, i.state);
}

static bool idle(void *arg) { return info_of(arg, "beta").state != RDMA_PEER_CONNECTED; }
static void disconnect_and_again(void) {
  pair p = pair_new(NULL);
  drive(p.b);
  for (int k = 0; k < 20; k++) {
    CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
    transfer(&p, "k", k);
    op *pending = op_recv(p.a, "beta", "never sent", k, 0, NULL);
    pump_for(k % 3);
    CHECK_OK(rdma_mgr_disconnect(p.a, "beta"));
    op_wait(pending, RDMA_UNAVAILABLE);
    CHECK(pump_until(idle, p.a, 5000));
    CHECK_OK(rdma_mgr_disconnect(p.a, "beta"));
  }
  transfer(&p, "reconnects by itself", 99);
}

static void connect_start_only(void) {
  pair p = pair_new(NULL);
  CHECK_OK(rdma_mgr_connect(p.a, "beta", 0));
  for (int64_t end = now_ms() + 10000; info_of(p.a, "beta").state != RDMA_PEER_CONNECTED;) {
    CHECK_MSG(now_ms() < end, "state %d: %s", info_of(p.a, "beta").state, info_of(p.a, "beta").reason);
    pump_for(1);
  }
}

static void both_connect_at_once(void) {
  for (int k = 0; k < 20; k++) {
    pair p = pair_new(NULL);
    op *r1 = op_recv(p.a, "beta", "x", 1, 1, NULL), *r2 = op_recv(p.b, "alpha", "x", 1, 2, NULL);
    rdma_tensor_t t = tensor_of(NULL, 100000, 1), u = tensor_of(NULL, 100000, 2);
    op *s1 = op_send(p.b, "x", 1, &t), *s2 = op_send(p.a, "x", 1, &u);
    op_wait(r1, RDMA_OK);
    op_wait(r2, RDMA_OK);
    op_wait(s1, RDMA_OK);
    op_wait(s2, RDMA_OK);
    pair_end(&p);
  }
}

/* An address at which nobody listens, nor will: while its port is bound no other process is given it. */
static int nobodys_port(char address[64]) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t len = sizeof a;
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(s >= 0 && bind(s, (struct sockaddr *)&a, len) == 0 && getsockname(s, (struct sockaddr *)&a, &len) == 0);
  snprintf(address, 64, "127.0.0.1:%d", ntohs(a.sin_port));
  return s;
}

static void short_timeout(rdma_mgr_options_t *o) { o->timeout_ms = 800; }
static void nobody_listens(void) {
  char address[64];
  rdma_mgr_t *m = mgr_new("alpha", short_timeout);
  int port = nobodys_port(address);
  CHECK_OK(rdma_mgr_add_peer(m, "beta", address));
  int64_t start = now_ms();
  rdma_code_t rc = rdma_mgr_connect(m, "beta", 300);
  CHECK_MSG(rc == RDMA_DEADLINE_EXCEEDED || rc == RDMA_UNAVAILABLE, "connect: %s", rdma_code_name(rc));
  CHECK(now_ms() - start < 5000);
  CHECK(info_of(m, "beta").reason[0] != 0);
  op *r = op_recv(m, "beta", "k", 1, 0, NULL);
  CHECK(pump_until(op_ended_fn, r, 10000));
  CHECK_MSG(r->code == RDMA_DEADLINE_EXCEEDED || r->code == RDMA_UNAVAILABLE, "recv: %s", rdma_code_name(r->code));
  close(port);
}

/* A message that was never sent says what the tries to connect met, as a receive by name does. */
static void messages_tell_why_there_is_no_connection(void) {
  char address[64], text[1024], byte;
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  rdma_msg_options_t options;
  int port = nobodys_port(address);
  CHECK_OK(rdma_mgr_add_peer(m, "beta", address));
  CHECK_OK(rdma_msg_options_init(&options, sizeof options));
  options.timeout_ms = 400;
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_msg_send(m, number_of(m, "beta"), 0, 0, "x", 1, &options));
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "cannot connect to 'beta'");
  CHECK_HAS(text, "not connected");
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED,
            rdma_msg_recv(m, number_of(m, "beta"), 0, 0, RDMA_MSG_TAG_MASK, &byte, 1, &options, NULL));
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "cannot connect to 'beta'");
  CHECK_HAS(text, "no message came");
  close(port);
}

static void unknown_peer(void) {
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  rdma_peer_info_t i;
  i.struct_size = sizeof i;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mgr_connect(m, "nobody", 100));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mgr_disconnect(m, "nobody"));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mgr_peer_info(m, "nobody", &i));
  recv_call call = {.mgr = m, .peer = "nobody", .key = "k"};
  CHECK_CODE(RDMA_NOT_FOUND, op_recv_call(&call)->rc);
}

/* Whatever waits for a peer at whose address nobody will ever answer in its name ends with this code. */
static void never_answers(rdma_mgr_t *m, const char *peer, rdma_code_t want) {
  CHECK_BAD(want, rdma_mgr_connect(m, peer, 20000));
  op_wait(op_recv(m, peer, "k", 1, 0, NULL), want);
  CHECK_BAD(want, rdma_msg_send(m, number_of(m, peer), 0, 0, "x", 1, NULL));
}

static void wrong_name(void) {
  pair p = pair_new(NULL);
  drive(p.b);
  CHECK_OK(rdma_mgr_add_peer(p.a, "gamma", p.b_address)); /* but beta answers there */
  never_answers(p.a, "gamma", RDMA_NOT_FOUND);
  CHECK_HAS(info_of(p.a, "gamma").reason, "beta");
}

/* Answers each who connects as another kind of server would, until it is shut down. */
static void *other_server(void *listener) {
  static const char says[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
  for (int s; (s = TEMP_FAILURE_RETRY(accept(*(int *)listener, NULL, NULL))) >= 0;) {
    char hello[65536];
    if (TEMP_FAILURE_RETRY(recv(s, hello, sizeof hello, 0)) > 0) (void)!send(s, says, sizeof says - 1, MSG_NOSIGNAL);
    close(s);
  }
  return NULL;
}

static void no_manager_answers(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t len = sizeof a;
  char address[64];
  pthread_t server;
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(s >= 0 && bind(s, (struct sockaddr *)&a, len) == 0 && getsockname(s, (struct sockaddr *)&a, &len) == 0);
  CHECK(listen(s, 16) == 0 && pthread_create(&server, NULL, other_server, &s) == 0);
  snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  CHECK_OK(rdma_mgr_add_peer(m, "beta", address));
  never_answers(m, "beta", RDMA_INVALID_ARGUMENT);
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_meet(m, address, 20000, NULL, 0, NULL));
  CHECK(shutdown(s, SHUT_RDWR) == 0);
  pthread_join(server, NULL);
  close(s);
}

static void blobs(void) {
  rdma_mgr_t *a = mgr_new("alpha", NULL), *b = mgr_new("beta", NULL);
  uint8_t blob[4096], small[4];
  size_t len = 0, name_len = 0;
  char name[256];
  drive(b);
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_mgr_export_address(b, small, sizeof small, &len));
  CHECK(len > sizeof small);
  CHECK_OK(rdma_mgr_export_address(b, blob, sizeof blob, &len));
  CHECK_OK(rdma_mgr_import_address(a, blob, len, name, sizeof name, &name_len));
  CHECK_STR("beta", name);
  CHECK_INT(4, name_len);
  CHECK_OK(rdma_mgr_connect(a, "beta", CONNECT_MS));
  rdma_tensor_t t = tensor_of(NULL, 77, 1);
  op *s = op_send(b, "k", 1, &t), *r = op_recv(a, "beta", "k", 1, 1, NULL);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  for (size_t n = 0; n < len; n++) /* cut short anywhere */
    CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_import_address(a, blob, n, name, sizeof name, &name_len));
  for (size_t n = 0; n < len * 8; n++) { /* one bit turned: refused or another address, never a crash */
    blob[n / 8] ^= (uint8_t)(1u << (n % 8));
    rdma_code_t rc = rdma_mgr_import_address(a, blob, len, name, sizeof name, &name_len);
    CHECK_MSG(rc == RDMA_OK || rc == RDMA_INVALID_ARGUMENT || rc == RDMA_FAILED_PRECONDITION ||
              rc == RDMA_OUT_OF_RANGE, "bit %zu: %s", n, rdma_code_name(rc));
    blob[n / 8] ^= (uint8_t)(1u << (n % 8));
  }
}

static const char *the_secret;
static void with_secret(rdma_mgr_options_t *o) {
  o->secret = the_secret;
  o->secret_len = the_secret ? strlen(the_secret) : 0;
}
static rdma_code_t secret_case(const char *mine, const char *theirs) {
  pair p;
  the_secret = mine;
  p.a = mgr_new("alpha", with_secret);
  the_secret = theirs;
  p.b = mgr_new("beta", with_secret);
  mgr_listen(p.b, p.b_address);
  CHECK_OK(rdma_mgr_add_peer(p.a, "beta", p.b_address));
  drive(p.b);
  rdma_code_t rc = rdma_mgr_connect(p.a, "beta", 20000); /* a refusal comes at once */
  if (rc == RDMA_OK) transfer(&p, "secret", 1);
  pair_end(&p);
  return rc;
}
static void secrets(void) {
  CHECK_CODE(RDMA_OK, secret_case("the same words", "the same words"));
  CHECK_CODE(RDMA_UNAUTHENTICATED, secret_case("the same words", "other words"));
  CHECK_CODE(RDMA_UNAUTHENTICATED, secret_case("the same words", NULL));
  CHECK_CODE(RDMA_UNAUTHENTICATED, secret_case(NULL, "the same words"));
}

static void remote_needs_leave(rdma_mgr_options_t *o) { o->allow_remote = 0; }
static void listens_anywhere(rdma_mgr_options_t *o) { o->allow_remote = 0, o->listen = "0.0.0.0:0"; }
static void remote_has_leave(rdma_mgr_options_t *o) { o->allow_remote = 1; }
static void listening(void) {
  char bound[256], again[256];
  size_t len;
  rdma_mgr_t *m = mgr_new("m", remote_needs_leave), *open = mgr_new("open", remote_has_leave);
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_listen(m, "0.0.0.0:0", bound, sizeof bound, &len));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, mgr_try("anywhere", listens_anywhere, &(rdma_mgr_t *){NULL}));
  CHECK_OK(rdma_mgr_listen(open, "0.0.0.0:0", bound, sizeof bound, &len));
  static const char *const bad[] = {"", ":", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "[::1",
                                    "[::1]:99999", "::1:5:x", "no such host.invalid:1"};
  for (size_t i = 0; i < COUNT_OF(bad); i++) {
    rdma_code_t rc = rdma_mgr_listen(m, bad[i], bound, sizeof bound, &len);
    CHECK_MSG(rc != RDMA_OK, "listens on \"%s\"", bad[i]);
  }
  mgr_listen(m, bound);
  rdma_mgr_t *other = mgr_new("other", NULL);
  rdma_code_t rc = rdma_mgr_listen(other, bound, again, sizeof again, &len);
  CHECK_MSG(rc == RDMA_ALREADY_EXISTS || rc == RDMA_UNAVAILABLE, "second listener on %s: %s", bound, rdma_code_name(rc));
}

static void ipv6(void) {
  pair p;
  size_t len;
  p.a = mgr_new("alpha", NULL);
  p.b = mgr_new("beta", NULL);
  rdma_code_t rc = rdma_mgr_listen(p.b, "[::1]:0", p.b_address, sizeof p.b_address, &len);
  if (rc != RDMA_OK) skip("this host has no IPv6 loopback");
  CHECK_HAS(p.b_address, "[::1]:");
  CHECK_OK(rdma_mgr_add_peer(p.a, "beta", p.b_address));
  transfer(&p, "six", 6);
}

static void event_fd(void) {
  pair p = pair_new(NULL);
  int fd = -1;
  if (!is_manual()) {
    CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_event_fd(p.a, &fd));
    CHECK_INT(-1, fd);
    return;
  }
  drive(p.b);
  CHECK_OK(rdma_mgr_event_fd(p.a, &fd));
  CHECK(fd >= 0);
  for (int i = 0; i < 30; i++) {
    op *r = op_recv(p.a, "beta", "fd", i, 9, NULL);
    rdma_tensor_t t = tensor_of(NULL, i % 2 ? 100 : 500000, 9);
    op *s = op_send(p.b, "fd", i, &t);
    for (int64_t end = now_ms() + 20000; !op_ended(r);) { /* progress only when the descriptor says so */
      struct pollfd f = {fd, POLLIN, 0};
      CHECK_MSG(now_ms() < end, "round %d: the descriptor stays silent", i);
      if (poll(&f, 1, 5000) > 0) {
        uint32_t events;
        CHECK_OK(rdma_mgr_progress(p.a, &events));
      }
    }
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
  }
}

static void wait_for_something(void) {
  pair p = pair_new(NULL);
  if (!is_manual()) skip("the progress thread drives");
  CHECK_OK(rdma_mgr_connect(p.a, "beta", 0));
  for (int i = 0; i < 100; i++) pump_for(1);
  int64_t start = now_ms();
  rdma_code_t rc = rdma_mgr_wait(p.a, 60);
  CHECK_MSG(rc == RDMA_DEADLINE_EXCEEDED || rc == RDMA_OK, "%s", rdma_code_name(rc));
  CHECK(now_ms() - start < 5000);
  drive(p.b);
  op *r = op_recv(p.a, "beta", "w", 1, 9, NULL);
  rdma_tensor_t t = tensor_of(NULL, 100, 9);
  op *s = op_send(p.b, "w", 1, &t);
  for (int64_t end = now_ms() + 20000; !op_ended(r) && now_ms() < end;) {
    rc = rdma_mgr_wait(p.a, 1000);
    CHECK_MSG(rc == RDMA_DEADLINE_EXCEEDED || rc == RDMA_OK, "%s", rdma_code_name(rc));
  }
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  rdma_mgr_wait(p.a, 0);
  rc = rdma_mgr_wait(p.a, 0);
  CHECK_MSG(rc == RDMA_DEADLINE_EXCEEDED || rc == RDMA_OK, "%s", rdma_code_name(rc));
}

static const test_case cases[] = {
    CASE(connect_and_info), CASE(disconnect_and_again), CASE(connect_start_only), CASE(both_connect_at_once),
    CASE(nobody_listens), CASE(messages_tell_why_there_is_no_connection), CASE(unknown_peer), CASE(wrong_name), CASE(no_manager_answers), CASE(blobs), CASE(secrets),
    CASE(listening), CASE(ipv6), CASE(event_fd), CASE(wait_for_something),
};
TEST_MAIN(cases)
