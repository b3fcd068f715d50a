/* C++11 and later over the tagged messages of rdma_transport.h (`rdma_msg_*`, which see for what each call
 * means), in the manner of rdma_transport.hpp: owning handles, std::function callbacks, results without
 * exceptions. */
#ifndef RDMA_TRANSPORT_MSG_HPP
#define RDMA_TRANSPORT_MSG_HPP

#include "rdma_transport.hpp"
#include "rdma_transport_msg_types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rdma {

/* A message operation. At its end nobody asks for the operation any more, which goes on: the memory that was
 * given to it stays borrowed, and a callback still runs. Must end before its manager. One thread at a time. */
class MessageRequest {
 public:
  /* None: it is not pending, and counts as none among others. */
  MessageRequest() = default;
  MessageRequest(rdma_mgr_t *mgr, rdma_msg_request_t id) : mgr_(mgr), id_(id) {}
  /* One that has ended at once. */
  explicit MessageRequest(MessageStatus status) : ended_(true), status_(std::move(status)) {}
  MessageRequest(MessageRequest &&other) noexcept
      : mgr_(other.mgr_), id_(other.id_), ended_(other.ended_), status_(std::move(other.status_)) {
    other.id_ = 0;
    other.ended_ = false;
    if (!other.status_.ok()) other.status_ = MessageStatus();
  }
  /* What this was is released, as in its destructor. */
  MessageRequest &operator=(MessageRequest &&other) noexcept {
    MessageRequest taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~MessageRequest() { release(); }

  rdma_msg_request_t id() const { return id_; }
  /* There is an end to wait for. Of one with a callback it stays true: the callback tells. */
  bool pending() const { return id_ != 0; }
  /* The same; not whether it went well. */
  explicit operator bool() const { return pending(); }
  /* How it ended, where it is not pending. */
  const MessageStatus &status() const { return status_; }
  /* Asks for the end, which is told as usual. */
  Status cancel() { return Status::of(rdma_msg_cancel(mgr_, id_)); }
  /* Whether it has ended; drives progress once if not. */
  Result<bool> test() {
    Status called = take(false, 0);
    if (!called.ok()) return called;
    return !pending();
  }
  /* Waits, and drives progress meanwhile. How it ended, or why this failed: then it is still pending. */
  Status wait(std::int64_t timeout_ms = RDMA_MSG_FOREVER) {
    Status called = take(true, timeout_ms);
    return called.ok() ? status_.status : called;
  }
  void release() {
    rdma_msg_request_t id = id_;
    id_ = 0;
    if (id) rdma_msg_free(mgr_, id);
  }

 private:
  friend class Messages;
  Status take(bool wait, std::int64_t timeout_ms) {
    if (id_) {
      rdma_msg_status_t end{};
      end.struct_size = sizeof end;
      std::size_t n = 0;
      rdma_code_t rc = wait ? rdma_msg_wait(mgr_, &id_, 1, RDMA_MSG_ALL, timeout_ms, nullptr, &end, &n)
                            : rdma_msg_test(mgr_, &id_, 1, RDMA_MSG_ALL, nullptr, &end, &n);
      if (rc != RDMA_OK) return Status::of(rc);
      if (n) status_ = MessageStatus(end);
    }
    if (!id_) ended_ = false;
    return Status();
  }
  void swap(MessageRequest &other) noexcept {
    std::swap(mgr_, other.mgr_);
    std::swap(id_, other.id_);
    std::swap(ended_, other.ended_);
    std::swap(status_, other.status_);
  }

  rdma_mgr_t *mgr_ = nullptr;
  rdma_msg_request_t id_ = 0;
  bool ended_ = false; /* and not yet told among several */
  MessageStatus status_;
};

/* Requests of somebody else, side by side. */
class MessageSpan {
 public:
  MessageSpan(MessageRequest *first, std::size_t count) : first_(first), count_(count) {}
  MessageSpan(MessageRequest &one) : MessageSpan(&one, 1) {}
  MessageSpan(std::vector<MessageRequest> &all) : MessageSpan(all.data(), all.size()) {}
  template <std::size_t N>
  MessageSpan(std::array<MessageRequest, N> &all) : MessageSpan(all.data(), N) {}
  template <std::size_t N>
  MessageSpan(MessageRequest (&all)[N]) : MessageSpan(all, N) {}
  std::size_t size() const { return count_; }
  MessageRequest *begin() const { return first_; }
  MessageRequest *end() const { return first_ + count_; }
  MessageRequest &operator[](std::size_t i) const { return first_[i]; }

 private:
  MessageRequest *first_;
  std::size_t count_;
};

namespace detail {
inline void message_done(const rdma_msg_status_t *status, void *userdata) {
  std::unique_ptr<MessageDone> done(static_cast<MessageDone *>(userdata));
  (*done)(MessageStatus(*status));
}
/* Options for C, and the callback until it belongs to an operation. */
struct MessageCall {
  rdma_msg_options_t options;
  rdma_msg_layout_t layout;
  std::unique_ptr<MessageDone> done;
  /* The options outlive the call. */
  explicit MessageCall(const MessageOptions &o) {
    rdma_msg_options_init(&options, sizeof options);
    if (o.layout) {
      layout = o.layout.c();
      options.layout = &layout;
    }
    options.header = o.header.empty() ? nullptr : o.header.data();
    options.header_len = o.header.size();
    options.timeout_ms = o.timeout_ms;
    options.mode = o.mode;
    options.device = o.device;
    options.incarnation = o.incarnation;
  }
  void set_done(MessageDone f) {
    if (!f) return;
    done = detail::make_unique<MessageDone>(std::move(f));
    options.done = message_done;
    options.userdata = done.get();
  }
  /* The call succeeded. Without a request the callback does not run. */
  void begun(rdma_msg_request_t id) {
    if (id) done.release(); /* it may have run, and be gone */
  }
};
/* Several requests as C wants them: a few without allocation. */
class MessageBatch {
 public:
  explicit MessageBatch(std::size_t count) {
    if (count > kHere) {
      more_ids_.resize(count);
      more_indices_.resize(count);
      more_ends_.resize(count);
      ids = more_ids_.data();
      indices = more_indices_.data();
      ends = more_ends_.data();
    }
    ends[0].struct_size = sizeof ends[0];
  }
  MessageBatch(const MessageBatch &) = delete;
  MessageBatch &operator=(const MessageBatch &) = delete;

 private:
  enum : std::size_t { kHere = 16 };
  rdma_msg_request_t here_ids_[kHere];
  std::size_t here_indices_[kHere];
  rdma_msg_status_t here_ends_[kHere];
  std::vector<rdma_msg_request_t> more_ids_;
  std::vector<std::size_t> more_indices_;
  std::vector<rdma_msg_status_t> more_ends_;

 public:
  rdma_msg_request_t *ids = here_ids_;
  std::size_t *indices = here_indices_;
  rdma_msg_status_t *ends = here_ends_;
};
}  // namespace detail

/* A prepared operation, which begins as often as it is started; without a callback. Must end before its manager. What it
 * has begun goes on. */
class MessagePrepared {
 public:
  MessagePrepared() = default;
  MessagePrepared(rdma_mgr_t *mgr, rdma_msg_persistent_t id, std::size_t bytes, std::uint64_t incarnation = 0)
    : mgr_(mgr), id_(id), bytes_(bytes), incarnation_(incarnation) {}
  MessagePrepared(MessagePrepared &&other) noexcept { swap(other); }
  /* What this was ends, as in its destructor. */
  MessagePrepared &operator=(MessagePrepared &&other) noexcept {
    MessagePrepared taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~MessagePrepared() {
    if (id_) rdma_msg_persistent_free(mgr_, id_);
  }
  explicit operator bool() const { return id_ != 0; }
  /* The status of a send that has ended at once has its length, and which incarnation it was for alone. */
  Result<MessageRequest> start() const {
    rdma_msg_status_t end{};
    end.struct_size = sizeof end;
    end.bytes = bytes_;
    end.incarnation = incarnation_;
    rdma_msg_request_t id = 0;
    rdma_code_t rc = rdma_msg_start(mgr_, id_, &end, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    if (id) return MessageRequest(mgr_, id);
    return MessageRequest(MessageStatus(end));
  }

 private:
  void swap(MessagePrepared &other) noexcept {
    std::swap(mgr_, other.mgr_);
    std::swap(id_, other.id_);
    std::swap(bytes_, other.bytes_);
    std::swap(incarnation_, other.incarnation_);
  }
  rdma_mgr_t *mgr_ = nullptr;
  rdma_msg_persistent_t id_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t incarnation_ = 0;
};

namespace detail {
inline std::uint32_t message_handler(rdma_mgr_t *, const rdma_msg_status_t *status, const void *data,
                                     void *userdata) {
  return (*static_cast<MessageHandler *>(userdata))(MessageStatus(*status), data);
}
inline void message_room(rdma_code_t code, std::uint64_t bytes, void *userdata) {
  std::unique_ptr<MessageRoom> room(static_cast<MessageRoom *>(userdata));
  (*room)(code == RDMA_OK ? Status() : Status(code, rdma_code_name(code)), bytes);
}
}  // namespace detail

/* The messages of a manager, which ends later than this; it may be moved meanwhile. */
class Messages {
 public:
  /* `test_any`, `wait_any`: no request is left. */
  static constexpr std::size_t none() { return static_cast<std::size_t>(-1); }

  explicit Messages(const Manager &manager) : mgr_(manager.c()) {}

  /* The number by which messages name a peer; one's own name has one, too. */
  Result<rdma_peer_t> peer(const std::string &name) const {
    Status text = detail::whole("Messages::peer", "name", name);
    if (!text.ok()) return text;
    rdma_peer_t out = 0;
    rdma_code_t rc = rdma_peer_lookup(mgr_, name.c_str(), &out);
    if (rc != RDMA_OK) return Status::of(rc);
    return out;
  }
  Result<std::string> peer_name(rdma_peer_t peer) const {
    std::array<char, RDMA_MAX_NAME_LEN + 1> name{};
    std::size_t len = 0;
    rdma_code_t rc = rdma_peer_name(mgr_, peer, name.data(), name.size(), &len);
    if (rc != RDMA_OK) return Status::of(rc);
    return std::string(name.data(), len);
  }
  /* How many bytes of messages may be sent to a peer now before one has to wait. */
  Result<std::uint64_t> room(rdma_peer_t peer) const {
    std::uint64_t bytes = 0;
    rdma_code_t rc = rdma_msg_room(mgr_, peer, &bytes);
    if (rc != RDMA_OK) return Status::of(rc);
    return bytes;
  }

  /* The content is borrowed until the end. */
  Result<MessageRequest> isend(rdma_peer_t peer, std::uint32_t comm, std::uint64_t tag, const void *data,
                               std::size_t len) const {
    rdma_msg_request_t id = 0;
    rdma_code_t rc = rdma_msg_isend(mgr_, peer, comm, tag, data, len, nullptr, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    return id ? MessageRequest(mgr_, id) : sent(peer, comm, tag, len);
  }
  Result<MessageRequest> isend(rdma_peer_t peer, std::uint32_t comm, std::uint64_t tag, const void *data,
                               std::size_t len, MessageOptions options) const {
    detail::MessageCall call(options);
    call.set_done(std::move(options.done));
    rdma_msg_request_t id = 0;
    rdma_code_t rc = rdma_msg_isend(mgr_, peer, comm, tag, data, len, &call.options, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    call.begun(id);
    if (id) return MessageRequest(mgr_, id);
    return sent(peer, comm, tag, options.layout ? options.layout.size() : len, options.incarnation);
  }
  /* To the handler of this number at the peer; otherwise as `isend`. */
  Result<MessageRequest> am_isend(rdma_peer_t peer, std::uint32_t handler, std::uint64_t tag, const void *data,
                                  std::size_t len, MessageOptions options = MessageOptions()) const {
    detail::MessageCall call(options);
    call.set_done(std::move(options.done));
    rdma_msg_request_t id = 0;
    rdma_code_t rc = rdma_msg_am_isend(mgr_, peer, handler, tag, data, len, &call.options, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    call.begun(id);
    if (id) return MessageRequest(mgr_, id);
    return sent(peer, handler, tag, options.layout ? options.layout.size() : len, options.incarnation);
  }
  /* As `handler`, whose `run` is shown content where the peer wrote it, if it can be: see rdma_msg_handler_in_place. */
  Status handler_in_place(std::uint32_t id, MessageHandler *run) const {
    Status given = run ? detail::there("Messages::handler_in_place", "run", *run) : Status();
    if (!given.ok()) return given;
    return Status::of(rdma_msg_handler_in_place(mgr_, id, run ? detail::message_handler : nullptr, run));
  }
  /* What active messages of this number run; nullptr: nothing any more; an empty function is refused. It has to live as long
   * as the manager: it may run on another thread when this returns. */
  Status handler(std::uint32_t id, MessageHandler *run) const {
    Status given = run ? detail::there("Messages::handler", "run", *run) : Status();
    if (!given.ok()) return given;
    return Status::of(rdma_msg_handler(mgr_, id, run ? detail::message_handler : nullptr, run));
  }
  /* Calls `run` once, when so many bytes may be sent, or will never be. */
  Status on_room(rdma_peer_t peer, std::uint64_t bytes, MessageRoom run) const {
    Status given = detail::there("Messages::on_room", "run", run);
    if (!given.ok()) return given;
    auto room = detail::make_unique<MessageRoom>(std::move(run));
    rdma_code_t rc = rdma_msg_on_room(mgr_, peer, bytes, detail::message_room, room.get());
    if (rc == RDMA_OK) room.release(); /* it may have run, and be gone */
    return Status::of(rc);
  }
  /* Sends and receives to be started again and again; options with a callback, which runs once, are refused. */
  Result<MessagePrepared> send_init(rdma_peer_t peer, std::uint32_t comm, std::uint64_t tag, const void *data,
                                    std::size_t len, const MessageOptions &options = MessageOptions()) const {
    if (options.done) return prepared_done("Messages::send_init");
    detail::MessageCall call(options);
    rdma_msg_persistent_t id = 0;
    rdma_code_t rc = rdma_msg_send_init(mgr_, peer, comm, tag, data, len, &call.options, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    return MessagePrepared(mgr_, id, options.layout ? options.layout.size() : len, options.incarnation);
  }
  Result<MessagePrepared> recv_init(rdma_peer_t source, std::uint32_t comm, std::uint64_t tag, std::uint64_t mask,
                                    void *buf, std::size_t len, const MessageOptions &options = MessageOptions()) const {
    if (options.done) return prepared_done("Messages::recv_init");
    detail::MessageCall call(options);
    rdma_msg_persistent_t id = 0;
    rdma_code_t rc = rdma_msg_recv_init(mgr_, source, comm, tag, mask, buf, len, &call.options, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    return MessagePrepared(mgr_, id, 0);
  }
  /* What sends in RDMA_MSG_BUFFERED mode may take; and the end of that, once they have gone. */
  Status attach(std::uint64_t bytes) const { return Status::of(rdma_msg_attach(mgr_, bytes)); }
  Status detach(std::int64_t timeout_ms = RDMA_MSG_FOREVER) const {
    return Status::of(rdma_msg_detach(mgr_, timeout_ms));
  }
  /* The first message of `source`, or of RDMA_PEER_ANY, whose tag equals `tag` in the bits of `mask`. The memory is
   * borrowed until the end; a longer message ends the receive with RDMA_OUT_OF_RANGE. */
  Result<MessageRequest> irecv(rdma_peer_t source, std::uint32_t comm, std::uint64_t tag, std::uint64_t mask, void *buf,
                               std::size_t len) const {
    return received([&](rdma_msg_status_t *end, rdma_msg_request_t *id) {
      return rdma_msg_irecv(mgr_, source, comm, tag, mask, buf, len, nullptr, end, id);
    });
  }
  Result<MessageRequest> irecv(rdma_peer_t source, std::uint32_t comm, std::uint64_t tag, std::uint64_t mask, void *buf,
                               std::size_t len, MessageOptions options) const {
    return receive(std::move(options), [&](const rdma_msg_options_t *o, rdma_msg_status_t *end, rdma_msg_request_t *id) {
      return rdma_msg_irecv(mgr_, source, comm, tag, mask, buf, len, o, end, id);
    });
  }
  /* The message that `probe` has claimed. */
  Result<MessageRequest> imrecv(std::uint64_t message, void *buf, std::size_t len,
                                MessageOptions options = MessageOptions()) const {
    return receive(std::move(options), [&](const rdma_msg_options_t *o, rdma_msg_status_t *end, rdma_msg_request_t *id) {
      return rdma_msg_imrecv(mgr_, message, buf, len, o, end, id);
    });
  }
  /* Blocks until the memory may be used again, and drives progress meanwhile; in RDMA_MSG_BUFFERED mode neither, so that
   * it may be called inside a callback. */
  Status send(rdma_peer_t peer, std::uint32_t comm, std::uint64_t tag, const void *data, std::size_t len) const {
    return Status::of(rdma_msg_send(mgr_, peer, comm, tag, data, len, nullptr));
  }
  Status send(rdma_peer_t peer, std::uint32_t comm, std::uint64_t tag, const void *data, std::size_t len,
              const MessageOptions &options) const {
    detail::MessageCall call(options);
    return Status::of(rdma_msg_send(mgr_, peer, comm, tag, data, len, &call.options));
  }
  /* Blocks, and drives progress meanwhile. The status also says why the call failed. */
  MessageStatus recv(rdma_peer_t source, std::uint32_t comm, std::uint64_t tag, std::uint64_t mask, void *buf,
                     std::size_t len) const {
    return recv_with(source, comm, tag, mask, buf, len, nullptr);
  }
  MessageStatus recv(rdma_peer_t source, std::uint32_t comm, std::uint64_t tag, std::uint64_t mask, void *buf,
                     std::size_t len, const MessageOptions &options) const {
    detail::MessageCall call(options);
    return recv_with(source, comm, tag, mask, buf, len, &call.options);
  }
  /* The first message that such a receive would meet, waiting for one up to timeout_ms; RDMA_DEADLINE_EXCEEDED: there
   * is none. `claim`: no other receive meets it, and `imrecv` with what `message` says has to be called. */
  Result<MessageStatus> probe(rdma_peer_t source, std::uint32_t comm, std::uint64_t tag,
                              std::uint64_t mask = RDMA_MSG_TAG_MASK, bool claim = false,
                              std::int64_t timeout_ms = 0) const {
    rdma_msg_status_t found{};
    found.struct_size = sizeof found;
    rdma_code_t rc = rdma_msg_probe(mgr_, source, comm, tag, mask, claim, timeout_ms, &found);
    if (rc != RDMA_OK) return Status::of(rc);
    return MessageStatus(found);
  }
  /* By a request's id, as long as it is pending: also while another thread waits for it. */
  Status cancel(rdma_msg_request_t id) const { return Status::of(rdma_msg_cancel(mgr_, id)); }

  /* Of several requests, without a callback, of this manager. Each end is told once, also of what had ended when its
   * call returned; its request says how it ended. `test_` drives progress once, `wait_` until there are ends. */

  /* Whether all have ended; if not, none has been taken. */
  Result<bool> test_all(MessageSpan requests) const {
    Status called = collect(requests, RDMA_MSG_ALL, nullptr, [](std::size_t) {});
    if (!called.ok()) return called;
    for (const MessageRequest &r : requests)
      if (r.pending()) return false;
    return true;
  }
  /* How the first that failed has ended, or why this failed. */
  Status wait_all(MessageSpan requests, std::int64_t timeout_ms = RDMA_MSG_FOREVER) const {
    Status first;
    Status called = collect(requests, RDMA_MSG_ALL, &timeout_ms, [&](std::size_t i) {
      if (first.ok()) first = requests[i].status().status;
    });
    return called.ok() ? first : called;
  }
  /* Which one has ended; none(): none has. */
  Result<std::size_t> test_any(MessageSpan requests) const { return one(requests, nullptr); }
  /* Which one has ended; none(): none is left to wait for. */
  Result<std::size_t> wait_any(MessageSpan requests, std::int64_t timeout_ms = RDMA_MSG_FOREVER) const {
    return one(requests, &timeout_ms);
  }
  /* Which have ended, in order. */
  Result<std::vector<std::size_t>> test_some(MessageSpan requests) const { return some(requests, nullptr); }
  /* At least one, unless none is left to wait for. */
  Result<std::vector<std::size_t>> wait_some(MessageSpan requests, std::int64_t timeout_ms = RDMA_MSG_FOREVER) const {
    return some(requests, &timeout_ms);
  }

 private:
  static Status prepared_done(const char *function) {
    return detail::refused(function, "options.done is given, allowed is none: a prepared operation tells its requests");
  }
  /* One that has ended at once. */
  static MessageRequest sent(rdma_peer_t peer, std::uint32_t comm, std::uint64_t tag, std::size_t len,
                             std::uint64_t incarnation = 0) {
    MessageStatus sent;
    sent.peer = peer;
    sent.tag = tag;
    sent.bytes = len;
    sent.comm = comm;
    sent.incarnation = incarnation;
    return MessageRequest(std::move(sent));
  }
  MessageStatus recv_with(rdma_peer_t source, std::uint32_t comm, std::uint64_t tag, std::uint64_t mask, void *buf,
                          std::size_t len, const rdma_msg_options_t *options) const {
    rdma_msg_status_t end{};
    end.struct_size = sizeof end;
    rdma_code_t rc = rdma_msg_recv(mgr_, source, comm, tag, mask, buf, len, options, &end);
    MessageStatus out(end);
    out.status = Status::of(rc);
    return out;
  }
  template <class Begin>
  Result<MessageRequest> received(Begin begin) const {
    rdma_msg_status_t end{};
    end.struct_size = sizeof end;
    rdma_msg_request_t id = 0;
    rdma_code_t rc = begin(&end, &id);
    if (rc != RDMA_OK) return Status::of(rc);
    return id ? MessageRequest(mgr_, id) : MessageRequest(MessageStatus(end));
  }
  template <class Begin>
  Result<MessageRequest> receive(MessageOptions options, Begin begin) const {
    detail::MessageCall call(options);
    call.set_done(std::move(options.done));
    return received([&](rdma_msg_status_t *end, rdma_msg_request_t *id) {
      rdma_code_t rc = begin(&call.options, end, id);
      if (rc == RDMA_OK) call.begun(*id);
      return rc;
    });
  }
  Result<std::size_t> one(MessageSpan requests, const std::int64_t *timeout_ms) const {
    std::size_t which = none();
    Status called = collect(requests, RDMA_MSG_ANY, timeout_ms, [&](std::size_t i) { which = i; });
    if (!called.ok()) return called;
    return which;
  }
  Result<std::vector<std::size_t>> some(MessageSpan requests, const std::int64_t *timeout_ms) const {
    std::vector<std::size_t> which;
    which.reserve(requests.size()); /* no end is lost for want of memory */
    Status called = collect(requests, RDMA_MSG_SOME, timeout_ms, [&](std::size_t i) { which.push_back(i); });
    if (!called.ok()) return called;
    return which;
  }
  /* A request that is not this manager's, among those that a wait or a test was given. */
  static Status foreign(std::size_t at, std::uint32_t how, const std::int64_t *timeout_ms) {
    std::string name(timeout_ms ? "Messages::wait_" : "Messages::test_");
    name += how == RDMA_MSG_ALL ? "all" : how == RDMA_MSG_ANY ? "any" : "some";
    return detail::refused(name.c_str(), "requests[" + std::to_string(at) +
                                             "] is of another manager, allowed are those of this one");
  }
  /* Takes ends, in order; without a timeout it does not wait. */
  template <class Taken>
  Status collect(MessageSpan requests, std::uint32_t how, const std::int64_t *timeout_ms, Taken taken) const {
    detail::MessageBatch batch(requests.size());
    std::size_t asked = 0, n = 0;
    bool at_once = false;
    for (std::size_t i = 0; i < requests.size(); i++) {
      const MessageRequest &r = requests[i];
      if (r.id_ && r.mgr_ != mgr_) return foreign(i, how, timeout_ms);
      batch.ids[i] = r.id_;
      asked += r.id_ != 0;
      at_once = at_once || r.ended_;
    }
    if (asked && !(at_once && how == RDMA_MSG_ANY)) {
      /* What has ended already is enough of some. */
      bool wait = timeout_ms && !(at_once && how == RDMA_MSG_SOME);
      std::size_t count = requests.size();
      rdma_code_t rc = wait ? rdma_msg_wait(mgr_, batch.ids, count, how, *timeout_ms, batch.indices, batch.ends, &n)
                            : rdma_msg_test(mgr_, batch.ids, count, how, batch.indices, batch.ends, &n);
      if (rc != RDMA_OK) return Status::of(rc);
      if (how == RDMA_MSG_ALL && n == 0) return Status();
    }
    for (std::size_t k = 0; k < n; k++) {
      MessageRequest &r = requests[batch.indices[k]];
      r.id_ = 0;
      r.ended_ = true;
      r.status_ = MessageStatus(batch.ends[k]);
    }
    for (std::size_t i = 0; i < requests.size(); i++) {
      if (!requests[i].ended_) continue;
      requests[i].ended_ = false;
      taken(i);
      if (how == RDMA_MSG_ANY) break;
    }
    return Status();
  }
  rdma_mgr_t *mgr_;
};

}  // namespace rdma

#endif
