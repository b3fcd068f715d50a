/* One operation that is under way, and where they come from. */
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "objects.h"

namespace rdmat {

class Ep;

enum class Kind : uint8_t {
  Free,
  Send,
  Receive,
  MultiReceive,
  Discard,
  Write,  /* and atomic operations without a result: ends when the peer has said so */
  Read,   /* and those with one: ends when the result has come */
};

/* Its end has several parts that may come in any order, on several threads: the call that began it has returned, the
 * library has done with its memory, the peer has answered. Who ends the last of them ends the request. */
struct Request {
  Ep *ep = nullptr;
  Request *next = nullptr;
  uint32_t index = 0;
  /* Another each time, so that an answer to an earlier one is none to this. */
  std::atomic<uint32_t> turn{0};
  std::atomic<Kind> kind{Kind::Free};
  std::atomic<uint8_t> parts{0};
  /* An answer of the peer is one of the parts: the request's number, until it has come or will not. */
  std::atomic<uint64_t> answer_due{0};
  /* The library has not ended it: fi_cancel and the loss of a peer look for these. */
  std::atomic<uint64_t> message{0};
  /* Of a one-sided operation, what asks the peer, beside the receive of its result. */
  std::atomic<uint64_t> question{0};
  std::atomic<void *> context{nullptr};
  /* To or from whom; RDMA_PEER_ANY: from anybody. */
  std::atomic<rdma_peer_t> peer{0};
  std::atomic<fi_addr_t> to{0};
  /* Somebody wants it to end: its turn in the upper half, why in the lower, an errno; 0: nobody does. */
  std::atomic<uint64_t> stop{0};
  /* Nothing of it is left to be told: its context may be that of the next operation already. */
  std::atomic<bool> told{false};

  bool wants;   /* a completion, if it ends well */
  bool inject;  /* nobody asks for its end at all */
  bool counted; /* among those that the endpoint counts as under way */
  rdma_code_t code;
  int err; /* by the peer's answer */
  uint64_t flags;
  uint8_t *buf;
  size_t len, offset;
  uint64_t wanted, ignore; /* the tag it asks for */
  uint32_t comm;
  /* See order.h: it is in the order, it has ended and waits to be told of, its place and its neighbours. */
  bool ordered, held;
  uint32_t place;
  Request *before, *after;
  /* Receives are found by their context, which several may have: the next, and where what points here is. */
  Request *of_context, **here;
  /* What came. */
  rdma_peer_t source;
  size_t bytes;
  uint64_t tag, data;

  void *scratch = nullptr;
  bool pooled = false; /* the manager's memory */
  uint8_t small[kSmall];

  /* With these its messages are begun, without and with `data` beside the content. They are written once: the library reads them in
   * larger pieces than they are written in, for which a processor waits where that was just before. */
  rdma_msg_options_t options, with_data;

  uint64_t number() const { return uint64_t{turn.load(std::memory_order_acquire)} << 32 | index; }
  int stopped() const { return static_cast<int>(stop.load(std::memory_order_seq_cst) & UINT32_MAX); }
  /* Has it end for this reason, or for an earlier one; false: it is another by now than the one of this number. */
  bool stop_for(uint64_t number_then, int err) {
    const uint64_t then = number_then >> 32 << 32;
    uint64_t now = then;
    return stop.compare_exchange_strong(now, then | static_cast<uint32_t>(err)) || now >> 32 << 32 == then;
  }
};

class Requests {
 public:
  /* `done` is told of their messages. */
  Requests(bool locks, rdma_msg_done_fn done) : lock_(locks), done_(done) {}
  ~Requests();
  /* NULL: no memory. What it is found by is there from the beginning. */
  Request *take(Ep *ep, Kind kind, rdma_peer_t peer, void *context, fi_addr_t to);
  void give(Request *r);
  /* The one of this number, if it is under way. */
  Request *find(uint64_t number);
  /* The receive of this context that comes after so many others, and its number; NULL: there are no more. */
  Request *receive_of(const void *context, size_t skip, uint64_t *number);
  /* Room for a copy of up to kInject bytes, in it or lent; NULL: there are too many. */
  void *scratch(Request *r, size_t len, rdma_mgr_t *mgr);

  template <typename F>
  void each(F f) {
    /* Chunks stay where they are. */
    size_t n;
    {
      Hold hold(lock_);
      n = chunks_.size();
    }
    for (size_t i = 0; i < n; ++i) {
      Request *chunk;
      {
        Hold hold(lock_);
        chunk = chunks_[i].get();
      }
      for (size_t j = 0; j < kChunk; ++j) {
        if (chunk[j].kind.load(std::memory_order_acquire) != Kind::Free) f(&chunk[j]);
      }
    }
  }

 private:
  static constexpr size_t kChunk = 256;
  void prepare(Request *r) const;
  bool grow();
  Request *&list_of(const void *context);
  void list(Request *r);

  Lock lock_;
  const rdma_msg_done_fn done_;
  std::vector<std::unique_ptr<Request[]>> chunks_;
  Request *free_ = nullptr;
  /* Lists of receives by their context's hash, at least as many as a quarter of all requests. */
  std::unique_ptr<Request *[]> lists_;
  size_t lists_len_ = 0;
  std::vector<void *> scratches_[2]; /* of the C library, of the manager */
  size_t lent_ = 0;
};

}  // namespace rdmat
