#include "watch.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "context.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"

namespace rdma_tf {
namespace {

using tensorflow::CallOptions;
using tensorflow::StatusCallback;
using tensorflow::WorkerCacheInterface;
using tensorflow::WorkerInterface;

// Another server, whose steps are watched. All else is left to TensorFlow's own worker.
class WatchedWorker : public WorkerInterface {
 public:
  WatchedWorker(std::shared_ptr<Watch> watch, std::string name, Peers::Cache cache, WorkerInterface* worker)
      : watch_(std::move(watch)), name_(std::move(name)), cache_(std::move(cache)), worker_(worker) {}
  ~WatchedWorker() override = default;

  WorkerInterface* worker() const { return worker_; }

  void RunGraphAsync(CallOptions* options, tensorflow::RunGraphRequestWrapper* request,
                     tensorflow::MutableRunGraphResponseWrapper* response, StatusCallback done) override {
    RunGraph(options, request, response, std::move(done));
  }
  void RunGraphAsync(CallOptions* options, const tensorflow::RunGraphRequest* request,
                     tensorflow::RunGraphResponse* response, StatusCallback done) override {
    RunGraph(options, request, response, std::move(done));
  }
  // Both are for RunGraphAsync of the worker that made them.
  tensorflow::MutableRunGraphRequestWrapper* CreateRunGraphRequest() override {
    return worker_->CreateRunGraphRequest();
  }
  tensorflow::MutableRunGraphResponseWrapper* CreateRunGraphResponse() override {
    return worker_->CreateRunGraphResponse();
  }

  void GetStatusAsync(CallOptions* options, const tensorflow::GetStatusRequest* request,
                      tensorflow::GetStatusResponse* response, bool fail_fast, StatusCallback done) override {
    worker_->GetStatusAsync(options, request, response, fail_fast, std::move(done));
  }
  void CreateWorkerSessionAsync(const tensorflow::CreateWorkerSessionRequest* request,
                                tensorflow::CreateWorkerSessionResponse* response, StatusCallback done) override {
    worker_->CreateWorkerSessionAsync(request, response, std::move(done));
  }
  void DeleteWorkerSessionAsync(CallOptions* options, const tensorflow::DeleteWorkerSessionRequest* request,
                                tensorflow::DeleteWorkerSessionResponse* response, StatusCallback done) override {
    worker_->DeleteWorkerSessionAsync(options, request, response, std::move(done));
  }
  void RegisterGraphAsync(const tensorflow::RegisterGraphRequest* request,
                          tensorflow::RegisterGraphResponse* response, StatusCallback done) override {
    worker_->RegisterGraphAsync(request, response, std::move(done));
  }
  void DeregisterGraphAsync(const tensorflow::DeregisterGraphRequest* request,
                            tensorflow::DeregisterGraphResponse* response, StatusCallback done) override {
    worker_->DeregisterGraphAsync(request, response, std::move(done));
  }
  void CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request, tensorflow::CleanupGraphResponse* response,
                         StatusCallback done) override {
    worker_->CleanupGraphAsync(request, response, std::move(done));
  }
  void CleanupAllAsync(const tensorflow::CleanupAllRequest* request, tensorflow::CleanupAllResponse* response,
                       StatusCallback done) override {
    worker_->CleanupAllAsync(request, response, std::move(done));
  }
  void RecvTensorAsync(CallOptions* options, const tensorflow::RecvTensorRequest* request,
                       tensorflow::TensorResponse* response, StatusCallback done) override {
    worker_->RecvTensorAsync(options, request, response, std::move(done));
  }
  void LoggingAsync(const tensorflow::LoggingRequest* request, tensorflow::LoggingResponse* response,
                    StatusCallback done) override {
    worker_->LoggingAsync(request, response, std::move(done));
  }
  void TracingAsync(const tensorflow::TracingRequest* request, tensorflow::TracingResponse* response,
                    StatusCallback done) override {
    worker_->TracingAsync(request, response, std::move(done));
  }
  void RecvBufAsync(CallOptions* options, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response, StatusCallback done) override {
    worker_->RecvBufAsync(options, request, response, std::move(done));
  }
  void CompleteGroupAsync(CallOptions* options, const tensorflow::CompleteGroupRequest* request,
                          tensorflow::CompleteGroupResponse* response, StatusCallback done) override {
    worker_->CompleteGroupAsync(options, request, response, std::move(done));
  }
  void CompleteInstanceAsync(CallOptions* options, const tensorflow::CompleteInstanceRequest* request,
                             tensorflow::CompleteInstanceResponse* response, StatusCallback done) override {
    worker_->CompleteInstanceAsync(options, request, response, std::move(done));
  }
  void GetStepSequenceAsync(const tensorflow::GetStepSequenceRequest* request,
                            tensorflow::GetStepSequenceResponse* response, StatusCallback done) override {
    worker_->GetStepSequenceAsync(request, response, std::move(done));
  }

 private:
  template <typename Request, typename Response>
  void RunGraph(CallOptions* options, Request* request, Response* response, StatusCallback done) {
    std::shared_ptr<CallOptions> own;
    if (options == nullptr) {
      own = std::make_shared<CallOptions>();
      options = own.get();
    }
    const uint64_t id = watch_->Begin(name_, cache_, options);
    worker_->RunGraphAsync(options, request, response,
                           [watch = watch_, id, own, done = std::move(done)](const Status& status) {
                             done(watch->End(id, status));
                           });
  }

  const std::shared_ptr<Watch> watch_;
  const std::string name_;
  const Peers::Cache cache_;
  WorkerInterface* const worker_;
};

class WatchedCache : public tensorflow::WorkerCacheWrapper {
 public:
  WatchedCache(std::shared_ptr<Watch> watch, Peers::Cache cache, WorkerInterface* local)
      : tensorflow::WorkerCacheWrapper(cache.get()),
        watch_(std::move(watch)),
        cache_(std::move(cache)),
        local_(local) {}

  WorkerInterface* GetOrCreateWorker(const std::string& target) override {
    WorkerInterface* const worker = cache_->GetOrCreateWorker(target);
    if (worker == nullptr || worker == local_) return worker;
    return new WatchedWorker(watch_, target, cache_, worker);
  }

  void ReleaseWorker(const std::string& target, WorkerInterface* worker) override {
    if (worker == nullptr || worker == local_) return cache_->ReleaseWorker(target, worker);
    auto* const watched = static_cast<WatchedWorker*>(worker);
    cache_->ReleaseWorker(target, watched->worker());
    delete watched;
  }

 private:
  const std::shared_ptr<Watch> watch_;
  const Peers::Cache cache_;  // a question may outlive this
  WorkerInterface* const local_;
};

}  // namespace

Watch::Watch(int64_t silence_ms)
    : silence_(silence_ms), interval_(std::clamp<int64_t>(silence_ms / 4, 10, 1000)) {}

Watch::~Watch() { Stop(); }

void Watch::Start(std::weak_ptr<Context> context) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (stopped_ || thread_.joinable()) return;
  context_ = std::move(context);
  thread_ = std::thread([self = shared_from_this()] { self->Run(); });
  pthread_setname_np(thread_.native_handle(), "rdma-tf-watch");
}

void Watch::Stop() {
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
    thread.swap(thread_);
    wake_.notify_all();
  }
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();  // it held the context last, and is on its way out
  } else {
    thread.join();
  }
}

uint64_t Watch::Begin(const std::string& worker, Peers::Cache cache, CallOptions* options) {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint64_t id = next_call_++;
  calls_.emplace(id, Call{worker, std::move(cache), Clock::now(), options, Status()});
  if (idle_) wake_.notify_all();
  return id;
}

Status Watch::End(uint64_t id, const Status& status) {
  Call call;  // what it holds ends without the lock
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = calls_.find(id);
  if (found == calls_.end()) return status;
  call = std::move(found->second);
  calls_.erase(found);
  return status.ok() || call.blamed.ok() ? status : call.blamed;
}

WorkerCacheInterface* Watch::Wrap(std::unique_ptr<WorkerCacheInterface> cache, WorkerInterface* local) {
  return new WatchedCache(shared_from_this(), Peers::Cache(std::move(cache)), local);
}

void Watch::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopped_) {
    idle_ = calls_.empty();
    if (idle_) {
      wake_.wait(lock, [this] { return stopped_ || !calls_.empty(); });
      continue;
    }
    if (wake_.wait_for(lock, interval_, [this] { return stopped_; })) break;
    auto due = Due();
    if (due.empty()) continue;
    lock.unlock();
    if (const auto context = context_.lock()) {
      for (auto& each : due) Look(context, each.first, std::move(each.second));
    }
    due.clear();
    lock.lock();
  }
}

std::map<std::string, Peers::Cache> Watch::Due() {
  std::map<std::string, Peers::Cache> due;
  const auto now = Clock::now();
  for (const auto& each : calls_) {
    if (now - each.second.begin >= interval_) due.emplace(each.second.worker, each.second.cache);
  }
  return due;
}

void Watch::Look(const std::shared_ptr<Context>& context, const std::string& worker, Peers::Cache cache) {
  if (context->Connected(worker)) return;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Question& question = questions_[worker];
    if (question.out || Clock::now() < question.next) return;
    question.out = true;
  }
  std::weak_ptr<Context> weak = context;
  context->peers().Ask(context, worker, std::move(cache),
                       [self = shared_from_this(), weak, worker](const Status& status, const PeerRef& peer) {
                         self->Answered(weak.lock(), worker, status, peer);
                       });
}

void Watch::Answered(const std::shared_ptr<Context>& context, const std::string& worker, const Status& status,
                     const PeerRef& peer) {
  if (status.ok() && context != nullptr) context->Connect(peer);
  const std::lock_guard<std::mutex> lock(mu_);
  Question& question = questions_[worker];
  question.out = false;
  // A server that answers and cannot be connected to, or runs no grpc+verbs, is not asked all the time.
  question.next = Clock::now() + (status.ok() || status.code() != absl::StatusCode::kUnavailable
                                      ? silence_
                                      : std::chrono::milliseconds(0));
  if (stopped_ || status.code() != absl::StatusCode::kUnavailable) return;
  for (auto& each : calls_) {
    Call& call = each.second;
    if (call.worker != worker) continue;
    if (call.blamed.ok()) call.blamed = status;
    call.options->StartCancel();
  }
}

}  // namespace rdma_tf
