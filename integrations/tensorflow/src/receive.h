// One tensor on its way here.
#ifndef RDMA_TF_RECEIVE_H_
#define RDMA_TF_RECEIVE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "context.h"
#include "tf_compat.h"

namespace rdma_tf {

// Life: Start → the peer's address → the transfer → perhaps a copy or parsing → `finished`, once. An abort at any
// point, also before Start, makes it end early, with the abort's status.
class Receive : public tensorflow::BaseRecvTensorCall, public std::enable_shared_from_this<Receive> {
 public:
  struct What {
    std::string worker;        // TensorFlow's name of the sending worker
    std::string key;           // rendezvous key
    uint64_t incarnation = 0;  // of the sending device
    int64_t step = 0;
    tensorflow::Device* device = nullptr;  // where the result goes
    tensorflow::Rendezvous::Args args;
  };

  Receive(std::shared_ptr<Context> context, What what) : context_(std::move(context)), what_(std::move(what)) {}

  // Runs `finished` once, maybe before returning.
  void Start(Peers::Cache cache, std::function<void()> finished);
  // Not used: BaseRecvTensorCall's own way to start.
  void Start(std::function<void()>) override {}

  // Called by TensorFlow with locks held: never runs `finished` itself.
  void StartAbort(const Status& status) override;
  // OK, or why it failed so far.
  Status status() const override;

  // After `finished`.
  const What& what() const { return what_; }
  const tensorflow::Tensor& tensor() const { return tensor_; }
  bool is_dead() const { return is_dead_; }

 private:
  void Request(const PeerRef& peer);
  static void* Allocate(const rdma_tensor_t* meta, void* userdata);
  static void OnDone(rdma_code_t code, const char* message, size_t length, const rdma_tensor_t* meta,
                     const rdma_transfer_info_t* info, void* userdata);
  void Arrived(const rdma_tensor_t& meta);
  void Parse(uint64_t nbytes);
  Status MakeResult(const rdma_tensor_t& meta);
  tensorflow::Allocator* ResultAllocator() const;
  // What the library's word about a failure, or about a call that it refused, means to TensorFlow.
  Status Failed(rdma_code_t code, absl::string_view text) const;
  // Ends it: the first caller wins, later ones are ignored.
  void Finish(const Status& status);

  const std::shared_ptr<Context> context_;
  const What what_;
  PeerRef peer_;

  // Written by the library's callbacks and the steps after them, one at a time.
  tensorflow::Tensor tensor_;
  bool is_dead_ = false;
  std::unique_ptr<char[]> serialised_;
  std::shared_ptr<Receive> self_;  // while the library holds a pointer to this

  mutable std::mutex mu_;
  Status status_;                   // guarded by mu_
  std::function<void()> finished_;  // guarded by mu_; empty once run
  uint64_t waiter_ = 0;             // guarded by mu_; not 0: peers() may still hold this, under that number
  rdma_request_t request_ = 0;      // guarded by mu_; 0 once released
  bool requested_ = false;          // guarded by mu_: the library has it, `finished` waits for the library
  bool returned_ = false;           // guarded by mu_: the library has given it back
};

}  // namespace rdma_tf

#endif  // RDMA_TF_RECEIVE_H_
