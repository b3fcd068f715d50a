#include "shared_pool.h"

#include <atomic>
#include <cstdlib>
#include <memory>

#include "status.h"

// TensorFlow ends the process if a factory is registered after the first allocator was made, and only a private member
// tells. An explicit instantiation may name it.
namespace rdma_tf {
namespace {

using FirstAllocMade = bool tsl::AllocatorFactoryRegistry::*;
FirstAllocMade FirstAllocMadeMember();

template <FirstAllocMade kMember>
struct Reveal {
  friend FirstAllocMade FirstAllocMadeMember() { return kMember; }
};
template struct Reveal<&tsl::AllocatorFactoryRegistry::first_alloc_made_>;

// TensorFlow's own factories have up to 200.
constexpr int kPriority = 1000;
// What blocks of the pool are aligned to, and all that TensorFlow asks for.
constexpr size_t kAlignment = 64;

std::atomic<rdma_pool_t*> pool{nullptr};

// Memory of the pool while there is some, then ordinary memory.
class SubAllocator : public tsl::SubAllocator {
 public:
  SubAllocator(const Visitor& add, const Visitor& remove)
      : tsl::SubAllocator({}, {}), ordinary_(tensorflow::port::kNUMANoAffinity, {add}, {remove}) {}

  void* Alloc(size_t alignment, size_t num_bytes, size_t* bytes_received) override {
    if (num_bytes == 0) return nullptr;
    void* memory = nullptr;
    if (alignment <= kAlignment) {
      const rdma_code_t code = rdma_pool_alloc(pool.load(), num_bytes, &memory);
      if (code == RDMA_OK) {
        *bytes_received = num_bytes;
        return memory;
      }
      if (!told_.test_and_set()) {
        LOG(WARNING) << LastError(code, "grpc+verbs: what does not fit is ordinary memory from now on").message();
      }
    }
    return ordinary_.Alloc(alignment, num_bytes, bytes_received);
  }

  void Free(void* memory, size_t num_bytes) override {
    if (memory == nullptr || rdma_pool_free(pool.load(), memory) == RDMA_OK) return;
    ordinary_.Free(memory, num_bytes);
  }

  bool SupportsCoalescing() const override { return false; }

  tsl::AllocatorMemoryType GetMemoryType() const override { return tsl::AllocatorMemoryType::kHostPageable; }

 private:
  tensorflow::BasicCPUAllocator ordinary_;
  std::atomic_flag told_ = ATOMIC_FLAG_INIT;
};

class Factory : public tsl::AllocatorFactory {
 public:
  Factory(size_t limit, const SharedPool::Visitor& add, const SharedPool::Visitor& remove)
      : limit_(limit), add_(add), remove_(remove) {}

  // What TensorFlow makes of its own sub-allocator where visitors ask for one.
  tsl::Allocator* CreateAllocator() override {
    tsl::BFCAllocator::Options options;
    options.allow_growth = true;
    return new tsl::BFCAllocator(std::make_unique<SubAllocator>(add_, remove_), limit_, "rdma_shared_cpu", options);
  }

  tsl::SubAllocator* CreateSubAllocator(int) override { return new SubAllocator(add_, remove_); }

 private:
  const size_t limit_;
  const SharedPool::Visitor add_, remove_;
};

}  // namespace

bool SharedPool::Install(size_t max_bytes, size_t limit, const Visitor& add, const Visitor& remove) {
  auto* const registry = tsl::AllocatorFactoryRegistry::singleton();
  // The variable makes TensorFlow build its allocator by itself, whatever is registered.
  const bool own = std::getenv("TF_CPU_ALLOCATOR_USE_BFC") != nullptr;
  if (own || registry->*FirstAllocMadeMember()) {
    LOG(WARNING) << "grpc+verbs: TensorFlow's CPU memory is not shared, since "
                 << (own ? "TF_CPU_ALLOCATOR_USE_BFC is set" : "its allocator exists already");
    return false;
  }
  rdma_pool_t* made = nullptr;
  const rdma_code_t code = rdma_pool_create(max_bytes, &made);
  if (code != RDMA_OK) {
    LOG(WARNING) << LastError(code, "grpc+verbs: no shared pool").message();
    return false;
  }
  pool = made;
  registry->Register(__FILE__, __LINE__, "RdmaSharedCPUAllocator", kPriority, new Factory(limit, add, remove));
  return true;
}

rdma_pool_t* SharedPool::Handle() { return pool.load(); }

uint64_t SharedPool::Used() {
  uint64_t used = 0;
  if (pool.load() != nullptr) (void)rdma_pool_usage(pool.load(), &used, nullptr);
  return used;
}

}  // namespace rdma_tf
