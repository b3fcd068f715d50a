/* Values of tagged messages: how one ended, what is called then, memory in pieces, options. rdma_transport_msg.hpp includes it. */
#ifndef RDMA_TRANSPORT_MSG_TYPES_HPP
#define RDMA_TRANSPORT_MSG_TYPES_HPP

#include "rdma_transport_types.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace rdma {

/* How a message operation ended, or what a probe found. */
struct MessageStatus {
  rdma_peer_t peer = RDMA_PEER_ANY; /* who sent it; of a send, who it was for */
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0; /* its length, also where it was too long for the receive */
  std::uint32_t comm = 0;
  std::uint64_t message = 0; /* what a probe has claimed, for `imrecv` */
  std::string header;                   /* what its sender gave beside the content */
  std::vector<std::uint64_t> part_lens; /* lengths of its parts; empty: it was sent without */
  std::uint64_t incarnation = 0; /* which process of that name sent it, for `MessageOptions::incarnation`; 0: see C */
  Status status;

  MessageStatus() = default;
  explicit MessageStatus(const rdma_msg_status_t &s)
      : peer(s.peer), tag(s.tag), bytes(s.bytes), comm(s.comm), message(s.message), incarnation(s.incarnation) {
    if (s.code != RDMA_OK) status = Status(s.code, s.text ? s.text : "");
    if (s.header) header.assign(static_cast<const char *>(s.header), s.header_len);
    if (s.part_lens) part_lens.assign(s.part_lens, s.part_lens + s.parts);
  }
  bool ok() const { return status.ok(); }
};

using MessageDone = std::function<void(const MessageStatus &)>;
/* An active message: how it came, and its content. Where `status.message` is not 0 the content has not come along, and is
 * received by `imrecv`: here, or later, which RDMA_MSG_LATER says; otherwise RDMA_MSG_HANDLED is returned. */
using MessageHandler = std::function<std::uint32_t(const MessageStatus &status, const void *data)>;
/* There is so much room, or the status says why there will be none. */
using MessageRoom = std::function<void(const Status &, std::uint64_t bytes)>;

/* Memory in pieces, instead of a call's pointer and length, which are nullptr and 0 then. The memory is borrowed until
 * the end of the operation, this for the call. */
class MessageLayout {
 public:
  MessageLayout() = default;
  MessageLayout(const MessageLayout &) = default;
  MessageLayout &operator=(const MessageLayout &) = default;
  /* What was moved from is none. */
  MessageLayout(MessageLayout &&other) noexcept { swap(other); }
  MessageLayout &operator=(MessageLayout &&other) noexcept {
    MessageLayout moved(std::move(other));
    swap(moved);
    return *this;
  }
  /* Pieces, one after the other. */
  static MessageLayout iovec(std::vector<rdma_msg_piece_t> pieces) { return listed(RDMA_MSG_IOVEC, std::move(pieces)); }
  /* Each piece a part of the message; of a receive, the place for one, which may be longer. */
  static MessageLayout parts(std::vector<rdma_msg_piece_t> pieces) { return listed(RDMA_MSG_PARTS, std::move(pieces)); }
  static MessageLayout strided(void *base, std::size_t count, std::size_t block, std::size_t stride) {
    MessageLayout out;
    out.kind_ = RDMA_MSG_STRIDED;
    out.base_ = base;
    out.count_ = count;
    out.block_ = block;
    out.stride_ = stride;
    return out;
  }
  explicit operator bool() const { return kind_ != 0; }
  /* Bytes of all pieces. */
  std::size_t size() const {
    std::size_t sum = count_ * block_;
    for (const rdma_msg_piece_t &p : pieces_) sum += p.len;
    return sum;
  }
  /* For C, as long as this lives and stays where it is. */
  rdma_msg_layout_t c() const {
    rdma_msg_layout_t out{};
    out.struct_size = sizeof out;
    out.kind = kind_;
    out.pieces = pieces_.data();
    out.count = kind_ == RDMA_MSG_STRIDED ? count_ : pieces_.size();
    out.base = base_;
    out.block = block_;
    out.stride = stride_;
    return out;
  }

 private:
  void swap(MessageLayout &other) noexcept {
    std::swap(kind_, other.kind_);
    pieces_.swap(other.pieces_);
    std::swap(base_, other.base_);
    std::swap(count_, other.count_);
    std::swap(block_, other.block_);
    std::swap(stride_, other.stride_);
  }
  static MessageLayout listed(std::uint32_t kind, std::vector<rdma_msg_piece_t> pieces) {
    MessageLayout out;
    out.kind_ = kind;
    out.pieces_ = std::move(pieces);
    return out;
  }
  std::uint32_t kind_ = 0;
  std::vector<rdma_msg_piece_t> pieces_;
  void *base_ = nullptr;
  std::size_t count_ = 0, block_ = 0, stride_ = 0;
};

/* Options of a message operation. */
struct MessageOptions {
  std::int64_t timeout_ms = 0;             /* 0: the manager's; RDMA_MSG_FOREVER: none */
  std::uint32_t mode = RDMA_MSG_STANDARD;  /* of a send; or another RDMA_MSG_* mode */
  std::uint32_t device = RDMA_DEVICE_HOST; /* where the memory is */
  MessageLayout layout;                    /* none: the memory is in one piece */
  std::string header;                      /* of a send: at most RDMA_MSG_MAX_HEADER bytes beside the content */
  std::uint64_t incarnation = 0;           /* only for, or from, this one, of `MessageStatus`; 0: who has the name */
  /* Told of the end, once; not if the call fails, nor if the request that it returns is not pending: then that has
   * the status. It lives until then. Blocking calls do not use it. */
  MessageDone done;
};

}  // namespace rdma

#endif
