/* Memory regions: a table of what peers may touch. Nothing is pinned: the library registers what it moves. */
#include <sched.h>

#include "clock.h"
#include "objects.h"

namespace rdmat {

int Domain::find(const Span &span, uint64_t access, uint8_t **at, Mr **region) {
  std::lock_guard<std::mutex> hold(regions_lock);
  const auto found = regions.find(span.key);
  if (found == regions.end() || found->second->closing) return FI_EKEYREJECTED;
  Mr *mr = found->second;
  if ((mr->access & access) != access) return FI_EACCES;
  const uint64_t offset = virt_addr ? span.addr - reinterpret_cast<uintptr_t>(mr->base) : span.addr;
  if (offset > mr->len || span.len > mr->len - offset) return FI_EINVAL;
  ++mr->users;
  *at = mr->base + offset;
  *region = mr;
  return 0;
}

namespace {

/* How long a region waits for peers that are in the middle of it. */
constexpr int kPatience = 5000;

int close_mr(fid *f) {
  Mr *mr = static_cast<Mr *>(reinterpret_cast<fid_mr *>(f));
  Domain *domain = mr->domain;
  {
    std::lock_guard<std::mutex> hold(domain->regions_lock);
    mr->closing = true;
  }
  /* Content that is on its way, and the word that it has come, which somebody has to take in. */
  const int64_t until = deadline(kPatience);
  while (mr->users > 0 && remaining(until) > 0) {
    domain->pump.progress();
    sched_yield();
  }
  {
    std::lock_guard<std::mutex> hold(domain->regions_lock);
    if (mr->users > 0) {
      mr->closing = false;
      return -FI_EBUSY;
    }
    domain->regions.erase(mr->key);
  }
  if (Cntr *cntr = mr->writes) {
    --cntr->regions;
    --cntr->users;
  }
  --domain->users;
  delete mr;
  return 0;
}

int bind_counter(Mr *mr, Cntr *cntr, uint64_t flags) {
  if (flags != FI_REMOTE_WRITE) return -FI_EBADFLAGS;
  if (cntr->domain != mr->domain) return -FI_EINVAL;
  /* Its descriptor would stay quiet: which endpoints peers come by is known to nobody. */
  if (cntr->wait_obj == FI_WAIT_FD && !mr->domain->thread) return -FI_EOPNOTSUPP;
  Cntr *none = nullptr;
  if (!mr->writes.compare_exchange_strong(none, cntr)) return -FI_EINVAL;
  ++cntr->users;
  ++cntr->regions;
  return 0;
}

int bind_mr(fid *f, fid *other, uint64_t flags) {
  Mr *mr = static_cast<Mr *>(reinterpret_cast<fid_mr *>(f));
  switch (other->fclass) {
    case FI_CLASS_CNTR:
      return bind_counter(mr, static_cast<Cntr *>(reinterpret_cast<fid_cntr *>(other)), flags);
    case FI_CLASS_EP:
      /* It is reached by all endpoints of its domain. */
      return flags == 0 ? 0 : -FI_EBADFLAGS;
    default:
      return -FI_EINVAL;
  }
}

int control_mr(fid *f, int command, void *arg) {
  Mr *mr = static_cast<Mr *>(reinterpret_cast<fid_mr *>(f));
  if (command == FI_ENABLE) return 0;
  if (command != FI_GET_RAW_MR) return -FI_ENOSYS;
  auto *raw = static_cast<struct fi_mr_raw_attr *>(arg);
  if (raw->key_size == nullptr) return -FI_EINVAL;
  const size_t room = *raw->key_size;
  *raw->key_size = sizeof mr->key;
  if (room < sizeof mr->key) return -FI_ETOOSMALL;
  if (raw->base_addr != nullptr) *raw->base_addr = mr->domain->virt_addr ? reinterpret_cast<uintptr_t>(mr->base) : 0;
  *reinterpret_cast<uint64_t *>(raw->raw_key) = mr->key;
  return 0;
}

fi_ops *fid_table() {
  static fi_ops table = [] {
    fi_ops t{};
    t.size = sizeof t;
    t.close = close_mr;
    t.bind = bind_mr;
    t.control = control_mr;
    t.ops_open = no_int;
    return t;
  }();
  return &table;
}

}  // namespace

int regattr(fid *f, const fi_mr_attr *attr, uint64_t flags, fid_mr **out) {
  if (f->fclass != FI_CLASS_DOMAIN || attr->iov_count != 1 || attr->mr_iov == nullptr) return -FI_EINVAL;
  if (flags != 0) return -FI_EBADFLAGS;
  if (attr->iface != FI_HMEM_SYSTEM) return -FI_ENOSYS;
  Domain *domain = static_cast<Domain *>(reinterpret_cast<fid_domain *>(f));
  auto mr = std::make_unique<Mr>();
  mr->domain = domain;
  mr->base = static_cast<uint8_t *>(attr->mr_iov[0].iov_base);
  mr->len = attr->mr_iov[0].iov_len;
  mr->access = attr->access;
  mr->fid = {FI_CLASS_MR, attr->context, fid_table()};
  mr->mem_desc = mr.get();
  {
    std::lock_guard<std::mutex> hold(domain->regions_lock);
    mr->key = domain->own_keys ? domain->next_key++ : attr->requested_key;
    if (!domain->regions.emplace(mr->key, mr.get()).second) return -FI_ENOKEY;
  }
  ++domain->users;
  *out = mr.release();
  return 0;
}

int regv(fid *f, const iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t requested_key,
         uint64_t flags, fid_mr **out, void *context) {
  fi_mr_attr attr{};
  attr.mr_iov = iov;
  attr.iov_count = count;
  attr.access = access;
  attr.offset = offset;
  attr.requested_key = requested_key;
  attr.context = context;
  return regattr(f, &attr, flags, out);
}

int reg(fid *f, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t requested_key, uint64_t flags,
        fid_mr **out, void *context) {
  const iovec iov = {const_cast<void *>(buf), len};
  return regv(f, &iov, 1, access, offset, requested_key, flags, out, context);
}

}  // namespace rdmat
