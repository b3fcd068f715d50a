#include "receive.h"

#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device.h"
#include "tensorflow/core/platform/threadpool.h"

namespace rdma_tf {
namespace {

using tensorflow::Tensor;

// What to look at when a peer refuses this server's secret, or has none.
constexpr char kSecretHint[] =
    "RDMA_AUTH_SECRET_FILE must name a file with the same content for every server of the cluster, or be unset for all";
// Serialised tensors up to this size are parsed on the progress thread; waking another costs more.
constexpr uint64_t kParseInline = 4096;

// What the peer says about a tensor, checked. A peer is another process: believe nothing.
Status CheckMeta(const rdma_tensor_t& meta, tensorflow::DataType* dtype, tensorflow::TensorShape* shape) {
  *dtype = static_cast<tensorflow::DataType>(meta.dtype);
  if (meta.dtype > static_cast<uint32_t>(tensorflow::DataType_MAX) || !tensorflow::DataType_IsValid(*dtype) ||
      !tensorflow::DataTypeCanUseMemcpy(*dtype)) {
    return Status(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("grpc+verbs: the peer sent memory of type ", meta.dtype));
  }
  const Status status = tensorflow::TensorShape::BuildTensorShape(
      absl::Span<const int64_t>(meta.dims, meta.ndims), shape);
  if (!status.ok()) return status;
  const int64_t size = tensorflow::DataTypeSize(*dtype);
  // BuildTensorShape holds the number of elements below 2^63; this holds the bytes there too.
  if (size <= 0 || shape->num_elements() > std::numeric_limits<int64_t>::max() / size ||
      static_cast<uint64_t>(shape->num_elements() * size) != meta.nbytes) {
    return Status(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("grpc+verbs: the peer sent ", meta.nbytes, " bytes for ", shape->DebugString(), " of ",
                               tensorflow::DataTypeString(*dtype)));
  }
  return Status();
}

}  // namespace

void Receive::Start(Peers::Cache cache, std::function<void()> finished) {
  auto self = shared_from_this();
  bool aborted = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    finished_ = std::move(finished);
    aborted = !status_.ok();
  }
  // An abort before this found nothing to end, and may have been the last word: nobody need ever answer Resolve.
  if (aborted) return Finish(Status());
  const uint64_t waiter = context_->peers().Resolve(context_, what_.worker, what_.incarnation, std::move(cache),
                                                    [self](const Status& status, const PeerRef& peer) {
                                                      if (status.ok()) {
                                                        self->Request(peer);
                                                      } else {
                                                        self->Finish(status);
                                                      }
                                                    });
  {
    const std::lock_guard<std::mutex> lock(mu_);
    waiter_ = waiter;
    aborted = !status_.ok();
  }
  if (aborted) context_->peers().Forget(what_.worker, waiter);
}

void Receive::Request(const PeerRef& peer) {
  bool aborted = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    aborted = !status_.ok();
    requested_ = !aborted;
  }
  if (aborted) return;  // StartAbort has it ended on another thread
  peer_ = peer;
  self_ = shared_from_this();
  rdma_request_t request = 0;
  rdma_code_t code = RDMA_UNAVAILABLE;
  Status refused = MakeStatus(code, "server stopped", "grpc+verbs");
  const Context::Use use(*context_);
  if (use) {
    rdma_recv_options_t options;
    rdma_recv_options_init(&options, sizeof options);
    options.alloc = &Receive::Allocate;
    options.alloc_userdata = this;
    // Keeps this alive past OnDone, which may run before the call returns.
    const auto self = self_;
    code = rdma_recv_async(use.mgr(), peer.name.c_str(), what_.key.data(), what_.key.size(), what_.step, &options,
                           &Receive::OnDone, this, &request);
    if (code == RDMA_OK) {
      bool release = false;
      bool cancel = false;
      {
        const std::lock_guard<std::mutex> lock(mu_);
        release = returned_;
        cancel = !returned_ && !status_.ok();
        if (!release) request_ = request;
      }
      if (release) (void)rdma_request_release(use.mgr(), request);
      if (cancel) (void)rdma_request_cancel(use.mgr(), request);
      return;
    }
    char text[1024];
    rdma_last_error(text, sizeof text);
    refused = Failed(code, text);
  }
  const auto self = std::move(self_);
  if (code == RDMA_UNAVAILABLE) context_->peers().Invalidate(what_.worker, peer.generation);
  Finish(refused);
}

Status Receive::Failed(rdma_code_t code, absl::string_view text) const {
  // A deadline that the user did not set is none: the peer could not be reached in time, which TensorFlow tries again.
  if (code == RDMA_DEADLINE_EXCEEDED && context_->patience().deadline_ms == 0) code = RDMA_UNAVAILABLE;
  Status status = MakeStatus(code, text, absl::StrCat("grpc+verbs: receive from ", what_.worker));
  if (code == RDMA_UNAUTHENTICATED) {
    status = Status(status.code(), absl::StrCat(status.message(), "; ", kSecretHint));
  }
  return FromPeer(status, what_.worker);
}

void Receive::StartAbort(const Status& status) {
  rdma_request_t request = 0;
  uint64_t waiter = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (status_.ok()) status_ = status;
    if (requested_) {
      request = request_;  // 0: Request sees status_ when it gets the number, or the end is near anyway
    } else if (finished_ != nullptr) {
      // Nothing holds memory yet. The caller holds locks that `finished` takes: end on another thread.
      auto self = shared_from_this();
      context_->env()->compute_pool->Schedule([self] { self->Finish(Status()); });
      waiter = waiter_;
    }
  }
  if (waiter != 0) context_->peers().Forget(what_.worker, waiter);
  if (request == 0) return;
  const Context::Use use(*context_);
  if (use) (void)rdma_request_cancel(use.mgr(), request);
}

Status Receive::status() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return status_;
}

tensorflow::Allocator* Receive::ResultAllocator() const {
  const auto& attributes = what_.args.alloc_attrs;
  return OnAccelerator(what_.device, attributes) ? HostAllocator(what_.device)
                                                 : what_.device->GetAllocator(attributes);
}

Status Receive::MakeResult(const rdma_tensor_t& meta) {
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  const Status status = CheckMeta(meta, &dtype, &shape);
  if (!status.ok()) return status;
  // Fail rather than wait for memory: this is the progress thread.
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = false;
  tensor_ = Tensor(ResultAllocator(), dtype, shape, attributes);
  if (meta.nbytes > 0 && !tensor_.IsInitialized()) {
    return Status(absl::StatusCode::kResourceExhausted,
                  absl::StrCat("grpc+verbs: no memory for ", meta.nbytes, " bytes on ", what_.device->name()));
  }
  return Status();
}

void* Receive::Allocate(const rdma_tensor_t* meta, void* userdata) {
  auto* const self = static_cast<Receive*>(userdata);
  if ((meta->flags & RDMA_TENSOR_SERIALIZED) != 0) {
    if (meta->nbytes > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) return nullptr;
    self->serialised_.reset(new (std::nothrow) char[meta->nbytes]);
    return self->serialised_.get();
  }
  const Status status = self->MakeResult(*meta);
  if (!status.ok()) {
    LOG(WARNING) << status.message() << " (" << self->what_.key << ")";
    return nullptr;
  }
  return self->tensor_.data();
}

void Receive::OnDone(rdma_code_t code, const char* message, size_t length, const rdma_tensor_t* meta,
                     const rdma_transfer_info_t*, void* userdata) {
  const auto self = std::move(static_cast<Receive*>(userdata)->self_);
  rdma_request_t request = 0;
  {
    const std::lock_guard<std::mutex> lock(self->mu_);
    self->returned_ = true;
    request = std::exchange(self->request_, 0);
  }
  if (request != 0) {
    const Context::Use use(*self->context_);
    if (use) (void)rdma_request_release(use.mgr(), request);
  }
  if (code == RDMA_OK) {
    self->Arrived(*meta);
    return;
  }
  const absl::string_view text(message, length);
  const bool remote = IsEncoded(text);
  // A sender's own status keeps its text; the library's says where it happened.
  const Status status =
      remote ? FromPeer(DecodeMessage(code, text), self->what_.worker) : self->Failed(code, text);
  if (status.code() == absl::StatusCode::kUnavailable && !remote) {
    self->context_->peers().Invalidate(self->what_.worker, self->peer_.generation);
  }
  self->Finish(status);
}

void Receive::Arrived(const rdma_tensor_t& meta) {
  is_dead_ = (meta.flags & RDMA_TENSOR_DEAD) != 0;
  if (is_dead_) {
    tensor_ = Tensor();
    return Finish(Status());
  }
  if ((meta.flags & RDMA_TENSOR_SERIALIZED) != 0) {
    if (meta.nbytes <= kParseInline && !OnAccelerator(what_.device, what_.args.alloc_attrs)) return Parse(meta.nbytes);
    auto self = shared_from_this();
    const uint64_t nbytes = meta.nbytes;
    context_->env()->compute_pool->Schedule([self, nbytes] { self->Parse(nbytes); });
    return;
  }
  if (meta.nbytes == 0) {
    const Status status = MakeResult(meta);  // no memory was asked for
    if (!status.ok()) return Finish(status);
  }
  if (!OnAccelerator(what_.device, what_.args.alloc_attrs)) return Finish(Status());
  auto self = shared_from_this();
  CopyToDevice(what_.device, what_.args.device_context, what_.args.alloc_attrs, tensor_,
               [self](const Status& status, const Tensor& result) {
                 self->tensor_ = result;
                 self->Finish(status);
               });
}

void Receive::Parse(uint64_t nbytes) {
  tensorflow::TensorProto proto;
  Status status;
  if (nbytes > 0 && !proto.ParseFromArray(serialised_.get(), static_cast<int>(nbytes))) {
    status = Status(absl::StatusCode::kInvalidArgument, "grpc+verbs: the peer sent a malformed tensor");
  } else {
    serialised_.reset();
    status = what_.device->MakeTensorFromProto(proto, what_.args.alloc_attrs, &tensor_);
  }
  Finish(status);
}

void Receive::Finish(const Status& status) {
  std::function<void()> finished;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (status_.ok()) status_ = status;
    finished.swap(finished_);
    if (!status_.ok()) tensor_ = Tensor();
  }
  if (finished != nullptr) finished();
}

}  // namespace rdma_tf
