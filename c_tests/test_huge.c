/* Tensors around 2^32 bytes, in sparse memory. */
#include "harness.h"
#include <sys/mman.h>

#define FOUR_GIB ((uint64_t)1 << 32)

static const uint64_t marks[] = {0, 1, 4095, 4096, 1ull << 20, (1ull << 30) - 1, 1ull << 30, (1ull << 31) - 1,
                                 1ull << 31, (1ull << 31) + 1, 3ull << 30, 0xFFFFFF00u, 0xFFFFFFFDu, 0xFFFFFFFEu,
                                 0xFFFFFFFFu, FOUR_GIB};

static unsigned char *map(uint64_t n) {
  void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(p != MAP_FAILED);
  madvise(p, n, MADV_HUGEPAGE);
  return p;
}
static unsigned char mark(uint64_t n, uint64_t at) { return (unsigned char)(1 + (n * 31 + at * 7 + at / 4096) % 255); }

static void longer(rdma_mgr_options_t *o) { o->timeout_ms = 240000; }

static void around(uint64_t n) {
  if (mem_available() < 6 * GIB) skip("less than 6 GiB of memory");
  pair p = pair_new(longer);
  unsigned char *src = map(n), *dst = map(n + 4096); /* what nobody writes of the source is one zero page */
  for (size_t i = 0; i < COUNT_OF(marks); i++)
    if (marks[i] < n) src[marks[i]] = mark(n, marks[i]);
  src[n - 1] = mark(n, n - 1);
  memset(dst + n, 0x3c, 64); /* beyond the end */
  int64_t dims[1] = {(int64_t)n};
  rdma_tensor_t t = tensor_of(NULL, 0, 0);
  t.data = src;
  t.nbytes = n;
  t.dims = dims;
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = n;
  int64_t start = now_ms();
  op *s = op_send(p.b, "huge", 1, &t);
  recv_call call = {.mgr = p.a, .peer = "beta", .key = "huge", .step = 1, .options = &o};
  op *r = op_recv_call(&call);
  CHECK_OK(s->rc);
  CHECK_OK(r->rc);
  CHECK_MSG(pump_until(op_ended_fn, r, 240000), "the receive has not ended after 240 s");
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK(r->tensor.nbytes == n && r->info.bytes == n);
  for (size_t i = 0; i < COUNT_OF(marks); i++)
    if (marks[i] < n && marks[i] != n - 1)
      CHECK_MSG(dst[marks[i]] == mark(n, marks[i]), "byte %llu is wrong", (unsigned long long)marks[i]);
  CHECK_MSG(dst[n - 1] == mark(n, n - 1), "the last byte is wrong");
  for (int i = 0; i < 64; i++) CHECK_INT(0x3c, dst[n + (uint64_t)i]);
  uint64_t other = 0; /* and nothing lies where nothing was sent */
  for (uint64_t i = 0; i < n; i += 4096) other += dst[i] != src[i];
  CHECK_INT(0, other);
  printf("    %llu bytes by %s in %lld ms\n", (unsigned long long)n, r->provider, (long long)(now_ms() - start));
  munmap(src, n);
  munmap(dst, n + 4096);
}

static void below(void) { around(FOUR_GIB - 1); }
static void at(void) { around(FOUR_GIB); }
static void above(void) { around(FOUR_GIB + 1); }

static const test_case cases[] = {SLOW(below, 280), SLOW(at, 280), SLOW(above, 280)};
TEST_MAIN(cases)
