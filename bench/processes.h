/* A parameter server of five processes: messages between them, by this library or by another. */
#ifndef PROCESSES_H
#define PROCESSES_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SERVERS = 2, WORKERS = 2, SCHEDULER = SERVERS + WORKERS, NODES = SCHEDULER + 1 };
static inline bool is_server(int node) { return node < SERVERS; }
static inline bool is_worker(int node) { return node >= SERVERS && node < SCHEDULER; }
/* Workers talk to everybody but one another. */
static inline bool talks(int a, int b) { return is_worker(a) != is_worker(b); }

typedef struct setup {
  int me;
  size_t room;                     /* longest message */
  bool condvar, pool;              /* of this library: see the usage */
  long long busy_poll_us;          /* -1: the default */
  char (*addresses)[256];          /* of all nodes, shared between the processes */
  pthread_barrier_t *all;          /* of all nodes */
} setup;

typedef struct message {
  int from;
  const char *data;
  size_t len;
  void *own;                       /* the transport's */
} message;

typedef struct transport {
  const char *name;
  /* Connects to everybody; memory of so many bytes, from which messages are sent. */
  char *(*open)(const setup *s, size_t memory);
  /* Does not wait. The data is not changed afterwards. */
  void (*send)(int to, const char *data, size_t len);
  /* The next message from anybody; sleeps until there is one. */
  message (*next)(void);
  void (*done)(message *m);
  void (*close)(void);
} transport;

extern const transport over_rdma, over_zmq;
void fail(const char *what, const char *why) __attribute__((noreturn));

#endif
