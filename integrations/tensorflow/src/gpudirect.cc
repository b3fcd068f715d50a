#include "gpudirect.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "cuda.h"
#include "status.h"
#include "tensorflow/core/platform/numa.h"
#include "tensorflow/core/platform/threadpool.h"

namespace rdma_tf {
namespace {

// The largest page of the systems that CUDA runs on.
constexpr size_t kPage = 64 << 10;
// Shorter tensors are sent through the host: the copy is cheap, and up to the eager limit the library would copy anyway.
constexpr size_t kLeast = 128 << 10;

// Visitors are only taken before the first GPU allocator exists; later TensorFlow aborts the process.
struct GpuTable : tensorflow::GPUProcessState {
  static bool Empty(tensorflow::GPUProcessState* state) {
    auto& mu = state->*(&GpuTable::mu_);
    mu.lock();
    const bool empty = (state->*(&GpuTable::gpu_allocators_)).empty();
    mu.unlock();
    return empty;
  }
};

}  // namespace

GpuDirect& GpuDirect::Get() {
  static GpuDirect* const instance = new GpuDirect;  // never destroyed: allocators outlive this library's statics
  return *instance;
}

void GpuDirect::InstallVisitors() {
  const char* const wanted = std::getenv("RDMA_TF_GPUDIRECT");
  if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return;
  auto* const state = tensorflow::GPUProcessState::singleton();
  if (Cuda::Get() == nullptr || !GpuTable::Empty(state)) return;
  const auto visitor = [](void* address, int, size_t length) {
    GpuDirect::Get().Add(static_cast<const char*>(address), length);
  };
  const int nodes = std::max(1, tensorflow::port::NUMANumNodes());
  for (int node = 0; node < nodes; ++node) state->AddGPUAllocVisitor(node, visitor);
  const std::lock_guard<std::mutex> lock(mu_);
  installed_ = true;
  active_ = true;
}

void GpuDirect::Attach(rdma_mgr_t* mgr, tensorflow::thread::ThreadPool* threads) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (!installed_) return;
  auto manager = std::make_unique<Manager>();
  manager->mgr = mgr;
  manager->threads = threads;
  rdma_device_ops_t ops = {};
  ops.struct_size = sizeof ops;
  ops.copy_to_host = &CopyToHost;
  ops.copy_from_host = &CopyFromHost;
  ops.export_dmabuf = &Export;
  const rdma_code_t code = rdma_mgr_register_device(mgr, &ops, manager.get(), &manager->device);
  if (code != RDMA_OK) {
    LOG(WARNING) << LastError(code, "grpc+verbs: no GPUDirect").message();
    return;
  }
  for (const auto& pool : pools_) Offer(manager.get(), pool.first, pool.second);
  managers_.push_back(std::move(manager));
}

void GpuDirect::Detach(rdma_mgr_t* mgr) {
  const std::lock_guard<std::mutex> lock(mu_);
  managers_.erase(
      std::remove_if(managers_.begin(), managers_.end(), [mgr](const auto& manager) { return manager->mgr == mgr; }),
      managers_.end());
}

uint32_t GpuDirect::DeviceOf(rdma_mgr_t* mgr, const void* address, size_t length) {
  if (length < kLeast) return RDMA_DEVICE_HOST;
  const char* const begin = static_cast<const char*>(address);
  const std::lock_guard<std::mutex> lock(mu_);
  for (const auto& manager : managers_) {
    if (manager->mgr != mgr) continue;
    const auto pool = PoolOf(manager.get(), begin);
    if (pool == manager->direct.end() || pool->second.refused) return RDMA_DEVICE_HOST;
    const size_t offset = begin - pool->first;
    return offset + length <= pool->second.length ? manager->device : RDMA_DEVICE_HOST;
  }
  return RDMA_DEVICE_HOST;
}

// The pool that begins at or before `address`.
std::map<const char*, GpuDirect::Pool>::iterator GpuDirect::PoolOf(Manager* manager, const char* address) {
  const auto next = manager->direct.upper_bound(address);
  return next == manager->direct.begin() ? manager->direct.end() : std::prev(next);
}

void GpuDirect::Copied(rdma_mgr_t* mgr, const char* address, uint64_t length) {
  if (length < kLeast) return;
  const std::lock_guard<std::mutex> lock(mu_);
  for (const auto& manager : managers_) {
    if (manager->mgr != mgr) continue;
    const auto pool = PoolOf(manager.get(), address);
    if (pool == manager->direct.end() || address >= pool->first + pool->second.length) return;
    if (std::exchange(pool->second.refused, true)) return;
    LOG(WARNING) << "grpc+verbs: the RDMA device does not read a GPU pool of " << pool->second.length
                 << " bytes that CUDA exported; it goes through the host";
    return;
  }
}

void GpuDirect::Add(const char* address, size_t length) {
  const std::lock_guard<std::mutex> lock(mu_);
  // TensorFlow does not tell when it gives a pool back: one in the same place has ended.
  for (auto old = pools_.begin(); old != pools_.end();) {
    if (old->first >= address + length || old->first + old->second <= address) {
      ++old;
      continue;
    }
    for (const auto& manager : managers_) {
      if (manager->direct.erase(old->first) == 0) continue;
      (void)rdma_mem_unregister(manager->mgr, const_cast<char*>(old->first));
    }
    old = pools_.erase(old);
  }
  pools_[address] = length;
  for (const auto& manager : managers_) Offer(manager.get(), address, length);
}

// Keeps the pool registered only where a provider asked for its dmabuf and got it. Whether the RDMA device then took it
// the library does not tell; see Copied. CUDA exports whole pages only, and
// TensorFlow's pools end anywhere: what is behind the last page goes through the host.
void GpuDirect::Offer(Manager* manager, const char* address, size_t length) {
  length -= length % kPage;
  if (length == 0) return;
  manager->exported = false;
  void* const memory = const_cast<char*>(address);
  if (rdma_mem_register(manager->mgr, memory, length, manager->device) != RDMA_OK) return;
  if (manager->exported) {
    manager->direct[address] = Pool{length, false};
  } else {
    (void)rdma_mem_unregister(manager->mgr, memory);
  }
}

rdma_code_t GpuDirect::Export(const void* device, uint64_t length, int* fd, uint64_t* offset, void* userdata) {
  *fd = Cuda::Get()->ExportDmabuf(device, length);
  *offset = 0;
  if (*fd < 0) {
    static std::atomic_flag told = ATOMIC_FLAG_INIT;
    if (!told.test_and_set()) {
      LOG(WARNING) << "grpc+verbs: CUDA does not export " << length << " bytes of GPU memory as a dmabuf (error "
                   << -*fd << "): no GPUDirect for them; later refusals are not logged";
    }
    return RDMA_UNIMPLEMENTED;
  }
  static_cast<Manager*>(userdata)->exported = true;
  return RDMA_OK;
}

// The RDMA device does not read this memory, or the channel has changed to another provider since: the library has it
// copied. CUDA's call blocks, so not here.
void GpuDirect::CopyToHost(void* host, const void* device, uint64_t length, rdma_copy_done_fn done, void* token,
                           void* userdata) {
  rdma_mgr_t* const mgr = static_cast<Manager*>(userdata)->mgr;
  static_cast<Manager*>(userdata)->threads->Schedule([=] {
    GpuDirect::Get().Copied(mgr, static_cast<const char*>(device), length);
    done(Cuda::Get()->CopyToHost(host, device, length) ? RDMA_OK : RDMA_INTERNAL, token);
  });
}

void GpuDirect::CopyFromHost(void* device, const void* host, uint64_t length, rdma_copy_done_fn done, void* token,
                             void* userdata) {
  static_cast<Manager*>(userdata)->threads->Schedule([=] {
    done(Cuda::Get()->CopyFromHost(device, host, length) ? RDMA_OK : RDMA_INTERNAL, token);
  });
}

}  // namespace rdma_tf
