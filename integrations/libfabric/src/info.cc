/* fi_getinfo: what the provider has, held against what is asked for. */
#include <cstdlib>
#include <cstring>

#include "objects.h"

namespace rdmat {

namespace {

constexpr uint64_t kPrimary = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
constexpr uint64_t kTx = FI_SEND | FI_READ | FI_WRITE;
constexpr uint64_t kRx = FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr uint64_t kRxOnly = FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT;
constexpr uint64_t kReach = FI_LOCAL_COMM | FI_REMOTE_COMM;
constexpr uint64_t kCaps = kPrimary | kTx | kRx | kRxOnly | kReach;
constexpr uint64_t kTxFlags =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
constexpr uint64_t kRxFlags = FI_COMPLETION | FI_MULTI_RECV;
constexpr uint64_t kOrder = FI_ORDER_SAS;

/* Why a wish cannot be met, for FI_LOG_LEVEL=info. */
#define REFUSE(...)                          \
  do {                                       \
    RDMAT_INFO(FI_LOG_CORE, __VA_ARGS__);    \
    return false;                            \
  } while (0)

bool within(const char *what, uint64_t wanted, uint64_t have) {
  if (wanted & ~have)
    REFUSE("%s: 0x%llx is not had\n", what, static_cast<unsigned long long>(wanted & ~have));
  return true;
}

bool at_most(const char *what, size_t wanted, size_t have) {
  if (wanted > have) REFUSE("%s: %zu asked for, %zu is what there is\n", what, wanted, have);
  return true;
}

bool same_name(const char *wanted) { return wanted == nullptr || std::strcmp(wanted, provider.name) == 0; }

bool accepts_tx(const fi_tx_attr *tx) {
  if (tx == nullptr) return true;
  return within("tx_attr->caps", tx->caps, kCaps) && within("tx_attr->op_flags", tx->op_flags, kTxFlags) &&
         within("tx_attr->msg_order", tx->msg_order, kOrder) &&
         within("tx_attr->comp_order", tx->comp_order & ~FI_ORDER_DATA, 0) &&
         at_most("tx_attr->inject_size", tx->inject_size, kInject) && at_most("tx_attr->size", tx->size, kQueue) &&
         at_most("tx_attr->iov_limit", tx->iov_limit, kIov) &&
         at_most("tx_attr->rma_iov_limit", tx->rma_iov_limit, kRmaIov);
}

bool accepts_rx(const fi_rx_attr *rx) {
  if (rx == nullptr) return true;
  return within("rx_attr->caps", rx->caps, kCaps) && within("rx_attr->op_flags", rx->op_flags, kRxFlags) &&
         within("rx_attr->msg_order", rx->msg_order, kOrder) &&
         within("rx_attr->comp_order", rx->comp_order & ~FI_ORDER_DATA, 0) &&
         at_most("rx_attr->size", rx->size, kQueue) && at_most("rx_attr->iov_limit", rx->iov_limit, kIov);
}

bool accepts_ep(const fi_ep_attr *ep) {
  if (ep == nullptr) return true;
  if (ep->type != FI_EP_UNSPEC && ep->type != FI_EP_RDM) REFUSE("ep_attr->type: only FI_EP_RDM\n");
  if (ep->protocol != FI_PROTO_UNSPEC && ep->protocol != kProtocol) REFUSE("ep_attr->protocol: another\n");
  if (ep->auth_key_size != 0) REFUSE("ep_attr->auth_key: RDMA_AUTH_SECRET_FILE is how to have one\n");
  return at_most("ep_attr->max_msg_size", ep->max_msg_size, kMaxMessage) &&
         at_most("ep_attr->msg_prefix_size", ep->msg_prefix_size, 0) &&
         at_most("ep_attr->tx_ctx_cnt", ep->tx_ctx_cnt, 1) && at_most("ep_attr->rx_ctx_cnt", ep->rx_ctx_cnt, 1) &&
         at_most("ep_attr->max_order_raw_size", ep->max_order_raw_size, 0) &&
         at_most("ep_attr->max_order_war_size", ep->max_order_war_size, 0) &&
         at_most("ep_attr->max_order_waw_size", ep->max_order_waw_size, 0);
}

bool accepts_domain(const fi_domain_attr *d) {
  if (d == nullptr) return true;
  if (!same_name(d->name)) REFUSE("domain_attr->name: only %s\n", provider.name);
  if (d->auth_key_size != 0) REFUSE("domain_attr->auth_key: RDMA_AUTH_SECRET_FILE is how to have one\n");
  return within("domain_attr->caps", d->caps, kReach) &&
         at_most("domain_attr->mr_key_size", d->mr_key_size, sizeof(uint64_t)) &&
         at_most("domain_attr->cq_data_size", d->cq_data_size, sizeof(uint64_t)) &&
         at_most("domain_attr->max_ep_tx_ctx", d->max_ep_tx_ctx, 1) &&
         at_most("domain_attr->max_ep_rx_ctx", d->max_ep_rx_ctx, 1) &&
         at_most("domain_attr->max_ep_stx_ctx", d->max_ep_stx_ctx, 0) &&
         at_most("domain_attr->max_ep_srx_ctx", d->max_ep_srx_ctx, 0) &&
         at_most("domain_attr->mr_iov_limit", d->mr_iov_limit, 1);
}

bool accepts(const fi_info *hints) {
  if (hints == nullptr) return true;
  if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != kAddressFormat)
    REFUSE("addr_format: only the provider's own\n");
  if (hints->fabric_attr != nullptr && !same_name(hints->fabric_attr->name)) REFUSE("fabric_attr->name: another\n");
  return within("caps", hints->caps, kCaps) && accepts_ep(hints->ep_attr) && accepts_domain(hints->domain_attr) &&
         accepts_tx(hints->tx_attr) && accepts_rx(hints->rx_attr);
}

/* All there is, or what was asked for: primary ones bring their directions along. */
uint64_t capabilities(const fi_info *hints) {
  if (hints == nullptr || hints->caps == 0) return kCaps;
  uint64_t caps = hints->caps | kReach;
  if (!(caps & kPrimary)) caps |= kPrimary;
  if ((caps & (FI_MSG | FI_TAGGED)) && !(caps & (FI_SEND | FI_RECV))) caps |= FI_SEND | FI_RECV;
  const uint64_t one_sided = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((caps & (FI_RMA | FI_ATOMIC)) && !(caps & one_sided)) caps |= one_sided;
  return caps;
}

int mr_mode(uint32_t version, const fi_info *hints) {
  const int wanted = hints != nullptr && hints->domain_attr != nullptr ? hints->domain_attr->mr_mode : 0;
  if (wanted == FI_MR_BASIC || wanted == FI_MR_SCALABLE) return wanted;
  /* From 1.5 on: what the application has to do, which is nothing. */
  return FI_VERSION_LT(version, FI_VERSION(1, 5)) ? FI_MR_SCALABLE : 0;
}

template <typename T>
T or_default(T wanted, T fallback) {
  return wanted != T{} ? wanted : fallback;
}

void fill_directions(fi_info *info, const fi_info *hints) {
  const uint64_t kinds = info->caps & kPrimary;
  fi_tx_attr &tx = *info->tx_attr;
  tx.caps = kinds | (info->caps & kTx);
  tx.msg_order = kOrder;
  tx.comp_order = FI_ORDER_NONE;
  tx.inject_size = kInject;
  tx.size = kQueue;
  tx.iov_limit = kIov;
  tx.rma_iov_limit = kRmaIov;
  fi_rx_attr &rx = *info->rx_attr;
  rx.caps = kinds | (info->caps & (kRx | kRxOnly));
  rx.msg_order = kOrder;
  rx.comp_order = FI_ORDER_NONE;
  rx.size = kQueue;
  rx.iov_limit = kIov;
  if (hints == nullptr) return;
  if (hints->tx_attr != nullptr) tx.op_flags = hints->tx_attr->op_flags;
  if (hints->rx_attr != nullptr) rx.op_flags = hints->rx_attr->op_flags;
}

void fill_domain(fi_info *info, uint32_t version, const fi_info *hints) {
  fi_domain_attr &d = *info->domain_attr;
  const fi_domain_attr none{};
  const fi_domain_attr &wanted = hints != nullptr && hints->domain_attr != nullptr ? *hints->domain_attr : none;
  d.name = strdup(provider.name);
  d.threading = or_default(wanted.threading, FI_THREAD_SAFE);
  d.control_progress = or_default(wanted.control_progress, FI_PROGRESS_MANUAL);
  d.data_progress = or_default(wanted.data_progress, FI_PROGRESS_MANUAL);
  d.resource_mgmt = FI_RM_ENABLED;
  d.av_type = wanted.av_type;
  d.mr_mode = mr_mode(version, hints);
  d.mr_key_size = sizeof(uint64_t);
  d.cq_data_size = sizeof(uint64_t);
  d.cq_cnt = d.cntr_cnt = 1024;
  d.ep_cnt = d.tx_ctx_cnt = d.rx_ctx_cnt = kEndpoints;
  d.max_ep_tx_ctx = d.max_ep_rx_ctx = 1;
  d.mr_iov_limit = 1;
  d.mr_cnt = 1 << 20;
  d.caps = kReach;
}

/* Of an application's address or of none. False: it is no address, or there is no memory. */
bool copy_address(const char *what, void **out, size_t *out_len, const void *from, size_t len) {
  if (from == nullptr) return true;
  Address address;
  if (!address.read(from, len)) REFUSE("%s: no address of this provider\n", what);
  *out = std::malloc(sizeof address);
  if (*out == nullptr) return false;
  std::memcpy(*out, &address, sizeof address);
  *out_len = sizeof address;
  return true;
}

/* Where an endpoint listens of which nobody says where. */
Address usual_source() {
  Address usual = Address::none();
  const std::string environment = listen_of_environment();
  if (environment.empty() || !usual.set_place(environment)) usual.resolve(nullptr, nullptr);
  usual.replace_wildcard();
  return usual;
}

/* A node and a service are where this endpoint listens (FI_SOURCE), or where another one does that was opened with them; without a
 * service the address is that of a host, which fi_av_insert does not take. */
bool fill_addresses(fi_info *info, const char *node, const char *service, uint64_t flags, const fi_info *hints) {
  const bool named = node != nullptr || service != nullptr;
  Address at = Address::none();
  if (named && !at.resolve(node, service)) REFUSE("node and service: nobody knows them\n");
  const bool to = named && !(flags & FI_SOURCE), from = named && !to;
  const Address usual = usual_source();
  const void *source = &usual, *target = nullptr;
  size_t source_len = sizeof usual, target_len = 0;
  if (hints != nullptr && hints->src_addr != nullptr) {
    source = hints->src_addr;
    source_len = hints->src_addrlen;
  }
  if (hints != nullptr) {
    target = hints->dest_addr;
    target_len = hints->dest_addrlen;
  }
  if (from) {
    source = &at;
    source_len = sizeof at;
  } else if (to) {
    target = &at;
    target_len = sizeof at;
  }
  return copy_address("src_addr", &info->src_addr, &info->src_addrlen, source, source_len) &&
         copy_address("dest_addr", &info->dest_addr, &info->dest_addrlen, target, target_len);
}

}  // namespace

int get_info(uint32_t version, const char *node, const char *service, uint64_t flags, const fi_info *hints,
             fi_info **out) {
  if (!accepts(hints)) return -FI_ENODATA;
  fi_info *info = fi_allocinfo();
  if (info == nullptr) return -FI_ENOMEM;
  info->caps = capabilities(hints);
  info->addr_format = kAddressFormat;
  fill_directions(info, hints);
  fill_domain(info, version, hints);
  fi_ep_attr &ep = *info->ep_attr;
  ep.type = FI_EP_RDM;
  ep.protocol = kProtocol;
  ep.protocol_version = 1;
  ep.max_msg_size = kMaxMessage;
  ep.mem_tag_format = UINT64_MAX; /* each bit of a tag is the application's */
  if (hints != nullptr && hints->ep_attr != nullptr && hints->ep_attr->mem_tag_format != 0)
    ep.mem_tag_format = hints->ep_attr->mem_tag_format;
  ep.tx_ctx_cnt = ep.rx_ctx_cnt = 1;
  info->fabric_attr->name = strdup(provider.name);
  info->fabric_attr->api_version = version;
  if (hints != nullptr) info->handle = hints->handle;
  if (!fill_addresses(info, node, service, flags, hints)) {
    fi_freeinfo(info);
    return -FI_ENODATA;
  }
  *out = info;
  return 0;
}

}  // namespace rdmat
