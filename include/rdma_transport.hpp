/* C++11 and later over rdma_transport.h: owning handles, std::function callbacks, results without
 * exceptions.
 *
 * Nothing here throws, apart from std::bad_alloc. A callback must not throw either: it is called
 * from C, and an exception that leaves it ends the process (std::terminate). */
#ifndef RDMA_TRANSPORT_HPP
#define RDMA_TRANSPORT_HPP

#include "rdma_transport_options.hpp"
#include "rdma_transport_types.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
#include <unistd.h>

namespace rdma {

class Pair;

namespace detail {
struct RecvState {
  RecvDone done;
  AllocFn alloc;
};
inline void recv_done(rdma_code_t code, const char *message, std::size_t len, const rdma_tensor_t *tensor,
                      const rdma_transfer_info_t *info, void *userdata) {
  std::unique_ptr<RecvState> state(static_cast<RecvState *>(userdata));
  if (state->done) state->done(Status(code, text(message, len)), tensor, *info);
}
inline void *alloc(const rdma_tensor_t *meta, void *userdata) {
  return static_cast<RecvState *>(userdata)->alloc(*meta);
}
/* A receive's result and its request come in either order; the second one fulfils the promise. */
struct Both {
  std::promise<Result<Received>> promise;
  std::mutex mutex;
  Request request;
  Status status;
  Tensor tensor;
  int parts = 0;
  void started(Request r) {
    std::unique_lock<std::mutex> lock(mutex);
    request = std::move(r);
    fulfil(lock);
  }
  void ended(const Status &s, const rdma_tensor_t *t) {
    std::unique_lock<std::mutex> lock(mutex);
    status = s;
    if (t) tensor = Tensor(*t);
    fulfil(lock);
  }
  void fulfil(std::unique_lock<std::mutex> &lock) {
    if (++parts < 2) return;
    lock.unlock();
    if (status.ok()) {
      promise.set_value(Received{std::move(tensor), std::move(request)});
    } else {
      promise.set_value(status);
    }
  }
};
struct Device {
  CopyToHost to_host;
  CopyFromHost from_host;
  ExportDmabuf dmabuf;
};
inline void copy_to_host(void *host, const void *device, std::uint64_t n, rdma_copy_done_fn done, void *token,
                         void *userdata) {
  static_cast<Device *>(userdata)->to_host(host, device, n, [done, token](rdma_code_t c) { done(c, token); });
}
inline void copy_from_host(void *device, const void *host, std::uint64_t n, rdma_copy_done_fn done, void *token,
                           void *userdata) {
  static_cast<Device *>(userdata)->from_host(device, host, n, [done, token](rdma_code_t c) { done(c, token); });
}
inline rdma_code_t export_dmabuf(const void *device, std::uint64_t n, int *fd, std::uint64_t *offset, void *userdata) {
  return static_cast<Device *>(userdata)->dmabuf(device, n, fd, offset);
}
}  // namespace detail

/* One worker: owns its connections and memory. Destruction ends every operation first: after it no
 * callback runs, on any thread, and at any time of the process's life, also in destructors of static and
 * thread_local objects. Inside a callback that cannot be, and the process ends with a word about it
 * (std::terminate); `close` returns an error there. In a forked child a manager of the parent has no
 * threads and ends quietly. */
class Manager {
 public:
  /* None: every call returns RDMA_INVALID_ARGUMENT. */
  Manager() : state_(detail::make_unique<State>()) {}
  static Result<Manager> create(const Options &options = Options()) {
    Status texts = options.check();
    if (!texts.ok()) return texts;
    rdma_mgr_options_t o = options.c();
    auto state = detail::make_unique<State>();
    state->hooks = detail::make_unique<detail::Hooks>(options.hooks());
    detail::Hooks *hooks = state->hooks.get();
    if (hooks->source) o.source = detail::on_source;
    if (hooks->ended) o.source_ended = detail::on_ended;
    if (hooks->source || hooks->ended) o.source_userdata = hooks;
    if (hooks->peer) {
      o.peer_event = detail::on_peer;
      o.peer_event_userdata = hooks;
    }
    rdma_mgr_t *mgr = nullptr;
    rdma_code_t rc = rdma_mgr_create(&o, &mgr);
    if (rc != RDMA_OK) return Status::of(rc);
    return Manager(mgr, std::move(state));
  }
  Manager(Manager &&) = default;
  /* The old manager ends before what its callbacks point to. */
  Manager &operator=(Manager &&other) noexcept {
    if (this != &other) {
      mgr_.reset();
      state_ = std::move(other.state_);
      mgr_ = std::move(other.mgr_);
    }
    return *this;
  }
  rdma_mgr_t *c() const { return mgr_.get(); }
  explicit operator bool() const { return mgr_ != nullptr; }
  /* Ends the manager like the destructor, with the code. RDMA_FAILED_PRECONDITION (inside a callback): it
   * lives on. */
  Status close() {
    if (!mgr_) return Status();
    Status status = Status::of(rdma_mgr_destroy(c()));
    if (status.code() != RDMA_FAILED_PRECONDITION) {
      mgr_.release();
      state_->clear();
    }
    return status;
  }

  /* peers */
  Result<std::string> listen(const std::string &address) {
    Status text = detail::whole("Manager::listen", "address", address);
    if (!text.ok()) return text;
    std::array<char, 512> bound{};
    std::size_t len = 0;
    rdma_code_t rc = rdma_mgr_listen(c(), address.c_str(), bound.data(), bound.size(), &len);
    if (rc != RDMA_OK) return Status::of(rc);
    return std::string(bound.data(), len);
  }
  Status add_peer(const std::string &peer, const std::string &address) {
    Status text = detail::whole("Manager::add_peer", "peer", peer, "address", address);
    if (!text.ok()) return text;
    return Status::of(rdma_mgr_add_peer(c(), peer.c_str(), address.c_str()));
  }
  /* Connects to who listens there; its name. */
  Result<std::string> meet(const std::string &address, std::int64_t timeout_ms) {
    Status text = detail::whole("Manager::meet", "address", address);
    if (!text.ok()) return text;
    std::array<char, RDMA_MAX_NAME_LEN + 1> name{};
    std::size_t len = 0;
    rdma_code_t rc = rdma_mgr_meet(c(), address.c_str(), timeout_ms, name.data(), name.size(), &len);
    if (rc != RDMA_OK) return Status::of(rc);
    return std::string(name.data(), len);
  }
  /* The same without waiting: options.peer_event tells the name. */
  Status add_peer_at(const std::string &address) {
    Status text = detail::whole("Manager::add_peer_at", "address", address);
    return text.ok() ? Status::of(rdma_mgr_add_peer(c(), nullptr, address.c_str())) : text;
  }
  /* Before the first connection. */
  Status set_name(const std::string &name) {
    Status text = detail::whole("Manager::set_name", "name", name);
    return text.ok() ? Status::of(rdma_mgr_set_name(c(), name.c_str())) : text;
  }
  Status connect(const std::string &peer, std::int64_t timeout_ms = 0) {
    Status text = detail::whole("Manager::connect", "peer", peer);
    if (!text.ok()) return text;
    return Status::of(rdma_mgr_connect(c(), peer.c_str(), timeout_ms));
  }
  Status disconnect(const std::string &peer) {
    Status text = detail::whole("Manager::disconnect", "peer", peer);
    return text.ok() ? Status::of(rdma_mgr_disconnect(c(), peer.c_str())) : text;
  }
  Result<rdma_peer_info_t> peer_info(const std::string &peer) const {
    Status text = detail::whole("Manager::peer_info", "peer", peer);
    if (!text.ok()) return text;
    rdma_peer_info_t info{};
    info.struct_size = sizeof info;
    rdma_code_t rc = rdma_mgr_peer_info(c(), peer.c_str(), &info);
    if (rc != RDMA_OK) return Status::of(rc);
    return info;
  }
  Result<std::string> export_address() {
    return detail::read_text([this](char *buf, std::size_t cap, std::size_t *len) {
      return rdma_mgr_export_address(c(), reinterpret_cast<std::uint8_t *>(buf), cap, len);
    });
  }
  Result<std::string> import_address(StringView blob) {
    std::array<char, RDMA_MAX_NAME_LEN + 1> name{};
    std::size_t len = 0;
    rdma_code_t rc = rdma_mgr_import_address(c(), reinterpret_cast<const std::uint8_t *>(blob.data()), blob.size(),
                                             name.data(), name.size(), &len);
    if (rc != RDMA_OK) return Status::of(rc);
    return std::string(name.data(), len);
  }

  /* progress */
  Result<std::uint32_t> progress() {
    std::uint32_t events = 0;
    rdma_code_t rc = rdma_mgr_progress(c(), &events);
    if (rc != RDMA_OK) return Status::of(rc);
    return events;
  }
  Status wait(std::int64_t timeout_ms) { return Status::of(rdma_mgr_wait(c(), timeout_ms)); }
  /* Ends a wait, on this thread or another one. */
  Status wake() { return Status::of(rdma_mgr_wake(c())); }
  /* Until what was accepted has ended; an empty peer is everybody. */
  Status flush(const std::string &peer, std::int64_t timeout_ms) {
    Status text = detail::whole("Manager::flush", "peer", peer);
    if (!text.ok()) return text;
    return Status::of(rdma_mgr_flush(c(), peer.empty() ? nullptr : peer.c_str(), timeout_ms));
  }
  Result<int> event_fd() {
    int fd = -1;
    rdma_code_t rc = rdma_mgr_event_fd(c(), &fd);
    if (rc != RDMA_OK) return Status::of(rc);
    return fd;
  }

  /* memory */
  Status register_memory(void *addr, std::size_t len, std::uint32_t device = RDMA_DEVICE_HOST) {
    return Status::of(rdma_mem_register(c(), addr, len, device));
  }
  Status unregister_memory(void *addr) { return Status::of(rdma_mem_unregister(c(), addr)); }
  Status invalidate_memory(void *addr, std::size_t len) { return Status::of(rdma_mem_invalidate(c(), addr, len)); }
  Result<void *> alloc(std::size_t len) {
    void *out = nullptr;
    rdma_code_t rc = rdma_mem_alloc(c(), len, &out);
    if (rc != RDMA_OK) return Status::of(rc);
    return out;
  }
  Status free(void *addr) { return Status::of(rdma_mem_free(c(), addr)); }
  /* Neither function may be empty. */
  /* Without `dmabuf` tensors on the device always go through host memory. */
  Result<std::uint32_t> register_device(CopyToHost to_host, CopyFromHost from_host, ExportDmabuf dmabuf = ExportDmabuf()) {
    const char *function = "Manager::register_device";
    Status given = detail::there(function, "to_host", to_host);
    if (given.ok()) given = detail::there(function, "from_host", from_host);
    if (!given.ok()) return given;
    rdma_device_ops_t ops{sizeof ops, detail::copy_to_host, detail::copy_from_host, dmabuf ? detail::export_dmabuf : nullptr};
    std::uint32_t id = 0;
    if (!state_) return Status::of(rdma_mgr_register_device(c(), &ops, nullptr, &id)); /* it was moved */
    auto device = std::make_shared<detail::Device>(detail::Device{std::move(to_host), std::move(from_host), std::move(dmabuf)});
    state_->keep(device);
    rdma_code_t rc = rdma_mgr_register_device(c(), &ops, device.get(), &id);
    if (rc == RDMA_OK) return id;
    Status status = Status::of(rc);
    state_->drop(device);
    return status;
  }

  /* rendezvous */

  /* The content is borrowed until `done`; without it, until the manager's end. */
  Status send(StringView key, std::int64_t step, const Tensor &tensor, SendDone done = SendDone(),
              std::int64_t timeout_ms = 0) {
    rdma_tensor_t t = tensor.c();
    rdma_send_options_t o;
    rdma_send_options_init(&o, sizeof o);
    o.timeout_ms = timeout_ms;
    if (!done) return Status::of(rdma_send(c(), key.data(), key.size(), step, &t, &o, nullptr, nullptr));
    auto state = detail::make_unique<SendDone>(std::move(done));
    rdma_code_t rc = rdma_send(c(), key.data(), key.size(), step, &t, &o, detail::send_done, state.get());
    if (rc == RDMA_OK) state.release();
    return Status::of(rc);
  }
  /* An empty peer is oneself. With an empty `done` nobody hears of the end. */
  Result<Request> recv_async(const std::string &peer, StringView key, std::int64_t step, RecvDone done,
                             RecvOptions options = RecvOptions()) {
    Status text = detail::whole("Manager::recv_async", "peer", peer);
    if (!text.ok()) return text;
    auto state = detail::make_unique<detail::RecvState>();
    state->done = std::move(done);
    state->alloc = std::move(options.alloc);
    rdma_recv_options_t o = convert(options, *state);
    rdma_request_t id = 0;
    rdma_code_t rc = rdma_recv_async(c(), peer.empty() ? nullptr : peer.c_str(), key.data(), key.size(), step, &o,
                                     detail::recv_done, state.get(), &id);
    if (rc != RDMA_OK) return Status::of(rc);
    state.release();
    return Request(c(), id);
  }
  /* The same without a request to hold: it cannot be cancelled on its own, and library memory lives for the
   * call of `done` only. */
  Status recv_then(const std::string &peer, StringView key, std::int64_t step, RecvDone done,
                   RecvOptions options = RecvOptions()) {
    Status text = detail::whole("Manager::recv_then", "peer", peer);
    if (!text.ok()) return text;
    auto state = detail::make_unique<detail::RecvState>();
    state->done = std::move(done);
    state->alloc = std::move(options.alloc);
    rdma_recv_options_t o = convert(options, *state);
    rdma_code_t rc = rdma_recv_async(c(), peer.empty() ? nullptr : peer.c_str(), key.data(), key.size(), step, &o,
                                     detail::recv_done, state.get(), nullptr);
    if (rc == RDMA_OK) state.release();
    return Status::of(rc);
  }
  /* Blocks until the content is in the caller's memory; no request to hold. Of `len` 0 nobody has memory: nullptr will do. */
  Result<Tensor> recv_into(const std::string &peer, StringView key, std::int64_t step, void *dst, std::uint64_t len,
                           std::int64_t timeout_ms = 0) {
    Status text = detail::whole("Manager::recv_into", "peer", peer);
    if (!text.ok()) return text;
    rdma_recv_options_t o;
    rdma_recv_options_init(&o, sizeof o);
    char none;
    o.timeout_ms = timeout_ms;
    o.dst = dst || len ? dst : &none;
    o.dst_len = len;
    rdma_tensor_t out;
    rdma_tensor_init(&out, sizeof out);
    rdma_code_t rc =
        rdma_recv(c(), peer.empty() ? nullptr : peer.c_str(), key.data(), key.size(), step, &o, &out, nullptr);
    if (rc != RDMA_OK) return Status::of(rc);
    return Tensor(out);
  }
  /* Blocks, and drives progress meanwhile. */
  Result<Received> recv(const std::string &peer, StringView key, std::int64_t step, RecvOptions options = RecvOptions()) {
    Status text = detail::whole("Manager::recv", "peer", peer);
    if (!text.ok()) return text;
    detail::RecvState state;
    state.alloc = std::move(options.alloc);
    rdma_recv_options_t o = convert(options, state);
    rdma_tensor_t out;
    rdma_tensor_init(&out, sizeof out);
    rdma_request_t id = 0;
    rdma_code_t rc = rdma_recv(c(), peer.empty() ? nullptr : peer.c_str(), key.data(), key.size(), step, &o, &out, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    return Received{Tensor(out), Request(c(), id)};
  }
  /* In manual mode somebody has to drive progress, or the future never becomes ready. */
  std::future<Result<Received>> recv_future(const std::string &peer, StringView key, std::int64_t step,
                                            RecvOptions options = RecvOptions()) {
    auto both = std::make_shared<detail::Both>();
    auto future = both->promise.get_future();
    auto request = recv_async(
        peer, key, step,
        [both](const Status &status, const rdma_tensor_t *t, const TransferInfo &) { both->ended(status, t); },
        std::move(options));
    if (request.ok()) {
      both->started(*std::move(request));
    } else {
      both->promise.set_value(request.status());
    }
    return future;
  }
  Status step_abort(std::int64_t step, rdma_code_t code, StringView message) {
    return Status::of(rdma_step_abort(c(), step, code, message.data(), message.size()));
  }
  Status step_cleanup(std::int64_t step) { return Status::of(rdma_step_cleanup(c(), step)); }

  /* The runtime's own rendezvous as the source; an empty function: none. */
  Status set_source(SourceFn source) {
    if (!source || !state_) return Status::of(rdma_mgr_set_source(c(), nullptr, nullptr));
    auto held = std::make_shared<SourceFn>(std::move(source));
    state_->keep(held); /* for good, once it is in use: an old one may still be running */
    Status status = Status::of(rdma_mgr_set_source(c(), on_source, held.get()));
    if (!status.ok()) state_->drop(held);
    return status;
  }

  /* observability */
  Result<std::string> stats_json() const {
    return detail::read_text([this](char *b, std::size_t n, std::size_t *l) { return rdma_mgr_stats_json(c(), b, n, l); });
  }
  Result<std::string> metrics() const {
    return detail::read_text([this](char *b, std::size_t n, std::size_t *l) { return rdma_mgr_metrics(c(), b, n, l); });
  }
  Status trace_start(const std::string &path) {
    Status text = detail::whole("Manager::trace_start", "path", path);
    return text.ok() ? Status::of(rdma_trace_start(c(), path.c_str())) : text;
  }
  Status trace_stop() { return Status::of(rdma_trace_stop(c())); }

 private:
  friend class Pair;
  struct State;
  struct Destroy {
    pid_t process;
    State *state;
    void operator()(rdma_mgr_t *mgr) const {
      rdma_code_t rc = rdma_mgr_destroy(mgr);
      if (rc == RDMA_OK || getpid() != process) return;
      /* The thread may be ending, and its last error gone. */
      const char *why = rdma_code_name(rc);
      if (rc != RDMA_FAILED_PRECONDITION) { /* a defect of the library, where no callback runs any more */
        std::fprintf(stderr, "rdma_transport: the end of a Manager: %s: %s\n", why, Status::of(rc).message().c_str());
        return;
      }
      std::fprintf(stderr,
                   "rdma_transport: a Manager was destroyed inside a callback, or its handle by somebody else; its "
                   "callbacks could run after its end: %s: %s\n",
                   why, Status::of(rc).message().c_str());
      std::terminate();
    }
  };
  struct State { /* what callbacks point to; outlives the manager below */
    std::unique_ptr<detail::Hooks> hooks;
    /* Any thread may set a source or register a device. The lock is not held for the call, which may run callbacks; so a
     * thing is kept before it, and no want of memory comes between the call and its keeping. */
    void keep(std::shared_ptr<void> one) {
      std::lock_guard<std::mutex> lock(mutex);
      kept.push_back(std::move(one));
    }
    void drop(const std::shared_ptr<void> &one) {
      std::lock_guard<std::mutex> lock(mutex);
      for (std::size_t i = kept.size(); i-- > 0;)
        if (kept[i] == one) return kept[i].swap(kept.back()), kept.pop_back();
    }
    void clear() {
      hooks.reset();
      std::vector<std::shared_ptr<void>> gone; /* ends without the lock */
      std::lock_guard<std::mutex> lock(mutex);
      gone.swap(kept);
    }
    /* The callbacks of its buffers (rdma_transport_pair.hpp). */
    template <class Table>
    std::shared_ptr<Table> buffers() {
      std::lock_guard<std::mutex> lock(mutex);
      if (!table) table = std::make_shared<Table>();
      return std::static_pointer_cast<Table>(table);
    }

   private:
    std::mutex mutex;
    std::vector<std::shared_ptr<void>> kept;
    std::shared_ptr<void> table;
  };
  Manager(rdma_mgr_t *mgr, std::unique_ptr<State> state) : state_(std::move(state)), mgr_(mgr, Destroy{getpid(), state_.get()}) {}
  static rdma_recv_options_t convert(const RecvOptions &options, detail::RecvState &state) {
    rdma_recv_options_t o;
    rdma_recv_options_init(&o, sizeof o);
    o.timeout_ms = options.timeout_ms;
    o.dst = options.dst;
    o.dst_len = options.dst_len;
    o.device = options.device;
    if (state.alloc) {
      o.alloc = detail::alloc;
      o.alloc_userdata = &state;
    }
    return o;
  }
  static void on_source(rdma_mgr_t *mgr, rdma_response_t response, const char *peer, std::size_t peer_len,
                        const char *key, std::size_t key_len, std::int64_t step, void *userdata) {
    (*static_cast<SourceFn *>(userdata))(Response(mgr, response), {peer, peer_len}, {key, key_len}, step);
  }
  std::unique_ptr<State> state_;
  std::unique_ptr<rdma_mgr_t, Destroy> mgr_{nullptr, Destroy{0, nullptr}};
};

}  // namespace rdma

#endif
