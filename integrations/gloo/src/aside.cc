#include "aside.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gloo {
namespace transport {
namespace rdma {

/* Longest content that goes aside, and how many may be under way. */
static constexpr size_t kCell = 4096, kCells = 8;
/* Milliseconds that a wait for their ends does not look itself. */
static constexpr int64_t kLook = 10;

Aside::Aside(rdma_mgr_t *mgr, rdma_pair_t pair, int slot, size_t size)
    : mgr_(mgr), pair_(pair), slot_(slot), cell_(std::min(size, kCell)) {}

/* Not there any more if its pair was closed. */
Aside::~Aside() {
  if (buffer_) rdma_buffer_destroy(mgr_, buffer_);
}

rdma_code_t Aside::open() {
  cells_.resize(kCells * cell_);
  return rdma_buffer_create_send(mgr_, pair_, static_cast<uint64_t>(slot_), cells_.data(), cells_.size(), nullptr, nullptr, &buffer_);
}

rdma_code_t Aside::send(const char *data, size_t length, size_t roffset, int64_t timeout) {
  rdma_code_t code = buffer_ ? RDMA_OK : open();
  if (code == RDMA_OK && begun_ - ended_ == kCells) code = end(timeout);
  if (code != RDMA_OK) return code;
  const size_t at = begun_ % kCells * cell_;
  std::memcpy(cells_.data() + at, data, length);
  code = rdma_buffer_send(mgr_, buffer_, at, length, roffset);
  if (code == RDMA_OK) begun_++;
  return code;
}

rdma_code_t Aside::end(int64_t timeout) {
  const auto begun = std::chrono::steady_clock::now();
  for (uint64_t sent = 0;;) {
    rdma_code_t code = rdma_buffer_test(mgr_, buffer_, &sent, nullptr);
    if (code != RDMA_OK) return code;
    if (sent > 0) break;
    const bool over = timeout != RDMA_MSG_FOREVER && std::chrono::steady_clock::now() - begun >= std::chrono::milliseconds(timeout);
    if (over) return RDMA_DEADLINE_EXCEEDED;
    code = rdma_mgr_wait(mgr_, kLook);
    if (code != RDMA_OK && code != RDMA_DEADLINE_EXCEEDED) return code;
  }
  ended_++;
  return rdma_buffer_wait_send(mgr_, buffer_, 1);
}

rdma_code_t Aside::waitSend(int64_t timeout) {
  rdma_code_t code = told_ == ended_ ? end(timeout) : RDMA_OK;
  if (told_ < ended_) told_++;
  return code;
}

bool Aside::over() const {
  uint64_t sent = 0;
  return begun_ == ended_ || rdma_buffer_test(mgr_, buffer_, &sent, nullptr) != RDMA_OK || sent >= begun_ - ended_;
}

}  // namespace rdma
}  // namespace transport
}  // namespace gloo
