/* Pairs and buffers, in short. */
#ifndef RT_PAIRS_H
#define RT_PAIRS_H
#include "harness.h"

typedef struct ends { /* the two ends of a pair */
  rdma_mgr_t *a, *b;
  rdma_pair_t pa, pb;
} ends;
ends created(const pair *p);
ends connect_both(const pair *p);
bool connected(void *arg); /* ends: a condition */
size_t address_of(rdma_mgr_t *mgr, rdma_pair_t pair, uint8_t address[RDMA_PAIR_ADDRESS_MAX]);
/* Begins to connect a pair to another, or with a timeout does. */
rdma_code_t join(rdma_mgr_t *mgr, rdma_pair_t pair, rdma_mgr_t *other, rdma_pair_t to, int64_t ms);
rdma_pair_info_t info_of(rdma_mgr_t *mgr, rdma_pair_t pair);
void with_checksums(rdma_mgr_options_t *options); /* for pair_new */

rdma_buffer_t out_of(rdma_mgr_t *mgr, rdma_pair_t pair, uint64_t slot, void *memory, size_t n);
rdma_buffer_t into(rdma_mgr_t *mgr, rdma_pair_t pair, uint64_t slot, void *memory, size_t n);

typedef struct wanted {
  rdma_mgr_t *mgr;
  rdma_buffer_t buffer;
  uint64_t sent, received;
} wanted;
bool has(void *arg); /* wanted: so many ends of sends and arrivals can be taken */
/* Lets both sides run until the end of a send or an arrival can be taken, and takes it. */
rdma_code_t sent(rdma_mgr_t *mgr, rdma_buffer_t buffer);
void arrived(rdma_mgr_t *mgr, rdma_buffer_t buffer);

typedef struct log_of { /* what a buffer's callback, on_event, has heard */
  _Atomic int sent, received, broken, failed;
} log_of;
void on_event(rdma_buffer_t buffer, uint32_t event, rdma_code_t code, const char *message, void *userdata);

#endif
