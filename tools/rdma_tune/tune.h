/* rdma_tune: measures where one protocol of rdma-transport overtakes another on this machine. */
#ifndef RDMA_TUNE_H
#define RDMA_TUNE_H
#include <rdma_transport.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* ---- two processes that move tensors by one protocol (sides.c) ---- */
enum { ORDINARY, POOL, MEMORIES }; /* both ends' memory */
enum { MAX_CONTENT = 1 << 20, MAX_WINDOW = 16 };

typedef struct sides {
  pid_t sender, receiver;
  int ask, answer; /* of the receiver */
  int until;       /* of the sender: its end */
  uint64_t eager_max;
  char why[512]; /* it did not start */
} sides;

/* Starts both with this protocol forced. False: `why` says what is missing. */
bool sides_start(sides *s, const char *provider, const char *protocol);
void sides_end(sides *s);

typedef struct task {
  uint32_t nbytes, memory, window, count; /* transfers, so many at a time */
} task;
typedef struct took {
  double us;         /* per transfer */
  uint32_t protocol; /* that carried the last one */
  int32_t failed;    /* rdma_code_t */
} took;
took sides_measure(sides *s, task t);

/* ---- what the figures say (choose.c) ---- */
enum { MAX_SIZES = 24, WINDOWS = 2 };
extern const uint32_t windows[WINDOWS];

typedef struct point {
  uint32_t nbytes;
  double eager[MEMORIES][WINDOWS], put[MEMORIES][WINDOWS]; /* medians, microseconds */
  double half[2]; /* sums of logarithms of eager / put, by the even and by the odd rounds alone */
} point;

typedef struct finding {
  char provider[16];
  size_t sizes;
  point at[MAX_SIZES];
  uint64_t built_in;
  uint64_t best;  /* the limit with which the least time is spent */
  double gain;    /* by how much, at the sizes between the two; 0.05: a twentieth */
  bool differs;   /* by more than noise, and by either half of the rounds */
} finding;

double ratio_at(const point *p); /* of eager to put: below 1 eager is quicker */
void choose_limit(finding *f);

double median(double *values, size_t n); /* sorts them */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
