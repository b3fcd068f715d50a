/* What a manager is made with: its options, and the functions that it calls, with what these are given. rdma_transport.hpp
 * includes it. */
#ifndef RDMA_TRANSPORT_OPTIONS_HPP
#define RDMA_TRANSPORT_OPTIONS_HPP

#include "rdma_transport_types.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace rdma {

namespace detail {
template <class T, class... Args>
std::unique_ptr<T> make_unique(Args &&...args) { /* C++11 has none */
  return std::unique_ptr<T>(new T(std::forward<Args>(args)...));
}
inline std::string text(const char *message, std::size_t len) { return len ? std::string(message, len) : std::string(); }
inline void send_done(rdma_code_t code, const char *message, std::size_t len, const rdma_transfer_info_t *info,
                      void *userdata) {
  std::unique_ptr<SendDone> done(static_cast<SendDone *>(userdata));
  (*done)(Status(code, text(message, len)), *info);
}
}  // namespace detail

/* A request that a peer made of us: answer it once. */
class Response {
 public:
  Response() = default;
  Response(rdma_mgr_t *mgr, rdma_response_t id) : mgr_(mgr), id_(id) {}
  /* The content is borrowed until `done`; without it, until the manager's end. */
  Status send(const Tensor &tensor, SendDone done = SendDone()) const {
    rdma_tensor_t t = tensor.c();
    if (!done) return Status::of(rdma_response_send(mgr_, id_, &t, nullptr, nullptr));
    auto state = detail::make_unique<SendDone>(std::move(done));
    rdma_code_t rc = rdma_response_send(mgr_, id_, &t, detail::send_done, state.get());
    if (rc == RDMA_OK) state.release();
    return Status::of(rc);
  }
  Status fail(rdma_code_t code, StringView message) const {
    return Status::of(rdma_response_fail(mgr_, id_, code, message.data(), message.size()));
  }
  rdma_response_t id() const { return id_; }
  explicit operator bool() const { return id_ != 0; }

 private:
  rdma_mgr_t *mgr_ = nullptr;
  rdma_response_t id_ = 0;
};
using SourceFn = std::function<void(Response, StringView peer, StringView key, std::int64_t step)>;
using SourceEndedFn = std::function<void(rdma_response_t, const Status &)>;
/* The status is OK for a peer that came, and says why one went. */
using PeerEventFn = std::function<void(StringView peer, const Status &)>;

namespace detail {
struct Hooks {
  SourceFn source;
  SourceEndedFn ended;
  PeerEventFn peer;
};
inline void on_source(rdma_mgr_t *mgr, rdma_response_t response, const char *peer, std::size_t peer_len, const char *key,
                      std::size_t key_len, std::int64_t step, void *userdata) {
  static_cast<Hooks *>(userdata)->source(Response(mgr, response), {peer, peer_len}, {key, key_len}, step);
}
inline void on_ended(rdma_mgr_t *, rdma_response_t response, rdma_code_t code, const char *message, std::size_t len,
                     void *userdata) {
  static_cast<Hooks *>(userdata)->ended(response, Status(code, text(message, len)));
}
inline void on_peer(rdma_mgr_t *, std::int32_t, const char *peer, std::size_t peer_len, rdma_code_t code,
                    const char *message, std::size_t len, void *userdata) {
  static_cast<Hooks *>(userdata)->peer({peer, peer_len}, Status(code, text(message, len)));
}
}  // namespace detail

/* Options of a manager; owns its strings. `raw()` reaches the fields without a setter. What is not set is the default; a
 * text that is set and empty is not, and refused. Of what was moved from no text is set. */
class Options {
 public:
  Options() { rdma_mgr_options_init(&o_, sizeof o_); }
  Options &name(std::string v) { return name_ = std::move(v), *this; }
  Options &provider(std::string v) { return provider_ = std::move(v), *this; }
  Options &listen(std::string v) { return listen_ = std::move(v), *this; }
  Options &secret(std::string v) { return secret_ = std::move(v), *this; }
  Options &manual_progress(bool v = true) {
    return o_.progress = v ? RDMA_PROGRESS_MANUAL : RDMA_PROGRESS_THREAD, *this;
  }
  Options &protocol(std::int32_t v) { return o_.protocol = v, *this; }
  Options &timeout_ms(std::int64_t v) { return o_.timeout_ms = v, *this; }
  Options &busy_poll_us(std::int64_t v) { return o_.busy_poll_us = v, *this; }
  Options &max_rdma_per_request(std::uint32_t v) { return o_.max_rdma_per_request = v, *this; }
  Options &checksum(bool v = true) { return o_.checksum = v, *this; }
  Options &tolerate_dup_recv(bool v = true) { return o_.tolerate_dup_recv = v, *this; }
  Options &allow_remote(bool v = true) { return o_.allow_remote = v, *this; }
  /* Names of the ibverbs devices, with a comma between. */
  Options &ib_device(std::string v) { return device_ = std::move(v), *this; }
  /* To outlive the creation of the manager, not the manager. */
  Options &pool(const Pool &v) { return o_.pool = v.c(), *this; }
  /* Asked for keys that the local table lacks, from the first request on. Here and below an empty function is none. */
  Options &source(SourceFn v) { return hooks_.source = std::move(v), *this; }
  /* Hears of requests that end before they are answered. */
  Options &source_ended(SourceEndedFn v) { return hooks_.ended = std::move(v), *this; }
  /* Hears of peers that come and go. */
  Options &peer_event(PeerEventFn v) { return hooks_.peer = std::move(v), *this; }
  const detail::Hooks &hooks() const { return hooks_; }
  rdma_mgr_options_t &raw() { return o_; }
  /* Whether C gets all of each text: it would end one that has a NUL there. */
  Status check() const {
    Status first = detail::whole("Options", "name", name_.str(), "provider", provider_.str());
    return first.ok() ? detail::whole("Options", "listen", listen_.str(), "ib_device", device_.str()) : first;
  }
  rdma_mgr_options_t c() const {
    rdma_mgr_options_t o = o_;
    if (name_) o.name = name_.str().c_str();
    if (provider_) o.provider = provider_.str().c_str();
    if (listen_) o.listen = listen_.str().c_str();
    if (device_) o.ib_device = device_.str().c_str();
    if (secret_) {
      o.secret = secret_.str().data();
      o.secret_len = secret_.str().size();
    }
    return o;
  }

 private:
  rdma_mgr_options_t o_{};
  OptionalText name_, provider_, listen_, secret_, device_;
  detail::Hooks hooks_;
};

}  // namespace rdma

#endif
