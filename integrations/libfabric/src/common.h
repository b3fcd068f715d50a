/* What all parts of the provider share: libfabric's and the library's headers, a lock that may be off, errors. */
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>
#include <rdma_transport.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

namespace rdmat {

/* What the provider says of itself; see also info.cc. */
/* Longest content of an inject. Open MPI's blocking sends inject what they may, and drive nothing but the provider where
 * they may not, which one-sided operations over messages do not survive: as long as libfabric's tcp takes it. */
constexpr size_t kInject = 16384;
constexpr size_t kSmall = 64;             /* of this, what a request has room for itself */
constexpr size_t kRides = 4096;           /* content up to this rides in its message, whatever carries it */
constexpr size_t kScratches = 1024;       /* copies of longer ones, at most, per endpoint */
constexpr size_t kQueue = 512 * 1024;     /* sends under way, per endpoint */
constexpr size_t kInjects = 16384;         /* of these, injected ones */
constexpr size_t kIov = 16;               /* pieces of local memory */
constexpr size_t kRmaIov = 8;             /* pieces of remote memory */
constexpr size_t kMaxMessage = size_t{1} << 40;
constexpr size_t kAtomicBytes = 2048;     /* operands of one atomic operation, of each kind */
constexpr size_t kEndpoints = 64;         /* endpoints of one queue or counter */
constexpr size_t kAddresses = 256 * 1024; /* entries of an address vector */

constexpr uint32_t kAddressFormat = FI_PROV_SPECIFIC | 0x5244;
constexpr uint32_t kProtocol = FI_PROV_SPECIFIC | 0x5244;

/* Communicators of the library's messages. */
constexpr uint32_t kTagged = 1, kUntagged = 2, kReplies = 3;
/* Its handlers. */
constexpr uint32_t kOnWrite = 1, kOnAck = 2, kOnRead = 3, kOnAtomic = 4;

extern fi_provider provider;

#define RDMAT_WARN(subsystem, ...) FI_LOG(&::rdmat::provider, FI_LOG_WARN, subsystem, __VA_ARGS__)
#define RDMAT_INFO(subsystem, ...) FI_LOG(&::rdmat::provider, FI_LOG_INFO, subsystem, __VA_ARGS__)

/* A lock, unless the application says that it calls one at a time: FI_THREAD_DOMAIN without a thread of the library. */
class Lock {
 public:
  explicit Lock(bool on) : on_(on) {}
  void lock() {
    if (on_) mutex_.lock();
  }
  void unlock() {
    if (on_) mutex_.unlock();
  }

 private:
  const bool on_;
  std::mutex mutex_;
};
using Hold = std::lock_guard<Lock>;

/* The errno of a code of the library, positive. */
int error_of(rdma_code_t code);
/* What a call that began an operation returns to the application: no room is FI_EAGAIN. */
ssize_t refusal(rdma_code_t code, fi_log_subsys where, const char *what);

/* What the flags of one operation may be, beside those of the kind of operation. */
constexpr uint64_t kFlags = FI_COMPLETION | FI_MORE;
constexpr uint64_t kSendFlags =
    kFlags | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
/* An order or an end that is asked for, and is not kept, would be told of by nothing: it is refused. */
inline ssize_t check_flags(uint64_t flags, uint64_t known) {
  if ((flags & ~known) == 0) return 0;
  RDMAT_WARN(FI_LOG_EP_DATA, "flags %#llx of an operation are not known or not kept, %#llx are\n",
             static_cast<unsigned long long>(flags & ~known), static_cast<unsigned long long>(known));
  return flags & (FI_MULTICAST | FI_TRIGGER) ? -FI_ENOSYS : -FI_EBADFLAGS;
}

/* For entries of libfabric's tables that are not there. */
template <typename... Args>
int no_int(Args...) {
  return -FI_ENOSYS;
}
template <typename... Args>
ssize_t no_ssize(Args...) {
  return -FI_ENOSYS;
}

}  // namespace rdmat
