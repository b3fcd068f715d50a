// TensorFlow's rendezvous whose remote receives go through the library.
#ifndef RDMA_TF_RENDEZVOUS_H_
#define RDMA_TF_RENDEZVOUS_H_

#include <memory>

#include "context.h"
#include "tf_compat.h"

namespace rdma_tf {

class VerbsRendezvousMgr : public tensorflow::BaseRendezvousMgr {
 public:
  explicit VerbsRendezvousMgr(const tensorflow::WorkerEnv* env) : tensorflow::BaseRendezvousMgr(env) {}

  // Before the first step.
  void SetContext(std::shared_ptr<Context> context) { context_ = std::move(context); }

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(int64_t step,
                                                                  const tensorflow::WorkerEnv* env) override;

 private:
  std::shared_ptr<Context> context_;
};

}  // namespace rdma_tf

#endif  // RDMA_TF_RENDEZVOUS_H_
