#include "collectives.h"
#include <string.h>

#define TRY(expr)                                                              \
  do {                                                                         \
    rdma_code_t code_ = (expr);                                                \
    if (code_ != RDMA_OK) return code_;                                        \
  } while (0)

static rdma_code_t start_send(group *g, uint32_t to, const void *data, size_t len, rdma_msg_request_t *request) {
  rdma_peer_t peer;
  TRY(rdma_mesh_peer(g->mesh, to, &peer));
  return rdma_msg_isend(g->mgr, peer, g->comm, g->calls, data, len, NULL, request);
}

static rdma_code_t start_recv(group *g, uint32_t from, void *data, size_t len, rdma_msg_request_t *request) {
  rdma_peer_t peer;
  TRY(rdma_mesh_peer(g->mesh, from, &peer));
  return rdma_msg_irecv(g->mgr, peer, g->comm, g->calls, RDMA_MSG_TAG_MASK, data, len, NULL, NULL, request);
}

/* Takes back what is under way, and waits for its end: until then its memory is not the caller's again. */
static void give_up(group *g, rdma_msg_request_t *requests, size_t count) {
  rdma_msg_status_t ends[2] = {{.struct_size = sizeof *ends}}; /* so that the last error stays the first */
  size_t ended;
  for (size_t i = 0; i < count; i++)
    if (requests[i]) rdma_msg_cancel(g->mgr, requests[i]);
  rdma_msg_wait(g->mgr, requests, count, RDMA_MSG_ALL, RDMA_MSG_FOREVER, NULL, ends, &ended);
}

/* Of one or two. When one fails the other is not waited for until its deadline: its peer may have failed likewise. */
static rdma_code_t finish(group *g, rdma_msg_request_t *requests, size_t count) {
  rdma_code_t code;
  size_t ended;
  do {
    ended = 0; /* as after the last one */
    code = rdma_msg_wait(g->mgr, requests, count, RDMA_MSG_SOME, RDMA_MSG_FOREVER, NULL, NULL, &ended);
  } while (code == RDMA_OK && ended > 0);
  if (ended > 0) give_up(g, requests, count);
  return code;
}

static rdma_code_t send_to(group *g, uint32_t to, const void *data, size_t len) {
  rdma_msg_request_t request = 0;
  TRY(start_send(g, to, data, len, &request));
  return finish(g, &request, 1);
}

static rdma_code_t recv_from(group *g, uint32_t from, void *data, size_t len) {
  rdma_msg_request_t request = 0;
  TRY(start_recv(g, from, data, len, &request));
  return finish(g, &request, 1);
}

/* Both at once: around a ring everybody sends before anybody receives. */
static rdma_code_t exchange(group *g, uint32_t to, const void *out, size_t out_len, uint32_t from, void *in,
                            size_t in_len) {
  rdma_msg_request_t requests[2] = {0, 0};
  rdma_code_t code;
  TRY(start_recv(g, from, in, in_len, &requests[0]));
  code = start_send(g, to, out, out_len, &requests[1]);
  if (code == RDMA_OK) return finish(g, requests, 2);
  give_up(g, requests, 1);
  return code;
}

rdma_code_t barrier(group *g) {
  g->calls++;
  for (uint32_t step = 1; step < g->size; step *= 2) /* after each, 2 * step ranks have heard of each other */
    TRY(exchange(g, (g->rank + step) % g->size, NULL, 0, (g->rank + g->size - step) % g->size, NULL, 0));
  return RDMA_OK;
}

rdma_code_t broadcast(group *g, void *data, size_t len, uint32_t root) {
  uint32_t self = (g->rank + g->size - root) % g->size, step = 1; /* the root counts as 0 */
  g->calls++;
  for (; step < g->size && !(self & step); step *= 2) continue;
  if (self != 0) TRY(recv_from(g, (self - step + root) % g->size, data, len));
  for (step /= 2; step > 0; step /= 2)
    if (self + step < g->size) TRY(send_to(g, (self + step + root) % g->size, data, len));
  return RDMA_OK;
}

rdma_code_t allgather(group *g, const void *own, size_t len, void *all) {
  uint32_t next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size;
  char *parts = all;
  g->calls++;
  if (len) memmove(parts + g->rank * len, own, len);
  for (uint32_t i = 0; i + 1 < g->size; i++) { /* hand on what came last */
    uint32_t out = (g->rank + g->size - i) % g->size, in = (before + g->size - i) % g->size;
    TRY(exchange(g, next, parts + out * len, len, before, parts + in * len, len));
  }
  return RDMA_OK;
}

size_t part_begin(const group *g, size_t count, uint32_t rank) {
  size_t part = count / g->size, rest = count % g->size;
  return rank * part + (rank < rest ? rank : rest);
}

static void add(double *sum, const double *more, size_t count) {
  for (size_t i = 0; i < count; i++) sum[i] += more[i];
}

rdma_code_t reduce_scatter(group *g, double *data, size_t count, double *room) {
  uint32_t next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size;
  g->calls++;
  for (uint32_t i = 0; i + 1 < g->size; i++) { /* a part's sum ends, after one round, at the rank whose part it is */
    uint32_t out = (before + g->size - i) % g->size, in = (before + 2 * g->size - 1 - i) % g->size;
    size_t out_at = part_begin(g, count, out), out_n = part_begin(g, count, out + 1) - out_at;
    size_t in_at = part_begin(g, count, in), in_n = part_begin(g, count, in + 1) - in_at;
    TRY(exchange(g, next, data + out_at, out_n * sizeof *data, before, room, in_n * sizeof *data));
    add(data + in_at, room, in_n);
  }
  return RDMA_OK;
}

rdma_code_t allreduce_ring(group *g, double *data, size_t count, double *room) {
  uint32_t next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size;
  TRY(reduce_scatter(g, data, count, room));
  g->calls++;
  for (uint32_t i = 0; i + 1 < g->size; i++) {
    uint32_t out = (g->rank + g->size - i) % g->size, in = (before + g->size - i) % g->size;
    size_t out_at = part_begin(g, count, out), out_n = part_begin(g, count, out + 1) - out_at;
    size_t in_at = part_begin(g, count, in), in_n = part_begin(g, count, in + 1) - in_at;
    TRY(exchange(g, next, data + out_at, out_n * sizeof *data, before, data + in_at, in_n * sizeof *data));
  }
  return RDMA_OK;
}

rdma_code_t allreduce_tree(group *g, double *data, size_t count, double *room) {
  size_t len = count * sizeof *data;
  g->calls++;
  for (uint32_t step = 1; step < g->size; step *= 2) { /* up to rank 0 */
    if (g->rank & step) {
      TRY(send_to(g, g->rank - step, data, len));
      break;
    }
    if (g->rank + step < g->size) {
      TRY(recv_from(g, g->rank + step, room, len));
      add(data, room, count);
    }
  }
  return broadcast(g, data, len, 0);
}
