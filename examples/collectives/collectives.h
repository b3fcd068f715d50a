/* Collective operations over tagged messages between the ranks of a mesh. Every rank calls the same ones in the same
 * order. Each returns RDMA_OK, or the first error, which rdma_last_error tells: then the group is of no use any more. */
#ifndef COLLECTIVES_H
#define COLLECTIVES_H
#include <rdma_transport.h>

typedef struct group {
  rdma_mgr_t *mgr;
  rdma_store_t *store, *job;
  rdma_mesh_t *mesh;
  uint32_t rank, size, comm;
  uint64_t calls; /* so far: messages of one call do not meet those of the next */
} group;

/* Meets the other ranks through `store`: file:DIRECTORY, redis:HOST:PORT, or tcp:HOST:PORT, which rank 0 serves. `job` keeps
 * groups of one store apart. `listen`: host:port to be reached at; NULL: on this host. `provider` NULL: the best. */
rdma_code_t group_join(group *g, const char *store, const char *job, uint32_t rank, uint32_t size, const char *listen,
                       const char *provider);
/* Returns when every rank has called it, and ends the group. */
rdma_code_t group_leave(group *g);

/* Returns when every rank has called it. */
rdma_code_t barrier(group *g);
/* What `root` has, to everybody: along a binomial tree. */
rdma_code_t broadcast(group *g, void *data, size_t len, uint32_t root);
/* `len` bytes of each rank to everybody: all[r * len] is what rank r has given. Around a ring. */
rdma_code_t allgather(group *g, const void *own, size_t len, void *all);
/* Sums `count` numbers over all ranks, each of which is left with its part of the sums, from part_begin(rank) to
 * part_begin(rank + 1); the rest of `data` is overwritten. `room` is for count numbers. Around a ring. */
rdma_code_t reduce_scatter(group *g, double *data, size_t count, double *room);
size_t part_begin(const group *g, size_t count, uint32_t rank);
/* Sums over all ranks, for all ranks: by a ring, which moves 2 (size - 1) / size of the data per rank, or by a tree, which
 * takes 2 log2(size) steps. */
rdma_code_t allreduce_ring(group *g, double *data, size_t count, double *room);
rdma_code_t allreduce_tree(group *g, double *data, size_t count, double *room);
#endif
