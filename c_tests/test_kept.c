/* A callback that stands still keeps the thread that it runs on, and what waits for it: not the others that drive, or could. */
#include "messages.h"

#include <poll.h>

enum { HANDLER = 9 };

typedef struct stands {
  _Atomic int held, go, ended;
  pthread_t thread; /* it stands still on this one alone, or, if `spared`, on any but this */
  bool spared;
} stands;

static uint32_t on_active(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  stands *s = userdata;
  (void)mgr, (void)status, (void)data;
  if (!pthread_equal(s->thread, pthread_self()) == s->spared && atomic_exchange(&s->held, 1) == 0) {
    while (!atomic_load(&s->go)) usleep(1000);
    atomic_fetch_add(&s->ended, 1);
  }
  return RDMA_MSG_HANDLED;
}

typedef struct both {
  rdma_mgr_t *a, *b;
  pthread_t drives_a;
} both;

static both begin(stands *s) {
  both m = {mgr_new("alpha", NULL), mgr_new("beta", NULL), 0};
  char at_b[256];
  mgr_listen(m.b, at_b);
  CHECK_OK(rdma_mgr_add_peer(m.a, "beta", at_b));
  CHECK_OK(rdma_msg_handler(m.b, HANDLER, on_active, s));
  drive_by(&m.drives_a, 1, m.a);
  return m;
}

static void end(both *m) {
  join_all(&m->drives_a, 1);
  mgr_end(m->a);
  mgr_end(m->b);
}

/* Until a callback stands still. */
static void stand(both *m, stands *s) {
  for (int64_t until = now_ms() + patience(20000); !atomic_load(&s->held) && now_ms() < until;) {
    CHECK_OK(rdma_msg_am_isend(m->a, number_of(m->a, "beta"), HANDLER, 1, "act", 3, NULL, NULL));
    usleep(3000);
  }
  CHECK_INT(1, atomic_load(&s->held));
}

/* Drives until something stands still, and until it goes on. */
typedef struct waits {
  rdma_mgr_t *mgr;
  stands *s;
} waits;
static void *wait_for_it(void *arg) {
  waits *w = arg;
  while (!atomic_load(&w->s->go)) {
    rdma_code_t code = rdma_mgr_wait(w->mgr, 20);
    CHECK_MSG(code == RDMA_OK || code == RDMA_DEADLINE_EXCEEDED, "%s", rdma_code_name(code));
  }
  return NULL;
}

/* Each of several drives when its turn comes; the callback keeps whichever it is. Another gets its message. */
static void others_that_wait_go_on(void) {
  static stands s;
  s = (stands){.thread = pthread_self(), .spared = true};
  both m = begin(&s);
  pthread_t threads[2];
  waits w = {m.b, &s};
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, wait_for_it, &w) == 0);
  stand(&m, &s);
  char to[8] = {0};
  rdma_msg_options_t options = {.struct_size = sizeof options, .timeout_ms = patience(20000)};
  for (uint64_t i = 0; i < 5; i++) {
    (void)isend(m.a, number_of(m.a, "beta"), i, "word", 5, RDMA_MSG_STANDARD);
    CHECK_OK(rdma_msg_recv(m.b, number_of(m.b, "alpha"), COMM, i, EXACT, to, sizeof to, &options, NULL));
    CHECK(strcmp(to, "word") == 0);
  }
  CHECK_INT(0, atomic_load(&s.ended));
  atomic_store(&s.go, 1);
  for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  end(&m);
  CHECK_INT(1, atomic_load(&s.ended));
}

static void on_received(const rdma_msg_status_t *status, void *userdata) {
  CHECK_INT(RDMA_OK, status->code);
  atomic_fetch_add((_Atomic int *)userdata, 1);
}

/* The only caller that drives is kept: the progress thread had left the seat to it. */
static void the_thread_goes_on(void) {
  if (is_manual()) return;
  static stands s;
  static _Atomic int words;
  s = (stands){.spared = false};
  atomic_store(&words, 0);
  both m = begin(&s);
  waits w = {m.b, &s};
  CHECK(pthread_create(&s.thread, NULL, wait_for_it, &w) == 0);
  stand(&m, &s);
  char to[8] = {0};
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = on_received, .userdata = &words};
  for (int i = 0; i < 5; i++) {
    CHECK_OK(rdma_msg_irecv(m.b, number_of(m.b, "alpha"), COMM, 1, EXACT, to, sizeof to, &options, NULL, NULL));
    (void)isend(m.a, number_of(m.a, "beta"), 1, "word", 5, RDMA_MSG_STANDARD);
    for (int64_t until = now_ms() + patience(20000); atomic_load(&words) <= i && now_ms() < until;) usleep(1000);
    CHECK_INT(i + 1, atomic_load(&words));
  }
  CHECK(strcmp(to, "word") == 0);
  atomic_store(&s.go, 1);
  CHECK(pthread_join(s.thread, NULL) == 0);
  end(&m);
}

/* A thread whose loop waits on the manager's descriptor, without an end to its patience but that of the case. */
static void *by_descriptor(void *arg) {
  waits *w = arg;
  struct pollfd entry = {.events = POLLIN};
  CHECK_OK(rdma_mgr_event_fd(w->mgr, &entry.fd));
  while (!atomic_load(&w->s->go))
    if (poll(&entry, 1, patience(30000)) == 1) CHECK_OK(rdma_mgr_progress(w->mgr, NULL));
  return NULL;
}

static void on_cancelled(const rdma_msg_status_t *status, void *userdata) {
  CHECK_INT(RDMA_CANCELLED, status->code);
  atomic_store((_Atomic int *)userdata, 1);
}

static void r46_the_event_descriptor_tells_while_a_callback_stands_still(void) {
  if (!is_manual()) return;
  static stands s;
  static _Atomic int cancelled;
  s = (stands){.thread = pthread_self(), .spared = true};
  atomic_store(&cancelled, 0);
  /* Alone: nothing is due by itself. */
  rdma_mgr_t *m = mgr_new("alone", NULL);
  rdma_peer_t self = number_of(m, "alone");
  CHECK_OK(rdma_msg_handler(m, HANDLER, on_active, &s));
  char to[8];
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = on_cancelled, .userdata = &cancelled};
  rdma_msg_request_t request = 0;
  CHECK_OK(rdma_msg_irecv(m, self, COMM, 1, EXACT, to, sizeof to, &options, NULL, &request));
  waits w = {m, &s};
  pthread_t loops[2];
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&loops[i], NULL, by_descriptor, &w) == 0);
  CHECK_OK(rdma_msg_am_isend(m, self, HANDLER, 1, "act", 3, NULL, NULL));
  for (int64_t until = now_ms() + patience(20000); !atomic_load(&s.held) && now_ms() < until;) usleep(1000);
  CHECK_INT(1, atomic_load(&s.held));
  const int64_t begun = now_ms();
  CHECK_OK(rdma_msg_cancel(m, request));
  while (!atomic_load(&cancelled) && now_ms() < begun + patience(10000)) usleep(1000);
  CHECK_INT(1, atomic_load(&cancelled));
  CHECK_INT(0, atomic_load(&s.ended));
  atomic_store(&s.go, 1);
  CHECK_OK(rdma_mgr_wake(m));
  for (int i = 0; i < 2; i++) CHECK(pthread_join(loops[i], NULL) == 0);
  mgr_end(m);
}

static const test_case cases[] = {SLOW(others_that_wait_go_on, 120), SLOW(the_thread_goes_on, 120),
                                  SLOW(r46_the_event_descriptor_tells_while_a_callback_stands_still, 120)};
TEST_MAIN(cases)
