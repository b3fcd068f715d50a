/* What a program needs of the installed package: two ranks sum by one of Gloo's algorithms. */
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <rdma_gloo/device.h>

static void sum(gloo::rendezvous::HashStore &store, int rank, std::vector<float> &values) {
  auto device = gloo::transport::rdma::CreateDevice(gloo::transport::rdma::attr());
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
  context->connectFullMesh(store, device);
  gloo::AllreduceRing<float>(context, {values.data()}, static_cast<int>(values.size())).run();
}

int main() {
  gloo::rendezvous::HashStore store;
  std::vector<float> here(1000, 1), there(1000, 2);
  std::thread other([&] { sum(store, 1, there); });
  sum(store, 0, here);
  other.join();
  if (here != std::vector<float>(1000, 3) || there != here) return 1;
  std::printf("both ranks have the sum\n");
  return 0;
}
