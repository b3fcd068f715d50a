/* Ranks that meet through a store and send to each other: threads and processes, jobs that died before, ranks that never
 * come. */
#include "stores.h"
#include <pthread.h>
#include <signal.h>

#define MAX_RANKS 64
#define COMM 7

/* ---- ranks as threads ---- */
typedef struct rank_of {
  pthread_t thread;
  rdma_store_t *store;
  rdma_mgr_t *mgr;
  rdma_mesh_t *mesh;
  uint32_t rank, size;
  rdma_mesh_options_t options;
  rdma_code_t code;
  char error[1000];
} rank_of;

static rdma_mesh_options_t options_of(int64_t timeout_ms, bool full) {
  rdma_mesh_options_t o;
  CHECK_OK(rdma_mesh_options_init(&o, sizeof o));
  o.timeout_ms = timeout_ms, o.full = full;
  return o;
}

static void *join_in(void *arg) {
  rank_of *r = arg;
  r->code = rdma_mesh_connect(r->mgr, r->store, r->rank, r->size, &r->options, &r->mesh);
  if (r->code != RDMA_OK) rdma_last_error(r->error, sizeof r->error);
  return NULL;
}

static void begin(rank_of *r) { CHECK(pthread_create(&r->thread, NULL, join_in, r) == 0); }
static void end(rank_of *r) { CHECK(pthread_join(r->thread, NULL) == 0); }

static void ranks_new(rank_of *all, const place *p, uint32_t size, bool full) {
  memset(all, 0, size * sizeof *all);
  for (uint32_t i = 0; i < size; i++) {
    char name[32];
    snprintf(name, sizeof name, "r%u", i);
    all[i].store = place_open(p);
    all[i].mgr = mgr_new(name, NULL);
    if (is_manual()) drive(all[i].mgr);
    all[i].rank = i, all[i].size = size;
    all[i].options = options_of(patience(30000), full);
  }
}
static void ranks_end(rank_of *all, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    if (all[i].mesh) CHECK_OK(rdma_mesh_destroy(all[i].mesh));
    CHECK_OK(rdma_store_destroy(all[i].store));
    mgr_end(all[i].mgr);
  }
}

/* Each sends each of the others a number, and itself; where there are many, of its group of eight: the descriptors of all
 * pairs are those of one process here. */
static void everybody_talks(rank_of *all, uint32_t size) {
  static uint32_t sent[MAX_RANKS][MAX_RANKS], got[MAX_RANKS][MAX_RANKS];
  static rdma_msg_request_t requests[MAX_RANKS][MAX_RANKS], sends[MAX_RANKS][MAX_RANKS];
  size_t count = 0;
  for (uint32_t i = 0; i < size; i++)
    for (uint32_t j = 0; j < size; j++) {
      rdma_peer_t peer;
      uint32_t rank = 99;
      requests[i][j] = sends[i][j] = 0;
      CHECK_OK(rdma_mesh_peer(all[i].mesh, j, &peer));
      CHECK_OK(rdma_mesh_rank(all[i].mesh, peer, &rank));
      CHECK_INT(j, rank);
      sent[i][j] = 100 * i + j;
      if ((i ^ j) >= 8) continue;
      CHECK_OK(rdma_msg_irecv(all[i].mgr, peer, COMM, 1, RDMA_MSG_TAG_MASK, &got[i][j], 4, NULL, NULL, &requests[i][j]));
    }
  for (uint32_t i = 0; i < size; i++)
    for (uint32_t j = 0; j < size; j++) {
      rdma_peer_t peer;
      if ((i ^ j) >= 8) continue;
      CHECK_OK(rdma_mesh_peer(all[i].mesh, j, &peer));
      CHECK_OK(rdma_msg_isend(all[i].mgr, peer, COMM, 1, &sent[i][j], 4, NULL, &sends[i][j]));
    }
  for (uint32_t i = 0; i < size; i++)
    CHECK_OK(rdma_msg_wait(all[i].mgr, sends[i], size, RDMA_MSG_ALL, patience(30000), NULL, NULL, &count));
  for (uint32_t i = 0; i < size; i++)
    CHECK_OK(rdma_msg_wait(all[i].mgr, requests[i], size, RDMA_MSG_ALL, patience(30000), NULL, NULL, &count));
  for (uint32_t i = 0; i < size; i++)
    for (uint32_t j = 0; j < size; j++)
      if ((i ^ j) < 8) CHECK_INT(100 * j + i, got[i][j]);
}

static void meet_of(enum store_kind kind, bool full, uint32_t size) {
  place p = place_new(kind);
  static rank_of all[MAX_RANKS];
  ranks_new(all, &p, size, full);
  for (uint32_t i = 0; i < size; i++) { /* in some order */
    begin(&all[(5 * i + 3) % size]);
    usleep(i < 8 ? 3000 : 0);
  }
  for (uint32_t i = 0; i < size; i++) end(&all[i]);
  for (uint32_t i = 0; i < size; i++) CHECK_MSG(all[i].code == RDMA_OK, "rank %u: %s", i, all[i].error);
  rdma_peer_info_t info = {.struct_size = sizeof info};
  CHECK_OK(rdma_mgr_peer_info(all[1].mgr, "r6", &info));
  CHECK_INT(full ? RDMA_PEER_CONNECTED : RDMA_PEER_IDLE, info.state);
  everybody_talks(all, size);
  /* Again: the same at once, without the others. */
  rdma_mesh_t *again = NULL;
  rdma_peer_t one, other;
  for (uint32_t rank = 0; rank < size; rank += 3) {
    CHECK_OK(rdma_mesh_connect(all[rank].mgr, all[rank].store, rank, size, &all[rank].options, &again));
    CHECK_OK(rdma_mesh_peer(all[rank].mesh, 5, &one));
    CHECK_OK(rdma_mesh_peer(again, 5, &other));
    CHECK_INT(one, other);
    CHECK_OK(rdma_mesh_destroy(again));
  }
  ranks_end(all, size);
  place_end(&p);
}
static void meet(enum store_kind kind, bool full) { meet_of(kind, full, 8); }
static void memory_lazy(void) { meet(MEMORY, false); }
static void memory_full(void) { meet(MEMORY, true); }
static void custom_lazy(void) { meet(CUSTOM, false); }
static void tcp_lazy(void) { meet(TCP, false); }
static void tcp_full(void) { meet(TCP, true); }
static void file_lazy(void) { meet(FILES, false); }
static void redis_lazy(void) { meet(REDIS, false); }

static void sixty_four_ranks(void) { meet_of(TCP, false, 64); }
static void sixty_four_ranks_full(void) { meet_of(MEMORY, true, 64); }

static void missing_ranks_are_named(void) {
  place p = place_new(MEMORY);
  rank_of all[4];
  ranks_new(all, &p, 4, false);
  for (int i = 0; i < 4; i++) all[i].options = options_of(300, false);
  begin(&all[0]), begin(&all[2]); /* ranks 1 and 3 do not come */
  end(&all[0]), end(&all[2]);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, all[0].code);
  CHECK_HAS(all[0].error, "2 of 4 ranks did not come");
  CHECK_HAS(all[0].error, "rank 1, rank 3");
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, all[2].code);
  CHECK_HAS(all[2].error, "rank 1, rank 3");
  ranks_end(all, 4);
  place_end(&p);
  p = place_new(MEMORY);
  ranks_new(all, &p, 2, false);
  all[1].options = options_of(100, false);
  begin(&all[1]), end(&all[1]);
  CHECK_HAS(all[1].error, "rank 0 of 2 ranks did not come");
  ranks_end(all, 2);
  place_end(&p);
  /* One that comes in the place of another that has met is told so: rank 0 was there. */
  p = place_new(MEMORY);
  ranks_new(all, &p, 3, false);
  all[0].size = all[1].size = all[2].size = 2, all[2].rank = 1;
  begin(&all[0]), begin(&all[1]), end(&all[0]), end(&all[1]);
  CHECK_CODE(RDMA_OK, all[0].code);
  all[2].options = options_of(300, false);
  begin(&all[2]), end(&all[2]);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, all[2].code);
  CHECK_HAS(all[2].error, "met before this one came, with another manager as rank 1");
  ranks_end(all, 3);
  place_end(&p);
}

static void ranks_that_disagree(void) {
  place p = place_new(MEMORY);
  rank_of all[2];
  ranks_new(all, &p, 2, false);
  all[0].size = 1; /* meets nobody but itself */
  begin(&all[0]), end(&all[0]);
  CHECK_CODE(RDMA_OK, all[0].code);
  CHECK_OK(rdma_mesh_destroy(all[0].mesh));
  all[0].mesh = NULL, all[0].size = 3, all[0].options = options_of(300, false);
  all[1].options = options_of(300, false);
  begin(&all[0]), begin(&all[1]), end(&all[0]), end(&all[1]);
  CHECK_CODE(RDMA_DEADLINE_EXCEEDED, all[0].code);
  CHECK(all[1].code == RDMA_DEADLINE_EXCEEDED || all[1].code == RDMA_INVALID_ARGUMENT);
  ranks_end(all, 2);
  place_end(&p);

  p = place_new(MEMORY); /* one name twice */
  ranks_new(all, &p, 2, false);
  CHECK_OK(rdma_mgr_set_name(all[1].mgr, "r0"));
  all[1].options = options_of(500, false);
  begin(&all[0]), begin(&all[1]), end(&all[0]), end(&all[1]);
  CHECK_CODE(RDMA_INVALID_ARGUMENT, all[0].code);
  CHECK_HAS(all[0].error, "ranks 0 and 1 both have the name 'r0'");
  ranks_end(all, 2);
  place_end(&p);
}

/* What strangers put where a rank's value should be. */
static void values_of_strangers(void) {
  place p = place_new(MEMORY);
  rank_of all[2];
  char session[16], key[64] = "";
  size_t len = 0;
  ranks_new(all, &p, 2, false);
  begin(&all[0]);
  CHECK_OK(rdma_store_get(all[1].store, "session", 7, 0, session, sizeof session, &len));
  for (int i = 0; i < 16; i++) snprintf(key + 2 * i, 3, "%02x", (unsigned char)session[i]);
  strcat(key, "/1");
  put(all[1].store, key, "no address");
  end(&all[0]);
  CHECK_CODE(RDMA_DATA_LOSS, all[0].code);
  CHECK_HAS(all[0].error, "rank 1");
  put(all[1].store, "session", "short");
  begin(&all[1]), end(&all[1]);
  CHECK_CODE(RDMA_DATA_LOSS, all[1].code);
  ranks_end(all, 2);
  place_end(&p);
}

static void ends_while_it_waits(void) {
  place p = place_new(MEMORY);
  rank_of all[2];
  ranks_new(all, &p, 2, false);
  begin(&all[0]);
  begin(&all[1]);
  end(&all[0]), end(&all[1]);
  CHECK_OK(rdma_mesh_destroy(all[1].mesh));
  all[1].mesh = NULL, all[1].size = 5; /* waits for others */
  all[0].size = 5;
  CHECK_OK(rdma_mesh_destroy(all[0].mesh));
  all[0].mesh = NULL;
  begin(&all[0]), begin(&all[1]);
  usleep(20000);
  CHECK_OK(rdma_store_destroy(all[0].store));
  mgr_end(all[1].mgr);
  end(&all[0]), end(&all[1]);
  /* On a busy machine a call may begin after the end only. */
  if (all[0].code != RDMA_FAILED_PRECONDITION) CHECK_CODE(RDMA_CANCELLED, all[0].code);
  if (all[1].code != RDMA_FAILED_PRECONDITION) CHECK_CODE(RDMA_CANCELLED, all[1].code);
  CHECK_OK(rdma_store_destroy(all[1].store));
  mgr_end(all[0].mgr);
  place_end(&p);
}

static void a_manager_ends_while_it_waits(void) {
  place p = place_new(MEMORY);
  rank_of one[1];
  ranks_new(one, &p, 1, false);
  one[0].size = 2;
  begin(&one[0]);
  size_t n = 0;
  char session[16];
  CHECK_OK(rdma_store_get(one[0].store, "session", 7, patience(30000), session, sizeof session, &n));
  mgr_end(one[0].mgr);
  end(&one[0]);
  CHECK_CODE(RDMA_CANCELLED, one[0].code);
  CHECK_OK(rdma_store_destroy(one[0].store));
  place_end(&p);
}

/* All have met, and one does not answer who connects: the store's end waits for none of that. */
static void a_store_ends_while_ranks_connect(void) {
  place p = place_new(MEMORY);
  rank_of all[2];
  ranks_new(all, &p, 2, true);
  drive_stop(all[1].mgr);
  all[1].options = options_of(patience(30000), false);
  rdma_mgr_options_t o;
  if (!is_manual()) { /* one that nobody drives */
    mgr_end(all[1].mgr);
    CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
    o.name = "r1", o.provider = env.provider, o.progress = RDMA_PROGRESS_MANUAL;
    CHECK_OK(rdma_mgr_create(&o, &all[1].mgr));
  }
  all[0].options.timeout_ms = RDMA_STORE_FOREVER;
  begin(&all[0]), begin(&all[1]);
  end(&all[1]);
  CHECK_OK(all[1].code);
  rdma_peer_info_t info = {.struct_size = sizeof info};
  while (rdma_mgr_peer_info(all[0].mgr, "r1", &info) != RDMA_OK || info.state != RDMA_PEER_CONNECTING) usleep(1000);
  CHECK_OK(rdma_store_destroy(all[0].store));
  mgr_end(all[0].mgr);
  end(&all[0]);
  CHECK_CODE(RDMA_CANCELLED, all[0].code);
  CHECK_OK(rdma_mesh_destroy(all[1].mesh));
  CHECK_OK(rdma_store_destroy(all[1].store));
  mgr_end(all[1].mgr);
  place_end(&p);
}

/* A rank that was connected and has ended, while another keeps all waiting: who waits hears of it long before its time is over. */
static void a_rank_that_leaves(void) {
  place p = place_new(MEMORY);
  rank_of all[3];
  ranks_new(all, &p, 3, false);
  drive_stop(all[2].mgr);
  if (!is_manual()) { /* one that nobody drives */
    rdma_mgr_options_t o;
    mgr_end(all[2].mgr);
    CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
    o.name = "r2", o.provider = env.provider, o.progress = RDMA_PROGRESS_MANUAL;
    CHECK_OK(rdma_mgr_create(&o, &all[2].mgr));
  }
  all[0].options = options_of(patience(60000), true);
  const int64_t begun = now_ms();
  for (int i = 0; i < 3; i++) begin(&all[i]);
  end(&all[1]), end(&all[2]);
  CHECK_OK(all[1].code);
  CHECK_OK(all[2].code);
  CHECK_OK(rdma_mgr_connect(all[1].mgr, "r0", patience(20000)));
  rdma_peer_info_t info = {.struct_size = sizeof info};
  while (rdma_mgr_peer_info(all[0].mgr, "r1", &info) != RDMA_OK || info.state != RDMA_PEER_CONNECTED) usleep(1000);
  mgr_end(all[1].mgr);
  end(&all[0]);
  CHECK_CODE(RDMA_UNAVAILABLE, all[0].code);
  CHECK_MSG(strstr(all[0].error, "'r1'"), "%s", all[0].error);
  CHECK_MSG(now_ms() - begun < patience(40000), "after %lld ms", (long long)(now_ms() - begun));
  mgr_end(all[0].mgr), mgr_end(all[2].mgr);
  for (int i = 0; i < 3; i++) {
    if (all[i].mesh) CHECK_OK(rdma_mesh_destroy(all[i].mesh));
    CHECK_OK(rdma_store_destroy(all[i].store));
  }
  place_end(&p);
}

/* Inside a callback nothing can be waited for, which is said before others are let wait; and nothing ends that waits for
 * threads: also where the callback runs on a thread of the library. */
typedef struct inner {
  rdma_mgr_t *mgr, *other;
  rdma_store_t *store;
  rdma_mesh_t *mesh;
  _Atomic int ran;
} inner;
static void within(const rdma_msg_status_t *status, void *userdata) {
  inner *in = userdata;
  (void)status;
  rdma_mesh_options_t full = options_of(patience(30000), true);
  rdma_mesh_t *mesh;
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mesh_connect(in->mgr, in->store, 0, 2, &full, &mesh));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mesh_destroy(in->mesh));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_store_destroy(in->store));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_destroy(in->mgr));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_destroy(in->other));
  in->ran = 1;
}
static void inside_a_callback(void) {
  inner in = {.mgr = mgr_new("m", NULL), .other = mgr_new("other", NULL)};
  rdma_mesh_options_t o = options_of(patience(30000), false);
  CHECK_OK(rdma_store_memory(NULL, &in.store));
  CHECK_OK(rdma_mesh_connect(in.mgr, in.store, 0, 1, &o, &in.mesh));
  rdma_peer_t self;
  rdma_msg_options_t options;
  char c = 0;
  CHECK_OK(rdma_msg_options_init(&options, sizeof options));
  options.done = within, options.userdata = &in;
  CHECK_OK(rdma_peer_lookup(in.mgr, "m", &self));
  CHECK_OK(rdma_msg_irecv(in.mgr, self, COMM, 1, RDMA_MSG_TAG_MASK, &c, 1, &options, NULL, NULL));
  if (is_manual()) drive(in.mgr);
  CHECK_OK(rdma_msg_isend(in.mgr, self, COMM, 1, "c", 1, NULL, NULL));
  while (!in.ran) usleep(1000);
  if (is_manual()) drive_stop(in.mgr);
  CHECK_OK(rdma_mesh_destroy(in.mesh));
  CHECK_OK(rdma_store_destroy(in.store));
  mgr_end(in.mgr), mgr_end(in.other);
}

/* ---- ranks as processes ---- */
/* arguments: kind place rank size; says "met", rank 0 then gets a number of everybody and says "sum N". */
static int member_role(int argc, char **argv) {
  if (argc < 4) return 2;
  char name[32];
  uint32_t rank = (uint32_t)atoi(argv[2]), size = (uint32_t)atoi(argv[3]);
  rdma_store_t *s = open_at((enum store_kind)atoi(argv[0]), argv[1]);
  snprintf(name, sizeof name, "rank-%u", rank);
  rdma_mgr_t *mgr = mgr_new(name, NULL);
  rdma_mesh_t *mesh = NULL;
  rdma_mesh_options_t o = options_of(patience(60000), false);
  CHECK_OK(rdma_mesh_connect(mgr, s, rank, size, &o, &mesh));
  printf("met\n");
  fflush(stdout);
  rdma_peer_t peer;
  uint64_t number = rank, sum = 0;
  for (uint32_t r = 1; r < size && rank == 0; r++) {
    CHECK_OK(rdma_mesh_peer(mesh, r, &peer));
    CHECK_OK(rdma_msg_recv(mgr, peer, COMM, 2, RDMA_MSG_TAG_MASK, &number, sizeof number, NULL, NULL));
    sum += number;
  }
  CHECK_OK(rdma_mesh_peer(mesh, 0, &peer));
  if (rank) CHECK_OK(rdma_msg_send(mgr, peer, COMM, 2, &number, sizeof number, NULL));
  if (!rank) printf("sum %llu\n", (unsigned long long)sum);
  fflush(stdout);
  char line[64];
  if (!next_line(line, sizeof line)) return 1;
  CHECK_OK(rdma_mesh_destroy(mesh));
  mgr_end(mgr);
  CHECK_OK(rdma_store_destroy(s));
  return 0;
}

static proc *member(const place *p, int rank, int size) {
  char *kind = scratch(8), *r = scratch(8), *n = scratch(8);
  snprintf(kind, 8, "%d", (int)p->kind);
  snprintf(r, 8, "%d", rank);
  snprintf(n, 8, "%d", size);
  const char *args[] = {kind, p->at, r, n, NULL};
  return proc_start("member", args);
}

#define JOB 4
static void job(const place *p, bool killed) {
  proc *all[JOB];
  for (int i = JOB - 1; i >= 0; i--) all[i] = member(p, i, JOB);
  for (int i = 0; i < JOB; i++) proc_expect(all[i], "met");
  proc_expect(all[0], "sum 6");
  for (int i = 0; i < JOB; i++)
    if (killed) proc_kill(all[i]);
    else CHECK_INT(0, proc_finish(all[i]));
}

/* Jobs under one prefix, right after each other: the first is killed, the second loses a rank while it meets, the third is
 * whole. Nothing of those before is taken for theirs. */
static void jobs(enum store_kind kind) {
  if (is_provider("loopback")) skip("loopback does not leave the process");
  place p = place_new(kind);
  job(&p, true);
  proc *one = member(&p, 1, JOB), *two = member(&p, 2, JOB), *zero = member(&p, 0, JOB);
  pump_for(100);
  proc_kill(one), proc_kill(two), proc_kill(zero);
  job(&p, false);
  place_end(&p);
}
static void jobs_file(void) { jobs(FILES); }
static void jobs_tcp(void) { jobs(TCP); }
static void jobs_redis(void) { jobs(REDIS); }

/* The server goes while ranks wait for each other, and comes back empty. */
static void redis_goes_and_comes(void) {
  if (is_provider("loopback")) skip("loopback does not leave the process");
  place p = place_new(REDIS);
  proc *all[JOB];
  for (int i = 0; i < JOB - 1; i++) all[i] = member(&p, i, JOB);
  pump_for(300);
  redis_kill(&p);
  pump_for(300);
  redis_start(&p);
  pump_for(300);
  all[JOB - 1] = member(&p, JOB - 1, JOB);
  for (int i = 0; i < JOB; i++) proc_expect(all[i], "met");
  proc_expect(all[0], "sum 6");
  for (int i = 0; i < JOB; i++) CHECK_INT(0, proc_finish(all[i]));
  place_end(&p);
}

#define BAD(expr) CHECK_BAD(RDMA_INVALID_ARGUMENT, expr)
static void arguments(void) {
  rdma_mesh_options_t o;
  rdma_mesh_t *mesh = NULL;
  rdma_store_t *s = NULL;
  rdma_mgr_t *m = mgr_new("m", NULL);
  uint64_t foreign[16] = {1};
  rdma_peer_t peer;
  uint32_t rank;
  CHECK_OK(rdma_store_memory(NULL, &s));
  BAD(rdma_mesh_options_init(NULL, sizeof o));
  BAD(rdma_mesh_options_init(&o, 1));
  CHECK_OK(rdma_mesh_options_init(&o, sizeof o));
  BAD(rdma_mesh_connect(NULL, s, 0, 1, NULL, &mesh));
  BAD(rdma_mesh_connect(m, NULL, 0, 1, NULL, &mesh));
  BAD(rdma_mesh_connect(m, (rdma_store_t *)foreign, 0, 1, NULL, &mesh));
  BAD(rdma_mesh_connect(m, s, 0, 1, NULL, NULL));
  BAD(rdma_mesh_connect(m, s, 0, 0, NULL, &mesh));
  BAD(rdma_mesh_connect(m, s, 2, 2, NULL, &mesh));
  BAD(rdma_mesh_connect(m, s, 0, RDMA_MESH_MAX_RANKS + 1, NULL, &mesh));
  o.timeout_ms = RDMA_STORE_NOW;
  BAD(rdma_mesh_connect(m, s, 0, 1, &o, &mesh));
  o.timeout_ms = 0, o.keep_ms = 1;
  BAD(rdma_mesh_connect(m, s, 0, 1, &o, &mesh));
  error_has("options.keep_ms is 1, allowed are 0 (60000) and 100 to 86400000");
  o.keep_ms = 86400001;
  BAD(rdma_mesh_connect(m, s, 0, 1, &o, &mesh));
  error_has("options.keep_ms is 86400001");
  o.keep_ms = -1;
  BAD(rdma_mesh_connect(m, s, 0, 1, &o, &mesh));
  CHECK(mesh == NULL);
  CHECK_OK(rdma_mesh_connect(m, s, 0, 1, NULL, &mesh));
  BAD(rdma_mesh_peer(NULL, 0, &peer));
  BAD(rdma_mesh_peer(mesh, 0, NULL));
  BAD(rdma_mesh_peer(mesh, 1, &peer));
  BAD(rdma_mesh_peer((rdma_mesh_t *)foreign, 0, &peer));
  BAD(rdma_mesh_rank(mesh, RDMA_PEER_ANY, &rank));
  BAD(rdma_mesh_rank(mesh, UINT64_MAX, &rank));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_mesh_rank(mesh, 1000, &rank));
  BAD(rdma_mesh_destroy(NULL));
  CHECK_OK(rdma_mesh_destroy(mesh));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mesh_peer(mesh, 0, &peer));
  CHECK_OK(rdma_store_destroy(s));
}

static const test_case cases[] = {CASE(arguments),
                                  CASE(memory_lazy),
                                  CASE(memory_full),
                                  CASE(custom_lazy),
                                  CASE(tcp_lazy),
                                  CASE(tcp_full),
                                  CASE(file_lazy),
                                  CASE(redis_lazy),
                                  SLOW(sixty_four_ranks, 300),
                                  SLOW(sixty_four_ranks_full, 300),
                                  CASE(missing_ranks_are_named),
                                  CASE(ranks_that_disagree),
                                  CASE(values_of_strangers),
                                  CASE(ends_while_it_waits),
                                  CASE(a_manager_ends_while_it_waits),
                                  CASE(a_store_ends_while_ranks_connect),
                                  CASE(a_rank_that_leaves),
                                  CASE(inside_a_callback),
                                  SLOW(jobs_file, 120),
                                  SLOW(jobs_tcp, 120),
                                  SLOW(jobs_redis, 120),
                                  SLOW(redis_goes_and_comes, 120)};
static const test_role roles[] = {{"member", member_role}};
TEST_MAIN_ROLES(cases, roles)
