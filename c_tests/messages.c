/* Tagged messages, in short. */
#include "messages.h"

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

rdma_msg_request_t isend(rdma_mgr_t *mgr, rdma_peer_t to, uint64_t tag, const void *data, size_t n, uint32_t mode) {
  rdma_msg_options_t options = {.struct_size = sizeof options, .mode = mode};
  rdma_msg_request_t request = 77;
  CHECK_OK(rdma_msg_isend(mgr, to, COMM, tag, data, n, &options, &request));
  CHECK(request != 77);
  return request;
}

rdma_msg_request_t irecv(rdma_mgr_t *mgr, rdma_peer_t from, uint64_t tag, uint64_t mask, void *to, size_t n,
                         rdma_msg_status_t *status) {
  rdma_msg_request_t request = 77;
  status->struct_size = sizeof *status;
  CHECK_OK(rdma_msg_irecv(mgr, from, COMM, tag, mask, to, n, NULL, status, &request));
  CHECK(request != 77);
  return request;
}

rdma_msg_status_t received(rdma_mgr_t *mgr, rdma_msg_request_t request, rdma_msg_status_t at_once) {
  return end_of(mgr, request, &at_once);
}

static _Atomic int stop;
static void *drives(void *mgr) {
  while (!atomic_load(&stop)) (void)rdma_mgr_wait(mgr, 5);
  return NULL;
}

void drive_by(pthread_t *all, int n, rdma_mgr_t *mgr) {
  atomic_store(&stop, 0);
  for (int i = 0; i < n; i++) CHECK(pthread_create(&all[i], NULL, drives, mgr) == 0);
}

void join_all(pthread_t *all, int n) {
  atomic_store(&stop, 1);
  for (int i = 0; i < n; i++) CHECK(pthread_join(all[i], NULL) == 0);
}
