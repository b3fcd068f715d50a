/* What a parameter server needs of the library: requests from the first moment on, names that are
 * learned, being woken, flushing, hearing of what ends and of who comes and goes. */
#include "harness.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>

/* ---- what the callbacks saw ---- */
static _Atomic int asked, over, came, went;
static _Atomic uint64_t asked_id, over_id;
static _Atomic int over_code, went_code;
static char came_name[256], over_text[256];
static bool answer;
static int tag;

static void source(rdma_mgr_t *m, rdma_response_t id, const char *peer, size_t peer_len, const char *key,
                   size_t key_len, int64_t step, void *userdata) {
  (void)peer, (void)peer_len, (void)key, (void)key_len, (void)step;
  CHECK(userdata == &tag);
  if (answer) {
    static const char text[] = "answer";
    rdma_tensor_t t;
    CHECK_OK(rdma_tensor_init(&t, sizeof t));
    t.data = text, t.nbytes = sizeof text;
    CHECK_OK(rdma_response_send(m, id, &t, NULL, NULL));
  }
  atomic_store(&asked_id, id);
  atomic_fetch_add(&asked, 1);
}

static void source_ended(rdma_mgr_t *m, rdma_response_t id, rdma_code_t code, const char *message, size_t len,
                         void *userdata) {
  CHECK(m != NULL && userdata == &tag);
  CHECK_INT(strlen(message), len);
  snprintf(over_text, sizeof over_text, "%s", message);
  atomic_store(&over_id, id);
  atomic_store(&over_code, code);
  atomic_fetch_add(&over, 1);
}

static void peer_event(rdma_mgr_t *m, int32_t event, const char *peer, size_t peer_len, rdma_code_t code,
                       const char *message, size_t message_len, void *userdata) {
  CHECK(m != NULL && userdata == &tag);
  CHECK_INT(strlen(peer), peer_len);
  CHECK_INT(strlen(message), message_len);
  if (event == RDMA_PEER_CAME) {
    CHECK_CODE(RDMA_OK, code);
    CHECK_INT(atomic_load(&came), atomic_load(&went)); /* in turn */
    snprintf(came_name, sizeof came_name, "%s", peer);
    atomic_fetch_add(&came, 1);
  } else {
    CHECK_INT(RDMA_PEER_GONE, event);
    CHECK(code != RDMA_OK && message_len > 0);
    CHECK_INT(atomic_load(&came), atomic_load(&went) + 1);
    atomic_store(&went_code, code);
    atomic_fetch_add(&went, 1);
  }
}

static void hooked(rdma_mgr_options_t *o) {
  o->listen = "127.0.0.1:0";
  o->source = source;
  o->source_ended = source_ended;
  o->source_userdata = &tag;
  o->peer_event = peer_event;
  o->peer_event_userdata = &tag;
}

static void address_of(rdma_mgr_t *to, rdma_mgr_t *of) {
  uint8_t blob[4096];
  size_t len = 0;
  CHECK_OK(rdma_mgr_export_address(of, blob, sizeof blob, &len));
  CHECK_OK(rdma_mgr_import_address(to, blob, len, NULL, 0, NULL));
}

/* The server hears everything; the client knows it. */
static pair client_and_server(void) {
  pair p;
  p.b = mgr_new("server", hooked);
  p.a = mgr_new("client", NULL);
  address_of(p.a, p.b);
  return p;
}

static bool is_connected(void *client) {
  rdma_peer_info_t info = {.struct_size = sizeof info};
  return rdma_mgr_peer_info(client, "server", &info) == RDMA_OK && info.state == RDMA_PEER_CONNECTED;
}
static void connected(pair *p) {
  CHECK_OK(rdma_mgr_connect(p->a, "server", 0));
  CHECK(pump_until(is_connected, p->a, 20000));
}

static void r23_source_in_options_gets_the_first_request(void) {
  answer = true;
  pair p = client_and_server();
  op *r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = 1});
  op_wait(r, RDMA_OK);
  CHECK(count_reached(&asked, 1, 20000)); /* counted behind the answer */
  CHECK(count_reached(&came, 1, 20000));
  pair_end(&p);
  CHECK_INT(1, atomic_load(&asked));
  CHECK_INT(0, atomic_load(&over)); /* it was answered */
}

static void r23_source_hears_that_the_receiver_cancelled(void) {
  pair p = client_and_server();
  op *r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = 1, .keep = true});
  CHECK(count_reached(&asked, 1, 20000));
  CHECK_OK(rdma_request_cancel(p.a, r->request));
  op_wait(r, RDMA_CANCELLED);
  CHECK(count_reached(&over, 1, 20000));
  CHECK_CODE(RDMA_CANCELLED, atomic_load(&over_code));
  CHECK(atomic_load(&over_id) == atomic_load(&asked_id));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_response_fail(p.b, atomic_load(&asked_id), RDMA_INTERNAL, "late", 4));
  CHECK_OK(rdma_request_release(p.a, r->request));
  pair_end(&p);
  CHECK_INT(1, atomic_load(&over));
}

static void r23_source_hears_of_a_deadline_an_abort_and_the_end(void) {
  pair p = client_and_server();
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = 200;
  connected(&p); /* the deadline is not spent on the handshake */
  op *r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = 1, .options = &o});
  op_wait(r, RDMA_DEADLINE_EXCEEDED);
  CHECK(count_reached(&over, 1, 20000));
  r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = 2});
  CHECK(count_reached(&asked, 2, 20000));
  CHECK_OK(rdma_step_abort(p.b, 2, RDMA_DATA_LOSS, "a reason", 8));
  op_wait(r, RDMA_DATA_LOSS);
  CHECK(count_reached(&over, 2, 20000));
  CHECK_CODE(RDMA_DATA_LOSS, atomic_load(&over_code));
  CHECK_STR("a reason", over_text);
  r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = 3});
  CHECK(count_reached(&asked, 3, 20000));
  mgr_end(p.b);
  CHECK_INT(3, atomic_load(&over));
  CHECK_CODE(RDMA_CANCELLED, atomic_load(&over_code));
  op_wait(r, RDMA_UNAVAILABLE);
}

static void r23_source_hears_that_the_peer_is_gone(void) {
  pair p = client_and_server();
  op *r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = 1});
  CHECK(count_reached(&asked, 1, 20000));
  mgr_end(p.a);
  CHECK(op_ended(r));
  CHECK(count_reached(&over, 1, 20000));
  CHECK(count_reached(&went, 1, 20000));
  CHECK(atomic_load(&over_id) == atomic_load(&asked_id));
  mgr_end(p.b);
  CHECK_INT(1, atomic_load(&over));
}

static void r23_peers_come_and_go_as_events(void) {
  answer = true;
  pair p = client_and_server();
  for (int i = 0; i < 3; i++) {
    op *r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = i});
    op_wait(r, RDMA_OK);
    CHECK(count_reached(&came, i + 1, 20000));
    CHECK_STR("client", came_name);
    CHECK_OK(rdma_mgr_disconnect(p.a, "server"));
    CHECK(count_reached(&went, i + 1, 20000));
    CHECK_CODE(RDMA_UNAVAILABLE, atomic_load(&went_code));
  }
  op_wait(op_recv_call(&(recv_call){.mgr = p.a, .peer = "server", .key = "k", .step = 9}), RDMA_OK);
  CHECK(count_reached(&came, 4, 20000));
  drive(p.a);
  mgr_end(p.b);
  CHECK_INT(4, atomic_load(&went)); /* nobody who came has not gone */
  CHECK_CODE(RDMA_CANCELLED, atomic_load(&went_code));
}

/* ---- waiting ---- */
static _Atomic int waits;
static void *wait_long(void *mgr) {
  while (rdma_mgr_wait(mgr, 60000) != RDMA_OK) atomic_fetch_add(&waits, 1);
  return NULL;
}

static void r23_wake_ends_a_wait(void) {
  rdma_mgr_t *m = mgr_new("m", NULL);
  for (int i = 0; i < 20; i++) { /* before the wait, while it spins, while it sleeps */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_long, m) == 0);
    if (i % 2) usleep((unsigned)i * 1000);
    CHECK_OK(rdma_mgr_wake(m));
    CHECK(pthread_join(thread, NULL) == 0);
  }
  CHECK_INT(0, atomic_load(&waits));
  CHECK_OK(rdma_mgr_wake(m));
  CHECK_OK(rdma_mgr_wait(m, 60000)); /* one that came early is not lost */
  mgr_end(m);
}

static void flush_end(op *o, void *counter) {
  (void)o;
  usleep(20000); /* the callback takes its time */
  atomic_fetch_add((_Atomic int *)counter, 1);
}

static void r23_flush_waits_for_what_was_accepted(void) {
  pair p = pair_new(NULL);
  static _Atomic int ended;
  if (is_manual()) drive(p.b);
  CHECK_OK(rdma_mgr_flush(p.a, NULL, 0));
  CHECK_OK(rdma_mgr_flush(p.a, "beta", 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mgr_flush(p.a, "nobody", 0));
  char key[32];
  for (int i = 0; i < 10; i++) {
    rdma_tensor_t t = tensor_of(NULL, 200000, (uint64_t)i);
    snprintf(key, sizeof key, "k%d", i);
    op_send(p.b, key, 1, &t);
  }
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_mgr_flush(p.b, NULL, 50)); /* nobody has taken them */
  CHECK_OK(rdma_mgr_flush(p.b, "alpha", 50));                       /* alpha has asked for none */
  for (int i = 0; i < 10; i++) {
    snprintf(key, sizeof key, "k%d", i);
    op_recv_call(&(recv_call){.mgr = p.a, .peer = "beta", .key = key, .step = 1,
                              .also = flush_end, .also_arg = &ended});
  }
  CHECK_OK(rdma_mgr_flush(p.a, "beta", 30000));
  CHECK_INT(10, atomic_load(&ended)); /* not decided only: the callbacks have returned */
  CHECK_OK(rdma_mgr_flush(p.b, NULL, 30000));
  pair_end(&p);
}

/* ---- names ---- */
static void r23_add_peer_learns_the_name(void) {
  answer = true;
  rdma_mgr_t *server = mgr_new("server", NULL), *client = mgr_new("client", hooked);
  char address[256];
  mgr_listen(server, address);
  CHECK_OK(rdma_mgr_add_peer(client, NULL, address));
  CHECK(count_reached(&came, 1, 20000));
  CHECK_STR("server", came_name);
  rdma_tensor_t t = tensor_of(NULL, 1000, 1);
  op_send(server, "k", 1, &t);
  op_wait(op_recv(client, "server", "k", 1, 1, NULL), RDMA_OK);
  mgr_end(client);
  mgr_end(server);
}

static void r23_meet_waits_for_the_name(void) {
  rdma_mgr_t *server = mgr_new("server", NULL), *client = mgr_new("client", NULL);
  char address[256], name[256], small[3];
  size_t len = 0;
  mgr_listen(server, address);
  drive(server);
  CHECK_OK(rdma_mgr_meet(client, address, 20000, name, sizeof name, &len));
  CHECK_STR("server", name);
  CHECK_INT(6, len);
  CHECK_CODE(RDMA_OUT_OF_RANGE, rdma_mgr_meet(client, address, 20000, small, sizeof small, &len));
  CHECK_OK(rdma_mgr_meet(client, address, 20000, NULL, 0, NULL));
  rdma_peer_info_t info;
  info.struct_size = sizeof info;
  CHECK_OK(rdma_mgr_peer_info(client, "server", &info));
  CHECK_INT(RDMA_PEER_CONNECTED, info.state);
  CHECK_STR(address, info.address);
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_meet(client, address, 0, name, sizeof name, &len));
  mgr_listen(client, address);
  drive(client);
  rdma_code_t self = rdma_mgr_meet(client, address, 3000, name, sizeof name, &len);
  CHECK(self == RDMA_ALREADY_EXISTS || self == RDMA_DEADLINE_EXCEEDED || self == RDMA_INVALID_ARGUMENT);
  mgr_end(server);
  rdma_code_t nobody = rdma_mgr_meet(client, "127.0.0.1:1", 300, name, sizeof name, &len);
  CHECK(nobody == RDMA_DEADLINE_EXCEEDED || nobody == RDMA_UNAVAILABLE);
  char text[512];
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "127.0.0.1:1");
  mgr_end(client);
}

static void r23_named_after_it_listens(void) {
  rdma_mgr_t *server = mgr_new("unnamed", NULL), *client = mgr_new("client", NULL);
  char address[256], name[256];
  mgr_listen(server, address);
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_set_name(server, ""));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_set_name(server, "a\nb"));
  CHECK_OK(rdma_mgr_set_name(server, "server.7"));
  CHECK_OK(rdma_mgr_add_peer(client, "server.7", address));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_set_name(client, "server.7")); /* a peer's */
  rdma_tensor_t t = tensor_of(NULL, 1000, 1);
  op_send(server, "k", 1, &t);
  op_wait(op_recv(client, "server.7", "k", 1, 1, NULL), RDMA_OK);
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_set_name(server, "late"));
  char json[8192];
  size_t len = 0;
  CHECK_OK(rdma_mgr_stats_json(server, json, sizeof json, &len));
  CHECK_HAS(json, "server.7");
  drive(server);
  CHECK_OK(rdma_mgr_meet(client, address, 20000, name, sizeof name, &len));
  CHECK_STR("server.7", name);
  mgr_end(client);
  mgr_end(server);
}

/* ---- the rest ---- */
static void r23_limits_in_peer_info(void) {
  pair p = pair_new(NULL);
  rdma_peer_info_t info;
  info.struct_size = sizeof info;
  CHECK_OK(rdma_mgr_peer_info(p.a, "beta", &info));
  CHECK_INT(0, info.eager_max);
  CHECK_INT(0, info.max_message);
  drive(p.b);
  CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
  CHECK_OK(rdma_mgr_peer_info(p.a, "beta", &info));
  CHECK(info.max_message >= 512 && info.eager_max > 0 && info.eager_max < info.max_message);
  pair_end(&p);
}

static void r23_event_fd_is_a_getter(void) {
  rdma_mgr_t *m = mgr_new("m", NULL);
  int fd = -1, again = -1;
  if (!is_manual()) {
    CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_event_fd(m, &fd));
    mgr_end(m);
    return;
  }
  CHECK_OK(rdma_mgr_event_fd(m, &fd));
  struct pollfd p = {.fd = fd, .events = POLLIN};
  while (poll(&p, 1, 20) > 0) CHECK_OK(rdma_mgr_progress(m, NULL));
  for (int i = 0; i < 1000; i++) {
    CHECK_OK(rdma_mgr_event_fd(m, &again));
    CHECK_INT(fd, again);
    CHECK_INT(0, TEMP_FAILURE_RETRY(poll(&p, 1, 0)));
  }
  CHECK_OK(rdma_mgr_wake(m)); /* this does */
  CHECK_INT(1, poll(&p, 1, 20000));
  mgr_end(m);
}

static void r23_keys_in_errors_are_escaped(void) {
  pair p = pair_new(NULL);
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = 50;
  op *r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "beta", .key = "a\0b\n\x1b[31m", .key_len = 9, .step = 1, .options = &o});
  op_wait(r, RDMA_DEADLINE_EXCEEDED);
  CHECK_HAS(r->message, "'a\\x00b\\x0a\\x1b[31m'");
  CHECK_HAS(r->message, "of step 1"); /* the text goes on after the key */
  rdma_tensor_t t = tensor_of(NULL, 10, 1);
  op_send_opt(p.a, "n\0l", 3, 1, &t, NULL);
  CHECK_BAD(RDMA_ABORTED, rdma_send(p.a, "n\0l", 3, 1, &t, NULL, NULL, NULL));
  char text[256];
  size_t text_len = rdma_last_error(text, sizeof text);
  CHECK_INT(strlen(text), text_len);
  CHECK_HAS(text, "'n\\x00l' of step 1");
  static const char with_nul[] = "cut\0here";
  op *s = op_recv_call(&(recv_call){.mgr = p.a, .peer = "beta", .key = "x", .step = 2});
  CHECK_OK(rdma_step_abort(p.a, 2, RDMA_ABORTED, with_nul, 8));
  op_wait(s, RDMA_ABORTED);
  CHECK_HAS(s->message, "cut\\x00here");
  pair_end(&p);
}

static const test_case cases[] = {
    CASE(r23_source_in_options_gets_the_first_request),
    CASE(r23_source_hears_that_the_receiver_cancelled),
    CASE(r23_source_hears_of_a_deadline_an_abort_and_the_end),
    CASE(r23_source_hears_that_the_peer_is_gone),
    CASE(r23_peers_come_and_go_as_events),
    CASE(r23_wake_ends_a_wait),
    CASE(r23_flush_waits_for_what_was_accepted),
    CASE(r23_add_peer_learns_the_name),
    CASE(r23_meet_waits_for_the_name),
    CASE(r23_named_after_it_listens),
    CASE(r23_limits_in_peer_info),
    CASE(r23_event_fd_is_a_getter),
    CASE(r23_keys_in_errors_are_escaped),
};
TEST_MAIN(cases)
