/* A worker: fetches weight and bias by name, computes gradients on its own random data, sends them. */
#include "common.h"
#include <stdlib.h>

typedef struct worker {
  const config *c;
  rdma_mgr_t *mgr;
  float weight, bias;
  int64_t global_step;
  float grads[3];
  int fetching, sending;
  bool over;
} worker;

static void fail(const char *what, rdma_code_t code, const char *message, size_t message_len) {
  fprintf(stderr, "\nworker: %s: %s: %.*s\n", what, rdma_code_name(code), (int)message_len, message);
  exit(1);
}

static void fetched(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                    const rdma_transfer_info_t *info, void *userdata) {
  worker *w = userdata;
  (void)info;
  if (code != RDMA_OK) fail("fetch", code, message, message_len);
  if (tensor->flags & RDMA_TENSOR_DEAD) w->over = true;
  w->fetching--;
}

static void sent(rdma_code_t code, const char *message, size_t message_len, const rdma_transfer_info_t *info,
                 void *userdata) {
  (void)info;
  if (code != RDMA_OK) fail("send", code, message, message_len);
  ((worker *)userdata)->sending--;
}

static void fetch(worker *w, const key *k, int64_t step, void *into, size_t n) {
  rdma_recv_options_t o;
  must(rdma_recv_options_init(&o, sizeof o), "options");
  o.dst = into;
  o.dst_len = n;
  w->fetching++;
  must(rdma_recv_async(w->mgr, "ps", k->text, k->len, step, &o, fetched, w, NULL), "recv");
}

static void hand_in(worker *w, const key *k, int64_t step, const float *value) {
  static const int64_t one = 1;
  rdma_tensor_t t = tensor_over(value, sizeof *value, &one, 1);
  w->sending++;
  must(rdma_send(w->mgr, k->text, k->len, step, &t, NULL, sent, w), "send");
}

static void wait_for(worker *w, const int *left) {
  while (*left > 0) rdma_mgr_wait(w->mgr, 1000);
}

int run_worker(const config *c) {
  char host[256];
  int task = c->task_index;
  worker w = {.c = c, .mgr = manager_of(c, worker_name(task), host_at(c->worker_hosts, task, host))};
  key weight = key_of(true, task, "edge_1_weight/read"), bias = key_of(true, task, "edge_2_biase/read");
  key global_step = key_of(true, task, "edge_3_global_step/read");
  key grad_weight = key_of(false, task, "edge_4_gradients/weight");
  key grad_bias = key_of(false, task, "edge_5_gradients/biase"), loss = key_of(false, task, "edge_6_loss");
  must(rdma_mgr_add_peer(w.mgr, "ps", host_at(c->ps_hosts, 0, host)), "add_peer");
  srand48(1000 + task);
  for (int64_t round = 0;; round++) {
    int64_t step = round * c->workers + task;
    fetch(&w, &weight, step, &w.weight, sizeof w.weight);
    fetch(&w, &bias, step, &w.bias, sizeof w.bias);
    fetch(&w, &global_step, step, &w.global_step, sizeof w.global_step);
    wait_for(&w, &w.fetching);
    wait_for(&w, &w.sending); /* the gradients of the round before are free to change */
    if (round > 1) must(rdma_step_cleanup(w.mgr, step - 2 * c->workers), "cleanup");
    if (w.over) break;
    gradients(w.weight, w.bias, w.grads);
    hand_in(&w, &grad_weight, step, &w.grads[0]);
    hand_in(&w, &grad_bias, step, &w.grads[1]);
    hand_in(&w, &loss, step, &w.grads[2]);
  }
  must(rdma_mgr_destroy(w.mgr), "destroy");
  return 0;
}
