/* Tagged messages: matching, order, modes, sizes, waits, back-pressure. How they end otherwise: test_messages_ends.c. */
#include "messages.h"

typedef struct waiting {
  rdma_mgr_t *mgr;
  rdma_msg_request_t *requests;
  size_t count, done;
  rdma_msg_status_t *statuses;
} waiting;

static bool all_ended(void *arg) {
  waiting *w = arg;
  size_t n = 0;
  CHECK_OK(rdma_msg_test(w->mgr, w->requests, w->count, RDMA_MSG_ALL, NULL, w->statuses, &n));
  w->done = n;
  for (size_t i = 0; i < w->count; i++)
    if (w->requests[i] != 0) return false;
  return true;
}

enum { ENDS = 36 << 10, FRAGMENT = 1 << 20 };
static const size_t sizes[] = {
    0, 1, 7, 8, 100, 1000, 4000, 20000, 65536, 100001, 5000003,
    /* Longest content that rides in a message: of shm and ibverbs, of loopback, of shm's where it lies in no pool; that is
       copied by the call; of tcp; of shm's while its ring is half free. */
    AROUND(4 << 10), AROUND(8 << 10), AROUND(11 << 10), AROUND(12 << 10), AROUND(32 << 10), AROUND(33 << 10),
    /* Longest message of tcp and loopback, copy by way of shm's pool, move at a time, frame of tcp's content. */
    AROUND(128 << 10), AROUND(256 << 10), AROUND(512 << 10), AROUND(1 << 20),
    /* Those of the pipeline's segments, as they are by default: 4 KiB, fragments of 1 MiB, 32 KiB. */
    AROUND(ENDS), AROUND(ENDS + FRAGMENT), AROUND(ENDS + 2 * FRAGMENT)};

/* A message of n bytes, whose receive is there before it or not. */
static void exchange(const pair *p, size_t n, uint64_t seed, bool first) {
  rdma_peer_t to_b = number_of(p->a, "beta"), to_a = number_of(p->b, "alpha");
  char *from = scratch(n + 1), *to = scratch(n + 1);
  rdma_msg_status_t st;
  rdma_msg_request_t s, r;
  fill(from, n, seed);
  to[n] = 0x3c;
  if (first) {
    r = irecv(p->b, to_a, seed, EXACT, to, n, &st);
    CHECK(r != 0);
    s = isend(p->a, to_b, seed, from, n, RDMA_MSG_STANDARD);
  } else {
    s = isend(p->a, to_b, seed, from, n, RDMA_MSG_STANDARD);
    pump_for(5);
    r = irecv(p->b, to_a, seed, EXACT, to, n, &st);
  }
  st = received(p->b, r, st);
  CHECK_INT(RDMA_OK, st.code);
  CHECK_INT(n, st.bytes);
  CHECK_INT(seed, st.tag);
  CHECK_INT(COMM, st.comm);
  CHECK_INT(to_a, st.peer);
  CHECK_MSG(mismatch(to, n, seed) < 0, "%zu bytes: wrong at %lld", n, mismatch(to, n, seed));
  CHECK_MSG(to[n] == 0x3c, "%zu bytes: one more was written", n);
  if (s != 0) CHECK_INT(RDMA_OK, end_of(p->a, s, NULL).code);
}

static void sizes_both_orders(void) {
  pair p = pair_new(NULL);
  for (size_t i = 0; i < COUNT_OF(sizes); i++)
    for (int first = 0; first < 2; first++) exchange(&p, sizes[i], 10 * i + (uint64_t)first, first);
  /* The one that is forced, and on ibverbs the one that a length chooses. */
  if (env.protocol == RDMA_PROTOCOL_PIPELINE || (is_provider("ibverbs") && getenv("RDMA_MIN_RDMA_PIPELINE_SIZE"))) {
    static char text[1 << 16];
    size_t len = 0;
    CHECK_OK(rdma_mgr_stats_json(p.b, text, sizeof text, &len));
    CHECK_HAS(text, "\"pipeline\":");
  }
}

/* Around the longest content that rides, as the connection tells it, by default and where an option says less or more. */
static uint64_t chosen;
static void has_eager_max(rdma_mgr_options_t *o) { o->eager_max = chosen; }

static void sizes_around_what_rides(void) {
  static const uint64_t options[] = {0, 100, 5000, 20000, 60000};
  for (size_t i = 0; i < COUNT_OF(options); i++) {
    chosen = options[i];
    pair p = pair_new(has_eager_max);
    rdma_peer_info_t info = {.struct_size = sizeof info};
    exchange(&p, 8, 1, true);
    CHECK_OK(rdma_mgr_peer_info(p.a, "beta", &info));
    CHECK(info.eager_max > 0);
    if (chosen != 0) CHECK(info.eager_max <= chosen);
    const size_t lens[] = {AROUND((size_t)info.eager_max)};
    for (size_t k = 0; k < COUNT_OF(lens); k++)
      for (int first = 0; first < 2; first++) exchange(&p, lens[k], 2 * k + (uint64_t)first + 2, first);
    pair_end(&p);
  }
}

static void to_oneself(void) {
  pair p = pair_new(NULL);
  rdma_peer_t self = number_of(p.a, "alpha");
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    for (int first = 0; first < 2; first++) {
      size_t n = sizes[i];
      char *from = scratch(n + 1), *to = scratch(n + 1);
      rdma_msg_status_t st;
      rdma_msg_request_t s, r = 0;
      fill(from, n, i);
      if (first) r = irecv(p.a, self, i, EXACT, to, n, &st);
      s = isend(p.a, self, i, from, n, RDMA_MSG_STANDARD);
      if (!first) r = irecv(p.a, RDMA_PEER_ANY, i, EXACT, to, n, &st);
      st = received(p.a, r, st);
      CHECK_INT(RDMA_OK, st.code);
      CHECK_INT(self, st.peer);
      CHECK(mismatch(to, n, i) < 0);
      if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
    }
  }
}

/* Messages of one sender meet receives in order, whatever their sizes; masks and sources are looked at. */
static void order_and_masks(void) {
  enum { N = 300 };
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  static rdma_msg_request_t s[N];
  char *from[N];
  for (int i = 0; i < N; i++) {
    size_t n = i % 3 == 0 ? 50000 : (size_t)i;
    from[i] = scratch(n + 1);
    fill(from[i], n, (uint64_t)i);
    s[i] = isend(p.a, to_b, 0x1000 + (uint64_t)(i % 4), from[i], n, i % 5 ? RDMA_MSG_STANDARD : RDMA_MSG_SYNCHRONOUS);
  }
  char *to = scratch(50000);
  /* All of the second tag first, then the others in order. */
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i < N; i++) {
      if ((i % 4 == 2) != (pass == 0)) continue;
      size_t n = i % 3 == 0 ? 50000 : (size_t)i;
      rdma_msg_status_t st;
      rdma_msg_request_t r = pass == 0 ? irecv(p.b, to_a, 0x1002, EXACT, to, 50000, &st)
                                       : irecv(p.b, i % 2 ? RDMA_PEER_ANY : to_a, 0x1000, ~(uint64_t)0xff, to, 50000, &st);
      st = received(p.b, r, st);
      CHECK_INT(RDMA_OK, st.code);
      CHECK_INT(0x1000 + i % 4, st.tag);
      CHECK_INT(n, st.bytes);
      CHECK(mismatch(to, n, (uint64_t)i) < 0);
    }
  }
  waiting w = {p.a, s, N, 0, NULL};
  CHECK(pump_until(all_ended, &w, 30000));
}

/* Another communicator, another tag, another sender: no match. */
static void what_does_not_match_waits(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  uint32_t x = 1, got = 0;
  rdma_msg_status_t st = {.struct_size = sizeof st};
  rdma_msg_request_t s = isend(p.a, to_b, 5, &x, sizeof x, RDMA_MSG_STANDARD);
  pump_for(20);
  drive(p.a);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_probe(p.b, to_a, COMM + 1, 5, EXACT, false, 20, &st));
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_probe(p.b, to_a, COMM, 6, EXACT, false, 20, &st));
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_probe(p.b, number_of(p.b, "beta"), COMM, 5, EXACT, false, 20, &st));
  CHECK_OK(rdma_msg_probe(p.b, RDMA_PEER_ANY, COMM, 0, 0, false, 10000, &st));
  CHECK_INT(sizeof x, st.bytes);
  CHECK_INT(to_a, st.peer);
  CHECK_INT(0, st.message);
  CHECK_OK(rdma_msg_recv(p.b, to_a, COMM, 5, EXACT, &got, sizeof got, NULL, &st));
  CHECK_INT(1, got);
  drive_stop(p.a);
  if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
  char name[64];
  size_t len;
  CHECK_OK(rdma_peer_name(p.b, st.peer, name, sizeof name, &len));
  CHECK_STR("alpha", name);
}

static void claimed_messages(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta");
  static const size_t lens[] = {0, 12, 300000};
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    size_t n = lens[i];
    char *one = scratch(n + 1), *two = scratch(n + 1), *to = scratch(n + 1);
    fill(one, n, 1);
    fill(two, n, 2);
    rdma_msg_request_t s1 = isend(p.a, to_b, 9, one, n, RDMA_MSG_SYNCHRONOUS);
    rdma_msg_request_t s2 = isend(p.a, to_b, 9, two, n, RDMA_MSG_SYNCHRONOUS);
    rdma_msg_status_t claimed = {.struct_size = sizeof claimed}, st;
    drive(p.a);
    CHECK_OK(rdma_msg_probe(p.b, RDMA_PEER_ANY, COMM, 9, EXACT, true, 10000, &claimed));
    CHECK(claimed.message != 0);
    CHECK_INT(n, claimed.bytes);
    rdma_msg_request_t r = irecv(p.b, RDMA_PEER_ANY, 9, EXACT, to, n, &st);
    st = received(p.b, r, st);
    CHECK(mismatch(to, n, 2) < 0);
    rdma_msg_status_t st2 = {.struct_size = sizeof st2};
    r = 77;
    CHECK_OK(rdma_msg_imrecv(p.b, claimed.message, to, n, NULL, &st2, &r));
    st2 = received(p.b, r, st2);
    CHECK_INT(RDMA_OK, st2.code);
    CHECK(mismatch(to, n, 1) < 0);
    CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_imrecv(p.b, claimed.message, to, n, NULL, NULL, &r));
    CHECK_INT(RDMA_OK, end_of(p.a, s1, NULL).code);
    CHECK_INT(RDMA_OK, end_of(p.a, s2, NULL).code);
    drive_stop(p.a);
  }
}

/* A message that is too long: the real length is told, nothing is written, the sender is content. */
static void truncation(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha"), self = number_of(p.b, "beta");
  static const size_t lens[] = {9, 300000};
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    for (int first = 0; first < 2; first++) {
      for (int own = 0; own < 2; own++) {
        size_t n = lens[i];
        char *from = scratch(n), *to = scratch(n), *untouched = scratch(n);
        fill(from, n, 5);
        memset(to, 0x11, n);
        memset(untouched, 0x11, n);
        rdma_msg_status_t st;
        rdma_msg_request_t r = 0, s;
        if (first) r = irecv(p.b, own ? self : to_a, 1, EXACT, to, n - 1, &st);
        s = own ? isend(p.b, self, 1, from, n, RDMA_MSG_STANDARD) : isend(p.a, to_b, 1, from, n, RDMA_MSG_STANDARD);
        if (!first) {
          pump_for(5);
          r = irecv(p.b, own ? self : to_a, 1, EXACT, to, n - 1, &st);
        }
        CHECK(r != 0);
        st = end_of(p.b, r, NULL);
        CHECK_INT(RDMA_OUT_OF_RANGE, st.code);
        CHECK_INT(n, st.bytes);
        CHECK(memcmp(to, untouched, n) == 0);
        if (s != 0) CHECK_INT(RDMA_OK, end_of(own ? p.b : p.a, s, NULL).code);
      }
    }
  }
}

static void synchronous_sends_wait_for_the_match(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  uint64_t x = 42, got = 0;
  rdma_msg_request_t s = isend(p.a, to_b, 1, &x, sizeof x, RDMA_MSG_SYNCHRONOUS);
  CHECK(s != 0);
  pump_for(50);
  waiting w = {p.a, &s, 1, 0, NULL};
  CHECK(!all_ended(&w));
  rdma_msg_status_t st;
  rdma_msg_request_t r = irecv(p.b, to_a, 1, EXACT, &got, sizeof got, &st);
  received(p.b, r, st);
  CHECK_INT(42, got);
  CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
}

static void any_and_some(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  uint64_t got[4] = {0}, x = 6;
  rdma_msg_request_t r[5] = {0};
  for (uint64_t i = 0; i < 4; i++)
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, i, EXACT, &got[i], sizeof got[i], NULL, NULL, &r[i]));
  size_t index[5], n = 9;
  rdma_msg_status_t st[5];
  st[0].struct_size = sizeof st[0];
  CHECK_OK(rdma_msg_test(p.b, r, 5, RDMA_MSG_SOME, index, st, &n));
  CHECK_INT(0, n);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_wait(p.b, r, 5, RDMA_MSG_ANY, 20, index, st, &n));
  CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 2, &x, sizeof x, NULL, NULL));
  drive(p.a);
  CHECK_OK(rdma_msg_wait(p.b, r, 5, RDMA_MSG_ANY, 30000, index, st, &n));
  CHECK_INT(1, n);
  CHECK_INT(2, index[0]);
  CHECK_INT(6, got[2]);
  CHECK_INT(2, st[0].tag);
  CHECK_INT(0, r[2]);
  for (uint64_t i = 0; i < 4; i++)
    if (i != 2) CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, i, &x, sizeof x, NULL, NULL));
  CHECK_OK(rdma_msg_wait(p.b, r, 5, RDMA_MSG_ALL, 30000, index, st, &n));
  CHECK_INT(3, n);
  CHECK_INT(3, st[2].tag);
  CHECK_INT(3, index[2]);
  drive_stop(p.a);
}

/* A receiver that receives nothing holds the sender back; then all of it comes, in order. */
static void a_flood_is_held_back(void) {
  /* What is sent along, 65,536 offers, and some that wait; each of those goes to and fro before the next. */
  enum { MOST = 75000 };
  /* Soft-RoCE in an emulated machine takes a millisecond for each. Where a protocol is forced, it is that which is tried, and
     over several connections short messages go by the first: all of them once is enough. */
  const bool forced = env.protocol != RDMA_PROTOCOL_AUTO || getenv("RDMA_MAX_RDMA_PER_REQUEST");
  const int N = is_provider("ibverbs") || forced ? 12000 : MOST;
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  static rdma_msg_request_t s[MOST];
  static uint64_t x[MOST];
  /* On a busy machine the last of them waits for longer than the manager's deadline. */
  rdma_msg_options_t patient = {.struct_size = sizeof patient, .timeout_ms = RDMA_MSG_FOREVER};
  int waits = 0;
  for (int i = 0; i < N; i++) {
    x[i] = (uint64_t)i;
    CHECK_OK(rdma_msg_isend(p.a, to_b, COMM, 4, &x[i], sizeof x[i], &patient, &s[i]));
    waits += s[i] != 0;
  }
  CHECK_MSG(waits > N / 2, "only %d of %d sends wait", waits, N);
  uint64_t room = 77;
  CHECK_OK(rdma_msg_room(p.a, to_b, &room));
  /* A protocol that is forced offers each message: their content takes no room, and so many offers are allowed. */
  if (env.protocol == RDMA_PROTOCOL_AUTO) CHECK_INT(0, room);
  pump_for(200);
  for (int i = 0; i < N; i++) {
    uint64_t got = 0;
    rdma_msg_status_t st;
    rdma_msg_request_t r = irecv(p.b, to_a, 4, EXACT, &got, sizeof got, &st);
    st = received(p.b, r, st);
    CHECK_INT(RDMA_OK, st.code);
    CHECK_INT(i, got);
  }
  waiting w = {p.a, s, (size_t)N, 0, NULL};
  CHECK(pump_until(all_ended, &w, 30000));
}

/* Both ends in blocking calls, with options that were initialised. */
static void blocking_calls(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  rdma_msg_options_t options;
  CHECK_OK(rdma_msg_options_init(&options, sizeof options));
  options.mode = RDMA_MSG_SYNCHRONOUS;
  options.timeout_ms = RDMA_MSG_FOREVER;
  for (uint64_t i = 0; i < 20; i++) {
    size_t n = i % 2 ? 8 : 100000;
    char *from = scratch(n), *to = scratch(n);
    fill(from, n, i);
    rdma_msg_status_t st;
    rdma_msg_request_t r = irecv(p.b, to_a, i, EXACT, to, n, &st);
    drive(p.b);
    CHECK_OK(rdma_msg_send(p.a, to_b, COMM, i, from, n, &options));
    drive_stop(p.b);
    CHECK_INT(RDMA_OK, received(p.b, r, st).code);
    CHECK(mismatch(to, n, i) < 0);
  }
}

static void bad_arguments(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), none = 0;
  rdma_msg_request_t r = 0;
  char byte = 0;
  size_t n = 0;
  rdma_msg_options_t options = {.struct_size = sizeof options, .mode = 9};
  rdma_msg_status_t st = {.struct_size = 3};
  CHECK_BAD(RDMA_NOT_FOUND, rdma_peer_lookup(p.a, "nobody", &none));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_peer_lookup(p.a, NULL, &none));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_isend(p.a, RDMA_PEER_ANY, 0, 0, &byte, 1, NULL, &r));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_isend(p.a, UINT64_MAX, 0, 0, &byte, 1, NULL, &r));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_isend(p.a, 12345, 0, 0, &byte, 1, NULL, &r));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_isend(p.a, to_b, 0, 0, NULL, 1, NULL, &r));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_isend(p.a, to_b, 0, 0, &byte, 1, &options, &r));
  options.mode = 0;
  options.timeout_ms = -2;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_isend(p.a, to_b, 0, 0, &byte, 1, &options, &r));
  options.timeout_ms = 0;
  options.device = 5;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_isend(p.a, to_b, 0, 0, &byte, 1, &options, &r));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_irecv(p.a, 4711, 0, 0, EXACT, &byte, 1, NULL, NULL, &r));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_irecv(p.a, to_b, 0, 0, EXACT, &byte, 1, NULL, &st, &r));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_probe(p.a, to_b, 0, 0, EXACT, false, 0, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_cancel(p.a, 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_cancel(p.a, 99));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_free(p.a, 99));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_test(p.a, NULL, 1, RDMA_MSG_ALL, NULL, NULL, &n));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_test(p.a, &r, 0, RDMA_MSG_ALL, NULL, NULL, &n));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_test(p.a, &r, 1, 3, NULL, NULL, &n));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_test(p.a, &r, 1, RDMA_MSG_ALL, NULL, NULL, NULL));
  r = 99;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_test(p.a, &r, 1, RDMA_MSG_ALL, NULL, NULL, &n));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_wait(p.a, &r, 1, RDMA_MSG_ALL, 10, NULL, NULL, &n));
}

static const test_case cases[] = {
    CASE(sizes_both_orders), CASE(sizes_around_what_rides), CASE(to_oneself), CASE(order_and_masks), CASE(what_does_not_match_waits),
    CASE(claimed_messages), CASE(truncation), CASE(synchronous_sends_wait_for_the_match), CASE(any_and_some),
    SLOW(a_flood_is_held_back, 240), CASE(blocking_calls), CASE(bad_arguments),
};
TEST_MAIN(cases)
