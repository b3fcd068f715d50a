/* Ten million small messages (two by sockets, which take a minute for ten): a receiver that takes none holds the sender back, in memory
   that does not grow, and then has all, in order. */
#include "messages.h"
#include <pthread.h>

enum { UNDER_WAY = 1000, AT_ONCE = 64 };
/* What is sent along: each message counts for its content and some 256 bytes of 1 MiB. */
#define WINDOW (MIB / 256)
#define MILLION 1000000
static uint64_t many;
/* Messages that are kept somewhere take eight bytes each at least: 80 MB, or 16. */
static size_t growth;

typedef struct flood {
  rdma_mgr_t *mgr;
  rdma_peer_t to;
  uint64_t begun, ended;
  rdma_msg_request_t request[UNDER_WAY];
  uint64_t content[UNDER_WAY];
} flood;

/* Waits for the send that began so many sends ago that its place is wanted; false: it has no end in this time. */
static bool place_is_free(flood *f, int64_t ms) {
  rdma_msg_status_t st = {.struct_size = sizeof st};
  rdma_msg_request_t *r = &f->request[f->begun % UNDER_WAY];
  size_t n = 0;
  if (*r == 0) return true;
  rdma_code_t rc = rdma_msg_wait(f->mgr, r, 1, RDMA_MSG_ALL, ms, NULL, &st, &n);
  if (rc == RDMA_DEADLINE_EXCEEDED) return false;
  CHECK_OK(rc);
  CHECK_INT(RDMA_OK, st.code);
  f->ended++;
  return true;
}

/* Sends the next number. */
static void send_next(flood *f) {
  /* On a busy machine the last of them waits for longer than the manager's deadline. */
  static const rdma_msg_options_t patient = {.struct_size = sizeof patient, .timeout_ms = RDMA_MSG_FOREVER};
  size_t place = f->begun % UNDER_WAY;
  f->content[place] = f->begun++;
  CHECK_OK(rdma_msg_isend(f->mgr, f->to, COMM, 1, &f->content[place], sizeof f->content[place], &patient, &f->request[place]));
  f->ended += f->request[place] == 0;
}

static void *send_the_rest(void *arg) {
  flood *f = arg;
  while (f->begun < many) {
    if (!place_is_free(f, patience(60000))) FAIL("send %llu has no end", (unsigned long long)(f->begun - UNDER_WAY));
    send_next(f);
  }
  for (int i = 0; i < UNDER_WAY; i++, f->begun++) CHECK(place_is_free(f, patience(60000)));
  return NULL;
}

static void check_memory(size_t before, const char *when) {
  size_t now = rss_bytes();
  CHECK_MSG(now < before + growth, "%s: %zu MiB more than before", when, (now - before) / MIB);
}

/* So many of them, which are those from `first` on. */
static void receive_some(rdma_mgr_t *mgr, rdma_peer_t from, uint64_t first) {
  uint64_t got[AT_ONCE];
  rdma_msg_request_t r[AT_ONCE];
  size_t n = 0;
  memset(got, 0xff, sizeof got);
  for (int i = 0; i < AT_ONCE; i++) CHECK_OK(rdma_msg_irecv(mgr, from, COMM, 1, EXACT, &got[i], sizeof got[i], NULL, NULL, &r[i]));
  rdma_code_t rc = rdma_msg_wait(mgr, r, AT_ONCE, RDMA_MSG_ALL, patience(60000), NULL, NULL, &n);
  CHECK_MSG(rc == RDMA_OK, "message %llu or one of the next: %s", (unsigned long long)first, rdma_code_name(rc));
  for (uint64_t i = 0; i < AT_ONCE; i++) CHECK_INT(first + i, got[i]);
}

static void millions(void) {
  many = (is_provider("tcp") ? 2 : 10) * MILLION;
  growth = (is_provider("tcp") ? 10 : 24) * MIB;
  pair p = pair_new(NULL);
  static flood f;
  f = (flood){.mgr = p.a, .to = number_of(p.a, "beta")};
  rdma_peer_t to_a = number_of(p.b, "alpha");
  CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
  size_t before = rss_bytes();
  while (place_is_free(&f, 1000)) {
    send_next(&f);
    CHECK_MSG(f.ended <= WINDOW, "%llu sends have ended, and nobody receives", (unsigned long long)f.ended);
  }
  CHECK_INT(UNDER_WAY, f.begun - f.ended);
  CHECK(f.ended > 0);
  check_memory(before, "nobody receives");
  int64_t start = now_ms();
  pthread_t sender;
  CHECK(pthread_create(&sender, NULL, send_the_rest, &f) == 0);
  for (uint64_t i = 0; i < many; i += AT_ONCE) {
    receive_some(p.b, to_a, i);
    if (i % (AT_ONCE << 14) == 0) check_memory(before, "it receives");
  }
  CHECK(pthread_join(sender, NULL) == 0);
  CHECK_INT(many, f.ended);
  check_memory(before, "all are received");
  printf("    %llu in %lld ms, %zu KiB more than before\n", (unsigned long long)many, (long long)(now_ms() - start), (rss_bytes() - before) / KIB);
}

static const test_case cases[] = {SLOW(millions, 600)};
TEST_MAIN(cases)
