/* fi_msg: libfabric's table of messages without a tag. */
#include "ep.h"

namespace rdmat {

namespace {

ssize_t give(fid_ep *ep, const Pieces &from, fi_addr_t to, uint64_t data, void *context, uint64_t flags, bool quiet) {
  return ep_of(ep)->send({kUntagged, from, to, 0, data, context, flags, quiet});
}

ssize_t get(fid_ep *ep, const Pieces &into, fi_addr_t from, void *context, uint64_t flags) {
  return ep_of(ep)->receive({kUntagged, into, from, 0, UINT64_MAX, context, flags});
}

ssize_t recv(fid_ep *ep, void *buf, size_t len, void *, fi_addr_t from, void *context) {
  return get(ep, Pieces(buf, len), from, context, ep_of(ep)->rx_flags);
}

ssize_t recvv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t from, void *context) {
  return get(ep, Pieces(iov, count), from, context, ep_of(ep)->rx_flags);
}

ssize_t recvmsg(fid_ep *ep, const fi_msg *msg, uint64_t flags) {
  if (const ssize_t bad = check_flags(flags, kFlags | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD)) return bad;
  if ((flags & FI_DISCARD) && !(flags & (FI_PEEK | FI_CLAIM))) return -FI_EINVAL; /* discard what? */
  return get(ep, Pieces(msg->msg_iov, msg->iov_count), msg->addr, msg->context, flags);
}

ssize_t send(fid_ep *ep, const void *buf, size_t len, void *, fi_addr_t to, void *context) {
  return give(ep, Pieces(buf, len), to, 0, context, ep_of(ep)->tx_flags, false);
}

ssize_t sendv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t to, void *context) {
  return give(ep, Pieces(iov, count), to, 0, context, ep_of(ep)->tx_flags, false);
}

ssize_t sendmsg(fid_ep *ep, const fi_msg *msg, uint64_t flags) {
  if (const ssize_t bad = check_flags(flags, kSendFlags | FI_REMOTE_CQ_DATA)) return bad;
  return give(ep, Pieces(msg->msg_iov, msg->iov_count), msg->addr, msg->data, msg->context, flags, false);
}

ssize_t inject(fid_ep *ep, const void *buf, size_t len, fi_addr_t to) {
  return give(ep, Pieces(buf, len), to, 0, nullptr, 0, true);
}

ssize_t senddata(fid_ep *ep, const void *buf, size_t len, void *, uint64_t data, fi_addr_t to, void *context) {
  return give(ep, Pieces(buf, len), to, data, context, ep_of(ep)->tx_flags | FI_REMOTE_CQ_DATA, false);
}

ssize_t injectdata(fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to) {
  return give(ep, Pieces(buf, len), to, data, nullptr, FI_REMOTE_CQ_DATA, true);
}

}  // namespace

fi_ops_msg *msg_table() {
  static fi_ops_msg table = [] {
    fi_ops_msg t{};
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
