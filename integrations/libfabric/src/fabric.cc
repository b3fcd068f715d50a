/* The fabric, the domain, and how libfabric finds the provider. */
#include <cstring>

#include "objects.h"

namespace rdmat {

int error_of(rdma_code_t code) {
  switch (code) {
    case RDMA_OK: return 0;
    case RDMA_CANCELLED: return FI_ECANCELED;
    case RDMA_INVALID_ARGUMENT: return FI_EINVAL;
    case RDMA_DEADLINE_EXCEEDED: return FI_ETIMEDOUT;
    case RDMA_NOT_FOUND: return FI_EADDRNOTAVAIL;
    case RDMA_ALREADY_EXISTS: return FI_EADDRINUSE;
    case RDMA_PERMISSION_DENIED: return FI_EACCES;
    case RDMA_RESOURCE_EXHAUSTED: return FI_ENOMEM;
    case RDMA_FAILED_PRECONDITION: return FI_EOPBADSTATE;
    case RDMA_OUT_OF_RANGE: return FI_ETRUNC;
    case RDMA_UNIMPLEMENTED: return FI_ENOSYS;
    case RDMA_UNAVAILABLE: return FI_ECONNRESET;
    case RDMA_DATA_LOSS: return FI_ECRC;
    case RDMA_UNAUTHENTICATED: return FI_EACCES;
    default: return FI_EOTHER;
  }
}

ssize_t refusal(rdma_code_t code, fi_log_subsys where, const char *what) {
  if (code == RDMA_RESOURCE_EXHAUSTED) return -FI_EAGAIN;
  char text[512] = "";
  rdma_last_error(text, sizeof text);
  RDMAT_WARN(where, "%s: %s: %s\n", what, rdma_code_name(code), text);
  return -error_of(code);
}

namespace {

Fabric *of(fid_fabric *fabric) { return static_cast<Fabric *>(fabric); }

int close_fabric(fid *f) {
  Fabric *fabric = of(reinterpret_cast<fid_fabric *>(f));
  if (fabric->users > 0) return -FI_EBUSY;
  delete fabric;
  return 0;
}

int close_domain(fid *f) {
  Domain *domain = static_cast<Domain *>(reinterpret_cast<fid_domain *>(f));
  if (domain->users > 0) return -FI_EBUSY;
  --domain->fabric->users;
  delete domain;
  return 0;
}

fi_ops fid_ops(int (*close)(fid *)) {
  fi_ops t{};
  t.size = sizeof t;
  t.close = close;
  t.bind = no_int;
  t.control = no_int;
  t.ops_open = no_int;
  return t;
}

fi_ops_domain *domain_table() {
  static fi_ops_domain table = [] {
    fi_ops_domain t{};
    t.size = sizeof t;
    t.av_open = open_av;
    t.cq_open = open_cq;
    t.endpoint = open_ep;
    t.scalable_ep = no_int;
    t.cntr_open = open_cntr;
    t.poll_open = open_poll;
    t.stx_ctx = no_int;
    t.srx_ctx = no_int;
    t.query_atomic = query_atomic;
    t.query_collective = no_int;
    return t;
  }();
  return &table;
}

fi_ops_mr *mr_table() {
  static fi_ops_mr table = [] {
    fi_ops_mr t{};
    t.size = sizeof t;
    t.reg = reg;
    t.regv = regv;
    t.regattr = regattr;
    return t;
  }();
  return &table;
}

}  // namespace

int open_domain(fid_fabric *fabric, fi_info *info, fid_domain **out, void *context) {
  if (info == nullptr || info->domain_attr == nullptr) return -FI_EINVAL;
  const fi_domain_attr &attr = *info->domain_attr;
  if (attr.name != nullptr && std::strcmp(attr.name, provider.name) != 0) return -FI_EINVAL;
  const bool thread = attr.control_progress == FI_PROGRESS_AUTO || attr.data_progress == FI_PROGRESS_AUTO;
  /* One call at a time, and no thread but the application's: nothing needs a lock. */
  const bool locks = thread || attr.threading != FI_THREAD_DOMAIN;
  auto domain = std::make_unique<Domain>(locks, thread);
  domain->virt_addr = attr.mr_mode == FI_MR_BASIC || (attr.mr_mode & FI_MR_VIRT_ADDR);
  domain->own_keys = attr.mr_mode == FI_MR_BASIC || (attr.mr_mode & FI_MR_PROV_KEY);
  static fi_ops fids = fid_ops(close_domain);
  domain->fid = {FI_CLASS_DOMAIN, context, &fids};
  domain->ops = domain_table();
  domain->mr = mr_table();
  domain->fabric = of(fabric);
  ++domain->fabric->users;
  *out = domain.release();
  return 0;
}

int open_fabric(fi_fabric_attr *attr, fid_fabric **out, void *context) {
  if (attr != nullptr && attr->name != nullptr && std::strcmp(attr->name, provider.name) != 0) return -FI_ENODATA;
  static fi_ops fids = fid_ops(close_fabric);
  static fi_ops_fabric table = [] {
    fi_ops_fabric t{};
    t.size = sizeof t;
    t.domain = open_domain;
    t.passive_ep = no_int;
    t.eq_open = open_eq;
    t.wait_open = no_int;
    t.trywait = try_wait;
    return t;
  }();
  auto fabric = std::make_unique<Fabric>();
  fabric->fid = {FI_CLASS_FABRIC, context, &fids};
  fabric->ops = &table;
  fabric->api_version = attr != nullptr ? attr->api_version : 0;
  *out = fabric.release();
  return 0;
}

fi_provider provider = [] {
  fi_provider p{};
  p.version = FI_VERSION(RDMA_VERSION_MAJOR, RDMA_VERSION_MINOR);
  p.fi_version = FI_VERSION(1, 17);
  p.name = "rdmat";
  p.getinfo = get_info;
  p.fabric = open_fabric;
  p.cleanup = [] {};
  return p;
}();

}  // namespace rdmat

extern "C" __attribute__((visibility("default"))) fi_provider *fi_prov_ini(void);

extern "C" fi_provider *fi_prov_ini(void) { return &rdmat::provider; }
