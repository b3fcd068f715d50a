/* Memory of operations while another thread destroys their manager: whose end was told is not touched any more. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "messages.h"
#include "pairs.h"

enum { LEN = 120000, WAITERS = 4, FLOODS = 2, ROUNDS = 40, WORDS = 5, LIVES = 100 };

typedef struct waiter {
  rdma_mgr_t *mgr;
  rdma_peer_t peer;
  /* 0: receives; 1: sends; 2: two receives, of which any is waited for; 3: claims */
  int kind;
} waiter;

static unsigned char *room(void) {
  void *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static rdma_code_t wait_for(rdma_mgr_t *mgr, rdma_msg_request_t *r, size_t n, uint32_t how) {
  rdma_msg_status_t st[2] = {{.struct_size = sizeof st[0]}, {.struct_size = sizeof st[0]}};
  size_t count = 0;
  return rdma_msg_wait(mgr, r, n, how, 5000, NULL, st, &count);
}

/* One operation, or two; not OK: the manager is ending. */
static rdma_code_t once(waiter *w, unsigned char *m) {
  rdma_msg_status_t st = {.struct_size = sizeof st};
  rdma_msg_request_t r[2] = {0, 0};
  rdma_code_t code = RDMA_OK;
  switch (w->kind) {
    case 0:
    case 2:
      for (int i = 0; i <= w->kind / 2 && code == RDMA_OK; i++)
        code = rdma_msg_irecv(w->mgr, RDMA_PEER_ANY, COMM, 1, EXACT, m + i * LEN / 2, LEN / 2, NULL, &st, &r[i]);
      break;
    case 1: code = rdma_msg_isend(w->mgr, w->peer, COMM, 2, m, LEN, NULL, &r[0]); break;
    default:
      code = rdma_msg_probe(w->mgr, RDMA_PEER_ANY, COMM, 1, EXACT, true, 5000, &st);
      if (code == RDMA_OK) code = rdma_msg_imrecv(w->mgr, st.message, m, LEN / 2, NULL, &st, &r[0]);
  }
  if (code == RDMA_OK && (r[0] != 0 || r[1] != 0))
    code = wait_for(w->mgr, r, 2, w->kind == 2 ? RDMA_MSG_ANY : RDMA_MSG_ALL);
  return code;
}

/* Memory goes as soon as a call says that the manager has ended, or that all is well. */
static void *waits(void *arg) {
  waiter *w = arg;
  for (rdma_code_t code = RDMA_OK; code == RDMA_OK;) {
    unsigned char *m = room();
    code = once(w, m);
    /* What "any" has left would be written still while the manager lives: such memory stays then. */
    if (w->kind != 2 || code != RDMA_OK) CHECK(munmap(m, LEN) == 0);
  }
  return NULL;
}

typedef struct flood {
  rdma_mgr_t *mgr;
  rdma_peer_t peer;
  bool receives;
  _Atomic bool stop;
} flood;

static void *floods(void *arg) {
  flood *f = arg;
  unsigned char *m = room();
  rdma_msg_options_t options;
  CHECK_OK(rdma_msg_options_init(&options, sizeof options));
  options.timeout_ms = 50;
  while (!atomic_load(&f->stop)) {
    rdma_msg_status_t st = {.struct_size = sizeof st};
    if (f->receives)
      (void)rdma_msg_recv(f->mgr, RDMA_PEER_ANY, COMM, 2, EXACT, m, LEN, &options, &st);
    else
      (void)rdma_msg_send(f->mgr, f->peer, COMM, 1, m, LEN / 2 - 1, &options);
  }
  CHECK(munmap(m, LEN) == 0);
  return NULL;
}

static void memory_is_free_when_a_wait_returns(void) {
  unsigned seed = (unsigned)now_ms();
  printf("    seed %u\n", seed);
  for (int i = 0; i < ROUNDS; i++) {
    pair p = pair_new(NULL);
    drive(p.a);
    flood f = {p.a, number_of(p.a, "beta"), i % 4 == 1, false};
    waiter w[WAITERS];
    pthread_t thread[WAITERS + FLOODS];
    for (int k = 0; k < WAITERS; k++) {
      w[k] = (waiter){p.b, number_of(p.b, "alpha"), i % 4};
      CHECK(pthread_create(&thread[k], NULL, waits, &w[k]) == 0);
    }
    for (int k = WAITERS; k < WAITERS + FLOODS; k++) CHECK(pthread_create(&thread[k], NULL, floods, &f) == 0);
    usleep(15000 + (useconds_t)(rand_r(&seed) % 7000));
    int64_t start = lived_ms();
    mgr_end(p.b);
    CHECK(lived_ms() - start < patience(10000));
    atomic_store(&f.stop, true);
    for (int k = 0; k < WAITERS + FLOODS; k++) CHECK(pthread_join(thread[k], NULL) == 0);
    mgr_end(p.a);
  }
}

/* A send in buffered mode has ended when its call returns: its manager's end lets it go out, to who is connected and who is not yet. */
static void what_was_sent_in_buffered_mode_arrives(void) {
  static const size_t lens[] = {100, 20000, 1000000};
  for (size_t i = 0; i < 12; i++) {
    size_t len = lens[i % 3];
    pair p = pair_new(NULL);
    rdma_peer_t to_b = number_of(p.a, "beta");
    if (i % 2) {
      drive(p.b);
      CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
      drive_stop(p.b);
    }
    unsigned char *from = scratch(len), *to = scratch(len);
    fill(from, len, (int)i);
    rdma_msg_status_t st = {.struct_size = sizeof st};
    rdma_msg_request_t r = irecv(p.b, RDMA_PEER_ANY, 1, EXACT, to, len, &st);
    rdma_msg_options_t o;
    CHECK_OK(rdma_msg_options_init(&o, sizeof o));
    o.mode = RDMA_MSG_BUFFERED;
    CHECK_OK(rdma_msg_attach(p.a, 2 * len + 1000));
    CHECK_OK(rdma_msg_send(p.a, to_b, COMM, 1, from, len, &o));
    drive(p.b);
    mgr_end(p.a);
    CHECK_INT(RDMA_OK, received(p.b, r, st).code);
    CHECK(mismatch(to, len, (int)i) < 0);
    mgr_end(p.b);
  }
}

/* A peer that is well and receives nothing takes nothing, however much else it says: what is offered to it is waited for a second. */
static void who_receives_nothing_is_waited_for_briefly(void) {
  pair p = pair_new(NULL);
  drive(p.b);
  CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
  CHECK_OK(rdma_msg_attach(p.a, 2 * MIB));
  rdma_msg_options_t options;
  CHECK_OK(rdma_msg_options_init(&options, sizeof options));
  options.mode = RDMA_MSG_BUFFERED;
  static char content[MIB];
  CHECK_OK(rdma_msg_send(p.a, number_of(p.a, "beta"), COMM, 1, content, sizeof content, &options));
  pump_for(100);
  int64_t start = lived_ms();
  mgr_end(p.a);
  int64_t took = lived_ms() - start;
  CHECK_MSG(took > 900 && took < patience(3500), "%lld ms", (long long)took);
  mgr_end(p.b);
}

/* Nobody has cancelled what waits at a peer whose manager ends, nor has this one ended: the peer is gone, whichever it was. */
static void a_peer_whose_manager_ends_is_gone(void) {
  pair p = pair_new(NULL);
  op *waits = op_recv(p.b, "alpha", "never", 3, 0, NULL);
  CHECK(!pump_until(op_ended_fn, waits, 300));
  drive(p.b);
  mgr_end(p.a);
  op_wait(waits, RDMA_UNAVAILABLE);
  CHECK_HAS(waits->message, "'never' of step 3 from peer 'alpha'");
  CHECK_HAS(waits->message, "the manager was destroyed");
  mgr_end(p.b);
}

/* ---- waits of buffers ---- */
typedef struct idle { /* somebody who waits in vain */
  rdma_mgr_t *mgr;
  rdma_buffer_t buffer;
  rdma_unbound_t unbound;
  bool sends;
  rdma_code_t code;
} idle;

static void *waits_in_vain(void *arg) {
  idle *w = arg;
  rdma_msg_status_t st = {.struct_size = sizeof st};
  if (w->buffer != 0)
    w->code = w->sends ? rdma_buffer_wait_send(w->mgr, w->buffer, 100000) : rdma_buffer_wait_recv(w->mgr, w->buffer, 100000);
  else
    w->code = rdma_unbound_wait_recv(w->mgr, w->unbound, 100000, &st);
  return NULL;
}

/* Of pairs that are connected and that never were, of unbound buffers with a receive under way and without: all return at once. */
static void waits_of_buffers_end_with_their_manager(void) {
  enum { IDLE = 7 };
  static char memory[IDLE][64];
  for (int round = 0; round < 4; round++) {
    pair p = pair_new(NULL);
    drive(p.a);
    ends e = connect_both(&p);
    idle w[IDLE];
    for (int i = 0; i < IDLE; i++) w[i] = (idle){.mgr = p.b, .code = RDMA_OK};
    rdma_pair_t alone;
    CHECK_OK(rdma_pair_create(p.b, 7, 100000, &alone));
    w[0].buffer = into(p.b, e.pb, 1, memory[0], 64);
    w[1].buffer = out_of(p.b, e.pb, 2, memory[1], 64); /* nothing is sent */
    w[2].buffer = out_of(p.b, e.pb, 3, memory[2], 64); /* and this to a slot that nobody opens */
    CHECK_OK(rdma_buffer_send(p.b, w[2].buffer, 0, 64, 0));
    w[1].sends = w[2].sends = w[4].sends = true;
    w[3].buffer = into(p.b, alone, 1, memory[3], 64);
    w[4].buffer = out_of(p.b, alone, 2, memory[4], 64);
    rdma_peer_t from = number_of(p.b, "alpha");
    CHECK_OK(rdma_unbound_create(p.b, 4, memory[5], 64, &w[5].unbound));
    CHECK_OK(rdma_unbound_create(p.b, 4, memory[6], 64, &w[6].unbound));
    CHECK_OK(rdma_unbound_recv(p.b, w[6].unbound, &from, 1, 9, 0, 64, RDMA_MSG_FOREVER));
    pthread_t thread[IDLE];
    for (int i = 0; i < IDLE; i++) CHECK(pthread_create(&thread[i], NULL, waits_in_vain, &w[i]) == 0);
    usleep(round * 20000);
    int64_t start = lived_ms();
    mgr_end(p.b);
    CHECK(lived_ms() - start < patience(10000));
    for (int i = 0; i < IDLE; i++) {
      CHECK(pthread_join(thread[i], NULL) == 0);
      /* Who had not begun to wait found that there is nothing to wait in. */
      CHECK_MSG(w[i].code == RDMA_CANCELLED || w[i].code == RDMA_UNAVAILABLE || w[i].code == RDMA_FAILED_PRECONDITION,
                "waiter %d: %s", i, rdma_code_name(w[i].code));
    }
    mgr_end(p.a);
  }
}

/* Sends alpha at argv[1] some messages with tag argv[2], by blocking calls, and is no more. */
static int last_words_role(int argc, char **argv) {
  if (argc < 3) return 2;
  char text[64] = {0};
  rdma_mgr_t *m = mgr_new(argv[0], NULL);
  CHECK_OK(rdma_mgr_add_peer(m, "alpha", argv[1]));
  CHECK_OK(rdma_mgr_connect(m, "alpha", CONNECT_MS));
  rdma_peer_t to = number_of(m, "alpha");
  rdma_msg_options_t header = {.struct_size = sizeof header, .header = "h", .header_len = 1};
  for (int i = 0; i < WORDS; i++) {
    text[0] = (char)i;
    CHECK_OK(rdma_msg_send(m, to, COMM, (uint64_t)atoi(argv[2]), text, sizeof text, i % 2 ? &header : NULL));
  }
  _exit(0);
}

/* What a blocking call has sent arrives, though nobody turns the manager any more, and though its process has not read all that
 * came: the end resets the connection, and the system forgets what it still holds back for more to follow. */
static void blocking_sends_outlive_their_process(void) {
  char address[256], tag[16], got[64];
  if (is_provider("loopback")) skip("loopback does not leave the process");
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  mgr_listen(m, address);
  for (int life = 1; life <= LIVES; life++) {
    rdma_msg_status_t at_once;
    rdma_msg_request_t r = irecv(m, RDMA_PEER_ANY, (uint64_t)life, EXACT, got, sizeof got, &at_once);
    snprintf(tag, sizeof tag, "%d", life);
    proc *p = proc_start("last_words", (const char *const[]){"beta", address, tag, NULL});
    for (int i = 0; i < WORDS; i++) {
      if (i) r = irecv(m, RDMA_PEER_ANY, (uint64_t)life, EXACT, got, sizeof got, &at_once);
      rdma_msg_status_t st = received(m, r, at_once);
      CHECK_MSG(st.code == RDMA_OK && got[0] == i, "life %d, message %d: %s: %s", life, i, rdma_code_name(st.code), st.text);
    }
    proc_kill(p);
  }
}

static const test_case cases[] = {SLOW(memory_is_free_when_a_wait_returns, 240), SLOW(what_was_sent_in_buffered_mode_arrives, 120),
                                  CASE(who_receives_nothing_is_waited_for_briefly), CASE(a_peer_whose_manager_ends_is_gone),
                                  SLOW(waits_of_buffers_end_with_their_manager, 120), SLOW(blocking_sends_outlive_their_process, 120)};
static const test_role roles[] = {{"last_words", last_words_role}};
TEST_MAIN_ROLES(cases, roles)
