#include "device.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/device_base.h"

namespace rdma_tf {
namespace {

// The stream to copy on: the one that the operation gave, else the device's own.
tensorflow::DeviceContext* ContextOf(tensorflow::Device* device, tensorflow::DeviceContext* given) {
  return given != nullptr ? given : device->tensorflow_accelerator_device_info()->default_context;
}

Status NoContext(tensorflow::Device* device) {
  return Status(absl::StatusCode::kInternal, absl::StrCat("grpc+verbs: no device context for ", device->name()));
}

}  // namespace

tensorflow::Allocator* HostAllocator(tensorflow::Device* device) {
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  attributes.set_gpu_compatible(true);
  return device->GetAllocator(attributes);
}

void CopyToHost(tensorflow::Device* device, tensorflow::DeviceContext* given, const tensorflow::Tensor& tensor,
                const std::string& name, std::function<void(const Status&, const tensorflow::Tensor&)> done) {
  tensorflow::DeviceContext* const context = ContextOf(device, given);
  if (context == nullptr) return done(NoContext(device), tensorflow::Tensor());
  tensorflow::Allocator* const allocator = HostAllocator(device);
  // The copy reads `source` and writes `host` until it is done.
  auto source = std::make_shared<tensorflow::Tensor>(tensor);
  auto host = std::make_shared<tensorflow::Tensor>(allocator, tensor.dtype(), tensor.shape());
  context->Ref();
  tensorflow::CopyDeviceToHost(source.get(), allocator, allocator, name, device, host.get(), context,
                               [source, host, context, done = std::move(done)](const Status& status) {
                                 context->Unref();
                                 done(status, *host);
                               });
}

void CopyToDevice(tensorflow::Device* device, tensorflow::DeviceContext* given,
                  const tensorflow::AllocatorAttributes& attributes, const tensorflow::Tensor& tensor,
                  std::function<void(const Status&, const tensorflow::Tensor&)> done) {
  tensorflow::DeviceContext* const context = ContextOf(device, given);
  if (context == nullptr) return done(NoContext(device), tensorflow::Tensor());
  auto host = std::make_shared<tensorflow::Tensor>(tensor);
  auto result =
      std::make_shared<tensorflow::Tensor>(device->GetAllocator(attributes), tensor.dtype(), tensor.shape());
  if (tensor.NumElements() > 0 && !result->IsInitialized()) {
    return done(Status(absl::StatusCode::kResourceExhausted,
                       absl::StrCat("grpc+verbs: no memory for ", tensor.TotalBytes(), " bytes on ", device->name())),
                tensorflow::Tensor());
  }
  context->Ref();
  context->CopyCPUTensorToDevice(host.get(), device, result.get(),
                                 [host, result, context, done = std::move(done)](const Status& status) {
                                   context->Unref();
                                   done(status, *result);
                                 });
}

}  // namespace rdma_tf
