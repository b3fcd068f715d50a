/* Threads that share an endpoint, a queue, a domain, and what each of them may do while another is in it. */
#include <poll.h>
#include <pthread.h>

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

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } cases[] = {{"close_while_read", close_while_read},
               {"cancel_between_messages", cancel_between_messages}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    if (argc > 1 && strcmp(argv[1], cases[i].name) != 0) continue;
    cases[i].run();
  }
  puts("fi_threads: well");
  return 0;
}
