#include "source.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "context.h"
#include "device.h"
#include "gpudirect.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tf_compat.h"
#include "worker.h"

namespace rdma_tf {
namespace {

using tensorflow::Rendezvous;
using tensorflow::Tensor;

// Strings up to this many bytes are serialised on the thread that found them; waking another costs more.
constexpr size_t kSerialiseInline = 4096;

// What a peer waits for. Copied freely; exactly one of the ends below uses it.
struct Request {
  std::shared_ptr<Context> context;
  rdma_response_t response;
  std::string key;
  bool rdma = false;  // the peer is reached by a device that may read GPU memory
};

// Errors of these two are not reported further: the only ones left are that the peer gave up or is gone.
void Fail(const Request& request, const Status& status) {
  const Context::Use use(*request.context);
  if (!use) return;
  const std::string message = EncodeMessage(status);
  (void)rdma_response_fail(use.mgr(), request.response, static_cast<rdma_code_t>(status.code()), message.data(),
                           message.size());
}

// Sends `nbytes` at `data`, which `owner` keeps alive until the library no longer reads them.
template <typename Owner>
void Send(const Request& request, const Tensor& meta, const void* data, uint64_t nbytes, uint32_t flags,
          std::unique_ptr<Owner> owner, uint32_t device = RDMA_DEVICE_HOST) {
  const Context::Use use(*request.context);
  if (!use) return;
  absl::InlinedVector<int64_t, 8> dims;
  for (int i = 0; i < meta.dims(); ++i) dims.push_back(meta.dim_size(i));
  rdma_tensor_t tensor;
  rdma_tensor_init(&tensor, sizeof tensor);
  tensor.data = data;
  tensor.nbytes = nbytes;
  tensor.dims = dims.data();
  tensor.ndims = static_cast<uint32_t>(dims.size());
  tensor.dtype = static_cast<uint32_t>(meta.dtype());
  tensor.flags = flags;
  tensor.device = device;
  Owner* const kept = owner.release();
  const rdma_code_t code = rdma_response_send(
      use.mgr(), request.response, &tensor,
      [](rdma_code_t, const char*, size_t, const rdma_transfer_info_t*, void* userdata) {
        delete static_cast<Owner*>(userdata);
      },
      kept);
  if (code == RDMA_OK) return;
  owner.reset(kept);
  Fail(request, LastError(code, "grpc+verbs: send"));
}

void SendSerialised(const Request& request, const Tensor& tensor) {
  tensorflow::TensorProto proto;
  tensor.AsProtoTensorContent(&proto);
  const size_t length = proto.ByteSizeLong();
  if (length > std::numeric_limits<int32_t>::max()) {
    Fail(request, Status(absl::StatusCode::kResourceExhausted,
                         absl::StrCat("grpc+verbs: tensor of type ", tensorflow::DataTypeString(tensor.dtype()),
                                      " takes ", length, " bytes serialised; the limit is 2147483647")));
    return;
  }
  auto bytes = std::make_unique<std::string>();
  if (!proto.SerializeToString(bytes.get())) {
    Fail(request, Status(absl::StatusCode::kInternal, "grpc+verbs: tensor cannot be serialised"));
    return;
  }
  const std::string& content = *bytes;
  Send(request, tensor, content.data(), content.size(), RDMA_TENSOR_SERIALIZED, std::move(bytes));
}

bool SerialisesQuickly(const Tensor& tensor) {
  if (tensor.dtype() != tensorflow::DT_STRING || tensor.NumElements() > 64) return false;
  size_t total = 0;
  const auto strings = tensor.flat<tensorflow::tstring>();
  for (int64_t i = 0; i < strings.size(); ++i) total += strings(i).size();
  return total <= kSerialiseInline;
}

void SendHost(const Request& request, const Tensor& tensor) {
  if (tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
    const uint64_t nbytes = tensor.TotalBytes();
    const void* const data = nbytes > 0 ? tensor.data() : nullptr;
    Send(request, tensor, data, nbytes, 0, std::make_unique<Tensor>(tensor));
  } else if (SerialisesQuickly(tensor)) {
    SendSerialised(request, tensor);
  } else {
    request.context->env()->compute_pool->Schedule([request, tensor] { SendSerialised(request, tensor); });
  }
}

// From device memory without a copy. False: it has to go through the host.
bool SendDirect(const Request& request, tensorflow::Device* device, const Tensor& tensor) {
  if (!request.rdma || tensor.NumElements() == 0 || !tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) return false;
  const Context::Use use(*request.context);
  if (!use) return false;
  const uint32_t id = GpuDirect::Get().DeviceOf(use.mgr(), tensor.data(), tensor.TotalBytes());
  if (id == RDMA_DEVICE_HOST) return false;
  // What computes the tensor may still be queued on a stream, and waiting for it blocks.
  request.context->env()->compute_pool->Schedule([request, device, tensor, id] {
    const Status status = device->Sync();
    if (!status.ok()) return Fail(request, status);
    Send(request, tensor, tensor.data(), tensor.TotalBytes(), 0, std::make_unique<Tensor>(tensor), id);
  });
  return true;
}

void OnTensor(const Request& request, tensorflow::Device* device, const Status& status,
              const Rendezvous::Args& send_args, const Tensor& tensor, bool is_dead) {
  if (!status.ok()) return Fail(request, status);
  if (is_dead) {
    return Send(request, Tensor(tensor.dtype()), nullptr, 0, RDMA_TENSOR_DEAD, std::make_unique<Tensor>());
  }
  if (!OnAccelerator(device, send_args.alloc_attrs)) return SendHost(request, tensor);
  if (SendDirect(request, device, tensor)) return;
  CopyToHost(device, send_args.device_context, tensor, request.key,
             [request](const Status& copied, const Tensor& host) {
               if (copied.ok()) {
                 SendHost(request, host);
               } else {
                 Fail(request, copied);
               }
             });
}

// Other providers have device memory copied, which TensorFlow does better, on the operation's stream.
bool ByRdma(rdma_mgr_t* mgr, const char* peer) {
  rdma_peer_info_t info;
  info.struct_size = sizeof info;
  return rdma_mgr_peer_info(mgr, peer, &info) == RDMA_OK && std::strcmp(info.provider, "ibverbs") == 0;
}

}  // namespace

void OnRequest(rdma_mgr_t* mgr, rdma_response_t response, const char* peer, size_t, const char* key, size_t key_length,
               int64_t step, void* userdata) {
  // Null while the context is being destroyed: the manager then ends the request itself.
  auto context = static_cast<Context*>(userdata)->weak_from_this().lock();
  if (context == nullptr) return;
  Request request{std::move(context), response, std::string(key, key_length)};
  request.rdma = GpuDirect::Get().Active() && ByRdma(mgr, peer);
  Rendezvous::ParsedKey parsed;
  Status status = Rendezvous::ParseKey(request.key, &parsed);
  tensorflow::Device* device = nullptr;
  if (status.ok()) status = request.context->worker()->SourceDevice(parsed, &device);
  if (!status.ok()) return Fail(request, status);
  request.context->env()->rendezvous_mgr->RecvLocalAsync(
      step, parsed,
      [request, device](const Status& found, const Rendezvous::Args& send_args, const Rendezvous::Args&,
                        const Tensor& tensor, bool is_dead) {
        OnTensor(request, device, found, send_args, tensor, is_dead);
      });
}

}  // namespace rdma_tf
