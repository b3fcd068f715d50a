// TensorFlow's CPU memory out of a pool of the library: peers on this host map it, and copy tensors out of it once.
#ifndef RDMA_TF_SHARED_POOL_H_
#define RDMA_TF_SHARED_POOL_H_

#include <cstddef>
#include <cstdint>

#include "rdma_transport.h"
#include "tf_compat.h"

namespace rdma_tf {

// One for the process, and never destroyed: tensors outlive servers.
class SharedPool {
 public:
  using Visitor = tsl::SubAllocator::Visitor;

  // Makes TensorFlow take its CPU memory, up to `limit` in all, from a pool of at most `max_bytes` (0: the machine's
  // memory), and what exceeds that from ordinary memory, which `add` and `remove` hear of. False, and no change, if
  // TensorFlow has made its CPU allocator already or is set to make its own.
  static bool Install(size_t max_bytes, size_t limit, const Visitor& add, const Visitor& remove);

  // For the options of managers. Null where TensorFlow's memory does not come from a pool.
  static rdma_pool_t* Handle();
  // Bytes that TensorFlow's allocator has from it.
  static uint64_t Used();
};

}  // namespace rdma_tf

#endif  // RDMA_TF_SHARED_POOL_H_
