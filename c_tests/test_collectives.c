/* The collectives of examples/collectives where a rank goes. */
#include "collectives.h"
#include "harness.h"
#include <pthread.h>

typedef struct joining {
  rdma_mgr_t *mgr;
  rdma_store_t *store;
  rdma_mesh_t *mesh;
} joining;

static void *join_as_second(void *arg) {
  joining *j = arg;
  CHECK_OK(rdma_mesh_connect(j->mgr, j->store, 1, 2, NULL, &j->mesh));
  return NULL;
}

typedef struct gathering {
  group g;
  char *own, *all;
  size_t len;
  rdma_code_t code;
  _Atomic int over;
} gathering;

static void *gather_here(void *arg) {
  gathering *t = arg;
  t->code = allgather(&t->g, t->own, t->len, t->all);
  t->over = 1;
  return NULL;
}

static bool asks(void *arg) {
  rdma_msg_status_t status = {.struct_size = sizeof status};
  return rdma_msg_probe(arg, RDMA_PEER_ANY, 1, 0, 0, false, 0, &status) == RDMA_OK;
}

/* The other has begun to send to it and to receive from it: when the send fails the receive is given up, and not waited for until its
 * deadline; nor does it write to memory that the caller has again. */
static void a_rank_that_goes(void) {
  enum { LEN = 8 << 20 };
  joining second = {.mgr = mgr_new("rank-1", NULL)};
  gathering first = {.g = {.mgr = mgr_new("rank-0", NULL), .size = 2, .comm = 1}, .own = scratch(LEN), .all = scratch(2 * LEN), .len = LEN};
  pthread_t thread;
  CHECK_OK(rdma_store_memory(NULL, &second.store));
  CHECK(pthread_create(&thread, NULL, join_as_second, &second) == 0);
  CHECK_OK(rdma_mesh_connect(first.g.mgr, second.store, 0, 2, NULL, &first.g.mesh));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(pthread_create(&thread, NULL, gather_here, &first) == 0);
  CHECK(pump_until(asks, second.mgr, 30000));
  mgr_end(second.mgr);
  CHECK(count_reached(&first.over, 1, 30000));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_CODE(RDMA_UNAVAILABLE, first.code);
  CHECK_OK(rdma_mesh_destroy(first.g.mesh));
  CHECK_OK(rdma_mesh_destroy(second.mesh));
  CHECK_OK(rdma_store_destroy(second.store));
}

static const test_case cases[] = {CASE(a_rank_that_goes)};
TEST_MAIN(cases)
