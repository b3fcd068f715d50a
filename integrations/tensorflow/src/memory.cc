#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "status.h"
#include "tensorflow/core/platform/numa.h"

namespace rdma_tf {
namespace {

constexpr uintptr_t kHugePage = 2u << 20;

// Reaches the table of allocators, which the class only shows to its children: AddCPUAllocVisitor aborts the
// process once an allocator exists, so look first.
struct AllocatorTable : tensorflow::ProcessState {
  static bool Empty(tensorflow::ProcessState* state) {
    auto& mu = state->*(&AllocatorTable::mu_);
    mu.lock();
    const bool empty = (state->*(&AllocatorTable::cpu_allocators_)).empty();
    mu.unlock();
    return empty;
  }
};

// The same for the pinned host memory of GPU builds. In a build for the CPU the visitors are never called.
struct HostAllocatorTable : tensorflow::GPUProcessState {
  static bool Empty(tensorflow::GPUProcessState* state) {
    auto& mu = state->*(&HostAllocatorTable::mu_);
    mu.lock();
    const bool empty = (state->*(&HostAllocatorTable::gpu_host_allocators_)).empty();
    mu.unlock();
    return empty;
  }
};

// A variable of the environment, "" if it is not set.
absl::string_view Env(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Fresh memory in 2 MiB pages is several times cheaper to touch for the first time, to pin and to copy between
// processes. Advice only.
void AdviseHugePages(void* address, size_t length) {
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(address) + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(address) + length) & ~(kHugePage - 1);
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// Without visitors TensorFlow's CPU allocator has no limit. The pooling one, which visitors make it use, takes its limit
// from this variable, 64 GiB by default: not enough for a large parameter server. Never less than that default, and
// never in place of what the user set. Returns it in bytes.
size_t RaisePoolLimit() {
  constexpr char kVariable[] = "TF_CPU_BFC_MEM_LIMIT_IN_MB";
  constexpr int64_t kDefaultMiB = 1 << 16;
  const int64_t physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / (1 << 20);
  (void)setenv(kVariable, std::to_string(std::max(kDefaultMiB, physical)).c_str(), 0);
  int64_t mib = 0;
  if (!absl::SimpleAtoi(Env(kVariable), &mib) || mib <= 0) mib = kDefaultMiB;
  return static_cast<size_t>(mib) << 20;
}

void Register(rdma_mgr_t* mgr, void* address, size_t length) {
  const rdma_code_t code = rdma_mem_register(mgr, address, length, RDMA_DEVICE_HOST);
  if (code != RDMA_OK) {
    VLOG(1) << LastError(code, "grpc+verbs: a pool stays unregistered").message();
  }
}

}  // namespace

Memory& Memory::Get() {
  static Memory* const instance = new Memory;  // never destroyed: allocators outlive this library's statics
  return *instance;
}

Status Memory::Install() {
  const absl::string_view kind = Env("RDMA_TF_POOL");
  if (!kind.empty() && kind != "0" && kind != "1" && kind != "shared") {
    return Status(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("RDMA_TF_POOL is \"", kind, "\", allowed are 0, 1, shared"));
  }
  uint64_t max_bytes = 0;
  const absl::string_view bytes = Env("RDMA_TF_POOL_BYTES");
  if (!bytes.empty() && !absl::SimpleAtoi(bytes, &max_bytes)) {
    return Status(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("RDMA_TF_POOL_BYTES is \"", bytes,
                               "\", allowed are 0 (the machine's memory) and numbers of bytes"));
  }
  // A pool never returns memory: RDMA_TF_POOL=0 declines.
  if (kind == "0") return Status();
  auto* const state = tensorflow::ProcessState::singleton();
  if (!AllocatorTable::Empty(state)) {
    LOG(INFO) << "grpc+verbs: TensorFlow's allocators exist already; their memory is used unregistered (import "
                 "rdma_tensorflow before the first operation for the fastest path)";
    return Status();
  }
  const size_t limit = RaisePoolLimit();
  const auto add = [](void* address, int, size_t length) { Memory::Get().Add(address, length); };
  const auto remove = [](void* address, int, size_t) { Memory::Get().Remove(address); };
  if (kind == "shared" && SharedPool::Install(max_bytes, limit, add, remove)) {
    kind_ = "shared";
  } else {
    // Visitors make TensorFlow use its pooling CPU allocator.
    kind_ = "registered";
    state->AddCPUAllocVisitor(add);
    state->AddCPUFreeVisitor(remove);
  }
  InstallGpuVisitors(add, remove);
  return Status();
}

std::string Memory::UsageJson() {
  uint64_t ordinary = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    for (const auto& pool : pools_) ordinary += pool.second;
  }
  return absl::StrCat("{\"kind\":\"", kind_, "\",\"shared_bytes\":", SharedPool::Used(),
                      ",\"registered_bytes\":", ordinary, "}");
}

void Memory::InstallGpuVisitors(const SharedPool::Visitor& add, const SharedPool::Visitor& remove) {
  auto* const gpu = tensorflow::GPUProcessState::singleton();
  if (!HostAllocatorTable::Empty(gpu)) return;
  const int nodes = std::max(1, tensorflow::port::NUMANumNodes());
  for (int node = 0; node < nodes; ++node) {
    gpu->AddGpuHostAllocVisitor(node, add);
    gpu->AddGpuHostFreeVisitor(node, remove);
  }
}

void Memory::Attach(rdma_mgr_t* mgr) {
  const std::lock_guard<std::mutex> lock(mu_);
  managers_.push_back(mgr);
  for (const auto& pool : pools_) Register(mgr, pool.first, pool.second);
}

void Memory::Detach(rdma_mgr_t* mgr) {
  const std::lock_guard<std::mutex> lock(mu_);
  managers_.erase(std::remove(managers_.begin(), managers_.end(), mgr), managers_.end());
}

void Memory::Add(void* address, size_t length) {
  AdviseHugePages(address, length);
  const std::lock_guard<std::mutex> lock(mu_);
  pools_[address] = length;
  for (rdma_mgr_t* const mgr : managers_) Register(mgr, address, length);
}

void Memory::Remove(void* address) {
  const std::lock_guard<std::mutex> lock(mu_);
  pools_.erase(address);
  for (rdma_mgr_t* const mgr : managers_) (void)rdma_mem_unregister(mgr, address);
}

}  // namespace rdma_tf
