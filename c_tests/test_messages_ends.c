/* Tagged messages that end before they are done, and who hears of it: cancellation, deadlines, callbacks, what goes. */
#include "messages.h"

static void cancellation(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  size_t n = 200000;
  char *from = scratch(n), *to = scratch(n);
  fill(from, n, 3);
  rdma_msg_status_t st;
  /* A receive that waits. */
  rdma_msg_request_t r = irecv(p.b, to_a, 1, EXACT, to, n, &st);
  CHECK_OK(rdma_msg_cancel(p.b, r));
  CHECK_INT(RDMA_CANCELLED, end_of(p.b, r, NULL).code);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_cancel(p.b, r));
  /* Sends that no receive has met: large, and synchronous. */
  for (int large = 0; large < 2; large++) {
    rdma_msg_request_t s = isend(p.a, to_b, 2, from, large ? n : 8, RDMA_MSG_SYNCHRONOUS);
    pump_for(20);
    CHECK_OK(rdma_msg_cancel(p.a, s));
    CHECK_INT(RDMA_CANCELLED, end_of(p.a, s, NULL).code);
  }
  st.struct_size = sizeof st;
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_probe(p.b, RDMA_PEER_ANY, COMM, 2, EXACT, false, 50, &st));
  /* After all that, a message as usual. */
  r = irecv(p.b, to_a, 3, EXACT, to, n, &st);
  rdma_msg_request_t s = isend(p.a, to_b, 3, from, n, RDMA_MSG_STANDARD);
  CHECK_INT(RDMA_OK, received(p.b, r, st).code);
  CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
  CHECK(mismatch(to, n, 3) < 0);
}

/* A receive that is cancelled while its message comes: it has all of it, or another has. */
static void cancelled_receives_lose_nothing(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  size_t n = 3000000;
  unsigned char *from = scratch(n), *to = scratch(n);
  for (int i = 0; i < 24; i++) {
    rdma_msg_status_t st;
    fill(from, n, i);
    memset(to, 0xAA, n);
    rdma_msg_request_t r = irecv(p.b, to_a, 1, EXACT, to, n, &st);
    rdma_msg_request_t s = isend(p.a, to_b, 1, from, n, i % 2 ? RDMA_MSG_SYNCHRONOUS : RDMA_MSG_STANDARD);
    for (int k = 0; k < i / 4; k++) pump_for(k % 2);
    rdma_code_t rc = r == 0 ? RDMA_NOT_FOUND : rdma_msg_cancel(p.b, r);
    CHECK(rc == RDMA_OK || rc == RDMA_NOT_FOUND);
    st = end_of(p.b, r, &st);
    if (st.code == RDMA_CANCELLED) {
      for (size_t k = 0; k < n; k++) CHECK_MSG(to[k] == 0xAA, "cancelled, and byte %zu was written", k);
      r = irecv(p.b, to_a, 1, EXACT, to, n, &st);
      st = end_of(p.b, r, &st);
    }
    CHECK_INT(RDMA_OK, st.code);
    CHECK(mismatch(to, n, i) < 0);
    if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
  }
}

/* The sender of a message whose receive ends in the middle of it hears that it was cancelled, or that it went well. */
static void receives_that_end_in_the_middle(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  size_t n = 16000000;
  char *from = scratch(n), *to = scratch(n);
  rdma_msg_options_t options = {.struct_size = sizeof options};
  for (int i = 0; i < 12; i++) {
    rdma_msg_status_t st = {.struct_size = sizeof st};
    rdma_msg_request_t r = 0;
    options.timeout_ms = 1 + i % 3;
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 1, EXACT, to, n, &options, &st, &r));
    rdma_msg_request_t s = isend(p.a, to_b, 1, from, n, RDMA_MSG_STANDARD);
    st = end_of(p.b, r, &st);
    CHECK_MSG(st.code == RDMA_OK || st.code == RDMA_DEADLINE_EXCEEDED, "the receive: %s", rdma_code_name(st.code));
    /* It may not have met it. */
    if (st.code != RDMA_OK) rdma_msg_cancel(p.a, s);
    if (s != 0) st = end_of(p.a, s, NULL);
    CHECK_MSG(st.code == RDMA_OK || st.code == RDMA_CANCELLED, "the send: %s: %s", rdma_code_name(st.code), st.text);
  }
}

static void deadlines(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  size_t n = 200000;
  char *memory = scratch(n);
  rdma_msg_options_t options = {.struct_size = sizeof options, .timeout_ms = 50, .mode = RDMA_MSG_SYNCHRONOUS};
  rdma_msg_request_t requests[3] = {0, 0, 0};
  CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, memory, n, &options, &requests[0]));
  CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, memory, 8, &options, &requests[1]));
  CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 9, EXACT, memory, n, &options, NULL, &requests[2]));
  CHECK_INT(RDMA_DEADLINE_EXCEEDED, end_of(p.a, requests[0], NULL).code);
  CHECK_INT(RDMA_DEADLINE_EXCEEDED, end_of(p.a, requests[1], NULL).code);
  CHECK_INT(RDMA_DEADLINE_EXCEEDED, end_of(p.b, requests[2], NULL).code);
  drive(p.a);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_recv(p.b, to_a, COMM, 9, EXACT, memory, n, &options, NULL));
  drive_stop(p.a);
}

/* A send that a receiver who takes nothing holds back ends at its deadline, and never comes; those before and behind it do, in
   order. First where the window is full, and the peer has its offer; then where so many are offered that it waits here. */
static void a_send_that_is_held_back_has_a_deadline(void) {
  enum { WINDOW = 5000, OFFERS = 66000, AT_ONCE = 100 };
  /* In the virtual machine of ibverbs each offer takes a millisecond. */
  const int rounds = is_provider("ibverbs") ? 1 : 2;
  const uint64_t gone = UINT64_MAX;
  static uint64_t content[WINDOW + OFFERS + 6];
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  uint64_t sent = 0;
  rdma_msg_options_t patient = {.struct_size = sizeof patient, .timeout_ms = RDMA_MSG_FOREVER};
  rdma_msg_options_t hasty = {.struct_size = sizeof hasty, .timeout_ms = 50};
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < (round ? OFFERS : WINDOW); i++, sent++) {
      content[sent] = sent;
      CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, &content[sent], 8, &patient, NULL));
    }
    drive(p.b);
    for (int i = 0; i < 3; i++, sent++) {
      CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_send(p.a, to_b, COMM, 1, &gone, 8, &hasty));
      content[sent] = sent;
      CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, &content[sent], 8, &patient, NULL));
    }
    drive_stop(p.b);
  }
  for (uint64_t first = 0; first < sent; first += AT_ONCE) {
    uint64_t got[AT_ONCE], n = sent - first < AT_ONCE ? sent - first : AT_ONCE;
    rdma_msg_request_t r[AT_ONCE];
    rdma_msg_status_t st[AT_ONCE];
    for (uint64_t i = 0; i < n; i++) r[i] = irecv(p.b, to_a, 1, EXACT, &got[i], sizeof got[i], &st[i]);
    for (uint64_t i = 0; i < n; i++) {
      CHECK_INT(RDMA_OK, received(p.b, r[i], st[i]).code);
      CHECK_MSG(got[i] == first + i, "message %llu is %lld", (unsigned long long)(first + i), (long long)got[i]);
    }
  }
  rdma_msg_status_t st = {.struct_size = sizeof st};
  drive(p.a);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_probe(p.b, RDMA_PEER_ANY, COMM, 0, 0, false, 200, &st));
  CHECK_OK(rdma_mgr_flush(p.a, NULL, patience(30000)));
  drive_stop(p.a);
}

static _Atomic int told;
static rdma_msg_status_t last;
static void on_end(const rdma_msg_status_t *status, void *userdata) {
  CHECK(userdata == &told);
  last = *status;
  atomic_fetch_add(&told, 1);
}

static void callbacks(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = on_end, .userdata = &told};
  size_t n = 100000;
  char *from = scratch(n), *to = scratch(n);
  fill(from, n, 8);
  rdma_msg_request_t r = 0;
  CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 1, EXACT, to, n, &options, NULL, &r));
  CHECK(r != 0);
  CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, from, n, NULL, NULL));
  CHECK(count_reached(&told, 1, 30000));
  CHECK_INT(RDMA_OK, last.code);
  CHECK_INT(n, last.bytes);
  CHECK(mismatch(to, n, 8) < 0);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_cancel(p.b, r));
  CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 2, EXACT, to, n, &options, NULL, &r));
  CHECK_OK(rdma_msg_cancel(p.b, r));
  CHECK(count_reached(&told, 2, 30000));
  CHECK_INT(RDMA_CANCELLED, last.code);
}

/* Whoever waits for a request that has a callback, which it must not, hears that it has ended, also among others. */
static void a_wait_for_one_with_a_callback(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_a = number_of(p.b, "alpha");
  static const uint32_t hows[] = {RDMA_MSG_ALL, RDMA_MSG_ANY, RDMA_MSG_SOME};
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = on_end, .userdata = &told, .timeout_ms = 100};
  char byte = 0, other = 0;
  atomic_store(&told, 0);
  for (int i = 0; i < 3; i++) {
    rdma_msg_request_t r[2] = {0, 0};
    rdma_msg_status_t st;
    size_t n = 7;
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 1, EXACT, &byte, 1, &options, NULL, &r[0]));
    r[1] = irecv(p.b, to_a, 2, EXACT, &other, 1, &st);
    CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_wait(p.b, r, 2, hows[i], 30000, NULL, NULL, &n));
    CHECK_OK(rdma_msg_cancel(p.b, r[1]));
    CHECK_INT(RDMA_CANCELLED, end_of(p.b, r[1], NULL).code);
    CHECK(count_reached(&told, i + 1, 30000));
    CHECK_INT(RDMA_DEADLINE_EXCEEDED, last.code);
  }
}

static void a_peer_that_goes(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  size_t n = 300000;
  char *memory = scratch(n);
  uint64_t x = 9, got = 0;
  rdma_msg_request_t s1 = isend(p.a, to_b, 1, memory, n, RDMA_MSG_STANDARD);
  rdma_msg_request_t s2 = isend(p.a, to_b, 1, &x, sizeof x, RDMA_MSG_SYNCHRONOUS);
  rdma_msg_status_t st = {.struct_size = sizeof st};
  CHECK_OK(rdma_msg_isend(p.b, to_a, COMM, 7, &x, sizeof x, NULL, NULL));
  drive(p.b);
  CHECK_OK(rdma_msg_probe(p.a, to_b, COMM, 7, EXACT, false, 30000, &st));
  drive_stop(p.b);
  mgr_end(p.b);
  p.b = NULL;
  CHECK_INT(RDMA_UNAVAILABLE, end_of(p.a, s1, NULL).code);
  CHECK_INT(RDMA_UNAVAILABLE, end_of(p.a, s2, NULL).code);
  /* What came whole stays. */
  if (env.protocol == RDMA_PROTOCOL_AUTO || env.protocol == RDMA_PROTOCOL_EAGER) CHECK_OK(rdma_msg_recv(p.a, to_b, COMM, 7, EXACT, &got, sizeof got, NULL, NULL));
  CHECK_INT(st.peer == to_b && got == 9 ? 9 : 0, got);
}

/* Requests whose end nobody asks for go on, and leave nothing. */
static void requests_let_go(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  size_t n = 100000;
  char *from = scratch(n), *to = scratch(n);
  uint64_t last = 0, x = 7;
  fill(from, n, 4);
  rdma_msg_status_t st;
  rdma_msg_request_t r = irecv(p.b, to_a, 1, EXACT, to, n, &st);
  CHECK_OK(rdma_msg_free(p.b, r));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_cancel(p.b, r));
  rdma_msg_request_t s = isend(p.a, to_b, 1, from, n, RDMA_MSG_SYNCHRONOUS);
  CHECK_OK(rdma_msg_free(p.a, s));
  r = irecv(p.b, to_a, 2, EXACT, &last, sizeof last, &st);
  s = isend(p.a, to_b, 2, &x, sizeof x, RDMA_MSG_SYNCHRONOUS);
  CHECK_INT(RDMA_OK, received(p.b, r, st).code);
  if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
  drive(p.a);
  CHECK_OK(rdma_mgr_flush(p.b, NULL, 30000));
  drive_stop(p.a);
  CHECK(mismatch(to, n, 4) < 0);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_free(p.a, s == 0 ? 1 : s));
}

/* What waits with memory that is unregistered ends, and leaves the memory alone. */
static void memory_that_goes(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  rdma_peer_t self = number_of(p.b, "beta");
  size_t n = 300000;
  for (int large = 0; large < 2; large++) {
    size_t len = large ? n : 64;
    char *from = scratch(n), *to = scratch(n);
    rdma_msg_status_t st;
    memset(to, 1, n);
    CHECK_OK(rdma_mem_register(p.b, to, n, RDMA_DEVICE_HOST));
    rdma_msg_request_t r = irecv(p.b, to_a, 1, EXACT, to, len, &st);
    rdma_msg_request_t o = isend(p.b, self, 2, to, len, RDMA_MSG_SYNCHRONOUS);
    CHECK_OK(rdma_mem_unregister(p.b, to));
    CHECK_INT(RDMA_FAILED_PRECONDITION, end_of(p.b, r, NULL).code);
    CHECK_INT(RDMA_FAILED_PRECONDITION, end_of(p.b, o, NULL).code);
    fill(from, n, 5);
    rdma_msg_request_t s = isend(p.a, to_b, 1, from, len, RDMA_MSG_STANDARD);
    pump_for(20);
    CHECK_INT(1, to[0]);
    char *next = scratch(n);
    r = irecv(p.b, to_a, 1, EXACT, next, len, &st);
    CHECK_INT(RDMA_OK, received(p.b, r, st).code);
    if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
    CHECK(mismatch(next, len, 5) < 0);
  }
}

/* Offers whose memory goes are gone at the receiver, too: they take nothing there, however many they were. */
static void offers_whose_memory_goes(void) {
  /* More than a connection bears; in the virtual machine of ibverbs registering takes milliseconds. */
  const int many = is_provider("ibverbs") ? 500 : 20000;
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  size_t n = 3000000; /* So much is copied nowhere. */
  char *from = scratch(n), *to = scratch(n), header[RDMA_MSG_MAX_HEADER];
  fill(from, n, 6);
  fill(header, sizeof header, 1);
  rdma_msg_options_t options = {.struct_size = sizeof options, .header = header, .header_len = sizeof header};
  rdma_msg_request_t s = 0;
  for (int i = 0; i < many; i++) {
    CHECK_OK(rdma_mem_register(p.a, from, n, RDMA_DEVICE_HOST));
    CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, from, n, &options, &s));
    CHECK_OK(rdma_mem_unregister(p.a, from));
    rdma_code_t code = end_of(p.a, s, NULL).code;
    CHECK_MSG(code == RDMA_FAILED_PRECONDITION, "send %d: %s", i, rdma_code_name(code));
    if (i % 64 == 0) pump_for(0);
  }
  /* What comes behind them tells that they are gone, and no receive meets one of them any more. */
  rdma_msg_status_t st;
  CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 2, header, 8, NULL, NULL));
  rdma_msg_request_t r = irecv(p.b, to_a, 2, EXACT, to, 8, &st);
  CHECK_INT(RDMA_OK, received(p.b, r, st).code);
  /* The next receive meets the next message. */
  CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, from, n, NULL, &s));
  r = irecv(p.b, to_a, 1, EXACT, to, n, &st);
  CHECK_INT(RDMA_OK, received(p.b, r, st).code);
  if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
  CHECK(mismatch(to, n, 6) < 0);
}

/* A message to oneself that was claimed and never received keeps nobody from the end. */
static void claimed_at_the_end(void) {
  rdma_mgr_t *mgr = mgr_new("alone", NULL);
  rdma_peer_t self = number_of(mgr, "alone");
  rdma_msg_options_t options = {.struct_size = sizeof options, .mode = RDMA_MSG_SYNCHRONOUS};
  options.done = on_end;
  options.userdata = &told;
  rdma_msg_status_t st = {.struct_size = sizeof st};
  uint64_t x = 1;
  told = 0;
  CHECK_OK(rdma_msg_isend(mgr, self, COMM, 1, &x, sizeof x, &options, NULL));
  CHECK_OK(rdma_msg_probe(mgr, self, COMM, 1, EXACT, true, 0, &st));
  mgr_end(mgr);
  CHECK_INT(1, told);
  CHECK_INT(RDMA_CANCELLED, last.code);
}

/* Many sends that wait are taken back, or end with their manager, each at the same cost. */
static void many_that_wait(void) {
  enum { MANY = 60000 };
  static rdma_msg_request_t requests[MANY];
  static char byte;
  for (int own = 0; own < 2; own++) {
    rdma_mgr_t *mgr = mgr_new("alone", NULL);
    if (!own) CHECK_OK(rdma_mgr_add_peer(mgr, "nobody", "127.0.0.1:9"));
    rdma_peer_t to = number_of(mgr, own ? "alone" : "nobody");
    int64_t start = now_ms();
    for (int round = 0; round < 2; round++) {
      for (int i = 0; i < MANY; i++) requests[i] = isend(mgr, to, i, &byte, 1, RDMA_MSG_SYNCHRONOUS);
      for (int i = MANY; round == 0 && i-- > 0;) {
        rdma_code_t code = rdma_msg_cancel(mgr, requests[i]);
        CHECK(code == RDMA_OK || code == RDMA_NOT_FOUND);
        CHECK_OK(rdma_msg_free(mgr, requests[i]));
      }
    }
    mgr_end(mgr);
    int64_t took = now_ms() - start;
    CHECK_MSG(is_sanitized() || took < patience(5000), "%lld ms", (long long)took);
  }
}

static const test_case cases[] = {
    CASE(cancellation), CASE(cancelled_receives_lose_nothing), CASE(receives_that_end_in_the_middle), CASE(deadlines),
    SLOW(a_send_that_is_held_back_has_a_deadline, 240),
    CASE(callbacks), CASE(a_wait_for_one_with_a_callback), CASE(a_peer_that_goes), CASE(requests_let_go), CASE(memory_that_goes),
    CASE(offers_whose_memory_goes), CASE(claimed_at_the_end), CASE(many_that_wait),
};
TEST_MAIN(cases)
