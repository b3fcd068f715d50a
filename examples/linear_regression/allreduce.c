/* A worker without parameter server: sums its gradients with those of the others, and takes the step itself. */
#include "common.h"
#include "../collectives/collectives.h"
#include <stdlib.h>
#include <string.h>

/* What carried it to rank 1, with which rank 0 speaks in every step. */
static const char *carrier(const group *g, rdma_peer_info_t *peer) {
  if (g->size == 1) return "nothing";
  memset(peer, 0, sizeof *peer);
  peer->struct_size = sizeof *peer;
  must(rdma_mgr_peer_info(g->mgr, "rank-1", peer), "peer_info");
  return peer->provider;
}

/* Whether every worker has the very values of this one. */
static bool all_agree(group *g, const float values[2]) {
  float all[MAX_WORKERS][2];
  must(allgather(g, values, sizeof all[0], all), "allgather");
  for (uint32_t rank = 0; rank < g->size; rank++)
    if (memcmp(all[rank], values, sizeof all[0]) != 0) {
      fprintf(stderr, "\nworker %u has weight %g and bias %g, worker %u %g and %g\n", g->rank, values[0], values[1], rank,
              all[rank][0], all[rank][1]);
      return false;
    }
  return true;
}

int run_allreduce(const config *c) {
  char host[256];
  float values[3] = {0, 0, 100}; /* weight, bias, loss */
  group g;
  must(group_join(&g, c->store, "linear_regression", (uint32_t)c->task_index, (uint32_t)c->workers,
                  host_at(c->worker_hosts, c->task_index, host), c->provider), "join");
  srand48(7);
  if (g.rank == 0)
    for (int i = 0; i < 2; i++) values[i] = (float)drand48() - 0.5f;
  must(broadcast(&g, values, 2 * sizeof *values, 0), "broadcast");
  srand48(1000 + c->task_index);
  progress shown = progress_begin();
  for (int64_t step = 0; step < c->steps; step++) {
    float own[3];
    double sum[3], room[3];
    gradients(values[0], values[1], own);
    for (int i = 0; i < 3; i++) sum[i] = own[i];
    must(allreduce_tree(&g, sum, 3, room), "allreduce"); /* the same sums for everybody, to the last bit */
    for (int i = 0; i < 2; i++) values[i] -= (float)(c->learning_rate * sum[i] / c->workers);
    values[2] = values[2] * 0.999f + (float)(sum[2] / c->workers) * 0.001f;
    if (g.rank == 0) show(&shown, c, step + 1, values, step + 1 == c->steps);
  }
  int rc = all_agree(&g, values) ? 0 : 1;
  rdma_peer_info_t peer;
  if (g.rank == 0) rc |= verdict(c, "allreduce", carrier(&g, &peer), values[0], values[1]);
  must(group_leave(&g), "leave");
  return rc;
}
