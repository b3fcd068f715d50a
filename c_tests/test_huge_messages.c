/* Messages of 1 GiB and some bytes, by the protocol that is asked for: each byte is looked at. Takes some 2 GiB of memory. */
#include "messages.h"
#include <sys/mman.h>

#define LENGTH (GIB + 3)
/* Each word says where it lies, and of which message. */
#define WORD(at, seed) (((uint64_t)(at) + (seed)) * 0x9E3779B97F4A7C15u)

static uint64_t *map(void) {
  void *p = mmap(NULL, LENGTH + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(p != MAP_FAILED);
  madvise(p, LENGTH + 4096, MADV_HUGEPAGE);
  return p;
}

static void write_all(uint64_t *to, uint64_t seed) {
  uint64_t last = WORD(LENGTH / 8, seed);
  for (size_t i = 0; i < LENGTH / 8; i++) to[i] = WORD(i, seed);
  memcpy(to + LENGTH / 8, &last, LENGTH % 8);
}

static void check_all(const uint64_t *got, uint64_t seed) {
  uint64_t last = WORD(LENGTH / 8, seed);
  for (size_t i = 0; i < LENGTH / 8; i++)
    if (got[i] != WORD(i, seed)) FAIL("word %zu, at byte %zu, is wrong", i, 8 * i);
  CHECK_MSG(memcmp(got + LENGTH / 8, &last, LENGTH % 8) == 0, "the last bytes are wrong");
  CHECK_INT(0x3c, ((const unsigned char *)got)[LENGTH]);
}

static void longer(rdma_mgr_options_t *o) { o->timeout_ms = 240000; }

typedef struct both {
  rdma_mgr_t *mgr[2];
  rdma_msg_request_t request[2];
  rdma_msg_status_t status[2];
} both;

static bool both_ended(void *arg) {
  both *w = arg;
  for (int i = 0; i < 2; i++) {
    size_t n = 0;
    if (w->request[i] != 0) CHECK_OK(rdma_msg_test(w->mgr[i], &w->request[i], 1, RDMA_MSG_ALL, NULL, &w->status[i], &n));
  }
  return w->request[0] == 0 && w->request[1] == 0;
}

static void one_gib(bool first) {
  if (mem_available() < 3 * GIB) skip("less than 3 GiB of memory");
  pair p = pair_new(longer);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  uint64_t *from = map(), *to = map(), seed = first ? 7 : 8;
  both w = {.mgr = {p.a, p.b}};
  write_all(from, seed);
  ((unsigned char *)to)[LENGTH] = 0x3c; /* beyond the end */
  int64_t start = now_ms();
  if (first) w.request[1] = irecv(p.b, to_a, 1, EXACT, to, LENGTH, &w.status[1]);
  w.request[0] = isend(p.a, to_b, 1, from, LENGTH, RDMA_MSG_STANDARD);
  CHECK(w.request[0] != 0);
  if (!first) {
    pump_for(20);
    w.request[1] = irecv(p.b, to_a, 1, EXACT, to, LENGTH, &w.status[1]);
  }
  w.status[0].struct_size = sizeof w.status[0];
  CHECK_MSG(pump_until(both_ended, &w, 240000), "it has not ended after 240 s");
  for (int i = 0; i < 2; i++) CHECK_CODE(RDMA_OK, w.status[i].code);
  CHECK_INT(LENGTH, w.status[1].bytes);
  printf("    %zu bytes in %lld ms\n", LENGTH, (long long)(now_ms() - start));
  check_all(to, seed);
  if (env.protocol == RDMA_PROTOCOL_PIPELINE) {
    static char text[1 << 16];
    size_t len = 0;
    CHECK_OK(rdma_mgr_stats_json(p.b, text, sizeof text, &len));
    CHECK_HAS(text, "\"pipeline\":");
  }
  munmap(from, LENGTH + 4096);
  munmap(to, LENGTH + 4096);
}

static void the_receive_is_there(void) { one_gib(true); }
static void the_message_is_there(void) { one_gib(false); }

static const test_case cases[] = {SLOW(the_receive_is_there, 280), SLOW(the_message_is_there, 280)};
TEST_MAIN(cases)
