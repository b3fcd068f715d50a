/* One-sided operations at the end that asks for them. They are emulated: an active message carries a write, and its
 * handler answers; a read asks for a message, into a receive that waits for it. */
#include "ep.h"
#include "remote.h"

namespace rdmat {

Request *Ep::begin_remote(Kind kind, fi_addr_t to, void *context, uint64_t flags, uint64_t told, bool quiet) {
  Request *r = requests_.take(this, kind, peer_of(to), context, to);
  if (r == nullptr) return nullptr;
  r->inject = quiet;
  count_in(r);
  r->wants = !quiet && wants_tx(flags);
  r->flags = told;
  r->buf = nullptr;
  r->tag = 0;
  return r;
}

namespace {

void question_done(const rdma_msg_status_t *status, void *userdata) {
  Request *r = static_cast<Request *>(userdata);
  r->ep->question_ended(r, status->code);
}

}  // namespace

/* Sends what is asked; `result`: where the answer goes, for a Read. */
ssize_t Ep::ask(Request *r, uint32_t handler, const void *head, size_t head_len, const Pieces &content,
                const Pieces *result) {
  const rdma_peer_t peer = r->peer;
  const uint64_t number = r->number();
  /* The call, the question, the answer. */
  r->parts.store(3, std::memory_order_relaxed);
  watch();
  if (result != nullptr) {
    r->len = result->len();
    rdma_msg_options_t room;
    rdma_msg_status_t status{};
    status.struct_size = sizeof status;
    uint64_t id = 0;
    const rdma_code_t code = rdma_msg_irecv(mgr_, peer, kReplies, number, RDMA_MSG_TAG_MASK, result->data(),
                                            result->data_len(), options_for(r, *result, &room), &status, &id);
    if (code != RDMA_OK) {
      drop(r);
      return refusal(code, FI_LOG_EP_DATA, "one-sided operation");
    }
    r->message.store(id);
    if (id == 0) message_ended(r, &status);
  } else {
    r->answer_due.store(number);
  }
  rdma_msg_options_t options = r->options;
  options.layout = content.layout();
  options.done = question_done;
  options.header = head;
  options.header_len = head_len;
  uint64_t id = 0;
  const rdma_code_t code =
      rdma_msg_am_isend(mgr_, peer, handler, 0, content.data(), content.data_len(), &options, &id);
  if (code != RDMA_OK) {
    const ssize_t refused = refusal(code, FI_LOG_EP_DATA, "one-sided operation");
    if (result == nullptr) {
      drop(r);
      return refused;
    }
    /* Nobody will hear of the receive that was begun. */
    count_out(r);
    r->kind = Kind::Discard;
    const uint64_t message = r->message;
    end_part(r);
    if (message != 0) rdma_msg_cancel(mgr_, message);
    end_part(r);
    return refused;
  }
  r->question.store(id);
  if (id == 0)
    question_ended(r, RDMA_OK);
  else if (r->stopped() != 0)
    rdma_msg_cancel(mgr_, id);
  end_part(r);
  return 0;
}

namespace {

bool fill(RemoteHead *head, const RemoteCall &call, uint64_t number) {
  head->number = number;
  head->data = call.data;
  head->with_data = (call.flags & FI_REMOTE_CQ_DATA) != 0;
  head->count = static_cast<uint32_t>(call.count);
  uint64_t total = 0;
  for (size_t i = 0; i < call.count; ++i) {
    head->spans[i] = call.spans[i];
    total += call.spans[i].len;
  }
  return total == call.local.len();
}

}  // namespace

ssize_t Ep::write(const RemoteCall &call) {
  if (!(caps & FI_RMA)) return -FI_EOPNOTSUPP;
  if (peer_of(call.to) == 0) return -FI_EADDRNOTAVAIL;
  if (!call.local.ok() || call.count == 0 || call.count > kRmaIov) return -FI_EINVAL;
  const bool copy = call.quiet || (call.flags & FI_INJECT);
  if (copy && call.local.len() > kInject) return -FI_EINVAL;
  RemoteHead head;
  if (!fill(&head, call, 0)) return -FI_EINVAL;
  if (waiting_ >= kQueue || (call.quiet && quiet_ >= kInjects)) return -FI_EAGAIN;
  Request *r = begin_remote(Kind::Write, call.to, call.context, call.flags, FI_RMA | FI_WRITE, call.quiet);
  if (r == nullptr) return -FI_EAGAIN;
  head.number = r->number();
  if (!copy || call.local.len() == 0) return ask(r, kOnWrite, &head, head.size(), call.local, nullptr);
  void *scratch = requests_.scratch(r, call.local.len(), mgr_);
  if (scratch == nullptr) {
    drop(r);
    return -FI_EAGAIN;
  }
  call.local.copy_to(scratch);
  return ask(r, kOnWrite, &head, head.size(), Pieces(scratch, call.local.len()), nullptr);
}

ssize_t Ep::read(const RemoteCall &call) {
  if (!(caps & FI_RMA)) return -FI_EOPNOTSUPP;
  if (peer_of(call.to) == 0) return -FI_EADDRNOTAVAIL;
  if (!call.local.ok() || call.count == 0 || call.count > kRmaIov) return -FI_EINVAL;
  RemoteHead head;
  if (!fill(&head, call, 0)) return -FI_EINVAL;
  if (waiting_ >= kQueue) return -FI_EAGAIN;
  Request *r = begin_remote(Kind::Read, call.to, call.context, call.flags, FI_RMA | FI_READ, false);
  if (r == nullptr) return -FI_EAGAIN;
  head.number = r->number();
  return ask(r, kOnRead, &head, head.size(), Pieces(static_cast<const void *>(nullptr), 0), &call.local);
}

namespace {

ssize_t put(fid_ep *ep, const Pieces &local, fi_addr_t to, uint64_t addr, uint64_t key, uint64_t data, void *context,
            uint64_t flags, bool quiet) {
  const Span span = {addr, local.len(), key};
  return ep_of(ep)->write({local, to, &span, 1, data, context, flags, quiet});
}

ssize_t get(fid_ep *ep, const Pieces &local, fi_addr_t from, uint64_t addr, uint64_t key, void *context) {
  const Span span = {addr, local.len(), key};
  return ep_of(ep)->read({local, from, &span, 1, 0, context, ep_of(ep)->tx_flags, false});
}

ssize_t with_message(fid_ep *ep, const fi_msg_rma *msg, uint64_t flags, bool reads) {
  if (const ssize_t bad = check_flags(flags, reads ? kSendFlags : kSendFlags | FI_REMOTE_CQ_DATA)) return bad;
  if (msg->rma_iov_count > kRmaIov) return -FI_EINVAL;
  Span spans[kRmaIov];
  for (size_t i = 0; i < msg->rma_iov_count; ++i)
    spans[i] = {msg->rma_iov[i].addr, msg->rma_iov[i].len, msg->rma_iov[i].key};
  const Pieces local(msg->msg_iov, msg->iov_count);
  const RemoteCall call = {local, msg->addr, spans, msg->rma_iov_count, msg->data, msg->context, flags, false};
  return reads ? ep_of(ep)->read(call) : ep_of(ep)->write(call);
}

fi_ops_rma make_table() {
  fi_ops_rma t{};
  t.size = sizeof t;
  t.read = [](fid_ep *ep, void *buf, size_t len, void *, fi_addr_t from, uint64_t addr, uint64_t key, void *context) {
    return get(ep, Pieces(buf, len), from, addr, key, context);
  };
  t.readv = [](fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t from, uint64_t addr, uint64_t key,
               void *context) { return get(ep, Pieces(iov, count), from, addr, key, context); };
  t.readmsg = [](fid_ep *ep, const fi_msg_rma *msg, uint64_t flags) { return with_message(ep, msg, flags, true); };
  t.write = [](fid_ep *ep, const void *buf, size_t len, void *, fi_addr_t to, uint64_t addr, uint64_t key,
               void *context) {
    return put(ep, Pieces(buf, len), to, addr, key, 0, context, ep_of(ep)->tx_flags, false);
  };
  t.writev = [](fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t to, uint64_t addr, uint64_t key,
                void *context) {
    return put(ep, Pieces(iov, count), to, addr, key, 0, context, ep_of(ep)->tx_flags, false);
  };
  t.writemsg = [](fid_ep *ep, const fi_msg_rma *msg, uint64_t flags) { return with_message(ep, msg, flags, false); };
  t.inject = [](fid_ep *ep, const void *buf, size_t len, fi_addr_t to, uint64_t addr, uint64_t key) {
    return put(ep, Pieces(buf, len), to, addr, key, 0, nullptr, 0, true);
  };
  t.writedata = [](fid_ep *ep, const void *buf, size_t len, void *, uint64_t data, fi_addr_t to, uint64_t addr,
                   uint64_t key, void *context) {
    return put(ep, Pieces(buf, len), to, addr, key, data, context, ep_of(ep)->tx_flags | FI_REMOTE_CQ_DATA, false);
  };
  t.injectdata = [](fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t addr,
                    uint64_t key) {
    return put(ep, Pieces(buf, len), to, addr, key, data, nullptr, FI_REMOTE_CQ_DATA, true);
  };
  return t;
}

}  // namespace

fi_ops_rma *rma_table() {
  static fi_ops_rma table = make_table();
  return &table;
}

}  // namespace rdmat
