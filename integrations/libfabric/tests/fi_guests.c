/* An endpoint to which so many have come and gone, whose addresses it does not have, that the library has begun to forget them:
 * the addresses that it gets then are as good as the first. */
#include <rdma_transport.h>

#include "fi_test.h"

/* The library knows 16,384 guests at a time, and numbers those that come then otherwise. */
enum { kGuests = 16500, kAddresses = 200 };

static const struct setup kUsual = {
    .caps = FI_MSG | FI_SOURCE | FI_DIRECTED_RECV,
    .format = FI_CQ_FORMAT_TAGGED,
    .av = FI_AV_TABLE,
    .progress = FI_PROGRESS_AUTO};

static void come_and_go(const unsigned char *address) {
  /* Its name and place, as address.h has them. */
  char name[64] = "fi-", place[64];
  for (int i = 0; i < 16; ++i) sprintf(name + 3 + 2 * i, "%02x", address[24 + i]);
  sprintf(place, "127.0.0.1:%u", address[6] << 8 | address[7]);
  for (int i = 0; i < kGuests; ++i) {
    rdma_mgr_options_t options;
    rdma_mgr_t *guest;
    CHECK(rdma_mgr_options_init(&options, sizeof options) == RDMA_OK);
    options.progress = RDMA_PROGRESS_MANUAL;
    CHECK(rdma_mgr_create(&options, &guest) == RDMA_OK);
    CHECK(rdma_mgr_add_peer(guest, name, place) == RDMA_OK);
    CHECK(rdma_mgr_connect(guest, name, (int64_t)(PATIENCE * 1000)) == RDMA_OK);
    CHECK(rdma_mgr_destroy(guest) == RDMA_OK);
  }
}

int main(void) {
  /* Nothing of it is a provider's, and on shm it takes longer. */
  const char *provider = getenv("RDMA_PROVIDER");
  if (provider != NULL && strcmp(provider, "tcp") != 0) {
    puts("fi_guests: on tcp alone");
    return 0;
  }
  struct side a, b;
  open_side(&a, kUsual);
  unsigned char address[64], other[64];
  const size_t len = address_of(&a, address, sizeof address);
  come_and_go(address);

  memcpy(other, address, len);
  for (uint32_t i = 1; i <= kAddresses; ++i) {
    fi_addr_t at;
    memcpy(other + 24, &i, sizeof i);
    CHECK(fi_av_insert(a.av, other, 1, &at, 0, NULL) == 1);
  }
  /* Messages go both ways, and their sources are known. */
  open_side(&b, kUsual);
  address_of(&b, other, sizeof other);
  CHECK(fi_av_insert(a.av, other, 1, &a.other, 0, NULL) == 1);
  CHECK(fi_av_insert(a.av, address, 1, &a.self, 0, NULL) == 1);
  CHECK(fi_av_insert(b.av, address, 1, &b.other, 0, NULL) == 1);
  const fi_addr_t sources[] = {a.other, a.self};
  for (int i = 0; i < 2; ++i) {
    char in = 0;
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error;
    fi_addr_t from;
    OK(fi_recv(a.ep, &in, 1, NULL, FI_ADDR_UNSPEC, &in));
    OK(fi_inject(i == 0 ? b.ep : a.ep, "x", 1, i == 0 ? b.other : a.self));
    CHECK(next(&a, &b, &entry, &from, &error) && in == 'x' && from == sources[i]);
  }
  /* That one is gone is heard of as well. */
  char in;
  OK(fi_recv(a.ep, &in, 1, NULL, a.other, &in));
  close_side(&b);
  expect_error(&a, NULL, &in, FI_ECONNRESET);
  OK(fi_recv(a.ep, &in, 1, NULL, a.other, &in));
  expect_error(&a, NULL, &in, FI_ECONNRESET);
  close_side(&a);
  puts("fi_guests: well");
  return 0;
}
