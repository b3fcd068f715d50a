// The same through the C++ layer.
#include <rdma_transport.hpp>
#include <rdma_transport_msg.hpp>

#include <cstdio>

int main() {
  auto mgr = rdma::Manager::create(rdma::Options().name("consumer"));
  if (!mgr) return std::printf("consumer FAILED: %s\n", mgr.status().to_string().c_str()), 1;
  const double pi[2] = {3.14, 3.1415};
  rdma::Status sent = mgr->send("pi", 0, rdma::Tensor(pi, sizeof pi, {2}, 2));
  auto got = mgr->recv("", "pi", 0);
  if (!sent || !got || got->tensor.nbytes() != sizeof pi) return std::printf("consumer FAILED\n"), 1;
  const rdma::Messages messages(*mgr);
  auto self = messages.peer("consumer");
  double also[2] = {};
  sent = messages.send(*self, 0, 1, pi, sizeof pi);
  if (!sent || !messages.recv(*self, 0, 1, RDMA_MSG_TAG_MASK, also, sizeof also).ok() || also[1] != pi[1])
    return std::printf("consumer FAILED\n"), 1;
  std::printf("consumer: the C++ layer works\n");
}
