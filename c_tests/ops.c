/* Operations that must end exactly once, and their content. */
#include "harness.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static op *all_ops;
typedef struct block {
  struct block *next;
} block;
static block *blocks;

void mgrs_end(void); /* mgr.c */

void case_begin(void) { all_ops = NULL; }

/* ---- content ---- */
static uint64_t word(uint64_t seed, uint64_t i) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u + i * 0xBF58476D1CE4E5B9u;
  x ^= x >> 29;
  return x * 0x94D049BB133111EBu;
}

void fill(void *memory, size_t n, uint64_t seed) {
  unsigned char *p = memory;
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t w = word(seed, i / 8);
    memcpy(p + i, &w, 8);
  }
  uint64_t w = word(seed, i / 8);
  if (i < n) memcpy(p + i, &w, n - i);
}

long long mismatch(const void *memory, size_t n, uint64_t seed) {
  const unsigned char *p = memory;
  for (size_t i = 0; i < n; i += 8) {
    uint64_t w = word(seed, i / 8);
    size_t m = n - i < 8 ? n - i : 8;
    if (memcmp(p + i, &w, m) != 0)
      for (size_t k = 0; k < m; k++)
        if (p[i + k] != ((unsigned char *)&w)[k]) return (long long)(i + k);
  }
  return -1;
}

void *scratch(size_t n) {
  block *b = aligned_alloc(64, (n + 64 + 63) / 64 * 64);
  if (!b) FAIL("out of memory: %zu bytes", n);
  pthread_mutex_lock(&lock);
  b->next = blocks;
  blocks = b;
  pthread_mutex_unlock(&lock);
  return (char *)b + 64;
}

rdma_tensor_t tensor_of(void *memory, size_t n, uint64_t seed) {
  rdma_tensor_t t;
  CHECK_OK(rdma_tensor_init(&t, sizeof t));
  int64_t *dims = scratch(sizeof *dims);
  if (!memory && n) memory = scratch(n);
  if (n) fill(memory, n, seed);
  dims[0] = (int64_t)n;
  t.data = memory;
  t.nbytes = n;
  t.dims = dims;
  t.ndims = 1;
  t.dtype = 4; /* DT_UINT8 */
  return t;
}

/* ---- operations ---- */
op *op_adopt(const char *what) {
  op *o = calloc(1, sizeof *o);
  if (!o) FAIL("out of memory");
  snprintf(o->what, sizeof o->what, "%s", what);
  o->wrong_at = -1;
  pthread_mutex_lock(&lock);
  o->next = all_ops;
  all_ops = o;
  pthread_mutex_unlock(&lock);
  return o;
}

static void op_finish(op *o, rdma_code_t code, const char *message, size_t message_len,
                      const rdma_transfer_info_t *info) {
  o->code = code;
  snprintf(o->message, sizeof o->message, "%.*s", (int)message_len, message ? message : "");
  if (!info) FAIL("%s: no transfer info", o->what);
  o->info = *info;
  snprintf(o->provider, sizeof o->provider, "%s", info->provider ? info->provider : "(null)");
  snprintf(o->peer, sizeof o->peer, "%s", info->peer ? info->peer : "(null)");
  if (code != RDMA_OK && message_len == 0) FAIL("%s: %s without a message", o->what, rdma_code_name(code));
  if (o->also) o->also(o, o->also_arg);
  if (atomic_fetch_add(&o->ended, 1) != 0) FAIL("%s ended twice, now with %s", o->what, rdma_code_name(code));
}

void op_send_done(rdma_code_t code, const char *message, size_t message_len,
                  const rdma_transfer_info_t *info, void *userdata) {
  op_finish(userdata, code, message, message_len, info);
}

void op_recv_done(rdma_code_t code, const char *message, size_t message_len,
                  const rdma_tensor_t *tensor, const rdma_transfer_info_t *info, void *userdata) {
  op *o = userdata;
  if ((code == RDMA_OK) != (tensor != NULL))
    FAIL("%s: %s with tensor %p", o->what, rdma_code_name(code), (const void *)tensor);
  o->had_tensor = tensor != NULL;
  if (tensor) {
    o->tensor = *tensor;
    if (tensor->ndims) memcpy(o->dims, tensor->dims, tensor->ndims * sizeof *o->dims);
    o->tensor.dims = o->dims;
    o->data = tensor->data;
    if (o->check_content && tensor->nbytes) o->wrong_at = mismatch(tensor->data, tensor->nbytes, o->seed);
    if (o->wrong_at >= 0)
      FAIL("%s: byte %lld of %llu is wrong (%s, protocol %u)", o->what, o->wrong_at,
           (unsigned long long)tensor->nbytes, info ? info->provider : "", info ? info->protocol : 0);
  }
  op_finish(o, code, message, message_len, info);
}

static const char *key_text(const char *key, size_t key_len) {
  static _Thread_local char text[80];
  snprintf(text, sizeof text, "%.*s%s", (int)(key_len < 60 ? key_len : 60), key,
           key_len < 60 ? "" : "...");
  return text;
}

op *op_send_opt(rdma_mgr_t *mgr, const char *key, size_t key_len, int64_t step,
                const rdma_tensor_t *tensor, const rdma_send_options_t *options) {
  char what[160];
  snprintf(what, sizeof what, "send \"%s\" step %lld", key_text(key, key_len), (long long)step);
  op *o = op_adopt(what);
  o->rc = rdma_send(mgr, key, key_len, step, tensor, options, op_send_done, o);
  atomic_store(&o->returned, true);
  return o;
}

op *op_send(rdma_mgr_t *mgr, const char *key, int64_t step, const rdma_tensor_t *tensor) {
  return op_send_opt(mgr, key, strlen(key), step, tensor, NULL);
}

op *op_recv_call(const recv_call *call) {
  char what[160];
  size_t key_len = call->key_len ? call->key_len : strlen(call->key);
  snprintf(what, sizeof what, "recv \"%s\" step %lld from %s", key_text(call->key, key_len),
           (long long)call->step, call->peer ? call->peer : "oneself");
  op *o = op_adopt(what);
  o->check_content = call->check_content;
  o->seed = call->seed;
  o->also = call->also;
  o->also_arg = call->also_arg;
  o->rc = rdma_recv_async(call->mgr, call->peer, call->key, key_len, call->step, call->options,
                          op_recv_done, o, call->keep ? &o->request : NULL);
  atomic_store(&o->returned, true);
  return o;
}

op *op_recv(rdma_mgr_t *mgr, const char *peer, const char *key, int64_t step, uint64_t seed,
            const rdma_recv_options_t *options) {
  recv_call call = {.mgr = mgr, .peer = peer, .key = key, .step = step, .options = options,
                    .check_content = true, .seed = seed};
  op *o = op_recv_call(&call);
  if (o->rc != RDMA_OK) check_code(__FILE__, __LINE__, RDMA_OK, o->rc, o->what);
  return o;
}

rdma_recv_options_t recv_options(void) {
  rdma_recv_options_t options;
  CHECK_OK(rdma_recv_options_init(&options, sizeof options));
  return options;
}

bool op_ended(op *o) { return atomic_load(&o->ended) != 0; }
bool op_ended_fn(void *o) { return op_ended(o); }

void op_wait(op *o, rdma_code_t want) {
  if (o->rc != RDMA_OK) FAIL("%s was not accepted: %s", o->what, rdma_code_name(o->rc));
  if (!pump_until(op_ended_fn, o, 30000)) FAIL("%s has not ended after 30 s", o->what);
  if (o->code != want)
    FAIL("%s ended with %s (%s; reason %u), not %s", o->what, rdma_code_name(o->code), o->message,
         o->info.reason, rdma_code_name(want));
}

/* ---- the end of a case ---- */
void ops_print_pending(void) {
  int shown = 0;
  for (op *o = all_ops; o && shown < 40; o = o->next)
    if (o->rc == RDMA_OK && !op_ended(o)) {
      fprintf(stderr, "      %s\n", o->what);
      shown++;
    }
}

void case_end(void) {
  mgrs_end();
  for (op *o = all_ops; o; o = o->next) {
    int want = o->rc == RDMA_OK ? 1 : 0, got = atomic_load(&o->ended);
    if (got != want) FAIL("%s returned %s and ended %d times, not %d", o->what, rdma_code_name(o->rc), got, want);
  }
  while (all_ops) {
    op *o = all_ops;
    all_ops = o->next;
    free(o);
  }
  while (blocks) {
    block *b = blocks;
    blocks = b->next;
    free(b);
  }
}
