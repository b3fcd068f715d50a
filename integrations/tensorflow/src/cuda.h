// The few functions of the CUDA driver that GPUDirect needs, looked up at run time: the plugin loads without CUDA.
#ifndef RDMA_TF_CUDA_H_
#define RDMA_TF_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace rdma_tf {

class Cuda {
 public:
  // Null where the driver is missing or too old. Does not start the driver: a process may import the plugin and fork,
  // or set CUDA_VISIBLE_DEVICES afterwards. The first call below does.
  static const Cuda* Get();

  // A descriptor of this device memory as a dmabuf; below 0, minus CUDA's error, if it cannot be exported.
  int ExportDmabuf(const void* device, size_t length) const;
  // Block until done; true if it worked.
  bool CopyToHost(void* host, const void* device, size_t length) const;
  bool CopyFromHost(void* device, const void* host, size_t length) const;

 private:
  bool Load();
  // Makes the context of this memory current on the calling thread: 0, or CUDA's error.
  int Enter(const void* device) const;

  mutable std::once_flag once_;
  mutable int started_ = 0;  // what cuInit said

  int (*init_)(unsigned) = nullptr;
  int (*pointer_get_attribute_)(void*, int, uint64_t) = nullptr;
  int (*set_current_)(void*) = nullptr;
  int (*copy_to_host_)(void*, uint64_t, size_t) = nullptr;
  int (*copy_from_host_)(uint64_t, const void*, size_t) = nullptr;
  int (*get_handle_)(void*, uint64_t, size_t, int, unsigned long long) = nullptr;
};

}  // namespace rdma_tf

#endif  // RDMA_TF_CUDA_H_
