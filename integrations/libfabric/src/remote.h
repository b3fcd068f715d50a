/* What one-sided operations say to the other end: the header of an active message, in the order of the machine's bytes. */
#pragma once

#include "objects.h"

namespace rdmat {

/* Of kOnWrite, whose content is what is written, and kOnRead. */
struct RemoteHead {
  uint64_t number; /* the request's */
  uint64_t data;
  uint32_t with_data;
  uint32_t count;
  Span spans[kRmaIov];

  size_t size() const { return offsetof(RemoteHead, spans) + count * sizeof(Span); }
};

enum class AtomicKind : uint32_t { Plain, Fetch, Compare };

/* Of kOnAtomic. The content is the operands, then what is compared. */
struct AtomicHead {
  uint64_t number;
  uint32_t kind;
  uint32_t op;
  uint32_t type;
  uint32_t count;
  Span spans[kRmaIov]; /* lengths in bytes */

  size_t size() const { return offsetof(AtomicHead, spans) + count * sizeof(Span); }
};
static_assert(sizeof(RemoteHead) <= RDMA_MSG_MAX_HEADER && sizeof(AtomicHead) <= RDMA_MSG_MAX_HEADER, "headers fit");

/* Spans of a peer's request, looked up and in use. */
class Targets {
 public:
  Targets() = default;
  Targets(const Targets &) = delete;
  ~Targets() { release(); }
  /* An errno. */
  int take(Domain *domain, const Span *spans, size_t count, uint64_t access);
  void release();
  /* Tells the counters of its regions that something was written there. */
  void count_write() const;
  size_t count() const { return count_; }
  uint64_t bytes() const { return bytes_; }
  const rdma_msg_piece_t &operator[](size_t i) const { return pieces_[i]; }
  /* For a call of the library, as long as this is. */
  rdma_msg_layout_t layout() const;

 private:
  size_t count_ = 0;
  uint64_t bytes_ = 0;
  rdma_msg_piece_t pieces_[kRmaIov];
  Mr *regions_[kRmaIov];
};

/* The bytes of an element; 0: no such type. */
size_t size_of(fi_datatype type);
bool atomic_supported(AtomicKind kind, fi_op op, fi_datatype type);
/* On `n` elements at `target`; `result` is what was there, unless it is NULL. */
void atomic_apply(fi_op op, fi_datatype type, void *target, const void *operand, const void *compare, void *result,
                  size_t n);

}  // namespace rdmat
