/* One-sided operations at the end whose memory it is. What comes is a peer's: nothing of it is taken without a look. */
#include <cstring>

#include "answer.h"
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

void Targets::count_write() const {
  for (size_t i = 0; i < count_; ++i) {
    Cntr *cntr = regions_[i]->writes;
    /* One operation counts once in a region, wherever it touches it. */
    for (size_t before = 0; before < i; ++before) {
      if (regions_[before] == regions_[i]) cntr = nullptr;
    }
    if (cntr != nullptr) cntr->add(1);
  }
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
class Served : public Answer {
 public:
  Served(Ep *ep, rdma_peer_t peer, const RemoteHead &head) : Answer(ep, peer), head(head) {}
  bool go() override { return receives() ? receive() : deliver(); }
  bool receives() const override { return message != 0; }
  void sent(rdma_code_t code) override {
    ep->count(Ep::kCntrRemoteRead, code == RDMA_OK);
    if (heard_of(code)) ep->refuse_read(peer, head.number, error_of(code));
  }

  const RemoteHead head;
  Targets targets;
  /* Content that is to come. */
  uint64_t message = 0;

 private:
  bool receive();
  rdma_code_t post(rdma_msg_options_t *options, uint64_t *id) override;
};

bool parse(const rdma_msg_status_t *status, RemoteHead *head) {
  const size_t least = offsetof(RemoteHead, spans);
  if (status->header_len < least || status->header_len > sizeof *head) return false;
  std::memcpy(head, status->header, status->header_len);
  return head->count >= 1 && head->count <= kRmaIov && head->size() == status->header_len;
}

void written(Served *served, rdma_code_t code) {
  Ep *ep = served->ep;
  const int err = error_of(code);
  if (err == 0) {
    ep->told_write(served->peer, served->targets.bytes(), served->head.data, served->head.with_data != 0);
    served->targets.count_write();
  }
  served->targets.release();
  ep->acknowledge(served->peer, served->head.number, err);
  delete served;
}

void write_done(const rdma_msg_status_t *status, void *userdata) {
  written(static_cast<Served *>(userdata), status->code);
}

/* What is written, to its place. */
bool Served::receive() {
  rdma_msg_options_t options{};
  options.struct_size = sizeof options;
  options.timeout_ms = RDMA_MSG_FOREVER;
  options.done = write_done;
  options.userdata = this;
  const bool one = head.count == 1;
  const rdma_msg_layout_t layout = targets.layout();
  if (!one) options.layout = &layout;
  rdma_msg_status_t end{};
  end.struct_size = sizeof end;
  uint64_t id = 0;
  const rdma_code_t code = rdma_msg_imrecv(ep->manager(), message, one ? targets[0].data : nullptr,
                                           one ? targets[0].len : 0, &options, &end, &id);
  if (code == RDMA_RESOURCE_EXHAUSTED) return false;
  if (code != RDMA_OK || id == 0) written(this, code != RDMA_OK ? code : end.code);
  return true;
}

/* What was read. */
rdma_code_t Served::post(rdma_msg_options_t *options, uint64_t *id) {
  const bool one = head.count == 1;
  const rdma_msg_layout_t layout = targets.layout();
  if (!one) options->layout = &layout;
  return rdma_msg_isend(ep->manager(), peer, kReplies, head.number, one ? targets[0].data : nullptr,
                        one ? targets[0].len : 0, options, id);
}

}  // namespace

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
