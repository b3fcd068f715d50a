/* Atomic operations at the end that asks for them: operands go along, the other end does it and answers. */
#include <cstring>

#include "ep.h"
#include "remote.h"

namespace rdmat {

namespace {

size_t elements(const fi_ioc *iov, size_t count) {
  size_t n = 0;
  for (size_t i = 0; i < count; ++i) n += iov[i].count;
  return n;
}

AtomicKind kind_of(const AtomicCall &call) {
  if (call.compares > 0) return AtomicKind::Compare;
  return call.results > 0 ? AtomicKind::Fetch : AtomicKind::Plain;
}

}  // namespace

/* The content: operands, then what is compared. */
bool Ep::gather(Request *r, const AtomicCall &call, size_t size, size_t *len) {
  *len = (elements(call.operand, call.operands) + elements(call.compare, call.compares)) * size;
  if (*len == 0) return true;
  uint8_t *at = static_cast<uint8_t *>(requests_.scratch(r, *len, mgr_));
  if (at == nullptr) return false;
  const auto append = [&](const fi_ioc *iov, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(at, iov[i].addr, iov[i].count * size);
      at += iov[i].count * size;
    }
  };
  append(call.operand, call.operands);
  append(call.compare, call.compares);
  return true;
}

ssize_t Ep::atomic(const AtomicCall &call) {
  if (!(caps & FI_ATOMIC)) return -FI_EOPNOTSUPP;
  const AtomicKind kind = kind_of(call);
  if (!atomic_supported(kind, call.op, call.type)) return -FI_EOPNOTSUPP;
  if (peer_of(call.to) == 0) return -FI_EADDRNOTAVAIL;
  const size_t size = size_of(call.type);
  if (call.remotes == 0 || call.remotes > kRmaIov || call.operands > kIov || call.compares > kIov ||
      call.results > kIov)
    return -FI_EINVAL;
  AtomicHead head;
  head.kind = static_cast<uint32_t>(kind);
  head.op = call.op;
  head.type = call.type;
  head.count = static_cast<uint32_t>(call.remotes);
  size_t n = 0;
  for (size_t i = 0; i < call.remotes; ++i) {
    head.spans[i] = {call.remote[i].addr, call.remote[i].count * size, call.remote[i].key};
    n += call.remote[i].count;
  }
  const bool reads = call.op == FI_ATOMIC_READ;
  if (n == 0 || n > kAtomicBytes / size || (!reads && elements(call.operand, call.operands) != n) ||
      (kind == AtomicKind::Compare && elements(call.compare, call.compares) != n) ||
      (call.results > 0 && elements(call.result, call.results) != n))
    return -FI_EINVAL;
  if (waiting_ >= kQueue || (call.quiet && quiet_ >= kInjects)) return -FI_EAGAIN;
  const bool fetches = kind != AtomicKind::Plain;
  Request *r = begin_remote(fetches ? Kind::Read : Kind::Write, call.to, call.context, call.flags,
                            FI_ATOMIC | (fetches ? FI_READ : FI_WRITE), call.quiet);
  if (r == nullptr) return -FI_EAGAIN;
  AtomicCall content = call;
  if (reads) content.operands = 0;
  size_t len;
  if (!gather(r, content, size, &len)) {
    drop(r);
    return -FI_EAGAIN;
  }
  head.number = r->number();
  const Pieces operands(r->scratch != nullptr ? r->scratch : r->small, len);
  iovec result[kIov];
  for (size_t i = 0; i < call.results; ++i) result[i] = {call.result[i].addr, call.result[i].count * size};
  const Pieces into(result, call.results);
  return ask(r, kOnAtomic, &head, head.size(), operands, fetches ? &into : nullptr);
}

namespace {

ssize_t plain(fid_ep *ep, const fi_ioc *iov, size_t count, fi_addr_t to, uint64_t addr, uint64_t key,
              fi_datatype type, fi_op op, void *context, uint64_t flags, bool quiet) {
  if (count > kIov) return -FI_EINVAL;
  const fi_rma_ioc remote = {addr, elements(iov, count), key};
  return ep_of(ep)->atomic({iov, count, nullptr, 0, nullptr, 0, to, &remote, 1, type, op, context, flags, quiet});
}

ssize_t fetch(fid_ep *ep, const fi_ioc *iov, size_t count, const fi_ioc *compare, size_t compares, fi_ioc *result,
              size_t results, fi_addr_t to, uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void *context) {
  if (count > kIov || results > kIov || results == 0) return -FI_EINVAL;
  const fi_rma_ioc remote = {addr, elements(result, results), key};
  return ep_of(ep)->atomic({iov, count, compare, compares, result, results, to, &remote, 1, type, op, context,
                            ep_of(ep)->tx_flags, false});
}

ssize_t with_message(fid_ep *ep, const fi_msg_atomic *msg, const fi_ioc *compare, size_t compares, fi_ioc *result,
                     size_t results, uint64_t flags) {
  if (const ssize_t bad = check_flags(flags, kSendFlags)) return bad;
  return ep_of(ep)->atomic({msg->msg_iov, msg->iov_count, compare, compares, result, results, msg->addr, msg->rma_iov,
                            msg->rma_iov_count, msg->datatype, msg->op, msg->context, flags, false});
}

int valid(AtomicKind kind, fi_datatype type, fi_op op, size_t *count) {
  if (!atomic_supported(kind, op, type)) return -FI_EOPNOTSUPP;
  *count = kAtomicBytes / size_of(type);
  return 0;
}

fi_ops_atomic make_table() {
  fi_ops_atomic t{};
  t.size = sizeof t;
  t.write = [](fid_ep *ep, const void *buf, size_t count, void *, fi_addr_t to, uint64_t addr, uint64_t key,
               fi_datatype type, fi_op op, void *context) {
    const fi_ioc iov = {const_cast<void *>(buf), count};
    return plain(ep, &iov, 1, to, addr, key, type, op, context, ep_of(ep)->tx_flags, false);
  };
  t.writev = [](fid_ep *ep, const fi_ioc *iov, void **, size_t count, fi_addr_t to, uint64_t addr, uint64_t key,
                fi_datatype type, fi_op op, void *context) {
    return plain(ep, iov, count, to, addr, key, type, op, context, ep_of(ep)->tx_flags, false);
  };
  t.writemsg = [](fid_ep *ep, const fi_msg_atomic *msg, uint64_t flags) {
    return with_message(ep, msg, nullptr, 0, nullptr, 0, flags);
  };
  t.inject = [](fid_ep *ep, const void *buf, size_t count, fi_addr_t to, uint64_t addr, uint64_t key,
                fi_datatype type, fi_op op) {
    const fi_ioc iov = {const_cast<void *>(buf), count};
    return plain(ep, &iov, 1, to, addr, key, type, op, nullptr, 0, true);
  };
  t.readwrite = [](fid_ep *ep, const void *buf, size_t count, void *, void *result, void *, fi_addr_t to,
                   uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void *context) {
    const fi_ioc iov = {const_cast<void *>(buf), count};
    fi_ioc into = {result, count};
    return fetch(ep, &iov, 1, nullptr, 0, &into, 1, to, addr, key, type, op, context);
  };
  t.readwritev = [](fid_ep *ep, const fi_ioc *iov, void **, size_t count, fi_ioc *result, void **, size_t results,
                    fi_addr_t to, uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void *context) {
    return fetch(ep, iov, count, nullptr, 0, result, results, to, addr, key, type, op, context);
  };
  t.readwritemsg = [](fid_ep *ep, const fi_msg_atomic *msg, fi_ioc *result, void **, size_t results, uint64_t flags) {
    return with_message(ep, msg, nullptr, 0, result, results, flags);
  };
  t.compwrite = [](fid_ep *ep, const void *buf, size_t count, void *, const void *compare, void *, void *result,
                   void *, fi_addr_t to, uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void *context) {
    const fi_ioc iov = {const_cast<void *>(buf), count}, with = {const_cast<void *>(compare), count};
    fi_ioc into = {result, count};
    return fetch(ep, &iov, 1, &with, 1, &into, 1, to, addr, key, type, op, context);
  };
  t.compwritev = [](fid_ep *ep, const fi_ioc *iov, void **, size_t count, const fi_ioc *compare, void **,
                    size_t compares, fi_ioc *result, void **, size_t results, fi_addr_t to, uint64_t addr,
                    uint64_t key, fi_datatype type, fi_op op, void *context) {
    return fetch(ep, iov, count, compare, compares, result, results, to, addr, key, type, op, context);
  };
  t.compwritemsg = [](fid_ep *ep, const fi_msg_atomic *msg, const fi_ioc *compare, void **, size_t compares,
                      fi_ioc *result, void **, size_t results, uint64_t flags) {
    return with_message(ep, msg, compare, compares, result, results, flags);
  };
  t.writevalid = [](fid_ep *, fi_datatype type, fi_op op, size_t *count) {
    return valid(AtomicKind::Plain, type, op, count);
  };
  t.readwritevalid = [](fid_ep *, fi_datatype type, fi_op op, size_t *count) {
    return valid(AtomicKind::Fetch, type, op, count);
  };
  t.compwritevalid = [](fid_ep *, fi_datatype type, fi_op op, size_t *count) {
    return valid(AtomicKind::Compare, type, op, count);
  };
  return t;
}

}  // namespace

fi_ops_atomic *atomic_table() {
  static fi_ops_atomic table = make_table();
  return &table;
}

int query_atomic(fid_domain *, fi_datatype type, fi_op op, fi_atomic_attr *attr, uint64_t flags) {
  const AtomicKind kind = flags & FI_COMPARE_ATOMIC ? AtomicKind::Compare
                          : flags & FI_FETCH_ATOMIC ? AtomicKind::Fetch
                                                    : AtomicKind::Plain;
  attr->size = size_of(type);
  return valid(kind, type, op, &attr->count);
}

}  // namespace rdmat
