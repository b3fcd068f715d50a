/* Who reads an empty queue or a counter again and again leaves the processor to others now and then, and often where they take it. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fi_test.h"

/* What the provider calls in place of the C library's: nobody takes the processor, or everybody does. Its clock says so too: what the
   machine does beside this test, or below it, between two readings is not what is tested. */
static unsigned offers;
static bool taken;
static _Thread_local struct timespec last;
static _Thread_local bool offered;

int clock_gettime(clockid_t id, struct timespec *at) {
  if (id == CLOCK_MONOTONIC && offered) {
    *at = last;
    at->tv_nsec += taken ? 5000 : 50;
    if (at->tv_nsec >= 1000000000) at->tv_nsec -= 1000000000, ++at->tv_sec;
  } else if (syscall(SYS_clock_gettime, id, at) != 0) {
    return -1;
  }
  if (id == CLOCK_MONOTONIC) last = *at, offered = false;
  return 0;
}

int sched_yield(void) {
  /* So much time as the clock will say, so that it never goes back. */
  const struct timespec begun = last;
  for (struct timespec now = begun; taken && (now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < 5000;)
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  offered = true;
  ++offers;
  return 0;
}

enum { TURNS = 100000, FEW = 100 };

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .threading = FI_THREAD_DOMAIN};

/* Seldom enough that nobody feels it who has a processor of his own, and often enough that a peer need not wait for the scheduler. */
static void some(const char *what) {
  fprintf(stderr, "%s: %u offers in %d turns\n", what, offers, TURNS);
  CHECK(offers >= TURNS / 2000 && offers <= TURNS / 200);
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
