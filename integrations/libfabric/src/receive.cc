/* Receiving messages: into a buffer, into a buffer for several, and by a look before. */
#include <cstring>

#include "ep.h"

namespace rdmat {

rdma_code_t Ep::issue(Request *r, const Pieces &into, rdma_msg_status_t *status, uint64_t *id) {
  r->parts.store(2, std::memory_order_relaxed);
  rdma_msg_options_t room;
  status->struct_size = sizeof *status;
  *id = 0;
  return rdma_msg_irecv(mgr_, r->peer.load(std::memory_order_relaxed), r->comm, r->wanted, ~r->ignore, into.data(),
                        into.data_len(), options_for(r, into, &room), status, id);
}

ssize_t Ep::receive(const ReceiveCall &call) {
  rdma_peer_t source = RDMA_PEER_ANY;
  if ((caps & FI_DIRECTED_RECV) && call.from != FI_ADDR_UNSPEC) {
    source = peer_of(call.from);
    if (source == 0) return -FI_EADDRNOTAVAIL;
  }
  if (call.flags & FI_PEEK) return peek(call, source);
  if (call.flags & FI_CLAIM) return claim(call);
  if (!call.into.ok()) return -FI_EINVAL;
  const bool multi = call.flags & FI_MULTI_RECV;
  if (multi && (!call.into.one() || call.comm != kUntagged || call.into.len() < min_multi_)) return -FI_EINVAL;
  Request *r = requests_.take(this, multi ? Kind::MultiReceive : Kind::Receive, source, call.context, call.from);
  if (r == nullptr) return -FI_EAGAIN;
  r->wants = wants_rx(call.flags);
  r->flags = FI_RECV | (call.comm == kTagged ? FI_TAGGED : FI_MSG);
  r->buf = call.into.first();
  r->len = call.into.len();
  r->offset = 0;
  r->comm = call.comm;
  r->tag = r->wanted = call.tag;
  r->ignore = call.ignore;
  return multi ? begin_multi(r, call.into) : begin(r, call.into);
}

/* The order of the calls is that in which messages meet receives, and in which they are told of. */
ssize_t Ep::begin(Request *r, const Pieces &into) {
  rdma_msg_status_t status;
  uint64_t id;
  order_.find_place(r);
  {
    Hold hold(order_.lock);
    const rdma_code_t code = issue(r, into, &status, &id);
    if (code != RDMA_OK) {
      requests_.give(r);
      return refusal(code, FI_LOG_EP_DATA, "receive");
    }
    if (id != 0 || order_.first_like(r) != nullptr) order_.add(r);
    if (id == 0) {
      take(r, &status);
      settle(r);
      return 0;
    }
  }
  begun(r, id);
  return 0;
}

ssize_t Ep::begin_multi(Request *r, const Pieces &into) {
  rdma_msg_status_t status;
  uint64_t id;
  const rdma_code_t code = issue(r, into, &status, &id);
  return issued(r, "receive", code, id, &status);
}

/* The library refused a receive, tells of its end later, or has told already. */
ssize_t Ep::issued(Request *r, const char *what, rdma_code_t code, uint64_t id, const rdma_msg_status_t *status) {
  if (code != RDMA_OK) {
    requests_.give(r);
    return refusal(code, FI_LOG_EP_DATA, what);
  }
  if (id != 0) {
    begun(r, id);
  } else {
    take(r, status);
    finish(r);
  }
  return 0;
}

/* A part of a buffer for several messages was filled, or not. Whether the rest of it waits for the next. */
bool Ep::report_multi(Request *r) {
  if (closing_.load(std::memory_order_relaxed)) return false;
  const size_t room = r->len - r->offset;
  const bool well = r->code == RDMA_OK;
  const bool goes_on = well ? room - r->bytes >= min_multi_ : r->code == RDMA_OUT_OF_RANGE;
  /* Who finds the completion in the queue sees this, too. */
  if (!goes_on) r->told.store(true, std::memory_order_relaxed);
  if (!well) {
    const int stop = r->stopped();
    const int err = r->code == RDMA_CANCELLED && stop != 0 ? stop : error_of(r->code);
    const size_t over = goes_on && r->bytes > room ? r->bytes - room : 0;
    if (rx_cq_ != nullptr) {
      rx_cq_->push_error({r->context, r->flags | (goes_on ? 0 : FI_MULTI_RECV), 0, r->buf + r->offset, r->data, 0,
                          FI_ADDR_NOTAVAIL},
                         err, r->code, over);
    }
  } else {
    if (rx_cq_ != nullptr && (r->wants || !goes_on)) {
      rx_cq_->push({r->context, r->flags | (goes_on ? 0 : FI_MULTI_RECV), r->bytes, r->buf + r->offset, r->data, 0,
                    address_of(r->source)});
    }
    r->offset += r->bytes;
  }
  count(kCntrRecv, well);
  if (!goes_on) return false;
  /* Who wanted it to end while a message came into it is told now. */
  const int stop = r->stopped();
  if (stop == 0) return true;
  r->told.store(true, std::memory_order_relaxed);
  if (rx_cq_ != nullptr) {
    rx_cq_->push_error({r->context, (r->flags & ~FI_REMOTE_CQ_DATA) | FI_MULTI_RECV, 0, r->buf + r->offset, 0, 0,
                        FI_ADDR_NOTAVAIL},
                       stop, RDMA_CANCELLED, 0);
  }
  count(kCntrRecv, false);
  return false;
}

/* Its rest waits behind the buffers that were given since; messages keep their order. */
void Ep::next_multi(Request *r) {
  for (;;) {
    r->flags &= ~FI_REMOTE_CQ_DATA;
    r->data = 0;
    rdma_msg_status_t status;
    uint64_t id;
    r->code = issue(r, Pieces(r->buf + r->offset, r->len - r->offset), &status, &id);
    if (r->code == RDMA_OK && id != 0) return begun(r, id);
    if (r->code == RDMA_OK) take(r, &status);
    if (!report_multi(r)) return drop(r);
  }
}

void Ep::no_message(const ReceiveCall &call) {
  if (rx_cq_ == nullptr) return;
  rx_cq_->push_error({call.context, FI_RECV | (call.comm == kTagged ? FI_TAGGED : FI_MSG), 0, nullptr, 0, call.tag,
                      FI_ADDR_NOTAVAIL},
                     FI_ENOMSG, RDMA_NOT_FOUND, 0);
}

/* Looks for a message; with FI_CLAIM it waits for the receive of the same context. */
ssize_t Ep::peek(const ReceiveCall &call, rdma_peer_t source) {
  const bool claims = call.flags & (FI_CLAIM | FI_DISCARD);
  rdma_msg_status_t status{};
  status.struct_size = sizeof status;
  const rdma_code_t code = rdma_msg_probe(mgr_, source, call.comm, call.tag, ~call.ignore, claims, 0, &status);
  if (code == RDMA_DEADLINE_EXCEEDED) {
    no_message(call);
    return 0;
  }
  if (code != RDMA_OK) return refusal(code, FI_LOG_EP_DATA, "peek");
  Completion c = {call.context, FI_RECV | (call.comm == kTagged ? FI_TAGGED : FI_MSG), status.bytes, nullptr, 0,
                  status.tag, address_of(status.peer)};
  if (data_in(&status, &c.data)) c.flags |= FI_REMOTE_CQ_DATA;
  if (call.flags & FI_DISCARD) {
    discard(status.message);
  } else if (call.flags & FI_CLAIM) {
    std::lock_guard<std::mutex> hold(claims_lock_);
    claims_[call.context] = status;
  }
  if (rx_cq_ != nullptr && wants_rx(call.flags)) rx_cq_->push(c);
  return 0;
}

ssize_t Ep::claim(const ReceiveCall &call) {
  if (!call.into.ok()) return -FI_EINVAL;
  rdma_msg_status_t claimed;
  {
    std::lock_guard<std::mutex> hold(claims_lock_);
    const auto at = claims_.find(call.context);
    if (at == claims_.end()) return -FI_EINVAL;
    claimed = at->second;
    claims_.erase(at);
  }
  const uint64_t flags = FI_RECV | (call.comm == kTagged ? FI_TAGGED : FI_MSG);
  if (call.flags & FI_DISCARD) {
    discard(claimed.message);
    if (rx_cq_ != nullptr && wants_rx(call.flags))
      rx_cq_->push({call.context, flags, claimed.bytes, nullptr, 0, claimed.tag, address_of(claimed.peer)});
    return 0;
  }
  const ssize_t result = receive_claimed(call, claimed, flags);
  if (result != 0) {
    std::lock_guard<std::mutex> hold(claims_lock_);
    claims_[call.context] = claimed;
  }
  return result;
}

ssize_t Ep::receive_claimed(const ReceiveCall &call, const rdma_msg_status_t &claimed, uint64_t flags) {
  Request *r = requests_.take(this, Kind::Receive, claimed.peer, call.context, FI_ADDR_UNSPEC);
  if (r == nullptr) return -FI_EAGAIN;
  r->wants = wants_rx(call.flags);
  r->flags = flags;
  r->buf = call.into.first();
  r->len = call.into.len();
  r->tag = claimed.tag;
  r->parts.store(2, std::memory_order_relaxed);
  r->wanted = claimed.tag;
  r->ignore = 0;
  r->comm = call.comm;
  order_.find_place(r);
  rdma_msg_options_t room;
  rdma_msg_status_t status{};
  status.struct_size = sizeof status;
  uint64_t id = 0;
  const rdma_code_t code =
      rdma_msg_imrecv(mgr_, claimed.message, call.into.data(), call.into.data_len(),
                      options_for(r, call.into, &room), &status, &id);
  return issued(r, "claim", code, id, &status);
}

/* Receives a claimed message into nothing; nobody hears how that ends. */
void Ep::discard(uint64_t message) {
  Request *r = requests_.take(this, Kind::Discard, RDMA_PEER_ANY, nullptr, FI_ADDR_UNSPEC);
  if (r == nullptr) return;
  r->parts.store(2, std::memory_order_relaxed);
  rdma_msg_status_t status{};
  status.struct_size = sizeof status;
  uint64_t id = 0;
  if (rdma_msg_imrecv(mgr_, message, nullptr, 0, &r->options, &status, &id) != RDMA_OK || id == 0)
    drop(r);
  else
    begun(r, id);
}

}  // namespace rdmat
