/* Many peers, many threads, many tensors, many connections; what an idle peer costs. */
#include "harness.h"
#include <pthread.h>
#include <sched.h>

static void two_managers_each_way(void) {
  pair p = pair_new(NULL), q;
  q.a = mgr_new("gamma", NULL);
  q.b = mgr_new("delta", NULL);
  mgr_listen(q.b, q.b_address);
  CHECK_OK(rdma_mgr_add_peer(q.a, "delta", q.b_address));
  CHECK_OK(rdma_mgr_add_peer(p.a, "delta", q.b_address));
  for (int i = 0; i < 100; i++) { /* one key and step on three managers: they do not mix */
    rdma_tensor_t t = tensor_of(NULL, 3000, 1), u = tensor_of(NULL, 3000, 2), v = tensor_of(NULL, 3000, 3);
    op *s1 = op_send(p.b, "same", i, &t), *s2 = op_send(q.b, "same", i, &u), *s3 = op_send(p.a, "same", i, &v);
    op *r1 = op_recv(p.a, "beta", "same", i, 1, NULL), *r3 = op_recv(p.a, NULL, "same", i, 3, NULL);
    op *r2 = op_recv(i % 2 ? p.a : q.a, "delta", "same", i, 2, NULL);
    op *all[] = {s1, s2, s3, r1, r2, r3};
    for (size_t k = 0; k < COUNT_OF(all); k++) op_wait(all[k], RDMA_OK);
  }
}

static void sixty_four_peers(void) {
  enum { N = 64, STEPS = 5 };
  rdma_mgr_t *hub = mgr_new("hub", NULL), *m[N];
  char address[256], name[32];
  op *r[N], *s[N];
  for (int i = 0; i < N; i++) {
    snprintf(name, sizeof name, "spoke%d", i);
    m[i] = mgr_new(name, NULL);
    mgr_listen(m[i], address);
    CHECK_OK(rdma_mgr_add_peer(hub, name, address));
  }
  for (int64_t step = 0; step < STEPS; step++) {
    for (int i = 0; i < N; i++) {
      uint64_t seed = (uint64_t)i * 100 + (uint64_t)step;
      rdma_tensor_t t = tensor_of(NULL, (size_t)(step % 2 ? 100 : 100000), seed);
      snprintf(name, sizeof name, "spoke%d", i);
      r[i] = op_recv(hub, name, "k", step, seed, NULL);
      s[i] = op_send(m[i], "k", step, &t);
    }
    for (int i = 0; i < N; i++) {
      op_wait(r[i], RDMA_OK);
      op_wait(s[i], RDMA_OK);
      snprintf(name, sizeof name, "spoke%d", i);
      CHECK_STR(name, r[i]->peer);
    }
  }
}

/* More tensors at once than a provider has windows for (shm: 16,384 that a peer may read). */
enum { WINDOWS = 20000, WIDE = 12 * 1024 + 4096 };
static _Atomic int windows_ended;
static void *one_place(const rdma_tensor_t *meta, void *userdata) {
  (void)meta;
  return userdata;
}
static void window_sent(rdma_code_t code, const char *message, size_t len, const rdma_transfer_info_t *info, void *userdata) {
  (void)len, (void)info, (void)userdata;
  CHECK_MSG(code == RDMA_OK, "a send: %s", message);
  atomic_fetch_add(&windows_ended, 1);
}
static void window_received(rdma_code_t code, const char *message, size_t len, const rdma_tensor_t *tensor,
                            const rdma_transfer_info_t *info, void *userdata) {
  (void)len, (void)info, (void)userdata, (void)tensor;
  CHECK_MSG(code == RDMA_OK, "a receive: %s", message);
  atomic_fetch_add(&windows_ended, 1);
}

static void more_than_there_are_windows(void) {
  pair p = pair_new(NULL);
  char *from = scratch(WIDE), *to = scratch(WIDE), key[32];
  rdma_tensor_t t = tensor_of(from, WIDE, 9);
  windows_ended = 0;
  for (int given = 0; given < 2; given++) { /* where the sender has to be asked how long it is, and where it may write at once */
    rdma_recv_options_t options = recv_options();
    if (given) options.dst = to, options.dst_len = WIDE;
    else options.alloc = one_place, options.alloc_userdata = to;
    for (int i = 0; i < WINDOWS; i++) {
      snprintf(key, sizeof key, "key %d", i);
      CHECK_OK(rdma_recv_async(p.b, "alpha", key, strlen(key), given, &options, window_received, NULL, NULL));
    }
    pump_for(20);
    for (int i = 0; i < WINDOWS; i++) {
      snprintf(key, sizeof key, "key %d", i);
      CHECK_OK(rdma_send(p.a, key, strlen(key), given, &t, NULL, window_sent, NULL));
    }
    CHECK(count_reached(&windows_ended, 2 * WINDOWS * (given + 1), 60000));
    CHECK_INT(-1, mismatch(to, WIDE, 9));
    CHECK_OK(rdma_step_cleanup(p.a, given));
    CHECK_OK(rdma_step_cleanup(p.b, given));
  }
}

/* ---- 16 threads, 100,000 tensors ---- */
enum { THREADS = 16, TOTAL = 100000, EACH = TOTAL / THREADS, WINDOW = 8 };
typedef struct flight {
  struct worker *w;
  _Atomic int left; /* callbacks to come: send and receive */
  uint64_t seed;
  size_t n;
  char *src;
} flight;
typedef struct worker {
  pthread_t thread;
  int id;
  pair *p;
  flight flights[WINDOW];
} worker;
static _Atomic int sends_done, recvs_done;
static _Atomic unsigned long long bytes_done;

static size_t mixed_size(uint64_t x) {
  x = x * 0x9E3779B97F4A7C15u >> 32;
  switch (x % 64) {
    case 0: return 0;
    case 1: return 200000 + x % 100000;
    case 2: case 3: case 4: return 16000 + x % 50000;
    default: return 1 + x % 3000;
  }
}

static void sent(rdma_code_t code, const char *message, size_t message_len, const rdma_transfer_info_t *info,
                 void *userdata) {
  flight *f = userdata;
  (void)info;
  CHECK_MSG(code == RDMA_OK, "send: %s: %.*s", rdma_code_name(code), (int)message_len, message);
  atomic_fetch_add(&sends_done, 1);
  CHECK(atomic_fetch_sub(&f->left, 1) > 0);
}

static void received(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                     const rdma_transfer_info_t *info, void *userdata) {
  flight *f = userdata;
  CHECK_MSG(code == RDMA_OK, "recv: %s: %.*s", rdma_code_name(code), (int)message_len, message);
  CHECK_INT(f->n, tensor->nbytes);
  long long at = mismatch(tensor->data, tensor->nbytes, f->seed);
  CHECK_MSG(at < 0, "byte %lld of %zu is wrong (protocol %u)", at, f->n, info->protocol);
  atomic_fetch_add(&bytes_done, tensor->nbytes);
  atomic_fetch_add(&recvs_done, 1);
  CHECK(atomic_fetch_sub(&f->left, 1) > 0);
}

static void rest(worker *w) {
  uint32_t events;
  if (is_manual()) {
    CHECK_OK(rdma_mgr_progress(w->p->a, &events));
    CHECK_OK(rdma_mgr_progress(w->p->b, &events));
  }
  sched_yield();
}

static void *work(void *arg) {
  worker *w = arg;
  char key[64];
  for (int i = 0; i < EACH; i++) {
    flight *f = &w->flights[i % WINDOW];
    while (atomic_load(&f->left)) rest(w);
    f->seed = (uint64_t)w->id * EACH + (uint64_t)i;
    f->n = mixed_size(f->seed);
    atomic_store(&f->left, 2);
    fill(f->src, f->n, f->seed);
    int64_t dims[1] = {(int64_t)f->n};
    rdma_tensor_t t = {.struct_size = sizeof t, .data = f->src, .nbytes = f->n, .dims = dims, .ndims = 1, .dtype = 4};
    bool forth = f->seed % 2;
    rdma_mgr_t *from = forth ? w->p->a : w->p->b, *to = forth ? w->p->b : w->p->a;
    snprintf(key, sizeof key, "thread%d/%d", w->id, i % 100);
    size_t n = strlen(key);
    int64_t step = i / 100;
    if (i % 3 == 0) CHECK_OK(rdma_send(from, key, n, step, &t, NULL, sent, f));
    CHECK_OK(rdma_recv_async(to, forth ? "alpha" : "beta", key, n, step, NULL, received, f, NULL));
    if (i % 3 != 0) CHECK_OK(rdma_send(from, key, n, step, &t, NULL, sent, f));
  }
  for (int i = 0; i < WINDOW; i++)
    while (atomic_load(&w->flights[i].left)) rest(w);
  return NULL;
}

static void sixteen_threads(void) {
  static worker workers[THREADS];
  pair p = pair_new(NULL);
  int64_t start = now_ms();
  for (int i = 0; i < THREADS; i++) {
    workers[i].id = i;
    workers[i].p = &p;
    for (int k = 0; k < WINDOW; k++) {
      workers[i].flights[k].w = &workers[i];
      workers[i].flights[k].src = scratch(400000);
    }
    CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(workers[i].thread, NULL) == 0);
  CHECK_INT(TOTAL, atomic_load(&recvs_done));
  CHECK_INT(TOTAL, atomic_load(&sends_done));
  printf("    %d tensors, %.1f MB, in %.1f s\n", TOTAL, (double)atomic_load(&bytes_done) / 1e6,
         (double)(now_ms() - start) / 1e3);
}

/* ---- connections that come and go ---- */
typedef struct usage {
  int fds, threads, maps;
} usage;
/* Without the threads that stand by, and the mappings of their stacks and arenas: a copy that the machine kept for long
 * calls for another one, which stays. Their number is bounded. */
static usage usage_now(void) {
  int standing = count_threads_named("rdma-standby");
  return (usage){count_fds(), count_threads() - standing, count_maps() - 4 * standing};
}
static usage before;
static bool back_to_before(void *arg) {
  usage u = usage_now();
  (void)arg;
  return u.fds <= before.fds && u.threads <= before.threads && u.maps <= before.maps + 4;
}
static void check_usage(const char *what) {
  if (pump_until(back_to_before, NULL, 10000)) return;
  usage u = usage_now();
  FAIL("%s: descriptors %d to %d, threads %d to %d, mappings %d to %d", what, before.fds, u.fds, before.threads,
       u.threads, before.maps, u.maps);
}

static void connect_and_disconnect(void) {
  pair p = pair_new(NULL);
  drive(p.a);
  drive(p.b);
  for (int i = 0; i < 1020; i++) {
    if (i == 20) { /* arenas and pools have found their size */
      pump_for(300);
      before = usage_now();
    }
    CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
    if (i == 19 || i % 100 == 0) {
      rdma_tensor_t t = tensor_of(NULL, 100000, 1);
      op *s = op_send(p.b, "k", i, &t), *r = op_recv(p.a, "beta", "k", i, 1, NULL);
      op_wait(r, RDMA_OK);
      op_wait(s, RDMA_OK);
    }
    CHECK_OK(rdma_mgr_disconnect(p.a, "beta"));
  }
  check_usage("1,000 connections");
}

static void create_and_destroy(void) {
  for (int i = 0; i < 220; i++) {
    if (i == 20) before = usage_now();
    pair p = pair_new(NULL);
    rdma_tensor_t t = tensor_of(NULL, 1000, 1);
    op *s = op_send(p.b, "k", i, &t), *r = op_recv(p.a, "beta", "k", i, 1, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    pair_end(&p);
  }
  check_usage("200 pairs of managers");
}

/* ---- an idle peer ---- */
static void spoke_limits(rdma_mgr_options_t *o) { o->busy_poll_us = 0; }
static int spokes_role(int argc, char **argv) {
  int n = argc > 0 ? atoi(argv[0]) : 0;
  char name[32], address[256], line[16];
  for (int i = 0; i < n; i++) {
    snprintf(name, sizeof name, "spoke%d", i);
    rdma_mgr_t *m = mgr_new(name, spoke_limits);
    mgr_listen(m, address);
    printf("%s\n", address);
    drive(m);
  }
  fflush(stdout);
  return next_line(line, sizeof line) ? 0 : 1;
}

static void idle_peer(void) {
  enum { N = 65 };
  char text[16], name[32];
  if (is_provider("loopback")) skip("the peers of another process cannot be reached by loopback");
  snprintf(text, sizeof text, "%d", N);
  proc *spokes = proc_start("spokes", (const char *const[]){text, NULL});
  rdma_mgr_t *hub = mgr_new("hub", spoke_limits);
  drive(hub);
  size_t start = 0, maps = 0;
  for (int i = 0; i < N; i++) {
    snprintf(name, sizeof name, "spoke%d", i);
    CHECK_OK(rdma_mgr_add_peer(hub, name, proc_line(spokes)));
  }
  for (int i = 0; i < N; i++) {
    snprintf(name, sizeof name, "spoke%d", i);
    CHECK_OK(rdma_mgr_connect(hub, name, CONNECT_MS));
    if (i == 0) { /* the first one pays for what all share */
      pump_for(300);
      start = rss_bytes();
      maps = (size_t)count_maps();
    }
  }
  pump_for(300);
  size_t end = rss_bytes();
  size_t each = end > start ? (end - start) / (N - 1) : 0;
  size_t limit = is_provider("shm") ? 128 * KIB : 64 * KIB;
  printf("    an idle peer over %s: %zu KiB resident (limit %zu KiB), %.2f mappings\n", env.provider, each / KIB,
         limit / KIB, (double)((size_t)count_maps() - maps) / (N - 1));
  if (!is_sanitized()) CHECK_MSG(each <= limit, "an idle peer costs %zu bytes, limit %zu", each, limit);
  proc_kill(spokes);
}

static const test_case cases[] = {CASE(two_managers_each_way),     CASE(sixty_four_peers),
                                  SLOW(sixteen_threads, 240),      SLOW(connect_and_disconnect, 180),
                                  SLOW(create_and_destroy, 180),   SLOW(idle_peer, 90),
                                  SLOW(more_than_there_are_windows, 180)};
static const test_role roles[] = {{"spokes", spokes_role}};
TEST_MAIN_ROLES(cases, roles)
