// Tensors in GPU memory that the RDMA device reads by itself, where provider and driver can do that (GPUDirect).
#ifndef RDMA_TF_GPUDIRECT_H_
#define RDMA_TF_GPUDIRECT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "rdma_transport.h"
#include "tf_compat.h"

namespace rdma_tf {

// Only senders use it: memory that TensorFlow's allocator hands out may still be read by work queued on a stream, so a
// receiver takes the content in pinned host memory and lets TensorFlow copy it in order.
class GpuDirect {
 public:
  static GpuDirect& Get();

  // Asks TensorFlow to tell us about its GPU pools. Does nothing in builds without GPUs, with GPU allocators made
  // already, without CUDA, and with RDMA_TF_GPUDIRECT=0.
  void InstallVisitors();

  // Offers every known pool to `mgr`, and later ones as they come.
  void Attach(rdma_mgr_t* mgr, tensorflow::thread::ThreadPool* threads);
  // After the end of the manager.
  void Detach(rdma_mgr_t* mgr);

  // Whether any of this can be of use: cheap.
  bool Active() const { return active_.load(std::memory_order_relaxed); }
  // The device id under which the RDMA device of `mgr` reads this memory; RDMA_DEVICE_HOST if it does not, or if copying
  // so few bytes costs less than waiting for the GPU.
  uint32_t DeviceOf(rdma_mgr_t* mgr, const void* address, size_t length);

 private:
  struct Pool {
    size_t length = 0;
    bool refused = false;  // the library had it copied
  };
  struct Manager {
    rdma_mgr_t* mgr = nullptr;
    uint32_t device = RDMA_DEVICE_HOST;
    tensorflow::thread::ThreadPool* threads = nullptr;
    bool exported = false;                 // by the registration that is going on
    std::map<const char*, Pool> direct;    // pools that were exported
  };

  static void CopyToHost(void* host, const void* device, uint64_t length, rdma_copy_done_fn done, void* token,
                         void* userdata);
  static void CopyFromHost(void* device, const void* host, uint64_t length, rdma_copy_done_fn done, void* token,
                           void* userdata);
  static rdma_code_t Export(const void* device, uint64_t length, int* fd, uint64_t* offset, void* userdata);
  static void Offer(Manager* manager, const char* address, size_t length);
  void Add(const char* address, size_t length);
  // The library has `length` bytes at `address` copied, which it does not where the RDMA device reads them.
  void Copied(rdma_mgr_t* mgr, const char* address, uint64_t length);
  static std::map<const char*, Pool>::iterator PoolOf(Manager* manager, const char* address);

  std::atomic<bool> active_{false};
  std::mutex mu_;
  bool installed_ = false;                          // guarded by mu_
  std::map<const char*, size_t> pools_;             // guarded by mu_
  std::vector<std::unique_ptr<Manager>> managers_;  // guarded by mu_
};

}  // namespace rdma_tf

#endif  // RDMA_TF_GPUDIRECT_H_
