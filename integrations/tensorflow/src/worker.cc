#include "worker.h"

#include <string>
#include <utility>

namespace rdma_tf {

void VerbsWorker::SetContext(std::shared_ptr<Context> context) {
  const std::lock_guard<std::mutex> lock(mu_);
  context_ = std::move(context);
}

void VerbsWorker::RecvBufAsync(tensorflow::CallOptions* options, const tensorflow::RecvBufRequest* request,
                               tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) {
  if (request->transport_options().type_url() != kAddressUrl) {
    GrpcWorker::RecvBufAsync(options, request, response, std::move(done));
    return;
  }
  std::shared_ptr<Context> context;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    context = context_;
  }
  if (context == nullptr) {
    done(Status(absl::StatusCode::kUnavailable, "grpc+verbs: server stopped"));
    return;
  }
  std::string blob;
  const Status status = context->ExportAddress(&blob);
  if (status.ok()) SetAny(response->mutable_transport_options(), kAddressUrl, blob);
  done(status);
}

}  // namespace rdma_tf
