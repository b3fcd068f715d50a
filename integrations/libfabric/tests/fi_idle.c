/* Who reads an empty queue or a counter again and again leaves the processor to others now and then, and often where they take it. */
#define _GNU_SOURCE
#include <time.h>

#include "fi_test.h"

/* What the provider calls in place of the C library's. Nobody takes the processor, or everybody does. */
static unsigned offers;
static bool taken;

int sched_yield(void) {
  struct timespec begun, now;
  clock_gettime(CLOCK_MONOTONIC, &begun);
  for (now = begun; taken && (now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < 5000;)
    clock_gettime(CLOCK_MONOTONIC, &now);
  ++offers;
  return 0;
}

enum { TURNS = 100000, FEW = 100 };

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .threading = FI_THREAD_DOMAIN};

/* Seldom enough that nobody feels it who has a processor of his own, and often enough that a peer need not wait for the scheduler. */
static void some(const char *what) {
  fprintf(stderr, "%s: %u offers in %d turns\n", what, offers, TURNS);
  /* Where this thread loses its processor in the middle of one, some dozens of others follow. */
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

/* Others take it: it is offered soon again, until nobody does. */
static void crowd(struct side *s) {
  struct fi_cq_tagged_entry entry;
  offers = 0, taken = true;
  for (int i = 0; i < TURNS / 10; ++i) CHECK(fi_cq_read(s->cq, &entry, 1) == -FI_EAGAIN);
  fprintf(stderr, "others take it: %u offers in %d turns\n", offers, TURNS / 10);
  CHECK(offers >= TURNS / 10 / 8 && offers <= TURNS / 10 / 2);
  offers = 0, taken = false;
  empty_queue(s);
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
  crowd(&b);
  messages(&a, &b);
  close_pair(&a, &b);
  return 0;
}
