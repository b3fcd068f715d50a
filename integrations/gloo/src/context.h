#ifndef RDMA_GLOO_CONTEXT_H
#define RDMA_GLOO_CONTEXT_H

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "pair.h"
#include "worker.h"

namespace gloo {
namespace transport {
namespace rdma {

class Context : public ::gloo::transport::Context, public std::enable_shared_from_this<Context> {
 public:
  Context(std::shared_ptr<Worker> worker, int rank, int size);
  ~Context() override;
  std::unique_ptr<transport::Pair> &createPair(int rank) override;
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void *ptr, size_t size) override;

  rdma_mgr_t *mgr() const { return worker_->mgr(); }
  bool synchronous() const { return worker_->synchronous; }
  /* The pair with a rank. */
  Pair &pair(int rank);
  /* A pair has got its other end. */
  void connected(int rank, rdma_peer_t peer);
  /* A wait has timed out: closes all pairs, as Gloo's tcp does. */
  void timedOut();
  /* Whose number this is, -1: nobody's. */
  int rankOf(rdma_peer_t peer);

 private:
  const std::shared_ptr<Worker> worker_;
  std::mutex peers_mutex_;
  std::map<rdma_peer_t, int> ranks_;
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
