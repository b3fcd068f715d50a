/* Registration, the shared pool, and devices with copy functions of their own. */
#include "harness.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

static void registration(void) {
  rdma_mgr_t *m = mgr_new("m", NULL);
  char *memory = scratch(1 * MIB);
  CHECK_OK(rdma_mem_register(m, memory, MIB, RDMA_DEVICE_HOST));
  CHECK_BAD(RDMA_ALREADY_EXISTS, rdma_mem_register(m, memory, MIB, RDMA_DEVICE_HOST));
  CHECK_OK(rdma_mem_unregister(m, memory));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mem_unregister(m, memory));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mem_unregister(m, memory + 8));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mem_register(m, memory, 0, RDMA_DEVICE_HOST));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mem_register(m, memory, SIZE_MAX, RDMA_DEVICE_HOST));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mem_register(m, memory, MIB, 4711));
  for (int i = 0; i < 500; i++) {
    CHECK_OK(rdma_mem_register(m, memory + i * 64, 64, RDMA_DEVICE_HOST));
  }
  for (int i = 499; i >= 0; i--) CHECK_OK(rdma_mem_unregister(m, memory + i * 64));
}

static void pool(void) {
  enum { N = 300 };
  rdma_mgr_t *m = mgr_new("m", NULL);
  void *block[N];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < N; i++) {
      size_t n = (size_t)(i + 1) * 777;
      CHECK_OK(rdma_mem_alloc(m, n, &block[i]));
      CHECK_INT(0, (uintptr_t)block[i] % 64);
      fill(block[i], n, (uint64_t)i);
    }
    for (int i = 0; i < N; i++) CHECK_INT(-1, mismatch(block[i], (size_t)(i + 1) * 777, (uint64_t)i));
    for (int i = 0; i < N; i++) CHECK_OK(rdma_mem_free(m, block[(i * 7 + round) % N]));
  }
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mem_free(m, block[0]));
  int on_stack;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mem_free(m, &on_stack));
  void *huge = &on_stack;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mem_alloc(m, 0, &huge));
  CHECK_BAD(RDMA_RESOURCE_EXHAUSTED, rdma_mem_alloc(m, SIZE_MAX / 2, &huge));
  CHECK(huge == &on_stack);
}

static void pool_bounded(void) {
  rdma_mgr_t *m = mgr_new("m", NULL);
  size_t before = rss_bytes();
  for (int i = 0; i < 60; i++) { /* 1.9 GiB in all, were nothing given back */
    void *block;
    CHECK_OK(rdma_mem_alloc(m, 32 * MIB, &block));
    memset(block, i, 32 * MIB);
    CHECK_OK(rdma_mem_free(m, block));
  }
  size_t after = rss_bytes();
  CHECK_MSG(after < before + 300 * MIB, "60 blocks of 32 MiB, one at a time, cost %zu MiB", (after - before) / MIB);
}

/* ---- a pool apart from managers ---- */

static rdma_pool_t *shared;
static void has_shared_pool(rdma_mgr_options_t *o) { o->pool = shared; }

static void pool_of_the_application(void) {
  const size_t n = 3 * MIB;
  void *block, *dst = scratch(n), *other = &block;
  uint64_t used = 1, reserved = 1;
  CHECK_OK(rdma_pool_create(256 * MIB, &shared));
  CHECK_OK(rdma_pool_usage(shared, &used, &reserved));
  CHECK_MSG(used == 0 && reserved == 0, "%llu of %llu", (unsigned long long)used, (unsigned long long)reserved);
  CHECK_OK(rdma_pool_alloc(shared, n, &block));
  CHECK_INT(0, (uintptr_t)block % 64);
  for (int life = 0; life < 2; life++) { /* the managers end, the memory stays */
    pair p = pair_new(has_shared_pool);
    for (int64_t step = 0; step < 4; step++) {
      rdma_tensor_t t = tensor_of(block, n, (uint64_t)(life * 10 + step));
      rdma_recv_options_t o = recv_options();
      o.dst = dst;
      o.dst_len = n;
      op *s = op_send(p.b, "block", step, &t);
      recv_call call = {.mgr = p.a, .peer = "beta", .key = "block", .step = step, .options = &o};
      op_wait(op_recv_call(&call), RDMA_OK);
      op_wait(s, RDMA_OK);
      CHECK_INT(-1, mismatch(dst, n, (uint64_t)(life * 10 + step)));
    }
    CHECK_BAD(RDMA_NOT_FOUND, rdma_mem_free(p.b, block));
    pair_end(&p);
    CHECK_INT(-1, mismatch(block, n, (uint64_t)(life * 10 + 3)));
    fill(block, n, 99);
  }
  CHECK_OK(rdma_pool_usage(shared, &used, NULL));
  CHECK_MSG(used == n, "%llu bytes are used", (unsigned long long)used);
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_pool_alloc(shared, 0, &other));
  CHECK_BAD(RDMA_RESOURCE_EXHAUSTED, rdma_pool_alloc(shared, 256 * MIB, &other));
  CHECK(other == &block);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_pool_free(shared, dst));
  CHECK_OK(rdma_pool_free(shared, block));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_pool_free(shared, block));
  CHECK_OK(rdma_pool_destroy(shared));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_pool_alloc(shared, 1, &other));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_pool_destroy(shared));
}

/* The handle ends before the manager that has the pool. */
static void pool_outlives_its_handle(void) {
  void *block;
  CHECK_OK(rdma_pool_create(0, &shared));
  CHECK_OK(rdma_pool_alloc(shared, MIB, &block));
  rdma_mgr_t *m = mgr_new("m", has_shared_pool);
  CHECK_OK(rdma_pool_destroy(shared));
  fill(block, MIB, 7);
  CHECK_INT(-1, mismatch(block, MIB, 7));
  mgr_end(m);
  rdma_mgr_options_t o;
  rdma_mgr_t *none;
  CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
  o.pool = shared;
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_create(&o, &none));
}

static void unregistered_while_in_use(void) {
  pair p = pair_new(NULL);
  size_t n = 8 * MIB;
  char *dst = scratch(n);
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = n;
  for (int i = 0; i < 10; i++) {
    CHECK_OK(rdma_mem_register(p.a, dst, n, RDMA_DEVICE_HOST));
    rdma_tensor_t t = tensor_of(NULL, n, 3);
    op *s = op_send(p.b, "k", i, &t);
    recv_call call = {.mgr = p.a, .peer = "beta", .key = "k", .step = i, .options = &o};
    op *r = op_recv_call(&call);
    CHECK_OK(rdma_mem_unregister(p.a, dst));
    CHECK(pump_until(op_ended_fn, r, 30000));
    if (r->code == RDMA_OK) CHECK_INT(-1, mismatch(dst, n, 3)); /* success means the bytes are there */
    CHECK_OK(rdma_step_cleanup(p.b, i));
    CHECK(pump_until(op_ended_fn, s, 30000));
  }
}

/* The allocation callback is asked again when the metadata changed, and takes back what it gave first. */
typedef struct given {
  rdma_mgr_t *mgr;
  char *memory[2];
  int calls;
} given;

static void *gives(const rdma_tensor_t *meta, void *userdata) {
  given *g = userdata;
  CHECK(g->calls < 2);
  if (g->calls > 0) CHECK_OK(rdma_mem_unregister(g->mgr, g->memory[0]));
  char *memory = scratch(meta->nbytes);
  CHECK_OK(rdma_mem_register(g->mgr, memory, meta->nbytes, RDMA_DEVICE_HOST));
  return g->memory[g->calls++] = memory;
}

static void what_an_allocation_gave_first(void) {
  pair p = pair_new(NULL);
  static const size_t lens[] = {100, MIB, 2 * MIB, 64 * 1024};
  for (int i = 0; i < (int)COUNT_OF(lens); i++) {
    given g = {.mgr = p.a};
    rdma_recv_options_t o = recv_options();
    o.alloc = gives, o.alloc_userdata = &g;
    rdma_tensor_t t = tensor_of(NULL, lens[i], 3);
    op *s = op_send(p.b, "grows", i, &t);
    op *r = op_recv_call(&(recv_call){.mgr = p.a, .peer = "beta", .key = "grows", .step = i, .options = &o});
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK(g.calls == (i > 0 ? 2 : 1));
    CHECK_INT(-1, mismatch(g.memory[g.calls - 1], lens[i], 3));
    CHECK_OK(rdma_mem_unregister(p.a, g.memory[g.calls - 1]));
  }
}

/* ---- registrations that are kept ---- */

static void keeps_registrations(rdma_mgr_options_t *o) { o->registration_cache_bytes = 64 * MIB; }

/* A number of the statistics. */
static unsigned long long counted(rdma_mgr_t *m, const char *name) {
  char json[16384], want[80];
  size_t len = 0;
  CHECK_OK(rdma_mgr_stats_json(m, json, sizeof json, &len));
  snprintf(want, sizeof want, "\"%s\":", name);
  const char *at = strstr(json, want);
  if (!at) FAIL("%s is not in the statistics: %s", name, json);
  return strtoull(at + strlen(want), NULL, 10);
}

/* Other pages at the same address. */
static void map_anew(char *at, size_t n) {
  void *now = mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(now == at);
}

static void transfer_of(const pair *p, char *src, char *dst, size_t n, int64_t step) {
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = n;
  rdma_tensor_t t = tensor_of(src, n, (uint64_t)step);
  op *s = op_send(p->b, "kept", step, &t);
  recv_call call = {.mgr = p->a, .peer = "beta", .key = "kept", .step = step, .options = &o};
  op_wait(op_recv_call(&call), RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK_INT(-1, mismatch(dst, n, (uint64_t)step));
}

/* Memory that is freed, and mapped anew at the same address: what was registered there before is not used. */
static void kept_registrations(void) {
  pair p = pair_new(keeps_registrations);
  const size_t n = 2 * MIB;
  char *src = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *dst = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(src != MAP_FAILED && dst != MAP_FAILED);
  int64_t step = 0;
  for (int life = 0; life < 4; life++) {
    for (int i = 0; i < 3; i++) transfer_of(&p, src, dst, n, ++step);
    transfer_of(&p, src + 4096, dst + 100, n / 2, ++step);
    CHECK_OK(rdma_mem_invalidate(p.a, dst, n));
    CHECK_OK(rdma_mem_invalidate(p.b, src, n));
    CHECK_INT(0, counted(p.a, "registration_cache_bytes"));
    CHECK_INT(0, counted(p.b, "registration_cache_bytes"));
    map_anew(src, n);
    map_anew(dst, n);
  }
  /* One end of each transfer names its memory to the other; with ibverbs either end needs its registration. */
  unsigned long long hits = counted(p.a, "registration_hits") + counted(p.b, "registration_hits");
  unsigned long long misses = counted(p.a, "registration_misses") + counted(p.b, "registration_misses");
  if (is_provider("ibverbs")) CHECK_MSG(hits >= misses && misses >= 8, "%llu hits, %llu misses", hits, misses);
  else CHECK_MSG(hits + misses == 0, "%llu hits, %llu misses", hits, misses);
  pair_end(&p);
  munmap(src, n);
  munmap(dst, n);
}

/* ---- a device: memory behind an offset, copied by a thread of its own ---- */
#define BIAS ((uintptr_t)1 << 46) /* device addresses cannot be dereferenced */
typedef struct job {
  void *to;
  const void *from;
  uint64_t n;
  rdma_copy_done_fn done;
  void *token;
  struct job *next;
} job;
static pthread_mutex_t job_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_cond = PTHREAD_COND_INITIALIZER;
static job *jobs;
static bool device_stop;
static _Atomic int copies;
static rdma_code_t copy_result = RDMA_OK;

static void *device_thread(void *arg) {
  (void)arg;
  pthread_mutex_lock(&job_lock);
  while (!device_stop || jobs) {
    job *j = jobs;
    if (!j) {
      pthread_cond_wait(&job_cond, &job_lock);
      continue;
    }
    jobs = j->next;
    pthread_mutex_unlock(&job_lock);
    memcpy(j->to, j->from, j->n);
    atomic_fetch_add(&copies, 1);
    j->done(copy_result, j->token);
    free(j);
    pthread_mutex_lock(&job_lock);
  }
  pthread_mutex_unlock(&job_lock);
  return NULL;
}

static void enqueue(void *to, const void *from, uint64_t n, rdma_copy_done_fn done, void *token, void *userdata) {
  CHECK(userdata == &copies);
  job *j = malloc(sizeof *j);
  *j = (job){to, from, n, done, token, NULL};
  pthread_mutex_lock(&job_lock);
  j->next = jobs;
  jobs = j;
  pthread_cond_signal(&job_cond);
  pthread_mutex_unlock(&job_lock);
}
static void to_host(void *host, const void *device, uint64_t n, rdma_copy_done_fn done, void *token, void *userdata) {
  enqueue(host, (const void *)((uintptr_t)device - BIAS), n, done, token, userdata);
}
static void from_host(void *device, const void *host, uint64_t n, rdma_copy_done_fn done, void *token, void *userdata) {
  enqueue((void *)((uintptr_t)device - BIAS), host, n, done, token, userdata);
}
static void *on_device(void *host) { return (void *)((uintptr_t)host + BIAS); }

/* A descriptor that no RDMA device takes: what is registered so goes through the host all the same. */
static _Atomic int exports;
static rdma_code_t export_dmabuf(const void *device, uint64_t n, int *fd, uint64_t *offset, void *userdata) {
  CHECK(device && n && userdata == &copies);
  atomic_fetch_add(&exports, 1);
  *offset = 0;
  *fd = open("/dev/zero", O_RDONLY);
  return *fd < 0 ? RDMA_INTERNAL : RDMA_OK;
}

static uint32_t add_device(rdma_mgr_t *m) {
  uint32_t id = 0;
  rdma_device_ops_t ops;
  memset(&ops, 0, sizeof ops);
  ops.struct_size = sizeof ops;
  ops.copy_to_host = to_host;
  ops.copy_from_host = from_host;
  ops.export_dmabuf = export_dmabuf;
  CHECK_OK(rdma_mgr_register_device(m, &ops, &copies, &id));
  CHECK(id != RDMA_DEVICE_HOST);
  return id;
}

static pthread_t device_start(void) {
  pthread_t thread;
  device_stop = false;
  CHECK(pthread_create(&thread, NULL, device_thread, NULL) == 0);
  return thread;
}

static void device_end(pthread_t thread) {
  pthread_mutex_lock(&job_lock);
  device_stop = true;
  pthread_cond_signal(&job_cond);
  pthread_mutex_unlock(&job_lock);
  CHECK(pthread_join(thread, NULL) == 0);
}

static void device_case(bool remote) {
  static const size_t n[] = {0, 8, 1000, 100000, 3 * MIB, 20 * MIB};
  pair p = pair_new(NULL);
  rdma_mgr_t *to = remote ? p.a : p.b;
  const char *peer = remote ? "beta" : NULL;
  pthread_t thread = device_start();
  uint32_t from_id = add_device(p.b), to_id = remote ? add_device(p.a) : from_id;
  for (int way = 0; way < 3; way++) /* device to device, device to host, host to device */
    for (size_t i = 0; i < COUNT_OF(n); i++) {
      char *src = scratch(n[i] + 1), *dst = scratch(n[i] + 1);
      CHECK_OK(rdma_mem_register(p.b, on_device(src), n[i] + 1, from_id));
      int64_t step = way * 100 + (int64_t)i;
      rdma_recv_options_t o = recv_options();
      rdma_tensor_t t = tensor_of(src, n[i], i);
      if (way != 2) {
        t.data = on_device(src);
        t.device = from_id;
      }
      o.dst = way != 1 ? on_device(dst) : dst;
      o.dst_len = n[i] + 1;
      o.device = way != 1 ? to_id : RDMA_DEVICE_HOST;
      op *s = op_send(p.b, "device", step, &t);
      recv_call call = {.mgr = to, .peer = peer, .key = "device", .step = step, .options = &o};
      op *r = op_recv_call(&call);
      op_wait(r, RDMA_OK);
      op_wait(s, RDMA_OK);
      CHECK_INT(-1, mismatch(dst, n[i], i));
      if (n[i]) CHECK_INT(o.device, r->tensor.device);
      CHECK_OK(rdma_mem_unregister(p.b, on_device(src)));
    }
  CHECK(atomic_load(&copies) > 0);
  CHECK((atomic_load(&exports) > 0) == is_provider("ibverbs"));
  copy_result = RDMA_INTERNAL; /* a copy that fails ends its request, and only that */
  char *src = scratch(MIB), *dst = scratch(MIB);
  rdma_recv_options_t o = recv_options();
  rdma_tensor_t t = tensor_of(src, MIB, 5);
  o.dst = on_device(dst);
  o.dst_len = MIB;
  o.device = to_id;
  op *s = op_send(p.b, "device", 1000, &t);
  recv_call call = {.mgr = to, .peer = peer, .key = "device", .step = 1000, .options = &o};
  op *r = op_recv_call(&call);
  op_wait(r, RDMA_INTERNAL);
  CHECK(pump_until(op_ended_fn, s, 30000));
  copy_result = RDMA_OK;
  pair_end(&p);
  device_end(thread);
}

/* ---- messages ---- */

typedef struct place { /* memory of one end, host or device */
  char *host;
  void *memory;
  uint32_t device;
} place;

static place place_of(rdma_mgr_t *m, size_t n, uint32_t device) {
  place w = {.host = scratch(n + 1), .device = device};
  w.memory = device == RDMA_DEVICE_HOST ? w.host : on_device(w.host);
  if (device != RDMA_DEVICE_HOST) CHECK_OK(rdma_mem_register(m, w.memory, n + 1, device));
  return w;
}

/* Sends n bytes from one place and receives them at the other, and tells how the receive has ended. */
static rdma_code_t message_between(rdma_mgr_t *sender, rdma_mgr_t *receiver, const char *name, const place *from, const place *to,
                                   size_t n, bool first) {
  rdma_msg_options_t out = {.struct_size = sizeof out, .device = from->device};
  rdma_msg_options_t in = {.struct_size = sizeof in, .device = to->device};
  rdma_msg_request_t s = 0, r = 0;
  rdma_msg_status_t st = {.struct_size = sizeof st}, sent = {.struct_size = sizeof sent};
  for (int i = 0; i < 2; i++) {
    if (first == (i == 0)) CHECK_OK(rdma_msg_irecv(receiver, RDMA_PEER_ANY, 1, 1, RDMA_MSG_TAG_MASK, to->memory, n, &in, &st, &r));
    else CHECK_OK(rdma_msg_isend(sender, number_of(sender, name), 1, 1, from->memory, n, &out, &s));
    if (i == 0) pump_for(2);
  }
  st = end_of(receiver, r, &st);
  if (s != 0) sent = end_of(sender, s, NULL);
  if (st.code == RDMA_OK) {
    CHECK_INT(RDMA_OK, sent.code);
    CHECK_INT(n, st.bytes);
  }
  return st.code;
}

/* Between device and device, device and host, host and device: one way, the other, and to oneself. */
static void device_messages(void) {
  static const size_t lens[] = {0, 8, 1000, 4097, 100000, 3 * MIB, 20 * MIB};
  static const char *const names[] = {"alpha", "beta"};
  pair p = pair_new(NULL);
  rdma_mgr_t *mgrs[] = {p.a, p.b};
  pthread_t thread = device_start();
  const uint32_t ids[] = {add_device(p.a), add_device(p.b)};
  for (int run = 0; run < 3 * 3 * 2; run++) {
    int way = run % 3, kind = run / 3 % 3, sender = way == 1, receiver = way == 0 ? 1 : 0;
    for (size_t i = 0; i < COUNT_OF(lens); i++) {
      size_t n = lens[i];
      uint64_t seed = (uint64_t)run * 10 + i;
      place from = place_of(mgrs[sender], n, kind == 2 ? RDMA_DEVICE_HOST : ids[sender]);
      place to = place_of(mgrs[receiver], n, kind == 1 ? RDMA_DEVICE_HOST : ids[receiver]);
      fill(from.host, n, seed);
      to.host[n] = 0x3c;
      int before = atomic_load(&copies);
      CHECK_INT(RDMA_OK, message_between(mgrs[sender], mgrs[receiver], names[receiver], &from, &to, n, run >= 9));
      CHECK_MSG(mismatch(to.host, n, seed) < 0, "run %d, %zu bytes: wrong at %lld", run, n, mismatch(to.host, n, seed));
      CHECK_INT(0x3c, to.host[n]);
      if (n > 0) CHECK_MSG(atomic_load(&copies) > before, "run %d, %zu bytes: no device has copied", run, n);
      if (from.device) CHECK_OK(rdma_mem_unregister(mgrs[sender], from.memory));
      if (to.device) CHECK_OK(rdma_mem_unregister(mgrs[receiver], to.memory));
    }
  }
  place from = place_of(p.a, MIB, ids[0]), to = place_of(p.b, MIB, ids[1]);
  copy_result = RDMA_INTERNAL; /* a copy that fails ends its message, and only that */
  CHECK_INT(RDMA_INTERNAL, message_between(p.a, p.b, "beta", &from, &to, MIB, true));
  copy_result = RDMA_OK;
  fill(from.host, MIB, 99);
  CHECK_INT(RDMA_OK, message_between(p.a, p.b, "beta", &from, &to, MIB, true));
  CHECK_INT(-1, mismatch(to.host, MIB, 99));
  pair_end(&p);
  device_end(thread);
}

static void device_remote(void) { device_case(true); }
static void device_local(void) { device_case(false); }

static const test_case cases[] = {CASE(registration),  CASE(pool), CASE(pool_bounded),
                                  CASE(pool_of_the_application), CASE(pool_outlives_its_handle),
                                  CASE(unregistered_while_in_use), CASE(what_an_allocation_gave_first), CASE(kept_registrations),
                                  CASE(device_remote), CASE(device_local), CASE(device_messages)};
TEST_MAIN(cases)
