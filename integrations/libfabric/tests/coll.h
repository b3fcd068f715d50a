/* What the files of collectives share. */
#ifndef COLL_H
#define COLL_H
#include "check.h"

/* Calls the one that blocks, or the other and waits. */
#define RUN(blocking, nonblocking, ...)                                                                                                   \
  do {                                                                                                                                    \
    if (later) {                                                                                                                          \
      MPI_Request started;                                                                                                                \
      nonblocking(__VA_ARGS__, &started);                                                                                                 \
      MPI_Wait(&started, MPI_STATUS_IGNORE);                                                                                              \
    } else {                                                                                                                              \
      blocking(__VA_ARGS__);                                                                                                              \
    }                                                                                                                                     \
  } while (0)

/* The i-th number that one rank has for another. */
static inline int item(int from, int to, int i) { return from * 1000003 + to * 10007 + i; }

static inline int *ints(size_t count) {
  int *made = room(count * sizeof *made);
  memset(made, 0xff, count * sizeof *made);
  return made;
}

static inline void put_items(int *memory, int count, int from, int to) {
  for (int i = 0; i < count; i++) memory[i] = item(from, to, i);
}

static inline void want_items(const int *memory, int count, int from, int to, const char *what) {
  for (int i = 0; i < count; i++) CHECK(memory[i] == item(from, to, i), "%s of %d from %d: number %d is %d", what, count, from, i, memory[i]);
  see(memory, (size_t)count * sizeof *memory);
}
#endif
