// Tensors on accelerators: they pass through pinned host memory.
//
// Chosen per tensor at run time; a CPU-only TensorFlow never takes this path.
#ifndef RDMA_TF_DEVICE_H_
#define RDMA_TF_DEVICE_H_

#include <functional>
#include <string>

#include "status.h"
#include "tf_compat.h"

namespace rdma_tf {

// True if memory with these attributes lies on an accelerator.
inline bool OnAccelerator(tensorflow::Device* device, const tensorflow::AllocatorAttributes& attributes) {
  return device->tensorflow_accelerator_device_info() != nullptr && !attributes.on_host();
}

// The allocator of pinned host memory that `device` copies from and to without staging.
tensorflow::Allocator* HostAllocator(tensorflow::Device* device);

// Copies a device tensor to pinned host memory; `done` runs later, on a thread of the device.
void CopyToHost(tensorflow::Device* device, tensorflow::DeviceContext* context, const tensorflow::Tensor& tensor,
                const std::string& name, std::function<void(const Status&, const tensorflow::Tensor&)> done);

// Copies a host tensor to new memory of the device with these attributes.
void CopyToDevice(tensorflow::Device* device, tensorflow::DeviceContext* context,
                  const tensorflow::AllocatorAttributes& attributes, const tensorflow::Tensor& host,
                  std::function<void(const Status&, const tensorflow::Tensor&)> done);

}  // namespace rdma_tf

#endif  // RDMA_TF_DEVICE_H_
