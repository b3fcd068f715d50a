#include "unbound_buffer.h"

#include <algorithm>
#include <set>

#include <gloo/common/logging.h>

namespace gloo {
namespace transport {
namespace rdma {

namespace {
/* A context has a manager of its own: one communicator will do. */
constexpr uint32_t kComm = 0;
/* How long a wait does not look whether a pair that it waits for is broken. */
constexpr std::chrono::milliseconds kSlice(10);
/* How long a wait that has timed out waits for the ends of what it cancels. A peer that lives answers at once. */
constexpr std::chrono::milliseconds kSettles(100);
using Clock = std::chrono::steady_clock;
}  // namespace

UnboundBuffer::UnboundBuffer(std::shared_ptr<Context> context, void *ptr, size_t size)
    : ::gloo::transport::UnboundBuffer(ptr, size), context_(std::move(context)) {
  Check(rdma_unbound_create(context_->mgr(), kComm, ptr, size, &buffer_), "rdma_unbound_create");
  context_->enlist(buffer_);
}

UnboundBuffer::~UnboundBuffer() {
  context_->strike(buffer_);
  rdma_unbound_destroy(context_->mgr(), buffer_);
}

void UnboundBuffer::Direction::add(std::vector<int> ranks, uint64_t slot) {
  std::lock_guard<std::mutex> lock(mutex);
  waits.emplace_back(std::move(ranks), slot);
}

void UnboundBuffer::Direction::remove(int rank, uint64_t slot) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = std::find_if(waits.begin(), waits.end(), [&](const std::pair<std::vector<int>, uint64_t> &operation) {
    const std::vector<int> &ranks = operation.first;
    return operation.second == slot && std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
  if (found != waits.end()) waits.erase(found);
}

void UnboundBuffer::fit(size_t offset, size_t &nbytes) const {
  /* Some of Gloo's algorithms send nothing from beyond the end. */
  if (nbytes == 0) return;
  GLOO_ENFORCE_LE(offset, size);
  if (nbytes == kUnspecifiedByteCount) nbytes = size - offset;
  GLOO_ENFORCE_LE(nbytes, size - offset);
}

void UnboundBuffer::send(int dstRank, uint64_t slot, size_t offset, size_t nbytes) {
  fit(offset, nbytes);
  Pair &pair = context_->pair(dstRank);
  pair.check();
  sends_.add({dstRank}, slot);
  const auto begin = context_->synchronous() ? rdma_unbound_ssend : rdma_unbound_send;
  rdma_code_t code = begin(context_->mgr(), buffer_, pair.peer(), slot, nbytes ? offset : 0, nbytes, RDMA_MSG_FOREVER);
  if (code == RDMA_OK) return;
  sends_.remove(dstRank, slot);
  Fail(code, "rank " + std::to_string(dstRank));
}

void UnboundBuffer::recv(int srcRank, uint64_t slot, size_t offset, size_t nbytes) {
  recv(std::vector<int>{srcRank}, slot, offset, nbytes);
}

void UnboundBuffer::recv(std::vector<int> srcRanks, uint64_t slot, size_t offset, size_t nbytes) {
  fit(offset, nbytes);
  GLOO_ENFORCE(!srcRanks.empty(), "a receive from no rank");
  std::vector<rdma_peer_t> sources;
  for (int rank : srcRanks) sources.push_back(context_->pair(rank).peer());
  recvs_.add(srcRanks, slot);
  rdma_code_t code = rdma_unbound_recv(context_->mgr(), buffer_, sources.data(), sources.size(), slot,
                                       nbytes ? offset : 0, nbytes, RDMA_MSG_FOREVER);
  if (code == RDMA_OK) return;
  recvs_.remove(srcRanks[0], slot);
  Fail(code, "rank " + std::to_string(srcRanks[0]));
}

/* Throws if something waits that nobody can end: the pairs with all of its ranks are broken. */
void UnboundBuffer::check(Direction &direction) {
  std::set<std::vector<int>> operations;
  {
    std::lock_guard<std::mutex> lock(direction.mutex);
    for (const auto &operation : direction.waits) operations.insert(operation.first);
  }
  for (const std::vector<int> &ranks : operations) {
    for (size_t i = 0; i < ranks.size(); i++) {
      try {
        context_->pair(ranks[i]).check();
        break;
      } catch (const ::gloo::IoException &) {
        if (i + 1 == ranks.size()) throw;
      }
    }
  }
}

bool UnboundBuffer::broken(Direction &direction) {
  try {
    check(direction);
  } catch (const ::gloo::IoException &) {
    return true;
  }
  return false;
}

rdma_code_t UnboundBuffer::take(Direction &direction, std::chrono::milliseconds limit, rdma_msg_status_t &status) {
  status.struct_size = sizeof status;
  return &direction == &sends_ ? rdma_unbound_wait_send(context_->mgr(), buffer_, limit.count(), &status)
                               : rdma_unbound_wait_recv(context_->mgr(), buffer_, limit.count(), &status);
}

bool UnboundBuffer::wait(Direction &direction, int *rank, std::chrono::milliseconds timeout) {
  /* 0 is no time here, as over Gloo's tcp; of a context it is no time-out. */
  const bool unset = timeout == kUnsetTimeout;
  if (unset) timeout = context_->getTimeout();
  const bool forever = unset && timeout == kNoTimeout;
  const Clock::time_point until = Clock::now() + timeout;
  const char *what = &direction == &sends_ ? "send" : "recv";
  for (bool last = false;;) {
    std::chrono::milliseconds left = kSlice;
    if (!forever) {
      auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      left = std::max(std::min(left, rest), std::chrono::milliseconds(1));
    }
    rdma_msg_status_t status{};
    rdma_code_t code = take(direction, left, status);
    if (status.peer != 0 || status.code != RDMA_OK) {
      int from = context_->rankOf(status.peer);
      direction.remove(from, status.tag);
      if (code != RDMA_OK) {
        context_->check();
        GLOO_THROW_IO_EXCEPTION("rank ", from, ", slot ", status.tag, ": ", rdma_code_name(code), ", ", status.bytes,
                                " bytes: ", status.text);
      }
      if (rank) *rank = from;
      return true;
    }
    if (code == RDMA_CANCELLED) return false; /* abortWaitSend, abortWaitRecv */
    if (code != RDMA_DEADLINE_EXCEEDED) Fail(code, what);
    /* What came before a pair broke is still to be had: one more look. */
    if (last) check(direction);
    last = broken(direction);
    if (!forever && Clock::now() >= until && !last) {
      /* Of what the last look said what is under way, and with whom: "...: no send ended within 0.010 s; 1 under way, ..." */
      std::string why = LastError();
      why.erase(0, std::min(why.size(), why.find("; ")));
      context_->timedOut();
      settle(direction);
      GLOO_THROW_IO_EXCEPTION("Timed out waiting ", timeout.count(), "ms for ", what, " operation to complete", why);
    }
    if (!last) context_->check();
  }
}

/* What was cancelled has ended, unless its peer stands still: the memory is the caller's. */
void UnboundBuffer::settle(Direction &direction) {
  for (const auto until = Clock::now() + kSettles; Clock::now() < until;) {
    {
      std::lock_guard<std::mutex> lock(direction.mutex);
      if (direction.waits.empty()) return;
    }
    rdma_msg_status_t status{};
    const rdma_code_t code = take(direction, kSlice, status);
    if (status.peer == 0 && status.code == RDMA_OK) {
      if (code != RDMA_DEADLINE_EXCEEDED) return;
      continue;
    }
    std::lock_guard<std::mutex> lock(direction.mutex);
    direction.waits.pop_front(); /* which of them does not matter any more */
  }
}

bool UnboundBuffer::waitRecv(int *rank, std::chrono::milliseconds timeout) { return wait(recvs_, rank, timeout); }

bool UnboundBuffer::waitSend(int *rank, std::chrono::milliseconds timeout) { return wait(sends_, rank, timeout); }

}  // namespace rdma
}  // namespace transport
}  // namespace gloo
