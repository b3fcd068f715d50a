#include <algorithm>
#include <cstring>
#include <string>

#include "ep.h"
#include "objects.h"

namespace rdmat {

namespace {

Av *of(fid_av *av) { return static_cast<Av *>(av); }
Av *of(fid *f) { return of(reinterpret_cast<fid_av *>(f)); }

}  // namespace

void Av::attach(Ep *ep) {
  std::lock_guard<std::mutex> hold(lock_);
  eps_.push_back(ep);
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].uses > 0) ep->meet(i, entries_[i].address);
  }
}

void Av::detach(Ep *ep) {
  std::lock_guard<std::mutex> hold(lock_);
  eps_.erase(std::remove(eps_.begin(), eps_.end(), ep), eps_.end());
}

fi_addr_t Av::find(const Address &address) {
  std::lock_guard<std::mutex> hold(lock_);
  const auto at = index_.find(address);
  return at == index_.end() ? FI_ADDR_NOTAVAIL : at->second;
}

bool Av::address(fi_addr_t at, Address *out) {
  std::lock_guard<std::mutex> hold(lock_);
  if (at >= entries_.size() || entries_[at].uses == 0) return false;
  *out = entries_[at].address;
  return true;
}

bool Av::was(fi_addr_t at, Address *out) {
  std::lock_guard<std::mutex> hold(lock_);
  if (at >= entries_.size()) return false;
  *out = entries_[at].address;
  return true;
}

/* How many were inserted. An address that is there already keeps its number, and is to be removed as often. */
int Av::insert(const void *addresses, size_t count, fi_addr_t *out, uint64_t flags, void *context) {
  if (flags & ~(FI_MORE | FI_SYNC_ERR)) return -FI_EBADFLAGS;
  std::lock_guard<std::mutex> hold(lock_);
  int *errors = flags & FI_SYNC_ERR ? static_cast<int *>(context) : nullptr;
  int inserted = 0;
  for (size_t i = 0; i < count; ++i) {
    Address address;
    std::memcpy(&address, static_cast<const uint8_t *>(addresses) + i * sizeof address, sizeof address);
    fi_addr_t at = FI_ADDR_NOTAVAIL;
    int err = 0;
    const auto known = index_.find(address);
    if (known != index_.end()) {
      at = known->second;
      ++entries_[at].uses;
    } else if (!address.valid()) {
      err = FI_EINVAL;
    } else if (entries_.size() >= kAddresses) {
      err = FI_ENOSPC;
    } else {
      for (Ep *ep : eps_) {
        if (err == 0) err = ep->meet(entries_.size(), address);
      }
      if (err == 0) {
        at = entries_.size();
        entries_.push_back({address, 1});
        index_.emplace(address, at);
      }
    }
    if (out != nullptr) out[i] = at;
    if (errors != nullptr) errors[i] = err;
    if (err == 0)
      ++inserted;
    else
      RDMAT_WARN(FI_LOG_AV, "address %zu of %zu is not inserted: %s\n", i, count, fi_strerror(err));
  }
  return inserted;
}

/* Numbers are not given again: what is under way to them goes on. */
int Av::remove(const fi_addr_t *addresses, size_t count) {
  std::lock_guard<std::mutex> hold(lock_);
  int result = 0;
  for (size_t i = 0; i < count; ++i) {
    const fi_addr_t at = addresses[i];
    if (at >= entries_.size() || entries_[at].uses == 0) {
      result = -FI_EINVAL;
      continue;
    }
    if (--entries_[at].uses > 0) continue;
    index_.erase(entries_[at].address);
    for (Ep *ep : eps_) ep->part(at);
  }
  return result;
}

namespace {

int close_av(fid *f) {
  Av *av = of(f);
  if (av->users > 0) return -FI_EBUSY;
  --av->domain->users;
  delete av;
  return 0;
}

int insert(fid_av *av, const void *addresses, size_t count, fi_addr_t *out, uint64_t flags, void *context) {
  return of(av)->insert(addresses, count, out, flags, context);
}

int remove_all(fid_av *av, fi_addr_t *addresses, size_t count, uint64_t flags) {
  if (flags != 0) return -FI_EBADFLAGS;
  return of(av)->remove(addresses, count);
}

int lookup(fid_av *av, fi_addr_t at, void *out, size_t *len) {
  Address address;
  if (!of(av)->address(at, &address)) return -FI_EINVAL;
  if (out != nullptr) std::memcpy(out, &address, std::min(*len, sizeof address));
  *len = sizeof address;
  return 0;
}

const char *text_of(fid_av *, const void *bytes, char *buf, size_t *len) {
  Address address;
  std::memcpy(&address, bytes, sizeof address);
  const std::string text = address.valid() ? address.text() : "fi_rdmat://(no address)";
  if (buf != nullptr && *len > 0) {
    const size_t n = std::min(*len - 1, text.size());
    std::memcpy(buf, text.data(), n);
    buf[n] = '\0';
  }
  *len = text.size() + 1;
  return buf;
}

fi_ops *fid_table() {
  static fi_ops table = [] {
    fi_ops t{};
    t.size = sizeof t;
    t.close = close_av;
    t.bind = no_int;
    t.control = no_int;
    t.ops_open = no_int;
    return t;
  }();
  return &table;
}

fi_ops_av *av_table() {
  static fi_ops_av table = [] {
    fi_ops_av t{};
    t.size = sizeof t;
    t.insert = insert;
    t.insertsvc = no_int;
    t.insertsym = no_int;
    t.remove = remove_all;
    t.lookup = lookup;
    t.straddr = text_of;
    t.av_set = no_int;
    return t;
  }();
  return &table;
}

}  // namespace

int open_av(fid_domain *domain_fid, fi_av_attr *attr, fid_av **out, void *context) {
  Domain *domain = static_cast<Domain *>(domain_fid);
  /* Nothing tells the application later, and no other process sees it. */
  if (attr != nullptr && ((attr->flags & ~FI_SYMMETRIC) != 0 || attr->name != nullptr || attr->rx_ctx_bits != 0))
    return -FI_ENOSYS;
  fi_av_type type = attr != nullptr ? attr->type : FI_AV_UNSPEC;
  if (type == FI_AV_UNSPEC) type = FI_AV_TABLE;
  if (attr != nullptr) attr->type = type;
  auto av = std::make_unique<Av>(domain, type);
  av->fid = {FI_CLASS_AV, context, fid_table()};
  av->ops = av_table();
  ++domain->users;
  *out = av.release();
  return 0;
}

}  // namespace rdmat
