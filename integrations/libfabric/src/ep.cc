/* How operations end. */
#include "ep.h"

#include <cstring>

namespace rdmat {

Table::~Table() {
  for (auto &chunk : chunks_) delete chunk.load();
}

bool Table::set(uint64_t at, uint64_t value) {
  if (at >= kAddresses) return false;
  std::atomic<Chunk *> &place = chunks_[at / kSize];
  if (place.load() == nullptr) {
    Chunk *chunk = new (std::nothrow) Chunk;
    if (chunk == nullptr) return false;
    place.store(chunk, std::memory_order_release);
  }
  place.load()->at[at % kSize].store(value, std::memory_order_seq_cst);
  return true;
}

Pieces::Pieces(const iovec *iov, size_t count) {
  if (count > kIov || (count > 0 && iov == nullptr)) {
    ok_ = false;
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    pieces_[i] = {iov[i].iov_base, iov[i].iov_len};
    len_ += iov[i].iov_len;
  }
  if (count == 1) data_ = iov[0].iov_base;
  if (count <= 1) return;
  one_ = false;
  layout_ = {};
  layout_.struct_size = sizeof layout_;
  layout_.kind = RDMA_MSG_IOVEC;
  layout_.pieces = pieces_;
  layout_.count = count;
}

void Pieces::copy_to(void *to) const {
  if (one()) {
    if (len_ > 0) std::memcpy(to, data_, len_);
    return;
  }
  uint8_t *at = static_cast<uint8_t *>(to);
  for (size_t i = 0; i < layout_.count; ++i) {
    if (pieces_[i].len > 0) std::memcpy(at, pieces_[i].data, pieces_[i].len);
    at += pieces_[i].len;
  }
}

bool data_in(const rdma_msg_status_t *status, uint64_t *data) {
  if (status->header_len != sizeof *data) return false;
  std::memcpy(data, status->header, sizeof *data);
  return true;
}

void done(const rdma_msg_status_t *status, void *userdata) {
  Request *r = static_cast<Request *>(userdata);
  r->ep->message_ended(r, status);
}

const rdma_msg_options_t *options_for(Request *r, const Pieces &pieces, rdma_msg_options_t *room) {
  if (pieces.one()) return &r->options;
  *room = r->options;
  room->layout = pieces.layout();
  return room;
}

fi_addr_t Ep::address_of(rdma_peer_t peer) const {
  if (!(caps & FI_SOURCE)) return FI_ADDR_NOTAVAIL;
  const uint64_t found = from_peer_.get(peer);
  return found == 0 ? FI_ADDR_NOTAVAIL : found - 1;
}

void Ep::count(size_t which, bool well) {
  Cntr *cntr = cntrs_[which];
  if (cntr == nullptr) return;
  well ? cntr->add(1) : cntr->add_error(1);
}

/* What the library says of its end. */
void Ep::take(Request *r, const rdma_msg_status_t *status) {
  r->code = status->code;
  r->source = status->peer;
  r->bytes = status->bytes;
  r->tag = status->tag;
  if (r->kind == Kind::Read) {
    /* The result, or why there is none. */
    int32_t err = 0;
    if (status->header_len == sizeof err) std::memcpy(&err, status->header, sizeof err);
    if (r->err == 0 && err > 0) r->err = err;
    if (r->err == 0 && status->code == RDMA_OK && status->bytes != r->len) r->err = FI_EIO;
  } else if (data_in(status, &r->data)) {
    r->flags |= FI_REMOTE_CQ_DATA;
  }
}

void Ep::message_ended(Request *r, const rdma_msg_status_t *status) {
  if (r->kind == Kind::Send)
    r->code = status->code;
  else
    take(r, status);
  r->message.store(0, std::memory_order_relaxed);
  end_part(r);
  /* There may be room now. */
  if (answers.kept() > 0) answers.go_on(closing_);
}

void Ep::end_part(Request *r) {
  if (domain->locks) {
    if (r->parts.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(r);
    return;
  }
  /* One thread at a time needs no locked instruction. */
  const uint8_t left = static_cast<uint8_t>(r->parts.load(std::memory_order_relaxed) - 1);
  r->parts.store(left, std::memory_order_relaxed);
  if (left == 0) finish(r);
}

/* The peer has answered, or will not any more: whichever comes first. */
void Ep::answer(Request *r, uint64_t number, int err) {
  if (!r->answer_due.compare_exchange_strong(number, 0)) return;
  if (err != 0) r->err = err;
  end_part(r);
}

/* The request of a one-sided operation has left its memory, or could not be sent. */
void Ep::question_ended(Request *r, rdma_code_t code) {
  if (code != RDMA_OK) {
    const int stop = r->stopped();
    const int err = stop != 0 ? stop : error_of(code);
    if (r->kind == Kind::Read) {
      r->err = err;
      if (const uint64_t message = r->message) rdma_msg_cancel(mgr_, message);
    } else {
      answer(r, r->number(), err);
    }
  }
  end_part(r);
}

/* It is under way. Before its call has ended its part, so that it is not over before. */
void Ep::count_in(Request *r) {
  r->counted = true;
  waiting_.fetch_add(1, std::memory_order_relaxed);
  if (r->inject) quiet_.fetch_add(1, std::memory_order_relaxed);
}

void Ep::count_out(Request *r) {
  if (!r->counted) return;
  r->counted = false;
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  if (r->inject) quiet_.fetch_sub(1, std::memory_order_relaxed);
}

void Ep::drop(Request *r) {
  count_out(r);
  requests_.give(r);
}

void Ep::finish(Request *r) {
  switch (r->kind.load(std::memory_order_relaxed)) {
    case Kind::MultiReceive:
      if (report_multi(r)) return next_multi(r);
      break;
    case Kind::Receive: {
      Hold hold(order_.lock);
      return settle(r);
    }
    case Kind::Discard:
      break;
    default:
      report(r);
  }
  drop(r);
}

/* Tells of a receive that has ended, if those before it that asked for the same have; and then of those behind it. */
void Ep::settle(Request *r) {
  const bool met = r->code == RDMA_OK || r->code == RDMA_OUT_OF_RANGE;
  const bool first = order_.first_like(r) == r;
  if (r->ordered && met && !first) {
    order_.hold(r);
    return;
  }
  Request *next = r;
  do {
    r = next;
    if (r->ordered) order_.remove(r);
    next = first && order_.holds() ? order_.first_like(r) : nullptr;
    report(r);
    drop(r);
  } while (next != nullptr && next->held);
}

namespace {

size_t counter_of(const Request *r) {
  switch (r->kind.load(std::memory_order_relaxed)) {
    case Kind::Send: return Ep::kCntrSend;
    case Kind::Write: return Ep::kCntrWrite;
    case Kind::Read: return Ep::kCntrRead;
    default: return Ep::kCntrRecv;
  }
}

int error_in(const Request *r) {
  if (r->err != 0) return r->err;
  const int stop = r->stopped();
  return r->code == RDMA_CANCELLED && stop != 0 ? stop : error_of(r->code);
}

}  // namespace

/* Tells of the end of a request: the queue first, so that who has seen the counter finds the completion. */
void Ep::report(Request *r) {
  if (closing_.load(std::memory_order_relaxed)) return;
  const bool received = r->kind.load(std::memory_order_relaxed) == Kind::Receive;
  Cq *cq = received ? rx_cq_ : tx_cq_;
  const int err = error_in(r);
  if (err == 0) {
    if (r->wants && cq != nullptr) {
      if (received)
        cq->push({r->context, r->flags, r->bytes, r->buf, r->data, r->tag, address_of(r->source)});
      else
        cq->push({r->context, r->flags, 0, nullptr, 0, 0, FI_ADDR_NOTAVAIL});
    }
  } else if (r->inject) {
    RDMAT_WARN(FI_LOG_EP_DATA, "what was injected is lost: %s\n", fi_strerror(err));
  } else if (cq != nullptr) {
    /* Of a message that is too long nothing has been written. */
    const size_t over = received && err == FI_ETRUNC && r->bytes > r->len ? r->bytes - r->len : 0;
    cq->push_error({r->context, r->flags, 0, r->buf, received ? r->data : 0, r->tag, FI_ADDR_NOTAVAIL}, err, r->code,
                   over);
  }
  count(counter_of(r), err == 0);
}

/* Cancels what a request waits for in the library, if it still is the one of this number. */
bool Ep::take_back(const Request *r, uint64_t number, const std::atomic<uint64_t> &waits) {
  const uint64_t id = waits.load(std::memory_order_seq_cst);
  return id != 0 && r->number() == number && rdma_msg_cancel(mgr_, id) == RDMA_OK;
}

/* fi_cancel: of receives. A send that the peer knows of would have to be taken back from it. */
ssize_t Ep::cancel(void *context) {
  uint64_t number = 0;
  for (size_t skip = 0; Request *r = requests_.receive_of(context, skip, &number); ++skip) {
    const Kind kind = r->kind;
    if (r->told || !r->stop_for(number, FI_ECANCELED)) continue;
    /* A buffer for several is between two messages now and then, and ends before the next. */
    if (take_back(r, number, r->message) || kind == Kind::MultiReceive) return 0;
  }
  return -FI_ENOENT;
}

uint32_t Ep::progress() {
  uint32_t events = 0;
  if (mgr_ == nullptr) return events;
  rdma_mgr_progress(mgr_, &events);
  if (!watched_.load(std::memory_order_relaxed)) return events;
  if (answers.kept() > 0) answers.go_on(closing_);
  /* Who counts at the same time may count one less. */
  const uint32_t calls = calls_.load(std::memory_order_relaxed);
  calls_.store(calls + 1, std::memory_order_relaxed);
  if ((calls & 1023) == 0) look();
  return events;
}

}  // namespace rdmat
