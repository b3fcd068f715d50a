/* What it takes to connect many ranks: time, memory, descriptors, threads. See bench/scale and docs/scale.md.
   usage: rdma_scale PROVIDER threads|processes lazy|full RANKS [SECONDS [REST]]
   Ranks are threads of one process, each with a manager, or processes. They meet through a store in memory, or served over TCP by rank 0;
   lazy: then each talks to the next one alone; full: to all of them. SECONDS: how long each step may take (60); REST: how many pass before it is seen what is used (0). Prints
   ranks,seconds to meet,seconds to connect,connections,KiB,descriptors,mappings,threads,idle: of a rank, without what there was before.
   On tcp a rank that is a thread has a table of descriptors of its own, as a process has, which its manager's threads share: what limits them is a
   limit of each table, and 256 ranks of one process, all of which talk to all, have 65,280 sockets. On shm they share one, by which they meet. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <pthread.h>
#include <rdma_transport.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096, IDLE_MS = 1000 };

/* Of a process. */
typedef struct facts {
  double kib, descriptors, mappings, threads, cpu;
} facts;

typedef struct page {
  pthread_barrier_t all;
  char store[256]; /* where rank 0 serves it */
  double met, connected, first[MOST], last[MOST]; /* descriptors, before and at the end */
  facts before[MOST], after[MOST], idle[MOST];
} page;

static page *shared;
static const char *provider;
static bool processes, full, own_table;
static int size;
static int64_t patience_ms = 60000;
static struct timespec rest;
static rdma_store_t *in_memory; /* of ranks that are threads */

static void fail(const char *what, const char *why) {
  fprintf(stderr, "rdma_scale: %s: %s\n", what, why);
  _exit(1);
}
static void must(rdma_code_t code, const char *what) {
  char why[600] = "";
  if (code == RDMA_OK) return;
  rdma_last_error(why, sizeof why);
  fail(what, why);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The number behind a word at the beginning of a line. */
static double number_in(const char *path, const char *word) {
  char line[512];
  double n = 0;
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  while (fgets(line, sizeof line, f))
    if (strncmp(line, word, strlen(word)) == 0) n = atof(line + strlen(word));
  fclose(f);
  return n;
}
static double lines_of(const char *path) {
  double n = 0;
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  for (int c; (c = fgetc(f)) != EOF;) n += c == '\n';
  fclose(f);
  return n;
}
static double entries_of(const char *path) {
  double n = 0;
  DIR *d = opendir(path);
  if (!d) return 0;
  while (readdir(d)) n++;
  closedir(d);
  return n - 3; /* the folder's own, "." and ".." */
}

static facts look(void) {
  struct rusage use;
  facts f = {number_in("/proc/self/smaps_rollup", "Pss:"), 0, lines_of("/proc/self/maps"),
             number_in("/proc/self/status", "Threads:"), 0};
  getrusage(RUSAGE_SELF, &use);
  f.cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) + (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
  return f;
}

/* Of a rank: a share of them, where all have one table. */
static double descriptors(void) { return entries_of("/proc/thread-self/fd") / (own_table || processes ? 1 : size); }

/* All ranks are here; true for those that say something of their process. */
static bool meet(int rank) {
  pthread_barrier_wait(&shared->all);
  return processes || rank == 0;
}

static rdma_store_t *open_store(int rank) {
  rdma_store_options_t o;
  rdma_store_t *store = NULL;
  must(rdma_store_options_init(&o, sizeof o), "rdma_store_options_init");
  if (!processes) {
    if (rank == 0) must(rdma_store_memory(&o, &in_memory), "rdma_store_memory");
    meet(rank);
    return in_memory;
  }
  if (rank == 0)
    must(rdma_store_tcp_serve("127.0.0.1:0", &o, shared->store, sizeof shared->store, NULL, &store), "rdma_store_tcp_serve");
  meet(rank);
  if (rank != 0) must(rdma_store_tcp(shared->store, &o, &store), "rdma_store_tcp");
  return store;
}

/* A word to the next rank, and one from the last. */
static void talk(rdma_mgr_t *mgr, const rdma_mesh_t *mesh, int rank) {
  rdma_peer_t next, last;
  int word = rank, heard = -1;
  must(rdma_mesh_peer(mesh, (uint32_t)((rank + 1) % size), &next), "rdma_mesh_peer");
  must(rdma_mesh_peer(mesh, (uint32_t)((rank + size - 1) % size), &last), "rdma_mesh_peer");
  rdma_msg_options_t o;
  must(rdma_msg_options_init(&o, sizeof o), "rdma_msg_options_init");
  o.timeout_ms = patience_ms;
  must(rdma_msg_send(mgr, next, 0, 1, &word, sizeof word, &o), "rdma_msg_send");
  must(rdma_msg_recv(mgr, last, 0, 1, RDMA_MSG_TAG_MASK, &heard, sizeof heard, &o, NULL), "rdma_msg_recv");
  if (heard != (rank + size - 1) % size) fail("a message", "of another rank");
}

static void live(int rank) {
  struct timespec idle = {IDLE_MS / 1000, 0};
  rdma_mgr_options_t o;
  rdma_mesh_options_t m;
  rdma_mgr_t *mgr = NULL;
  rdma_mesh_t *mesh = NULL;
  char name[32];
  if (own_table && unshare(CLONE_FILES) != 0) fail("a table of descriptors", "none");
  /* Files that facts are read from, and what else the first use of something leaves behind. */
  if (meet(rank)) look();
  if (meet(rank)) shared->before[rank] = look();
  shared->first[rank] = descriptors();
  meet(rank);
  rdma_store_t *store = open_store(rank);
  must(rdma_mgr_options_init(&o, sizeof o), "rdma_mgr_options_init");
  must(rdma_mesh_options_init(&m, sizeof m), "rdma_mesh_options_init");
  snprintf(name, sizeof name, "rank-%d", rank);
  o.name = name;
  o.provider = provider;
  m.timeout_ms = patience_ms;
  meet(rank);
  double begun = now();
  must(rdma_mgr_create(&o, &mgr), "rdma_mgr_create");
  must(rdma_mesh_connect(mgr, store, (uint32_t)rank, (uint32_t)size, &m, &mesh), "rdma_mesh_connect");
  meet(rank);
  if (rank == 0) shared->met = now() - begun;
  begun = now();
  if (full) {
    must(rdma_mesh_destroy(mesh), "rdma_mesh_destroy");
    m.full = 1;
    must(rdma_mesh_connect(mgr, store, (uint32_t)rank, (uint32_t)size, &m, &mesh), "rdma_mesh_connect, full");
  }
  talk(mgr, mesh, rank);
  meet(rank);
  if (rank == 0) shared->connected = now() - begun;
  if (meet(rank)) shared->after[rank] = look();
  meet(rank);
  nanosleep(&rest, NULL);
  if (meet(rank)) shared->after[rank].cpu = look().cpu;
  meet(rank);
  nanosleep(&idle, NULL);
  if (meet(rank)) shared->idle[rank] = look();
  meet(rank);
  shared->last[rank] = descriptors();
  meet(rank);
  must(rdma_mesh_destroy(mesh), "rdma_mesh_destroy");
  must(rdma_mgr_destroy(mgr), "rdma_mgr_destroy");
  meet(rank);
  if (processes || rank == 0) must(rdma_store_destroy(store), "rdma_store_destroy");
}

static void *as_thread(void *rank) {
  live((int)(intptr_t)rank);
  return NULL;
}

static void in_threads(void) {
  static pthread_t threads[MOST];
  for (int rank = 0; rank < size; rank++)
    if (pthread_create(&threads[rank], NULL, as_thread, (void *)(intptr_t)rank) != 0) fail("a thread", "none");
  for (int rank = 0; rank < size; rank++) pthread_join(threads[rank], NULL);
}

static void in_processes(void) {
  for (int rank = 0; rank < size; rank++) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    live(rank);
    _exit(0);
  }
  /* One that fails leaves the others waiting: they end with this process. */
  for (int rank = 0, status; rank < size; rank++)
    if (wait(&status) < 0 || status != 0) fail("a rank", "failed");
}

static void report(void) {
  facts sum = {0, 0, 0, 0, 0};
  for (int rank = 0; rank < (processes ? size : 1); rank++) {
    const facts *b = &shared->before[rank], *a = &shared->after[rank], *i = &shared->idle[rank];
    /* Once threads that helped to connect have gone. */
    sum.kib += i->kib - b->kib;
    sum.mappings += i->mappings - b->mappings;
    sum.threads += i->threads - b->threads;
    sum.cpu += i->cpu - a->cpu;
  }
  for (int rank = 0; rank < size; rank++) sum.descriptors += shared->last[rank] - shared->first[rank];
  int connections = full ? size - 1 : size > 2 ? 2 : 1;
  printf("%d,%.3f,%.3f,%d,%.1f,%.2f,%.2f,%.2f,%.5f\n", size, shared->met, shared->connected, connections, sum.kib / size,
         sum.descriptors / size, sum.mappings / size, sum.threads / size, sum.cpu / size / (IDLE_MS / 1000));
}

/* As many as this user may have: root more than the hard limit. */
static void more_descriptors(void) {
  struct rlimit files, most = {0, 0};
  most.rlim_cur = most.rlim_max = (rlim_t)number_in("/proc/sys/fs/nr_open", "");
  if (most.rlim_cur > 0 && setrlimit(RLIMIT_NOFILE, &most) == 0) return;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv) {
  if (argc < 5 || argc > 7) {
    fputs("usage: rdma_scale PROVIDER threads|processes lazy|full RANKS [SECONDS [REST]]\n", stderr);
    return 2;
  }
  provider = argv[1];
  processes = strcmp(argv[2], "processes") == 0;
  full = strcmp(argv[3], "full") == 0;
  own_table = !processes && strcmp(provider, "tcp") == 0;
  size = atoi(argv[4]);
  if (size < 2 || size > MOST) fail("RANKS", "2 to 4096");
  if (argc > 5) patience_ms = 1000 * (int64_t)atoi(argv[5]);
  if (argc > 6) rest.tv_sec = atoi(argv[6]);
  if (patience_ms < 1000) fail("SECONDS", "1 or more");
  more_descriptors();
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("memory", "none");
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->all, &attributes, (unsigned)size);
  if (processes) in_processes();
  else in_threads();
  report();
  return 0;
}
