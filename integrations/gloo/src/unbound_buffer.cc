#include "unbound_buffer.h"

#include <algorithm>

#include <gloo/common/logging.h>

namespace gloo {
namespace transport {
namespace rdma {

namespace {
/* A context has a manager of its own: one communicator will do. */
constexpr uint32_t kComm = 0;
/* How long a wait does not look at what else may have happened: an abort, a broken pair. */
constexpr std::chrono::milliseconds kSlice(10);
using Clock = std::chrono::steady_clock;

rdma_msg_options_t Patient() {
  rdma_msg_options_t options{};
  options.struct_size = sizeof options;
  options.timeout_ms = RDMA_MSG_FOREVER;
  return options;
}
}  // namespace

UnboundBuffer::UnboundBuffer(std::shared_ptr<Context> context, void *ptr, size_t size)
    : ::gloo::transport::UnboundBuffer(ptr, size), context_(std::move(context)) {}

UnboundBuffer::~UnboundBuffer() {
  drop(sends_);
  drop(recvs_);
}

void UnboundBuffer::drop(Direction &direction) {
  for (Operation &operation : direction.pending) {
    rdma_msg_cancel(context_->mgr(), operation.request);
    size_t n = 0;
    rdma_msg_wait(context_->mgr(), &operation.request, 1, RDMA_MSG_ALL, RDMA_MSG_FOREVER, nullptr, nullptr, &n);
  }
}

char *UnboundBuffer::part(size_t offset, size_t &nbytes) const {
  /* Some of Gloo's algorithms send nothing from beyond the end. */
  if (nbytes == 0) return static_cast<char *>(ptr);
  GLOO_ENFORCE_LE(offset, size);
  if (nbytes == kUnspecifiedByteCount) nbytes = size - offset;
  GLOO_ENFORCE_LE(nbytes, size - offset);
  return static_cast<char *>(ptr) + offset;
}

/* An operation has begun, or ended at once. */
void UnboundBuffer::begin(Direction &direction, rdma_code_t code, rdma_msg_request_t request, int rank) {
  if (code != RDMA_OK) Fail(code, "rank " + std::to_string(rank));
  std::lock_guard<std::mutex> lock(direction.mutex);
  if (request == 0)
    direction.done.push_back(rank);
  else
    direction.pending.push_back(Operation{request, rank});
}

void UnboundBuffer::send(int dstRank, uint64_t slot, size_t offset, size_t nbytes) {
  const char *data = part(offset, nbytes);
  Pair &pair = context_->pair(dstRank);
  pair.check();
  rdma_msg_options_t options = Patient();
  rdma_msg_request_t request = 0;
  rdma_code_t code = rdma_msg_isend(context_->mgr(), pair.peer(), kComm, slot, data, nbytes, &options, &request);
  begin(sends_, code, request, dstRank);
}

void UnboundBuffer::recv(int srcRank, uint64_t slot, size_t offset, size_t nbytes) {
  recv(std::vector<int>{srcRank}, slot, offset, nbytes);
}

void UnboundBuffer::recv(std::vector<int> srcRanks, uint64_t slot, size_t offset, size_t nbytes) {
  char *to = part(offset, nbytes);
  std::sort(srcRanks.begin(), srcRanks.end());
  srcRanks.erase(std::unique(srcRanks.begin(), srcRanks.end()), srcRanks.end());
  GLOO_ENFORCE(!srcRanks.empty(), "a receive from no rank");
  for (int rank : srcRanks) context_->pair(rank);
  const bool all = static_cast<int>(srcRanks.size()) == context_->size - 1;
  if (srcRanks.size() > 1 && !all) {
    std::lock_guard<std::mutex> lock(recvs_.mutex);
    recvs_.choices.push_back(Choice{std::move(srcRanks), slot, to, nbytes});
    return;
  }
  const bool one = srcRanks.size() == 1;
  rdma_peer_t source = one ? context_->pair(srcRanks[0]).peer() : RDMA_PEER_ANY;
  rdma_msg_options_t options = Patient();
  rdma_msg_status_t status{};
  status.struct_size = sizeof status;
  rdma_msg_request_t request = 0;
  rdma_code_t code = rdma_msg_irecv(context_->mgr(), source, kComm, slot, RDMA_MSG_TAG_MASK, to, nbytes, &options,
                                    &status, &request);
  int rank = one ? srcRanks[0] : -1;
  if (code == RDMA_OK && request == 0) rank = context_->rankOf(status.peer);
  begin(recvs_, code, request, rank);
}

/* Begins the receives from some of the ranks for which there is a message. */
void UnboundBuffer::choose(Direction &direction) {
  std::unique_lock<std::mutex> lock(direction.mutex);
  for (size_t i = 0; i < direction.choices.size();) {
    Choice choice = direction.choices[i];
    rdma_msg_status_t found{};
    found.struct_size = sizeof found;
    rdma_code_t code = RDMA_DEADLINE_EXCEEDED;
    int from = -1;
    for (int rank : choice.ranks) {
      code = rdma_msg_probe(context_->mgr(), context_->pair(rank).peer(), kComm, choice.slot, RDMA_MSG_TAG_MASK, true, 0,
                            &found);
      from = rank;
      if (code != RDMA_DEADLINE_EXCEEDED) break;
    }
    if (code == RDMA_DEADLINE_EXCEEDED) {
      i++;
      continue;
    }
    if (code != RDMA_OK) Fail(code, "rank " + std::to_string(from));
    direction.choices.erase(direction.choices.begin() + static_cast<std::ptrdiff_t>(i));
    lock.unlock();
    rdma_msg_options_t options = Patient();
    rdma_msg_request_t request = 0;
    code = rdma_msg_imrecv(context_->mgr(), found.message, choice.to, choice.nbytes, &options, nullptr, &request);
    begin(direction, code, request, from);
    lock.lock();
  }
}

void UnboundBuffer::ended(Direction &direction, rdma_msg_request_t request, const rdma_msg_status_t &status) {
  std::lock_guard<std::mutex> lock(direction.mutex);
  auto same = [&](const Operation &operation) { return operation.request == request; };
  auto at = std::find_if(direction.pending.begin(), direction.pending.end(), same);
  if (at == direction.pending.end()) return;
  int rank = at->rank < 0 ? context_->rankOf(status.peer) : at->rank;
  direction.pending.erase(at);
  if (status.code != RDMA_OK)
    GLOO_THROW_IO_EXCEPTION("rank ", rank, ", slot ", status.tag, ": ", rdma_code_name(status.code), ", ", status.bytes,
                            " bytes");
  direction.done.push_back(rank);
}

/* Waits a little for an operation to end; whether there is something to wait for. */
bool UnboundBuffer::look(Direction &direction, std::chrono::milliseconds limit) {
  std::vector<rdma_msg_request_t> requests;
  bool choices;
  {
    std::lock_guard<std::mutex> lock(direction.mutex);
    choices = !direction.choices.empty();
    for (const Operation &operation : direction.pending) requests.push_back(operation.request);
  }
  if (choices) {
    choose(direction);
    limit = std::min(limit, std::chrono::milliseconds(1));
  }
  if (requests.empty()) {
    rdma_mgr_wait(context_->mgr(), limit.count());
    return false;
  }
  std::vector<rdma_msg_request_t> asked = requests;
  std::vector<size_t> indices(requests.size());
  std::vector<rdma_msg_status_t> statuses(requests.size());
  statuses[0].struct_size = sizeof statuses[0];
  size_t n = 0;
  rdma_code_t code = rdma_msg_wait(context_->mgr(), requests.data(), requests.size(), RDMA_MSG_SOME, limit.count(),
                                   indices.data(), statuses.data(), &n);
  if (code == RDMA_DEADLINE_EXCEEDED) return true;
  if (code != RDMA_OK) Fail(code, "rdma_msg_wait");
  for (size_t i = 0; i < n; i++) ended(direction, asked[indices[i]], statuses[i]);
  return true;
}

/* Throws if a pair is broken for which something waits. */
void UnboundBuffer::check(Direction &direction) {
  std::vector<int> ranks;
  {
    std::lock_guard<std::mutex> lock(direction.mutex);
    for (const Operation &operation : direction.pending)
      if (operation.rank >= 0) ranks.push_back(operation.rank);
  }
  for (int rank : ranks) context_->pair(rank).check();
}

bool UnboundBuffer::broken(Direction &direction) {
  try {
    check(direction);
  } catch (const ::gloo::IoException &) {
    return true;
  }
  return false;
}

bool UnboundBuffer::wait(Direction &direction, const char *what, int *rank, std::chrono::milliseconds timeout) {
  if (timeout == kUnsetTimeout) timeout = context_->getTimeout();
  const Clock::time_point until = Clock::now() + timeout;
  std::lock_guard<std::mutex> waits(direction.waits);
  for (bool first = true;; first = false) {
    {
      std::lock_guard<std::mutex> lock(direction.mutex);
      if (!direction.done.empty()) {
        if (rank) *rank = direction.done.front();
        direction.done.pop_front();
        return true;
      }
    }
    if (direction.abort.exchange(false)) return false;
    if (!first && broken(direction)) {
      /* What came before that is still to be had. */
      look(direction, std::chrono::milliseconds(1));
      std::unique_lock<std::mutex> lock(direction.mutex);
      if (!direction.done.empty()) continue;
      lock.unlock();
      check(direction);
    }
    std::chrono::milliseconds left = kSlice;
    if (timeout != kNoTimeout) {
      auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      if (rest.count() <= 0 && !first) GLOO_THROW_IO_EXCEPTION("Timed out waiting ", timeout.count(), "ms for ", what, " to complete");
      left = std::min(left, std::max(rest, std::chrono::milliseconds(1)));
    }
    look(direction, left);
  }
}

bool UnboundBuffer::waitRecv(int *rank, std::chrono::milliseconds timeout) {
  return wait(recvs_, "recv operation", rank, timeout);
}

bool UnboundBuffer::waitSend(int *rank, std::chrono::milliseconds timeout) {
  return wait(sends_, "send operation", rank, timeout);
}

}  // namespace rdma
}  // namespace transport
}  // namespace gloo
