/* Who reads an empty queue or a counter again and again leaves the processor to others now and then. */
#define _GNU_SOURCE
#include <sys/syscall.h>

#include "fi_test.h"

/* What the provider calls in place of the C library's. */
static unsigned offers;

int sched_yield(void) {
  ++offers;
  return (int)syscall(SYS_sched_yield);
}

enum { TURNS = 100000, FEW = 100 };

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .threading = FI_THREAD_DOMAIN};

/* Seldom enough that nobody feels it who has a processor of his own, and often enough that a peer need not wait for the scheduler. */
static void some(const char *what) {
  fprintf(stderr, "%s: %u offers in %d turns\n", what, offers, TURNS);
  CHECK(offers >= TURNS / 2000 && offers <= TURNS / 100);
  offers = 0;
}

/* Open MPI's blocking send waits so for the acknowledgement of a synchronous one. */
static void empty_queue(struct side *s) {
  struct fi_cq_tagged_entry entry;
  offers = 0;
  for (int i = 0; i < TURNS; ++i) CHECK(fi_cq_read(s->cq, &entry, 1) == -FI_EAGAIN);
  some("an empty queue");
}

static void counter(struct side *s) {
  for (int i = 0; i < TURNS; ++i) fi_cntr_read(s->received);
  some("a counter");
}

/* A turn that found something counts as none before it. */
static void messages(struct side *a, struct side *b) {
  struct fi_cq_tagged_entry entry;
  char in[8];
  offers = 0;
  for (int i = 0; i < TURNS / FEW; ++i) {
    OK(fi_recv(b->ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_inject(a->ep, "hello", 6, a->other));
    expect(b, a, in);
    for (int k = 0; k < FEW; ++k) CHECK(fi_cq_read(b->cq, &entry, 1) == -FI_EAGAIN);
  }
  fprintf(stderr, "a message among %d turns: %u offers\n", FEW, offers);
  /* The sender, who hears nothing, is driven as well. */
  CHECK(offers <= TURNS / FEW);
}

int main(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  char in[8];
  OK(fi_recv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
  OK(fi_inject(a.ep, "hello", 6, a.other));
  expect(&b, &a, in);
  empty_queue(&b);
  counter(&b);
  messages(&a, &b);
  close_pair(&a, &b);
  return 0;
}
