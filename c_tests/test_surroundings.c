/* Two processes that use every front end, where their surroundings are hostile: peers that are stopped and killed at any moment,
 * limits that are reached. Signals that interrupt and calls that are refused come from outside: environment.c. */
#include "tour.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

static int64_t deadline = 20000;
static void with_deadline(rdma_mgr_options_t *o) { o->timeout_ms = deadline; }

/* A manager, and a child that tours with it. */
typedef struct ends {
  tourist t;
  proc *child;
} ends;

static rdma_code_t together(ends *e, int64_t child_ms, int child_rounds) {
  char mine[256], theirs[256], ms[24], rounds[24];
  memset(e, 0, sizeof *e);
  e->t = (tourist){.name = "alpha", .other = "beta", .rank = 0, .timeout_ms = deadline};
  snprintf(ms, sizeof ms, "%lld", (long long)child_ms);
  snprintf(rounds, sizeof rounds, "%d", child_rounds);
  e->t.at = "rdma_mgr_create";
  rdma_code_t code = mgr_try("alpha", with_deadline, &e->t.mgr);
  if (code != RDMA_OK) return rdma_last_error(e->t.why, sizeof e->t.why), code;
  snprintf(mine, sizeof mine, "%s:0", env.host);
  size_t len = 0;
  e->t.at = "rdma_mgr_listen";
  code = rdma_mgr_listen(e->t.mgr, mine, mine, sizeof mine, &len);
  if (code != RDMA_OK) return rdma_last_error(e->t.why, sizeof e->t.why), code;
  char listen[256];
  snprintf(listen, sizeof listen, "%s:0", peer_host());
  e->child = proc_start("tour", (const char *const[]){"beta", listen, "alpha", mine, ms, rounds, NULL});
  snprintf(theirs, sizeof theirs, "%s", proc_expect(e->child, "addr "));
  e->t.at = "rdma_mgr_add_peer";
  code = rdma_mgr_add_peer(e->t.mgr, "beta", theirs);
  if (code != RDMA_OK) return rdma_last_error(e->t.why, sizeof e->t.why), code;
  return tour_begin(&e->t);
}

static void apart(ends *e) {
  mgr_end(e->t.mgr);
  tour_end(&e->t);
}

#define CHECK_ROUND(e, code) \
  CHECK_MSG((code) == RDMA_OK, "%s: %s: %s", (e)->t.at, rdma_code_name(code), (e)->t.why)

static void a_tour(void) {
  ends e;
  rdma_code_t code = together(&e, deadline, 12);
  for (int round = 0; code == RDMA_OK && round < 12; round++) code = tour_round(&e.t, round);
  CHECK_ROUND(&e, code);
  CHECK_HAS(proc_expect(e.child, "ended "), "OK ");
  CHECK_INT(0, proc_finish(e.child));
  apart(&e);
}

/* ---- peers that are stopped ---- */
static void sleep_ms(int64_t ms) {
  struct timespec t = {ms / 1000, (ms % 1000) * 1000000};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

typedef struct stopper {
  pid_t pid;
  _Atomic bool over;
  unsigned seed;
  int stops;
} stopper;

static void *stop_now_and_then(void *arg) {
  stopper *s = arg;
  while (!atomic_load(&s->over)) {
    sleep_ms(rand_r(&s->seed) % 60);
    kill(s->pid, SIGSTOP);
    sleep_ms(rand_r(&s->seed) % 500);
    kill(s->pid, SIGCONT);
    s->stops++;
  }
  return NULL;
}

static void a_peer_that_is_stopped_loses_nothing(void) {
  ends e;
  pthread_t thread;
  rdma_code_t code = together(&e, 60000, 0);
  CHECK_ROUND(&e, code);
  stopper s = {.pid = e.child->pid, .seed = (unsigned)now_ms()};
  CHECK(pthread_create(&thread, NULL, stop_now_and_then, &s) == 0);
  int64_t until = lived_ms() + 6000;
  for (int round = 0; code == RDMA_OK && lived_ms() < until; round++) code = tour_round(&e.t, round);
  atomic_store(&s.over, true);
  pthread_join(thread, NULL);
  printf("    seed %u, %d stops\n", s.seed, s.stops);
  CHECK_ROUND(&e, code);
  apart(&e);
  proc_kill(e.child);
}

/* ---- peers that are killed ---- */
typedef struct killer {
  pid_t pid;
  int64_t after_us;
  _Atomic int64_t at;
} killer;

static void *kill_later(void *arg) {
  killer *k = arg;
  struct timespec t = {k->after_us / 1000000, (k->after_us % 1000000) * 1000};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
  atomic_store(&k->at, now_ms());
  kill(k->pid, SIGKILL);
  return NULL;
}

/* What waits until its deadline, whatever happens to one peer: a tensor that nobody has asked for, and a receive of messages
 * that none has met. So does what begins after the peer's end, since the peer may come back. */
static bool waits_for_anybody(const char *what) {
  static const char *const waits[] = {"end of rdma_send", "rdma_msg_recv", "answer to active", "rdma_unbound_wait_recv"};
  for (size_t i = 0; i < COUNT_OF(waits); i++)
    if (strcmp(what, waits[i]) == 0) return true;
  return false;
}

/* One life of a child; how many rounds it lived for. */
static int one_life(int64_t after_us) {
  ends e;
  pthread_t thread;
  killer k = {.after_us = after_us};
  rdma_code_t code = together(&e, deadline, 0);
  CHECK_ROUND(&e, code);
  k.pid = e.child->pid;
  CHECK(pthread_create(&thread, NULL, kill_later, &k) == 0);
  int round = 0;
  for (; code == RDMA_OK; round++) code = tour_round(&e.t, round);
  pthread_join(thread, NULL);
  int64_t killed = atomic_load(&k.at), late = now_ms() - killed;
  bool waits = e.t.since >= killed || waits_for_anybody(e.t.at);
  CHECK_MSG(code == RDMA_UNAVAILABLE || (waits && code == RDMA_DEADLINE_EXCEEDED), "after %lld us, %s: %s: %s",
            (long long)after_us, e.t.at, rdma_code_name(code), e.t.why);
  CHECK_MSG(late < patience(deadline + 3000), "after %lld us, %s ended %lld ms late", (long long)after_us, e.t.at,
            (long long)late);
  proc_kill(e.child);
  apart(&e);
  return round;
}

static void peers_that_are_killed_leave_nothing(void) {
  const char *given = getenv("RDMA_TEST_LIVES");
  int lives = given ? atoi(given) : 25, rounds = 0;
  unsigned seed = (unsigned)now_ms();
  printf("    seed %u\n", seed);
  deadline = 1500;
  for (int i = 0; i < 3; i++) one_life(20000); /* what the first ones allocate for good */
  int fds = count_fds(), threads = count_threads(), maps = count_maps();
  size_t rss = rss_bytes();
  for (int i = 0; i < lives; i++) rounds += one_life(rand_r(&seed) % 60000);
  printf("    %d lives, %d rounds; descriptors %d to %d, threads %d to %d, maps %d to %d, KiB %zu to %zu\n", lives, rounds, fds,
         count_fds(), threads, count_threads(), maps, count_maps(), rss / KIB, rss_bytes() / KIB);
  CHECK_INT(fds, count_fds());
  CHECK_INT(threads, count_threads());
  CHECK(count_maps() <= maps + 12); /* arenas of the C library */
  CHECK(rss_bytes() <= rss + 48 * MIB);
}

static const test_case cases[] = {
    SLOW(a_tour, 120), SLOW(a_peer_that_is_stopped_loses_nothing, 180), SLOW(peers_that_are_killed_leave_nothing, 300),
};
static const test_role roles[] = {{"tour", tour_role}};
TEST_MAIN_ROLES(cases, roles)
