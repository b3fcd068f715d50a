#include "peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "context.h"
#include "tensorflow/core/distributed_runtime/call_options.h"

namespace rdma_tf {
namespace {

// A peer that does not answer is asked again for this long; then the step fails and TensorFlow decides.
constexpr int64_t kGiveUpMicros = 10'000'000;
constexpr int64_t kRpcTimeoutMillis = 5'000;
constexpr int64_t kFirstBackoffMicros = 20'000;
constexpr int64_t kMaxBackoffMicros = 1'000'000;
// More incarnations than a process can have devices: forget the old ones.
constexpr size_t kMaxIncarnations = 1024;

}  // namespace

// One exchange with one worker, retried with growing pauses.
struct Peers::Fetch {
  std::shared_ptr<Context> context;
  std::string worker;
  Cache cache;
  int64_t deadline = 0;
  int64_t backoff = kFirstBackoffMicros;
  tensorflow::WorkerInterface* stub = nullptr;
  tensorflow::CallOptions options;
  tensorflow::RecvBufRequest request;
  tensorflow::RecvBufResponse response;
};

void Peers::Resolve(std::shared_ptr<Context> context, const std::string& worker, uint64_t incarnation, Cache cache,
                    Ready ready) {
  PeerRef ref;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Peer& peer = peers_[worker];
    if (!peer.known || peer.incarnations.count(incarnation) == 0) {
      peer.waiting.emplace_back(incarnation, std::move(ready));
      if (std::exchange(peer.fetching, true)) return;
    } else {
      ref = peer.ref;
    }
  }
  if (ref.generation != 0) {
    ready(Status(), ref);
    return;
  }
  auto fetch = std::make_shared<Fetch>();
  fetch->context = std::move(context);
  fetch->worker = worker;
  fetch->cache = std::move(cache);
  fetch->deadline = tensorflow::Env::Default()->NowMicros() + kGiveUpMicros;
  StartFetch(std::move(fetch));
}

void Peers::StartFetch(std::shared_ptr<Fetch> fetch) {
  std::string own;
  Status status = fetch->context->ExportAddress(&own);
  if (status.ok()) {
    fetch->stub = fetch->cache->GetOrCreateWorker(fetch->worker);
    if (fetch->stub == nullptr) {
      status = Status(absl::StatusCode::kInternal, absl::StrCat("no worker known as ", fetch->worker));
    }
  }
  if (!status.ok()) {
    fetch->context->peers().Finish(fetch->worker, status, "", "");
    return;
  }
  fetch->request.Clear();
  fetch->response.Clear();
  // A peer without this plugin looks the key up among its collectives: the name makes its error readable.
  fetch->request.set_buf_rendezvous_key(kAddressUrl);
  fetch->request.set_src_device(fetch->worker);
  SetAny(fetch->request.mutable_transport_options(), kAddressUrl, own);
  fetch->options.SetTimeout(kRpcTimeoutMillis);
  tensorflow::WorkerInterface* const stub = fetch->stub;
  stub->RecvBufAsync(&fetch->options, &fetch->request, &fetch->response,
                     [fetch](const Status& status) { FetchDone(fetch, status); });
}

void Peers::FetchDone(std::shared_ptr<Fetch> fetch, const Status& rpc_status) {
  fetch->cache->ReleaseWorker(fetch->worker, fetch->stub);
  fetch->stub = nullptr;
  Status status = rpc_status;
  std::string blob;
  std::string name;
  if (status.ok()) {
    const auto& answer = fetch->response.transport_options();
    if (answer.type_url() != kAddressUrl) {
      status = Status(absl::StatusCode::kFailedPrecondition,
                      absl::StrCat(fetch->worker, " answered no address: its server does not run grpc+verbs"));
    } else {
      blob = std::string(answer.value());
      status = fetch->context->ImportAddress(blob, &name);
    }
  }
  const int64_t now = tensorflow::Env::Default()->NowMicros();
  const bool transient = status.code() == absl::StatusCode::kUnavailable ||
                         status.code() == absl::StatusCode::kDeadlineExceeded;
  const bool open = static_cast<bool>(Context::Use(*fetch->context));
  if (!transient || !open || now + fetch->backoff >= fetch->deadline) {
    fetch->context->peers().Finish(fetch->worker, status, blob, name);
    return;
  }
  const int64_t pause = fetch->backoff;
  fetch->backoff = std::min(2 * pause, kMaxBackoffMicros);
  tensorflow::Env::Default()->SchedClosureAfter(pause, [fetch] { StartFetch(fetch); });
}

void Peers::Finish(const std::string& worker, const Status& status, const std::string& blob,
                   const std::string& name) {
  std::vector<std::pair<uint64_t, Ready>> waiting;
  PeerRef ref;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Peer& peer = peers_[worker];
    peer.fetching = false;
    waiting.swap(peer.waiting);
    if (status.ok()) {
      if (!peer.known || peer.blob != blob || peer.incarnations.size() > kMaxIncarnations) {
        peer.incarnations.clear();
        peer.ref = PeerRef{name, next_generation_++};
        peer.blob = blob;
        peer.known = true;
      }
      // Each waiter's key names a device of the process that it expects. If that process is gone, the one that
      // answered refuses the key, so believing it here is safe.
      for (const auto& waiter : waiting) peer.incarnations.insert(waiter.first);
    }
    ref = peer.ref;
  }
  const Status outcome =
      status.ok() ? status
                  : Status(status.code(), absl::StrCat("grpc+verbs: address of ", worker, ": ",
                                                       absl::string_view(status.message())));
  for (auto& waiter : waiting) waiter.second(outcome, ref);
}

void Peers::Invalidate(const std::string& worker, uint64_t generation) {
  const std::lock_guard<std::mutex> lock(mu_);
  auto found = peers_.find(worker);
  if (found == peers_.end() || found->second.ref.generation != generation) return;
  found->second.known = false;
}

}  // namespace rdma_tf
