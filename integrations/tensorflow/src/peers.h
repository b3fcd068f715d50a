// The peers of one worker: their address blobs travel over TensorFlow's own gRPC, when first needed, and again when
// a peer turns out to be a new process.
//
// How long a peer is waited for: as long as gRPC itself waits, since the question is one of TensorFlow's RPCs without
// a time-out. A stopped server is waited for, a server that is gone is "unavailable". A deadline is only ever one that
// the user set (RDMA_TIMEOUT_MS).
#ifndef RDMA_TF_PEERS_H_
#define RDMA_TF_PEERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "status.h"
#include "tf_compat.h"

namespace rdma_tf {

class Context;

// The type_url that marks an address request inside RecvBufRequest.transport_options, and its answer.
inline constexpr char kAddressUrl[] = "type.rdma-transport/address.v1";

// What the user set about waiting; the library checked the variables when it read them.
struct Patience {
  int64_t silence_ms = 0;   // RDMA_PEER_TIMEOUT_MS: a peer silent for so long is unavailable; 0: never
  int64_t deadline_ms = 0;  // RDMA_TIMEOUT_MS: a receive ends after so long; 0: never
  static Patience FromEnv();
};

// A peer that can be addressed. `generation` names the blob that it came from.
struct PeerRef {
  std::string name;
  uint64_t generation = 0;
};

class Peers {
 public:
  using Ready = std::function<void(const Status&, const PeerRef&)>;
  using Cache = std::shared_ptr<tensorflow::WorkerCacheInterface>;

  explicit Peers(Patience patience) : patience_(patience) {}

  // Finds the address of `worker` (TensorFlow's name of it), of the process whose device has `incarnation`. Runs
  // `ready` once: at once if the address is known (the result is then 0), else on a thread of gRPC, unless Forget
  // gets the result first. `context` must own this object.
  uint64_t Resolve(std::shared_ptr<Context> context, const std::string& worker, uint64_t incarnation, Cache cache,
                   Ready ready);

  // Asks `worker` for its address, whether it is known or not, as Resolve does. Only the worker's silence, and no
  // deadline, ends the question.
  void Ask(std::shared_ptr<Context> context, const std::string& worker, Cache cache, Ready ready);

  // The name under which the library knows `worker`, "" if its address is not known.
  std::string NameOf(const std::string& worker);

  // Nobody waits for that result of Resolve any more.
  void Forget(const std::string& worker, uint64_t waiter);

  // Ends every question: the context is shutting down.
  void Stop();

  // The address of that generation did not work: ask again at the next use.
  void Invalidate(const std::string& worker, uint64_t generation);

 private:
  struct Waiter {
    uint64_t id = 0;
    uint64_t incarnation = 0;  // 0: of whatever process answers
    int64_t since = 0;         // milliseconds of a clock that never jumps
    Ready ready;
  };
  struct Peer {
    PeerRef ref;
    std::string blob;
    std::set<uint64_t> incarnations;  // of the devices seen in the process that `blob` belongs to
    bool known = false;
    bool fetching = false;
    std::vector<Waiter> waiting;
  };
  struct Fetch;

  static void Begin(std::shared_ptr<Context> context, const std::string& worker, Cache cache);
  static void StartFetch(std::shared_ptr<Fetch> fetch);
  static void FetchDone(std::shared_ptr<Fetch> fetch, const Status& status);
  // Time-out of the next attempt in milliseconds, 0: none.
  int64_t AttemptMillis(const Fetch& fetch);
  // Ends the waiters that the user's deadline is over for. False: nobody waits any more, the fetch is over.
  bool Expire(const std::string& worker);
  // Whether a failed fetch is tried again; if not, `status` becomes what its waiters are told.
  bool Again(Fetch* fetch, Status* status);
  void Finish(const std::string& worker, const Status& status, const std::string& blob, const std::string& name);

  const Patience patience_;
  std::mutex mu_;
  std::unordered_map<std::string, Peer> peers_;  // guarded by mu_
  std::set<std::shared_ptr<Fetch>> fetches_;     // guarded by mu_: those with a question out
  uint64_t next_generation_ = 1;                 // guarded by mu_
  uint64_t next_waiter_ = 1;                     // guarded by mu_
  bool stopped_ = false;                         // guarded by mu_
};

}  // namespace rdma_tf

#endif  // RDMA_TF_PEERS_H_
