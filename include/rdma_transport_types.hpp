/* Values of the C++ layer over rdma_transport.h: texts, statuses, results, tensors, requests, pools. rdma_transport.hpp
 * includes it. */
#ifndef RDMA_TRANSPORT_TYPES_HPP
#define RDMA_TRANSPORT_TYPES_HPP

#include "rdma_transport.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iosfwd>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#if __cplusplus >= 201703L
#include <string_view>
#endif

namespace rdma {

class StringView;
namespace detail {
/* A StringView with anything that converts to it: exact for both sides, or the operators of std::string_view, to which it
 * converts as well, would be as good. */
template <class A, class B>
using WithView = typename std::enable_if<(std::is_same<A, StringView>::value || std::is_same<B, StringView>::value) &&
                                             std::is_convertible<const A &, StringView>::value &&
                                             std::is_convertible<const B &, StringView>::value,
                                         bool>::type;
}  // namespace detail

/* Bytes of somebody else, as std::string_view, which C++11 and C++14 lack; converts from and to it where
 * there is one. */
class StringView {
 public:
  StringView() = default;
  StringView(const char *data, std::size_t size) : data_(data), size_(size) {}
  /* 0 is no text. */
  StringView(int) = delete;
  StringView(const char *text) : StringView(text, text ? std::strlen(text) : 0) {}
  StringView(const std::string &text) : StringView(text.data(), text.size()) {}
  const char *data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const char *begin() const { return data_; }
  const char *end() const { return data_ + size_; }
  std::string str() const { return size_ ? std::string(data_, size_) : std::string(); }
  explicit operator std::string() const { return str(); }
#if __cplusplus >= 201703L
  StringView(std::string_view text) : StringView(text.data(), text.size()) {}
  operator std::string_view() const { return {data_, size_}; }
#endif
  /* As memcmp, then the shorter one first. */
  int compare(StringView other) const {
    std::size_t both = size_ < other.size_ ? size_ : other.size_;
    int first = both ? std::memcmp(data_, other.data_, both) : 0;
    return first ? first : (size_ > other.size_) - (size_ < other.size_);
  }
  /* With another, and with what converts to one. */
  template <class A, class B>
  friend detail::WithView<A, B> operator==(const A &a, const B &b) {
    return StringView(a).compare(b) == 0;
  }
  template <class A, class B>
  friend detail::WithView<A, B> operator!=(const A &a, const B &b) {
    return StringView(a).compare(b) != 0;
  }
  template <class A, class B>
  friend detail::WithView<A, B> operator<(const A &a, const B &b) {
    return StringView(a).compare(b) < 0;
  }
  template <class A, class B>
  friend detail::WithView<A, B> operator>(const A &a, const B &b) {
    return StringView(a).compare(b) > 0;
  }
  template <class A, class B>
  friend detail::WithView<A, B> operator<=(const A &a, const B &b) {
    return StringView(a).compare(b) <= 0;
  }
  template <class A, class B>
  friend detail::WithView<A, B> operator>=(const A &a, const B &b) {
    return StringView(a).compare(b) >= 0;
  }
  template <class Traits>
  friend std::basic_ostream<char, Traits> &operator<<(std::basic_ostream<char, Traits> &out, const StringView &text) {
    return out << text.str();
  }

 private:
  const char *data_ = nullptr;
  std::size_t size_ = 0;
};

/* Text that may not be given. An empty one that is given is another thing, and refused where C refuses it. One that was
 * moved from is not given. */
class OptionalText {
 public:
  OptionalText() = default;
  OptionalText(std::string text) : given_(true), text_(std::move(text)) {}
  /* nullptr: none. */
  OptionalText(const char *text) : given_(text != nullptr), text_(text ? text : "") {}
  OptionalText(const OptionalText &) = default;
  OptionalText &operator=(const OptionalText &) = default;
  OptionalText(OptionalText &&other) : given_(other.given_), text_(std::move(other.text_)) { other.forget(); }
  OptionalText &operator=(OptionalText &&other) {
    OptionalText taken(std::move(other));
    given_ = taken.given_;
    text_.swap(taken.text_);
    return *this;
  }
  explicit operator bool() const { return given_; }
  const std::string &str() const { return text_; }

 private:
  void forget() {
    given_ = false;
    text_.clear();
  }
  bool given_ = false;
  std::string text_;
};

/* How a call ended: a code and a text. */
class Status {
 public:
  Status() = default;
  Status(rdma_code_t code, std::string message) : code_(code), message_(std::move(message)) {}
  /* The status of a call that returned `code`, with the thread's last error as its text. */
  static Status of(rdma_code_t code) {
    if (code == RDMA_OK) return Status();
    std::string text(rdma_last_error(nullptr, 0), '\0');
    if (!text.empty()) rdma_last_error(&text[0], text.size() + 1);
    return Status(code, std::move(text));
  }
  bool ok() const { return code_ == RDMA_OK; }
  explicit operator bool() const { return ok(); }
  rdma_code_t code() const { return code_; }
  const std::string &message() const { return message_; }
  std::string to_string() const {
    return ok() ? std::string("OK") : std::string(rdma_code_name(code_)) + ": " + message_;
  }
  friend bool operator==(const Status &a, const Status &b) { return a.code_ == b.code_ && a.message_ == b.message_; }
  friend bool operator!=(const Status &a, const Status &b) { return !(a == b); }

 private:
  rdma_code_t code_ = RDMA_OK;
  std::string message_;
};

namespace detail {
/* An argument that the C++ layer itself refuses: of which function, what it is, and what is allowed. */
inline Status refused(const char *function, const std::string &text) {
  return Status(RDMA_INVALID_ARGUMENT, std::string(function) + ": " + text);
}
/* A text for C, which would end it at a NUL: one that has such is refused. */
inline Status whole(const char *function, const char *argument, const std::string &text) {
  std::size_t at = text.find('\0');
  if (at == std::string::npos) return Status();
  return refused(function, std::string(argument) + " of " + std::to_string(text.size()) + " bytes has a NUL at " +
                               std::to_string(at) + ", allowed is text without");
}
/* The same of two; the first that is refused. */
inline Status whole(const char *function, const char *argument, const std::string &text, const char *other,
                    const std::string &more) {
  Status first = whole(function, argument, text);
  return first.ok() ? whole(function, other, more) : first;
}
/* A function that has to be there. */
template <class F>
Status there(const char *function, const char *argument, const F &given) {
  return given ? Status() : refused(function, std::string(argument) + " is an empty function, allowed is one to call");
}
}  // namespace detail

/* A value, or the status that says why there is none. Without one the value is T's default. In a condition it tells whether
 * the call went well, also where the value is a bool: `*request.test()` tells whether the request has ended. */
template <class T>
class Result {
 public:
  Result() : status_(RDMA_UNKNOWN, "no result yet") {}
  Result(T value) : value_(std::move(value)), has_(true) {}
  Result(Status status) : status_(std::move(status)) {}
  bool ok() const { return has_; }
  explicit operator bool() const { return ok(); }
  const Status &status() const { return status_; }
  T &operator*() & { return value_; }
  T &&operator*() && { return std::move(value_); }
  const T &operator*() const & { return value_; }
  T *operator->() { return &value_; }
  const T *operator->() const { return &value_; }

 private:
  Status status_;
  T value_{};
  bool has_ = false;
};

namespace detail {
/* Calls a function that fills a text buffer until the text fits. */
template <class F>
Result<std::string> read_text(F call) {
  std::string text(4096, '\0');
  for (;;) {
    std::size_t len = 0;
    rdma_code_t rc = call(&text[0], text.size(), &len);
    if (rc == RDMA_OK) return text.resize(len), Result<std::string>(std::move(text));
    if (rc != RDMA_OUT_OF_RANGE) return Status::of(rc);
    text.resize(len + 1024);
  }
}
}  // namespace detail

/* The providers that there are, as JSON (rdma_providers). */
inline Result<std::string> providers() { return detail::read_text(rdma_providers); }

/* A key as TensorFlow names tensors, in its parts: `src_device;src_incarnation;dst_device;edge_name;frame:iter`. */
struct Key {
  std::string src_device, dst_device, edge_name;
  std::uint64_t src_incarnation = 0, frame = 0, iter = 0;
  static Result<Key> parse(StringView text) {
    rdma_parsed_key_t p{};
    p.struct_size = sizeof p;
    rdma_code_t rc = rdma_key_parse(text.data(), text.size(), &p);
    if (rc != RDMA_OK) return Status::of(rc);
    Key key;
    key.src_device.assign(p.src_device, p.src_device_len);
    key.dst_device.assign(p.dst_device, p.dst_device_len);
    key.edge_name.assign(p.edge_name, p.edge_name_len);
    key.src_incarnation = p.src_incarnation, key.frame = p.frame, key.iter = p.iter;
    return key;
  }
  Result<std::string> build() const {
    rdma_parsed_key_t p{};
    p.struct_size = sizeof p;
    p.src_device = src_device.data(), p.src_device_len = src_device.size();
    p.dst_device = dst_device.data(), p.dst_device_len = dst_device.size();
    p.edge_name = edge_name.data(), p.edge_name_len = edge_name.size();
    p.src_incarnation = src_incarnation, p.frame = frame, p.iter = iter;
    return detail::read_text([&p](char *b, std::size_t n, std::size_t *l) { return rdma_key_build(&p, b, n, l); });
  }
};

/* A tensor's description over memory of somebody else. Owns its dimensions and user bytes, not its content. */
class Tensor {
 public:
  Tensor() { rdma_tensor_init(&t_, sizeof t_); }
  Tensor(const void *data, std::uint64_t nbytes, std::vector<std::int64_t> dims = {}, std::uint32_t dtype = 0,
         std::uint32_t flags = 0, std::uint32_t device = RDMA_DEVICE_HOST)
      : Tensor() {
    t_.data = data;
    t_.nbytes = nbytes;
    t_.dtype = dtype;
    t_.flags = flags;
    t_.device = device;
    dims_ = std::move(dims);
  }
  /* A copy of a description that was borrowed for a callback. */
  explicit Tensor(const rdma_tensor_t &t) : t_(t) {
    t_.struct_size = sizeof t_; /* the library's may be newer, and longer */
    if (t.ndims) dims_.assign(t.dims, t.dims + t.ndims);
    if (t.user_len) user_.assign(static_cast<const char *>(t.user), t.user_len);
  }
  static Tensor dead() { return Tensor(nullptr, 0, {}, 0, RDMA_TENSOR_DEAD); }

  const void *data() const { return t_.data; }
  std::uint64_t nbytes() const { return t_.nbytes; }
  const std::vector<std::int64_t> &dims() const { return dims_; }
  std::uint32_t dtype() const { return t_.dtype; }
  std::uint32_t flags() const { return t_.flags; }
  std::uint32_t device() const { return t_.device; }
  /* Bytes of the application that go with the transfer, at most RDMA_MAX_USER_LEN. */
  const std::string &user() const { return user_; }
  Tensor &set_user(std::string user) {
    user_ = std::move(user);
    return *this;
  }
  bool is_dead() const { return (t_.flags & RDMA_TENSOR_DEAD) != 0; }
  bool is_serialized() const { return (t_.flags & RDMA_TENSOR_SERIALIZED) != 0; }
  /* The C struct; valid as long as this object is neither changed nor moved. */
  rdma_tensor_t c() const {
    rdma_tensor_t t = t_;
    t.dims = dims_.empty() ? nullptr : dims_.data();
    t.ndims = static_cast<std::uint32_t>(dims_.size());
    t.user = user_.empty() ? nullptr : user_.data();
    t.user_len = user_.size();
    return t;
  }

 private:
  rdma_tensor_t t_{};
  std::vector<std::int64_t> dims_;
  std::string user_;
};

using TransferInfo = rdma_transfer_info_t;
using SendDone = std::function<void(const Status &, const TransferInfo &)>;
/* The tensor is nullptr unless the status is OK; it is borrowed for the call. An empty function: nobody hears of the end. */
using RecvDone = std::function<void(const Status &, const rdma_tensor_t *, const TransferInfo &)>;
using AllocFn = std::function<void *(const rdma_tensor_t &)>;
using CopyDone = std::function<void(rdma_code_t)>;
using CopyToHost = std::function<void(void *host, const void *device, std::uint64_t, CopyDone)>;
/* As rdma_export_dmabuf_fn. */
using ExportDmabuf = std::function<rdma_code_t(const void *device, std::uint64_t, int *fd, std::uint64_t *offset)>;
using CopyFromHost = std::function<void(void *device, const void *host, std::uint64_t, CopyDone)>;

/* Options of a receive. */
struct RecvOptions {
  std::int64_t timeout_ms = 0; /* 0: the manager's */
  void *dst = nullptr;         /* or nullptr: from alloc, or memory of the library */
  std::uint64_t dst_len = 0;
  AllocFn alloc;               /* empty: none */
  std::uint32_t device = RDMA_DEVICE_HOST;
};

/* A receive that can be cancelled. Releases the request at its end, and with it library memory, if need
 * be once the callback has returned; it does not cancel. Must end before its manager. */
class Request {
 public:
  Request() = default;
  Request(rdma_mgr_t *mgr, rdma_request_t id) : mgr_(mgr), id_(id) {}
  Request(Request &&other) noexcept { swap(other); }
  /* What this was is released. */
  Request &operator=(Request &&other) noexcept {
    Request taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Request() { release(); }
  rdma_request_t id() const { return id_; }
  explicit operator bool() const { return id_ != 0; }
  Status cancel() { return Status::of(rdma_request_cancel(mgr_, id_)); }
  void release() {
    rdma_request_t id = id_;
    id_ = 0;
    if (id) rdma_request_release(mgr_, id);
  }

 private:
  void swap(Request &other) noexcept {
    std::swap(mgr_, other.mgr_);
    std::swap(id_, other.id_);
  }
  rdma_mgr_t *mgr_ = nullptr;
  rdma_request_t id_ = 0;
};

/* Memory for several managers, or that lives longer than one (rdma_pool_create). Managers that have it in their options
 * keep it for themselves; what was not freed goes with the last of them and this object. Inside a callback it cannot end:
 * `close` says so, and the destructor leaves it where it is, for good. */
class Pool {
 public:
  struct Usage {
    std::uint64_t used = 0;     /* bytes that are allocated */
    std::uint64_t reserved = 0; /* bytes of address space for them */
  };
  /* None: every call returns RDMA_INVALID_ARGUMENT. */
  Pool() = default;
  /* `max_bytes` of address space at most; 0: as much as there is memory. */
  static Result<Pool> create(std::size_t max_bytes = 0) {
    Pool pool;
    rdma_code_t rc = rdma_pool_create(max_bytes, &pool.pool_);
    if (rc != RDMA_OK) return Status::of(rc);
    return pool;
  }
  Pool(Pool &&other) noexcept { std::swap(pool_, other.pool_); }
  /* What this was ends, as in its destructor. */
  Pool &operator=(Pool &&other) noexcept {
    Pool taken(std::move(other));
    std::swap(pool_, taken.pool_);
    return *this;
  }
  ~Pool() { close(); }
  rdma_pool_t *c() const { return pool_; }
  explicit operator bool() const { return pool_ != nullptr; }
  Result<void *> alloc(std::size_t len) {
    void *out = nullptr;
    rdma_code_t rc = rdma_pool_alloc(pool_, len, &out);
    if (rc != RDMA_OK) return Status::of(rc);
    return out;
  }
  Status free(void *addr) { return Status::of(rdma_pool_free(pool_, addr)); }
  Result<Usage> usage() const {
    Usage usage;
    rdma_code_t rc = rdma_pool_usage(pool_, &usage.used, &usage.reserved);
    if (rc != RDMA_OK) return Status::of(rc);
    return usage;
  }
  Status close() {
    if (!pool_) return Status();
    Status status = Status::of(rdma_pool_destroy(pool_));
    if (status.ok()) pool_ = nullptr;
    return status;
  }

 private:
  rdma_pool_t *pool_ = nullptr;
};

/* A received tensor. Where it lies in library memory, that lives as long as this object. */
struct Received {
  Tensor tensor;
  Request request;
};

}  // namespace rdma

namespace std {
template <>
struct hash<rdma::StringView> { /* FNV-1a, in every standard */
  size_t operator()(rdma::StringView text) const noexcept {
    uint64_t sum = 14695981039346656037u;
    for (char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return static_cast<size_t>(sum);
  }
};
}  // namespace std

#endif
