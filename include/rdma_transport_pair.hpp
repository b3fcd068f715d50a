/* C++11 and later over the pairs and buffers of rdma_transport.h (`rdma_pair_*`, `rdma_buffer_*`, `rdma_unbound_*`, which
 * see for what each call means), in the manner of rdma_transport.hpp: owning handles, std::function callbacks, results without
 * exceptions. */
#ifndef RDMA_TRANSPORT_PAIR_HPP
#define RDMA_TRANSPORT_PAIR_HPP

#include "rdma_transport.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
#include <unistd.h>

namespace rdma {

/* What happened to a buffer: RDMA_BUFFER_SENT (with its result), RDMA_BUFFER_RECEIVED, RDMA_BUFFER_BROKEN (and why). */
struct BufferEvent {
  std::uint32_t what;
  Status status;
};
using BufferTold = std::function<void(const BufferEvent &)>;

namespace detail {
/* The callback of a buffer. A callback may begin, or go on, after its buffer was ended by another thread's callback: so what C
 * is given of it is this, which lives as long as the manager, and knows the buffer by its number, which the manager never
 * uses again. */
struct BufferEntry {
  std::mutex mutex; /* held from before the buffer is made, until its number is known */
  rdma_buffer_t id = 0;
  std::shared_ptr<BufferTold> told;
};
/* Those of a manager. Nothing here may be one for each program: a plugin would have its own, and what it made may end
 * elsewhere. */
class BufferTable {
 public:
  BufferEntry *take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      all_.push_back(detail::make_unique<BufferEntry>());
      free_.reserve(all_.size()); /* so that giving one back needs no memory */
      return all_.back().get();
    }
    BufferEntry *entry = free_.back();
    free_.pop_back();
    return entry;
  }
  void give_back(BufferEntry *entry) noexcept {
    std::shared_ptr<BufferTold> last; /* ends without a lock */
    {
      std::lock_guard<std::mutex> lock(entry->mutex);
      entry->id = 0;
      last = std::move(entry->told);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(entry);
  }
  /* In a forked child its locks may be held by threads that are not there. */
  bool is_here() const { return getpid() == process_; }

 private:
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::vector<std::unique_ptr<BufferEntry>> all_;
  std::vector<BufferEntry *> free_;
};
inline void buffer_event(rdma_buffer_t id, std::uint32_t event, rdma_code_t code, const char *message,
                         void *userdata) {
  BufferEntry *entry = static_cast<BufferEntry *>(userdata);
  std::shared_ptr<BufferTold> told;
  {
    std::lock_guard<std::mutex> lock(entry->mutex);
    if (entry->id == id) told = entry->told;
  }
  if (told) (*told)(BufferEvent{event, code == RDMA_OK ? Status() : Status(code, message)});
}
/* After this code a handle of a manager is none any more; after any other it may still be in use. */
inline bool is_over(rdma_code_t rc) { return rc == RDMA_OK || rc == RDMA_NOT_FOUND; }
/* The destructor of a buffer cannot go on: its memory would be freed while it is written to. `known`: what another call
 * says of the buffer, FAILED_PRECONDITION where its manager is gone or a parent's, and with it all that might write. */
inline void could_not_end(const char *what, const Status &status, rdma_code_t known) noexcept {
  if (status.code() == RDMA_FAILED_PRECONDITION && known == RDMA_FAILED_PRECONDITION) return;
  std::fprintf(stderr,
               "rdma_transport: %s was destroyed inside a callback, where it cannot end; its memory could be used after "
               "its end: %s: %s\n",
               what, rdma_code_name(status.code()), status.message().c_str());
  std::terminate();
}
}  // namespace detail

/* A buffer of a pair. Its end destroys it: then its memory is the application's, and its callback does not run (but where
 * it ends inside a callback: then its own may be running on another thread). Must end before its pair and its manager. It may
 * be made in one module of a process and end in another. */
class PairBuffer {
 public:
  /* None. */
  PairBuffer() = default;
  PairBuffer(PairBuffer &&other) noexcept { swap(other); }
  /* What this was ends, as in its destructor. */
  PairBuffer &operator=(PairBuffer &&other) noexcept {
    PairBuffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~PairBuffer() {
    Status status = destroy();
    if (id_) {
      std::uint64_t sent = 0, received = 0;
      detail::could_not_end("a PairBuffer", status, rdma_buffer_test(mgr_, id_, &sent, &received));
      if (table_ && !table_->is_here()) return;
    }
    forget();
  }

  rdma_buffer_t id() const { return id_; }
  explicit operator bool() const { return id_ != 0; }
  /* Begins to send so many bytes at `offset` to `remote_offset` of the other end's buffer of this slot. */
  Status send(std::size_t offset, std::size_t len, std::uint64_t remote_offset = 0) {
    return Status::of(rdma_buffer_send(mgr_, id_, offset, len, remote_offset));
  }
  /* Waits for the end of a send; 0: as long as the manager's options say; RDMA_MSG_FOREVER: for ever. */
  Status wait_send(std::int64_t timeout_ms = 0) { return Status::of(rdma_buffer_wait_send(mgr_, id_, timeout_ms)); }
  /* Waits for an arrival. */
  Status wait_recv(std::int64_t timeout_ms = 0) { return Status::of(rdma_buffer_wait_recv(mgr_, id_, timeout_ms)); }
  /* Ends of sends and arrivals that could be taken at once. */
  Result<std::pair<std::uint64_t, std::uint64_t>> test() {
    std::pair<std::uint64_t, std::uint64_t> counts{0, 0};
    rdma_code_t rc = rdma_buffer_test(mgr_, id_, &counts.first, &counts.second);
    if (rc != RDMA_OK) return Status::of(rc);
    return counts;
  }
  /* Ends it like the destructor, with the code. Unless that is OK or NOT_FOUND it lives on. */
  Status destroy() {
    rdma_code_t rc = id_ ? rdma_buffer_destroy(mgr_, id_) : RDMA_OK;
    Status status = Status::of(rc);
    if (!detail::is_over(rc)) return status;
    id_ = 0;
    forget();
    return status;
  }

 private:
  friend class Pair;
  void swap(PairBuffer &other) noexcept {
    std::swap(mgr_, other.mgr_);
    std::swap(id_, other.id_);
    std::swap(table_, other.table_);
    std::swap(entry_, other.entry_);
  }
  void forget() {
    if (entry_) table_->give_back(entry_);
    entry_ = nullptr;
    table_.reset();
  }
  rdma_mgr_t *mgr_ = nullptr;
  rdma_buffer_t id_ = 0;
  std::shared_ptr<detail::BufferTable> table_; /* of its callback */
  detail::BufferEntry *entry_ = nullptr;
};

/* One end of a pair. Its end closes it. Must end before its manager. */
class Pair {
 public:
  /* None. */
  Pair() = default;
  Pair(Pair &&other) noexcept { swap(other); }
  /* What this was is closed. */
  Pair &operator=(Pair &&other) noexcept {
    Pair taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Pair() { close(); }

  /* `timeout_ms`: how long a send waits for its slot; 0: the manager's. */
  static Result<Pair> create(const Manager &manager, std::uint64_t rank, std::int64_t timeout_ms = 0) {
    Pair pair;
    pair.mgr_ = manager.c();
    if (manager.state_) pair.table_ = manager.state_->buffers<detail::BufferTable>();
    rdma_code_t rc = rdma_pair_create(pair.mgr_, rank, timeout_ms, &pair.id_);
    if (rc != RDMA_OK) return Status::of(rc);
    return Result<Pair>(std::move(pair));
  }

  rdma_pair_t id() const { return id_; }
  explicit operator bool() const { return id_ != 0; }
  /* Bytes for the other end's `connect`. */
  Result<std::string> address() const {
    std::string bytes(RDMA_PAIR_ADDRESS_MAX, '\0');
    std::size_t len = 0;
    rdma_code_t rc = rdma_pair_address(mgr_, id_, reinterpret_cast<std::uint8_t *>(&bytes[0]), bytes.size(), &len);
    if (rc != RDMA_OK) return Status::of(rc);
    bytes.resize(len);
    return bytes;
  }
  /* With 0 it only begins to. */
  Status connect(const std::string &address, std::int64_t timeout_ms) {
    const std::uint8_t *bytes = reinterpret_cast<const std::uint8_t *>(address.data());
    return Status::of(rdma_pair_connect(mgr_, id_, bytes, address.size(), timeout_ms));
  }
  Result<rdma_pair_info_t> info() const {
    rdma_pair_info_t info{};
    info.struct_size = sizeof info;
    rdma_code_t rc = rdma_pair_info(mgr_, id_, &info);
    if (rc != RDMA_OK) return Status::of(rc);
    return info;
  }
  /* A buffer to send from. With `told` its waits are of no use; an empty one is none. */
  Result<PairBuffer> send_buffer(std::uint64_t slot, const void *data, std::size_t len, BufferTold told = nullptr) {
    return make(rdma_buffer_create_send, slot, const_cast<void *>(data), len, std::move(told));
  }
  /* A buffer that the other end writes to. */
  Result<PairBuffer> recv_buffer(std::uint64_t slot, void *data, std::size_t len, BufferTold told = nullptr) {
    return make(rdma_buffer_create_recv, slot, data, len, std::move(told));
  }
  /* Unless the code is OK or NOT_FOUND it lives on. */
  Status close() {
    rdma_code_t rc = id_ ? rdma_pair_close(mgr_, id_) : RDMA_OK;
    if (detail::is_over(rc)) id_ = 0;
    return Status::of(rc);
  }

 private:
  void swap(Pair &other) noexcept {
    std::swap(mgr_, other.mgr_);
    std::swap(id_, other.id_);
    std::swap(table_, other.table_);
  }
  template <class F>
  Result<PairBuffer> make(F make_buffer, std::uint64_t slot, void *data, std::size_t len, BufferTold told) {
    PairBuffer buffer;
    buffer.mgr_ = mgr_;
    if (!told || !table_) { /* without a table there is no manager: that is refused */
      rdma_code_t rc = make_buffer(mgr_, id_, slot, data, len, nullptr, nullptr, &buffer.id_);
      if (rc != RDMA_OK) return Status::of(rc);
      return Result<PairBuffer>(std::move(buffer));
    }
    std::shared_ptr<BufferTold> kept = std::make_shared<BufferTold>(std::move(told));
    buffer.table_ = table_;
    buffer.entry_ = table_->take();
    std::unique_lock<std::mutex> lock(buffer.entry_->mutex); /* a callback that comes first waits for the number */
    rdma_code_t rc = make_buffer(mgr_, id_, slot, data, len, detail::buffer_event, buffer.entry_, &buffer.id_);
    if (rc == RDMA_OK) buffer.entry_->id = buffer.id_, buffer.entry_->told = std::move(kept);
    lock.unlock();
    if (rc != RDMA_OK) return Status::of(rc);
    return Result<PairBuffer>(std::move(buffer));
  }

  rdma_mgr_t *mgr_ = nullptr;
  rdma_pair_t id_ = 0;
  std::shared_ptr<detail::BufferTable> table_;
};

/* What a wait of an unbound buffer took: how a send or a receive ended. */
struct UnboundEnd {
  /* False: nothing was taken, and `status` says why: time over, aborted, the manager's end. */
  bool taken;
  Status status;
  /* Whom it was for, or from; 0: nobody's, of a receive from several to which no message came. */
  rdma_peer_t peer;
  std::uint64_t slot, bytes;
  explicit operator bool() const { return status.ok(); }
};

/* Memory from which and to which content goes by peer and slot. Its end cancels what is under way, and the memory is the
 * application's. Must end before its manager, and not inside a callback: there it cannot, and its destructor ends the
 * process with a word about it (std::terminate), since what is under way would go on writing; `destroy` returns an error.
 * Waits may run on several threads. */
class UnboundBuffer {
 public:
  /* None. */
  UnboundBuffer() = default;
  UnboundBuffer(UnboundBuffer &&other) noexcept { swap(other); }
  /* What this was ends, as in its destructor. */
  UnboundBuffer &operator=(UnboundBuffer &&other) noexcept {
    UnboundBuffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~UnboundBuffer() {
    Status status = destroy();
    if (!id_) return;
    std::uint64_t sent = 0, received = 0;
    detail::could_not_end("an UnboundBuffer", status, rdma_unbound_test(mgr_, id_, &sent, &received));
  }

  static Result<UnboundBuffer> create(const Manager &manager, std::uint32_t comm, void *data, std::size_t len) {
    UnboundBuffer buffer;
    buffer.mgr_ = manager.c();
    rdma_code_t rc = rdma_unbound_create(buffer.mgr_, comm, data, len, &buffer.id_);
    if (rc != RDMA_OK) return Status::of(rc);
    return Result<UnboundBuffer>(std::move(buffer));
  }

  rdma_unbound_t id() const { return id_; }
  explicit operator bool() const { return id_ != 0; }
  /* `timeout_ms`: 0: as long as the manager's options say; RDMA_MSG_FOREVER: for ever. */
  Status send(rdma_peer_t peer, std::uint64_t slot, std::size_t offset, std::size_t len, std::int64_t timeout_ms = 0) {
    return Status::of(rdma_unbound_send(mgr_, id_, peer, slot, offset, len, timeout_ms));
  }
  /* Ends once a receive has met it. */
  Status ssend(rdma_peer_t peer, std::uint64_t slot, std::size_t offset, std::size_t len, std::int64_t timeout_ms = 0) {
    return Status::of(rdma_unbound_ssend(mgr_, id_, peer, slot, offset, len, timeout_ms));
  }
  /* RDMA_PEER_ANY: from anybody. */
  Status recv(rdma_peer_t source, std::uint64_t slot, std::size_t offset, std::size_t len, std::int64_t timeout_ms = 0) {
    return Status::of(rdma_unbound_recv(mgr_, id_, &source, 1, slot, offset, len, timeout_ms));
  }
  /* From one of these; of none: from anybody. */
  Status recv(const std::vector<rdma_peer_t> &sources, std::uint64_t slot, std::size_t offset, std::size_t len,
              std::int64_t timeout_ms = 0) {
    return Status::of(
        rdma_unbound_recv(mgr_, id_, sources.data(), sources.size(), slot, offset, len, timeout_ms));
  }
  UnboundEnd wait_send(std::int64_t timeout_ms = 0) { return wait(rdma_unbound_wait_send, timeout_ms); }
  UnboundEnd wait_recv(std::int64_t timeout_ms = 0) { return wait(rdma_unbound_wait_recv, timeout_ms); }
  /* Ends of sends and of receives that could be taken at once. */
  Result<std::pair<std::uint64_t, std::uint64_t>> test() {
    std::pair<std::uint64_t, std::uint64_t> counts{0, 0};
    rdma_code_t rc = rdma_unbound_test(mgr_, id_, &counts.first, &counts.second);
    if (rc != RDMA_OK) return Status::of(rc);
    return counts;
  }
  /* All that is under way ends, each as any; the buffer stays. */
  Status cancel() { return Status::of(rdma_unbound_cancel(mgr_, id_)); }
  Status abort_wait_send() { return Status::of(rdma_unbound_abort_wait_send(mgr_, id_)); }
  Status abort_wait_recv() { return Status::of(rdma_unbound_abort_wait_recv(mgr_, id_)); }
  /* Ends it like the destructor, with the code. Unless that is OK or NOT_FOUND it lives on, with its memory: inside a
   * callback RDMA_FAILED_PRECONDITION. */
  Status destroy() {
    rdma_code_t rc = id_ ? rdma_unbound_destroy(mgr_, id_) : RDMA_OK;
    if (detail::is_over(rc)) id_ = 0;
    return Status::of(rc);
  }

 private:
  void swap(UnboundBuffer &other) noexcept {
    std::swap(mgr_, other.mgr_);
    std::swap(id_, other.id_);
  }
  template <class F>
  UnboundEnd wait(F call, std::int64_t timeout_ms) {
    rdma_msg_status_t s{};
    s.struct_size = sizeof s;
    rdma_code_t rc = call(mgr_, id_, timeout_ms, &s);
    return UnboundEnd{s.peer != 0 || s.code != RDMA_OK, Status::of(rc), s.peer, s.tag, s.bytes};
  }

  rdma_mgr_t *mgr_ = nullptr;
  rdma_unbound_t id_ = 0;
};

}  // namespace rdma

#endif
