/* Every size, destination and kind of memory, on every protocol; shapes that change; checksums. */
#include "harness.h"

static const size_t sizes[] = {0,       1,        7,        8,         63,        64,
                               255,     1000,     4095,     4096,      4097,      8192,
                               16384,   65535,    65536,    65537,     262144,    1000003,
                               MIB,     4 * MIB,  16 * MIB + 3, 64 * MIB};

/* The longest: less where the device is software, as in the Soft-RoCE machine, at some 40 MB/s. */
static size_t big(void) { return is_provider("ibverbs") ? 16 * MIB + 3 : 64 * MIB; }
#define BIG big()

enum { DST_GIVEN, DST_ALLOC, DST_LIBRARY, DST_KINDS };
enum { MEM_PLAIN, MEM_REGISTERED, MEM_POOL, MEM_KINDS };

typedef struct area {
  void *memory;
  int kind;
} area;

static area area_new(rdma_mgr_t *m, int kind) {
  area a = {NULL, kind};
  if (kind == MEM_POOL) CHECK_OK(rdma_mem_alloc(m, BIG, &a.memory));
  else a.memory = scratch(BIG);
  CHECK_INT(0, (uintptr_t)a.memory % 64);
  if (kind == MEM_REGISTERED) CHECK_OK(rdma_mem_register(m, a.memory, BIG, RDMA_DEVICE_HOST));
  return a;
}

static void area_end(rdma_mgr_t *m, area *a) {
  if (a->kind == MEM_POOL) CHECK_OK(rdma_mem_free(m, a->memory));
  if (a->kind == MEM_REGISTERED) CHECK_OK(rdma_mem_unregister(m, a->memory));
}

static void *alloc_result(const rdma_tensor_t *meta, void *userdata) {
  CHECK(meta->nbytes > 0 && meta->nbytes <= BIG);
  return userdata;
}

static void one(pair *p, size_t n, int64_t step, const area *src, int kind, const area *dst) {
  uint64_t seed = (uint64_t)step + n;
  rdma_recv_options_t o = recv_options();
  rdma_tensor_t t = tensor_of(src->memory, n, seed);
  if (kind == DST_GIVEN) {
    o.dst = dst->memory;
    o.dst_len = n ? n : 1;
  }
  if (kind == DST_ALLOC) {
    o.alloc = alloc_result;
    o.alloc_userdata = dst->memory;
  }
  op *s = op_send(p->b, "sized", step, &t), *r = op_recv(p->a, "beta", "sized", step, seed, &o);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK_INT(n, r->tensor.nbytes);
  CHECK_INT(n, r->info.bytes);
  if (n && kind != DST_LIBRARY) CHECK(r->data == dst->memory);
  if (env.protocol && n > 64 * KIB)
    CHECK_MSG(r->info.protocol == (uint32_t)env.protocol, "%zu bytes went by protocol %u, not %d", n,
              r->info.protocol, env.protocol);
}

static void destinations(void) {
  pair p = pair_new(NULL);
  int64_t step = 0;
  area src = area_new(p.b, MEM_PLAIN), dst = area_new(p.a, MEM_PLAIN);
  for (size_t i = 0; i < COUNT_OF(sizes); i++)
    for (int kind = 0; kind < DST_KINDS && sizes[i] <= BIG; kind++)
      for (int twice = 0; twice < 2; twice++) one(&p, sizes[i], step++, &src, kind, &dst);
}

static void memory_kinds(void) {
  pair p = pair_new(NULL);
  int64_t step = 0;
  for (int from = 0; from < MEM_KINDS; from++)
    for (int to = 0; to < MEM_KINDS; to++) {
      area src = area_new(p.b, from), dst = area_new(p.a, to);
      /* The longest from each kind and into each, not in every pair of them. */
      const size_t most = from == to ? BIG : 5 * MIB;
      for (size_t i = 0; i < COUNT_OF(sizes) && sizes[i] <= most; i += 3) one(&p, sizes[i], step++, &src, DST_GIVEN, &dst);
      one(&p, most, step++, &src, DST_ALLOC, &dst);
      area_end(p.b, &src);
      area_end(p.a, &dst);
    }
}

static void odd_addresses(void) {
  pair p = pair_new(NULL);
  area src = area_new(p.b, MEM_POOL), dst = area_new(p.a, MEM_POOL);
  char *from = src.memory, *to = dst.memory;
  for (int i = 1; i < 40; i++) {
    size_t n = (size_t)i * 33333;
    rdma_recv_options_t o = recv_options();
    rdma_tensor_t t = tensor_of(from + i, n, (uint64_t)i);
    o.dst = to + 3 * i;
    o.dst_len = n;
    memset(to, 0xee, n + 200);
    op *s = op_send(p.b, "odd", i, &t), *r = op_recv(p.a, "beta", "odd", i, (uint64_t)i, &o);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    for (int k = 0; k < 3 * i; k++) CHECK_INT(0xee, (unsigned char)to[k]);
    for (size_t k = 0; k < 50; k++) CHECK_INT(0xee, (unsigned char)to[(size_t)(3 * i) + n + k]);
  }
}

static void shapes_change(void) {
  static const size_t n[] = {100, 100, 200, 50, 1 * MIB, MIB, 3 * MIB, 10, 0, 0, 70000, 4 * MIB, MIB + 1};
  pair p = pair_new(NULL);
  for (int64_t step = 0; step < 39; step++) {
    size_t bytes = n[(size_t)step % COUNT_OF(n)];
    int64_t dims[3] = {step, 1, (int64_t)bytes};
    rdma_tensor_t t = tensor_of(NULL, bytes, (uint64_t)step);
    t.dims = dims;
    t.ndims = 1 + (uint32_t)step % 3;
    t.dtype = (uint32_t)step % 7;
    op *r = op_recv(p.a, "beta", "changing", step, (uint64_t)step, NULL);
    if (step % 2) pump_for(2);
    op *s = op_send(p.b, "changing", step, &t);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(bytes, r->tensor.nbytes);
    CHECK_INT(step % 7, r->tensor.dtype);
    CHECK_INT(1 + step % 3, r->tensor.ndims);
    CHECK_INT(step, r->dims[0]);
  }
}

/* Receives `n` bytes, first with too little room, which leaves the tensor at its sender. `peer` NULL: one's own. */
static void tight(pair *p, const char *peer, const char *key, int64_t step, size_t n, size_t room, bool send_first) {
  rdma_mgr_t *from = peer ? p->b : p->a;
  char *dst = scratch(n), want[96];
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = room;
  memset(dst, 0x77, n);
  rdma_tensor_t t = tensor_of(NULL, n, (uint64_t)step);
  recv_call call = {.mgr = p->a, .peer = peer, .key = key, .step = step, .seed = (uint64_t)step, .options = &o,
                    .check_content = true};
  op *s = send_first ? op_send(from, key, step, &t) : NULL;
  if (step % 2) pump_for(2);
  op *r = op_recv_call(&call);
  if (!s && step % 2) pump_for(2);
  if (!s) s = op_send(from, key, step, &t);
  op_wait(r, RDMA_OUT_OF_RANGE);
  snprintf(want, sizeof want, "has %zu bytes, the destination given has %zu", n, room);
  CHECK_MSG(strstr(r->message, want), "'%s' does not say '%s'", r->message, want);
  for (size_t i = 0; i < n; i++) CHECK_INT(0x77, dst[i]);
  pump_for(1);
  CHECK(!op_ended(s));
  o.dst_len = n;
  r = op_recv_call(&call);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK_INT(n, r->tensor.nbytes);
  CHECK_INT(n, s->info.bytes);
}

static void too_small_destination(void) {
  static const size_t n[] = {1, 8, 100, 4097, 50000, 2 * MIB};
  pair p = pair_new(NULL);
  int64_t step = 0;
  for (size_t i = 0; i < COUNT_OF(n); i++) {
    for (int round = 0; round < 8; round++, step++) {
      char key[32];
      snprintf(key, sizeof key, "tight/%d", (int)step);
      tight(&p, round < 6 ? "beta" : NULL, key, step, n[i], round % 3 ? n[i] - 1 : n[i] / 2, round % 2);
    }
  }
}

/* The metadata of the step before is known, and says another length. */
static void grown_beyond_the_destination(void) {
  static const size_t n[][3] = {{8, 8, 9}, {8, 50, 100}, {100, 2000, 50000}, {0, 1, 8}, {50000, 60000, MIB}, {8, 1000, MIB}};
  pair p = pair_new(NULL);
  for (int64_t step = 0; step < 4 * (int64_t)COUNT_OF(n); step += 2) {
    const size_t *of = n[(size_t)step / 4];
    char key[32];
    snprintf(key, sizeof key, "grown/%d", (int)step);
    rdma_recv_options_t o = recv_options();
    o.dst = scratch(of[1]);
    o.dst_len = of[1];
    rdma_tensor_t t = tensor_of(NULL, of[0], (uint64_t)step);
    op *s = op_send(p.b, key, step, &t), *r = op_recv(p.a, "beta", key, step, (uint64_t)step, &o);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    tight(&p, "beta", key, step + 1, of[2], of[1], step % 4 == 0);
  }
}

static void *refuse(const rdma_tensor_t *meta, void *userdata) {
  (void)meta;
  ++*(int *)userdata;
  return NULL;
}
static void allocation_refused(void) {
  pair p = pair_new(NULL);
  static const size_t n[] = {100, 50000, 2 * MIB};
  for (size_t i = 0; i < COUNT_OF(n); i++) {
    int calls = 0;
    rdma_recv_options_t o = recv_options();
    o.alloc = refuse;
    o.alloc_userdata = &calls;
    rdma_tensor_t t = tensor_of(NULL, n[i], 1);
    op *s = op_send(p.b, "refused", (int64_t)i, &t);
    recv_call call = {.mgr = p.a, .peer = "beta", .key = "refused", .step = (int64_t)i, .options = &o};
    op *r = op_recv_call(&call);
    op_wait(r, RDMA_RESOURCE_EXHAUSTED);
    CHECK(calls >= 1);
    CHECK_OK(rdma_step_cleanup(p.b, (int64_t)i));
    CHECK(pump_until(op_ended_fn, s, 10000));
  }
}

static void with_checksum(rdma_mgr_options_t *o) { o->checksum = 1; }
static void checksums(void) {
  pair p = pair_new(with_checksum);
  for (size_t i = 0; i < COUNT_OF(sizes) - 1; i++) {
    rdma_tensor_t t = tensor_of(NULL, sizes[i], i);
    op *s = op_send(p.b, "checked", (int64_t)i, &t), *r = op_recv(p.a, "beta", "checked", (int64_t)i, i, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
  }
}

static void tiny_cache(rdma_mgr_options_t *o) {
  o->meta_cache_entries = 2;
  o->queue_depth = 2;
}
static void small_bounds(void) {
  enum { N = 120 };
  pair p = pair_new(tiny_cache);
  op *s[N], *r[N];
  char key[32];
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < N; i++) {
      size_t n = i % 3 ? 200000 : 100;
      rdma_tensor_t t = tensor_of(NULL, n, (uint64_t)i);
      snprintf(key, sizeof key, "bound/%d", i);
      s[i] = op_send(p.b, key, round, &t);
      r[i] = op_recv(p.a, "beta", key, round, (uint64_t)i, NULL);
    }
    for (int i = 0; i < N; i++) {
      op_wait(r[i], RDMA_OK);
      op_wait(s[i], RDMA_OK);
    }
  }
}

static const test_case cases[] = {
    SLOW(destinations, 120), SLOW(memory_kinds, 180), CASE(odd_addresses), CASE(shapes_change),
    CASE(too_small_destination), CASE(grown_beyond_the_destination),
    CASE(allocation_refused), CASE(checksums), CASE(small_bounds),
};
TEST_MAIN(cases)
