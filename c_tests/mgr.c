/* Managers of a case, their progress, and waiting. */
#include "harness.h"
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define MAX_MGRS 160
typedef struct slot {
  rdma_mgr_t *mgr;
  pthread_t thread;
  bool driven;
  _Atomic bool stop;
} slot;
static slot slots[MAX_MGRS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static slot *slot_of(const rdma_mgr_t *mgr) {
  for (int i = 0; i < MAX_MGRS; i++)
    if (slots[i].mgr == mgr) return &slots[i];
  return NULL;
}

rdma_code_t mgr_try(const char *name, tweak_fn tweak, rdma_mgr_t **out) {
  rdma_mgr_options_t o;
  CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
  o.name = name;
  o.provider = env.provider;
  o.progress = env.progress;
  o.protocol = env.protocol;
  o.timeout_ms = patience(120000); /* a machine may stand still; what hangs is found by who waits, in time that it lived */
  if (tweak) tweak(&o);
  rdma_code_t rc = rdma_mgr_create(&o, out);
  if (rc == RDMA_OK) {
    pthread_mutex_lock(&lock);
    slot *s = slot_of(NULL);
    pthread_mutex_unlock(&lock);
    if (!s) FAIL("more than %d managers", MAX_MGRS);
    s->mgr = *out;
  }
  return rc;
}

rdma_mgr_t *mgr_new(const char *name, tweak_fn tweak) {
  rdma_mgr_t *mgr = NULL;
  CHECK_OK(mgr_try(name, tweak, &mgr));
  CHECK(mgr != NULL);
  return mgr;
}

void mgr_end(rdma_mgr_t *mgr) {
  drive_stop(mgr);
  slot *s = slot_of(mgr);
  CHECK_OK(rdma_mgr_destroy(mgr));
  if (s) s->mgr = NULL;
}

void mgrs_end(void) {
  for (int i = 0; i < MAX_MGRS; i++)
    if (slots[i].mgr) mgr_end(slots[i].mgr);
}

void mgr_listen(rdma_mgr_t *mgr, char address[256]) {
  char want[80];
  size_t len = 0;
  snprintf(want, sizeof want, strchr(env.host, ':') ? "[%s]:0" : "%s:0", env.host);
  CHECK_OK(rdma_mgr_listen(mgr, want, address, 256, &len));
  CHECK_INT(strlen(address), len);
}

pair pair_new(tweak_fn tweak) {
  pair p;
  p.a = mgr_new("alpha", tweak);
  p.b = mgr_new("beta", tweak);
  mgr_listen(p.a, p.a_address);
  mgr_listen(p.b, p.b_address);
  CHECK_OK(rdma_mgr_add_peer(p.a, "beta", p.b_address));
  CHECK_OK(rdma_mgr_add_peer(p.b, "alpha", p.a_address));
  return p;
}

void pair_end(pair *p) {
  mgr_end(p->a);
  mgr_end(p->b);
}

/* ---- progress ---- */
static void *driver(void *arg) {
  slot *s = arg;
  while (!atomic_load(&s->stop)) {
    rdma_code_t rc = rdma_mgr_wait(s->mgr, 20);
    if (rc != RDMA_OK && rc != RDMA_DEADLINE_EXCEEDED) CHECK_OK(rc);
  }
  return NULL;
}

void drive(rdma_mgr_t *mgr) {
  slot *s = slot_of(mgr);
  if (!is_manual() || !s || s->driven) return;
  atomic_store(&s->stop, false);
  s->driven = true;
  CHECK(pthread_create(&s->thread, NULL, driver, s) == 0);
}

void drive_stop(rdma_mgr_t *mgr) {
  slot *s = slot_of(mgr);
  if (!s || !s->driven) return;
  atomic_store(&s->stop, true);
  CHECK(pthread_join(s->thread, NULL) == 0);
  s->driven = false;
}

static void pump_once(void) {
  uint32_t total = 0;
  if (is_manual()) {
    for (int i = 0; i < MAX_MGRS; i++) {
      uint32_t events = 0;
      if (!slots[i].mgr || slots[i].driven) continue;
      CHECK_OK(rdma_mgr_progress(slots[i].mgr, &events));
      total += events;
    }
    if (!total) sched_yield();
  } else {
    struct timespec t = {0, 50000};
    nanosleep(&t, NULL);
  }
}

bool pump_until(condition_fn condition, void *arg, int64_t ms) {
  int64_t end = lived_ms() + patience(ms);
  while (!condition(arg)) {
    if (lived_ms() > end) return condition(arg);
    pump_once();
  }
  return true;
}

void pump_for(int64_t ms) {
  for (int64_t end = now_ms() + ms; now_ms() <= end;) pump_once();
}

typedef struct count_target {
  _Atomic int *counter;
  int target;
} count_target;
static bool reached(void *arg) {
  count_target *t = arg;
  return atomic_load(t->counter) >= t->target;
}
bool count_reached(_Atomic int *counter, int target, int64_t ms) {
  count_target t = {counter, target};
  return pump_until(reached, &t, ms);
}
