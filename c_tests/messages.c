/* Tagged messages, in short. */
#include "harness.h"

rdma_peer_t number_of(rdma_mgr_t *mgr, const char *name) {
  rdma_peer_t peer = 0;
  CHECK_OK(rdma_peer_lookup(mgr, name, &peer));
  CHECK(peer != RDMA_PEER_ANY);
  return peer;
}

typedef struct waiting {
  rdma_mgr_t *mgr;
  rdma_msg_request_t request;
  rdma_msg_status_t status;
} waiting;

static bool has_ended(void *arg) {
  waiting *w = arg;
  size_t n = 0;
  CHECK_OK(rdma_msg_test(w->mgr, &w->request, 1, RDMA_MSG_ALL, NULL, &w->status, &n));
  return n == 1;
}

rdma_msg_status_t end_of(rdma_mgr_t *mgr, rdma_msg_request_t request, const rdma_msg_status_t *at_once) {
  waiting w = {mgr, request, {.struct_size = sizeof w.status}};
  if (request == 0) {
    CHECK(at_once != NULL);
    return *at_once;
  }
  CHECK_MSG(pump_until(has_ended, &w, 60000), "request %llu has no end", (unsigned long long)request);
  return w.status;
}
