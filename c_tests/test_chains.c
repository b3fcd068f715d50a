/* Operations begun where the one before ends: however many, and however soon each ends, the stack holds them. */
#define _GNU_SOURCE
#include <pthread.h>

#include "harness.h"

enum { MANY = 3000, LEN = 32 };

typedef struct chain {
  rdma_mgr_t *mgr;
  rdma_code_t (*next)(struct chain *, int);
  _Atomic int begun, ended;
  rdma_request_t *requests;
  rdma_response_t *responses;
} chain;

static const char *key_of(char key[16], int i) {
  snprintf(key, 16, "k%d", i);
  return key;
}

static void go_on(chain *c) {
  int i = atomic_fetch_add(&c->begun, 1);
  if (i < MANY) CHECK_OK(c->next(c, i));
}

static void on_end(rdma_code_t code, const char *message, size_t len, const rdma_transfer_info_t *info, void *userdata) {
  (void)len, (void)info;
  CHECK_MSG(code == RDMA_OK, "%s: %s", rdma_code_name(code), message);
  chain *c = userdata;
  atomic_fetch_add(&c->ended, 1);
  go_on(c);
}

static rdma_code_t sends(chain *c, int i) {
  char key[16];
  rdma_tensor_t t = tensor_of(NULL, LEN, (uint64_t)i);
  key_of(key, i);
  return rdma_send(c->mgr, key, strlen(key), 0, &t, NULL, on_end, c);
}

static rdma_code_t responds(chain *c, int i) {
  rdma_tensor_t t = tensor_of(NULL, LEN, (uint64_t)i);
  return rdma_response_send(c->mgr, c->responses[i], &t, on_end, c);
}

static rdma_code_t releases(chain *c, int i) { return rdma_request_release(c->mgr, c->requests[i]); }

static void *begins(void *arg) {
  go_on(arg);
  return NULL;
}

static bool is_over(void *arg) { return atomic_load(&((chain *)arg)->ended) == MANY; }

/* The chain, begun by a thread with a small stack. */
static void run(chain *c) {
  pthread_t thread;
  pthread_attr_t attr;
  CHECK(pthread_attr_init(&attr) == 0);
  CHECK(pthread_attr_setstacksize(&attr, is_sanitized() ? 1024 * KIB : 128 * KIB) == 0);
  CHECK(pthread_create(&thread, &attr, begins, c) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(pthread_attr_destroy(&attr) == 0);
  CHECK_MSG(pump_until(is_over, c, 30000), "%d of %d ended", atomic_load(&c->ended), MANY);
}

static op **receives(rdma_mgr_t *mgr) {
  op **all = scratch(MANY * sizeof(op *));
  char key[16];
  for (int i = 0; i < MANY; i++) all[i] = op_recv(mgr, "alpha", key_of(key, i), 0, (uint64_t)i, NULL);
  return all;
}

static bool all_here(void *arg) {
  op **all = arg;
  for (int i = 0; i < MANY; i++)
    if (!op_ended(all[i])) return false;
  return true;
}

static void finish(op **all) {
  CHECK(pump_until(all_here, all, 30000));
  for (int i = 0; i < MANY; i++) CHECK_INT(RDMA_OK, all[i]->code);
}

/* The receives wait, so each send ends within its call. */
static void a_send_in_the_end_of_a_send(void) {
  pair p = pair_new(NULL);
  op **all = receives(p.b);
  pump_for(300);
  chain c = {.mgr = p.a, .next = sends};
  run(&c);
  finish(all);
  pair_end(&p);
}

static rdma_response_t asked[MANY];
static _Atomic int asks;
static void source(rdma_mgr_t *mgr, rdma_response_t response, const char *peer, size_t peer_len, const char *key, size_t key_len,
                   int64_t step, void *userdata) {
  (void)mgr, (void)peer, (void)peer_len, (void)step, (void)userdata;
  char text[16] = "";
  memcpy(text, key, key_len < 15 ? key_len : 15);
  asked[atoi(text + 1)] = response;
  atomic_fetch_add(&asks, 1);
}
static void with_source(rdma_mgr_options_t *options) { options->source = source; }
static bool all_asked(void *arg) {
  (void)arg;
  return atomic_load(&asks) == MANY;
}

static void a_response_in_the_end_of_a_response(void) {
  pair p = pair_new(with_source);
  op **all = receives(p.b);
  CHECK(pump_until(all_asked, NULL, 30000));
  chain c = {.mgr = p.a, .next = responds, .responses = asked};
  run(&c);
  finish(all);
  pair_end(&p);
}

static void ignore(rdma_code_t code, const char *message, size_t len, const rdma_tensor_t *tensor, const rdma_transfer_info_t *info,
                   void *userdata) {
  (void)message, (void)len, (void)tensor, (void)info;
  CHECK_INT(RDMA_OK, code);
  atomic_fetch_add((_Atomic int *)userdata, 1);
}

/* What a receive has of a send of this manager is the send's memory until it is released: that ends the send. */
static void a_release_in_the_end_of_what_was_released(void) {
  rdma_mgr_t *mgr = mgr_new("alpha", NULL);
  chain c = {.mgr = mgr, .next = releases, .requests = scratch(MANY * sizeof(rdma_request_t))};
  char key[16];
  _Atomic int here = 0;
  for (int i = 0; i < MANY; i++) {
    rdma_tensor_t t = tensor_of(NULL, 4096, (uint64_t)i);
    key_of(key, i);
    CHECK_OK(rdma_send(mgr, key, strlen(key), 0, &t, NULL, on_end, &c));
    CHECK_OK(rdma_recv_async(mgr, NULL, key, strlen(key), 0, NULL, ignore, &here, &c.requests[i]));
  }
  CHECK(count_reached(&here, MANY, 30000));
  run(&c);
  mgr_end(mgr);
}

static const test_case cases[] = {CASE(a_send_in_the_end_of_a_send), CASE(a_response_in_the_end_of_a_response),
                                  CASE(a_release_in_the_end_of_what_was_released)};
TEST_MAIN(cases)
