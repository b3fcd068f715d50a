/* Buffers of pairs: slots, writes with notices, bounds, waits and callbacks, memory that goes. */
#include "pairs.h"

#include <time.h>

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
  /* A wait that ends before that is the wait's end only. */
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_buffer_wait_send(e.a, s, 20));
  CHECK_INT(4, info_of(e.a, e.pa).sends);
  rdma_buffer_t r = into(e.b, e.pb, 9, to, 4000);
  for (int i = 0; i < 4; i++) arrived(e.b, r);
  CHECK_INT(-1, mismatch(to, 4000, 3));
  for (int i = 0; i < 4; i++) CHECK_OK(sent(e.a, s));
}

/* Nobody spins while a slot is closed, neither who waits nor a progress thread: of the wait's time the process has a processor for a third
 * at most. That is told by the processor's clock, which does not go on while others have it. */
static void waiting_for_a_slot_is_idle(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  char content[8] = "slot";
  rdma_buffer_t s = out_of(e.a, e.pa, 9, content, 8);
  CHECK_OK(rdma_buffer_send(e.a, s, 0, 8, 0));
  pump_for(200); /* progress threads spin for a while after the last that they did */
  struct timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_buffer_wait_send(e.a, s, 300));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 < 100);
}

/* A slot that nobody opens: the send's own deadline. */
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

/* Many writes queued: each is counted, in order, and what comes last is there last. */
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

/* A notice of no bytes comes after the content of what was sent before it, on whatever slot. */
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

/* A buffer that is destroyed while the other end writes: nothing is written to it any more; the next one of its slot
 * gets what comes then. */
static void destroyed_while_written(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  /* Three of them have two seconds to end: too little where the machine is known to be slow. */
  size_t n = patience(1) > 1 ? 2 * MIB : 8 * MIB;
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

/* Memory is unregistered after the buffer in it was destroyed, however soon, or under one at the same place before: the pair lives. */
static void unregistered_after_its_buffer(void) {
  pair p = pair_new(NULL);
  ends e = connect_both(&p);
  enum { N = 100000 };
  char *from = scratch(N), *to = scratch(N);
  rdma_buffer_t s = out_of(e.a, e.pa, 0, from, N);
  for (int i = 0; i < 20; i++) {
    if (i % 2) CHECK_OK(rdma_mem_register(e.b, to, N, RDMA_DEVICE_HOST));
    rdma_buffer_t r = into(e.b, e.pb, 0, to, N);
    rdma_code_t code; /* refused where this end has not heard yet that the last one is gone */
    do {
      CHECK_OK(rdma_buffer_send(e.a, s, 0, N, 0));
      code = sent(e.a, s);
    } while (code == RDMA_PERMISSION_DENIED);
    CHECK_OK(code);
    arrived(e.b, r);
    CHECK_OK(rdma_buffer_destroy(e.b, r));
    if (i % 2 == 0) CHECK_OK(rdma_mem_register(e.b, to, N, RDMA_DEVICE_HOST));
    CHECK_OK(rdma_mem_unregister(e.b, to));
    CHECK_INT(RDMA_PAIR_CONNECTED, info_of(e.b, e.pb).state);
  }
}

/* A send that begins before this end has heard that the buffer is gone is not done, and says so, notices without content as any:
 * it is not taken for one that came to the next buffer of the slot, nor reported as sent and lost. */
static void no_send_is_lost_to_a_buffer_that_is_gone(void) {
  static const size_t lens[] = {0, 100}; /* of the buffers */
  for (int checked = 0; checked < 2; checked++) {
    pair p = pair_new(checked ? with_checksums : NULL);
    ends e = connect_both(&p);
    char from[100] = "content", to[100];
    int refused = 0;
    for (uint64_t round = 0; round < 24; round++) {
      size_t all = lens[round % 2], len = round % 4 == 3 ? all : 0;
      uint64_t slot = round % 2;
      rdma_buffer_t s = out_of(e.a, e.pa, slot, from, all), r = into(e.b, e.pb, slot, to, all);
      CHECK_OK(rdma_buffer_send(e.a, s, 0, len, 0));
      arrived(e.b, r);
      CHECK_OK(sent(e.a, s));
      CHECK_OK(rdma_buffer_destroy(e.b, r));
      rdma_buffer_t next = into(e.b, e.pb, slot, to, all);
      CHECK_OK(rdma_buffer_send(e.a, s, 0, len, 0));
      rdma_code_t code = sent(e.a, s);
      if (code == RDMA_OK) {
        arrived(e.b, next);
      } else {
        CHECK_INT(RDMA_PERMISSION_DENIED, code);
        refused++;
        CHECK_OK(rdma_buffer_send(e.a, s, 0, len, 0)); /* for the next buffer, of which it has heard, or will */
        CHECK_OK(sent(e.a, s));
        arrived(e.b, next);
      }
      CHECK_OK(rdma_buffer_destroy(e.b, next));
      CHECK_OK(rdma_buffer_destroy(e.a, s));
    }
    if (is_manual() && !is_provider("ibverbs")) CHECK(refused > 0); /* otherwise nothing was tried */
    rdma_buffer_t s = out_of(e.a, e.pa, 7, from, 0);
    (void)into(e.b, e.pb, 7, to, 0);
    CHECK_OK(rdma_buffer_send(e.a, s, 0, 0, 0));
    CHECK_OK(sent(e.a, s));
    CHECK_OK(rdma_pair_close(e.b, e.pb));
    rdma_code_t code = rdma_buffer_send(e.a, s, 0, 0, 0);
    CHECK(code != RDMA_OK || sent(e.a, s) != RDMA_OK);
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

static const test_case cases[] = {
    CASE(writes_of_all_sizes), CASE(sends_wait_for_the_slot), CASE(waiting_for_a_slot_is_idle),
    CASE(a_slot_that_never_opens), CASE(many_writes), CASE(memory_is_left_before_the_end), CASE(notices_come_after_content), CASE(thousands_of_slots), CASE(bounds),
    CASE(callbacks), CASE(destroyed_while_written), CASE(unregistered_after_its_buffer), CASE(no_send_is_lost_to_a_buffer_that_is_gone), CASE(unregistered_memory), CASE(checksums),
};
TEST_MAIN(cases)
