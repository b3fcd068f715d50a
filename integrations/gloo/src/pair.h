#ifndef RDMA_GLOO_PAIR_H
#define RDMA_GLOO_PAIR_H

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gloo/transport/address.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>

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

  const std::shared_ptr<Worker> worker;
  rdma_pair_t pair = 0;

 private:
  std::atomic<bool> timed_out_{false};
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

/* A short content is copied aside and sent from there: its memory is free when send returns, as Gloo's older algorithms expect, and nobody
 * has to wait for that. */
class Aside {
 public:
  Aside(std::shared_ptr<End> end, int slot, size_t size);
  ~Aside();
  Aside(const Aside &) = delete;
  Aside &operator=(const Aside &) = delete;
  bool takes(size_t length) const { return length > 0 && length <= cell_; }
  rdma_code_t send(const char *data, size_t length, size_t roffset, int64_t timeout);
  /* Whether there are sends that nobody has waited for; waits for one of them. */
  bool waits() const { return told_ < begun_; }
  rdma_code_t waitSend(int64_t timeout);

 private:
  rdma_code_t open();
  /* Takes the end of the next send, and counts it, whatever its code. The library's wait has one code for its own time-out and for that of
   * a send: so it is asked when there is one. */
  rdma_code_t end(int64_t timeout);
  const std::shared_ptr<End> end_;
  const int slot_;
  const size_t cell_;
  rdma_buffer_t buffer_ = 0;
  std::vector<char> cells_;
  size_t begun_ = 0, ended_ = 0, told_ = 0; /* sends: of `ended_` the library was asked, of `told_` the owner has heard */
};

class Buffer : public ::gloo::transport::Buffer {
 public:
  Buffer(std::shared_ptr<End> end, rdma_buffer_t buffer, int rank, std::chrono::milliseconds timeout, int slot, void *ptr, size_t size,
         bool sends);
  ~Buffer() override;
  void send(size_t offset, size_t length, size_t roffset) override;
  void waitRecv() override;
  void waitSend() override;

 private:
  [[noreturn]] void fail(rdma_code_t code, const char *what);
  const std::shared_ptr<End> end_;
  const rdma_buffer_t buffer_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_; /* of aside_ */
  Aside aside_;
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
