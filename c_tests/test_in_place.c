/* Handlers of active messages that read content where the peer wrote it (rdma_msg_handler_in_place). */
#include "messages.h"

enum { HANDLER = 9 };

typedef struct seen {
  _Atomic int runs;
  _Atomic int large; /* whose content did not come along */
  bool in_order;
  int hold_at;            /* this one waits until `go` */
  _Atomic int held, go;
} seen;

static size_t header_of(uint64_t tag) {
  static const size_t lens[] = {0, 1, 8, 46, 47, 200, 0, 512};
  return lens[tag % COUNT_OF(lens)];
}

static size_t content_of(uint64_t tag) {
  static const size_t lens[] = {8192, 0, 2047, 2048, 2030, 1, 2049, 4096, 10000, 2032, 3001, 70000};
  return lens[tag % COUNT_OF(lens)];
}

static uint32_t on_active(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  seen *s = userdata;
  (void)mgr;
  uint64_t tag = status->tag;
  CHECK_INT(HANDLER, status->comm);
  if (s->in_order) CHECK_INT(atomic_load(&s->runs), tag);
  CHECK_INT(content_of(tag), status->bytes);
  CHECK_INT(header_of(tag), status->header_len);
  CHECK(status->header_len == 0 || ((uintptr_t)status->header % 8 == 0 && mismatch(status->header, status->header_len, ~tag) < 0));
  CHECK(data != NULL);
  if (status->header_len == 0) CHECK_INT(0, (uintptr_t)data % 8);
  if (atomic_load(&s->runs) == s->hold_at) {
    atomic_store(&s->held, 1);
    while (!atomic_load(&s->go)) usleep(1000);
  }
  if (status->message != 0) atomic_fetch_add(&s->large, 1);
  if (status->message == 0) CHECK_MSG(mismatch(data, status->bytes, tag) < 0, "the content of %llu is wrong", (unsigned long long)tag);
  atomic_fetch_add(&s->runs, 1);
  return RDMA_MSG_HANDLED;
}

typedef struct sent {
  rdma_msg_request_t request;
  char *data, *header;
} sent;

static sent send_one(rdma_mgr_t *from, rdma_peer_t to, uint64_t tag) {
  size_t len = content_of(tag), beside = header_of(tag);
  sent s = {0, malloc(len + 1), malloc(beside + 1)};
  CHECK(s.data && s.header);
  fill(s.data, len, tag);
  fill(s.header, beside, ~tag);
  rdma_msg_options_t options = {.struct_size = sizeof options, .header = beside ? s.header : NULL, .header_len = beside};
  CHECK_OK(rdma_msg_am_isend(from, to, HANDLER, tag, s.data, len, &options, &s.request));
  return s;
}

static rdma_code_t finish(rdma_mgr_t *from, sent s) {
  rdma_code_t code = s.request ? end_of(from, s.request, NULL).code : RDMA_OK;
  free(s.data);
  free(s.header);
  return code;
}

/* Headers of all lengths beside contents that are left where they came, and that are not. */
static void headers_and_contents(void) {
  enum { N = 600, AT_ONCE = 30 };
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta");
  static seen s;
  for (int plain = 0; plain < 2; plain++) {
    s = (seen){.in_order = is_manual(), .hold_at = -1};
    CHECK_OK(plain ? rdma_msg_handler(p.b, HANDLER, on_active, &s) : rdma_msg_handler_in_place(p.b, HANDLER, on_active, &s));
    for (int tag = 0; tag < N;) {
      sent all[AT_ONCE];
      int n = 0;
      for (; n < AT_ONCE; n++, tag++) all[n] = send_one(p.a, to_b, (uint64_t)tag);
      CHECK(count_reached(&s.runs, tag, 30000));
      for (int i = 0; i < n; i++) CHECK_OK(finish(p.a, all[i]));
    }
    CHECK_MSG(atomic_load(&s.large) < N / 4, "%d of %d did not come along", atomic_load(&s.large), N);
  }
  CHECK_OK(rdma_msg_handler_in_place(p.b, HANDLER, NULL, NULL));
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_handler_in_place(NULL, HANDLER, on_active, &s));
}

/* Messages that came before their handler, and a sender that is the receiver. */
static void early_ones_and_own_ones(void) {
  pair p = pair_new(NULL);
  static seen s;
  s = (seen){.hold_at = -1};
  sent all[24];
  rdma_peer_t to_b = number_of(p.a, "beta"), self = number_of(p.b, "beta");
  for (uint64_t i = 0; i < 12; i++) all[i] = send_one(p.a, to_b, i);
  pump_for(20);
  CHECK_OK(rdma_msg_handler_in_place(p.b, HANDLER, on_active, &s));
  for (uint64_t i = 12; i < 24; i++) all[i] = send_one(p.b, self, i);
  CHECK(count_reached(&s.runs, 24, 30000));
  for (int i = 0; i < 24; i++) CHECK_OK(finish(i < 12 ? p.a : p.b, all[i]));
}

static bool reaches(rdma_mgr_t *sender, _Atomic int *count, int target) {
  for (int64_t end = now_ms() + patience(30000); atomic_load(count) < target && now_ms() < end;) {
    if (is_manual()) CHECK_OK(rdma_mgr_progress(sender, NULL));
    usleep(100);
  }
  return atomic_load(count) >= target;
}

/* One handler stands still, and with it the thread that runs it; others drive. The sender fills the room that there is, and waits. All
 * arrive once that one goes on, and it is its thread that says that there is room again. */
static void one_that_stands_still(void) {
  enum { N = 3000, DRIVERS = 2 };
  static seen s;
  static sent all[N];
  pthread_t drivers[DRIVERS];
  rdma_mgr_t *a = mgr_new("alpha", NULL), *b = mgr_new("beta", NULL);
  char at_b[256];
  mgr_listen(b, at_b);
  CHECK_OK(rdma_mgr_add_peer(a, "beta", at_b));
  s = (seen){.hold_at = 2};
  CHECK_OK(rdma_msg_handler_in_place(b, HANDLER, on_active, &s));
  drive_by(drivers, DRIVERS, b);
  rdma_peer_t to_b = number_of(a, "beta");
  for (uint64_t i = 0; i < N; i++) all[i] = send_one(a, to_b, 8 * (i % 3)); /* no headers, 8192, 10000 and 2030 bytes */
  CHECK(reaches(a, &s.held, 1));
  for (int i = 0; i < 300; i++) {
    if (is_manual()) CHECK_OK(rdma_mgr_progress(a, NULL));
    usleep(1000);
  }
  atomic_store(&s.go, 1);
  CHECK_MSG(reaches(a, &s.runs, N), "%d of %d", atomic_load(&s.runs), N);
  for (int i = 0; i < N; i++) CHECK_OK(finish(a, all[i]));
  join_all(drivers, DRIVERS);
  mgr_end(a);
  mgr_end(b);
}

/* The peer ends while its content is read: that stays where it is. */
static void a_peer_that_ends_meanwhile(void) {
  static seen s;
  pthread_t driver;
  rdma_mgr_t *a = mgr_new("alpha", NULL), *b = mgr_new("beta", NULL);
  char at_b[256];
  mgr_listen(b, at_b);
  CHECK_OK(rdma_mgr_add_peer(a, "beta", at_b));
  s = (seen){.hold_at = 1};
  CHECK_OK(rdma_msg_handler_in_place(b, HANDLER, on_active, &s));
  drive_by(&driver, 1, b);
  sent all[3];
  for (uint64_t i = 0; i < 3; i++) all[i] = send_one(a, number_of(a, "beta"), 8 * i);
  CHECK(reaches(a, &s.held, 1));
  mgr_end(a);
  usleep(20000);
  atomic_store(&s.go, 1);
  for (int64_t end = now_ms() + patience(30000); atomic_load(&s.runs) < 2 && now_ms() < end;) usleep(100);
  CHECK_MSG(atomic_load(&s.runs) >= 2, "%d", atomic_load(&s.runs));
  join_all(&driver, 1);
  mgr_end(b);
  for (int i = 0; i < 3; i++) free(all[i].data), free(all[i].header);
}

static const test_case cases[] = {
    CASE(headers_and_contents), CASE(early_ones_and_own_ones), SLOW(one_that_stands_still, 120), CASE(a_peer_that_ends_meanwhile),
};
TEST_MAIN(cases)
