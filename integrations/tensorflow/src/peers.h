// The peers of one worker: their address blobs travel over TensorFlow's own gRPC, when first needed, and again when
// a peer turns out to be a new process.
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

// A peer that can be addressed. `generation` names the blob that it came from.
struct PeerRef {
  std::string name;
  uint64_t generation = 0;
};

class Peers {
 public:
  using Ready = std::function<void(const Status&, const PeerRef&)>;
  using Cache = std::shared_ptr<tensorflow::WorkerCacheInterface>;

  // Finds the address of `worker` (TensorFlow's name of it), of the process whose device has `incarnation`. Runs
  // `ready` once: at once if the address is known, else on a thread of gRPC. `context` must own this object.
  void Resolve(std::shared_ptr<Context> context, const std::string& worker, uint64_t incarnation, Cache cache,
               Ready ready);

  // The address of that generation did not work: ask again at the next use.
  void Invalidate(const std::string& worker, uint64_t generation);

 private:
  struct Peer {
    PeerRef ref;
    std::string blob;
    std::set<uint64_t> incarnations;  // of the devices seen in the process that `blob` belongs to
    bool known = false;
    bool fetching = false;
    std::vector<std::pair<uint64_t, Ready>> waiting;
  };
  struct Fetch;

  static void StartFetch(std::shared_ptr<Fetch> fetch);
  static void FetchDone(std::shared_ptr<Fetch> fetch, const Status& status);
  void Finish(const std::string& worker, const Status& status, const std::string& blob, const std::string& name);

  std::mutex mu_;
  std::unordered_map<std::string, Peer> peers_;  // guarded by mu_
  uint64_t next_generation_ = 1;                 // guarded by mu_
};

}  // namespace rdma_tf

#endif  // RDMA_TF_PEERS_H_
