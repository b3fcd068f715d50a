/* Pairs: Gloo's transport. Connecting, addresses, several of them, ends. Their buffers: test_pairs_buffers.c. */
#include "pairs.h"
#include <pthread.h>

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
  CHECK_OK(rdma_buffer_send(e.b, s, 0, 50, 0));
  CHECK_OK(sent(e.b, s));
  CHECK_OK(rdma_pair_close(e.b, e.pb));
  CHECK(count_reached(&l.broken, 1, 20000));
  /* What has arrived comes first. */
  uint64_t n = 0;
  CHECK_OK(rdma_buffer_test(e.a, r, NULL, &n));
  CHECK_INT(1, n);
  CHECK_OK(rdma_buffer_wait_recv(e.a, r, 5000));
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_buffer_test(e.a, r, NULL, &n));
  CHECK_INT(1, n);
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

static bool other_is_broken(void *at) {
  ends *e = at;
  return info_of(e->b, e->pb).state == RDMA_PAIR_BROKEN;
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
  for (int i = 1; i < N; i += 2) CHECK(pump_until(other_is_broken, &e[i], 10000));
  for (int i = 0; i < N; i += 2) CHECK_INT(RDMA_PAIR_CONNECTED, info_of(e[i].b, e[i].pb).state);
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
    CASE(the_other_end_closes), CASE(several_pairs), CASE(two_threads), CASE(a_wait_ends_with_the_manager),
    CASE(ended_by_its_callback), CASE(bad_arguments), CASE(closed_before_it_connected), CASE(a_pair_that_is_taken),
    CASE(closed_while_it_connects), SLOW(closed_at_both_ends_with_checksums, 120),
};
TEST_MAIN(cases)
