/* Sending messages. */
#include <sched.h>

#include "clock.h"
#include "ep.h"

namespace rdmat {

namespace {

uint32_t mode_of(uint64_t flags) {
  return flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) ? RDMA_MSG_SYNCHRONOUS : RDMA_MSG_STANDARD;
}

/* How long the first inject to a peer waits for the connection, in milliseconds. */
constexpr int kMeet = 500;

}  // namespace

/* Who injects may drive nothing from then on: Open MPI's MPI_Comm_accept sleeps for its runtime. So the first message to a peer has
 * its connection come about here, if the peer is driven as well. One that is not holds nobody up twice. */
void Ep::meet(rdma_peer_t peer) {
  if (domain->thread || peer == self_peer_ || awaited_.get(peer) != 0) return;
  awaited_.set(peer, 1);
  const int64_t until = deadline(kMeet);
  while (told_.get(peer) == 0 && remaining(until) > 0) {
    if (progress() == 0) sched_yield();
  }
  /* What waited for the connection goes out. */
  progress();
}

/* The library took it, and will tell of its end, if it has not yet. Who stops it after this finds the message to cancel, and who
 * stopped it before has that done here. */
void Ep::begun(Request *r, uint64_t id) {
  /* Where it is one thread, it sees in any order what it did itself. */
  if (domain->locks)
    r->message.store(id, std::memory_order_seq_cst);
  else
    r->message.store(id, std::memory_order_relaxed);
  const Kind kind = r->kind.load(std::memory_order_relaxed);
  if (r->peer.load(std::memory_order_relaxed) != RDMA_PEER_ANY) watch();
  /* A peer that is gone sends nothing any more, and nothing of it waits. */
  if ((kind == Kind::Receive || kind == Kind::MultiReceive) && told_.get(r->peer.load(std::memory_order_relaxed)) == kGone)
    r->stop_for(r->number(), FI_ECONNRESET);
  if (r->stopped() != 0) rdma_msg_cancel(mgr_, id);
  end_part(r);
}

ssize_t Ep::send(const SendCall &call) {
  const rdma_peer_t peer = peer_of(call.to);
  if (peer == 0) return -FI_EADDRNOTAVAIL;
  if (!call.from.ok()) return -FI_EINVAL;
  const bool copy = call.quiet || (call.flags & FI_INJECT);
  if (copy && call.from.len() > kInject) return -FI_EINVAL;
  if (call.from.len() > kMaxMessage) return -FI_EMSGSIZE;
  if (waiting_.load(std::memory_order_relaxed) >= kQueue) return -FI_EAGAIN;
  if (call.quiet && quiet_.load(std::memory_order_relaxed) >= kInjects) return -FI_EAGAIN;
  Request *r = requests_.take(this, Kind::Send, peer, call.context, call.to);
  if (r == nullptr) return -FI_EAGAIN;
  r->inject = call.quiet;
  r->wants = !call.quiet && wants_tx(call.flags);
  r->flags = FI_SEND | (call.comm == kTagged ? FI_TAGGED : FI_MSG);
  r->buf = nullptr;
  r->parts.store(2, std::memory_order_relaxed);

  const rdma_msg_options_t *options = &r->options;
  if (call.flags & FI_REMOTE_CQ_DATA) {
    r->data = call.data;
    options = &r->with_data;
  }
  const void *data = call.from.data();
  size_t len = call.from.data_len();
  if (copy && call.from.len() > 0) {
    void *scratch = requests_.scratch(r, call.from.len(), mgr_);
    if (scratch == nullptr) {
      drop(r);
      return -FI_EAGAIN;
    }
    call.from.copy_to(scratch);
    data = scratch;
    len = call.from.len();
  }
  const uint32_t mode = mode_of(call.flags);
  const bool pieces = !call.from.one() && data == nullptr;
  rdma_msg_options_t room;
  if (mode != RDMA_MSG_STANDARD || pieces) {
    room = *options;
    room.mode = mode;
    if (pieces) room.layout = call.from.layout();
    options = &room;
  }
  uint64_t id = 0;
  const rdma_code_t code = rdma_msg_isend(mgr_, peer, call.comm, call.tag, data, len, options, &id);
  if (code != RDMA_OK) {
    drop(r);
    return refusal(code, FI_LOG_EP_DATA, "send");
  }
  if (id == 0) {
    finish(r);
  } else {
    count_in(r);
    begun(r, id);
    if (call.quiet && told_.get(peer) == 0) meet(peer);
  }
  return 0;
}

}  // namespace rdmat
