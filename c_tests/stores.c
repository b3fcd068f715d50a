/* Stores of each kind, for tests: a directory, a server in this process, a redis-server, a table of our own. */
#include "stores.h"
#include <errno.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* ---- a store of the application's ---- */
#define OWN_KEYS 64
typedef struct own_entry {
  char key[200];
  size_t key_len, len;
  void *value;
} own_entry;
static own_entry own[OWN_KEYS];
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;

static own_entry *own_find(const char *key, size_t len) {
  for (int i = 0; i < OWN_KEYS; i++)
    if (own[i].value && own[i].key_len == len && memcmp(own[i].key, key, len) == 0) return &own[i];
  return NULL;
}

static rdma_code_t own_put(const char *key, size_t key_len, const void *value, size_t len) {
  own_entry *e = own_find(key, key_len);
  for (int i = 0; !e && i < OWN_KEYS; i++)
    if (!own[i].value) e = &own[i];
  if (!e || key_len > sizeof e->key) return RDMA_RESOURCE_EXHAUSTED;
  free(e->value);
  e->value = malloc(len + 1);
  if (len) memcpy(e->value, value, len);
  memcpy(e->key, key, key_len);
  e->key_len = key_len, e->len = len;
  return RDMA_OK;
}

static rdma_code_t own_set(const char *key, size_t key_len, const void *value, size_t len, int64_t ms, void *u) {
  CHECK(u == own && ms > 0);
  pthread_mutex_lock(&own_lock);
  rdma_code_t rc = own_put(key, key_len, value, len);
  pthread_mutex_unlock(&own_lock);
  return rc;
}

static rdma_code_t own_get(const char *key, size_t key_len, int64_t ms, rdma_store_give_fn give, void *token, void *u) {
  CHECK(u == own && ms > 0);
  pthread_mutex_lock(&own_lock);
  own_entry *e = own_find(key, key_len);
  if (e) give(e->value, e->len, token);
  pthread_mutex_unlock(&own_lock);
  return e ? RDMA_OK : RDMA_NOT_FOUND;
}

static rdma_code_t own_add(const char *key, size_t key_len, int64_t delta, int64_t ms, int64_t *sum, void *u) {
  char text[32];
  CHECK(u == own && ms > 0);
  pthread_mutex_lock(&own_lock);
  own_entry *e = own_find(key, key_len);
  snprintf(text, sizeof text, "%.*s", e ? (int)e->len : 1, e ? (char *)e->value : "0");
  *sum = atoll(text) + delta;
  snprintf(text, sizeof text, "%lld", (long long)*sum);
  rdma_code_t rc = own_put(key, key_len, text, strlen(text));
  pthread_mutex_unlock(&own_lock);
  return rc;
}

static rdma_code_t own_compare_set(const char *key, size_t key_len, const rdma_bytes_t *expected,
                                   const rdma_bytes_t *desired, int64_t ms, int32_t *result, rdma_store_give_fn give,
                                   void *token, void *u) {
  rdma_code_t rc = RDMA_OK;
  CHECK(u == own && ms > 0);
  pthread_mutex_lock(&own_lock);
  own_entry *e = own_find(key, key_len);
  bool same = e && expected && e->len == expected->len && memcmp(e->value, expected->data, e->len) == 0;
  *result = same || (!e && !expected) ? RDMA_STORE_SET : e ? RDMA_STORE_DIFFERS : RDMA_STORE_ABSENT;
  if (*result == RDMA_STORE_SET) rc = own_put(key, key_len, desired->data, desired->len);
  else if (e) give(e->value, e->len, token);
  pthread_mutex_unlock(&own_lock);
  return rc;
}

static rdma_code_t own_remove(const char *key, size_t key_len, int64_t ms, bool *there, void *u) {
  CHECK(u == own && ms > 0);
  pthread_mutex_lock(&own_lock);
  own_entry *e = own_find(key, key_len);
  *there = e != NULL;
  if (e) free(e->value), e->value = NULL;
  pthread_mutex_unlock(&own_lock);
  return RDMA_OK;
}

rdma_store_ops_t own_ops(void) {
  rdma_store_ops_t ops = {.struct_size = sizeof ops, .set = own_set, .get = own_get, .add = own_add,
                          .compare_set = own_compare_set, .remove = own_remove};
  return ops;
}

/* ---- a redis-server ---- */
static struct sockaddr_in local_at(int port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Below the ports that the system gives to connections and to listeners of port 0: no test that runs beside this one
   can be given it between our look and the server's bind. Tests of this kind begin at different places. */
static int free_port(void) {
  static int tried;
  enum { FIRST = 12000, PORTS = 20000 };
  for (int i = 0; i < 200; i++) {
    int port = FIRST + (int)((getpid() * 7L + tried++ * 101L) % PORTS);
    struct sockaddr_in a = local_at(port);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(s >= 0);
    int rc = bind(s, (struct sockaddr *)&a, sizeof a);
    close(s);
    if (rc == 0) return port;
  }
  CHECK(!"none of 200 ports is free");
  return 0;
}

/* Whether the server came up: it listens, or it ended. */
static bool redis_listens(const place *p, int port) {
  struct sockaddr_in a = local_at(port);
  for (;;) {
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(s >= 0);
    int rc = connect(s, (struct sockaddr *)&a, sizeof a);
    close(s);
    if (rc == 0) return true;
    if (waitpid(p->redis, NULL, WNOHANG) == p->redis) return false;
    usleep(2000);
  }
}

static bool redis_try(place *p) {
  const char *port = strrchr(p->at, ':') + 1;
  p->redis = fork();
  if (p->redis == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!freopen("/dev/null", "w", stdout)) _exit(127);
    execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
           (char *)NULL);
    _exit(127);
  }
  CHECK(p->redis > 0);
  return redis_listens(p, atoi(port));
}

void redis_start(place *p) { CHECK(redis_try(p)); }

void redis_kill(place *p) {
  int status;
  kill(p->redis, SIGKILL);
  CHECK(TEMP_FAILURE_RETRY(waitpid(p->redis, &status, 0)) == p->redis);
  p->redis = 0;
}

/* ---- places ---- */
place place_new(enum store_kind kind) {
  place p = {.kind = kind};
  size_t len;
  if (kind == MEMORY) CHECK_OK(rdma_store_memory(NULL, &p.shared));
  if (kind == FILES) {
    strcpy(p.at, "/tmp/rdma-store-XXXXXX");
    CHECK(mkdtemp(p.at) != NULL);
  }
  if (kind == TCP) CHECK_OK(rdma_store_tcp_serve("127.0.0.1:0", NULL, p.at, sizeof p.at, &len, &p.served));
  if (kind == REDIS) {
    if (system("command -v redis-server >/dev/null") != 0) skip("no redis-server here");
    do snprintf(p.at, sizeof p.at, "127.0.0.1:%d", free_port());
    while (!redis_try(&p));
  }
  return p;
}

rdma_store_t *open_at(enum store_kind kind, const char *at) {
  rdma_store_options_t o;
  rdma_store_ops_t ops = own_ops();
  rdma_store_t *s = NULL;
  CHECK_OK(rdma_store_options_init(&o, sizeof o));
  o.timeout_ms = patience(30000);
  if (kind == FILES) CHECK_OK(rdma_store_file(at, &o, &s));
  if (kind == TCP) CHECK_OK(rdma_store_tcp(at, &o, &s));
  if (kind == REDIS) CHECK_OK(rdma_store_redis(at, &o, &s));
  if (kind == CUSTOM) CHECK_OK(rdma_store_custom(&ops, own, &o, &s));
  CHECK(s != NULL);
  return s;
}

rdma_store_t *place_open(const place *p) {
  rdma_store_t *s = NULL;
  if (p->kind != MEMORY) return open_at(p->kind, p->at);
  CHECK_OK(rdma_store_prefix(p->shared, "all", 3, &s));
  return s;
}

void place_end(place *p) {
  char command[400];
  if (p->served) CHECK_OK(rdma_store_destroy(p->served));
  if (p->shared) CHECK_OK(rdma_store_destroy(p->shared));
  if (p->redis) redis_kill(p);
  snprintf(command, sizeof command, "rm -rf '%s'", p->at);
  if (p->kind == FILES) CHECK(system(command) == 0);
}

/* ---- in short ---- */
rdma_bytes_t bytes_of(const char *text) {
  rdma_bytes_t b = {text, strlen(text)};
  return b;
}

void put(rdma_store_t *s, const char *key, const char *value) {
  CHECK_OK(rdma_store_set(s, key, strlen(key), value, strlen(value), 0));
}

const char *got(rdma_store_t *s, const char *key) {
  static char value[1000];
  size_t len = 0;
  CHECK_OK(rdma_store_get(s, key, strlen(key), 0, value, sizeof value - 1, &len));
  value[len] = 0;
  return value;
}

const char *error_text(void) {
  static char text[1000];
  rdma_last_error(text, sizeof text);
  return text;
}
