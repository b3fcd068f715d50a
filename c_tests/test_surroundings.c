/* Two processes that use every front end, where their surroundings are hostile: peers that are stopped and killed at any moment,
 * limits that are reached. Signals that interrupt and calls that are refused come from outside: environment.c. */
#include "tour.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

static void a_tour(void) {
  tour_ends e;
  rdma_code_t code = tour_together(&e, tour_deadline_ms, 12);
  for (int round = 0; code == RDMA_OK && round < 12; round++) code = tour_round(&e.t, round);
  CHECK_TOUR(&e, code);
  CHECK_HAS(tour_word(e.child, "ended "), "OK ");
  CHECK_INT(0, tour_finish(e.child));
  tour_apart(&e);
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
  int longest_ms, stops;
} stopper;

static void *stop_now_and_then(void *arg) {
  stopper *s = arg;
  while (!atomic_load(&s->over)) {
    sleep_ms(rand_r(&s->seed) % 60);
    kill(s->pid, SIGSTOP);
    sleep_ms(rand_r(&s->seed) % s->longest_ms);
    kill(s->pid, SIGCONT);
    s->stops++;
  }
  return NULL;
}

static void a_peer_that_is_stopped_loses_nothing(void) {
  tour_ends e;
  pthread_t thread;
  rdma_code_t code = tour_together(&e, 60000, 0);
  CHECK_TOUR(&e, code);
  const char *given = getenv("RDMA_TEST_STOP_MS"); /* for longer stops by hand: below the peer timeout */
  int longest = given ? atoi(given) : 500;
  stopper s = {.pid = e.child->pid, .seed = (unsigned)now_ms(), .longest_ms = longest};
  CHECK(pthread_create(&thread, NULL, stop_now_and_then, &s) == 0);
  int64_t until = lived_ms() + 12 * longest;
  for (int round = 0; code == RDMA_OK && lived_ms() < until; round++) code = tour_round(&e.t, round);
  atomic_store(&s.over, true);
  pthread_join(thread, NULL);
  printf("    seed %u, %d stops\n", s.seed, s.stops);
  CHECK_TOUR(&e, code);
  tour_apart(&e);
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
  tour_ends e;
  pthread_t thread;
  killer k = {.after_us = after_us};
  rdma_code_t code = tour_together(&e, tour_deadline_ms, 0);
  CHECK_TOUR(&e, code);
  k.pid = e.child->pid;
  CHECK(pthread_create(&thread, NULL, kill_later, &k) == 0);
  int round = 0;
  for (; code == RDMA_OK; round++) code = tour_round(&e.t, round);
  pthread_join(thread, NULL);
  int64_t killed = atomic_load(&k.at), late = now_ms() - killed;
  bool waits = e.t.since >= killed || waits_for_anybody(e.t.at);
  CHECK_MSG(code == RDMA_UNAVAILABLE || (waits && code == RDMA_DEADLINE_EXCEEDED), "after %lld us, %s: %s: %s",
            (long long)after_us, e.t.at, rdma_code_name(code), e.t.why);
  CHECK_MSG(late < patience(tour_deadline_ms + 3000), "after %lld us, %s ended %lld ms late", (long long)after_us, e.t.at,
            (long long)late);
  proc_kill(e.child);
  tour_apart(&e);
  return round;
}

/* The least of what is counted for a while: a thread that was joined stands in /proc for a moment more, and what is left
 * behind stays. */
static int settled(int (*count)(void)) {
  int least = count();
  for (int i = 0; i < 50; i++) {
    struct timespec t = {0, 4000000};
    nanosleep(&t, NULL);
    int now = count();
    if (now < least) least = now;
  }
  return least;
}

static void peers_that_are_killed_leave_nothing(void) {
  const char *given = getenv("RDMA_TEST_LIVES");
  int lives = given ? atoi(given) : 12, rounds = 0;
  unsigned seed = (unsigned)now_ms();
  printf("    seed %u\n", seed);
  tour_deadline_ms = 1500;
  for (int i = 0; i < 3; i++) one_life(20000); /* what the first ones allocate for good */
  int fds = settled(count_fds), threads = settled(count_threads), maps = count_maps();
  size_t rss = rss_bytes();
  for (int i = 0; i < lives; i++) rounds += one_life(rand_r(&seed) % 60000);
  int fds_left = settled(count_fds), threads_left = settled(count_threads);
  printf("    %d lives, %d rounds; descriptors %d to %d, threads %d to %d, maps %d to %d, KiB %zu to %zu\n", lives, rounds, fds,
         fds_left, threads, threads_left, maps, count_maps(), rss / KIB, rss_bytes() / KIB);
  CHECK_INT(fds, fds_left);
  CHECK_INT(threads, threads_left);
  CHECK(count_maps() <= maps + 12); /* arenas of the C library */
  CHECK(rss_bytes() <= rss + 48 * MIB);
}

/* ---- limits ---- */
/* A tour whose second end reaches a limit: both ends go on, or end with a code that tells, in time. Memory that runs out may end
 * the process (docs/reliability.md), other limits not. The child's word, or NULL. */
static const char *limited(const char *limit, bool may_abort) {
  static char said[1024];
  tour_ends e;
  tour_child_limit = limit;
  int64_t start = lived_ms();
  rdma_code_t code = tour_together(&e, tour_deadline_ms, 4);
  for (int round = 0; code == RDMA_OK && round < 4; round++) code = tour_round(&e.t, round);
  int64_t took = lived_ms() - start;
  static const rdma_code_t fair[] = {RDMA_OK,        RDMA_UNAVAILABLE, RDMA_DEADLINE_EXCEEDED, RDMA_CANCELLED,
                                     RDMA_NOT_FOUND, RDMA_RESOURCE_EXHAUSTED, RDMA_INVALID_ARGUMENT, RDMA_FAILED_PRECONDITION};
  bool is_fair = false;
  for (size_t i = 0; i < COUNT_OF(fair); i++) is_fair |= code == fair[i];
  CHECK_MSG(is_fair, "%s: %s: %s: %s", limit, e.t.at, rdma_code_name(code), e.t.why);
  CHECK_MSG(took < 2 * tour_deadline_ms + patience(8000), "%s: %s ended after %lld ms", limit, e.t.at, (long long)took);
  if (e.t.mgr) mgr_end(e.t.mgr);
  const char *end = e.child ? tour_word(e.child, "ended ") : NULL;
  snprintf(said, sizeof said, "%.*s", end ? (int)strcspn(end, "\n") : 0, end ? end : "");
  int status = e.child ? tour_finish(e.child) : 0;
  CHECK_MSG(status == 0 || (may_abort && status == 128 + SIGABRT), "%s: the child ended with %d: %s", limit, status, said);
  tour_end(&e.t);
  return said;
}

static void descriptors_run_out(void) {
  char limit[64];
  int ends = 0, whole = 0;
  tour_deadline_ms = 3000;
  for (int room = 0; room < 40; room += 2) {
    snprintf(limit, sizeof limit, "descriptors=%d", room);
    bool ok = strncmp(limited(limit, false), "OK", 2) == 0;
    ends += !ok, whole += ok;
  }
  unsigned seed = (unsigned)now_ms();
  printf("    seed %u\n", seed);
  for (int i = 0; i < 20; i++) {
    snprintf(limit, sizeof limit, "descriptors=%d@%d", rand_r(&seed) % 4, rand_r(&seed) % 60000);
    bool ok = strncmp(limited(limit, false), "OK", 2) == 0;
    ends += !ok, whole += ok;
  }
  printf("    %d tours ended early, %d were whole\n", ends, whole);
  CHECK(whole > 0 && ends > 0);
}

/* No file may be written, so that no memory file can be made; no memory may be locked. */
static void files_and_locked_memory(void) {
  CHECK_HAS(limited("locked=0", false), "OK");
  const char *said = limited("files=0", false);
  if (!is_provider("shm")) CHECK_HAS(said, "OK"); /* shm itself is made of such files */
  else CHECK_HAS(said, "RESOURCE_EXHAUSTED");
}

static void address_space_runs_out(void) {
  char limit[64];
  int ends = 0, whole = 0;
  if (is_sanitized()) skip("a sanitizer needs all of the address space");
  tour_deadline_ms = 3000;
  unsigned seed = (unsigned)now_ms();
  printf("    seed %u\n", seed);
  for (int i = 0; i < 24; i++) {
    int kib = 1 << rand_r(&seed) % 18;
    if (i % 2) snprintf(limit, sizeof limit, "memory=%d", kib);
    else snprintf(limit, sizeof limit, "memory=%d@%d", kib, rand_r(&seed) % 60000);
    bool ok = strncmp(limited(limit, true), "OK", 2) == 0;
    ends += !ok, whole += ok;
  }
  printf("    %d tours ended early, %d were whole\n", ends, whole);
}

static const test_case cases[] = {
    SLOW(descriptors_run_out, 400), CASE(files_and_locked_memory), SLOW(address_space_runs_out, 300),
    SLOW(a_tour, 120), SLOW(a_peer_that_is_stopped_loses_nothing, 180), SLOW(peers_that_are_killed_leave_nothing, 300),
};
static const test_role roles[] = {{"tour", tour_role}};
TEST_MAIN_ROLES(cases, roles)
