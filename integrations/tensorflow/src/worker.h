// TensorFlow's gRPC worker, which answers one more question: where is this worker's manager?
#ifndef RDMA_TF_WORKER_H_
#define RDMA_TF_WORKER_H_

#include <memory>
#include <mutex>

#include "context.h"
#include "tf_compat.h"

namespace rdma_tf {

class VerbsWorker : public tensorflow::GrpcWorker {
 public:
  VerbsWorker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config)
      : tensorflow::GrpcWorker(env, config) {}

  // Before the first request; an empty pointer ends it.
  void SetContext(std::shared_ptr<Context> context);

  // Answers address requests, leaves everything else to TensorFlow.
  void RecvBufAsync(tensorflow::CallOptions* options, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) override;

  // The local device that a key names as its source, if it is the one that the key's sender knew.
  Status SourceDevice(const tensorflow::Rendezvous::ParsedKey& key, tensorflow::Device** device) {
    return PrepareRecvTensor(key, device);
  }

 private:
  std::mutex mu_;
  std::shared_ptr<Context> context_;  // guarded by mu_
};

}  // namespace rdma_tf

#endif  // RDMA_TF_WORKER_H_
