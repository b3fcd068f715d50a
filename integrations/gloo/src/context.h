#ifndef RDMA_GLOO_CONTEXT_H
#define RDMA_GLOO_CONTEXT_H

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
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
  /* A wait has timed out: closes all pairs, as Gloo's tcp does, and ends what is under way in unbound buffers: nothing that is sent or
   * received comes late. */
  void timedOut();
  /* Throws once one has. */
  void check() const;
  /* An unbound buffer is there; and before it is there no more. */
  void enlist(rdma_unbound_t buffer);
  void strike(rdma_unbound_t buffer);
  /* Whose number this is, -1: nobody's. */
  int rankOf(rdma_peer_t peer);

 private:
  const std::shared_ptr<Worker> worker_;
  std::mutex peers_mutex_;
  std::map<rdma_peer_t, int> ranks_;
  std::mutex buffers_mutex_;
  std::set<rdma_unbound_t> buffers_;
  std::atomic<bool> timed_out_{false};
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
