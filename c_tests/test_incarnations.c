/* Answers for who has asked: a peer that was killed, and another process that bears its name. */
#include "messages.h"
#include <pthread.h>

enum { ASKS = 7, LIVE = 9 };

/* Asks alpha at argv[1], with tag argv[2], by a message to its handler and by one to a receive; then tells what it hears. */
static int asker_role(int argc, char **argv) {
  char line[64], got[64 * 1024];
  if (argc < 3) return 2;
  rdma_mgr_t *m = mgr_new(argv[0], NULL);
  CHECK_OK(rdma_mgr_add_peer(m, "alpha", argv[1]));
  CHECK_OK(rdma_mgr_connect(m, "alpha", CONNECT_MS));
  rdma_peer_t to = number_of(m, "alpha");
  uint64_t tag = (uint64_t)atoi(argv[2]);
  rdma_msg_options_t options = {.struct_size = sizeof options, .mode = RDMA_MSG_SYNCHRONOUS};
  rdma_msg_request_t r = 0;
  CHECK_OK(rdma_msg_am_isend(m, to, ASKS, tag, "x", 1, &options, &r));
  rdma_msg_status_t st = end_of(m, r, &(rdma_msg_status_t){0});
  CHECK_INT(RDMA_OK, st.code);
  rdma_msg_request_t kept = isend(m, to, tag, "kept", 4, RDMA_MSG_STANDARD);
  if (kept) CHECK_INT(RDMA_OK, end_of(m, kept, NULL).code);
  printf("asked\n");
  fflush(stdout);
  for (;;) { /* "hear" until one says that it is the last */
    rdma_msg_status_t at_once;
    r = irecv(m, to, 0, 0, got, sizeof got, &at_once);
    st = received(m, r, at_once);
    CHECK_INT(RDMA_OK, st.code);
    printf("heard %llu\n", (unsigned long long)st.tag);
    fflush(stdout);
    if (st.tag == LIVE) break;
  }
  if (!next_line(line, sizeof line)) return 1;
  mgr_end(m);
  return 0;
}

/* Who has asked, as the handler was told. */
static _Atomic int asked;
static rdma_peer_t who[4];
static uint64_t whose[4];
static uint32_t on_ask(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  (void)mgr, (void)data, (void)userdata;
  who[status->tag] = status->peer;
  whose[status->tag] = status->incarnation;
  atomic_store(&asked, (int)status->tag);
  return RDMA_MSG_HANDLED;
}

/* Small, long, and all modes: which go different ways. */
static const size_t sizes[] = {0, 8, 3000, 40000};
static const uint32_t modes[] = {RDMA_MSG_STANDARD, RDMA_MSG_SYNCHRONOUS, RDMA_MSG_READY, RDMA_MSG_BUFFERED};
static char content[64 * 1024];

static rdma_code_t answer_only(rdma_mgr_t *m, rdma_peer_t to, uint64_t incarnation, uint64_t tag, size_t n, uint32_t mode) {
  rdma_msg_options_t o = {.struct_size = sizeof o, .timeout_ms = patience(60000), .mode = mode, .incarnation = incarnation};
  rdma_msg_request_t r = 0;
  rdma_code_t code = rdma_msg_isend(m, to, COMM, tag, content, n, &o, &r);
  return code != RDMA_OK || r == 0 ? code : end_of(m, r, NULL).code;
}

static proc *start(const char *address, const char *tag) {
  proc *p = proc_start("asker", (const char *const[]){"beta", address, tag, NULL});
  proc_expect(p, "asked");
  CHECK(count_reached(&asked, atoi(tag), 20000));
  return p;
}

static void an_answer_is_for_who_has_asked(void) {
  char address[256], piece[16] = "in two pieces";
  if (is_provider("loopback")) skip("loopback does not leave the process");
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  mgr_listen(m, address);
  CHECK_OK(rdma_msg_handler(m, ASKS, on_ask, NULL));
  CHECK_OK(rdma_msg_attach(m, MIB));
  proc *p = start(address, "1");
  CHECK(whose[1] != 0);
  CHECK_OK(answer_only(m, who[1], whose[1], 1, 8, RDMA_MSG_STANDARD));
  CHECK_STR("1", proc_expect(p, "heard "));
  proc_kill(p);
  p = start(address, "2");
  CHECK(who[1] == who[2] && whose[2] != 0 && whose[2] != whose[1]);
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    for (size_t k = 0; k < COUNT_OF(modes); k++) {
      CHECK_BAD(RDMA_UNAVAILABLE, answer_only(m, who[1], whose[1], 1, sizes[i], modes[k]));
      error_has("'beta'");
      error_has("restarted");
    }
  }
  /* By the other calls. */
  rdma_msg_options_t o = {.struct_size = sizeof o, .incarnation = whose[1]};
  rdma_msg_persistent_t prepared = 0;
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_am_isend(m, who[1], ASKS, 1, "x", 1, &o, NULL));
  if (!is_manual()) CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_send(m, who[1], COMM, 1, "x", 1, &o));
  CHECK_OK(rdma_msg_send_init(m, who[1], COMM, 1, "x", 1, &o, &prepared));
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_start(m, prepared, NULL, NULL));
  CHECK_OK(rdma_msg_persistent_free(m, prepared));
  rdma_msg_piece_t pieces[2] = {{piece, 5}, {piece + 5, 5}};
  rdma_msg_layout_t layout = {.struct_size = sizeof layout, .kind = RDMA_MSG_IOVEC, .pieces = pieces, .count = 2};
  o.layout = &layout;
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_isend(m, who[1], COMM, 1, NULL, 0, &o, NULL));
  layout.kind = RDMA_MSG_PARTS;
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_isend(m, who[1], COMM, 1, NULL, 0, &o, NULL));
  /* What the dead one sent is still its own, and that of the living one its. */
  for (uint64_t tag = 1; tag <= 2; tag++) {
    char got[8];
    rdma_msg_status_t found = {.struct_size = sizeof found}, at_once;
    CHECK_OK(rdma_msg_probe(m, RDMA_PEER_ANY, COMM, tag, EXACT, false, patience(20000), &found));
    CHECK(found.incarnation == whose[tag]);
    rdma_msg_request_t r = irecv(m, RDMA_PEER_ANY, tag, EXACT, got, sizeof got, &at_once);
    CHECK(received(m, r, at_once).incarnation == whose[tag]);
  }
  /* The living one hears what is for it, or for whoever has the name, and nothing else. */
  CHECK_OK(answer_only(m, who[2], whose[2], 2, 8, RDMA_MSG_STANDARD));
  CHECK_OK(answer_only(m, who[2], whose[2], 3, 40000, RDMA_MSG_SYNCHRONOUS));
  CHECK_OK(answer_only(m, who[2], 0, LIVE, 8, RDMA_MSG_STANDARD));
  CHECK_STR("2", proc_expect(p, "heard "));
  CHECK_STR("3", proc_expect(p, "heard "));
  CHECK_STR("9", proc_expect(p, "heard "));
  CHECK_INT(0, proc_finish(p));
}

static void until_gone(rdma_mgr_t *m) {
  rdma_peer_info_t info = {.struct_size = sizeof info};
  for (int64_t end = now_ms() + patience(20000);; pump_for(1)) {
    CHECK_OK(rdma_mgr_peer_info(m, "beta", &info));
    if (info.channels == 0) break;
    CHECK(now_ms() < end);
  }
}

/* The send is called while nobody has the name, and waits. */
static void an_answer_that_waits_goes_to_nobody_else(void) {
  char address[256];
  if (is_provider("loopback")) skip("loopback does not leave the process");
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  mgr_listen(m, address);
  CHECK_OK(rdma_msg_handler(m, ASKS, on_ask, NULL));
  proc *p = start(address, "1");
  proc_kill(p);
  until_gone(m);
  rdma_msg_options_t o = {.struct_size = sizeof o, .timeout_ms = patience(60000), .incarnation = whose[1]};
  rdma_msg_request_t r[2] = {0};
  for (int i = 0; i < 2; i++) CHECK_OK(rdma_msg_isend(m, who[1], COMM, 1, content, i ? 40000 : 8, &o, &r[i]));
  p = start(address, "2");
  for (int i = 0; i < 2; i++) {
    rdma_msg_status_t st = end_of(m, r[i], NULL);
    CHECK_MSG(st.code == RDMA_UNAVAILABLE, "%s: %s", rdma_code_name(st.code), st.text);
    CHECK_HAS(st.text, "'beta'");
    CHECK(st.incarnation == whose[1]);
  }
  CHECK_OK(answer_only(m, who[2], whose[2], LIVE, 8, RDMA_MSG_STANDARD));
  CHECK_STR("9", proc_expect(p, "heard "));
  CHECK_INT(0, proc_finish(p));
}

static void messages_to_oneself(void) {
  rdma_mgr_t *m = mgr_new("alpha", NULL), *other = mgr_new("alpha", NULL);
  uint64_t own[2];
  rdma_mgr_t *both[2] = {m, other};
  for (int i = 0; i < 2; i++) {
    char got[8];
    rdma_msg_status_t at_once;
    rdma_peer_t self = number_of(both[i], "alpha");
    CHECK_OK(answer_only(both[i], self, 0, 1, 8, RDMA_MSG_STANDARD));
    rdma_msg_request_t r = irecv(both[i], self, 1, EXACT, got, sizeof got, &at_once);
    own[i] = received(both[i], r, at_once).incarnation;
    CHECK(own[i] != 0);
  }
  CHECK(own[0] != own[1]); /* two managers of one name, in one process */
  for (int i = 0; i < 2; i++) {
    char got[8];
    rdma_msg_status_t at_once;
    rdma_peer_t self = number_of(both[i], "alpha");
    for (size_t k = 0; k < COUNT_OF(sizes); k++)
      CHECK_BAD(RDMA_UNAVAILABLE, answer_only(both[i], self, own[1 - i], 1, sizes[k], modes[k % 2]));
    error_has("'alpha'");
    CHECK_OK(answer_only(both[i], self, own[i], 2, 8, RDMA_MSG_STANDARD));
    rdma_msg_request_t r = irecv(both[i], self, 0, 0, got, sizeof got, &at_once);
    rdma_msg_status_t st = received(both[i], r, at_once);
    CHECK_INT(2, st.tag);
  }
}

/* Where nobody listens any more, who alone may have it has ended: the send does not wait for its deadline, which may be never. */
static void an_answer_for_who_is_gone_ends(void) {
  char got[8];
  pair p = pair_new(NULL);
  rdma_msg_status_t at_once;
  rdma_msg_request_t r = irecv(p.a, RDMA_PEER_ANY, 1, EXACT, got, sizeof got, &at_once);
  rdma_msg_request_t s = isend(p.b, number_of(p.b, "alpha"), 1, content, 8, RDMA_MSG_STANDARD);
  if (s) CHECK_INT(RDMA_OK, end_of(p.b, s, NULL).code);
  rdma_msg_status_t asked_by = received(p.a, r, at_once);
  mgr_end(p.b);
  until_gone(p.a);
  rdma_msg_options_t o = {.struct_size = sizeof o, .timeout_ms = RDMA_MSG_FOREVER, .incarnation = asked_by.incarnation};
  rdma_msg_request_t bound = 0, any = 0;
  CHECK_OK(rdma_msg_isend(p.a, asked_by.peer, COMM, 2, content, 8, &o, &bound));
  o.incarnation = 0;
  CHECK_OK(rdma_msg_isend(p.a, asked_by.peer, COMM, 2, content, 8, &o, &any));
  rdma_msg_status_t st = end_of(p.a, bound, NULL);
  CHECK_MSG(st.code == RDMA_UNAVAILABLE, "%s: %s", rdma_code_name(st.code), st.text);
  CHECK_HAS(st.text, "is gone");
  /* Another may have the name one day. */
  CHECK_OK(rdma_msg_cancel(p.a, any));
  CHECK_INT(RDMA_CANCELLED, end_of(p.a, any, NULL).code);
}

static uint64_t incarnation_of(rdma_mgr_t *m, const char *peer) {
  rdma_peer_info_t info = {.struct_size = sizeof info};
  CHECK_OK(rdma_mgr_peer_info(m, peer, &info));
  return info.message_incarnation;
}

/* Who waits for an answer without a deadline hears that nobody will give it. */
static void a_receive_ends_with_who_would_send(void) {
  char address[256], got[3][16], piece[16];
  if (is_provider("loopback")) skip("loopback does not leave the process");
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  mgr_listen(m, address);
  CHECK_OK(rdma_msg_handler(m, ASKS, on_ask, NULL));
  proc *p = start(address, "1");
  CHECK(incarnation_of(m, "beta") == whose[1]);
  rdma_msg_options_t o = {.struct_size = sizeof o, .timeout_ms = RDMA_MSG_FOREVER, .incarnation = whose[1]};
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_irecv(m, RDMA_PEER_ANY, COMM, 5, EXACT, got[0], 16, &o, NULL, NULL));
  error_has("RDMA_PEER_ANY");
  rdma_msg_request_t r[3] = {0};
  rdma_msg_persistent_t prepared = 0;
  rdma_msg_piece_t pieces[2] = {{piece, 5}, {piece + 5, 5}};
  rdma_msg_layout_t layout = {.struct_size = sizeof layout, .kind = RDMA_MSG_IOVEC, .pieces = pieces, .count = 2};
  CHECK_OK(rdma_msg_irecv(m, who[1], COMM, 5, EXACT, got[0], 16, &o, NULL, &r[0]));
  CHECK_OK(rdma_msg_recv_init(m, who[1], COMM, 5, EXACT, got[1], 16, &o, &prepared));
  CHECK_OK(rdma_msg_start(m, prepared, NULL, &r[1]));
  o.layout = &layout;
  CHECK_OK(rdma_msg_irecv(m, who[1], COMM, 5, EXACT, NULL, 0, &o, NULL, &r[2]));
  o.layout = NULL;
  rdma_msg_request_t any = 0;
  CHECK_OK(rdma_msg_irecv(m, who[1], COMM, 6, EXACT, got[2], 16, NULL, NULL, &any));
  proc_kill(p);
  for (int i = 0; i < 3; i++) {
    rdma_msg_status_t st = end_of(m, r[i], NULL);
    CHECK_MSG(st.code == RDMA_UNAVAILABLE, "%s: %s", rdma_code_name(st.code), st.text);
    CHECK_HAS(st.text, "'beta' is gone");
    CHECK(st.incarnation == whose[1] && st.peer == who[1]);
  }
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_start(m, prepared, NULL, NULL));
  error_has("'beta' is gone");
  /* What it has said is still here. */
  rdma_msg_status_t st = {.struct_size = sizeof st};
  CHECK_OK(rdma_msg_irecv(m, who[1], COMM, 1, EXACT, got[0], 16, &o, &st, &r[0]));
  CHECK(received(m, r[0], st).incarnation == whose[1]);
  p = start(address, "2");
  CHECK(incarnation_of(m, "beta") == whose[2]);
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_irecv(m, who[1], COMM, 1, EXACT, got[0], 16, &o, NULL, NULL));
  error_has("restarted");
  if (!is_manual()) CHECK_BAD(RDMA_UNAVAILABLE, rdma_msg_recv(m, who[1], COMM, 1, EXACT, got[0], 16, &o, NULL));
  o.incarnation = whose[2];
  CHECK_OK(rdma_msg_irecv(m, who[1], COMM, 2, EXACT, got[0], 16, &o, &st, &r[0]));
  st = received(m, r[0], st);
  CHECK(st.code == RDMA_OK && st.incarnation == whose[2]);
  /* One of nobody in particular waits for whoever has the name. */
  CHECK_OK(rdma_msg_cancel(m, any));
  CHECK_INT(RDMA_CANCELLED, end_of(m, any, NULL).code);
  CHECK_OK(answer_only(m, who[2], whose[2], LIVE, 8, RDMA_MSG_STANDARD));
  CHECK_STR("9", proc_expect(p, "heard "));
  CHECK_INT(0, proc_finish(p));
}

/* A struct of a header that had no incarnation is for whoever has the name, and a status of one is left alone behind its end. */
static void structs_of_an_older_header(void) {
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  rdma_peer_t self = number_of(m, "alpha");
  char got[8];
  rdma_msg_options_t o = {.struct_size = offsetof(rdma_msg_options_t, incarnation), .incarnation = 77};
  rdma_msg_status_t st = {.struct_size = offsetof(rdma_msg_status_t, incarnation), .incarnation = 78};
  rdma_msg_request_t r = 0;
  CHECK_OK(rdma_msg_isend(m, self, COMM, 1, content, 8, &o, &r));
  CHECK_INT(0, r);
  CHECK_OK(rdma_msg_irecv(m, self, COMM, 1, EXACT, got, sizeof got, &o, &st, &r));
  CHECK(r == 0 && st.bytes == 8 && st.incarnation == 78);
}

static const test_case cases[] = {
    SLOW(an_answer_is_for_who_has_asked, 120), SLOW(an_answer_that_waits_goes_to_nobody_else, 120),
    SLOW(an_answer_for_who_is_gone_ends, 60),
    SLOW(a_receive_ends_with_who_would_send, 120),
    CASE(messages_to_oneself), CASE(structs_of_an_older_header),
};
static const test_role roles[] = {{"asker", asker_role}};
TEST_MAIN_ROLES(cases, roles)
