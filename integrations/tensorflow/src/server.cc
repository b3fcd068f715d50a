#include "server.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "context.h"
#include "rendezvous.h"
#include "tf_compat.h"
#include "watch.h"
#include "worker.h"

namespace rdma_tf {
namespace {

constexpr char kProtocol[] = "grpc+verbs";

// "/job:ps/replica:0/task:0@host:port". The address tells servers apart that sessions with their own cluster
// definition bring together under the same job and task.
std::string ManagerName(const tensorflow::ServerDef& def, const std::string& host, int port) {
  const std::string address = absl::StrCat("@", host, ":", port);
  std::string worker = absl::StrCat("/job:", def.job_name(), "/replica:0/task:", def.task_index());
  if (worker.size() + address.size() > RDMA_MAX_NAME_LEN) worker.resize(RDMA_MAX_NAME_LEN - address.size());
  return worker + address;
}

class VerbsServer : public tensorflow::GrpcServer {
 public:
  VerbsServer(const tensorflow::ServerDef& def, tensorflow::Env* env) : tensorflow::GrpcServer(def, env) {
    const int64_t silence_ms = Patience::FromEnv().silence_ms;
    if (silence_ms > 0) watch_ = std::make_shared<Watch>(silence_ms);
  }

  ~VerbsServer() override {
    if (worker_ != nullptr) worker_->SetContext(nullptr);
    if (context_ != nullptr) context_->Shutdown();
  }

  Status Setup(tensorflow::DeviceMgr* local_device_mgr) {
    tensorflow::GrpcServerOptions options;
    options.local_device_mgr = local_device_mgr;
    options.rendezvous_mgr_func = [this](const tensorflow::WorkerEnv* env) -> tensorflow::RendezvousMgrInterface* {
      return rendezvous_mgr_ = new VerbsRendezvousMgr(env);  // owned by the server
    };
    options.worker_func = [this](tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config) {
      auto worker = std::make_unique<VerbsWorker>(env, config);
      worker_ = worker.get();
      return worker;
    };
    Status status = Init(options);
    if (!status.ok()) return status;
    // No request is served before Start, so nothing sees the server without its manager.
    status = Context::Create(ManagerName(server_def(), host_name(), bound_port()), host_name(), worker_env(), worker_,
                             watch_, &context_);
    if (!status.ok()) return status;
    worker_->SetContext(context_);
    rendezvous_mgr_->SetContext(context_);
    return Status();
  }

 protected:
  Status WorkerCacheFactory(const tensorflow::WorkerCacheFactoryOptions& options,
                            tensorflow::WorkerCacheInterface** cache) override {
    tensorflow::WorkerCacheInterface* plain = nullptr;
    const Status status = tensorflow::GrpcServer::WorkerCacheFactory(options, &plain);
    if (!status.ok()) return status;
    *cache = watch_ == nullptr
                 ? plain
                 : watch_->Wrap(std::unique_ptr<tensorflow::WorkerCacheInterface>(plain), worker_impl());
    return status;
  }

 private:
  std::shared_ptr<Watch> watch_;  // empty where nobody's silence counts
  VerbsRendezvousMgr* rendezvous_mgr_ = nullptr;
  VerbsWorker* worker_ = nullptr;
  std::shared_ptr<Context> context_;
};

class VerbsServerFactory : public tensorflow::ServerFactory {
 public:
  bool AcceptsOptions(const tensorflow::ServerDef& def) override { return def.protocol() == kProtocol; }

  Status NewServer(const tensorflow::ServerDef& def, const Options& options,
                   std::unique_ptr<tensorflow::ServerInterface>* out) override {
    auto server = std::make_unique<VerbsServer>(def, tensorflow::Env::Default());
    const Status status = server->Setup(options.local_device_mgr);
    if (!status.ok()) return status;
    *out = std::move(server);
    return Status();
  }
};

}  // namespace

void RegisterServerFactory() {
  tensorflow::ServerFactory::Register("GRPC_VERBS_SERVER", new VerbsServerFactory);
}

}  // namespace rdma_tf
