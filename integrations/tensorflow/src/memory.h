// TensorFlow's memory pools, registered with every live manager.
#ifndef RDMA_TF_MEMORY_H_
#define RDMA_TF_MEMORY_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "rdma_transport.h"
#include "tf_compat.h"

namespace rdma_tf {

class Memory {
 public:
  static Memory& Get();

  // Asks TensorFlow to tell us about the memory of its CPU allocators (and pinned host allocators of GPU builds).
  // That is only possible before they exist; later it does nothing and says so: unregistered memory works too.
  void InstallVisitors();

  // Registers every known pool with `mgr`, and later ones as they come.
  void Attach(rdma_mgr_t* mgr);
  void Detach(rdma_mgr_t* mgr);

 private:
  void Add(void* address, size_t length);
  void Remove(void* address);

  std::mutex mu_;
  std::map<void*, size_t> pools_;     // guarded by mu_
  std::vector<rdma_mgr_t*> managers_;  // guarded by mu_
};

}  // namespace rdma_tf

#endif  // RDMA_TF_MEMORY_H_
