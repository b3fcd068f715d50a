// One rdma_mgr per TensorFlow server: its life, its address, and the peers it knows.
#ifndef RDMA_TF_CONTEXT_H_
#define RDMA_TF_CONTEXT_H_

#include <atomic>
#include <memory>
#include <string>

#include "peers.h"
#include "rdma_transport.h"
#include "status.h"
#include "tf_compat.h"
#include "watch.h"

namespace rdma_tf {

class VerbsWorker;

class Context : public std::enable_shared_from_this<Context> {
 public:
  // `name` is this worker's name, unique in the cluster. `host` is the host that the cluster spec gives to this
  // task: it decides whether the manager may be reached from other machines.
  // `watch` is empty where nobody's silence counts.
  static Status Create(const std::string& name, const std::string& host, const tensorflow::WorkerEnv* env,
                       VerbsWorker* worker, std::shared_ptr<Watch> watch, std::shared_ptr<Context>* out);
  ~Context();

  // Ends every operation, then the manager. No callback of this context runs after it. Idempotent; but a call beside
  // one that is under way returns at once, and callbacks may run until that one has returned. Not to be called from a
  // callback of the library.
  void Shutdown();

  // The manager while this object lives; null once Shutdown has begun. Cheap: one atomic addition. May be nested.
  class Use {
   public:
    explicit Use(const Context& context) : context_(context), mgr_(context.Enter()) {}
    ~Use() { context_.Leave(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    rdma_mgr_t* mgr() const { return mgr_; }
    explicit operator bool() const { return mgr_ != nullptr; }

   private:
    const Context& context_;
    rdma_mgr_t* const mgr_;
  };

  // This worker's address blob, for the peer that asked.
  Status ExportAddress(std::string* blob) const;
  // Adds or updates a peer; tells its name.
  Status ImportAddress(const std::string& blob, std::string* name) const;
  // Whether the library is connected to that worker of TensorFlow.
  bool Connected(const std::string& worker) const;
  // Begins to connect, without a tensor to receive.
  void Connect(const PeerRef& peer) const;
  // The manager's statistics as JSON, "null" after Shutdown.
  std::string StatsJson() const;

  const std::string& name() const { return name_; }
  const Patience& patience() const { return patience_; }
  const tensorflow::WorkerEnv* env() const { return env_; }
  VerbsWorker* worker() const { return worker_; }
  Peers& peers() { return *peers_; }

 private:
  Context(std::string name, const tensorflow::WorkerEnv* env, VerbsWorker* worker);
  Status Start(const std::string& host);
  rdma_mgr_t* Enter() const;
  void Leave() const;

  const std::string name_;
  const Patience patience_;
  const tensorflow::WorkerEnv* const env_;
  VerbsWorker* const worker_;
  std::unique_ptr<Peers> peers_;
  std::shared_ptr<Watch> watch_;
  rdma_mgr_t* mgr_ = nullptr;
  std::atomic<bool> closed_{false};
  mutable std::atomic<int64_t> users_{0};
};

// Statistics of every live context: a JSON array of {"name", "stats"}.
std::string AllStatsJson();
// Ends every live context, but for those that other threads are ending: the end of the process is near and TensorFlow's globals must not be used any more.
void ShutdownAll();

}  // namespace rdma_tf

#endif  // RDMA_TF_CONTEXT_H_
