#include "context.h"

#include <gloo/common/logging.h>

#include "unbound_buffer.h"

namespace gloo {
namespace transport {
namespace rdma {

Context::Context(std::shared_ptr<Worker> worker, int rank, int size)
    : ::gloo::transport::Context(rank, size), worker_(std::move(worker)) {}

Context::~Context() {
  /* Pairs refer to this. */
  pairs_.clear();
}

std::unique_ptr<transport::Pair> &Context::createPair(int rank) {
  pairs_[rank] = std::unique_ptr<transport::Pair>(new Pair(this, worker_, rank, getTimeout()));
  return pairs_[rank];
}

std::unique_ptr<transport::UnboundBuffer> Context::createUnboundBuffer(void *ptr, size_t size) {
  return std::unique_ptr<transport::UnboundBuffer>(new UnboundBuffer(shared_from_this(), ptr, size));
}

Pair &Context::pair(int rank) {
  GLOO_ENFORCE(rank >= 0 && rank < size, "rank ", rank, " of a context of ", size);
  GLOO_ENFORCE(pairs_[rank], "there is no pair with rank ", rank);
  return static_cast<Pair &>(*pairs_[rank]);
}

void Context::connected(int rank, rdma_peer_t peer) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  ranks_[peer] = rank;
}

void Context::enlist(rdma_unbound_t buffer) {
  std::lock_guard<std::mutex> lock(buffers_mutex_);
  buffers_.insert(buffer);
}

void Context::strike(rdma_unbound_t buffer) {
  std::lock_guard<std::mutex> lock(buffers_mutex_);
  buffers_.erase(buffer);
}

void Context::check() const {
  if (timed_out_) FailTimedOut();
}

void Context::timedOut() {
  timed_out_ = true;
  for (const auto &pair : pairs_) {
    if (pair) static_cast<Pair &>(*pair).timedOut();
  }
  std::lock_guard<std::mutex> lock(buffers_mutex_);
  for (rdma_unbound_t buffer : buffers_) rdma_unbound_cancel(mgr(), buffer);
}

int Context::rankOf(rdma_peer_t peer) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  auto found = ranks_.find(peer);
  return found == ranks_.end() ? -1 : found->second;
}

}  // namespace rdma
}  // namespace transport
}  // namespace gloo
