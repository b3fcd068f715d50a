/* Calls in odd orders: a wait that begins after an abort, sends inside callbacks. */
#include "messages.h"
#include <pthread.h>

static void manual(rdma_mgr_options_t *o) { o->progress = RDMA_PROGRESS_MANUAL; }

typedef struct waiter {
  rdma_mgr_t *mgr;
  rdma_unbound_t buffer;
  bool send;
  rdma_code_t code;
} waiter;

static rdma_code_t wait_for(const waiter *w, int64_t ms) {
  return (w->send ? rdma_unbound_wait_send : rdma_unbound_wait_recv)(w->mgr, w->buffer, ms, NULL);
}

static void *wait_here(void *arg) {
  waiter *w = arg;
  w->code = wait_for(w, RDMA_MSG_FOREVER);
  return NULL;
}

static void abort_one(const waiter *w) {
  CHECK_OK((w->send ? rdma_unbound_abort_wait_send : rdma_unbound_abort_wait_recv)(w->mgr, w->buffer));
}

static void told(const rdma_msg_status_t *status, void *userdata) {
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, status->code);
  atomic_fetch_add((_Atomic int *)userdata, 1);
}

/* Returns when somebody drives, which nobody but a thread that waits does. */
static void await_driver(rdma_mgr_t *mgr) {
  static _Atomic int ran;
  static char byte;
  rdma_msg_options_t options = {.struct_size = sizeof options, .timeout_ms = 1, .done = told, .userdata = &ran};
  int before = ran;
  CHECK_OK(rdma_msg_irecv(mgr, RDMA_PEER_ANY, 77, 0, RDMA_MSG_TAG_MASK, &byte, 1, &options, NULL, NULL));
  for (int64_t end = lived_ms() + patience(30000); ran == before; usleep(200)) CHECK(lived_ms() < end);
}

/* Not for one that begins to wait before the first has woken. */
static void an_abort_is_for_who_waits(void) {
  char memory[8];
  rdma_mgr_t *mgr = mgr_new("alpha", manual);
  waiter w = {.mgr = mgr};
  CHECK_OK(rdma_unbound_create(mgr, 5, memory, sizeof memory, &w.buffer));
  for (int round = 0; round < 40; round++) {
    pthread_t thread;
    w.send = round % 2;
    CHECK(pthread_create(&thread, NULL, wait_here, &w) == 0);
    await_driver(mgr);
    abort_one(&w);
    CHECK_BAD(RDMA_DEADLINE_EXCEEDED, wait_for(&w, 1));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_CODE(RDMA_CANCELLED, w.code);
    CHECK_BAD(RDMA_DEADLINE_EXCEEDED, wait_for(&w, 1));
  }
  CHECK_OK(rdma_unbound_destroy(mgr, w.buffer));
}

typedef struct taker {
  waiter w;
  _Atomic int *stop, *aborted;
} taker;

static void *take(void *arg) {
  taker *t = arg;
  while (!*t->stop) {
    rdma_code_t code = wait_for(&t->w, 1);
    if (code == RDMA_CANCELLED) atomic_fetch_add(t->aborted, 1);
    else CHECK(code == RDMA_OK || code == RDMA_DEADLINE_EXCEEDED);
  }
  return NULL;
}

/* However it meets the ends of waits: by their time, and by what they wait for. None is lost, and none is counted twice. */
static void each_abort_ends_one_wait(void) {
  enum { THREADS = 3, ABORTS = 2000 };
  char memory[8];
  rdma_mgr_t *mgr = mgr_new("alpha", NULL);
  rdma_peer_t self = number_of(mgr, "alpha");
  _Atomic int stop = 0, aborted = 0;
  taker t = {{.mgr = mgr}, &stop, &aborted};
  pthread_t thread[THREADS];
  CHECK_OK(rdma_unbound_create(mgr, 5, memory, sizeof memory, &t.w.buffer));
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, take, &t) == 0);
  for (int i = 0; i < ABORTS; i++) {
    if (i % 3 == 0) {
      CHECK_OK(rdma_unbound_recv(mgr, t.w.buffer, &self, 1, 1, 0, 8, 0));
      CHECK_OK(rdma_msg_isend(mgr, self, 5, 1, "content", 8, NULL, NULL));
    }
    abort_one(&t.w);
    if (i % 7 == 0) usleep(300);
  }
  CHECK(count_reached(&aborted, ABORTS, 30000));
  pump_for(20);
  stop = 1;
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
  CHECK_INT(ABORTS, aborted);
  CHECK_OK(rdma_unbound_destroy(mgr, t.w.buffer));
}

typedef struct inside {
  rdma_mgr_t *mgr;
  rdma_peer_t peer;
  _Atomic int ran;
} inside;

static void send_inside(const rdma_msg_status_t *status, void *userdata) {
  inside *in = userdata;
  rdma_msg_options_t options = {.struct_size = sizeof options};
  static char longer[100000];
  (void)status;
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_msg_send(in->mgr, in->peer, COMM, 2, "standard", 9, NULL));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_msg_send(in->mgr, in->peer, COMM, 2, "standard", 9, &options));
  options.mode = RDMA_MSG_BUFFERED;
  CHECK_OK(rdma_msg_send(in->mgr, in->peer, COMM, 2, "buffered", 9, &options));
  fill(longer, sizeof longer, 2);
  CHECK_OK(rdma_msg_send(in->mgr, in->peer, COMM, 2, longer, sizeof longer, &options));
  memset(longer, 0, sizeof longer);
  in->ran++;
}

/* Such a send waits for nothing; another would. */
static void buffered_sends_inside_a_callback(void) {
  pair p = pair_new(NULL);
  rdma_peer_t alpha = number_of(p.b, "alpha"), beta = number_of(p.a, "beta");
  inside in = {p.a, beta, 0};
  char *to = scratch(100000);
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = send_inside, .userdata = &in};
  CHECK_OK(rdma_msg_attach(p.a, 200000));
  CHECK_OK(rdma_msg_irecv(p.a, beta, COMM, 1, EXACT, to, 8, &options, NULL, NULL));
  isend(p.b, alpha, 1, "content", 8, RDMA_MSG_STANDARD);
  CHECK(count_reached(&in.ran, 1, 30000));
  for (int i = 0; i < 2; i++) {
    rdma_msg_status_t status = {.struct_size = sizeof status};
    rdma_msg_request_t request = irecv(p.b, alpha, 2, EXACT, to, 100000, &status);
    CHECK_INT(i ? 100000 : 9, received(p.b, request, status).bytes);
    if (i == 0) CHECK_STR("buffered", to);
  }
  CHECK_INT(-1, mismatch(to, 100000, 2));
}

typedef struct detacher {
  rdma_mgr_t *mgr;
  rdma_code_t code;
} detacher;

static void *detach_here(void *arg) {
  detacher *d = arg;
  d->code = rdma_msg_detach(d->mgr, RDMA_MSG_FOREVER);
  return NULL;
}

/* That says that all has gone, which it has not. */
static void a_detach_that_the_manager_ends(void) {
  pair p = pair_new(manual);
  rdma_peer_t beta = number_of(p.a, "beta");
  detacher d = {p.a, RDMA_OK};
  char *from = scratch(300000);
  pthread_t thread;
  CHECK_OK(rdma_msg_attach(p.a, 400000));
  isend(p.a, beta, 1, from, 300000, RDMA_MSG_BUFFERED);
  CHECK(pthread_create(&thread, NULL, detach_here, &d) == 0);
  await_driver(p.a);
  mgr_end(p.a);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_CODE(RDMA_CANCELLED, d.code);
}

/* The call has copied what is sent, and it waits: for a connection, and then for room. Its memory goes meanwhile. */
static void sends_that_wait_and_lose_their_memory(void) {
  static const size_t lens[] = {8, 5000, 12000};
  for (int pieces = 0; pieces < 2; pieces++) {
    for (size_t k = 0; k < COUNT_OF(lens); k++) {
      pair p = pair_new(NULL);
      rdma_peer_t alpha = number_of(p.b, "alpha"), beta = number_of(p.a, "beta");
      size_t n = lens[k];
      char *from = scratch(n), *to = scratch(n);
      rdma_msg_piece_t both[] = {{from, n / 2}, {from + n / 2, n - n / 2}};
      rdma_msg_layout_t layout = {.struct_size = sizeof layout, .kind = RDMA_MSG_IOVEC, .pieces = both, .count = 2};
      rdma_msg_options_t options = {.struct_size = sizeof options, .layout = pieces ? &layout : NULL};
      rdma_msg_request_t s = 0;
      fill(from, n, 3);
      CHECK_OK(rdma_mem_register(p.a, from, n, RDMA_DEVICE_HOST));
      CHECK_OK(rdma_msg_isend(p.a, beta, COMM, 1, pieces ? NULL : from, pieces ? 0 : n, &options, &s));
      CHECK_OK(rdma_mem_unregister(p.a, from));
      memset(from, 0, n);
      rdma_msg_status_t status, end = {.struct_size = sizeof end};
      rdma_msg_request_t r = irecv(p.b, alpha, 1, EXACT, to, n, &status);
      if (s != 0) end = end_of(p.a, s, NULL);
      CHECK_MSG(end.code == RDMA_OK || end.code == RDMA_FAILED_PRECONDITION, "%s", end.text);
      if (end.code == RDMA_OK) {
        CHECK_INT(RDMA_OK, received(p.b, r, status).code);
        CHECK_INT(-1, mismatch(to, n, 3));
      }
      pair_end(&p);
    }
  }
}

static void few_credits(rdma_mgr_options_t *o) { o->queue_depth = 4; }

/* More than the connection takes at once: when one that waits ends the next goes, out of the same memory. */
static void sends_behind_each_other_lose_their_memory(void) {
  enum { SENDS = 40, LEN = 300000 };
  static const size_t lens[] = {3000, 13000, LEN};
  pair p = pair_new(few_credits);
  rdma_peer_t alpha = number_of(p.b, "alpha"), beta = number_of(p.a, "beta");
  char *from = scratch(LEN), *to = scratch(SENDS * LEN), first[8];
  rdma_msg_request_t s[SENDS], r[SENDS];
  rdma_msg_status_t status[SENDS];
  rdma_msg_request_t known = irecv(p.b, alpha, 1, EXACT, first, 8, &status[0]), word = isend(p.a, beta, 1, "content", 8, RDMA_MSG_STANDARD);
  CHECK_INT(RDMA_OK, received(p.b, known, status[0]).code);
  if (word) end_of(p.a, word, NULL);
  for (size_t k = 0; k < 2 * COUNT_OF(lens); k++) {
    bool pieces = k % 2;
    size_t n = lens[k / 2];
    rdma_msg_piece_t both[] = {{from, n / 2}, {from + n / 2, n - n / 2}};
    rdma_msg_layout_t layout = {.struct_size = sizeof layout, .kind = RDMA_MSG_IOVEC, .pieces = both, .count = 2};
    rdma_msg_options_t options = {.struct_size = sizeof options, .layout = pieces ? &layout : NULL};
    fill(from, n, k);
    CHECK_OK(rdma_mem_register(p.a, from, n, RDMA_DEVICE_HOST));
    for (int i = 0; i < SENDS; i++)
      CHECK_OK(rdma_msg_isend(p.a, beta, COMM, 2, pieces ? NULL : from, pieces ? 0 : n, &options, &s[i]));
    /* The other end takes some, and there is room for more, which this end has not heard. */
    for (int i = 0; i < 2000; i++) CHECK_OK(rdma_mgr_progress(p.b, NULL));
    CHECK_OK(rdma_mem_unregister(p.a, from));
    memset(from, 0, n);
    for (size_t i = 0; i < SENDS; i++) r[i] = irecv(p.b, alpha, 2, EXACT, to + i * LEN, n, &status[i]);
    for (int i = 0; i < SENDS; i++) {
      rdma_code_t code = s[i] ? end_of(p.a, s[i], NULL).code : RDMA_OK;
      CHECK_MSG(code == RDMA_OK || code == RDMA_FAILED_PRECONDITION, "send %d: %s", i, rdma_code_name(code));
    }
    pump_for(20);
    for (int i = 0; i < SENDS; i++)
      if (r[i]) CHECK_OK(rdma_msg_cancel(p.b, r[i]));
    for (size_t i = 0; i < SENDS; i++)
      CHECK_MSG(received(p.b, r[i], status[i]).code != RDMA_OK || mismatch(to + i * LEN, n, k) < 0,
                "receive %zu of %zu bytes has other content", i, n);
  }
}

static const test_case cases[] = {
    CASE(an_abort_is_for_who_waits), SLOW(each_abort_ends_one_wait, 120), CASE(buffered_sends_inside_a_callback),
    CASE(a_detach_that_the_manager_ends), CASE(sends_that_wait_and_lose_their_memory),
    CASE(sends_behind_each_other_lose_their_memory),
};
TEST_MAIN(cases)
