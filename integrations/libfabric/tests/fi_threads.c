/* Threads that share an endpoint, a queue, a domain, and what each of them may do while another is in it. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_UNSPEC};

struct reader {
  struct side *side;
  _Atomic int stop;
};

static void *read_on(void *arg) {
  struct reader *r = arg;
  struct fi_cq_tagged_entry e;
  while (!r->stop) {
    CHECK(fi_cq_read(r->side->cq, &e, 1) == -FI_EAGAIN);
    (void)fi_cntr_read(r->side->sent);
  }
  return NULL;
}

/* An endpoint is closed while other threads drive it by the queue and the counter that it shares with others. More of them than
 * processors: one that is interrupted in the middle of it stays there long. */
static void close_while_read(void) {
  struct side a;
  open_side(&a, kUsual);
  struct reader r = {&a, 0};
  pthread_t threads[8];
  for (int i = 0; i < 8; ++i) OK(pthread_create(&threads[i], NULL, read_on, &r));
  for (int i = 0; i < 2000; ++i) {
    struct fid_ep *ep;
    OK(fi_endpoint(a.domain, a.info, &ep, NULL));
    OK(fi_ep_bind(ep, &a.av->fid, 0));
    OK(fi_ep_bind(ep, &a.cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(ep, &a.sent->fid, FI_SEND));
    OK(fi_enable(ep));
    OK(fi_close(&ep->fid));
  }
  r.stop = 1;
  for (int i = 0; i < 8; ++i) pthread_join(threads[i], NULL);
  close_side(&a);
}

static void *drive(void *arg) {
  struct reader *r = arg;
  while (!r->stop) (void)fi_cntr_read(r->side->received);
  return NULL;
}

/* A buffer for several is cancelled as soon as a message came into it, while another thread gives its rest to the next. */
static void cancel_between_messages(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  struct reader r = {&b, 0};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) OK(pthread_create(&threads[i], NULL, drive, &r));
  char in[1000];
  struct iovec iov = {in, sizeof in};
  struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = in};
  for (int i = 0; i < 20000; ++i) {
    OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
    OK(fi_inject(a.ep, "content", 7, a.other));
    CHECK(expect(&b, &a, in).len == 7);
    OK(fi_cancel(&b.ep->fid, in));
    CHECK(expect_error(&b, &a, in, FI_ECANCELED).flags & FI_MULTI_RECV);
  }
  r.stop = 1;
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  close_pair(&a, &b);
}

/* The next completion, slept for while another thread drives. */
static void sleep_for(struct side *s, void *context, int err) {
  struct fi_cq_tagged_entry entry = {0};
  struct fi_cq_err_entry error = {0};
  const ssize_t got = fi_cq_sread(s->cq, &entry, 1, NULL, (int)(1000 * PATIENCE));
  CHECK(got == (err != 0 ? -FI_EAVAIL : 1));
  if (err != 0) CHECK(fi_cq_readerr(s->cq, &error, 0) == 1 && error.err == err);
  CHECK((err != 0 ? error.op_context : entry.op_context) == context);
}

struct sender {
  struct side *from, *to;
  _Atomic int wanted, stop;
};

/* Drives, and sends where that is wanted, when the other sleeps. */
static void *send_on(void *arg) {
  struct sender *s = arg;
  for (int sent = 0; !s->stop;) {
    if (sent < s->wanted) {
      usleep(200);
      OK(fi_inject(s->from->ep, "content", 7, s->from->other));
      ++sent;
    }
    CHECK(fi_cq_read(s->from->cq, NULL, 0) <= 0);
    (void)fi_cntr_read(s->to->received);
  }
  return NULL;
}

/* The same context again, by who is woken on the one processor as soon as the other thread tells of the last: it has nothing else to
 * do with that buffer, but has not put it away yet. */
static void cancel_the_next(void) {
  cpu_set_t all, one;
  OK(sched_getaffinity(0, sizeof all, &all));
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  OK(sched_setaffinity(0, sizeof one, &one));
  struct side a, b;
  open_pair(&a, &b, kUsual);
  struct sender s = {&a, &b, 0, 0};
  pthread_t thread;
  OK(pthread_create(&thread, NULL, send_on, &s));
  char in[1000];
  struct iovec iov = {in, sizeof in};
  struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = in};
  for (int i = 0; i < 3000; ++i) {
    OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
    ++s.wanted;
    sleep_for(&b, in, 0);
    OK(fi_cancel(&b.ep->fid, in));
    sleep_for(&b, in, FI_ECANCELED);
    OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
    OK(fi_cancel(&b.ep->fid, in));
    sleep_for(&b, in, FI_ECANCELED);
  }
  s.stop = 1;
  pthread_join(thread, NULL);
  close_pair(&a, &b);
  OK(sched_setaffinity(0, sizeof all, &all));
}

struct sleeper {
  struct side *side;
  _Atomic int got, stop, ended;
};

/* Takes a completion, and then does something else until the other has the next. */
static void *sleep_on(void *arg) {
  struct sleeper *s = arg;
  struct fi_cq_tagged_entry e;
  while (!s->stop) {
    const ssize_t n = fi_cq_sread(s->side->cq, &e, 1, NULL, -1);
    if (n == -FI_EAGAIN) continue; /* a signal */
    CHECK(n == 1);
    const int mine = ++s->got;
    while (mine % 2 == 1 && s->got == mine) usleep(100);
  }
  ++s->ended;
  return NULL;
}

/* Two threads sleep for one queue. The first of two messages wakes both, perhaps; the second has to wake the one that found
 * nothing, while the other is busy. */
static void two_sleep(enum fi_progress progress) {
  struct setup how = kUsual;
  how.progress = progress;
  struct side a, b;
  open_pair(&a, &b, how);
  char in[8];
  struct sleeper s = {.side = &b};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) OK(pthread_create(&threads[i], NULL, sleep_on, &s));
  for (int i = 1; i <= 400; ++i) {
    OK(fi_recv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
    usleep(i % 4 < 2 ? 300 : 2000);
    OK(fi_inject(a.ep, "content", 7, a.other));
    const double until = now() + PATIENCE;
    while (s.got < i) {
      CHECK(now() < until);
      (void)fi_cq_read(a.cq, NULL, 0);
      usleep(50);
    }
  }
  s.stop = 1;
  while (s.ended < 2) {
    OK(fi_cq_signal(b.cq));
    usleep(1000);
  }
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  close_pair(&a, &b);
}

static void two_sleep_manual(void) { two_sleep(FI_PROGRESS_MANUAL); }
static void two_sleep_auto(void) { two_sleep(FI_PROGRESS_AUTO); }

/* And for one counter, each for a value of its own: what wakes one may be nothing to the other. */
static void *count_on(void *arg) {
  struct reader *r = arg;
  for (uint64_t i = 1; i <= 400; ++i) {
    OK(fi_cntr_wait(r->side->received, i, -1));
    if (r->stop) ++i;
  }
  return NULL;
}

static void two_count(void) {
  struct setup how = kUsual;
  how.progress = FI_PROGRESS_AUTO;
  struct side b;
  open_side(&b, how);
  struct reader readers[2] = {{&b, 0}, {&b, 1}};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) OK(pthread_create(&threads[i], NULL, count_on, &readers[i]));
  for (int i = 0; i < 400; ++i) {
    usleep(i % 4 < 2 ? 100 : 1000);
    OK(fi_cntr_add(b.received, 1));
  }
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  close_side(&b);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } cases[] = {{"close_while_read", close_while_read},
               {"cancel_between_messages", cancel_between_messages},
               {"cancel_the_next", cancel_the_next},
               {"two_sleep_manual", two_sleep_manual},
               {"two_sleep_auto", two_sleep_auto},
               {"two_count", two_count}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    if (argc > 1 && strcmp(argv[1], cases[i].name) != 0) continue;
    cases[i].run();
  }
  puts("fi_threads: well");
  return 0;
}
