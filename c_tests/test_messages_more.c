/* Tagged messages: handlers, prepared operations, buffered mode, room. */
#include "harness.h"

enum { COMM = 5 };
#define EXACT RDMA_MSG_TAG_MASK

/* What a handler has seen. */
typedef struct seen {
  _Atomic int runs, received;
  rdma_peer_t peer;
  uint64_t tag, bytes, seed;
  char *to;          /* where large content goes; NULL: it takes none */
  bool later;        /* not by the handler itself */
  uint64_t message;  /* what is received later */
  bool in_order;
} seen;

static void on_received(const rdma_msg_status_t *status, void *userdata) {
  seen *s = userdata;
  CHECK_INT(RDMA_OK, status->code);
  CHECK_INT(s->bytes, status->bytes);
  atomic_fetch_add(&s->received, 1);
}

static void receive_content(rdma_mgr_t *mgr, seen *s, uint64_t message) {
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = on_received, .userdata = s};
  rdma_msg_request_t r = 77;
  rdma_msg_status_t st = {.struct_size = sizeof st};
  CHECK_OK(rdma_msg_imrecv(mgr, message, s->to, s->bytes, &options, &st, &r));
  if (r == 0) on_received(&st, s);
}

static uint32_t on_active(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  seen *s = userdata;
  CHECK_INT(77, status->comm);
  CHECK_INT(RDMA_OK, status->code);
  if (s->in_order) CHECK_INT(s->runs, status->tag);
  CHECK_INT(0, (uintptr_t)data % 8); /* also where there is no content */
  s->peer = status->peer;
  s->tag = status->tag;
  s->bytes = status->bytes;
  s->message = status->message;
  if (status->header_len > 0) CHECK(status->header_len == 4 && memcmp(status->header, "head", 4) == 0);
  uint32_t said = RDMA_MSG_HANDLED;
  if (status->message == 0) {
    CHECK_MSG(mismatch(data, status->bytes, status->tag) < 0, "%llu bytes are wrong", (unsigned long long)status->bytes);
  } else if (s->to != NULL) {
    said = s->later ? RDMA_MSG_LATER : RDMA_MSG_HANDLED;
    if (!s->later) receive_content(mgr, s, status->message);
  }
  atomic_fetch_add(&s->runs, 1);
  return said;
}

static rdma_msg_request_t active(rdma_mgr_t *mgr, rdma_peer_t to, uint64_t tag, const void *data, size_t n, uint32_t mode) {
  rdma_msg_options_t options = {.struct_size = sizeof options, .mode = mode, .header = "head", .header_len = 4};
  rdma_msg_request_t r = 77;
  CHECK_OK(rdma_msg_am_isend(mgr, to, 77, tag, data, n, &options, &r));
  return r;
}

static void handlers(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha"), self = number_of(p.b, "beta");
  static const size_t lens[] = {0, 8, 3000, 300000};
  static seen s;
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    for (int own = 0; own < 2; own++) {
      for (int how = 0; how < 4; how++) { /* before the handler; at once; later; not at all */
        size_t n = lens[i];
        char *from = scratch(n + 1), *to = scratch(n + 1);
        rdma_mgr_t *sender = own ? p.b : p.a;
        uint64_t tag = i * 10 + (uint64_t)how;
        s = (seen){.to = how < 3 ? to : NULL, .later = how == 2};
        fill(from, n, tag);
        rdma_msg_request_t r = 0;
        uint32_t mode = how == 1 ? RDMA_MSG_SYNCHRONOUS : RDMA_MSG_STANDARD;
        if (how == 0) r = active(sender, own ? self : to_b, tag, from, n, mode);
        if (how == 0) pump_for(20);
        CHECK_OK(rdma_msg_handler(p.b, 77, on_active, &s));
        if (how != 0) r = active(sender, own ? self : to_b, tag, from, n, mode);
        CHECK(count_reached(&s.runs, 1, 30000));
        CHECK_INT(own ? self : to_a, s.peer);
        CHECK_INT(tag, s.tag);
        CHECK_INT(n, s.bytes);
        if (s.message != 0 && how < 3) {
          if (how == 2) receive_content(p.b, &s, s.message);
          CHECK(count_reached(&s.received, 1, 30000));
          CHECK(mismatch(to, n, tag) < 0);
        }
        if (n == 300000) CHECK(s.message != 0);
        if (r != 0) CHECK_INT(RDMA_OK, end_of(sender, r, NULL).code);
        if (s.message != 0) CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_imrecv(p.b, s.message, to, n, NULL, NULL, NULL));
        CHECK_OK(rdma_msg_handler(p.b, 77, NULL, NULL));
      }
    }
  }
  /* Receives have nothing to do with them. */
  char byte = 0;
  rdma_msg_status_t st = {.struct_size = sizeof st};
  rdma_msg_request_t r = active(p.a, to_b, 1, "x", 1, RDMA_MSG_STANDARD);
  pump_for(20);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_probe(p.b, RDMA_PEER_ANY, 77, 0, 0, false, 0, &st));
  CHECK_OK(rdma_msg_irecv(p.b, RDMA_PEER_ANY, 77, 0, 0, &byte, 1, NULL, NULL, &r));
  CHECK(r != 0);
  CHECK_OK(rdma_msg_cancel(p.b, r));
  CHECK_INT(RDMA_CANCELLED, end_of(p.b, r, NULL).code);
}

/* Those of one sender come in order, also those that waited, and a flood of them is held back. */
static void handlers_in_order(void) {
  enum { N = 20000 };
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta");
  static seen s;
  static rdma_msg_request_t r[N];
  s = (seen){.in_order = is_manual()};
  static char content[16];
  int waits = 0;
  for (int i = 0; i < N; i++) {
    r[i] = 0;
    CHECK_OK(rdma_msg_am_isend(p.a, to_b, 77, (uint64_t)i, content, 0, NULL, &r[i]));
    waits += r[i] != 0;
  }
  CHECK_MSG(waits > N / 4, "%d of %d wait", waits, N);
  pump_for(50);
  CHECK_OK(rdma_msg_handler(p.b, 77, on_active, &s));
  CHECK(count_reached(&s.runs, N, 60000));
  for (int i = 0; i < N; i++)
    if (r[i] != 0) CHECK_INT(RDMA_OK, end_of(p.a, r[i], NULL).code);
}

/* Many on their way at once, to two handlers, with headers and without: each finds its own, aligned. */
typedef struct many {
  _Atomic int runs;
  uint32_t id;
} many;

static size_t header_of(uint64_t tag) { return tag % 3 == 0 ? 0 : (size_t)(tag * 7 % 200 + 1); }
static size_t content_of(uint64_t tag) { return (size_t)(tag * tag * 131 % (tag % 5 == 0 ? 11000 : 300)); }

static uint32_t on_many(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  many *m = userdata;
  (void)mgr;
  uint64_t tag = status->tag;
  CHECK_INT(m->id, status->comm);
  CHECK_INT(m->id, tag % 2);
  CHECK_INT(content_of(tag), status->bytes);
  CHECK_INT(header_of(tag), status->header_len);
  if (status->message != 0) { /* there was no room for it: it is not taken */
    atomic_fetch_add(&m->runs, 1);
    return RDMA_MSG_HANDLED;
  }
  CHECK(data != NULL && (status->bytes == 0 || (uintptr_t)data % 8 == 0));
  CHECK(status->header_len == 0 || ((uintptr_t)status->header % 8 == 0 && mismatch(status->header, status->header_len, ~tag) < 0));
  CHECK_MSG(mismatch(data, status->bytes, tag) < 0, "the content of %llu is wrong", (unsigned long long)tag);
  atomic_fetch_add(&m->runs, 1);
  return RDMA_MSG_HANDLED;
}

static void handlers_use_memory_again(void) {
  enum { N = 6000, AT_ONCE = 40 };
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta");
  static many two[2];
  for (uint32_t id = 0; id < 2; id++) {
    two[id] = (many){.id = id};
    CHECK_OK(rdma_msg_handler(p.b, id, on_many, &two[id]));
  }
  for (uint64_t tag = 0; tag < N;) {
    rdma_msg_request_t r[AT_ONCE];
    char *from[AT_ONCE], *header[AT_ONCE];
    int n = 0;
    for (; n < AT_ONCE && tag < N; n++, tag++) {
      size_t len = content_of(tag), beside = header_of(tag);
      from[n] = malloc(len + 1);
      header[n] = malloc(beside + 1);
      CHECK(from[n] && header[n]);
      fill(from[n], len, tag);
      fill(header[n], beside, ~tag);
      rdma_msg_options_t options = {.struct_size = sizeof options, .header = header[n], .header_len = beside};
      CHECK_OK(rdma_msg_am_isend(p.a, to_b, (uint32_t)(tag % 2), tag, from[n], len, &options, &r[n]));
    }
    CHECK(count_reached(&two[0].runs, (int)(tag + 1) / 2, 30000));
    CHECK(count_reached(&two[1].runs, (int)tag / 2, 30000));
    for (int i = 0; i < n; i++) {
      if (r[i] != 0) CHECK_INT(RDMA_OK, end_of(p.a, r[i], NULL).code);
      free(from[i]);
      free(header[i]);
    }
  }
}

/* More than a provider has windows for (shm: 16,384 that a peer may read), all met at once. */
static void more_than_there_are_windows(void) {
  enum { N = 40000, BYTES = 24 };
  static rdma_msg_request_t sent[N], received[N];
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  char *from = scratch(BYTES), *to = scratch((size_t)N * BYTES);
  fill(from, BYTES, 5);
  for (int i = 0; i < N; i++) CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, (uint64_t)i, from, BYTES, NULL, &sent[i]));
  pump_for(50);
  for (int i = 0; i < N; i++)
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, (uint64_t)i, EXACT, to + (size_t)i * BYTES, BYTES, NULL, NULL, &received[i]));
  for (int i = 0; i < N; i++) {
    if (received[i] != 0) CHECK_INT(RDMA_OK, end_of(p.b, received[i], NULL).code);
    CHECK_INT(-1, mismatch(to + (size_t)i * BYTES, BYTES, 5));
  }
  for (int i = 0; i < N; i++)
    if (sent[i] != 0) CHECK_INT(RDMA_OK, end_of(p.a, sent[i], NULL).code);
}

static void prepared_operations(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  static const size_t lens[] = {8, 200000};
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    size_t n = lens[i];
    char *from = scratch(n), *to = scratch(n);
    rdma_msg_options_t options = {.struct_size = sizeof options, .header = "again", .header_len = 5};
    rdma_msg_persistent_t send = 0, recv = 0;
    CHECK_OK(rdma_msg_send_init(p.a, to_b, COMM, 1, from, n, &options, &send));
    CHECK_OK(rdma_msg_recv_init(p.b, to_a, COMM, 1, EXACT, to, n, NULL, &recv));
    CHECK(send != 0 && recv != 0);
    for (uint64_t round = 0; round < 20; round++) {
      rdma_msg_status_t st = {.struct_size = sizeof st};
      rdma_msg_request_t s = 77, r = 77;
      fill(from, n, round);
      if (round % 2) CHECK_OK(rdma_msg_start(p.b, recv, &st, &r));
      CHECK_OK(rdma_msg_start(p.a, send, NULL, &s));
      if (round % 2 == 0) CHECK_OK(rdma_msg_start(p.b, recv, &st, &r));
      st = end_of(p.b, r, &st);
      CHECK_INT(RDMA_OK, st.code);
      CHECK(st.header_len == 5 && memcmp(st.header, "again", 5) == 0);
      CHECK(mismatch(to, n, round) < 0);
      if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
    }
    CHECK_OK(rdma_msg_persistent_free(p.a, send));
    CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_start(p.a, send, NULL, NULL));
    CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_persistent_free(p.a, send));
    CHECK_OK(rdma_msg_persistent_free(p.b, recv));
  }
}

static bool detached(void *arg) {
  rdma_code_t code = rdma_msg_detach(arg, 0);
  CHECK(code == RDMA_OK || code == RDMA_DEADLINE_EXCEEDED);
  return code == RDMA_OK;
}

/* The memory is the application's when the call returns; the bound holds; detach waits for all. */
static void buffered_mode(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha"), self = number_of(p.a, "alpha");
  rdma_msg_options_t options = {.struct_size = sizeof options, .mode = RDMA_MSG_BUFFERED};
  static const size_t lens[] = {0, 8, 5000, 300000};
  char *from = scratch(300000), *to = scratch(300000);
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_msg_isend(p.a, to_b, COMM, 1, from, 8, &options, NULL));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_msg_detach(p.a, 0));
  CHECK_OK(rdma_msg_attach(p.a, 1000000));
  CHECK_BAD(RDMA_ALREADY_EXISTS, rdma_msg_attach(p.a, 5));
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    for (int own = 0; own < 2; own++) {
      size_t n = lens[i];
      rdma_msg_request_t r = 77;
      rdma_msg_status_t st = {.struct_size = sizeof st};
      fill(from, n, i);
      CHECK_OK(rdma_msg_isend(p.a, own ? self : to_b, COMM, 1, from, n, &options, &r));
      CHECK_INT(0, r);
      memset(from, 0, n);
      if (own) CHECK_OK(rdma_msg_send(p.a, self, COMM, 2, from, n, &options));
      rdma_mgr_t *mgr = own ? p.a : p.b;
      CHECK_OK(rdma_msg_irecv(mgr, own ? self : to_a, COMM, 1, EXACT, to, n, NULL, &st, &r));
      CHECK_INT(RDMA_OK, end_of(mgr, r, &st).code);
      CHECK(mismatch(to, n, i) < 0);
    }
  }
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    rdma_msg_request_t r;
    rdma_msg_status_t st = {.struct_size = sizeof st};
    CHECK_OK(rdma_msg_irecv(p.a, self, COMM, 2, EXACT, to, lens[i], NULL, &st, &r));
    CHECK_INT(RDMA_OK, end_of(p.a, r, &st).code);
  }
  /* More than fits. */
  CHECK(pump_until(detached, p.a, 30000));
  CHECK_OK(rdma_msg_attach(p.a, 1000000));
  rdma_code_t code = RDMA_OK;
  int sent = 0;
  while (sent < 10 && (code = rdma_msg_isend(p.a, to_b, COMM, 3, from, 300000, &options, NULL)) == RDMA_OK) sent++;
  CHECK_INT(RDMA_RESOURCE_EXHAUSTED, code);
  CHECK_INT(3, sent);
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_msg_detach(p.a, 10));
  for (int i = 0; i < sent; i++) {
    rdma_msg_request_t r;
    rdma_msg_status_t st = {.struct_size = sizeof st};
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 3, EXACT, to, 300000, NULL, &st, &r));
    CHECK_INT(RDMA_OK, end_of(p.b, r, &st).code);
  }
  CHECK(pump_until(detached, p.a, 30000));
}

static _Atomic int rooms;
static rdma_code_t room_code;
static uint64_t room_bytes;
static void on_room(rdma_code_t code, uint64_t bytes, void *userdata) {
  CHECK(userdata == &rooms);
  room_code = code;
  room_bytes = bytes;
  atomic_fetch_add(&rooms, 1);
}

static void room_is_told(void) {
  enum { N = 8000 };
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha"), self = number_of(p.a, "alpha");
  static rdma_msg_request_t s[N];
  static char bytes[200], got[200];
  rooms = 0;
  CHECK_OK(rdma_msg_on_room(p.a, self, 1000, on_room, &rooms));
  CHECK(count_reached(&rooms, 1, 30000));
  CHECK_OK(rdma_msg_on_room(p.a, to_b, 1 << 20, on_room, &rooms));
  CHECK(count_reached(&rooms, 2, 30000));
  CHECK_INT(RDMA_OK, room_code);
  /* All of the window is never free again once something was sent, since the peer says so in steps. */
  rdma_msg_request_t little;
  CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 1, EXACT, got, 8, NULL, NULL, &little));
  rdma_msg_request_t sent = 0;
  CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, bytes, 8, NULL, &sent));
  CHECK_INT(RDMA_OK, end_of(p.b, little, NULL).code);
  if (sent != 0) CHECK_INT(RDMA_OK, end_of(p.a, sent, NULL).code);
  CHECK_OK(rdma_msg_on_room(p.a, to_b, 1 << 20, on_room, &rooms));
  CHECK(count_reached(&rooms, 3, 30000));
  CHECK(room_code == RDMA_OK && room_bytes >= 786432);
  rooms = 2;
  /* On a busy machine the last of them waits for longer than the manager's deadline. */
  rdma_msg_options_t patient = {.struct_size = sizeof patient, .timeout_ms = RDMA_MSG_FOREVER};
  for (int i = 0; i < N; i++) CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 1, bytes, sizeof bytes, &patient, &s[i]));
  CHECK_OK(rdma_msg_on_room(p.a, to_b, 100000, on_room, &rooms));
  pump_for(50);
  if (env.protocol == RDMA_PROTOCOL_AUTO || env.protocol == RDMA_PROTOCOL_EAGER) CHECK_INT(2, rooms);
  for (int i = 0; i < N; i++) {
    rdma_msg_request_t r;
    rdma_msg_status_t st = {.struct_size = sizeof st};
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, 1, EXACT, got, sizeof got, NULL, &st, &r));
    CHECK_INT(RDMA_OK, end_of(p.b, r, &st).code);
  }
  CHECK(count_reached(&rooms, 3, 30000));
  CHECK_INT(RDMA_OK, room_code);
  CHECK(room_bytes >= 100000);
  for (int i = 0; i < N; i++)
    if (s[i] != 0) CHECK_INT(RDMA_OK, end_of(p.a, s[i], NULL).code);
  /* A manager that ends tells, too. */
  rdma_mgr_t *mgr = mgr_new("alone", NULL);
  CHECK_OK(rdma_mgr_add_peer(mgr, "nobody", "127.0.0.1:9"));
  CHECK_OK(rdma_msg_on_room(mgr, number_of(mgr, "nobody"), 8, on_room, &rooms));
  mgr_end(mgr);
  CHECK_INT(4, rooms);
  CHECK_INT(RDMA_CANCELLED, room_code);
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_on_room(p.a, to_b, 0, on_room, &rooms));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_on_room(p.a, to_b, (1 << 20) + 1, on_room, &rooms));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_on_room(p.a, to_b, 1, NULL, &rooms));
}

/* A receive that comes after its message, when everybody sleeps: it must not wait for the next timer, up to half a second. Most of several:
   a busy machine keeps one or the other. */
static void a_late_receive_wakes_who_sleeps(void) {
  enum { ROUNDS = 11, BYTES = 300000 };
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  char *from = scratch(BYTES), *to = scratch(BYTES);
  int quick = 0;
  for (uint64_t i = 0; i < ROUNDS; i++) {
    seen s = {.bytes = BYTES};
    rdma_msg_options_t options = {.struct_size = sizeof options, .done = on_received, .userdata = &s};
    rdma_msg_request_t sent, r;
    rdma_msg_status_t st = {.struct_size = sizeof st};
    fill(from, BYTES, i);
    CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, i, from, BYTES, NULL, &sent));
    pump_for(60);
    int64_t begun = now_ms();
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, i, EXACT, to, BYTES, &options, &st, &r));
    if (r == 0) on_received(&st, &s);
    CHECK(count_reached(&s.received, 1, 30000));
    quick += now_ms() - begun < 100;
    CHECK(mismatch(to, BYTES, i) < 0);
    if (sent != 0) CHECK_INT(RDMA_OK, end_of(p.a, sent, NULL).code);
  }
  CHECK_MSG(quick > ROUNDS / 2, "%d of %d late receives ended within 100 ms", quick, ROUNDS);
}

/* A peer on tcp that was quiet for long is asked less often while messages come and go on shm, but it is asked. */
static void everywhere(rdma_mgr_options_t *options) { options->provider = NULL; }
static void near_by(rdma_mgr_options_t *options) { options->provider = "shm"; }
static void far_away(rdma_mgr_options_t *options) { options->provider = "tcp"; }
/* Without a pause: nothing here sleeps. */
static void one_way(rdma_mgr_t *from, rdma_mgr_t *to, const char *name, const char *of) {
  char byte = 1;
  size_t ends = 0;
  rdma_msg_request_t sent = 0, r = 0;
  rdma_msg_status_t st = {.struct_size = sizeof st};
  CHECK_OK(rdma_msg_irecv(to, number_of(to, of), COMM, 1, EXACT, &byte, 1, NULL, &st, &r));
  CHECK_OK(rdma_msg_isend(from, number_of(from, name), COMM, 1, &byte, 1, NULL, &sent));
  while (r != 0 || sent != 0) {
    if (r != 0) CHECK_OK(rdma_msg_test(to, &r, 1, RDMA_MSG_ALL, NULL, &st, &ends));
    if (sent != 0) CHECK_OK(rdma_msg_test(from, &sent, 1, RDMA_MSG_ALL, NULL, &st, &ends));
  }
}
static void a_quiet_peer_on_tcp_is_heard_beside_a_lively_one_on_shm(void) {
  rdma_mgr_t *a = mgr_new("middle", everywhere), *b = mgr_new("near", near_by), *c = mgr_new("far", far_away);
  char address[256], byte = 0;
  mgr_listen(a, address);
  CHECK_OK(rdma_mgr_add_peer(b, "middle", address));
  CHECK_OK(rdma_mgr_add_peer(c, "middle", address));
  mgr_listen(b, address);
  CHECK_OK(rdma_mgr_add_peer(a, "near", address));
  drive(c);
  for (uint64_t i = 0; i < 20; i++) {
    rdma_msg_request_t r = 0, sent = 0;
    rdma_msg_status_t st = {.struct_size = sizeof st};
    CHECK_OK(rdma_msg_irecv(a, RDMA_PEER_ANY, COMM, 1000 + i, EXACT, &byte, 1, NULL, &st, &r));
    if (i > 0) /* it is quiet by then */
      for (int k = 0; k < 500; k++) one_way(a, b, "near", "middle"), one_way(b, a, "middle", "near");
    CHECK_OK(rdma_msg_isend(c, number_of(c, "middle"), COMM, 1000 + i, "", 0, NULL, &sent));
    size_t ends = 0;
    for (int64_t end = now_ms() + 20000; r != 0;) {
      CHECK_MSG(now_ms() < end, "message %llu was not heard", (unsigned long long)i);
      if (i > 0) one_way(a, b, "near", "middle");
      CHECK_OK(rdma_msg_test(a, &r, 1, RDMA_MSG_ALL, NULL, &st, &ends));
    }
    if (sent != 0) CHECK_INT(RDMA_OK, end_of(c, sent, NULL).code);
  }
  drive_stop(c);
  mgr_end(a);
  mgr_end(b);
  mgr_end(c);
}

static void bad_arguments(void) {
  pair p = pair_new(NULL);
  rdma_msg_persistent_t prepared = 0;
  char byte = 0;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_handler(NULL, 1, on_active, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_am_isend(p.a, RDMA_PEER_ANY, 1, 1, &byte, 1, NULL, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_send_init(p.a, RDMA_PEER_ANY, 1, 1, &byte, 1, NULL, &prepared));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_send_init(p.a, number_of(p.a, "beta"), 1, 1, &byte, 1, NULL, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_recv_init(p.a, RDMA_PEER_ANY, 1, 1, EXACT, NULL, 1, NULL, &prepared));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_start(p.a, 0, NULL, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_attach(p.a, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_detach(p.a, -7));
}

static const test_case cases[] = {
    CASE(handlers), CASE(handlers_in_order), CASE(handlers_use_memory_again), CASE(prepared_operations), SLOW(more_than_there_are_windows, 120), CASE(buffered_mode), SLOW(room_is_told, 240),
    CASE(a_late_receive_wakes_who_sleeps), CASE(a_quiet_peer_on_tcp_is_heard_beside_a_lively_one_on_shm),
    CASE(bad_arguments),
};
TEST_MAIN(cases)
