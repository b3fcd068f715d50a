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
 * address, milliseconds of a deadline, rounds (0: for ever). Says "addr ADDRESS", then "ended CODE AT: WHY". */
int tour_role(int argc, char **argv);
#endif
