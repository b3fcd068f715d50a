/* Unbound buffers: sends and receives by slot between any peers, receives from some of them, waits and their aborts. */
#include "harness.h"
#include <pthread.h>

typedef struct group { /* three managers that know each other */
  rdma_mgr_t *mgr[3];
  rdma_peer_t peer[3][3]; /* [of][whom] */
} group;

static group three(void) {
  static const char *const names[] = {"alpha", "beta", "gamma"};
  char address[3][256];
  group g;
  for (int i = 0; i < 3; i++) g.mgr[i] = mgr_new(names[i], NULL);
  for (int i = 0; i < 3; i++) mgr_listen(g.mgr[i], address[i]);
  for (int i = 0; i < 3; i++) {
    for (int k = 0; k < 3; k++) {
      if (i != k) CHECK_OK(rdma_mgr_add_peer(g.mgr[i], names[k], address[k]));
      CHECK_OK(rdma_peer_lookup(g.mgr[i], names[k], &g.peer[i][k]));
    }
  }
  return g;
}

static rdma_unbound_t over(rdma_mgr_t *mgr, void *memory, size_t n) {
  rdma_unbound_t buffer = 0;
  CHECK_OK(rdma_unbound_create(mgr, 5, memory, n, &buffer));
  CHECK(buffer != 0);
  return buffer;
}

typedef struct wanted {
  rdma_mgr_t *mgr;
  rdma_unbound_t buffer;
  uint64_t sent, received;
} wanted;

static bool has(void *arg) {
  wanted *w = arg;
  uint64_t sent = 0, received = 0;
  CHECK_OK(rdma_unbound_test(w->mgr, w->buffer, &sent, &received));
  return sent >= w->sent && received >= w->received;
}

/* Lets all sides run until the end of a send or a receive can be taken, and takes it. */
static rdma_msg_status_t taken(rdma_mgr_t *mgr, rdma_unbound_t buffer, bool send, rdma_code_t want) {
  wanted w = {mgr, buffer, send, !send};
  rdma_msg_status_t status = {.struct_size = sizeof status};
  CHECK(pump_until(has, &w, 30000));
  CHECK_CODE(want, send ? rdma_unbound_wait_send(mgr, buffer, 1000, &status)
                        : rdma_unbound_wait_recv(mgr, buffer, 1000, &status));
  CHECK_INT(want, status.code);
  CHECK(status.text != NULL && (want == RDMA_OK) == (status.text[0] == 0));
  return status;
}

/* unbound_buffer.h: send, recv, waitSend, waitRecv, which tell the rank. */
static void content_of_all_sizes(void) {
  group g = three();
  static const size_t sizes[] = {0, 1, 8, 1023, 4096, 65539, MIB + 1, 5 * MIB};
  enum { COUNT = COUNT_OF(sizes) };
  char *from = scratch(COUNT * 6 * MIB), *to = scratch(COUNT * 6 * MIB);
  rdma_unbound_t s = over(g.mgr[1], from, COUNT * 6 * MIB), r = over(g.mgr[0], to, COUNT * 6 * MIB);
  for (size_t i = 0; i < COUNT; i++) {
    size_t at = i * 6 * MIB + i;
    fill(from + at, sizes[i], i);
    if (i % 2) CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, 100 + i, at, sizes[i], 0));
    CHECK_OK(rdma_unbound_send(g.mgr[1], s, g.peer[1][0], 100 + i, at, sizes[i], 0));
    if (i % 2 == 0) CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, 100 + i, at, sizes[i] + 3, 0));
    rdma_msg_status_t status = taken(g.mgr[0], r, false, RDMA_OK);
    CHECK_INT(g.peer[0][1], status.peer);
    CHECK_INT(100 + i, status.tag);
    CHECK_INT(5, status.comm);
    CHECK_INT(sizes[i], status.bytes);
    CHECK_INT(-1, mismatch(to + at, sizes[i], i));
    CHECK_INT(g.peer[1][0], taken(g.mgr[1], s, true, RDMA_OK).peer);
  }
  CHECK_OK(rdma_unbound_destroy(g.mgr[0], r));
  CHECK_OK(rdma_unbound_destroy(g.mgr[1], s));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_destroy(g.mgr[1], s));
}

/* unbound_buffer.h: recv(srcRanks): from any of a set, and from no other. */
static void from_some(void) {
  group g = three();
  long to[4] = {0}, from[3] = {10, 11, 12};
  rdma_unbound_t r = over(g.mgr[0], to, sizeof to), s[3];
  for (int i = 0; i < 3; i++) s[i] = over(g.mgr[i], &from[i], sizeof from[i]);
  for (int posted = 0; posted < 2; posted++) {
    /* To oneself counts among them. */
    const rdma_peer_t some[] = {g.peer[0][2], g.peer[0][0], g.peer[0][2]};
    if (posted) CHECK_OK(rdma_unbound_recv(g.mgr[0], r, some, 3, 1, 0, sizeof to[0], 0));
    CHECK_OK(rdma_unbound_send(g.mgr[1], s[1], g.peer[1][0], 1, 0, sizeof from[1], 0));
    taken(g.mgr[1], s[1], true, RDMA_OK);
    pump_for(30);
    wanted none = {g.mgr[0], r, 0, 1};
    if (!posted) CHECK_OK(rdma_unbound_recv(g.mgr[0], r, some, 3, 1, 0, sizeof to[0], 0));
    CHECK(!has(&none));
    int who = posted ? 0 : 2;
    CHECK_OK(rdma_unbound_send(g.mgr[who], s[who], g.peer[who][0], 1, 0, sizeof from[who], 0));
    CHECK_INT(g.peer[0][who], taken(g.mgr[0], r, false, RDMA_OK).peer);
    CHECK_INT(from[who], to[0]);
    taken(g.mgr[who], s[who], true, RDMA_OK);
    /* What the set did not want waits for whom it is for: of the other two, or of anybody. */
    const rdma_peer_t both[] = {g.peer[0][1], g.peer[0][2]};
    CHECK_OK(rdma_unbound_recv(g.mgr[0], r, posted ? NULL : both, posted ? 0 : 2, 1, 8, sizeof to[1], 0));
    CHECK_INT(g.peer[0][1], taken(g.mgr[0], r, false, RDMA_OK).peer);
    CHECK_INT(from[1], to[1]);
  }
}

/* unbound_buffer.h: waitSend, of whose send nobody takes anything. */
static void a_synchronous_send_waits_for_its_receive(void) {
  group g = three();
  static const size_t sizes[] = {0, 8, 4096, 65539, MIB};
  char *from = scratch(MIB), *to = scratch(MIB);
  rdma_unbound_t s = over(g.mgr[1], from, MIB), r = over(g.mgr[0], to, MIB), own = over(g.mgr[0], from, MIB);
  fill(from, MIB, 1);
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    wanted none = {g.mgr[1], s, 1, 0};
    CHECK_OK(rdma_unbound_ssend(g.mgr[1], s, g.peer[1][0], i, 0, sizes[i], 0));
    CHECK_OK(rdma_unbound_send(g.mgr[1], s, g.peer[1][0], i, 0, 4, 0));
    pump_for(30);
    CHECK(!has(&none)); /* of one slot in the order of the calls */
    CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, i, 0, sizes[i], 0));
    CHECK_INT(sizes[i], taken(g.mgr[0], r, false, RDMA_OK).bytes);
    CHECK_INT(-1, mismatch(to, sizes[i], 1));
    CHECK_INT(sizes[i], taken(g.mgr[1], s, true, RDMA_OK).bytes);
    CHECK_INT(4, taken(g.mgr[1], s, true, RDMA_OK).bytes);
    CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, i, 0, 4, 0));
    taken(g.mgr[0], r, false, RDMA_OK);
    /* One that nobody receives, from another manager and from this one itself. */
    CHECK_OK(rdma_unbound_ssend(g.mgr[1], s, g.peer[1][0], 100, 0, sizes[i], 50));
    CHECK_INT(100, taken(g.mgr[1], s, true, RDMA_DEADLINE_EXCEEDED).tag);
    CHECK_OK(rdma_unbound_ssend(g.mgr[0], own, g.peer[0][0], 100, 0, sizes[i], 50));
    CHECK_INT(100, taken(g.mgr[0], own, true, RDMA_DEADLINE_EXCEEDED).tag);
  }
  /* What was taken back is not received. */
  CHECK_OK(rdma_unbound_recv(g.mgr[0], r, NULL, 0, 100, 0, 8, 50));
  taken(g.mgr[0], r, false, RDMA_DEADLINE_EXCEEDED);
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_unbound_ssend(g.mgr[1], s, g.peer[1][0], 1, MIB, 1, 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_ssend(g.mgr[1], s + 1000, g.peer[1][0], 1, 0, 1, 0));
}

/* Of receives that would do, the first; however they name their peers. */
static void in_the_order_of_the_calls(void) {
  group g = three();
  enum { ROUNDS = 300 };
  uint32_t *to = scratch(3 * ROUNDS * sizeof *to), *from = scratch(2 * ROUNDS * sizeof *from);
  rdma_unbound_t r = over(g.mgr[0], to, 3 * ROUNDS * sizeof *to), s[3] = {0};
  const rdma_peer_t both[] = {g.peer[0][1], g.peer[0][2]};
  for (uint32_t i = 0; i < 2 * ROUNDS; i++) from[i] = i;
  for (size_t i = 0; i < ROUNDS; i++) {
    CHECK_OK(rdma_unbound_recv(g.mgr[0], r, both, 2, 3, 12 * i, 4, 0));
    CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &both[1], 1, 3, 12 * i + 4, 4, 0));
    CHECK_OK(rdma_unbound_recv(g.mgr[0], r, NULL, 0, 3, 12 * i + 8, 4, 0));
  }
  for (int who = 1; who < 3; who++) {
    s[who] = over(g.mgr[who], from, 2 * ROUNDS * sizeof *from);
    size_t many = who == 1 ? ROUNDS : 2 * ROUNDS;
    for (size_t i = 0; i < many; i++) CHECK_OK(rdma_unbound_send(g.mgr[who], s[who], g.peer[who][0], 3, 4 * i, 4, 0));
    wanted w = {g.mgr[0], r, 0, who == 1 ? ROUNDS : 3 * ROUNDS};
    CHECK(pump_until(has, &w, 30000));
  }
  /* The first sender's go to what accepts it: of the set or of anybody, in their order. The rest is the other's. */
  uint32_t next[2] = {0, 0};
  int left = ROUNDS;
  for (size_t i = 0; i < 3 * ROUNDS; i++) {
    bool first = i % 3 != 1 && left > 0;
    if (first) left--;
    CHECK_INT(next[!first]++, to[i]);
  }
  for (int i = 0; i < 3 * ROUNDS; i++) CHECK_OK(rdma_unbound_wait_recv(g.mgr[0], r, 1, NULL));
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_unbound_wait_recv(g.mgr[0], r, 1, NULL));
}

/* Who has several operations with one peer and slot under way is told of the first first, though a short content overtakes a long one. */
static void ends_in_the_order_of_the_calls(void) {
  group g = three();
  static const size_t sizes[] = {5 * MIB, 8, 70001, 400, 0, MIB + 1, 12000, 3 * MIB, 1};
  enum { COUNT = COUNT_OF(sizes), EACH = 5 * MIB };
  char *from = scratch(COUNT * EACH), *to = scratch(COUNT * EACH);
  rdma_unbound_t s = over(g.mgr[1], from, COUNT * EACH), r = over(g.mgr[0], to, COUNT * EACH);
  /* The second time from one of two, the third and fourth time the messages are there before the receives are called. */
  for (int round = 0; round < 4; round++) {
    const rdma_peer_t both[] = {g.peer[0][1], g.peer[0][2]};
    memset(to, 0, COUNT * EACH);
    for (int send = 0; send < 2; send++) {
      for (size_t i = 0; i < COUNT; i++) {
        fill(from + i * EACH, sizes[i], 100 * round + i);
        if ((round < 2) == send)
          CHECK_OK(rdma_unbound_send(g.mgr[1], s, g.peer[1][0], 4, i * EACH, sizes[i], 0));
        else
          CHECK_OK(rdma_unbound_recv(g.mgr[0], r, both, 1 + round % 2, 4, i * EACH, EACH, 0));
      }
      pump_for(20);
    }
    for (size_t i = 0; i < COUNT; i++) {
      CHECK_INT(sizes[i], taken(g.mgr[0], r, false, RDMA_OK).bytes);
      CHECK_INT(-1, mismatch(to + i * EACH, sizes[i], 100 * round + i));
    }
    for (size_t i = 0; i < COUNT; i++) CHECK_INT(sizes[i], taken(g.mgr[1], s, true, RDMA_OK).bytes);
  }
  /* Nobody waits for another slot or peer, or for one that failed; one that fails waits for nobody. */
  CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, 4, 0, 8, RDMA_MSG_FOREVER));
  CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, 4, 8, 8, 30));
  CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, 5, 16, 8, 0));
  CHECK_INT(4, taken(g.mgr[0], r, false, RDMA_DEADLINE_EXCEEDED).tag);
  CHECK_OK(rdma_unbound_send(g.mgr[1], s, g.peer[1][0], 5, 0, 8, 0));
  CHECK_INT(5, taken(g.mgr[0], r, false, RDMA_OK).tag);
  CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, 4, 0, 4, 0));
  CHECK_OK(rdma_unbound_recv(g.mgr[0], r, &g.peer[0][1], 1, 4, 0, 8, 0));
  for (int i = 0; i < 3; i++) CHECK_OK(rdma_unbound_send(g.mgr[1], s, g.peer[1][0], 4, 0, 8, 0));
  CHECK_INT(8, taken(g.mgr[0], r, false, RDMA_OK).bytes);
  CHECK_INT(8, taken(g.mgr[0], r, false, RDMA_OUT_OF_RANGE).bytes);
  CHECK_INT(8, taken(g.mgr[0], r, false, RDMA_OK).bytes);
  for (int i = 0; i < 4; i++) taken(g.mgr[1], s, true, RDMA_OK);
  CHECK_OK(rdma_unbound_destroy(g.mgr[0], r));
  CHECK_OK(rdma_unbound_destroy(g.mgr[1], s));
}

/* The messages are those of the communicator. */
static void among_messages(void) {
  pair p = pair_new(NULL);
  rdma_peer_t alpha, beta;
  CHECK_OK(rdma_peer_lookup(p.b, "alpha", &alpha));
  CHECK_OK(rdma_peer_lookup(p.a, "beta", &beta));
  char to[8] = "", from[8] = "unbound";
  rdma_unbound_t a = over(p.a, to, 8), b = over(p.b, from, 8);
  CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, 9, 0, 8, 0));
  CHECK_OK(rdma_msg_isend(p.b, alpha, 6, 9, "another", 8, NULL, NULL));
  CHECK_OK(rdma_msg_isend(p.b, alpha, 5, 9, "message", 8, NULL, NULL));
  CHECK_INT(beta, taken(p.a, a, false, RDMA_OK).peer);
  CHECK_STR("message", to);
  CHECK_OK(rdma_unbound_send(p.b, b, alpha, 9, 0, 8, 0));
  taken(p.b, b, true, RDMA_OK);
  drive(p.b);
  rdma_msg_status_t status = {.struct_size = sizeof status};
  CHECK_OK(rdma_msg_recv(p.a, beta, 5, 9, RDMA_MSG_TAG_MASK, to, 8, NULL, &status));
  CHECK_STR("unbound", to);
}

typedef struct waiter {
  rdma_mgr_t *mgr;
  rdma_unbound_t buffer;
  bool send;
  _Atomic int begun, returned;
  rdma_code_t code;
  rdma_msg_status_t status;
} waiter;

static void *wait_here(void *arg) {
  waiter *w = arg;
  w->status.struct_size = sizeof w->status;
  w->begun = 1;
  w->code = w->send ? rdma_unbound_wait_send(w->mgr, w->buffer, RDMA_MSG_FOREVER, &w->status)
                    : rdma_unbound_wait_recv(w->mgr, w->buffer, RDMA_MSG_FOREVER, &w->status);
  w->returned = 1;
  return NULL;
}

/* unbound_buffer.h: abortWaitSend, abortWaitRecv. What is under way goes on. */
static void aborted_waits(void) {
  pair p = pair_new(NULL);
  rdma_peer_t alpha, beta;
  CHECK_OK(rdma_peer_lookup(p.b, "alpha", &alpha));
  CHECK_OK(rdma_peer_lookup(p.a, "beta", &beta));
  long to = 0, from = 77;
  rdma_unbound_t a = over(p.a, &to, sizeof to), b = over(p.b, &from, sizeof from);
  for (int round = 0; round < 40; round++) {
    bool send = round % 2, before = round % 4 > 1;
    CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, 1, 0, sizeof to, RDMA_MSG_FOREVER));
    waiter w = {.mgr = send ? p.b : p.a, .buffer = send ? b : a, .send = send};
    if (before) CHECK_OK((send ? rdma_unbound_abort_wait_send : rdma_unbound_abort_wait_recv)(w.mgr, w.buffer));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_here, &w) == 0);
    if (!before) {
      usleep(round % 8 * 300u);
      CHECK_INT(0, w.returned);
      CHECK_OK((send ? rdma_unbound_abort_wait_send : rdma_unbound_abort_wait_recv)(w.mgr, w.buffer));
    }
    CHECK(count_reached(&w.returned, 1, 20000));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_CODE(RDMA_CANCELLED, w.code);
    CHECK_INT(0, w.status.peer);
    CHECK_CODE(RDMA_OK, w.status.code);
    from = round;
    CHECK_OK(rdma_unbound_send(p.b, b, alpha, 1, 0, sizeof from, 0));
    taken(p.a, a, false, RDMA_OK);
    taken(p.b, b, true, RDMA_OK);
    CHECK_INT(round, to);
  }
}

/* As many waits return as there are aborts, and no more. */
static void as_many_aborts_as_waits(void) {
  pair p = pair_new(NULL);
  char to[8];
  enum { THREADS = 8 };
  rdma_unbound_t a = over(p.a, to, 8);
  for (int round = 0; round < 5; round++) {
    waiter w[THREADS];
    pthread_t thread[THREADS];
    memset(w, 0, sizeof w);
    for (int i = 0; i < THREADS; i++) {
      w[i].mgr = p.a, w[i].buffer = a, w[i].send = round % 2;
      CHECK(pthread_create(&thread[i], NULL, wait_here, &w[i]) == 0);
      if (i % 3 == round % 3) usleep(500);
    }
    for (int i = 0; i < THREADS; i++)
      CHECK_OK((round % 2 ? rdma_unbound_abort_wait_send : rdma_unbound_abort_wait_recv)(p.a, a));
    for (int i = 0; i < THREADS; i++) {
      CHECK(count_reached(&w[i].returned, 1, 20000));
      CHECK(pthread_join(thread[i], NULL) == 0);
      CHECK_CODE(RDMA_CANCELLED, w[i].code);
    }
    CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_unbound_wait_send(p.a, a, 1, NULL));
    CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_unbound_wait_recv(p.a, a, 1, NULL));
  }
}

/* Several threads wait on one buffer: each takes one end. A send that ends in its call wakes, too. */
static void several_waiters(void) {
  pair p = pair_new(NULL);
  rdma_peer_t alpha, beta;
  CHECK_OK(rdma_peer_lookup(p.b, "alpha", &alpha));
  CHECK_OK(rdma_peer_lookup(p.a, "beta", &beta));
  enum { THREADS = 6 };
  long to[THREADS] = {0}, from[THREADS] = {1, 2, 3, 4, 5, 6};
  rdma_unbound_t a = over(p.a, to, sizeof to), b = over(p.b, from, sizeof from);
  waiter w[2 * THREADS];
  pthread_t thread[2 * THREADS];
  memset(w, 0, sizeof w);
  for (int i = 0; i < 2 * THREADS; i++) {
    w[i].mgr = i < THREADS ? p.a : p.b, w[i].buffer = i < THREADS ? a : b, w[i].send = i >= THREADS;
    CHECK(pthread_create(&thread[i], NULL, wait_here, &w[i]) == 0);
  }
  for (size_t i = 0; i < THREADS; i++) {
    CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, i, i * sizeof to[0], sizeof to[0], 0));
    CHECK_OK(rdma_unbound_send(p.b, b, alpha, i, i * sizeof to[0], sizeof to[0], 0));
  }
  uint64_t slots = 0;
  for (int i = 0; i < 2 * THREADS; i++) {
    CHECK(count_reached(&w[i].returned, 1, 30000));
    CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK_CODE(RDMA_OK, w[i].code);
    slots += i < THREADS ? (uint64_t)1 << w[i].status.tag : 0;
  }
  CHECK_INT((1 << THREADS) - 1, slots);
  for (int i = 0; i < THREADS; i++) CHECK_INT(i + 1, to[i]);
}

/* Errors of an operation are told by its wait, and not confused with those of the wait. */
static void errors(void) {
  pair p = pair_new(NULL);
  rdma_peer_t alpha, beta;
  CHECK_OK(rdma_peer_lookup(p.b, "alpha", &alpha));
  CHECK_OK(rdma_peer_lookup(p.a, "beta", &beta));
  char to[64], from[64];
  memset(to, 'x', sizeof to);
  fill(from, sizeof from, 1);
  rdma_unbound_t a = over(p.a, to, sizeof to), b = over(p.b, from, sizeof from);
  CHECK_OK(rdma_unbound_send(p.b, b, alpha, 1, 0, 40, 0));
  CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, 1, 0, 39, 0));
  rdma_msg_status_t status = taken(p.a, a, false, RDMA_OUT_OF_RANGE);
  CHECK_HAS(status.text, "40 bytes");
  CHECK_INT(40, status.bytes);
  CHECK_INT(beta, status.peer);
  for (size_t i = 0; i < sizeof to; i++) CHECK_INT('x', to[i]);
  const rdma_peer_t some[] = {alpha, beta};
  CHECK_OK(rdma_unbound_recv(p.a, a, some, 2, 2, 0, 8, 60));
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_unbound_wait_recv(p.a, a, 1, &status));
  CHECK_CODE(RDMA_OK, status.code);
  CHECK_HAS(taken(p.a, a, false, RDMA_DEADLINE_EXCEEDED).text, "no message came");
  /* A deadline that has ended a receive leaves the message to the next. */
  CHECK_OK(rdma_unbound_send(p.b, b, alpha, 2, 0, 8, 0));
  CHECK_OK(rdma_unbound_recv(p.a, a, some, 2, 2, 0, 8, 0));
  CHECK_INT(beta, taken(p.a, a, false, RDMA_OK).peer);
}

/* A buffer that ends lets go of its memory, and of those who wait. */
static void destroyed_under_way(void) {
  group g = three();
  enum { LONG = 3 * MIB };
  char *from = scratch(LONG), *to = scratch(LONG);
  const rdma_peer_t both[] = {g.peer[0][1], g.peer[0][2]};
  for (int round = 0; round < 6; round++) {
    rdma_unbound_t s = over(g.mgr[1], from, LONG), r = over(g.mgr[0], to, LONG);
    fill(from, LONG, 1);
    memset(to, 0, LONG);
    waiter w = {.mgr = g.mgr[0], .buffer = r, .send = false};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_here, &w) == 0);
    for (uint64_t i = 0; i < 500; i++) CHECK_OK(rdma_unbound_recv(g.mgr[0], r, both, 2, 1000 + i, 8 * i, 8, 0));
    for (uint64_t i = 0; i < 10; i++) CHECK_OK(rdma_unbound_send(g.mgr[1], s, g.peer[1][0], i, 0, LONG, 0));
    pump_for(round * 3);
    if (round % 2 == 0) CHECK_OK(rdma_unbound_recv(g.mgr[0], r, both, 2, 3, 0, LONG, 0));
    drive(g.mgr[0]), drive(g.mgr[1]);
    if (round == 4) pump_for(1);
    CHECK_OK(rdma_unbound_destroy(g.mgr[1], s));
    memset(from, 0, LONG);
    CHECK_OK(rdma_unbound_destroy(g.mgr[0], r));
    long long whole = mismatch(to, LONG, 1);
    memset(to, 0x55, LONG);
    CHECK(count_reached(&w.returned, 1, 20000));
    CHECK(pthread_join(thread, NULL) == 0);
    /* The wait may have taken an end before. */
    CHECK_MSG(w.code == RDMA_NOT_FOUND || w.code == RDMA_CANCELLED || (w.code == RDMA_OK && whole == -1),
              "the wait returned %d, the content is whole up to %lld", w.code, whole);
    pump_for(10);
    for (size_t i = 0; i < LONG; i++) CHECK_INT(0x55, to[i]);
    drive_stop(g.mgr[0]), drive_stop(g.mgr[1]);
  }
}

static void a_wait_ends_with_the_manager(void) {
  pair p = pair_new(NULL);
  char to[8];
  rdma_peer_t beta;
  CHECK_OK(rdma_peer_lookup(p.a, "beta", &beta));
  rdma_unbound_t a = over(p.a, to, 8);
  CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, 1, 0, 8, RDMA_MSG_FOREVER));
  waiter w[2] = {{.mgr = p.a, .buffer = a}, {.mgr = p.a, .buffer = a, .send = true}};
  pthread_t thread[2];
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&thread[i], NULL, wait_here, &w[i]) == 0);
  /* Both wait when it ends, also on a busy machine. */
  for (int i = 0; i < 2; i++) CHECK(count_reached(&w[i].begun, 1, 20000));
  pump_for(30); /* a signal does not cut it short */
  mgr_end(p.a);
  for (int i = 0; i < 2; i++) {
    CHECK(count_reached(&w[i].returned, 1, 20000));
    CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK_CODE(RDMA_CANCELLED, w[i].code);
  }
  CHECK_CODE(RDMA_FAILED_PRECONDITION, rdma_unbound_abort_wait_recv(p.a, a));
}

typedef struct inside {
  rdma_mgr_t *mgr;
  rdma_unbound_t buffer;
  _Atomic int ran;
} inside;

static void in_callback(const rdma_msg_status_t *status, void *userdata) {
  inside *in = userdata;
  (void)status;
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_unbound_wait_recv(in->mgr, in->buffer, 0, NULL));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_unbound_destroy(in->mgr, in->buffer));
  CHECK_OK(rdma_unbound_abort_wait_send(in->mgr, in->buffer));
  CHECK_OK(rdma_unbound_cancel(in->mgr, in->buffer));
  CHECK_OK(rdma_unbound_test(in->mgr, in->buffer, NULL, NULL));
  in->ran++;
}

/* What is under way ends, at the other end too, and the buffer goes on. Memory that is written then is not sent. */
static void cancelled_and_used_again(void) {
  enum { N = 300000 };
  pair p = pair_new(NULL);
  rdma_peer_t alpha = number_of(p.b, "alpha"), beta = number_of(p.a, "beta");
  char *from = malloc(N), *to = malloc(N);
  CHECK(from && to);
  for (int round = 0; round < 3; round++) {
    const bool synchronous = round == 2;
    memset(from, 1, N), memset(to, 0, N);
    rdma_unbound_t a = over(p.a, to, N), b = over(p.b, from, N);
    CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, 7, 0, N, RDMA_MSG_FOREVER));
    CHECK_OK((synchronous ? rdma_unbound_ssend : rdma_unbound_send)(p.b, b, alpha, 1, 0, N, RDMA_MSG_FOREVER));
    CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_unbound_wait_send(p.b, b, 20, NULL));
    CHECK_OK(rdma_unbound_cancel(p.a, a));
    CHECK_OK(rdma_unbound_cancel(p.b, b));
    CHECK_INT(7, taken(p.a, a, false, RDMA_CANCELLED).tag);
    CHECK_INT(1, taken(p.b, b, true, RDMA_CANCELLED).tag);
    memset(from, 5, N);
    CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, 1, 0, N, 300));
    taken(p.a, a, false, RDMA_DEADLINE_EXCEEDED);
    CHECK(to[0] == 0 && memcmp(to, to + 1, N - 1) == 0);
    CHECK_OK(rdma_unbound_cancel(p.b, b)); /* nothing */
    CHECK_OK(rdma_unbound_recv(p.a, a, &beta, 1, 1, 0, N, RDMA_MSG_FOREVER));
    CHECK_OK(rdma_unbound_send(p.b, b, alpha, 1, 0, N, RDMA_MSG_FOREVER));
    taken(p.b, b, true, RDMA_OK);
    CHECK_INT(N, taken(p.a, a, false, RDMA_OK).bytes);
    CHECK(to[0] == 5 && memcmp(to, to + 1, N - 1) == 0);
    CHECK_OK(rdma_unbound_destroy(p.a, a));
    CHECK_OK(rdma_unbound_destroy(p.b, b));
    CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_cancel(p.b, b));
  }
  free(from), free(to);
}

static void inside_a_callback(void) {
  pair p = pair_new(NULL);
  rdma_peer_t alpha, beta;
  CHECK_OK(rdma_peer_lookup(p.b, "alpha", &alpha));
  CHECK_OK(rdma_peer_lookup(p.a, "beta", &beta));
  char to[8];
  inside in = {p.a, over(p.a, to, 8), 0};
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = in_callback, .userdata = &in};
  CHECK_OK(rdma_msg_irecv(p.a, beta, 0, 1, RDMA_MSG_TAG_MASK, to, 8, &options, NULL, NULL));
  CHECK_OK(rdma_msg_isend(p.b, alpha, 0, 1, "content", 8, NULL, NULL));
  CHECK(count_reached(&in.ran, 1, 20000));
  CHECK_BAD(RDMA_CANCELLED, rdma_unbound_wait_send(p.a, in.buffer, RDMA_MSG_FOREVER, NULL));
}

static void bad_arguments(void) {
  pair p = pair_new(NULL);
  char memory[16];
  rdma_unbound_t one = 0;
  rdma_peer_t beta, some[2] = {0, 99};
  CHECK_OK(rdma_peer_lookup(p.a, "beta", &beta));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_create(NULL, 0, memory, 16, &one));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_create(p.a, 0, memory, 16, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_create(p.a, 0, NULL, 16, &one));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_create(p.a, 0, memory, SIZE_MAX, &one));
  CHECK_OK(rdma_unbound_create(p.a, 0, NULL, 0, &one));
  CHECK_OK(rdma_unbound_destroy(p.a, one));
  one = over(p.a, memory, 16);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_send(p.a, one + 1, beta, 1, 0, 1, 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_send(p.a, one, 99, 1, 0, 1, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_send(p.a, one, RDMA_PEER_ANY, 1, 0, 1, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_send(p.a, one, UINT64_MAX, 1, 0, 1, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_send(p.a, one, beta, 1, 0, 1, -2));
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_unbound_send(p.a, one, beta, 1, 8, 9, 0));
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_unbound_send(p.a, one, beta, 1, SIZE_MAX, 2, 0));
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_unbound_recv(p.a, one, &beta, 1, 1, 17, 0, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_recv(p.a, one, NULL, 1, 1, 0, 1, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_recv(p.a, one, some, RDMA_UNBOUND_MAX_SOURCES + 1, 1, 0, 1, 0));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_recv(p.a, one, some, 2, 1, 0, 1, 0));
  CHECK_OK(rdma_unbound_recv(p.a, one, some, 1, 77, 0, 1, 0)); /* RDMA_PEER_ANY */
  some[0] = beta;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_recv(p.a, one, some, 2, 1, 0, 1, 0));
  for (uint64_t odd = UINT32_MAX - 3; odd <= (uint64_t)UINT32_MAX + 2; odd++) {
    some[1] = odd;
    rdma_code_t code = rdma_unbound_recv(p.a, one, some, 2, 1, 0, 1, 0);
    CHECK_MSG(code == RDMA_NOT_FOUND || code == RDMA_INVALID_ARGUMENT || odd == UINT32_MAX, "%llx: %d",
              (unsigned long long)odd, code);
  }
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_wait_send(p.a, one, -3, NULL));
  rdma_msg_status_t status = {.struct_size = 2};
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_wait_recv(p.a, one, 1, &status));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_wait_recv(p.a, one + 7, 1, NULL));
  /* Whatever a wait fails with: its status says that nothing was taken. */
  const rdma_msg_status_t stale = {.struct_size = sizeof stale, .peer = 42, .code = 11};
  for (int i = 0; i < 4; i++) {
    status = stale;
    CHECK(rdma_unbound_wait_recv(i == 0 ? NULL : p.a, i == 1 ? 99 : one, i == 2 ? -3 : 1, &status) != RDMA_OK);
    CHECK_INT(0, status.peer);
    CHECK_CODE(RDMA_OK, status.code);
    CHECK_STR("", status.text);
  }
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_test(p.a, one + 7, NULL, NULL));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_abort_wait_send(p.a, one + 7));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_cancel(p.a, one + 7));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_unbound_cancel(NULL, one));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_unbound_abort_wait_recv(p.b, one + 7));
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_unbound_wait_send(p.a, one, 1, NULL));
}

static const test_case cases[] = {
    CASE(content_of_all_sizes), CASE(from_some), CASE(a_synchronous_send_waits_for_its_receive), CASE(in_the_order_of_the_calls),
    CASE(ends_in_the_order_of_the_calls), CASE(among_messages), CASE(aborted_waits), CASE(as_many_aborts_as_waits), CASE(several_waiters), CASE(errors), CASE(destroyed_under_way), CASE(cancelled_and_used_again),
    CASE(a_wait_ends_with_the_manager), CASE(inside_a_callback), CASE(bad_arguments),
};
TEST_MAIN(cases)
