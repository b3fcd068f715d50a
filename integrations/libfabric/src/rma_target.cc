/* One-sided operations at the end whose memory it is. What comes is a peer's: nothing of it is taken without a look. */
#include <cstring>

#include "ep.h"
#include "remote.h"

namespace rdmat {

int Targets::take(Domain *domain, const Span *spans, size_t count, uint64_t access) {
  for (size_t i = 0; i < count; ++i) {
    uint8_t *at;
    if (const int err = domain->find(spans[i], access, &at, &regions_[i])) {
      release();
      return err;
    }
    pieces_[i] = {at, spans[i].len};
    bytes_ += spans[i].len;
    ++count_;
  }
  return 0;
}

void Targets::release() {
  for (size_t i = 0; i < count_; ++i) --regions_[i]->users;
  count_ = 0;
  bytes_ = 0;
}

rdma_msg_layout_t Targets::layout() const {
  rdma_msg_layout_t layout{};
  layout.struct_size = sizeof layout;
  layout.kind = RDMA_MSG_IOVEC;
  layout.pieces = pieces_;
  layout.count = count_;
  return layout;
}

namespace {

/* A write or a read of a peer that is under way. */
struct Served : Answer {
  Served(Ep *ep, rdma_peer_t peer, const RemoteHead &head) : ep(ep), peer(peer), head(head) {}
  rdma_code_t go() override;

  Ep *const ep;
  const rdma_peer_t peer;
  const RemoteHead head;
  Targets targets;
  /* Content that is to come. */
  uint64_t message = 0;

 private:
  rdma_code_t receive();
  rdma_code_t send();
};

bool parse(const rdma_msg_status_t *status, RemoteHead *head) {
  const size_t least = offsetof(RemoteHead, spans);
  if (status->header_len < least || status->header_len > sizeof *head) return false;
  std::memcpy(head, status->header, status->header_len);
  return head->count >= 1 && head->count <= kRmaIov && head->size() == status->header_len;
}

rdma_msg_options_t options_of(Served *served, rdma_msg_done_fn done) {
  rdma_msg_options_t options{};
  options.struct_size = sizeof options;
  options.timeout_ms = RDMA_MSG_FOREVER;
  options.done = done;
  options.userdata = served;
  return options;
}

void written(Served *served, rdma_code_t code) {
  Ep *ep = served->ep;
  const uint64_t bytes = served->targets.bytes();
  served->targets.release();
  const int err = error_of(code);
  if (err == 0) ep->told_write(served->peer, bytes, served->head.data, served->head.with_data != 0);
  ep->acknowledge(served->peer, served->head.number, err);
  delete served;
}

void write_done(const rdma_msg_status_t *status, void *userdata) {
  written(static_cast<Served *>(userdata), status->code);
}

void read_done(const rdma_msg_status_t *status, void *userdata) {
  Served *served = static_cast<Served *>(userdata);
  served->ep->count(Ep::kCntrRemoteRead, status->code == RDMA_OK);
  delete served;
}

rdma_code_t Served::go() { return message != 0 ? receive() : send(); }

/* What is written, to its place. */
rdma_code_t Served::receive() {
  rdma_msg_options_t options = options_of(this, write_done);
  const bool one = head.count == 1;
  const rdma_msg_layout_t layout = targets.layout();
  if (!one) options.layout = &layout;
  rdma_msg_status_t end{};
  end.struct_size = sizeof end;
  uint64_t id = 0;
  const rdma_code_t code = rdma_msg_imrecv(ep->manager(), message, one ? targets[0].data : nullptr,
                                           one ? targets[0].len : 0, &options, &end, &id);
  if (code == RDMA_RESOURCE_EXHAUSTED) return code;
  if (code != RDMA_OK || id == 0) written(this, code != RDMA_OK ? code : end.code);
  return RDMA_OK;
}

/* What was read. */
rdma_code_t Served::send() {
  rdma_msg_options_t options = options_of(this, read_done);
  const bool one = head.count == 1;
  const rdma_msg_layout_t layout = targets.layout();
  if (!one) options.layout = &layout;
  uint64_t id = 0;
  const rdma_code_t code = rdma_msg_isend(ep->manager(), peer, kReplies, head.number, one ? targets[0].data : nullptr,
                                          one ? targets[0].len : 0, &options, &id);
  if (code == RDMA_RESOURCE_EXHAUSTED) return code;
  if (code != RDMA_OK) ep->refuse_read(peer, head.number, error_of(code));
  if (code == RDMA_OK && id == 0) ep->count(Ep::kCntrRemoteRead, true);
  if (code != RDMA_OK || id == 0) delete this;
  return RDMA_OK;
}

/* That an operation has ended; of a read, why nothing comes. */
rdma_code_t send_end(rdma_mgr_t *mgr, bool read, rdma_peer_t peer, uint64_t number, int32_t err) {
  rdma_msg_options_t options{};
  options.struct_size = sizeof options;
  options.timeout_ms = RDMA_MSG_FOREVER;
  if (err != 0) {
    options.header = &err;
    options.header_len = sizeof err;
  }
  return read ? rdma_msg_isend(mgr, peer, kReplies, number, nullptr, 0, &options, nullptr)
              : rdma_msg_am_isend(mgr, peer, kOnAck, number, nullptr, 0, &options, nullptr);
}

struct End : Answer {
  End(Ep *ep, bool read, rdma_peer_t peer, uint64_t number, int err)
      : ep(ep), read(read), peer(peer), number(number), err(err) {}
  rdma_code_t go() override {
    const rdma_code_t code = send_end(ep->manager(), read, peer, number, err);
    if (code == RDMA_OK) delete this;
    return code;
  }

  Ep *const ep;
  const bool read;
  const rdma_peer_t peer;
  const uint64_t number;
  const int err;
};

}  // namespace

void Ep::keep(Answer *answer) {
  std::unique_ptr<Answer> owned(answer);
  std::lock_guard<std::mutex> hold(kept_lock_);
  if (answer == nullptr || kept_.size() >= kQueue) {
    RDMAT_WARN(FI_LOG_EP_DATA, "an answer is lost: there is no room for it, and %zu wait already\n", kept_.size());
    return;
  }
  if (kept_.empty()) RDMAT_WARN(FI_LOG_EP_DATA, "there is no room for an answer: it is sent later\n");
  kept_.push_back(std::move(owned));
  keeps_ = kept_.size();
  watch();
}

bool Ep::answer_with(Answer *answer) {
  const rdma_code_t code = keeps_ == 0 ? answer->go() : RDMA_RESOURCE_EXHAUSTED;
  if (code == RDMA_OK) return true;
  if (code == RDMA_RESOURCE_EXHAUSTED) {
    keep(answer);
    return false;
  }
  refusal(code, FI_LOG_EP_DATA, "an answer");
  delete answer;
  return true;
}

void Ep::go_on() {
  while (keeps_ > 0 && !closing_) {
    std::unique_ptr<Answer> first;
    {
      std::lock_guard<std::mutex> hold(kept_lock_);
      if (kept_.empty()) return;
      first = std::move(kept_.front());
      kept_.pop_front();
    }
    const rdma_code_t code = first->go();
    if (code == RDMA_OK) (void)first.release();
    std::lock_guard<std::mutex> hold(kept_lock_);
    if (code == RDMA_RESOURCE_EXHAUSTED) kept_.push_front(std::move(first));
    keeps_ = kept_.size();
    if (code == RDMA_RESOURCE_EXHAUSTED) return;
    if (code != RDMA_OK) refusal(code, FI_LOG_EP_DATA, "an answer");
  }
}

void Ep::tell(bool read, rdma_peer_t peer, uint64_t number, int err) {
  if (closing_) return;
  const rdma_code_t code = keeps_ == 0 ? send_end(mgr_, read, peer, number, err) : RDMA_RESOURCE_EXHAUSTED;
  if (code == RDMA_RESOURCE_EXHAUSTED)
    keep(new (std::nothrow) End(this, read, peer, number, err));
  else if (code != RDMA_OK)
    refusal(code, FI_LOG_EP_DATA, "an answer");
}

/* Tells the peer that its operation has ended. */
void Ep::acknowledge(rdma_peer_t peer, uint64_t number, int err) { tell(false, peer, number, err); }

void Ep::on_ack(const rdma_msg_status_t *status) {
  int32_t err = 0;
  if (status->header_len == sizeof err) std::memcpy(&err, status->header, sizeof err);
  Request *r = requests_.find(status->tag);
  if (r == nullptr || r->peer != status->peer) return;
  answer(r, status->tag, err < 0 ? FI_EOTHER : err);
}

void Ep::told_write(rdma_peer_t peer, uint64_t bytes, uint64_t data, bool with_data) {
  if (closing_) return;
  if (with_data && rx_cq_ != nullptr)
    rx_cq_->push({nullptr, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, bytes, nullptr, data, 0, address_of(peer)});
  count(kCntrRemoteWrite, true);
}

uint32_t Ep::on_write(const rdma_msg_status_t *status, const void *data) {
  RemoteHead head;
  if (!parse(status, &head)) {
    RDMAT_WARN(FI_LOG_EP_DATA, "a write that is none came from peer %llu\n",
               static_cast<unsigned long long>(status->peer));
    return RDMA_MSG_HANDLED;
  }
  Served *served = new (std::nothrow) Served(this, status->peer, head);
  int err = served == nullptr ? FI_ENOMEM : served->targets.take(domain, head.spans, head.count, FI_REMOTE_WRITE);
  if (err == 0 && served->targets.bytes() != status->bytes) err = FI_EINVAL;
  if (err != 0) {
    acknowledge(status->peer, head.number, err);
    delete served;
    return RDMA_MSG_HANDLED;
  }
  if (status->message == 0) {
    const uint8_t *from = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i < served->targets.count(); ++i) {
      const rdma_msg_piece_t &to = served->targets[i];
      if (to.len > 0) std::memcpy(to.data, from, to.len);
      from += to.len;
    }
    written(served, RDMA_OK);
    return RDMA_MSG_HANDLED;
  }
  served->message = status->message;
  return answer_with(served) ? RDMA_MSG_HANDLED : RDMA_MSG_LATER;
}

/* The receive of the result ends with this instead. */
void Ep::refuse_read(rdma_peer_t peer, uint64_t number, int err) { tell(true, peer, number, err); }

uint32_t Ep::on_read(const rdma_msg_status_t *status) {
  RemoteHead head;
  if (!parse(status, &head)) {
    RDMAT_WARN(FI_LOG_EP_DATA, "a read that is none came from peer %llu\n",
               static_cast<unsigned long long>(status->peer));
    return RDMA_MSG_HANDLED;
  }
  Served *served = new (std::nothrow) Served(this, status->peer, head);
  const int err = served == nullptr ? FI_ENOMEM : served->targets.take(domain, head.spans, head.count, FI_REMOTE_READ);
  if (err != 0) {
    refuse_read(status->peer, head.number, err);
    delete served;
    return RDMA_MSG_HANDLED;
  }
  answer_with(served);
  return RDMA_MSG_HANDLED;
}

}  // namespace rdmat
