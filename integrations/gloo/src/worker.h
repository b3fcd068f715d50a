/* One rank of one context: a manager, and what its calls throw. */
#ifndef RDMA_GLOO_WORKER_H
#define RDMA_GLOO_WORKER_H

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <gloo/common/error.h>
#include <rdma_transport.h>

#include "rdma_gloo/device.h"

namespace gloo {
namespace transport {
namespace rdma {

std::string LastError();
/* Throws IoException: a wait has timed out, and closed its pairs. The words are Gloo's. */
[[noreturn]] void FailTimedOut();
/* Throws IoException, with the library's text. */
[[noreturn]] void Fail(rdma_code_t code, const std::string &what);
inline void Check(rdma_code_t code, const char *what) {
  if (code != RDMA_OK) Fail(code, what);
}
/* Gloo's zero is no timeout. */
inline int64_t Millis(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout ? RDMA_MSG_FOREVER : timeout.count() > 0 ? timeout.count() : 1;
}

class Worker {
 public:
  explicit Worker(const attr &attr);
  ~Worker();
  Worker(const Worker &) = delete;
  Worker &operator=(const Worker &) = delete;
  rdma_mgr_t *mgr() const { return mgr_; }
  /* As attr::synchronousSends. */
  const bool synchronous;
  /* A send on this pair has begun. */
  void sending(rdma_pair_t pair);
  /* Waits until all that was sent, by whatever thread, has left its memory. Gloo's algorithms write over what they have sent as
   * soon as something has arrived, without a waitSend: their transports have copied it by then, and this one may not have. */
  void settle(std::chrono::milliseconds timeout);

 private:
  rdma_mgr_t *mgr_ = nullptr;
  std::mutex mutex_;
  /* Pairs of which something may still be read, and a number of their latest send. */
  std::map<rdma_pair_t, uint64_t> sending_;
  uint64_t sends_ = 0;
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
