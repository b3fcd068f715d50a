// TensorFlow's memory pools, registered with every live manager.
#ifndef RDMA_TF_MEMORY_H_
#define RDMA_TF_MEMORY_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "rdma_transport.h"
#include "shared_pool.h"
#include "status.h"
#include "tf_compat.h"

namespace rdma_tf {

class Memory {
 public:
  static Memory& Get();

  // Chooses where the memory of TensorFlow's CPU allocators comes from, and asks TensorFlow to tell us about it (and
  // about pinned host allocators of GPU builds). That is only possible before they exist; later it does nothing and says
  // so: unregistered memory works too. An error if RDMA_TF_POOL or RDMA_TF_POOL_BYTES is wrong.
  Status Install();

  // Where it comes from, and how much, as JSON.
  std::string UsageJson();

  // Registers every known pool with `mgr`, and later ones as they come.
  void Attach(rdma_mgr_t* mgr);
  void Detach(rdma_mgr_t* mgr);

 private:
  void InstallGpuVisitors(const SharedPool::Visitor& add, const SharedPool::Visitor& remove);
  void Add(void* address, size_t length);
  void Remove(void* address);

  const char* kind_ = "tensorflow";  // what TensorFlow does by itself, until Install has changed it
  std::mutex mu_;
  std::map<void*, size_t> pools_;     // guarded by mu_
  std::vector<rdma_mgr_t*> managers_;  // guarded by mu_
};

}  // namespace rdma_tf

#endif  // RDMA_TF_MEMORY_H_
