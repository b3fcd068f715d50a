// A receive whose abort comes before, after or without Start ends once: `finished` runs. An abort between
// RecvFromRemoteAsync's look at status() and Start is a matter of luck through TensorFlow.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "receive.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/platform/threadpool.h"

using namespace tensorflow;

// A worker that answers what is asked for an address, later and on another thread, and nothing else.
struct Mute : WorkerInterface {
  std::atomic<int> asked{0};
  bool quiet() const { return asked == 0; }
  void GetStatusAsync(CallOptions*, const GetStatusRequest*, GetStatusResponse*, bool, StatusCallback) override {}
  void CreateWorkerSessionAsync(const CreateWorkerSessionRequest*, CreateWorkerSessionResponse*, StatusCallback) override {}
  void DeleteWorkerSessionAsync(CallOptions*, const DeleteWorkerSessionRequest*, DeleteWorkerSessionResponse*, StatusCallback) override {}
  void RegisterGraphAsync(const RegisterGraphRequest*, RegisterGraphResponse*, StatusCallback) override {}
  void DeregisterGraphAsync(const DeregisterGraphRequest*, DeregisterGraphResponse*, StatusCallback) override {}
  void RunGraphAsync(CallOptions*, RunGraphRequestWrapper*, MutableRunGraphResponseWrapper*, StatusCallback) override {}
  void RunGraphAsync(CallOptions*, const RunGraphRequest*, RunGraphResponse*, StatusCallback) override {}
  void CleanupGraphAsync(const CleanupGraphRequest*, CleanupGraphResponse*, StatusCallback) override {}
  void CleanupAllAsync(const CleanupAllRequest*, CleanupAllResponse*, StatusCallback) override {}
  void RecvTensorAsync(CallOptions*, const RecvTensorRequest*, TensorResponse*, StatusCallback) override {}
  void LoggingAsync(const LoggingRequest*, LoggingResponse*, StatusCallback) override {}
  void TracingAsync(const TracingRequest*, TracingResponse*, StatusCallback) override {}
  void RecvBufAsync(CallOptions*, const RecvBufRequest*, RecvBufResponse*, StatusCallback done) override {
    ++asked;
    std::thread([this, done] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      done(absl::InternalError("no address"));
      --asked;
    }).detach();
  }
  void CompleteGroupAsync(CallOptions*, const CompleteGroupRequest*, CompleteGroupResponse*, StatusCallback) override {}
  void CompleteInstanceAsync(CallOptions*, const CompleteInstanceRequest*, CompleteInstanceResponse*, StatusCallback) override {}
  void GetStepSequenceAsync(const GetStepSequenceRequest*, GetStepSequenceResponse*, StatusCallback) override {}
};

struct MuteCache : WorkerCacheInterface {
  Mute mute;
  void ListWorkers(std::vector<std::string>*) const override {}
  void ListWorkersInJob(const std::string&, std::vector<std::string>*) const override {}
  WorkerInterface* GetOrCreateWorker(const std::string&) override { return &mute; }
  void ReleaseWorker(const std::string&, WorkerInterface*) override {}
  bool GetDeviceLocalityNonBlocking(const std::string&, DeviceLocality*) override { return false; }
  void GetDeviceLocalityAsync(const std::string&, DeviceLocality*, StatusCallback) override {}
  absl::Status GetEagerClientCache(std::unique_ptr<eager::EagerClientCache>*) override { return absl::OkStatus(); }
  absl::Status GetCoordinationClientCache(std::unique_ptr<CoordinationClientCache>*) override { return absl::OkStatus(); }
};

enum When { kNever, kBeforeStart, kAfterStart };

bool EndsOnce(const std::shared_ptr<rdma_tf::Context>& context, const std::shared_ptr<MuteCache>& cache, When when) {
  rdma_tf::Receive::What what;
  what.worker = "/job:ps/replica:0/task:" + std::to_string(when);
  what.key = "k";
  what.incarnation = 7;
  what.step = 1;
  auto call = std::make_shared<rdma_tf::Receive>(context, what);
  auto finished = std::make_shared<std::atomic<int>>(0);
  const auto abort = [&] { call->StartAbort(absl::AbortedError("step aborted")); };
  if (when == kBeforeStart) abort();
  call->Start(cache, [finished] { ++*finished; });
  if (when == kAfterStart) abort();
  // The answer comes, and whatever else there is.
  for (int i = 0; i < 600 && (*finished == 0 || !cache->mute.quiet()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const absl::StatusCode wanted = when == kNever ? absl::StatusCode::kInternal : absl::StatusCode::kAborted;
  const bool well = *finished == 1 && call->status().code() == wanted;
  std::printf("abort %d: finished ran %d times, status %s\n", when, finished->load(), call->status().ToString().c_str());
  return well;
}

int main() {
  WorkerEnv env;
  env.compute_pool = new thread::ThreadPool(Env::Default(), "pool", 2);
  std::shared_ptr<rdma_tf::Context> context;
  const auto status = rdma_tf::Context::Create("/job:worker/replica:0/task:0@localhost:1", "localhost", &env, nullptr,
                                               nullptr, &context);
  if (!status.ok()) return std::printf("%s\n", std::string(status.message()).c_str()), 2;
  auto cache = std::make_shared<MuteCache>();
  bool well = true;
  for (const When when : {kNever, kBeforeStart, kAfterStart}) well = EndsOnce(context, cache, when) && well;
  context->Shutdown();
  std::printf(well ? "well\n" : "FAILED\n");
  std::fflush(stdout);
  std::_Exit(well ? 0 : 1);
}
