/* Pairs and buffers, in short. */
#include "pairs.h"

size_t address_of(rdma_mgr_t *mgr, rdma_pair_t pair, uint8_t address[RDMA_PAIR_ADDRESS_MAX]) {
  size_t n = 0;
  CHECK_OK(rdma_pair_address(mgr, pair, address, RDMA_PAIR_ADDRESS_MAX, &n));
  CHECK(n > 0 && n <= RDMA_PAIR_ADDRESS_MAX);
  return n;
}

rdma_code_t join(rdma_mgr_t *mgr, rdma_pair_t pair, rdma_mgr_t *other, rdma_pair_t to, int64_t ms) {
  uint8_t address[RDMA_PAIR_ADDRESS_MAX];
  size_t n = address_of(other, to, address);
  return rdma_pair_connect(mgr, pair, address, n, ms);
}

rdma_pair_info_t info_of(rdma_mgr_t *mgr, rdma_pair_t pair) {
  rdma_pair_info_t info = {.struct_size = sizeof info};
  CHECK_OK(rdma_pair_info(mgr, pair, &info));
  return info;
}

bool connected(void *arg) {
  ends *e = arg;
  return info_of(e->a, e->pa).state == RDMA_PAIR_CONNECTED && info_of(e->b, e->pb).state == RDMA_PAIR_CONNECTED;
}

ends created(const pair *p) {
  ends e = {p->a, p->b, 0, 0};
  CHECK_OK(rdma_pair_create(e.a, 1, 0, &e.pa));
  CHECK_OK(rdma_pair_create(e.b, 0, 0, &e.pb));
  CHECK(e.pa != 0 && e.pb != 0);
  return e;
}

ends connect_both(const pair *p) {
  ends e = created(p);
  CHECK_OK(join(e.a, e.pa, e.b, e.pb, 0));
  CHECK_OK(join(e.b, e.pb, e.a, e.pa, 0));
  CHECK(pump_until(connected, &e, 20000));
  return e;
}

rdma_buffer_t out_of(rdma_mgr_t *mgr, rdma_pair_t pair, uint64_t slot, void *memory, size_t n) {
  rdma_buffer_t buffer = 0;
  CHECK_OK(rdma_buffer_create_send(mgr, pair, slot, memory, n, NULL, NULL, &buffer));
  return buffer;
}

rdma_buffer_t into(rdma_mgr_t *mgr, rdma_pair_t pair, uint64_t slot, void *memory, size_t n) {
  rdma_buffer_t buffer = 0;
  CHECK_OK(rdma_buffer_create_recv(mgr, pair, slot, memory, n, NULL, NULL, &buffer));
  return buffer;
}

bool has(void *arg) {
  wanted *w = arg;
  uint64_t sent = 0, received = 0;
  CHECK_OK(rdma_buffer_test(w->mgr, w->buffer, &sent, &received));
  return sent >= w->sent && received >= w->received;
}

rdma_code_t sent(rdma_mgr_t *mgr, rdma_buffer_t buffer) {
  wanted w = {mgr, buffer, 1, 0};
  CHECK(pump_until(has, &w, 30000));
  return rdma_buffer_wait_send(mgr, buffer, 30000);
}

void arrived(rdma_mgr_t *mgr, rdma_buffer_t buffer) {
  wanted w = {mgr, buffer, 0, 1};
  CHECK(pump_until(has, &w, 30000));
  CHECK_OK(rdma_buffer_wait_recv(mgr, buffer, 30000));
}

void on_event(rdma_buffer_t buffer, uint32_t event, rdma_code_t code, const char *message, void *userdata) {
  log_of *l = userdata;
  CHECK(buffer != 0 && message != NULL);
  if (event == RDMA_BUFFER_SENT && code == RDMA_OK) l->sent++;
  if (event == RDMA_BUFFER_SENT && code != RDMA_OK) l->failed++;
  if (event == RDMA_BUFFER_RECEIVED) l->received++;
  if (event == RDMA_BUFFER_BROKEN) l->broken++;
}

void with_checksums(rdma_mgr_options_t *options) { options->checksum = 1; }
