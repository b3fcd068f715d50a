#ifndef RDMA_GLOO_PAIR_H
#define RDMA_GLOO_PAIR_H

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gloo/transport/address.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>

#include "aside.h"
#include "worker.h"

namespace gloo {
namespace transport {
namespace rdma {

class Context;

/* The address of one end of a pair, as rdma_pair_address gives it. */
class Address : public ::gloo::transport::Address {
 public:
  explicit Address(std::vector<char> bytes) : bytes_(std::move(bytes)) {}
  std::string str() const override;
  std::vector<char> bytes() const override { return bytes_; }

 private:
  const std::vector<char> bytes_;
};

/* One end of a pair, which its buffers share. After a time-out it is closed, as Gloo's tcp does it: what is late would be taken for what is
 * asked for next. */
class End {
 public:
  End(std::shared_ptr<Worker> worker, uint64_t rank, int64_t timeout);
  rdma_mgr_t *mgr() const { return worker->mgr(); }
  void close();
  void timedOut();
  /* Throws if it has timed out. */
  void check() const;
  /* Keeps what is under way of a buffer that goes: over tcp it lies in the socket by then. */
  void leave(std::unique_ptr<Aside> aside);
  /* Waits until it has ended, or until this is closed. */
  void linger(std::chrono::milliseconds timeout);
  /* Drives progress until `over`; not for ever, since destructors ask for it, and not at all where an exception ends them. */
  void drive(std::chrono::milliseconds timeout, const std::function<bool()> &over) const;

  const std::shared_ptr<Worker> worker;
  rdma_pair_t pair = 0;

 private:
  /* Lets go of what has ended; whether that is all. */
  bool sweep();
  std::atomic<bool> timed_out_{false};
  std::mutex mutex_;
  std::list<std::unique_ptr<Aside>> leaving_; /* gone before its manager, which `worker` has */
};

class Pair : public ::gloo::transport::Pair {
 public:
  Pair(Context *context, std::shared_ptr<Worker> worker, int rank, std::chrono::milliseconds timeout);
  ~Pair() override;
  const ::gloo::transport::Address &address() const override { return *address_; }
  /* Begins to connect: what is sent meanwhile waits, and what fails is told by the waits. */
  void connect(const std::vector<char> &bytes) override;
  void close() override;
  /* Waits drive progress by themselves, and spin before they sleep: there is nothing to be set. */
  void setSync(bool, bool) override {}
  /* Later Gloo asks for it; Debian's has no such function to override. */
  bool isConnected();
  std::unique_ptr<::gloo::transport::Buffer> createSendBuffer(int slot, void *ptr, size_t size) override;
  std::unique_ptr<::gloo::transport::Buffer> createRecvBuffer(int slot, void *ptr, size_t size) override;
  void send(UnboundBuffer *buf, uint64_t tag, size_t offset, size_t nbytes) override;
  void recv(UnboundBuffer *buf, uint64_t tag, size_t offset, size_t nbytes) override;

  /* The other end's manager. */
  rdma_peer_t peer() const;
  /* Throws why the pair is broken, if it is. */
  void check() const;
  void timedOut() { end_->timedOut(); }

 private:
  Context *const context_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<End> end_;
  std::unique_ptr<Address> address_;
  std::atomic<rdma_peer_t> peer_{0};
  std::atomic<bool> closed_{false};
};

class Buffer : public ::gloo::transport::Buffer {
 public:
  Buffer(std::shared_ptr<End> end, rdma_buffer_t buffer, int rank, std::chrono::milliseconds timeout, int slot, void *ptr, size_t size,
         bool sends);
  /* Its memory is the caller's then. What it has sent still arrives. */
  ~Buffer() override;
  void send(size_t offset, size_t length, size_t roffset) override;
  void waitRecv() override;
  void waitSend() override;

 private:
  /* Whether its sends have ended, but those that are copied aside. */
  bool over() const;
  [[noreturn]] void fail(rdma_code_t code, const char *what);
  const std::shared_ptr<End> end_;
  const rdma_buffer_t buffer_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_; /* of aside_ */
  std::unique_ptr<Aside> aside_;
  std::atomic<uint64_t> plain_{0}; /* sends from the memory itself that nobody has waited for */
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
