#include "request.h"

#include <cstdlib>

namespace rdmat {

Requests::~Requests() {
  /* Those of the manager go with it. What nobody had answered when the endpoint was closed has one still. */
  for (void *s : scratches_[0]) std::free(s);
  for (const auto &chunk : chunks_) {
    for (size_t i = 0; i < kChunk; ++i) {
      if (!chunk[i].pooled) std::free(chunk[i].scratch);
    }
  }
}

/* What is the same whatever it is used for. */
void Requests::prepare(Request *r) const {
  r->options = {};
  r->options.struct_size = sizeof r->options;
  r->options.timeout_ms = RDMA_MSG_FOREVER;
  r->options.done = done_;
  r->options.userdata = r;
  r->with_data = r->options;
  r->with_data.header = &r->data;
  r->with_data.header_len = sizeof r->data;
}

Request *Requests::take(Ep *ep, Kind kind, rdma_peer_t peer, void *context, fi_addr_t to) {
  Hold hold(lock_);
  if (free_ == nullptr) {
    /* Indices have 32 bits; the library admits a million operations. */
    if (chunks_.size() * kChunk >= (size_t{1} << 21)) return nullptr;
    std::unique_ptr<Request[]> chunk(new (std::nothrow) Request[kChunk]);
    if (chunk == nullptr) return nullptr;
    for (size_t i = kChunk; i-- > 0;) {
      chunk[i].index = static_cast<uint32_t>(chunks_.size() * kChunk + i);
      prepare(&chunk[i]);
      chunk[i].next = free_;
      free_ = &chunk[i];
    }
    chunks_.push_back(std::move(chunk));
  }
  Request *r = free_;
  free_ = r->next;
  r->ep = ep;
  const uint32_t turn = r->turn.load(std::memory_order_relaxed) + 1;
  r->turn.store(turn, std::memory_order_release);
  r->answer_due.store(0, std::memory_order_relaxed);
  r->message.store(0, std::memory_order_relaxed);
  r->question.store(0, std::memory_order_relaxed);
  r->stop.store(uint64_t{turn} << 32, std::memory_order_relaxed);
  r->told.store(false, std::memory_order_relaxed);
  r->context.store(context, std::memory_order_relaxed);
  r->peer.store(peer, std::memory_order_relaxed);
  r->to.store(to, std::memory_order_relaxed);
  r->inject = r->counted = r->ordered = r->held = false;
  r->code = RDMA_OK;
  r->err = 0;
  r->data = 0;
  r->scratch = nullptr;
  r->pooled = false;
  r->kind.store(kind, std::memory_order_release);
  return r;
}

void Requests::give(Request *r) {
  Hold hold(lock_);
  r->kind.store(Kind::Free, std::memory_order_release);
  if (r->scratch != nullptr) {
    scratches_[r->pooled].push_back(r->scratch);
    r->scratch = nullptr;
    --lent_;
  }
  r->next = free_;
  free_ = r;
}

Request *Requests::find(uint64_t number) {
  const uint32_t index = static_cast<uint32_t>(number);
  Hold hold(lock_);
  if (index / kChunk >= chunks_.size()) return nullptr;
  Request *r = &chunks_[index / kChunk][index % kChunk];
  return r->kind.load() != Kind::Free && r->number() == number ? r : nullptr;
}

/* What does not ride in its message comes to lie in memory of the library, which a peer can read without this side's help:
   who injects may drive nothing for a while. */
void *Requests::scratch(Request *r, size_t len, rdma_mgr_t *mgr) {
  if (len <= kSmall) return r->small;
  r->pooled = len > kRides;
  {
    Hold hold(lock_);
    if (lent_ >= kScratches) return nullptr;
    ++lent_;
    std::vector<void *> &kept = scratches_[r->pooled];
    if (!kept.empty()) {
      r->scratch = kept.back();
      kept.pop_back();
      return r->scratch;
    }
  }
  if (r->pooled && rdma_mem_alloc(mgr, kInject, &r->scratch) == RDMA_OK) return r->scratch;
  r->pooled = false;
  r->scratch = std::malloc(kInject);
  if (r->scratch == nullptr) {
    Hold hold(lock_);
    --lent_;
  }
  return r->scratch;
}

}  // namespace rdmat
