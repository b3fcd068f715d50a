/* What the host and its plugin both do, each with its own copy of the library. */
#ifndef HPP_COPIES_HPP
#define HPP_COPIES_HPP
#include <rdma_transport.hpp>
#include <rdma_transport_msg.hpp>

/* A tensor and a message to oneself; what went wrong, or "". */
static std::string alone(const char *name, const char *provider) {
  auto made = rdma::Manager::create(rdma::Options().name(name).provider(provider).timeout_ms(20000));
  if (!made.ok()) return made.status().to_string();
  rdma::Manager m = *std::move(made);
  char out = 3, in = 0;
  rdma::Status s = rdma::Status::of(rdma_mgr_wake(m.c()));
  if (!s.ok()) return "wake: " + s.to_string();
  if (!(s = m.send("k", 1, rdma::Tensor(&out, 1))).ok()) return "send: " + s.to_string();
  auto received = m.recv_into("", "k", 1, &in, 1);
  if (!received.ok()) return "recv_into: " + received.status().to_string();
  rdma::Messages messages(m);
  auto self = messages.peer(name);
  if (!self.ok()) return "peer: " + self.status().to_string();
  auto receive = messages.irecv(*self, 1, 1, RDMA_MSG_TAG_MASK, &in, 1);
  if (!receive.ok()) return "irecv: " + receive.status().to_string();
  auto send = messages.isend(*self, 1, 1, &out, 1);
  if (!send.ok()) return "isend: " + send.status().to_string();
  if (!(s = receive->wait()).ok()) return "wait: " + s.to_string();
  auto bad = m.recv_into("nobody", "k", 1, &in, 1);
  if (bad.ok() || bad.status().message().find("nobody") == std::string::npos) return "the text of an error: " + bad.status().to_string();
  return in == 3 ? "" : "other content";
}
#endif
