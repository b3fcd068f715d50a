/* fi_tagged: libfabric's table of messages with a tag. */
#include "ep.h"

namespace rdmat {

namespace {

ssize_t give(fid_ep *ep, const Pieces &from, fi_addr_t to, uint64_t tag, uint64_t data, void *context, uint64_t flags,
             bool quiet) {
  return ep_of(ep)->send({kTagged, from, to, tag, data, context, flags, quiet});
}

ssize_t get(fid_ep *ep, const Pieces &into, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context,
            uint64_t flags) {
  return ep_of(ep)->receive({kTagged, into, from, tag, ignore, context, flags});
}

ssize_t recv(fid_ep *ep, void *buf, size_t len, void *, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context) {
  return get(ep, Pieces(buf, len), from, tag, ignore, context, ep_of(ep)->rx_flags & ~FI_MULTI_RECV);
}

ssize_t recvv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t from, uint64_t tag, uint64_t ignore,
              void *context) {
  return get(ep, Pieces(iov, count), from, tag, ignore, context, ep_of(ep)->rx_flags & ~FI_MULTI_RECV);
}

ssize_t recvmsg(fid_ep *ep, const fi_msg_tagged *msg, uint64_t flags) {
  if (const ssize_t bad = check_flags(flags, kFlags | FI_PEEK | FI_CLAIM | FI_DISCARD)) return bad;
  if ((flags & FI_DISCARD) && !(flags & (FI_PEEK | FI_CLAIM))) return -FI_EINVAL; /* discard what? */
  return get(ep, Pieces(msg->msg_iov, msg->iov_count), msg->addr, msg->tag, msg->ignore, msg->context, flags);
}

ssize_t send(fid_ep *ep, const void *buf, size_t len, void *, fi_addr_t to, uint64_t tag, void *context) {
  return give(ep, Pieces(buf, len), to, tag, 0, context, ep_of(ep)->tx_flags, false);
}

ssize_t sendv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t to, uint64_t tag, void *context) {
  return give(ep, Pieces(iov, count), to, tag, 0, context, ep_of(ep)->tx_flags, false);
}

ssize_t sendmsg(fid_ep *ep, const fi_msg_tagged *msg, uint64_t flags) {
  if (const ssize_t bad = check_flags(flags, kSendFlags | FI_REMOTE_CQ_DATA)) return bad;
  return give(ep, Pieces(msg->msg_iov, msg->iov_count), msg->addr, msg->tag, msg->data, msg->context, flags, false);
}

ssize_t inject(fid_ep *ep, const void *buf, size_t len, fi_addr_t to, uint64_t tag) {
  return give(ep, Pieces(buf, len), to, tag, 0, nullptr, 0, true);
}

ssize_t senddata(fid_ep *ep, const void *buf, size_t len, void *, uint64_t data, fi_addr_t to, uint64_t tag,
                 void *context) {
  return give(ep, Pieces(buf, len), to, tag, data, context, ep_of(ep)->tx_flags | FI_REMOTE_CQ_DATA, false);
}

ssize_t injectdata(fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t tag) {
  return give(ep, Pieces(buf, len), to, tag, data, nullptr, FI_REMOTE_CQ_DATA, true);
}

}  // namespace

fi_ops_tagged *tagged_table() {
  static fi_ops_tagged table = [] {
    fi_ops_tagged t{};
    t.size = sizeof t;
    t.recv = recv;
    t.recvv = recvv;
    t.recvmsg = recvmsg;
    t.send = send;
    t.sendv = sendv;
    t.sendmsg = sendmsg;
    t.inject = inject;
    t.senddata = senddata;
    t.injectdata = injectdata;
    return t;
  }();
  return &table;
}

}  // namespace rdmat
