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

/* More of them; false: there is no memory, or there are too many. */
bool Requests::grow() {
  const size_t before = chunks_.size() * kChunk;
  /* Indices have 32 bits; the library admits a million operations. */
  if (before >= (size_t{1} << 21)) return false;
  if (before + kChunk > 4 * lists_len_) {
    const size_t len = lists_len_ == 0 ? kChunk : 4 * lists_len_;
    std::unique_ptr<Request *[]> lists(new (std::nothrow) Request *[len]());
    if (lists == nullptr) return false;
    lists_ = std::move(lists);
    lists_len_ = len;
    for (const auto &chunk : chunks_) {
      for (size_t i = 0; i < kChunk; ++i) {
        if (chunk[i].here != nullptr) list(&chunk[i]);
      }
    }
  }
  std::unique_ptr<Request[]> chunk(new (std::nothrow) Request[kChunk]);
  if (chunk == nullptr) return false;
  for (size_t i = kChunk; i-- > 0;) {
    chunk[i].index = static_cast<uint32_t>(before + i);
    chunk[i].here = nullptr;
    prepare(&chunk[i]);
    chunk[i].next = free_;
    free_ = &chunk[i];
  }
  chunks_.push_back(std::move(chunk));
  return true;
}

/* Contexts are addresses, or numbers in a row: the upper half of a product depends on all of their bits. */
Request *&Requests::list_of(const void *context) {
  const uint64_t mixed = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(context)) * 0x9E3779B97F4A7C15u;
  return lists_[(mixed >> 32) & (lists_len_ - 1)];
}

void Requests::list(Request *r) {
  Request *&first = list_of(r->context.load(std::memory_order_relaxed));
  r->of_context = first;
  r->here = &first;
  if (first != nullptr) first->here = &r->of_context;
  first = r;
}

Request *Requests::receive_of(const void *context, size_t skip, uint64_t *number) {
  Hold hold(lock_);
  if (lists_len_ == 0) return nullptr;
  for (Request *r = list_of(context); r != nullptr; r = r->of_context) {
    if (r->context.load(std::memory_order_relaxed) != context || skip-- > 0) continue;
    *number = r->number();
    return r;
  }
  return nullptr;
}

Request *Requests::take(Ep *ep, Kind kind, rdma_peer_t peer, void *context, fi_addr_t to) {
  Hold hold(lock_);
  if (free_ == nullptr && !grow()) return nullptr;
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
  if (kind == Kind::Receive || kind == Kind::MultiReceive) list(r);
  r->kind.store(kind, std::memory_order_release);
  return r;
}

void Requests::give(Request *r) {
  Hold hold(lock_);
  r->kind.store(Kind::Free, std::memory_order_release);
  if (r->here != nullptr) {
    *r->here = r->of_context;
    if (r->of_context != nullptr) r->of_context->here = r->here;
    r->here = nullptr;
  }
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
