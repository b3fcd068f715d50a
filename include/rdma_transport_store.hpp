/* C++11 and later over the stores and meshes of rdma_transport.h (`rdma_store_*`, `rdma_mesh_*`, which see for
 * what each call means), in the manner of rdma_transport.hpp: owning handles, results without exceptions. */
#ifndef RDMA_TRANSPORT_STORE_HPP
#define RDMA_TRANSPORT_STORE_HPP

#include "rdma_transport.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <pthread.h>
#include <unistd.h>

namespace rdma {

struct StoreOptions {
  std::int64_t timeout_ms = 0; /* for operations that do not say; 0: two minutes */
  OptionalText secret;         /* of a TCP store; password of a Redis store. Not given: none; an empty one is refused */
  bool allow_remote = false;   /* may serve beyond loopback without a secret */
};

/* How a compare-and-set ended. */
struct Compared {
  std::int32_t result = RDMA_STORE_ABSENT; /* RDMA_STORE_SET, _DIFFERS or _ABSENT */
  std::string there;                       /* with RDMA_STORE_DIFFERS: the value that is there */
  bool set() const { return result == RDMA_STORE_SET; }
};

namespace detail {
/* Ends a handle of this process; one of a parent's is left alone. Inside a callback, where it cannot end, a thread of its own
 * ends it, once the calls that are in it have returned: nothing else might ever come by. */
template <class T, rdma_code_t (*End)(T *)>
struct EndOf {
  pid_t process;
  static void *end(void *handle) {
    End(static_cast<T *>(handle));
    return nullptr;
  }
  void operator()(T *handle) const noexcept {
    if (getpid() != process || End(handle) != RDMA_FAILED_PRECONDITION) return;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, end, handle) == 0)
      pthread_detach(thread);
    else
      std::fprintf(stderr, "rdma_transport: no thread to end a store or mesh that was destroyed inside a callback\n");
  }
};
}  // namespace detail

/* A store, or a view of one. Keys and values are bytes. Any thread may use it; its end ends their calls. Inside a callback
 * it cannot end: `close` says so, and after the destructor a thread of its own ends it, soon after the calls in it have ended. */
class Store {
 public:
  /* None: every call returns RDMA_INVALID_ARGUMENT. */
  Store() = default;

  static Result<Store> memory(const StoreOptions &options = StoreOptions()) {
    return made(options, [](const rdma_store_options_t *o, rdma_store_t **out) { return rdma_store_memory(o, out); });
  }
  static Result<Store> file(const std::string &path, const StoreOptions &options = StoreOptions()) {
    Status text = detail::whole("Store::file", "path", path);
    if (!text.ok()) return text;
    return made(options, [&](const rdma_store_options_t *o, rdma_store_t **out) {
      return rdma_store_file(path.c_str(), o, out);
    });
  }
  /* `bound`: where it listens. */
  static Result<Store> serve(const std::string &address, std::string *bound = nullptr,
                             const StoreOptions &options = StoreOptions()) {
    Status whole = detail::whole("Store::serve", "address", address);
    if (!whole.ok()) return whole;
    char text[256];
    Result<Store> store = made(options, [&](const rdma_store_options_t *o, rdma_store_t **out) {
      return rdma_store_tcp_serve(address.c_str(), o, text, sizeof text, nullptr, out);
    });
    if (store.ok() && bound) *bound = text;
    return store;
  }
  static Result<Store> tcp(const std::string &address, const StoreOptions &options = StoreOptions()) {
    Status text = detail::whole("Store::tcp", "address", address);
    if (!text.ok()) return text;
    return made(options, [&](const rdma_store_options_t *o, rdma_store_t **out) {
      return rdma_store_tcp(address.c_str(), o, out);
    });
  }
  static Result<Store> redis(const std::string &address, const StoreOptions &options = StoreOptions()) {
    Status text = detail::whole("Store::redis", "address", address);
    if (!text.ok()) return text;
    return made(options, [&](const rdma_store_options_t *o, rdma_store_t **out) {
      return rdma_store_redis(address.c_str(), o, out);
    });
  }
  /* `userdata` outlives the store and every view of it, which may end after a destructor that runs inside a callback. */
  static Result<Store> custom(const rdma_store_ops_t &ops, void *userdata,
                              const StoreOptions &options = StoreOptions()) {
    return made(options, [&](const rdma_store_options_t *o, rdma_store_t **out) {
      return rdma_store_custom(&ops, userdata, o, out);
    });
  }

  /* Views: each lives on without this one. */
  Result<Store> prefix(StringView prefix) const {
    rdma_store_t *out = nullptr;
    rdma_code_t rc = rdma_store_prefix(c(), prefix.data(), prefix.size(), &out);
    return taken(rc, out);
  }
  Result<Store> lease(std::int64_t ttl_ms) const {
    rdma_store_t *out = nullptr;
    rdma_code_t rc = rdma_store_lease(c(), ttl_ms, &out);
    return taken(rc, out);
  }

  Status set(StringView key, StringView value, std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    return Status::of(rdma_store_set(c(), key.data(), key.size(), value.data(), value.size(), timeout_ms));
  }
  Status multi_set(const std::vector<std::string> &keys, const std::vector<std::string> &values,
                   std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    if (keys.size() != values.size())
      return detail::refused("Store::multi_set", std::to_string(keys.size()) + " keys and " + std::to_string(values.size()) +
                                                     " values are given, allowed are as many values as keys");
    std::vector<rdma_bytes_t> k = bytes(keys), v = bytes(values);
    return Status::of(rdma_store_multi_set(c(), k.data(), v.data(), k.size(), timeout_ms));
  }
  Result<std::string> get(StringView key, std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    std::string value(256, '\0');
    for (;;) { /* it may grow meanwhile */
      std::size_t len = 0;
      rdma_code_t rc = rdma_store_get(c(), key.data(), key.size(), timeout_ms, &value[0], value.size(), &len);
      if (rc != RDMA_OK && !(rc == RDMA_OUT_OF_RANGE && len > value.size())) return Status::of(rc);
      value.resize(len);
      if (rc == RDMA_OK) return value;
    }
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string> &keys,
                                             std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    std::vector<rdma_bytes_t> k = bytes(keys);
    std::vector<std::string> values(keys.size(), std::string(256, '\0'));
    for (;;) {
      std::vector<rdma_bytes_out_t> buffers;
      for (std::string &value : values) buffers.push_back(rdma_bytes_out_t{&value[0], value.size(), 0});
      rdma_code_t rc = rdma_store_multi_get(c(), k.data(), buffers.data(), k.size(), timeout_ms);
      bool longer = false; /* the code may be the store's own, too */
      for (std::size_t i = 0; i < values.size(); i++) longer = longer || buffers[i].len > values[i].size();
      if (rc != RDMA_OK && !(rc == RDMA_OUT_OF_RANGE && longer)) return Status::of(rc);
      for (std::size_t i = 0; i < values.size(); i++)
        if (rc == RDMA_OK || buffers[i].len > values[i].size()) values[i].resize(buffers[i].len);
      if (rc == RDMA_OK) return values;
    }
  }
  Status wait(const std::vector<std::string> &keys, std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    std::vector<rdma_bytes_t> k = bytes(keys);
    return Status::of(rdma_store_wait(c(), k.data(), k.size(), timeout_ms));
  }
  Result<bool> check(const std::vector<std::string> &keys, std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    std::vector<rdma_bytes_t> k = bytes(keys);
    bool all = false;
    rdma_code_t rc = rdma_store_check(c(), k.data(), k.size(), timeout_ms, &all);
    if (rc != RDMA_OK) return Status::of(rc);
    return all;
  }
  Result<std::int64_t> add(StringView key, std::int64_t delta, std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    std::int64_t sum = 0;
    rdma_code_t rc = rdma_store_add(c(), key.data(), key.size(), delta, timeout_ms, &sum);
    if (rc != RDMA_OK) return Status::of(rc);
    return sum;
  }
  /* `expected` NULL: if it is not there. */
  Result<Compared> compare_set(StringView key, const std::string *expected, StringView desired,
                               std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    Compared found;
    found.there.resize(256);
    for (;;) {
      std::size_t len = 0;
      rdma_code_t rc =
          rdma_store_compare_set(c(), key.data(), key.size(), expected ? expected->data() : nullptr,
                                 expected ? expected->size() : 0, desired.data(), desired.size(), timeout_ms,
                                 &found.result, &found.there[0], found.there.size(), &len);
      if (rc != RDMA_OK && !(rc == RDMA_OUT_OF_RANGE && len > found.there.size())) return Status::of(rc);
      found.there.resize(rc == RDMA_OK && found.result != RDMA_STORE_DIFFERS ? 0 : len);
      if (rc == RDMA_OK) return found;
    }
  }
  /* Whether it was there. */
  Result<bool> remove(StringView key, std::int64_t timeout_ms = RDMA_STORE_DEFAULT) const {
    bool there = false;
    rdma_code_t rc = rdma_store_delete(c(), key.data(), key.size(), timeout_ms, &there);
    if (rc != RDMA_OK) return Status::of(rc);
    return there;
  }

  /* Ends it, with the code; the destructor is quiet. Unless the code is OK it is still here. */
  Status close() {
    if (!store_) return Status();
    Status status = Status::of(rdma_store_destroy(store_.get()));
    if (status.ok()) store_.release();
    return status;
  }
  rdma_store_t *c() const { return store_.get(); }
  explicit operator bool() const { return store_ != nullptr; }

 private:
  using End = detail::EndOf<rdma_store_t, rdma_store_destroy>;
  explicit Store(rdma_store_t *store) : store_(store, End{getpid()}) {}

  static Result<Store> taken(rdma_code_t rc, rdma_store_t *out) {
    if (rc != RDMA_OK) return Status::of(rc);
    return Store(out);
  }
  template <class Make>
  static Result<Store> made(const StoreOptions &options, Make make) {
    rdma_store_options_t o{};
    o.struct_size = sizeof o;
    o.timeout_ms = options.timeout_ms;
    if (options.secret) o.secret = options.secret.str().data(), o.secret_len = options.secret.str().size();
    o.allow_remote = options.allow_remote;
    rdma_store_t *out = nullptr;
    rdma_code_t rc = make(&o, &out);
    return taken(rc, out);
  }
  static std::vector<rdma_bytes_t> bytes(const std::vector<std::string> &all) {
    std::vector<rdma_bytes_t> list;
    list.reserve(all.size());
    for (const std::string &one : all) list.push_back(rdma_bytes_t{one.data(), one.size()});
    return list;
  }

  std::unique_ptr<rdma_store_t, End> store_{nullptr, End{0}};
};

struct MeshOptions {
  std::int64_t timeout_ms = RDMA_STORE_DEFAULT; /* until all ranks have met */
  std::int64_t keep_ms = 0;                     /* 0: a minute */
  bool full = false;                            /* connect to all ranks now */
};

/* Ranks that have met: which peer is which. Needs neither the store nor the manager any more. Its end inside a callback is
 * a thread's, as a store's. */
class Mesh {
 public:
  /* None: every call returns RDMA_INVALID_ARGUMENT. */
  Mesh() = default;
  static Result<Mesh> connect(const Manager &manager, const Store &store, std::uint32_t rank, std::uint32_t size,
                              const MeshOptions &options = MeshOptions()) {
    rdma_mesh_options_t o{};
    o.struct_size = sizeof o;
    o.timeout_ms = options.timeout_ms;
    o.keep_ms = options.keep_ms;
    o.full = options.full;
    rdma_mesh_t *out = nullptr;
    rdma_code_t rc = rdma_mesh_connect(manager.c(), store.c(), rank, size, &o, &out);
    if (rc != RDMA_OK) return Status::of(rc);
    Mesh mesh;
    mesh.mesh_ = std::unique_ptr<rdma_mesh_t, End>(out, End{getpid()});
    return mesh;
  }
  /* For Messages; Messages::peer_name tells the name. */
  Result<rdma_peer_t> peer(std::uint32_t rank) const {
    rdma_peer_t peer = 0;
    rdma_code_t rc = rdma_mesh_peer(mesh_.get(), rank, &peer);
    if (rc != RDMA_OK) return Status::of(rc);
    return peer;
  }
  Result<std::uint32_t> rank(rdma_peer_t peer) const {
    std::uint32_t rank = 0;
    rdma_code_t rc = rdma_mesh_rank(mesh_.get(), peer, &rank);
    if (rc != RDMA_OK) return Status::of(rc);
    return rank;
  }
  rdma_mesh_t *c() const { return mesh_.get(); }
  explicit operator bool() const { return mesh_ != nullptr; }

 private:
  using End = detail::EndOf<rdma_mesh_t, rdma_mesh_destroy>;
  std::unique_ptr<rdma_mesh_t, End> mesh_{nullptr, End{0}};
};

}  // namespace rdma

#endif
