/* The parameter server: holds weight and bias, hands them out by name, applies gradients. */
#include "common.h"
#include <stdlib.h>
#include <string.h>

#define SLOTS 4 /* rounds whose values may still be on their way */

typedef struct published { /* one round's tensors for one worker; theirs until the sends have ended */
  float weight, bias;
  int64_t global_step;
  int in_flight;
} published;

typedef struct seat {
  struct server *s;
  int task;
  int64_t round;
  published slots[SLOTS];
  key weight, bias, global_step, grad_weight, grad_bias, loss;
  float got[3]; /* gradients and loss of the round under way */
  int missing;  /* of them, still to come */
  bool finished;
} seat;

typedef struct server {
  const config *c;
  rdma_mgr_t *mgr;
  float weight, bias, loss;
  int64_t global_step;
  progress shown;
  int gathered; /* sync mode: workers that have handed in their round */
  char provider[16]; /* that carried the last gradient */
  seat seats[MAX_WORKERS];
} server;

static const int64_t one = 1;

static void tell(server *s, bool last) {
  const float values[3] = {s->weight, s->bias, s->loss};
  show(&s->shown, s->c, s->global_step, values, last);
}

static void sent(rdma_code_t code, const char *message, size_t message_len, const rdma_transfer_info_t *info,
                 void *userdata) {
  published *p = userdata;
  (void)info;
  if (code != RDMA_OK) {
    fprintf(stderr, "\nps: a send ended with %s: %.*s\n", rdma_code_name(code), (int)message_len, message);
    exit(1);
  }
  p->in_flight--;
}

static void send_one(seat *l, const key *k, const void *data, size_t n, uint32_t dtype, bool dead) {
  rdma_tensor_t t = tensor_over(dead ? NULL : data, dead ? 0 : n, &one, dtype);
  published *p = &l->slots[l->round % SLOTS];
  if (dead) t.flags = RDMA_TENSOR_DEAD;
  p->in_flight++;
  must(rdma_send(l->s->mgr, k->text, k->len, l->round * l->s->c->workers + l->task, &t, NULL, sent, p), "send");
}

static void received(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                     const rdma_transfer_info_t *info, void *userdata);

static void ask(seat *l, const key *k, float *into) {
  rdma_recv_options_t o;
  must(rdma_recv_options_init(&o, sizeof o), "options");
  o.dst = into;
  o.dst_len = sizeof *into;
  must(rdma_recv_async(l->s->mgr, worker_name(l->task), k->text, k->len, l->round * l->s->c->workers + l->task, &o,
                       received, l, NULL), "recv");
}

/* Hands the present values to a worker and asks for its gradients; or tells it that it is over. */
static void next_round(seat *l) {
  server *s = l->s;
  bool over = s->global_step >= s->c->steps;
  if (l->round > 1) must(rdma_step_cleanup(s->mgr, (l->round - 2) * s->c->workers + l->task), "cleanup");
  published *p = &l->slots[l->round % SLOTS];
  if (p->in_flight > 0) { /* the worker has already used what was sent four rounds ago */
    fprintf(stderr, "\nps: a send of an earlier round has not ended\n");
    exit(1);
  }
  *p = (published){s->weight, s->bias, s->global_step, 0};
  send_one(l, &l->weight, &p->weight, sizeof p->weight, 1, over);
  send_one(l, &l->bias, &p->bias, sizeof p->bias, 1, over);
  send_one(l, &l->global_step, &p->global_step, sizeof p->global_step, 9, over);
  l->finished = over;
  if (over) return;
  l->missing = 3;
  ask(l, &l->grad_weight, &l->got[0]);
  ask(l, &l->grad_bias, &l->got[1]);
  ask(l, &l->loss, &l->got[2]);
}

static void apply(server *s, float grad_weight, float grad_bias, float loss) {
  s->weight -= (float)s->c->learning_rate * grad_weight;
  s->bias -= (float)s->c->learning_rate * grad_bias;
  s->loss = s->loss * 0.999f + loss * 0.001f;
  s->global_step++;
}

static void round_complete(seat *l) {
  server *s = l->s;
  l->round++;
  if (!s->c->issync) {
    apply(s, l->got[0], l->got[1], l->got[2]);
    next_round(l);
    return;
  }
  if (++s->gathered < s->c->workers) return;
  float sum[3] = {0, 0, 0}; /* the mean of all workers' gradients is one step, as in SyncReplicasOptimizer */
  for (int w = 0; w < s->c->workers; w++)
    for (int i = 0; i < 3; i++) sum[i] += s->seats[w].got[i] / (float)s->c->workers;
  s->gathered = 0;
  apply(s, sum[0], sum[1], sum[2]);
  for (int w = 0; w < s->c->workers; w++) next_round(&s->seats[w]);
}

static void received(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                     const rdma_transfer_info_t *info, void *userdata) {
  seat *l = userdata;
  (void)tensor;
  snprintf(l->s->provider, sizeof l->s->provider, "%s", info->provider);
  if (code != RDMA_OK) {
    fprintf(stderr, "\nps: %s from %s: %.*s\n", rdma_code_name(code), info->peer, (int)message_len, message);
    exit(1);
  }
  if (--l->missing == 0) round_complete(l);
}

static bool all_over(const server *s) {
  for (int w = 0; w < s->c->workers; w++)
    for (int i = 0; i < SLOTS; i++)
      if (!s->seats[w].finished || s->seats[w].slots[i].in_flight) return false;
  return true;
}

int run_ps(const config *c) {
  static server s;
  char host[256];
  s.c = c;
  s.mgr = manager_of(c, "ps", host_at(c->ps_hosts, 0, host));
  srand48(7);
  s.weight = (float)drand48() - 0.5f;
  s.bias = (float)drand48() - 0.5f;
  s.loss = 100;
  for (int w = 0; w < c->workers; w++) {
    seat *l = &s.seats[w];
    *l = (seat){.s = &s, .task = w, .weight = key_of(true, w, "edge_1_weight/read"),
                .bias = key_of(true, w, "edge_2_biase/read"), .global_step = key_of(true, w, "edge_3_global_step/read"),
                .grad_weight = key_of(false, w, "edge_4_gradients/weight"),
                .grad_bias = key_of(false, w, "edge_5_gradients/biase"), .loss = key_of(false, w, "edge_6_loss")};
    must(rdma_mgr_add_peer(s.mgr, worker_name(w), host_at(c->worker_hosts, w, host)), "add_peer");
  }
  s.shown = progress_begin();
  for (int w = 0; w < c->workers; w++) next_round(&s.seats[w]);
  while (!all_over(&s)) {
    rdma_mgr_wait(s.mgr, 100);
    tell(&s, false);
  }
  tell(&s, true);
  int rc = verdict(c, c->issync ? "synchronous" : "asynchronous", s.provider, s.weight, s.bias);
  must(rdma_mgr_destroy(s.mgr), "destroy");
  return rc;
}
