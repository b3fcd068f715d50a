#include "pair.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <gloo/common/logging.h>
#include <gloo/transport/unbound_buffer.h>

#include "context.h"

namespace gloo {
namespace transport {
namespace rdma {

/* Milliseconds that a wait for what is under way does not look itself. */
static constexpr int64_t kLook = 10;

std::string Address::str() const {
  std::string hex;
  char two[3];
  for (unsigned char byte : bytes_) {
    std::snprintf(two, sizeof two, "%02x", byte);
    hex += two;
  }
  return hex;
}

End::End(std::shared_ptr<Worker> worker, uint64_t rank, int64_t timeout) : worker(std::move(worker)) {
  Check(rdma_pair_create(mgr(), rank, timeout, &pair), "rdma_pair_create");
}

/* Once it is closed it is not there. */
void End::close() { rdma_pair_close(mgr(), pair); }

void End::timedOut() {
  timed_out_ = true;
  close();
}

void End::check() const {
  if (timed_out_) FailTimedOut();
}

bool End::sweep() {
  std::lock_guard<std::mutex> lock(mutex_);
  leaving_.remove_if([](const std::unique_ptr<Aside> &aside) { return aside->over(); });
  return leaving_.empty();
}

void End::leave(std::unique_ptr<Aside> aside) {
  sweep();
  if (aside->over()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  leaving_.push_back(std::move(aside));
}

void End::linger(std::chrono::milliseconds timeout) {
  drive(timeout, [this] { return sweep(); });
}

void End::drive(std::chrono::milliseconds timeout, const std::function<bool()> &over) const {
  if (timeout == kNoTimeout) timeout = std::chrono::seconds(30);
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!over() && !std::uncaught_exception() && std::chrono::steady_clock::now() < until)
    if (rdma_mgr_wait(mgr(), kLook) == RDMA_FAILED_PRECONDITION) return;
}

Pair::Pair(Context *context, std::shared_ptr<Worker> worker, int rank, std::chrono::milliseconds timeout)
    : context_(context),
      rank_(rank),
      timeout_(timeout),
      end_(std::make_shared<End>(std::move(worker), static_cast<uint64_t>(rank), Millis(timeout))) {
  std::vector<char> bytes(RDMA_PAIR_ADDRESS_MAX);
  size_t len = 0;
  Check(rdma_pair_address(end_->mgr(), end_->pair, reinterpret_cast<uint8_t *>(bytes.data()), bytes.size(), &len),
        "rdma_pair_address");
  if (len > Address::kMaxByteSize)
    GLOO_THROW_IO_EXCEPTION("the address of a pair has ", len, " bytes, Gloo allows ", size_t{Address::kMaxByteSize},
                            ": listen on one address");
  bytes.resize(len);
  address_.reset(new Address(std::move(bytes)));
}

Pair::~Pair() {
  if (!closed_) end_->linger(timeout_);
  close();
}

void Pair::connect(const std::vector<char> &bytes) {
  Check(rdma_pair_connect(end_->mgr(), end_->pair, reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size(), 0),
        "rdma_pair_connect");
  rdma_pair_info_t info{};
  info.struct_size = sizeof info;
  Check(rdma_pair_info(end_->mgr(), end_->pair, &info), "rdma_pair_info");
  peer_ = info.peer;
  context_->connected(rank_, info.peer);
}

bool Pair::isConnected() {
  rdma_pair_info_t info{};
  info.struct_size = sizeof info;
  return !closed_ && rdma_pair_info(end_->mgr(), end_->pair, &info) == RDMA_OK && info.state == RDMA_PAIR_CONNECTED;
}

void Pair::close() {
  closed_ = true;
  end_->close();
}

std::unique_ptr<::gloo::transport::Buffer> Pair::createSendBuffer(int slot, void *ptr, size_t size) {
  rdma_buffer_t buffer = 0;
  end_->check();
  Check(rdma_buffer_create_send(end_->mgr(), end_->pair, static_cast<uint64_t>(slot), ptr, size, nullptr, nullptr, &buffer),
        "rdma_buffer_create_send");
  return std::unique_ptr<::gloo::transport::Buffer>(
      new Buffer(end_, buffer, rank_, timeout_, slot, ptr, size, true));
}

std::unique_ptr<::gloo::transport::Buffer> Pair::createRecvBuffer(int slot, void *ptr, size_t size) {
  rdma_buffer_t buffer = 0;
  end_->check();
  Check(rdma_buffer_create_recv(end_->mgr(), end_->pair, static_cast<uint64_t>(slot), ptr, size, nullptr, nullptr, &buffer),
        "rdma_buffer_create_recv");
  return std::unique_ptr<::gloo::transport::Buffer>(
      new Buffer(end_, buffer, rank_, timeout_, slot, ptr, size, false));
}

void Pair::send(UnboundBuffer *buf, uint64_t tag, size_t offset, size_t nbytes) { buf->send(rank_, tag, offset, nbytes); }
void Pair::recv(UnboundBuffer *buf, uint64_t tag, size_t offset, size_t nbytes) { buf->recv(rank_, tag, offset, nbytes); }

rdma_peer_t Pair::peer() const {
  end_->check();
  rdma_peer_t peer = peer_;
  if (!peer) GLOO_THROW_INVALID_OPERATION_EXCEPTION("the pair with rank ", rank_, " is not connected");
  return peer;
}

void Pair::check() const {
  rdma_pair_info_t info{};
  info.struct_size = sizeof info;
  end_->check();
  if (closed_) GLOO_THROW_IO_EXCEPTION("the pair with rank ", rank_, " is closed");
  Check(rdma_pair_info(end_->mgr(), end_->pair, &info), "rdma_pair_info");
  if (info.state == RDMA_PAIR_BROKEN) Fail(info.code, "the pair with rank " + std::to_string(rank_));
}

Buffer::Buffer(std::shared_ptr<End> end, rdma_buffer_t buffer, int rank, std::chrono::milliseconds timeout, int slot, void *ptr, size_t size,
               bool sends)
    : ::gloo::transport::Buffer(slot, ptr, size),
      end_(std::move(end)),
      buffer_(buffer),
      rank_(rank),
      timeout_(timeout),
      aside_(new Aside(end_->mgr(), end_->pair, slot, sends ? size : 0)) {}

bool Buffer::over() const {
  uint64_t sent = 0;
  return plain_ == 0 || rdma_buffer_test(end_->mgr(), buffer_, &sent, nullptr) != RDMA_OK || sent >= plain_;
}

/* Not there any more if its pair was closed. */
Buffer::~Buffer() {
  end_->drive(timeout_, [this] { return over(); });
  rdma_buffer_destroy(end_->mgr(), buffer_);
  end_->leave(std::move(aside_));
}

void Buffer::fail(rdma_code_t code, const char *what) {
  const std::string text = std::string(what) + " of slot " + std::to_string(slot_) + ", rank " + std::to_string(rank_);
  plain_ = 0;
  end_->check();
  if (code != RDMA_DEADLINE_EXCEEDED) Fail(code, text);
  const std::string why = LastError();
  end_->timedOut();
  GLOO_THROW_IO_EXCEPTION("Timed out: ", text, ": ", why);
}

void Buffer::send(size_t offset, size_t length, size_t roffset) {
  rdma_code_t code;
  if (aside_->takes(length) && offset <= size_ && length <= size_ - offset) {
    std::lock_guard<std::mutex> lock(mutex_);
    code = aside_->send(static_cast<const char *>(ptr_) + offset, length, roffset, Millis(timeout_));
  } else {
    code = rdma_buffer_send(end_->mgr(), buffer_, offset, length, roffset);
    if (code == RDMA_OK) plain_++;
    if (code == RDMA_OK && length > 0) end_->worker->sending(end_->pair);
  }
  if (code == RDMA_OUT_OF_RANGE) GLOO_ENFORCE(false, LastError());
  if (code != RDMA_OK) fail(code, "send");
}

void Buffer::waitRecv() {
  rdma_code_t code = rdma_buffer_wait_recv(end_->mgr(), buffer_, Millis(timeout_));
  if (code != RDMA_OK) fail(code, "waitRecv");
  try {
    end_->worker->settle(timeout_);
  } catch (const ::gloo::IoException &) {
    end_->timedOut();
    throw;
  }
}

void Buffer::waitSend() {
  std::unique_lock<std::mutex> lock(mutex_);
  rdma_code_t code;
  if (aside_->waits()) {
    code = aside_->waitSend(Millis(timeout_));
  } else {
    lock.unlock();
    code = rdma_buffer_wait_send(end_->mgr(), buffer_, Millis(timeout_));
    if (code == RDMA_OK) plain_--;
  }
  if (code != RDMA_OK) fail(code, "waitSend");
}

}  // namespace rdma
}  // namespace transport
}  // namespace gloo
