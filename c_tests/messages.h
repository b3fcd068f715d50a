/* Tagged messages of one communicator, in short. */
#ifndef RT_MESSAGES_H
#define RT_MESSAGES_H
#include "harness.h"
#include <pthread.h>

enum { COMM = 3 };
#define EXACT RDMA_MSG_TAG_MASK

rdma_msg_request_t isend(rdma_mgr_t *mgr, rdma_peer_t to, uint64_t tag, const void *data, size_t n, uint32_t mode);
/* Begins a receive; if it ends at once, so is the request 0 and the status filled. */
rdma_msg_request_t irecv(rdma_mgr_t *mgr, rdma_peer_t from, uint64_t tag, uint64_t mask, void *to, size_t n,
                         rdma_msg_status_t *status);
/* The end of a receive that was begun so. */
rdma_msg_status_t received(rdma_mgr_t *mgr, rdma_msg_request_t request, rdma_msg_status_t at_once);

/* Threads that drive this manager, since one that a case needs for anything else may not: one of them may stand in a handler. At most
 * one such set at a time. */
void drive_by(pthread_t *all, int n, rdma_mgr_t *mgr);
void join_all(pthread_t *all, int n);

#endif
