/* One way of each kind between two processes, for tests of what surrounds them. */
#ifndef RT_TOUR_H
#define RT_TOUR_H
#include "harness.h"

/* One end: rank 0 or 1. */
typedef struct tourist {
  rdma_mgr_t *mgr;
  const char *name, *other; /* of the managers */
  rdma_peer_t peer;
  int rank;
  int64_t timeout_ms; /* of each operation */
  rdma_pair_t pair;
  char *out, *in; /* TOUR_BYTES each */
  const char *at; /* what it does, or what failed */
  int64_t since;  /* now_ms() of when that began */
  char why[400];
  _Atomic int active_bad, active_came;
} tourist;

enum { TOUR_BYTES = 400000 };

/* Both ends call the same; the first failure ends it. */
rdma_code_t tour_begin(tourist *t); /* after add_peer: connects, and a pair */
rdma_code_t tour_round(tourist *t, int round);
void tour_end(tourist *t); /* frees memory; pairs end with their manager */
/* A child that begins a tour as rank 1 and makes rounds, so many, or until one fails: arguments name, own address, other's name,
 * address, milliseconds of a deadline, rounds (0: for ever), a limit (tour.c; none). Says "addr ADDRESS", then "ended CODE AT: WHY". */
int tour_role(int argc, char **argv);

/* ---- two ends: this process, and a child ---- */
typedef struct tour_ends {
  tourist t;
  proc *child;
} tour_ends;
extern int64_t tour_deadline_ms;      /* of this end's operations: 20 s */
extern const char *tour_child_limit;  /* of the next child, "" */
/* Begins; a failure is in e->t. */
rdma_code_t tour_together(tour_ends *e, int64_t child_ms, int child_rounds);
void tour_apart(tour_ends *e); /* the child is left to proc_kill or tour_finish */
/* What the child has said after this; NULL: it has ended, however. */
const char *tour_word(proc *p, const char *after);
int tour_finish(proc *p); /* has the child end; its exit status, or 128 and a signal */
#define CHECK_TOUR(e, code) \
  CHECK_MSG((code) == RDMA_OK, "%s: %s: %s", (e)->t.at, rdma_code_name(code), (e)->t.why)
#endif
