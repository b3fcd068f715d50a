#ifndef RDMA_GLOO_UNBOUND_BUFFER_H
#define RDMA_GLOO_UNBOUND_BUFFER_H

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <gloo/transport/unbound_buffer.h>

#include "context.h"

namespace gloo {
namespace transport {
namespace rdma {

/* Sends and receives by rank and slot. */
class UnboundBuffer : public ::gloo::transport::UnboundBuffer {
 public:
  UnboundBuffer(std::shared_ptr<Context> context, void *ptr, size_t size);
  /* Ends what is under way: the memory is the caller's then. */
  ~UnboundBuffer() override;
  bool waitRecv(int *rank, std::chrono::milliseconds timeout) override;
  bool waitSend(int *rank, std::chrono::milliseconds timeout) override;
  void abortWaitRecv() override { rdma_unbound_abort_wait_recv(context_->mgr(), buffer_); }
  void abortWaitSend() override { rdma_unbound_abort_wait_send(context_->mgr(), buffer_); }
  void send(int dstRank, uint64_t slot, size_t offset, size_t nbytes) override;
  void recv(int srcRank, uint64_t slot, size_t offset, size_t nbytes) override;
  void recv(std::vector<int> srcRanks, uint64_t slot, size_t offset, size_t nbytes) override;

 private:
  struct Direction {
    std::mutex mutex;
    /* The operations that are under way, in the order in which they began: ranks, and the slot. */
    std::list<std::pair<std::vector<int>, uint64_t>> waits;
    void add(std::vector<int> ranks, uint64_t slot);
    /* The first with this rank. */
    void remove(int rank, uint64_t slot);
  };
  void fit(size_t offset, size_t &nbytes) const;
  bool wait(Direction &direction, int *rank, std::chrono::milliseconds timeout);
  rdma_code_t take(Direction &direction, std::chrono::milliseconds limit, rdma_msg_status_t &status);
  void check(Direction &direction);
  bool broken(Direction &direction);
  void settle(Direction &direction);

  const std::shared_ptr<Context> context_;
  rdma_unbound_t buffer_ = 0;
  Direction sends_, recvs_;
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
