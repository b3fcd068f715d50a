/* Latency and bandwidth over the public ABI: two processes, one core each (loopback: two threads). */
#ifndef BENCH_H
#define BENCH_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <rdma_transport.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { MODE_LATENCY, MODE_READY, MODE_RATE, MODE_BANDWIDTH, MODES };
enum { MEM_MALLOC, MEM_REGISTERED, MEM_POOL, MEMS };
/* How the application waits beside a progress thread: in rdma_mgr_wait or by a condition variable for its callbacks, or in
 * blocking receives where it takes one at a time. */
enum { WAIT_MGR, WAIT_CONDVAR, WAIT_BLOCK, WAITS };
extern const char *const mode_names[MODES], *const mem_names[MEMS], *const wait_names[WAITS];

typedef struct settings {
  const char *provider;
  int32_t progress, protocol;
  int memory, wait;
  unsigned modes;        /* bit per mode */
  uint64_t min, max;     /* sizes: min, times 8 and so on, max */
  double seconds;        /* per point, roughly */
  int cores[2];
} settings;

typedef struct side {
  const settings *s;
  rdma_mgr_t *mgr;
  const char *name, *peer;
  bool client;
  void *buffer;            /* source and destination, one after the other */
  uint64_t room;           /* bytes of each half */
  _Atomic int64_t sends, recvs; /* ended */
  pthread_mutex_t lock;    /* WAIT_CONDVAR: what ends is counted under it */
  pthread_cond_t reached;
  _Atomic int64_t *awaited; /* the counter that the application waits for, and how far */
  int64_t target;
  int64_t step;
} side;

/* side.c */
void die(const char *what) __attribute__((noreturn));
void must(rdma_code_t code, const char *what);
double now(void);
void pin(int core);
side *side_open(const settings *s, bool client, char address[256]);
void side_peer(side *x, const char *address);
void side_close(side *x);
void post_send(side *x, int64_t i, uint64_t n);
void post_recv(side *x, int64_t i, uint64_t n);
void block_recv(side *x, int64_t i, uint64_t n);
void wait_sends(side *x, int64_t count);
void wait_recvs(side *x, int64_t count);
void begin_point(side *x);
enum { OPEN_STEPS = 128 };
void tidy(side *x, int64_t i);

/* measure.c */
void run_schedule(side *x);

#endif
