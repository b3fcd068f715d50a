/* Pairs and buffers: Gloo's transport. Connecting, slots, writes with notices, waits, ends. */
#include "harness.h"
#include <pthread.h>

typedef struct ends { /* the two ends of a pair */
  rdma_mgr_t *a, *b;
  rdma_pair_t pa, pb;
} ends;

static size_t address_of(rdma_mgr_t *mgr, rdma_pair_t pair, uint8_t address[RDMA_PAIR_ADDRESS_MAX]) {
  size_t n = 0;
  CHECK_OK(rdma_pair_address(mgr, pair, address, RDMA_PAIR_ADDRESS_MAX, &n));
  CHECK(n > 0 && n <= RDMA_PAIR_ADDRESS_MAX);
  return n;
}

/* Begins to connect a pair to another, or with a timeout does. */
static rdma_code_t join(rdma_mgr_t *mgr, rdma_pair_t pair, rdma_mgr_t *other, rdma_pair_t to, int64_t ms) {
  uint8_t address[RDMA_PAIR_ADDRESS_MAX];
  size_t n = address_of(other, to, address);
  return rdma_pair_connect(mgr, pair, address, n, ms);
}

static rdma_pair_info_t info_of(rdma_mgr_t *mgr, rdma_pair_t pair) {
  rdma_pair_info_t info = {.struct_size = sizeof info};
  CHECK_OK(rdma_pair_info(mgr, pair, &info));
  return info;
}

static bool connected(void *arg) {
  ends *e = arg;
  return info_of(e->a, e->pa).state == RDMA_PAIR_CONNECTED && info_of(e->b, e->pb).state == RDMA_PAIR_CONNECTED;
}

static ends created(const pair *p) {
  ends e = {p->a, p->b, 0, 0};
  CHECK_OK(rdma_pair_create(e.a, 1, 0, &e.pa));
  CHECK_OK(rdma_pair_create(e.b, 0, 0, &e.pb));
  CHECK(e.pa != 0 && e.pb != 0);
  return e;
}

static ends connect_both(const pair *p) {
  ends e = created(p);
  CHECK_OK(join(e.a, e.pa, e.b, e.pb, 0));
  CHECK_OK(join(e.b, e.pb, e.a, e.pa, 0));
  CHECK(pump_until(connected, &e, 20000));
  return e;
}

static rdma_buffer_t out_of(rdma_mgr_t *mgr, rdma_pair_t pair, uint64_t slot, void *memory, size_t n) {
  rdma_buffer_t buffer = 0;
  CHECK_OK(rdma_buffer_create_send(mgr, pair, slot, memory, n, NULL, NULL, &buffer));
  return buffer;
}

static rdma_buffer_t into(rdma_mgr_t *mgr, rdma_pair_t pair, uint64_t slot, void *memory, size_t n) {
  rdma_buffer_t buffer = 0;
  CHECK_OK(rdma_buffer_create_recv(mgr, pair, slot, memory, n, NULL, NULL, &buffer));
  return buffer;
}

typedef struct wanted {
  rdma_mgr_t *mgr;
  rdma_buffer_t buffer;
  uint64_t sent, received;
} wanted;

static bool has(void *arg) {
  wanted *w = arg;
  uint64_t sent = 0, received = 0;
  CHECK_OK(rdma_buffer_test(w->mgr, w->buffer, &sent, &received));
  return sent >= w->sent && received >= w->received;
}

/* Lets both sides run until so many ends of sends or arrivals can be taken, and takes one. */
static rdma_code_t sent(rdma_mgr_t *mgr, rdma_buffer_t buffer) {
  wanted w = {mgr, buffer, 1, 0};
  CHECK(pump_until(has, &w, 30000));
  return rdma_buffer_wait_send(mgr, buffer, 30000);
}

static void arrived(rdma_mgr_t *mgr, rdma_buffer_t buffer) {
  wanted w = {mgr, buffer, 0, 1};
  CHECK(pump_until(has, &w, 30000));
  CHECK_OK(rdma_buffer_wait_recv(mgr, buffer, 30000));
}

/* pair.cc: connect. Either end may begin, again is nothing, and the state can be seen. */
static void connect_in_any_order(void) {
  pair p = pair_new(NULL);
  for (int first = 0; first < 2; first++) {
    ends e = created(&p);
    CHECK_INT(RDMA_PAIR_CREATED, info_of(e.a, e.pa).state);
    CHECK_INT(1, info_of(e.a, e.pa).rank);
    CHECK_OK(first ? join(e.b, e.pb, e.a, e.pa, 0) : join(e.a, e.pa, e.b, e.pb, 0));
    pump_for(30);
    CHECK_INT(first ? RDMA_PAIR_CREATED : RDMA_PAIR_CONNECTING, info_of(e.a, e.pa).state);
    CHECK_INT(first ? RDMA_PAIR_CONNECTING : RDMA_PAIR_CREATED, info_of(e.b, e.pb).state);
    CHECK_OK(first ? join(e.a, e.pa, e.b, e.pb, 0) : join(e.b, e.pb, e.a, e.pa, 0));
    CHECK(pump_until(connected, &e, 20000));
    CHECK_OK(join(e.a, e.pa, e.b, e.pb, 1000));
    rdma_peer_t beta = 0;
    CHECK_OK(rdma_peer_lookup(e.a, "beta", &beta));
    CHECK_INT(beta, info_of(e.a, e.pa).peer);
    ends other = created(&p);
    CHECK_BAD(RDMA_FAILED_PRECONDITION, join(e.a, e.pa, other.b, other.pb, 0));
    CHECK_OK(rdma_pair_close(e.a, e.pa));
    CHECK_OK(rdma_pair_close(e.b, e.pb));
    CHECK_BAD(RDMA_NOT_FOUND, rdma_pair_close(e.b, e.pb));
  }
}

/* An end that never calls: the other's connect says so, and goes on. */
static void connect_times_out(void) {
  pair p = pair_new(NULL);
  ends e = created(&p);
  char text[600];
  drive(p.b);
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, join(e.a, e.pa, e.b, e.pb, 200));
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "rank 1");
  CHECK_HAS(text, "beta");
  CHECK_INT(RDMA_PAIR_CONNECTING, info_of(e.a, e.pa).state);
  CHECK_OK(join(e.b, e.pb, e.a, e.pa, 0));
  CHECK_OK(join(e.a, e.pa, e.b, e.pb, 20000));
  drive_stop(p.b);
}

/* address.cc: bytes that are no address, another version, one's own. */
static void addresses(void) {
  pair p = pair_new(NULL);
  ends e = created(&p);
  uint8_t address[RDMA_PAIR_ADDRESS_MAX], one = 0;
  size_t n = address_of(e.b, e.pb, address), need = 0;
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_pair_address(e.b, e.pb, &one, 1, &need));
  CHECK_INT(n, need);
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_pair_address(e.b, e.pb, NULL, 0, &need));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_address(e.b, e.pb, NULL, 0, NULL));
  for (size_t i = 0; i < n; i++) CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_connect(e.a, e.pa, address, i, 0));
  for (size_t i = 0; i < n; i++) {
    if (i >= 6 && i < 14) continue; /* the token: another pair, which does not exist */
    address[i] ^= 0x40;
    CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_connect(e.a, e.pa, address, n, 0));
    address[i] ^= 0x40;
  }
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_connect(e.b, e.pb, address, n, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_connect(e.a, e.pa, NULL, n, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_connect(e.a, e.pa, address, n, -5));
  CHECK_INT(RDMA_PAIR_CREATED, info_of(e.a, e.pa).state);
}

static bool is_broken(void *arg) {
  ends *e = arg;
  return info_of(e->a, e->pa).state == RDMA_PAIR_BROKEN;
}

/* A pair that is not there, or no more: whoever connects to it hears that. */
static void connect_to_nobody(void) {
  pair p = pair_new(NULL);
  ends e = created(&p);
  uint8_t address[RDMA_PAIR_ADDRESS_MAX];
  size_t n = address_of(e.b, e.pb, address);
  CHECK_OK(rdma_pair_close(e.b, e.pb));
  CHECK_OK(rdma_pair_connect(e.a, e.pa, address, n, 0));
  CHECK(pump_until(is_broken, &e, 20000));
  CHECK_INT(RDMA_UNAVAILABLE, info_of(e.a, e.pa).code);
  rdma_buffer_t buffer;
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_buffer_create_send(e.a, e.pa, 1, NULL, 0, NULL, NULL, &buffer));
}

static const size_t sizes[] = {1, 7, 8, 100, 1000, 4096, 4097, 20000, 65536, 100001, 1 << 20, 9000001};

/* buffer.cc: send(offset, length, remote offset). The content is where it should be, and nothing else changes. */
static void writes_of_all_sizes(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    size_t n = sizes[i], all = n + 64;
    char *from = scratch(all), *to = scratch(all);
    fill(from + 16, n, i);
    memset(to, 0x5a, all);
    rdma_buffer_t s = out_of(e.a, e.pa, i, from, all), r = into(e.b, e.pb, i, to, all);
    CHECK_OK(rdma_buffer_send(e.a, s, 16, n, 32));
    arrived(e.b, r);
    CHECK_INT(-1, mismatch(to + 32, n, i));
    for (size_t k = 0; k < 32; k++) CHECK(to[k] == 0x5a && to[all - 32 + k] == 0x5a);
    CHECK_OK(sent(e.a, s));
    CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_wait_send(e.a, s, 1));
    CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_buffer_wait_recv(e.b, r, 1));
    CHECK_OK(rdma_buffer_destroy(e.a, s));
    CHECK_OK(rdma_buffer_destroy(e.b, r));
    CHECK_BAD(RDMA_NOT_FOUND, rdma_buffer_destroy(e.b, r));
  }
  CHECK_INT(0, info_of(e.a, e.pa).buffers);
}

/* A send before the other end has made its buffer, or before the pair is connected, waits for it. */
static void sends_wait_for_the_slot(void) {
  pair p = pair_new(NULL);
  ends e = created(&p);
  char *from = scratch(4000), *to = scratch(4000);
  fill(from, 4000, 3);
  rdma_buffer_t s = out_of(e.a, e.pa, 9, from, 4000);
  for (int i = 0; i < 4; i++) CHECK_OK(rdma_buffer_send(e.a, s, 1000 * (size_t)i, 1000, 1000 * (uint64_t)i));
  CHECK_OK(join(e.b, e.pb, e.a, e.pa, 0));
  CHECK_OK(join(e.a, e.pa, e.b, e.pb, 0));
  CHECK(pump_until(connected, &e, 20000));
  pump_for(30);
  CHECK_INT(4, info_of(e.a, e.pa).sends);
  rdma_buffer_t r = into(e.b, e.pb, 9, to, 4000);
  for (int i = 0; i < 4; i++) arrived(e.b, r);
  CHECK_INT(-1, mismatch(to, 4000, 3));
  for (int i = 0; i < 4; i++) CHECK_OK(sent(e.a, s));
}

/* The same with nobody who makes it: the send's own deadline. */
static void a_slot_that_never_opens(void) {
  pair p = pair_new(NULL);
  ends e = {p.a, p.b, 0, 0};
  CHECK_OK(rdma_pair_create(e.a, 1, 150, &e.pa));
  CHECK_OK(rdma_pair_create(e.b, 0, 150, &e.pb));
  CHECK_OK(join(e.a, e.pa, e.b, e.pb, 0));
  CHECK_OK(join(e.b, e.pb, e.a, e.pa, 0));
  CHECK(pump_until(connected, &e, 20000));
  char content[8] = "slot", text[600];
  rdma_buffer_t s = out_of(e.a, e.pa, 77, content, 8);
  CHECK_OK(rdma_buffer_send(e.a, s, 0, 8, 0));
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, sent(e.a, s));
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "slot 77 of rank 1");
  CHECK_INT(RDMA_PAIR_CONNECTED, info_of(e.a, e.pa).state);
}

/* Any number of writes queued: each is counted, in order, and what comes last is there last. */
static void many_writes(void) {
  enum { N = 5000 };
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  static uint64_t from[N], to[N];
  for (uint64_t i = 0; i < N; i++) from[i] = i * 0x9e3779b97f4a7c15;
  rdma_buffer_t s = out_of(e.a, e.pa, 1, from, sizeof from), r = into(e.b, e.pb, 1, to, sizeof to);
  for (size_t i = 0; i < N; i++) CHECK_OK(rdma_buffer_send(e.a, s, 8 * i, 8, 8 * i));
  wanted all = {e.b, r, 0, N};
  CHECK(pump_until(has, &all, 30000));
  CHECK(memcmp(from, to, sizeof to) == 0);
  for (size_t i = 0; i < N; i++) CHECK_OK(rdma_buffer_wait_recv(e.b, r, 1));
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_buffer_wait_recv(e.b, r, 1));
  all = (wanted){e.a, s, N, 0};
  CHECK(pump_until(has, &all, 30000));
  for (size_t i = 0; i < N; i++) CHECK_OK(rdma_buffer_wait_send(e.a, s, 1));
}

/* A notice of no bytes comes after the content of what was sent before it, on whatever slot. */
static bool nothing_is_read(void *arg) {
  ends *e = arg;
  rdma_pair_info_t info = info_of(e->a, e->pa);
  CHECK(info.reading <= info.sends);
  return info.reading == 0;
}

/* What Gloo's algorithms rely on: memory that a send does not read any more can be written over, before the send has ended. */
static void memory_is_left_before_the_end(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  static uint8_t from[100000], to[sizeof from];
  rdma_buffer_t s = out_of(e.a, e.pa, 1, from, sizeof from), r = into(e.b, e.pb, 1, to, sizeof to);
  CHECK_OK(rdma_buffer_send(e.a, s, 0, 8, 0)); /* the slot is open from here on */
  CHECK_INT(1, info_of(e.a, e.pa).sends >= info_of(e.a, e.pa).reading);
  CHECK_OK(sent(e.a, s));
  arrived(e.b, r);
  const size_t sizes[] = {0, 100, 8192, 20000, sizeof from};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    memset(from, (int)i + 1, sizeof from);
    CHECK_OK(rdma_buffer_send(e.a, s, 0, sizes[i], 0));
    /* Up to 64 KiB the call itself gives to the socket. */
    if (is_manual() && is_provider("tcp") && sizes[i] < sizeof from) {
      CHECK_INT(1, info_of(e.a, e.pa).sends);
      CHECK_INT(0, info_of(e.a, e.pa).reading);
    }
    CHECK(pump_until(nothing_is_read, &e, 30000));
    memset(from, 0xEE, sizeof from);
    CHECK_OK(sent(e.a, s));
    arrived(e.b, r);
    for (size_t k = 0; k < sizes[i]; k++) CHECK_INT(i + 1, to[k]);
    info_of(e.b, e.pb); /* ThreadSanitizer sees no order through shared memory: these reads come before the next content */
  }
  CHECK_INT(0, info_of(e.a, e.pa).sends);
}

static void notices_come_after_content(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  size_t n = 3 * MIB;
  char *from = scratch(n), *to = scratch(n);
  rdma_buffer_t s = out_of(e.a, e.pa, 1, from, n), r = into(e.b, e.pb, 1, to, n);
  rdma_buffer_t ring = out_of(e.a, e.pa, 2, NULL, 0), bell = into(e.b, e.pb, 2, NULL, 0);
  for (uint64_t i = 0; i < 20; i++) {
    fill(from, n, i);
    CHECK_OK(rdma_buffer_send(e.a, s, 0, n, 0));
    CHECK_OK(rdma_buffer_send(e.a, ring, 0, 0, 0));
    arrived(e.b, bell);
    CHECK_INT(-1, mismatch(to, n, i));
    arrived(e.b, r);
    CHECK_OK(sent(e.a, s));
    CHECK_OK(sent(e.a, ring));
  }
}

/* Thousands of slots of one pair. */
static void thousands_of_slots(void) {
  enum { N = 3000 };
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  static uint32_t from[N], to[N];
  static rdma_buffer_t s[N], r[N];
  for (uint32_t i = 0; i < N; i++) {
    from[i] = i + 1;
    s[i] = out_of(e.a, e.pa, i, &from[i], 4);
    r[i] = into(e.b, e.pb, i, &to[i], 4);
  }
  for (uint32_t i = 0; i < N; i++) CHECK_OK(rdma_buffer_send(e.a, s[N - 1 - i], 0, 4, 0));
  for (uint32_t i = 0; i < N; i++) arrived(e.b, r[i]);
  CHECK(memcmp(from, to, sizeof to) == 0);
}

/* Bounds, here and at the other end. */
static void bounds(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  char from[64] = "", to[32] = "";
  rdma_buffer_t s = out_of(e.a, e.pa, 1, from, sizeof from);
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_buffer_send(e.a, s, 1, 64, 0));
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_buffer_send(e.a, s, SIZE_MAX, 2, 0));
  /* Not known yet: the end of the send says it. */
  CHECK_OK(rdma_buffer_send(e.a, s, 0, 33, 0));
  rdma_buffer_t r = into(e.b, e.pb, 1, to, sizeof to);
  CHECK_CODE(RDMA_OUT_OF_RANGE, sent(e.a, s));
  /* Known: the call does. */
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_buffer_send(e.a, s, 0, 33, 0));
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_buffer_send(e.a, s, 0, 2, UINT64_MAX));
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_buffer_send(e.a, s, 0, 2, 31));
  CHECK_OK(rdma_buffer_send(e.a, s, 0, 2, 30));
  arrived(e.b, r);
  CHECK_OK(sent(e.a, s));
  rdma_buffer_t second;
  CHECK_BAD(RDMA_ALREADY_EXISTS, rdma_buffer_create_recv(e.b, e.pb, 1, to, 4, NULL, NULL, &second));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_send(e.b, r, 0, 1, 0));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_wait_send(e.b, r, 1));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_wait_recv(e.a, s, 1));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_buffer_create_recv(e.b, e.pb, 2, NULL, 4, NULL, NULL, &second));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_buffer_create_recv(e.b, e.pb, 2, to, 4, NULL, NULL, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_buffer_create_send(e.b, e.pb, 2, to, SIZE_MAX, NULL, NULL, &second));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_buffer_create_send(e.b, 12345, 2, to, 4, NULL, NULL, &second));
}

typedef struct log_of {
  _Atomic int sent, received, broken, failed;
} log_of;

static void on_event(rdma_buffer_t buffer, uint32_t event, rdma_code_t code, const char *message, void *userdata) {
  log_of *l = userdata;
  CHECK(buffer != 0 && message != NULL);
  if (event == RDMA_BUFFER_SENT && code == RDMA_OK) l->sent++;
  if (event == RDMA_BUFFER_SENT && code != RDMA_OK) l->failed++;
  if (event == RDMA_BUFFER_RECEIVED) l->received++;
  if (event == RDMA_BUFFER_BROKEN) l->broken++;
}

static void callbacks(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  log_of here = {0}, there = {0};
  char from[1000], to[1000];
  fill(from, sizeof from, 1);
  rdma_buffer_t s, r;
  CHECK_OK(rdma_buffer_create_send(e.a, e.pa, 1, from, sizeof from, on_event, &here, &s));
  CHECK_OK(rdma_buffer_create_recv(e.b, e.pb, 1, to, sizeof to, on_event, &there, &r));
  for (int i = 0; i < 100; i++) CHECK_OK(rdma_buffer_send(e.a, s, 10 * (size_t)i, 10, 10 * (uint64_t)i));
  CHECK(count_reached(&there.received, 100, 20000));
  CHECK(count_reached(&here.sent, 100, 20000));
  CHECK_INT(-1, mismatch(to, sizeof to, 1));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_wait_send(e.a, s, 1));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_wait_recv(e.b, r, 1));
  /* A send without slot ends with the pair, once; the receive buffer hears of that end, once. */
  rdma_buffer_t waits;
  CHECK_OK(rdma_buffer_create_send(e.a, e.pa, 2, from, 8, on_event, &here, &waits));
  CHECK_OK(rdma_buffer_send(e.a, waits, 0, 8, 0));
  CHECK_OK(rdma_pair_close(e.b, e.pb));
  CHECK(count_reached(&here.failed, 1, 20000));
  pump_for(30);
  CHECK_INT(1, here.failed);
  CHECK_INT(0, there.broken); /* its owner closed it */
  CHECK_INT(100, here.sent);
  CHECK_INT(RDMA_UNAVAILABLE, info_of(e.a, e.pa).code);
}

/* pair.cc: close. What waits at the other end fails, and says why. */
static void the_other_end_closes(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  char here[100], there[100] = {0}, text[600];
  log_of l = {0};
  rdma_buffer_t r = into(e.a, e.pa, 1, here, sizeof here), told;
  CHECK_OK(rdma_buffer_create_recv(e.a, e.pa, 2, here, sizeof here, on_event, &l, &told));
  rdma_buffer_t s = out_of(e.b, e.pb, 1, there, sizeof there);
  CHECK_OK(rdma_buffer_send(e.b, s, 0, 50, 0));
  arrived(e.a, r);
  CHECK_OK(sent(e.b, s));
  CHECK_OK(rdma_pair_close(e.b, e.pb));
  CHECK(count_reached(&l.broken, 1, 20000));
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_buffer_wait_recv(e.a, r, 5000));
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "closed");
  CHECK_INT(RDMA_PAIR_BROKEN, info_of(e.a, e.pa).state);
  CHECK_OK(rdma_pair_close(e.a, e.pa));
  CHECK_INT(1, l.broken);
  /* The connection lives on: another pair of the same managers works. */
  e = connect_both(&p);
  r = into(e.a, e.pa, 1, here, sizeof here);
  s = out_of(e.b, e.pb, 1, there, sizeof there);
  CHECK_OK(rdma_buffer_send(e.b, s, 0, 50, 0));
  arrived(e.a, r);
  CHECK_OK(sent(e.b, s)); /* its memory is on the stack */
}

/* A buffer that is destroyed while the other end writes: nothing is written to it any more; the next one of its slot
 * gets what comes then. */
static void destroyed_while_written(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  size_t n = 8 * MIB;
  char *from = scratch(n), *to = scratch(n);
  memset(from, 1, n);
  rdma_buffer_t s = out_of(e.a, e.pa, 1, from, n);
  drive(p.a);
  for (int round = 0; round < 10; round++) {
    memset(to, 7, n);
    rdma_buffer_t r = into(e.b, e.pb, 1, to, n);
    for (int i = 0; i < 3; i++) CHECK_OK(rdma_buffer_send(e.a, s, 0, n, 0));
    if (round % 2) pump_for(round);
    CHECK_OK(rdma_buffer_destroy(e.b, r));
    memset(to, 9, n);
    pump_for(20);
    for (size_t i = 0; i < n; i++) CHECK_MSG(to[i] == 9, "round %d: byte %zu was written to", round, i);
    /* What was not refused waits for this one, or has gone. */
    rdma_buffer_t next = into(e.b, e.pb, 1, to, n);
    for (int i = 0; i < 3; i++) {
      wanted w = {e.a, s, 1, 0};
      CHECK(pump_until(has, &w, 30000));
      /* It waits while another send of this memory is being copied. */
      rdma_code_t code = rdma_buffer_wait_send(e.a, s, 30000);
      CHECK_MSG(code == RDMA_OK || code == RDMA_PERMISSION_DENIED, "a send ended with %d", code);
    }
    CHECK_INT(RDMA_PAIR_CONNECTED, info_of(e.b, e.pb).state);
    CHECK_OK(rdma_buffer_destroy(e.b, next));
  }
  drive_stop(p.a);
}

/* Several pairs of the same two managers do not disturb each other. */
static void several_pairs(void) {
  enum { N = 20 };
  pair p = pair_new(NULL);
  ends e[N];
  static int from[N], to[N];
  rdma_buffer_t s[N], r[N];
  for (int i = 0; i < N; i++) e[i] = connect_both(&p);
  for (int i = 0; i < N; i++) {
    from[i] = 100 + i;
    s[i] = out_of(e[i].a, e[i].pa, 1, &from[i], sizeof(int));
    r[i] = into(e[i].b, e[i].pb, 1, &to[i], sizeof(int));
  }
  for (int i = N - 1; i >= 0; i--) CHECK_OK(rdma_buffer_send(e[i].a, s[i], 0, sizeof(int), 0));
  for (int i = 0; i < N; i++) {
    arrived(e[i].b, r[i]);
    CHECK_INT(100 + i, to[i]);
    if (i % 2) CHECK_OK(rdma_pair_close(e[i].a, e[i].pa));
  }
  pump_for(20);
  for (int i = 0; i < N; i++) CHECK_INT(i % 2 ? RDMA_PAIR_BROKEN : RDMA_PAIR_CONNECTED, info_of(e[i].b, e[i].pb).state);
}

typedef struct side {
  rdma_mgr_t *mgr;
  rdma_pair_t pair;
  uint8_t *address;
  size_t len;
  int first, rounds;
} side;

/* The loop of Gloo's pairs: connect, then send and wait, on a thread each. */
static void *ping_pong(void *arg) {
  side *me = arg;
  uint64_t mine = 0, theirs = 0;
  CHECK_OK(rdma_pair_connect(me->mgr, me->pair, me->address, me->len, patience(20000)));
  rdma_buffer_t s = out_of(me->mgr, me->pair, 5, &mine, 8), r = into(me->mgr, me->pair, 5, &theirs, 8);
  for (int i = 0; i < me->rounds; i++) {
    if (!me->first) {
      CHECK_OK(rdma_buffer_wait_recv(me->mgr, r, patience(20000)));
      CHECK_INT(i, theirs);
    }
    mine = (uint64_t)i;
    CHECK_OK(rdma_buffer_send(me->mgr, s, 0, 8, 0));
    CHECK_OK(rdma_buffer_wait_send(me->mgr, s, patience(20000)));
    if (me->first) {
      CHECK_OK(rdma_buffer_wait_recv(me->mgr, r, patience(20000)));
      CHECK_INT(i, theirs);
    }
  }
  CHECK_OK(rdma_buffer_destroy(me->mgr, s));
  CHECK_OK(rdma_buffer_destroy(me->mgr, r));
  return NULL;
}

static void two_threads(void) {
  pair p = pair_new(NULL);
  ends e = created(&p);
  static uint8_t a[RDMA_PAIR_ADDRESS_MAX], b[RDMA_PAIR_ADDRESS_MAX];
  side sides[2] = {{e.a, e.pa, b, address_of(e.b, e.pb, b), 1, 3000},
                   {e.b, e.pb, a, address_of(e.a, e.pa, a), 0, 3000}};
  pthread_t other;
  drive(p.a); /* whoever is done first is still to answer */
  drive(p.b);
  CHECK_INT(0, pthread_create(&other, NULL, ping_pong, &sides[1]));
  ping_pong(&sides[0]);
  CHECK_INT(0, pthread_join(other, NULL));
  drive_stop(p.a);
  drive_stop(p.b);
}

static void *waits_for_ever(void *arg) {
  wanted *w = arg;
  rdma_code_t code = rdma_buffer_wait_recv(w->mgr, w->buffer, RDMA_MSG_FOREVER);
  CHECK_MSG(code == RDMA_UNAVAILABLE || code == RDMA_CANCELLED, "the wait ended with %d", code);
  return NULL;
}

/* A wait ends with the other end's manager, and with this one. */
static void a_wait_ends_with_the_manager(void) {
  for (int own = 0; own < 2; own++) {
    pair p = pair_new(NULL);
    ends e = connect_both(&p);
    char to[8];
    wanted w = {e.b, into(e.b, e.pb, 1, to, 8), 0, 0};
    pthread_t waiter;
    CHECK_INT(0, pthread_create(&waiter, NULL, waits_for_ever, &w));
    usleep(20000);
    mgr_end(own ? p.b : p.a);
    CHECK_INT(0, pthread_join(waiter, NULL));
    mgr_end(own ? p.a : p.b);
  }
}

/* rdma_mem_unregister of memory in which a buffer lies: the pair ends, and nothing writes there. */
static void unregistered_memory(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  size_t n = 1 * MIB;
  char *to = scratch(n), *from = scratch(n);
  memset(from, 1, n);
  CHECK_OK(rdma_mem_register(e.b, to, n, RDMA_DEVICE_HOST));
  rdma_buffer_t r = into(e.b, e.pb, 1, to, n), s = out_of(e.a, e.pa, 1, from, n);
  CHECK_OK(rdma_buffer_send(e.a, s, 0, n, 0));
  arrived(e.b, r);
  drive(p.a);
  CHECK_OK(rdma_mem_unregister(e.b, to));
  memset(to, 9, n);
  (void)rdma_buffer_send(e.a, s, 0, n, 0);
  pump_for(20);
  for (size_t i = 0; i < n; i++) CHECK(to[i] == 9);
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_wait_recv(e.b, r, 1000));
  drive_stop(p.a);
}

static void with_checksums(rdma_mgr_options_t *options) { options->checksum = 1; }

static void checksums(void) {
  pair p = pair_new(with_checksums);
  ends e = connect_both(&p);
  size_t n = 2 * MIB;
  char *from = scratch(n), *to = scratch(n);
  fill(from, n, 5);
  rdma_buffer_t s = out_of(e.a, e.pa, 1, from, n), r = into(e.b, e.pb, 1, to, n);
  rdma_buffer_t ring = out_of(e.a, e.pa, 2, NULL, 0), bell = into(e.b, e.pb, 2, NULL, 0);
  CHECK_OK(rdma_buffer_send(e.a, s, 0, n, 0));
  for (size_t i = 0; i < 100; i++) CHECK_OK(rdma_buffer_send(e.a, s, 100 * i, 100, 100 * i));
  CHECK_OK(rdma_buffer_send(e.a, ring, 0, 0, 0));
  arrived(e.b, bell);
  for (size_t i = 0; i < 101; i++) arrived(e.b, r);
  CHECK_INT(-1, mismatch(to, n, 5));
  for (size_t i = 0; i < 101; i++) CHECK_OK(sent(e.a, s));
  CHECK_OK(sent(e.a, ring));
}

/* Who waits for a pair that is closed before it has connected hears that. */
static void closed_before_it_connected(void) {
  pair p = pair_new(NULL);
  ends e = created(&p);
  CHECK_OK(join(e.a, e.pa, e.b, e.pb, 0));
  pump_for(50);
  CHECK_OK(rdma_pair_close(e.b, e.pb));
  CHECK(pump_until(is_broken, &e, 20000));
  CHECK_INT(RDMA_UNAVAILABLE, info_of(e.a, e.pa).code);
}

/* Two pairs that connect to one: the first keeps its place, and the other hears why. */
static void a_pair_that_is_taken(void) {
  pair p = pair_new(NULL);
  ends e = created(&p), late = {p.a, p.b, 0, 0};
  char text[600];
  CHECK_OK(rdma_pair_create(p.a, 7, 0, &late.pa));
  CHECK_OK(join(e.a, e.pa, e.b, e.pb, 0));
  pump_for(50);
  CHECK_OK(join(late.a, late.pa, e.b, e.pb, 0));
  CHECK(pump_until(is_broken, &late, 20000));
  (void)info_of(late.a, late.pa);
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "another pair");
  CHECK_OK(join(e.b, e.pb, e.a, e.pa, 0));
  CHECK(pump_until(connected, &e, 20000));
}

static void *connects(void *arg) {
  side *me = arg;
  CHECK_CODE(RDMA_NOT_FOUND, rdma_pair_connect(me->mgr, me->pair, me->address, me->len, patience(60000)));
  return NULL;
}

/* A wait for a connection ends with its own pair. */
static void closed_while_it_connects(void) {
  pair p = pair_new(NULL);
  ends e = created(&p);
  static uint8_t b[RDMA_PAIR_ADDRESS_MAX];
  side me = {e.a, e.pa, b, address_of(e.b, e.pb, b), 1, 0};
  pthread_t waiter;
  drive(p.b);
  CHECK_INT(0, pthread_create(&waiter, NULL, connects, &me));
  usleep(50000);
  CHECK_OK(rdma_pair_close(e.a, e.pa));
  CHECK_INT(0, pthread_join(waiter, NULL));
  drive_stop(p.b);
}

/* With checksums, too, both ends close at once while something is under way, and no other pair of theirs suffers. */
static void closed_at_both_ends_with_checksums(void) {
  pair p = pair_new(with_checksums);
  ends idle = connect_both(&p);
  static char from[4000], to[4000], other[4000];
  drive(p.a);
  drive(p.b);
  for (int round = 0; round < 150; round++) {
    ends e = created(&p);
    CHECK_OK(join(e.a, e.pa, e.b, e.pb, 0));
    CHECK_OK(join(e.b, e.pb, e.a, e.pa, patience(20000)));
    rdma_buffer_t s = out_of(e.a, e.pa, 1, from, sizeof from), t = out_of(e.b, e.pb, 1, from, sizeof from);
    into(e.a, e.pa, 1, to, sizeof to);
    into(e.b, e.pb, 1, other, sizeof other);
    for (size_t i = 0; i < 4; i++) {
      CHECK_OK(rdma_buffer_send(e.a, s, 1000 * i, 1000, 1000 * i));
      CHECK_OK(rdma_buffer_send(e.b, t, 1000 * i, 1000, 1000 * i));
    }
    CHECK_OK(rdma_pair_close(e.a, e.pa));
    CHECK_OK(rdma_pair_close(e.b, e.pb));
  }
  CHECK_INT(RDMA_PAIR_CONNECTED, info_of(idle.a, idle.pa).state);
  CHECK_INT(RDMA_PAIR_CONNECTED, info_of(idle.b, idle.pb).state);
  drive_stop(p.a);
  drive_stop(p.b);
}

/* A callback destroys its own buffer, and closes its own pair. */
typedef struct suicide {
  rdma_mgr_t *mgr;
  rdma_pair_t pair;
  _Atomic int ran;
} suicide;

static void ends_itself(rdma_buffer_t buffer, uint32_t event, rdma_code_t code, const char *message, void *userdata) {
  suicide *s = userdata;
  (void)code, (void)message;
  CHECK_INT(RDMA_BUFFER_RECEIVED, event);
  CHECK_INT(0, s->ran);
  CHECK_OK(rdma_buffer_destroy(s->mgr, buffer));
  CHECK_OK(rdma_pair_close(s->mgr, s->pair));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_buffer_wait_recv(s->mgr, buffer, 1));
  s->ran++;
}

static void ended_by_its_callback(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  suicide it = {e.b, e.pb, 0};
  char to[8], from[8] = "";
  rdma_buffer_t r;
  CHECK_OK(rdma_buffer_create_recv(e.b, e.pb, 1, to, 8, ends_itself, &it, &r));
  rdma_buffer_t s = out_of(e.a, e.pa, 1, from, 8);
  for (int i = 0; i < 5; i++) {
    /* Without windows the connection ends as soon as the first has arrived. */
    rdma_code_t code = rdma_buffer_send(e.a, s, 0, 8, 0);
    CHECK_MSG(code == RDMA_OK || (i > 0 && code == RDMA_UNAVAILABLE), "send %d is %d", i, code);
  }
  CHECK(count_reached(&it.ran, 1, 20000));
  pump_for(30);
  CHECK_INT(1, it.ran);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_pair_close(e.b, e.pb));
}

static void bad_arguments(void) {
  pair p = pair_new(NULL);
  rdma_pair_t one;
  rdma_pair_info_t info = {.struct_size = sizeof info};
  uint64_t n;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_create(NULL, 0, 0, &one));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_create(p.a, 0, 0, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_create(p.a, 0, -2, &one));
  CHECK_OK(rdma_pair_create(p.a, 0, RDMA_MSG_FOREVER, &one));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_pair_info(p.a, one + 1, &info));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_pair_info(p.a, 0, &info));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_info(p.a, one, NULL));
  info.struct_size = 3;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pair_info(p.a, one, &info));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_buffer_test(p.a, one, &n, NULL));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_buffer_send(p.a, 0, 0, 0, 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_buffer_wait_recv(p.a, 9, 1));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_buffer_destroy(NULL, 9));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_pair_close(p.b, one));
}

static const test_case cases[] = {
    CASE(connect_in_any_order), CASE(connect_times_out), CASE(addresses), CASE(connect_to_nobody),
    CASE(writes_of_all_sizes), CASE(sends_wait_for_the_slot), CASE(a_slot_that_never_opens), CASE(many_writes),
    CASE(memory_is_left_before_the_end), CASE(notices_come_after_content), CASE(thousands_of_slots), CASE(bounds), CASE(callbacks),
    CASE(the_other_end_closes), CASE(destroyed_while_written), CASE(several_pairs), CASE(two_threads),
    CASE(a_wait_ends_with_the_manager), CASE(unregistered_memory), CASE(checksums), CASE(ended_by_its_callback),
    CASE(bad_arguments),
    CASE(closed_before_it_connected), CASE(a_pair_that_is_taken), CASE(closed_while_it_connects),
    SLOW(closed_at_both_ends_with_checksums, 120),
};
TEST_MAIN(cases)
