/* Stores through the ABI: each kind alike, and what their handles promise. */
#include "stores.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define NOW RDMA_STORE_NOW
#define FOREVER RDMA_STORE_FOREVER

/* ---- of each kind ---- */
static void everything(enum store_kind kind) {
  place p = place_new(kind);
  rdma_store_t *s = place_open(&p), *other = place_open(&p);
  char buf[16] = "untouched";
  size_t len = 77;
  bool there = false;
  int64_t sum = 0;
  int32_t result = -1;
  put(s, "k", "value");
  CHECK_STR("value", got(other, "k"));
  put(other, "k", "");
  CHECK_STR("", got(s, "k"));
  put(s, "k", "value");
  CHECK_CODE(RDMA_OUT_OF_RANGE, rdma_store_get(s, "k", 1, NOW, NULL, 0, &len));
  CHECK_INT(5, len);
  CHECK_CODE(RDMA_OUT_OF_RANGE, rdma_store_get(s, "k", 1, NOW, buf, 4, &len));
  CHECK_STR("untouched", buf);
  CHECK_BAD(RDMA_NOT_FOUND, rdma_store_get(s, "none", 4, NOW, buf, sizeof buf, &len));
  CHECK_HAS(error_text(), "'none'");
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_store_get(s, "none", 4, 20, buf, sizeof buf, &len));

  rdma_bytes_t keys[3] = {bytes_of("k"), bytes_of("rank/1"), bytes_of("rank/2")};
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_store_wait(s, keys, 3, 20));
  CHECK_HAS(error_text(), "2 of 3 keys are not there");
  CHECK_HAS(error_text(), "'rank/1', 'rank/2'");
  CHECK_OK(rdma_store_check(s, keys, 3, 0, &there));
  CHECK(!there);
  rdma_bytes_t values[3] = {bytes_of("a"), bytes_of(""), bytes_of("ccc")};
  CHECK_OK(rdma_store_multi_set(other, keys, values, 3, 0));
  CHECK_OK(rdma_store_wait(s, keys, 3, FOREVER));
  CHECK_OK(rdma_store_check(s, keys, 3, 0, &there));
  CHECK(there);
  char a[1] = "", c[3] = "";
  rdma_bytes_out_t buffers[3] = {{a, 1, 0}, {NULL, 0, 9}, {c, 2, 0}};
  CHECK_CODE(RDMA_OUT_OF_RANGE, rdma_store_multi_get(s, keys, buffers, 3, 0));
  CHECK(buffers[0].len == 1 && buffers[1].len == 0 && buffers[2].len == 3 && a[0] == 0);
  buffers[2].cap = 3;
  CHECK_OK(rdma_store_multi_get(s, keys, buffers, 3, 0));
  CHECK(a[0] == 'a' && memcmp(c, "ccc", 3) == 0);

  CHECK_OK(rdma_store_add(s, "n", 1, 5, 0, &sum));
  CHECK_OK(rdma_store_add(other, "n", 1, -7, 0, &sum));
  CHECK_INT(-2, sum);
  CHECK_STR("-2", got(s, "n"));

  CHECK_OK(rdma_store_compare_set(s, "c", 1, "x", 1, "y", 1, 0, &result, NULL, 0, NULL));
  CHECK_INT(RDMA_STORE_ABSENT, result);
  CHECK_OK(rdma_store_compare_set(s, "c", 1, NULL, 0, "one", 3, 0, &result, NULL, 0, NULL));
  CHECK_INT(RDMA_STORE_SET, result);
  CHECK_OK(rdma_store_compare_set(other, "c", 1, "two", 3, "three", 5, 0, &result, buf, sizeof buf, &len));
  CHECK_INT(RDMA_STORE_DIFFERS, result);
  CHECK(len == 3 && memcmp(buf, "one", 3) == 0);
  CHECK_CODE(RDMA_OUT_OF_RANGE, rdma_store_compare_set(s, "c", 1, NULL, 0, "", 0, 0, &result, buf, 2, &len));
  CHECK_OK(rdma_store_compare_set(s, "c", 1, "one", 3, NULL, 0, 0, &result, NULL, 0, NULL));
  CHECK_INT(RDMA_STORE_SET, result);
  CHECK_STR("", got(s, "c"));

  CHECK_OK(rdma_store_delete(other, "k", 1, 0, &there));
  CHECK(there);
  CHECK_OK(rdma_store_delete(s, "k", 1, 0, &there));
  CHECK(!there);
  CHECK_OK(rdma_store_delete(s, "k", 1, 0, NULL));

  size_t mib = MIB;
  char *large = scratch(mib), *back = scratch(mib);
  fill(large, mib, 3);
  CHECK_OK(rdma_store_set(s, "large", 5, large, mib, 0));
  CHECK_OK(rdma_store_get(other, "large", 5, 0, back, mib, &len));
  CHECK(len == mib && mismatch(back, mib, 3) == -1);
  CHECK_OK(rdma_store_destroy(s));
  CHECK_OK(rdma_store_destroy(other));
  place_end(&p);
}

/* ---- a blocked wait, the end of its store, and the one who waited ---- */
typedef struct waiter {
  pthread_t thread;
  rdma_store_t *store;
  const char *key;
  rdma_code_t code;
  _Atomic bool begun;
} waiter;
static void *waits(void *arg) {
  waiter *w = arg;
  rdma_bytes_t key = bytes_of(w->key);
  atomic_store(&w->begun, true);
  w->code = rdma_store_wait(w->store, &key, 1, FOREVER);
  return NULL;
}
static void wait_begin(waiter *w, rdma_store_t *store, const char *key) {
  w->store = store, w->key = key;
  atomic_store(&w->begun, false);
  CHECK(pthread_create(&w->thread, NULL, waits, w) == 0);
  while (!atomic_load(&w->begun)) usleep(1000);
  usleep(20000);
}
static rdma_code_t wait_end(waiter *w) {
  CHECK(pthread_join(w->thread, NULL) == 0);
  return w->code;
}

static void ends(enum store_kind kind) {
  place p = place_new(kind);
  rdma_store_t *s = place_open(&p), *view = NULL, *stays = place_open(&p);
  waiter one, two, three;
  CHECK_OK(rdma_store_prefix(s, "view", 4, &view));
  wait_begin(&one, s, "none");
  wait_begin(&two, view, "none");
  wait_begin(&three, stays, "comes");
  CHECK_OK(rdma_store_destroy(s));
  CHECK_CODE(RDMA_CANCELLED, wait_end(&one));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_store_set(s, "k", 1, "v", 1, 0));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_store_destroy(s));
  put(view, "k", "a view lives on");
  CHECK_STR("a view lives on", got(stays, "view/k"));
  CHECK_OK(rdma_store_destroy(view));
  CHECK_CODE(RDMA_CANCELLED, wait_end(&two));
  put(stays, "comes", "");
  CHECK_CODE(RDMA_OK, wait_end(&three));
  CHECK_OK(rdma_store_destroy(stays));
  place_end(&p);
}

/* In a forked child nothing works, and nothing of the parent's is touched. */
static void forked(enum store_kind kind) {
  place p = place_new(kind);
  rdma_store_t *s = place_open(&p), *leased = NULL;
  int status = 0;
  if (kind != CUSTOM) CHECK_OK(rdma_store_lease(s, 60000, &leased));
  put(leased ? leased : s, "k", "v");
  pid_t child = fork();
  if (child == 0) {
    char buf[8];
    size_t len;
    bool cut = rdma_store_get(s, "k", 1, 0, buf, 8, &len) == RDMA_FAILED_PRECONDITION &&
               rdma_store_destroy(s) == RDMA_FAILED_PRECONDITION && strstr(error_text(), "forked child");
    rdma_store_t *own = NULL; /* of its own it may have one */
    bool other = rdma_store_memory(NULL, &own) == RDMA_OK && rdma_store_set(own, "k", 1, "", 0, 0) == RDMA_OK &&
                 rdma_store_destroy(own) == RDMA_OK;
    _exit(cut && other ? 0 : 1);
  }
  CHECK(TEMP_FAILURE_RETRY(waitpid(child, &status, 0)) == child);
  CHECK_INT(0, status);
  CHECK_STR("v", got(s, "k"));
  if (leased) CHECK_OK(rdma_store_destroy(leased));
  CHECK_OK(rdma_store_destroy(s));
  place_end(&p);
}

/* ---- leases, and jobs that die: processes ---- */
/* arguments: kind place rank size job; says "ready", then waits to be told to quit. */
static int rank_role(int argc, char **argv) {
  if (argc < 5) return 2;
  enum store_kind kind = (enum store_kind)atoi(argv[0]);
  int size = atoi(argv[3]);
  rdma_store_t *s = open_at(kind, argv[1]), *leased = NULL, *job = NULL;
  rdma_bytes_t keys[64];
  CHECK_OK(rdma_store_lease(s, 2000, &leased));
  CHECK_OK(rdma_store_prefix(leased, "job", 3, &job));
  put(job, argv[2], argv[4]);
  for (int i = 0; i < size; i++) {
    char *text = scratch(8);
    snprintf(text, 8, "%d", i);
    keys[i] = bytes_of(text);
  }
  CHECK_OK(rdma_store_wait(job, keys, (size_t)size, 0));
  for (int i = 0; i < size; i++) CHECK_STR(argv[4], got(job, keys[i].data));
  printf("ready\n");
  fflush(stdout);
  char line[64];
  if (!next_line(line, sizeof line)) return 1;
  CHECK_OK(rdma_store_destroy(job));
  CHECK_OK(rdma_store_destroy(leased));
  CHECK_OK(rdma_store_destroy(s));
  return 0;
}

static proc *rank_start(const place *p, int rank, int size, const char *job) {
  char kind[8], *r = scratch(8), *n = scratch(8), *k = scratch(8);
  snprintf(kind, sizeof kind, "%d", (int)p->kind);
  strcpy(k, kind);
  snprintf(r, 8, "%d", rank);
  snprintf(n, 8, "%d", size);
  const char *args[] = {k, p->at, r, n, job, NULL};
  return proc_start("rank", args);
}

static bool key_is_gone(void *arg) {
  rdma_bytes_t key = bytes_of("job/1");
  bool there = true;
  CHECK_OK(rdma_store_check(arg, &key, 1, 0, &there));
  return !there;
}

/* Two jobs under one prefix, one after the other: of the first, one rank ends and another is killed. */
static void jobs(enum store_kind kind) {
  place p = place_new(kind);
  rdma_store_t *s = place_open(&p);
  rdma_bytes_t key = bytes_of("job/0");
  bool there = true;
  waiter w;
  proc *a = rank_start(&p, 0, 2, "first"), *b = rank_start(&p, 1, 2, "first");
  proc_expect(a, "ready");
  proc_expect(b, "ready");
  CHECK_STR("first", got(s, "job/1"));
  CHECK_INT(0, proc_finish(a));
  CHECK_OK(rdma_store_check(s, &key, 1, 0, &there));
  CHECK(!there); /* what ended well has left nothing */
  proc_kill(b);
  CHECK(pump_until(key_is_gone, s, 60000));
  wait_begin(&w, s, "job/1"); /* who waits then waits for the next job */
  a = rank_start(&p, 0, 2, "second"), b = rank_start(&p, 1, 2, "second");
  proc_expect(a, "ready");
  proc_expect(b, "ready");
  CHECK_CODE(RDMA_OK, wait_end(&w));
  CHECK_STR("second", got(s, "job/1"));
  CHECK_INT(0, proc_finish(b));
  CHECK_INT(0, proc_finish(a));
  CHECK_OK(rdma_store_destroy(s));
  place_end(&p);
}

/* A rank that is killed before it says anything is named by those who wait for it. */
static void crashed(enum store_kind kind) {
  place p = place_new(kind);
  rdma_store_t *s = place_open(&p);
  proc *a = rank_start(&p, 0, 2, "job");
  proc_kill(a);
  rdma_bytes_t keys[2] = {bytes_of("job/0"), bytes_of("job/1")};
  put(s, "job/0", "");
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_store_wait(s, keys, 2, 50));
  CHECK_HAS(error_text(), "'job/1'");
  CHECK_OK(rdma_store_destroy(s));
  place_end(&p);
}

static void redis_goes_and_comes(void) {
  place p = place_new(REDIS);
  redis_kill(&p);
  rdma_store_t *s = place_open(&p);
  CHECK_BAD(RDMA_DEADLINE_EXCEEDED, rdma_store_set(s, "k", 1, "v", 1, 50));
  CHECK_HAS(error_text(), p.at);
  waiter w;
  wait_begin(&w, s, "k");
  redis_start(&p);
  put(s, "l", "v");
  redis_kill(&p);
  usleep(20000);
  redis_start(&p);
  put(s, "k", "v");
  CHECK_CODE(RDMA_OK, wait_end(&w));
  CHECK_OK(rdma_store_destroy(s));
  place_end(&p);
}

/* ---- the application's own ---- */
static _Atomic int own_waits;
static rdma_store_t *own_handle;
static rdma_code_t waits_badly(const rdma_bytes_t *keys, size_t count, int64_t ms, void *u) {
  (void)keys, (void)count, (void)ms, (void)u;
  CHECK_CODE(RDMA_FAILED_PRECONDITION, rdma_store_destroy(own_handle));
  return atomic_fetch_add(&own_waits, 1) < 3 ? RDMA_DEADLINE_EXCEEDED : RDMA_ABORTED;
}
static rdma_code_t gives_nothing(const char *k, size_t n, int64_t ms, rdma_store_give_fn give, void *t, void *u) {
  (void)k, (void)n, (void)ms, (void)give, (void)t, (void)u;
  return RDMA_OK;
}
static rdma_code_t says_there(const char *k, size_t n, int64_t ms, bool *there, void *u) {
  (void)k, (void)n, (void)ms, (void)u;
  *there = true;
  return 99;
}
static void custom_functions(void) {
  rdma_store_ops_t ops = own_ops();
  rdma_store_t *s = NULL, *leased = NULL;
  rdma_bytes_t key = bytes_of("k");
  size_t len;
  int64_t sum;
  int32_t result;
  bool there;
  ops.set = NULL;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_store_custom(&ops, NULL, NULL, &s));
  ops = own_ops(), ops.add = NULL, ops.compare_set = NULL, ops.remove = NULL;
  ops.wait = waits_badly, ops.get = gives_nothing, ops.check = says_there;
  CHECK_OK(rdma_store_custom(&ops, NULL, NULL, &s));
  own_handle = s;
  CHECK_BAD(RDMA_UNIMPLEMENTED, rdma_store_add(s, "k", 1, 1, 0, &sum));
  CHECK_BAD(RDMA_UNIMPLEMENTED, rdma_store_compare_set(s, "k", 1, NULL, 0, "", 0, 0, &result, NULL, 0, NULL));
  CHECK_BAD(RDMA_UNIMPLEMENTED, rdma_store_delete(s, "k", 1, 0, NULL));
  CHECK_BAD(RDMA_UNIMPLEMENTED, rdma_store_lease(s, 1000, &leased));
  CHECK_BAD(RDMA_DATA_LOSS, rdma_store_get(s, "k", 1, 0, NULL, 0, &len));
  CHECK_BAD(RDMA_UNKNOWN, rdma_store_check(s, &key, 1, 0, &there));
  CHECK_HAS(error_text(), "99");
  CHECK_BAD(RDMA_ABORTED, rdma_store_wait(s, &key, 1, FOREVER));
  CHECK_INT(4, atomic_load(&own_waits));
  CHECK_OK(rdma_store_destroy(s));
}

/* ---- arguments ---- */
#define BAD(expr) CHECK_BAD(RDMA_INVALID_ARGUMENT, expr)
static void arguments(void) {
  rdma_store_options_t o;
  rdma_store_t *s = NULL, *out = NULL;
  uint64_t foreign[16] = {1};
  char bound[64], buf[8];
  size_t len;
  int64_t sum;
  int32_t result;
  bool there;
  rdma_bytes_t key = bytes_of("k"), none = {NULL, 1}, empty = {"", 0};
  rdma_bytes_out_t buffer = {buf, sizeof buf, 0}, bad_buffer = {NULL, 1, 0};
  BAD(rdma_store_options_init(NULL, sizeof o));
  BAD(rdma_store_options_init(&o, 4));
  CHECK_OK(rdma_store_options_init(&o, sizeof o));
  BAD(rdma_store_memory(&o, NULL));
  o.timeout_ms = -1;
  BAD(rdma_store_memory(&o, &out));
  o.timeout_ms = 0, o.secret_len = 1;
  BAD(rdma_store_memory(&o, &out));
  o.secret = "", o.secret_len = 0;
  BAD(rdma_store_memory(&o, &out));
  o.secret = buf, o.secret_len = 4097;
  BAD(rdma_store_tcp("127.0.0.1:1", &o, &out));
  BAD(rdma_store_file(NULL, NULL, &out));
  BAD(rdma_store_file("", NULL, &out));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_store_file("/nonexistent/a/b", NULL, &out));
  BAD(rdma_store_tcp(NULL, NULL, &out));
  BAD(rdma_store_tcp("127.0.0.1", NULL, &out));
  BAD(rdma_store_tcp("a:b:c", NULL, &out));
  BAD(rdma_store_tcp_serve("127.0.0.1:0", NULL, NULL, 5, NULL, &out));
  CHECK_CODE(RDMA_OUT_OF_RANGE, rdma_store_tcp_serve("127.0.0.1:0", NULL, bound, 3, &len, &out));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_store_tcp_serve("0.0.0.0:0", NULL, NULL, 0, NULL, &out));
  BAD(rdma_store_redis("nowhere", NULL, &out));
  BAD(rdma_store_custom(NULL, NULL, NULL, &out));
  CHECK(out == NULL);

  CHECK_OK(rdma_store_memory(NULL, &s));
  BAD(rdma_store_destroy(NULL));
  BAD(rdma_store_destroy((rdma_store_t *)foreign));
  BAD(rdma_store_set((rdma_store_t *)foreign, "k", 1, "", 0, 0));
  BAD(rdma_store_prefix(s, "", 0, &out));
  BAD(rdma_store_prefix(s, NULL, 3, &out));
  BAD(rdma_store_prefix(s, "p", 1, NULL));
  BAD(rdma_store_lease(s, 99, &out));
  BAD(rdma_store_lease(s, -1, &out));
  BAD(rdma_store_lease(s, 1000, NULL));
  BAD(rdma_store_set(NULL, "k", 1, "", 0, 0));
  BAD(rdma_store_set(s, NULL, 1, "", 0, 0));
  BAD(rdma_store_set(s, "k", 0, "", 0, 0));
  BAD(rdma_store_set(s, "k", RDMA_STORE_MAX_KEY_LEN + 1, "", 0, 0));
  BAD(rdma_store_set(s, "k", 1, NULL, 1, 0));
  BAD(rdma_store_set(s, "k", 1, "", RDMA_STORE_MAX_VALUE_LEN + 1, 0));
  BAD(rdma_store_set(s, "k", 1, "", 0, -3));
  BAD(rdma_store_get(s, "k", 1, 0, buf, sizeof buf, NULL));
  BAD(rdma_store_get(s, "k", 1, 0, NULL, 1, &len));
  BAD(rdma_store_wait(s, NULL, 1, NOW));
  BAD(rdma_store_wait(s, &key, 0, NOW));
  BAD(rdma_store_wait(s, &key, RDMA_STORE_MAX_KEYS + 1, NOW));
  BAD(rdma_store_wait(s, &none, 1, NOW));
  BAD(rdma_store_check(s, &empty, 1, 0, &there));
  BAD(rdma_store_check(s, &key, 1, 0, NULL));
  BAD(rdma_store_multi_set(s, &key, NULL, 1, 0));
  BAD(rdma_store_multi_set(s, &key, &none, 1, 0));
  BAD(rdma_store_multi_get(s, &key, NULL, 1, 0));
  BAD(rdma_store_multi_get(s, &key, &bad_buffer, 1, 0));
  CHECK_BAD(RDMA_NOT_FOUND, rdma_store_multi_get(s, &key, &buffer, 1, NOW));
  BAD(rdma_store_add(s, "k", 1, 1, 0, NULL));
  BAD(rdma_store_add(s, "k", 0, 1, 0, &sum));
  BAD(rdma_store_compare_set(s, "k", 1, NULL, 0, "", 0, 0, NULL, NULL, 0, NULL));
  BAD(rdma_store_compare_set(s, "k", 1, NULL, 1, "", 0, 0, &result, NULL, 0, NULL));
  BAD(rdma_store_compare_set(s, "k", 1, NULL, 0, NULL, 1, 0, &result, NULL, 0, NULL));
  BAD(rdma_store_compare_set(s, "k", 1, NULL, 0, "", 0, 0, &result, NULL, 1, NULL));
  BAD(rdma_store_delete(s, NULL, 1, 0, NULL));
  put(s, "k", "x");
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_store_add(s, "k", 1, 1, 0, &sum));
  CHECK_OK(rdma_store_destroy(s));
}

#define FOR_KIND(test, kind, name)                                             \
  static void test##_##name(void) { test(kind); }
#define FOR_SHARED(test)                                                       \
  FOR_KIND(test, FILES, file) FOR_KIND(test, TCP, tcp) FOR_KIND(test, REDIS, redis)
#define FOR_ALL(test) FOR_SHARED(test) FOR_KIND(test, MEMORY, memory) FOR_KIND(test, CUSTOM, custom)
FOR_ALL(everything)
FOR_ALL(ends)
FOR_ALL(forked)
FOR_SHARED(jobs)
FOR_SHARED(crashed)
#define SHARED(test) SLOW(test##_file, 120), SLOW(test##_tcp, 120), SLOW(test##_redis, 120)
#define ALL(test) SHARED(test), SLOW(test##_memory, 120), SLOW(test##_custom, 120)

static const test_case cases[] = {CASE(arguments), ALL(everything), ALL(ends),     ALL(forked),
                                  SHARED(jobs),    SHARED(crashed), CASE(custom_functions), SLOW(redis_goes_and_comes, 120)};
static const test_role roles[] = {{"rank", rank_role}};
TEST_MAIN_ROLES(cases, roles)
