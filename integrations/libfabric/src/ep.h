/* An endpoint: a manager of the library, and the operations that are under way at it. */
#pragma once

#include <string>

#include "answer.h"
#include "order.h"
#include "remote.h"

namespace rdmat {

/* From small numbers to numbers, read without a lock. 0: nothing. */
class Table {
 public:
  Table() = default;
  Table(const Table &) = delete;
  ~Table();
  uint64_t get(uint64_t at) const {
    const Chunk *chunk = at < kAddresses ? chunks_[at / kSize].load(std::memory_order_acquire) : nullptr;
    return chunk != nullptr ? chunk->at[at % kSize].load(std::memory_order_seq_cst) : 0;
  }
  /* By one thread at a time. False: no memory, or out of its range. */
  bool set(uint64_t at, uint64_t value);

 private:
  static constexpr size_t kSize = 1024;
  struct Chunk {
    std::atomic<uint64_t> at[kSize] = {};
  };
  std::atomic<Chunk *> chunks_[kAddresses / kSize] = {};
};

/* From peers to small numbers, read without a lock. 0: nothing. The library gives peers numbers that last, but are not small: who
 * comes and goes, known here or not, moves those of later ones on. The lower bits are a peer's place, the whole number is compared;
 * who has come last has a place, as an earlier one with the same lower bits is not known any more. */
class PeerTable {
 public:
  uint64_t get(rdma_peer_t peer) const {
    const uint64_t found = table_.get(peer % kAddresses);
    return found >> kBits == peer ? found & kMax : 0;
  }
  /* By one thread at a time. False: no memory, or out of range. */
  bool set(rdma_peer_t peer, uint64_t value) {
    return peer >> (64 - kBits) == 0 && value <= kMax && table_.set(peer % kAddresses, peer << kBits | value);
  }

 private:
  static constexpr unsigned kBits = 20;
  static constexpr uint64_t kMax = (uint64_t{1} << kBits) - 1;
  static_assert(kAddresses <= kMax, "an address and one fits");
  Table table_;
};

/* Memory of the application, in one place or several. */
class Pieces {
 public:
  Pieces(const void *buf, size_t len) : data_(const_cast<void *>(buf)), len_(len) {}
  Pieces(const iovec *iov, size_t count);
  bool ok() const { return ok_; }
  size_t len() const { return len_; }
  bool one() const { return one_; }
  /* For the library: pointer, length and layout of a call. */
  void *data() const { return one() ? data_ : nullptr; }
  size_t data_len() const { return one() ? len_ : 0; }
  const rdma_msg_layout_t *layout() const { return one() ? nullptr : &layout_; }
  uint8_t *first() const { return static_cast<uint8_t *>(one() ? data_ : pieces_[0].data); }
  void copy_to(void *to) const;
  Pieces(const Pieces &) = delete;

 private:
  void *data_ = nullptr;
  size_t len_ = 0;
  bool ok_ = true, one_ = true;
  /* Only of several. */
  rdma_msg_layout_t layout_;
  rdma_msg_piece_t pieces_[kIov];
};

/* Told by the library of the end of a message; `userdata`: its request. */
void done(const rdma_msg_status_t *status, void *userdata);

struct SendCall {
  uint32_t comm;
  const Pieces &from;
  fi_addr_t to;
  uint64_t tag;
  uint64_t data;
  void *context;
  /* FI_COMPLETION, FI_INJECT, FI_REMOTE_CQ_DATA and what it waits for. */
  uint64_t flags;
  /* Without a completion and without a context, as fi_inject is. */
  bool quiet;
};

struct ReceiveCall {
  uint32_t comm;
  const Pieces &into;
  fi_addr_t from;
  uint64_t tag, ignore;
  void *context;
  /* FI_COMPLETION, FI_MULTI_RECV, FI_PEEK, FI_CLAIM, FI_DISCARD. */
  uint64_t flags;
};

/* A one-sided operation. */
struct RemoteCall {
  const Pieces &local;
  fi_addr_t to;
  const Span *spans;
  size_t count;
  uint64_t data;
  void *context;
  uint64_t flags;
  bool quiet;
};

struct AtomicCall {
  const fi_ioc *operand;
  size_t operands;
  const fi_ioc *compare;
  size_t compares;
  fi_ioc *result;
  size_t results;
  fi_addr_t to;
  const fi_rma_ioc *remote;
  size_t remotes;
  fi_datatype type;
  fi_op op;
  void *context;
  uint64_t flags;
  bool quiet;
};

class Ep : public fid_ep {
 public:
  Ep(Domain *domain, const fi_info *info);
  ~Ep();

  Domain *const domain;
  const uint64_t caps;
  uint64_t tx_flags, rx_flags;

  int bind_to(struct ::fid *f, uint64_t flags);
  int enable();
  int close();
  int name(void *out, size_t *len);
  ssize_t cancel(void *context);
  int get_option(int level, int name, void *value, size_t *len);
  int set_option(int level, int name, const void *value, size_t len);
  int control_flags(int command, uint64_t *flags);
  size_t left() const { return kQueue > waiting_ ? kQueue - waiting_ : 0; }

  ssize_t send(const SendCall &call);
  void meet(rdma_peer_t peer);
  ssize_t receive(const ReceiveCall &call);
  ssize_t read(const RemoteCall &call);
  ssize_t write(const RemoteCall &call);
  ssize_t atomic(const AtomicCall &call);

  /* How much was handled. */
  uint32_t progress();
  /* Before a wait: looks after peers that do not answer, if that is due, and has the clock ring when it is next. */
  void rest();
  /* For a pump to watch, -1: none. The second rings when it is time to look after peers. */
  int event_fd() const { return event_fd_; }
  int timer_fd() const { return timer_fd_; }
  /* An address that was inserted, and one that was removed. An errno. */
  int meet(fi_addr_t at, const Address &address);
  void part(fi_addr_t at);

  /* Ends of parts of requests, as the library tells of them. */
  void message_ended(Request *r, const rdma_msg_status_t *status);
  void question_ended(Request *r, rdma_code_t code);

  /* What comes from peers: see rma_target.cc and atomic_target.cc. */
  uint32_t on_write(const rdma_msg_status_t *status, const void *data);
  uint32_t on_read(const rdma_msg_status_t *status);
  uint32_t on_atomic(const rdma_msg_status_t *status, const void *data);
  void on_ack(const rdma_msg_status_t *status);
  /* Answers: see answer.cc. Has it go on now, or when there is room; false: when there is room. */
  bool answer_with(Answer *answer);
  void acknowledge(rdma_peer_t peer, uint64_t number, int err);
  void refuse_read(rdma_peer_t peer, uint64_t number, int err);
  void told_write(rdma_peer_t peer, uint64_t bytes, uint64_t data, bool with_data);
  void count(size_t which, bool well);
  rdma_mgr_t *manager() const { return mgr_; }
  /* An operation with a certain peer has begun, or an answer waits: there is something to look after. */
  void watch();
  Answers answers;

  enum { kCntrSend, kCntrRecv, kCntrRead, kCntrWrite, kCntrRemoteRead, kCntrRemoteWrite, kCntrs };

 private:
  bool bound(const Cq *cq) const { return cq == tx_cq_ || cq == rx_cq_; }
  rdma_peer_t peer_of(fi_addr_t at) const { return to_peer_.get(at); }
  fi_addr_t address_of(rdma_peer_t peer) const;
  bool wants_tx(uint64_t flags) const { return !tx_selective_ || (flags & FI_COMPLETION); }
  bool wants_rx(uint64_t flags) const { return !rx_selective_ || (flags & FI_COMPLETION); }

  void tell(bool read, rdma_peer_t peer, uint64_t number, int err);
  bool is_waited_for() const;
  int start_manager();
  int listen();
  void leave();

  void take(Request *r, const rdma_msg_status_t *status);
  void end_part(Request *r);
  void answer(Request *r, uint64_t number, int err);
  void finish(Request *r);
  void report(Request *r);
  void settle(Request *r);
  void drop(Request *r);
  void count_in(Request *r);
  void count_out(Request *r);
  void begun(Request *r, uint64_t id);
  bool take_back(const Request *r, uint64_t number, const std::atomic<uint64_t> &waits);
  rdma_code_t issue(Request *r, const Pieces &into, rdma_msg_status_t *status, uint64_t *id);
  ssize_t begin(Request *r, const Pieces &into);
  ssize_t begin_multi(Request *r, const Pieces &into);
  ssize_t issued(Request *r, const char *what, rdma_code_t code, uint64_t id, const rdma_msg_status_t *status);
  bool report_multi(Request *r);
  void next_multi(Request *r);
  ssize_t peek(const ReceiveCall &call, rdma_peer_t source);
  ssize_t claim(const ReceiveCall &call);
  ssize_t receive_claimed(const ReceiveCall &call, const rdma_msg_status_t &claimed, uint64_t flags);
  void discard(uint64_t message);
  void no_message(const ReceiveCall &call);
  Request *begin_remote(Kind kind, fi_addr_t to, void *context, uint64_t flags, uint64_t report, bool quiet);
  ssize_t ask(Request *r, uint32_t handler, const void *head, size_t head_len, const Pieces &content,
              const Pieces *result);
  bool gather(Request *r, const AtomicCall &call, size_t size, size_t *len);

  /* Peers that came and went; those that cannot be reached: liveness.cc. */
  static void on_peer(rdma_mgr_t *, int32_t event, const char *name, size_t name_len, rdma_code_t code,
                      const char *message, size_t message_len, void *userdata);
  void lost(rdma_peer_t peer, int err);
  void look();
  void set_timer();
  void test_reach(rdma_peer_t peer, fi_addr_t at);

  Av *av_ = nullptr;
  Cq *tx_cq_ = nullptr, *rx_cq_ = nullptr;
  bool tx_selective_ = false, rx_selective_ = false;
  Cntr *cntrs_[kCntrs] = {};
  size_t min_multi_ = kSmall;

  std::string listen_at_;
  Address self_;
  rdma_mgr_t *mgr_ = nullptr;
  int event_fd_ = -1, timer_fd_ = -1;
  rdma_peer_t self_peer_ = 0;
  Table to_peer_;
  PeerTable from_peer_;
  std::mutex meeting_;
  /* Whether this peer came, or went, as the library told last. */
  enum { kCame = 1, kGone = 2 };
  PeerTable told_;
  /* Peers whose connection an inject has waited for. */
  PeerTable awaited_;
  std::atomic<bool> closing_{false};

  Requests requests_;
  Order order_;
  /* Sends and one-sided operations that did not end in their call; of these, those that nobody asks about. */
  std::atomic<size_t> waiting_{0}, quiet_{0};

  std::mutex claims_lock_;
  std::unordered_map<void *, rdma_msg_status_t> claims_;

  /* When peers were looked after last, and a count of calls, to read the clock seldom. */
  std::atomic<uint32_t> calls_{0};
  std::atomic<int64_t> looked_{0};
  /* Something may be under way with a certain peer, or an answer waits. */
  std::atomic<bool> watched_{false};
  struct Suspect {
    int fd = -1;
    int refused = 0;
  };
  std::mutex suspects_lock_;
  std::unordered_map<fi_addr_t, Suspect> suspects_;
};

/* Options of a message out of these or into these pieces that is told of by `done`, in `room` if it has none of its own. */
const rdma_msg_options_t *options_for(Request *r, const Pieces &pieces, rdma_msg_options_t *room);
/* The data that a sender gave along, if it did. */
bool data_in(const rdma_msg_status_t *status, uint64_t *data);

fi_ops_msg *msg_table();
fi_ops_tagged *tagged_table();
fi_ops_rma *rma_table();
fi_ops_atomic *atomic_table();

inline Ep *ep_of(fid_ep *ep) { return static_cast<Ep *>(ep); }

}  // namespace rdmat
