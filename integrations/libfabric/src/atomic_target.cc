/* Atomic operations at the end whose memory it is: one at a time in a domain, whoever asks. */
#include <complex>
#include <cstring>

#include "answer.h"
#include "ep.h"
#include "remote.h"

namespace rdmat {

namespace {

template <typename T>
struct IsComplex : std::false_type {};
template <typename T>
struct IsComplex<std::complex<T>> : std::true_type {};

bool ordered(fi_op op) {
  return op == FI_MIN || op == FI_MAX || op == FI_CSWAP_LE || op == FI_CSWAP_LT || op == FI_CSWAP_GE ||
         op == FI_CSWAP_GT;
}

bool bitwise(fi_op op) { return op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP; }

template <typename T>
T bits(fi_op op, T old, T operand, T mask) {
  if constexpr (std::is_integral<T>::value) {
    switch (op) {
      case FI_BOR: return static_cast<T>(old | operand);
      case FI_BAND: return static_cast<T>(old & operand);
      case FI_BXOR: return static_cast<T>(old ^ operand);
      case FI_MSWAP: return static_cast<T>((operand & mask) | (old & ~mask));
      default: return old;
    }
  } else {
    (void)op, (void)operand, (void)mask;
    return old;
  }
}

template <typename T>
T compared(fi_op op, T old, T operand, T with) {
  if constexpr (!IsComplex<T>::value) {
    switch (op) {
      case FI_MIN: return operand < old ? operand : old;
      case FI_MAX: return operand > old ? operand : old;
      /* What is compared stands on the left (fi_atomic.3). */
      case FI_CSWAP_LE: return with <= old ? operand : old;
      case FI_CSWAP_LT: return with < old ? operand : old;
      case FI_CSWAP_GE: return with >= old ? operand : old;
      case FI_CSWAP_GT: return with > old ? operand : old;
      default: return old;
    }
  } else {
    (void)op, (void)operand, (void)with;
    return old;
  }
}

/* Sums and products of integers wrap. */
template <typename T>
T sum(T a, T b) {
  if constexpr (std::is_integral<T>::value)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}

template <typename T>
T product(T a, T b) {
  if constexpr (std::is_integral<T>::value)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}

template <typename T>
T after(fi_op op, T old, T operand, T with) {
  const bool a = old != T{}, b = operand != T{};
  switch (op) {
    case FI_SUM: return sum(old, operand);
    case FI_PROD: return product(old, operand);
    case FI_LOR: return static_cast<T>(a || b ? 1 : 0);
    case FI_LAND: return static_cast<T>(a && b ? 1 : 0);
    case FI_LXOR: return static_cast<T>(a != b ? 1 : 0);
    case FI_ATOMIC_READ: return old;
    case FI_ATOMIC_WRITE: return operand;
    case FI_CSWAP: return with == old ? operand : old;
    case FI_CSWAP_NE: return with != old ? operand : old;
    default: return bitwise(op) ? bits(op, old, operand, with) : compared(op, old, operand, with);
  }
}

/* Nothing need be aligned. */
template <typename T>
T at(const void *from, size_t i) {
  T value{};
  if (from != nullptr) std::memcpy(&value, static_cast<const uint8_t *>(from) + i * sizeof value, sizeof value);
  return value;
}

template <typename T>
void apply(fi_op op, void *target, const void *operand, const void *compare, void *result, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const T old = at<T>(target, i);
    if (result != nullptr) std::memcpy(static_cast<uint8_t *>(result) + i * sizeof old, &old, sizeof old);
    if (op == FI_ATOMIC_READ) continue;
    const T value = after<T>(op, old, at<T>(operand, i), at<T>(compare, i));
    std::memcpy(static_cast<uint8_t *>(target) + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

size_t size_of(fi_datatype type) {
  switch (type) {
    case FI_INT8: case FI_UINT8: return 1;
    case FI_INT16: case FI_UINT16: return 2;
    case FI_INT32: case FI_UINT32: case FI_FLOAT: return 4;
    case FI_INT64: case FI_UINT64: case FI_DOUBLE: case FI_FLOAT_COMPLEX: return 8;
    case FI_DOUBLE_COMPLEX: return 16;
    case FI_LONG_DOUBLE: return sizeof(long double);
    case FI_LONG_DOUBLE_COMPLEX: return 2 * sizeof(long double);
    default: return 0;
  }
}

bool atomic_supported(AtomicKind kind, fi_op op, fi_datatype type) {
  if (size_of(type) == 0 || op > FI_MSWAP) return false;
  const bool complex = type == FI_FLOAT_COMPLEX || type == FI_DOUBLE_COMPLEX || type == FI_LONG_DOUBLE_COMPLEX;
  const bool integer = type <= FI_UINT64;
  if ((complex && ordered(op)) || (!integer && bitwise(op))) return false;
  const bool swaps = op >= FI_CSWAP && op <= FI_MSWAP;
  switch (kind) {
    case AtomicKind::Plain: return !swaps && op != FI_ATOMIC_READ;
    case AtomicKind::Fetch: return !swaps;
    default: return swaps;
  }
}

void atomic_apply(fi_op op, fi_datatype type, void *target, const void *operand, const void *compare, void *result,
                  size_t n) {
  switch (type) {
    case FI_INT8: return apply<int8_t>(op, target, operand, compare, result, n);
    case FI_UINT8: return apply<uint8_t>(op, target, operand, compare, result, n);
    case FI_INT16: return apply<int16_t>(op, target, operand, compare, result, n);
    case FI_UINT16: return apply<uint16_t>(op, target, operand, compare, result, n);
    case FI_INT32: return apply<int32_t>(op, target, operand, compare, result, n);
    case FI_UINT32: return apply<uint32_t>(op, target, operand, compare, result, n);
    case FI_INT64: return apply<int64_t>(op, target, operand, compare, result, n);
    case FI_UINT64: return apply<uint64_t>(op, target, operand, compare, result, n);
    case FI_FLOAT: return apply<float>(op, target, operand, compare, result, n);
    case FI_DOUBLE: return apply<double>(op, target, operand, compare, result, n);
    case FI_LONG_DOUBLE: return apply<long double>(op, target, operand, compare, result, n);
    case FI_FLOAT_COMPLEX: return apply<std::complex<float>>(op, target, operand, compare, result, n);
    case FI_DOUBLE_COMPLEX: return apply<std::complex<double>>(op, target, operand, compare, result, n);
    case FI_LONG_DOUBLE_COMPLEX: return apply<std::complex<long double>>(op, target, operand, compare, result, n);
    default: return;
  }
}

namespace {

/* An atomic operation of a peer, from its coming to the end of its answer. */
class Asked : public Answer {
 public:
  Asked(Ep *ep, rdma_peer_t peer, const AtomicHead &head) : Answer(ep, peer), head(head) {}
  bool go() override { return receives() ? receive() : deliver(); }
  bool receives() const override { return message != 0; }
  void sent(rdma_code_t code) override {
    if (heard_of(code)) ep->refuse_read(peer, head.number, error_of(code));
  }

  const AtomicHead head;
  Targets targets;
  uint8_t content[2 * kAtomicBytes];
  uint8_t result[kAtomicBytes];
  size_t results = 0;
  /* Content that is to come, of this length. */
  uint64_t message = 0;
  size_t len = 0;

 private:
  bool receive();
  /* What was there before. */
  rdma_code_t post(rdma_msg_options_t *options, uint64_t *id) override {
    return rdma_msg_isend(ep->manager(), peer, kReplies, head.number, result, results, options, id);
  }
};

int parse(const rdma_msg_status_t *status, AtomicHead *head) {
  const size_t least = offsetof(AtomicHead, spans);
  if (status->header_len < least || status->header_len > sizeof *head) return FI_EINVAL;
  std::memcpy(head, status->header, status->header_len);
  const bool whole = head->count >= 1 && head->count <= kRmaIov && head->size() == status->header_len;
  if (!whole || head->kind > static_cast<uint32_t>(AtomicKind::Compare)) return FI_EINVAL;
  const fi_op op = static_cast<fi_op>(head->op);
  const fi_datatype type = static_cast<fi_datatype>(head->type);
  if (!atomic_supported(static_cast<AtomicKind>(head->kind), op, type)) return FI_EOPNOTSUPP;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < head->count; ++i) {
    const uint64_t len = head->spans[i].len;
    if (len > kAtomicBytes || len % size_of(type) != 0) return FI_EINVAL;
    bytes += len;
  }
  const uint64_t operands = op == FI_ATOMIC_READ ? 0 : bytes;
  const uint64_t compares = head->kind == static_cast<uint32_t>(AtomicKind::Compare) ? bytes : 0;
  return bytes <= kAtomicBytes && status->bytes == operands + compares ? 0 : FI_EINVAL;
}

uint64_t access_for(const AtomicHead &head) {
  uint64_t access = head.kind == static_cast<uint32_t>(AtomicKind::Plain) ? 0 : FI_REMOTE_READ;
  if (head.op != FI_ATOMIC_READ) access |= FI_REMOTE_WRITE;
  return access;
}

void refuse(Ep *ep, rdma_peer_t peer, const AtomicHead &head, int err) {
  if (head.kind == static_cast<uint32_t>(AtomicKind::Plain))
    ep->acknowledge(peer, head.number, err);
  else
    ep->refuse_read(peer, head.number, err);
}

/* Does it, and answers. */
void perform(Asked *asked, rdma_code_t code) {
  const AtomicHead &head = asked->head;
  Ep *ep = asked->ep;
  if (code != RDMA_OK) {
    refuse(ep, asked->peer, head, error_of(code));
    delete asked;
    return;
  }
  const fi_op op = static_cast<fi_op>(head.op);
  const fi_datatype type = static_cast<fi_datatype>(head.type);
  const size_t total = asked->targets.bytes();
  const bool plain = head.kind == static_cast<uint32_t>(AtomicKind::Plain);
  {
    std::lock_guard<std::mutex> hold(ep->domain->atomics);
    size_t done = 0;
    for (size_t i = 0; i < asked->targets.count(); ++i) {
      const rdma_msg_piece_t &piece = asked->targets[i];
      atomic_apply(op, type, piece.data, asked->content + done, asked->content + total + done,
                   plain ? nullptr : asked->result + done, piece.len / size_of(type));
      done += piece.len;
    }
  }
  if (op != FI_ATOMIC_READ) asked->targets.count_write();
  asked->targets.release();
  ep->count(plain ? Ep::kCntrRemoteWrite : Ep::kCntrRemoteRead, true);
  if (plain) {
    ep->acknowledge(asked->peer, head.number, 0);
    delete asked;
    return;
  }
  asked->results = total;
  asked->message = 0;
  ep->answer_with(asked);
}

void content_came(const rdma_msg_status_t *status, void *userdata) {
  perform(static_cast<Asked *>(userdata), status->code);
}

bool Asked::receive() {
  rdma_msg_options_t options{};
  options.struct_size = sizeof options;
  options.timeout_ms = RDMA_MSG_FOREVER;
  options.done = content_came;
  options.userdata = this;
  rdma_msg_status_t end{};
  end.struct_size = sizeof end;
  uint64_t id = 0;
  const rdma_code_t code = rdma_msg_imrecv(ep->manager(), message, content, len, &options, &end, &id);
  if (code == RDMA_RESOURCE_EXHAUSTED) return false;
  if (code != RDMA_OK || id == 0) perform(this, code != RDMA_OK ? code : end.code);
  return true;
}

}  // namespace

uint32_t Ep::on_atomic(const rdma_msg_status_t *status, const void *data) {
  AtomicHead head{};
  int err = parse(status, &head);
  if (err != 0 && status->header_len < offsetof(AtomicHead, spans)) {
    RDMAT_WARN(FI_LOG_EP_DATA, "an atomic operation that is none came from peer %llu\n",
               static_cast<unsigned long long>(status->peer));
    return RDMA_MSG_HANDLED;
  }
  Asked *asked = err == 0 ? new (std::nothrow) Asked(this, status->peer, head) : nullptr;
  if (err == 0 && asked == nullptr) err = FI_ENOMEM;
  if (err == 0) err = asked->targets.take(domain, head.spans, head.count, access_for(head));
  if (err != 0) {
    refuse(this, status->peer, head, err);
    delete asked;
    return RDMA_MSG_HANDLED;
  }
  if (status->message == 0) {
    if (status->bytes > 0) std::memcpy(asked->content, data, status->bytes);
    perform(asked, RDMA_OK);
    return RDMA_MSG_HANDLED;
  }
  asked->message = status->message;
  asked->len = status->bytes;
  return answer_with(asked) ? RDMA_MSG_HANDLED : RDMA_MSG_LATER;
}

}  // namespace rdmat
