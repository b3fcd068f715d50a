#ifndef RDMA_GLOO_UNBOUND_BUFFER_H
#define RDMA_GLOO_UNBOUND_BUFFER_H

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <gloo/transport/unbound_buffer.h>

#include "context.h"

namespace gloo {
namespace transport {
namespace rdma {

/* Sends and receives by rank and slot: tagged messages, whose tag is the slot. */
class UnboundBuffer : public ::gloo::transport::UnboundBuffer {
 public:
  UnboundBuffer(std::shared_ptr<Context> context, void *ptr, size_t size);
  /* Ends what is under way: the memory is the caller's then. */
  ~UnboundBuffer() override;
  bool waitRecv(int *rank, std::chrono::milliseconds timeout) override;
  bool waitSend(int *rank, std::chrono::milliseconds timeout) override;
  void abortWaitRecv() override { recvs_.abort = true; }
  void abortWaitSend() override { sends_.abort = true; }
  void send(int dstRank, uint64_t slot, size_t offset, size_t nbytes) override;
  void recv(int srcRank, uint64_t slot, size_t offset, size_t nbytes) override;
  void recv(std::vector<int> srcRanks, uint64_t slot, size_t offset, size_t nbytes) override;

 private:
  struct Operation {
    rdma_msg_request_t request;
    int rank; /* -1: of anybody */
  };
  /* A receive from some of the ranks: it looks for a message of each, one after the other. */
  struct Choice {
    std::vector<int> ranks;
    uint64_t slot;
    char *to;
    size_t nbytes;
  };
  struct Direction {
    std::mutex mutex;      /* of what follows */
    std::mutex waits;      /* held by whoever waits */
    std::deque<Operation> pending;
    std::deque<Choice> choices;
    std::deque<int> done; /* ranks */
    std::atomic<bool> abort{false};
  };
  char *part(size_t offset, size_t &nbytes) const;
  void begin(Direction &direction, rdma_code_t code, rdma_msg_request_t request, int rank);
  bool wait(Direction &direction, const char *what, int *rank, std::chrono::milliseconds timeout);
  bool look(Direction &direction, std::chrono::milliseconds limit);
  void choose(Direction &direction);
  void ended(Direction &direction, rdma_msg_request_t request, const rdma_msg_status_t &status);
  void check(Direction &direction);
  bool broken(Direction &direction);
  void drop(Direction &direction);

  const std::shared_ptr<Context> context_;
  Direction sends_, recvs_;
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
