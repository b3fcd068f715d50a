#include "peers.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "context.h"
#include "tensorflow/core/distributed_runtime/call_options.h"

namespace rdma_tf {
namespace {

// A worker that cannot be reached is tried again for this long; then the step fails and TensorFlow decides.
constexpr int64_t kGiveUpMillis = 10'000;
constexpr int64_t kFirstBackoffMillis = 20;
constexpr int64_t kMaxBackoffMillis = 1'000;
// More incarnations than a process can have devices: forget the old ones.
constexpr size_t kMaxIncarnations = 1024;
// When somebody began to wait whose deadline is never over.
constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max() / 2;

int64_t NowMillis() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

int64_t MillisFromEnv(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? 0 : std::strtoll(value, nullptr, 10);
}

Status Stopped() { return Status(absl::StatusCode::kUnavailable, "grpc+verbs: server stopped"); }

// A server without this plugin takes the question for one about its collectives, and finds no such device. All that
// our own server can say begins with the name of the protocol.
bool FromAnotherServer(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return !absl::StrContains(status.message(), "grpc+verbs");
    default:
      return false;
  }
}

Status NotOurServer(const std::string& worker, absl::string_view said) {
  return Status(absl::StatusCode::kFailedPrecondition,
                absl::StrCat("the server of ", worker,
                             " does not run grpc+verbs: make every server of the cluster with protocol=\"grpc+verbs\", "
                             "after import rdma_tensorflow (it said: ",
                             said.substr(0, said.find('\n')), ")"));
}

}  // namespace

Patience Patience::FromEnv() {
  Patience patience;
  patience.silence_ms = MillisFromEnv("RDMA_PEER_TIMEOUT_MS");
  patience.deadline_ms = MillisFromEnv("RDMA_TIMEOUT_MS");
  return patience;
}

// One exchange with one worker, retried with growing pauses.
struct Peers::Fetch {
  std::shared_ptr<Context> context;
  std::string worker;
  Cache cache;
  int64_t begin = NowMillis();
  int64_t refused = 0;  // since when the worker cannot be reached; 0: it was not tried yet
  int64_t backoff = kFirstBackoffMillis;
  tensorflow::WorkerInterface* stub = nullptr;
  tensorflow::CallOptions options;
  tensorflow::RecvBufRequest request;
  tensorflow::RecvBufResponse response;
};

uint64_t Peers::Resolve(std::shared_ptr<Context> context, const std::string& worker, uint64_t incarnation, Cache cache,
                        Ready ready) {
  PeerRef ref;
  uint64_t waiter = 0;
  bool stopped = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Peer& peer = peers_[worker];
    stopped = stopped_;
    if (stopped) {
      // Told below, without the lock.
    } else if (!peer.known || peer.incarnations.count(incarnation) == 0) {
      waiter = next_waiter_++;
      peer.waiting.push_back(Waiter{waiter, incarnation, NowMillis(), std::move(ready)});
      if (std::exchange(peer.fetching, true)) return waiter;
    } else {
      ref = peer.ref;
    }
  }
  if (waiter == 0) {
    ready(stopped ? Stopped() : Status(), ref);
    return 0;
  }
  Begin(std::move(context), worker, std::move(cache));
  return waiter;
}

void Peers::Ask(std::shared_ptr<Context> context, const std::string& worker, Cache cache, Ready ready) {
  bool stopped = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stopped = stopped_;
    if (!stopped) {
      Peer& peer = peers_[worker];
      peer.waiting.push_back(Waiter{next_waiter_++, 0, kNoDeadline, std::move(ready)});
      if (std::exchange(peer.fetching, true)) return;
    }
  }
  if (stopped) {
    ready(Stopped(), PeerRef());
  } else {
    Begin(std::move(context), worker, std::move(cache));
  }
}

std::string Peers::NameOf(const std::string& worker) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = peers_.find(worker);
  return found == peers_.end() ? std::string() : found->second.ref.name;
}

void Peers::Begin(std::shared_ptr<Context> context, const std::string& worker, Cache cache) {
  auto fetch = std::make_shared<Fetch>();
  fetch->context = std::move(context);
  fetch->worker = worker;
  fetch->cache = std::move(cache);
  StartFetch(std::move(fetch));
}

void Peers::Forget(const std::string& worker, uint64_t waiter) {
  Ready dropped;  // what it holds ends without the lock
  const std::lock_guard<std::mutex> lock(mu_);
  auto found = peers_.find(worker);
  if (found == peers_.end()) return;
  for (Waiter& each : found->second.waiting) {
    if (each.id != waiter) continue;
    dropped = std::move(each.ready);
    std::swap(each, found->second.waiting.back());
    found->second.waiting.pop_back();
    return;
  }
}

void Peers::Stop() {
  std::vector<Waiter> waiting;
  std::set<std::shared_ptr<Fetch>> fetches;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
    fetches.swap(fetches_);
    for (auto& peer : peers_) {
      std::move(peer.second.waiting.begin(), peer.second.waiting.end(), std::back_inserter(waiting));
      peer.second.waiting.clear();
    }
  }
  for (const auto& fetch : fetches) fetch->options.StartCancel();
  for (const Waiter& waiter : waiting) waiter.ready(Stopped(), PeerRef());
}

int64_t Peers::AttemptMillis(const Fetch& fetch) {
  const int64_t now = NowMillis();
  int64_t until = patience_.silence_ms > 0 ? fetch.begin + patience_.silence_ms : 0;
  if (patience_.deadline_ms > 0) {
    const std::lock_guard<std::mutex> lock(mu_);
    for (const Waiter& waiter : peers_[fetch.worker].waiting) {
      const int64_t end = waiter.since + patience_.deadline_ms;
      until = until == 0 ? end : std::min(until, end);
    }
  }
  return until == 0 ? 0 : std::max<int64_t>(until - now, 1);
}

void Peers::StartFetch(std::shared_ptr<Fetch> fetch) {
  std::string own;
  Peers& peers = fetch->context->peers();
  Status status = fetch->context->ExportAddress(&own);
  if (status.ok()) {
    fetch->stub = fetch->cache->GetOrCreateWorker(fetch->worker);
    if (fetch->stub == nullptr) {
      status = Status(absl::StatusCode::kInternal, absl::StrCat("no worker known as ", fetch->worker));
    }
  }
  if (!status.ok()) {
    peers.Finish(fetch->worker, status, "", "");
    return;
  }
  fetch->request.Clear();
  fetch->response.Clear();
  // A peer without this plugin looks the key up among its collectives: the name makes its error readable.
  fetch->request.set_buf_rendezvous_key(kAddressUrl);
  fetch->request.set_src_device(fetch->worker);
  SetAny(fetch->request.mutable_transport_options(), kAddressUrl, own);
  fetch->options.SetTimeout(peers.AttemptMillis(*fetch));
  {
    const std::lock_guard<std::mutex> lock(peers.mu_);
    peers.fetches_.insert(fetch);
  }
  tensorflow::WorkerInterface* const stub = fetch->stub;
  stub->RecvBufAsync(&fetch->options, &fetch->request, &fetch->response,
                     [fetch](const Status& status) { FetchDone(fetch, status); });
  bool late = false;  // Stop came before there was something to cancel
  {
    const std::lock_guard<std::mutex> lock(peers.mu_);
    late = peers.stopped_;
  }
  if (late) fetch->options.StartCancel();
}

void Peers::FetchDone(std::shared_ptr<Fetch> fetch, const Status& rpc_status) {
  Peers& peers = fetch->context->peers();
  {
    const std::lock_guard<std::mutex> lock(peers.mu_);
    peers.fetches_.erase(fetch);
  }
  fetch->cache->ReleaseWorker(fetch->worker, fetch->stub);
  fetch->stub = nullptr;
  Status status = rpc_status;
  std::string blob;
  std::string name;
  if (status.ok()) {
    const auto& answer = fetch->response.transport_options();
    if (answer.type_url() != kAddressUrl) {
      status = NotOurServer(fetch->worker, "nothing");
    } else {
      blob = std::string(answer.value());
      status = fetch->context->ImportAddress(blob, &name);
    }
  } else if (FromAnotherServer(status)) {
    status = NotOurServer(fetch->worker, status.message());
  }
  if (status.ok() || !static_cast<bool>(Context::Use(*fetch->context))) {
    peers.Finish(fetch->worker, status, blob, name);
    return;
  }
  if (!peers.Expire(fetch->worker)) return;
  if (!peers.Again(fetch.get(), &status)) {
    peers.Finish(fetch->worker, status, "", "");
    return;
  }
  const int64_t pause = fetch->backoff;
  fetch->backoff = std::min(2 * pause, kMaxBackoffMillis);
  tensorflow::Env::Default()->SchedClosureAfter(pause * 1000, [fetch] { StartFetch(fetch); });
}

bool Peers::Again(Fetch* fetch, Status* status) {
  const int64_t now = NowMillis();
  if (status->code() == absl::StatusCode::kDeadlineExceeded) {
    // Of an attempt: whoever waits has not reached a deadline of his own.
    if (patience_.silence_ms == 0 || now - fetch->begin < patience_.silence_ms) return true;
    *status = FromPeer(Status(absl::StatusCode::kUnavailable,
                              absl::StrCat("no answer for ", now - fetch->begin,
                                           " ms (RDMA_PEER_TIMEOUT_MS=", patience_.silence_ms, ")")),
                       fetch->worker);
    return false;
  }
  if (status->code() != absl::StatusCode::kUnavailable) return false;
  if (fetch->refused == 0) fetch->refused = now;
  return now + fetch->backoff < fetch->refused + kGiveUpMillis;
}

bool Peers::Expire(const std::string& worker) {
  std::vector<Waiter> over;
  bool left = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Peer& peer = peers_[worker];
    const int64_t latest = patience_.deadline_ms > 0 ? NowMillis() - patience_.deadline_ms : 0;
    const auto end = std::partition(peer.waiting.begin(), peer.waiting.end(), [&](const Waiter& each) {
      return patience_.deadline_ms == 0 || each.since > latest;
    });
    std::move(end, peer.waiting.end(), std::back_inserter(over));
    peer.waiting.erase(end, peer.waiting.end());
    left = peer.fetching = !peer.waiting.empty();
  }
  const Status status(absl::StatusCode::kDeadlineExceeded,
                      absl::StrCat("grpc+verbs: address of ", worker,
                                   ": no answer within RDMA_TIMEOUT_MS=", patience_.deadline_ms));
  for (const Waiter& waiter : over) waiter.ready(status, PeerRef());
  return left;
}

void Peers::Finish(const std::string& worker, const Status& status, const std::string& blob,
                   const std::string& name) {
  std::vector<Waiter> waiting;
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
      for (const Waiter& waiter : waiting) {
        if (waiter.incarnation != 0) peer.incarnations.insert(waiter.incarnation);
      }
    } else {
      peer.known = false;  // whoever needs it next asks, and waits for no connection to a server that says nothing
    }
    ref = peer.ref;
  }
  const Status outcome =
      status.ok() ? status
                  : Status(status.code(), absl::StrCat("grpc+verbs: address of ", worker, ": ",
                                                       absl::string_view(status.message())));
  for (const Waiter& waiter : waiting) waiter.ready(outcome, ref);
}

void Peers::Invalidate(const std::string& worker, uint64_t generation) {
  const std::lock_guard<std::mutex> lock(mu_);
  auto found = peers_.find(worker);
  if (found == peers_.end() || found->second.ref.generation != generation) return;
  found->second.known = false;
}

}  // namespace rdma_tf
