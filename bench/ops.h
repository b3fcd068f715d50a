/* What the operations of rdma_ops share; see ops.c. */
#ifndef RDMA_BENCH_OPS_H
#define RDMA_BENCH_OPS_H

#include <rdma_transport.h>
#include <stddef.h>
#include <stdint.h>

/* Two managers, and what goes from one to the other. */
typedef struct scene {
  rdma_mgr_t *from, *to;
  rdma_tensor_t tensor;
  rdma_recv_options_t options;
  rdma_peer_t peer_from, peer_to;
} scene;

/* An operation that the command line names: `prepare` once, if there is one, then `one` for each. */
typedef struct operation {
  const char *name;
  void (*prepare)(scene *);
  void (*one)(scene *, uint64_t tag);
} operation;

/* Ends that were told since it was set to 0. */
extern int ended;

void must(rdma_code_t code, const char *what);
void offer(scene *s, const char *key, int64_t step);
void ask(scene *s, const char *key, int64_t step);
/* Both take turns until so many ends were told. */
void turn(scene *s, int until);

/* Of ops_more.c; the last has no name. */
extern const operation more[];

#endif
