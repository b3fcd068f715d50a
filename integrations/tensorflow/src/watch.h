// Under the stricter rule (RDMA_PEER_TIMEOUT_MS): the parts of steps that run at other servers, and whether those are
// silent.
//
// The library ends a receive from a silent server. But a step also waits, by TensorFlow's own gRPC and without an end,
// for each server's word that its part is over, and all its tensors may have come before the server fell silent, or it
// may have none to receive. So such calls are watched: while one is out, the library is connected to its server, which
// it asks for signs of life. If that connection is lost, or there is none yet, the server is asked for its address; if
// it does not answer that either, the calls end as "unavailable".
//
// That the connection lives is what counts, and no answer of TensorFlow's: its threads may be busy for longer than the
// rule allows.
#ifndef RDMA_TF_WATCH_H_
#define RDMA_TF_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "peers.h"
#include "status.h"
#include "tf_compat.h"

namespace rdma_tf {

class Context;

class Watch : public std::enable_shared_from_this<Watch> {
 public:
  explicit Watch(int64_t silence_ms);
  ~Watch();

  // From now on calls are watched. Does nothing after Stop.
  void Start(std::weak_ptr<Context> context);
  // No call is watched any more. Idempotent.
  void Stop();

  // A call to `worker` begins that `options` can cancel, and it ends; between the two, `options` lives. Begin gives a
  // number for End, which gives what the caller is told.
  uint64_t Begin(const std::string& worker, Peers::Cache cache, tensorflow::CallOptions* options);
  Status End(uint64_t id, const Status& status);

  // A worker cache whose workers watch the calls that run steps. It owns `cache`, whose `local` worker is this server.
  tensorflow::WorkerCacheInterface* Wrap(std::unique_ptr<tensorflow::WorkerCacheInterface> cache,
                                         tensorflow::WorkerInterface* local);

 private:
  using Clock = std::chrono::steady_clock;
  struct Call {
    std::string worker;
    Peers::Cache cache;
    Clock::time_point begin;
    tensorflow::CallOptions* options;
    Status blamed;  // not OK: it was cancelled for this
  };
  // What is known of a server besides its connection.
  struct Question {
    bool out = false;
    Clock::time_point next;  // not asked before that
  };

  void Run();
  // Workers to look at: those with calls that are out for some time.
  std::map<std::string, Peers::Cache> Due();
  void Look(const std::shared_ptr<Context>& context, const std::string& worker, Peers::Cache cache);
  void Answered(const std::shared_ptr<Context>& context, const std::string& worker, const Status& status,
                const PeerRef& peer);

  const std::chrono::milliseconds silence_;
  const std::chrono::milliseconds interval_;
  std::weak_ptr<Context> context_;  // set before the thread is made
  std::mutex mu_;
  std::condition_variable wake_;
  std::unordered_map<uint64_t, Call> calls_;            // guarded by mu_
  std::unordered_map<std::string, Question> questions_;  // guarded by mu_
  uint64_t next_call_ = 1;                              // guarded by mu_
  bool idle_ = false;                                   // guarded by mu_: the thread sleeps until there are calls
  bool stopped_ = false;                                // guarded by mu_
  std::thread thread_;                                  // guarded by mu_
};

}  // namespace rdma_tf

#endif  // RDMA_TF_WATCH_H_
