#include "collectives.h"
#include <stdio.h>
#include <string.h>

#define TRY(expr)                                                              \
  do {                                                                         \
    rdma_code_t code_ = (expr);                                                \
    if (code_ != RDMA_OK) return code_;                                        \
  } while (0)

static rdma_code_t open_store(const char *where, bool serve, rdma_store_t **store) {
  if (strncmp(where, "file:", 5) == 0) return rdma_store_file(where + 5, NULL, store);
  if (strncmp(where, "redis:", 6) == 0) return rdma_store_redis(where + 6, NULL, store);
  if (strncmp(where, "tcp:", 4) == 0 && serve) return rdma_store_tcp_serve(where + 4, NULL, NULL, 0, NULL, store);
  if (strncmp(where, "tcp:", 4) == 0) return rdma_store_tcp(where + 4, NULL, store);
  fprintf(stderr, "\"%s\" is not file:, redis: or tcp:\n", where);
  return RDMA_INVALID_ARGUMENT;
}

rdma_code_t group_join(group *g, const char *store, const char *job, uint32_t rank, uint32_t size, const char *listen,
                       const char *provider) {
  rdma_mgr_options_t o;
  char name[32];
  memset(g, 0, sizeof *g);
  g->rank = rank, g->size = size, g->comm = 1;
  snprintf(name, sizeof name, "rank-%u", rank);
  TRY(rdma_mgr_options_init(&o, sizeof o));
  o.name = name;
  o.provider = provider;
  TRY(rdma_mgr_create(&o, &g->mgr));
  if (listen) TRY(rdma_mgr_listen(g->mgr, listen, NULL, 0, NULL));
  TRY(open_store(store, rank == 0, &g->store));
  TRY(rdma_store_prefix(g->store, job, strlen(job), &g->job));
  return rdma_mesh_connect(g->mgr, g->job, rank, size, NULL, &g->mesh);
}

rdma_code_t group_leave(group *g) {
  TRY(barrier(g));
  TRY(rdma_mesh_destroy(g->mesh));
  TRY(rdma_store_destroy(g->job));
  TRY(rdma_store_destroy(g->store));
  return rdma_mgr_destroy(g->mgr);
}
