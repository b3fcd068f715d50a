/* How an endpoint comes to be: what is bound to it, its manager, its address; and how it ends. */
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "clock.h"
#include "ep.h"

namespace rdmat {

namespace {

/* How long an endpoint that is closed waits for what it has taken over to be sent. */
constexpr int kDrain = 5000;

std::string listen_address(const fi_info *info) {
  const std::string environment = listen_of_environment();
  if (!environment.empty()) return environment;
  Address wanted = Address::none();
  return wanted.read(info->src_addr, info->src_addrlen) ? wanted.place() : "127.0.0.1:0";
}

/* At a port that somebody chose an endpoint is known by its place. */
Address first_address(const std::string &listen_at) {
  Address chosen = Address::none();
  if (!chosen.set_place(listen_at) || !chosen.has_port()) return Address::fresh();
  chosen.replace_wildcard();
  return chosen;
}

uint64_t caps_of(const fi_info *info) {
  uint64_t caps = info->caps;
  if (info->rx_attr != nullptr && info->rx_attr->caps != 0 && !(info->rx_attr->caps & FI_DIRECTED_RECV))
    caps &= ~FI_DIRECTED_RECV;
  return caps;
}

}  // namespace

Ep::Ep(Domain *domain, const fi_info *info)
    : domain(domain),
      caps(caps_of(info)),
      tx_flags(info->tx_attr != nullptr ? info->tx_attr->op_flags : 0),
      rx_flags(info->rx_attr != nullptr ? info->rx_attr->op_flags : 0),
      listen_at_(listen_address(info)),
      self_(first_address(listen_at_)),
      requests_(domain->locks, done),
      order_(domain->locks) {
  ++domain->users;
}

Ep::~Ep() {
  if (timer_fd_ >= 0) ::close(timer_fd_);
  for (const auto &one : suspects_) {
    if (one.second.fd >= 0) ::close(one.second.fd);
  }
  for (Cntr *cntr : cntrs_) {
    if (cntr != nullptr) --cntr->users;
  }
  if (tx_cq_ != nullptr) --tx_cq_->users;
  if (rx_cq_ != nullptr) --rx_cq_->users;
  if (av_ != nullptr) --av_->users;
  --domain->users;
}

int Ep::bind_to(struct ::fid *f, uint64_t flags) {
  if (mgr_ != nullptr) return -FI_EOPBADSTATE;
  switch (f->fclass) {
    case FI_CLASS_AV: {
      if (av_ != nullptr) return -FI_EINVAL;
      av_ = static_cast<Av *>(reinterpret_cast<fid_av *>(f));
      ++av_->users;
      return 0;
    }
    case FI_CLASS_CQ: {
      if (flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION)) return -FI_EBADFLAGS;
      Cq *cq = static_cast<Cq *>(reinterpret_cast<fid_cq *>(f));
      const bool tx = flags & FI_TRANSMIT, rx = flags & FI_RECV;
      if ((!tx && !rx) || (tx && tx_cq_ != nullptr) || (rx && rx_cq_ != nullptr)) return -FI_EINVAL;
      if (tx) {
        tx_cq_ = cq;
        tx_selective_ = flags & FI_SELECTIVE_COMPLETION;
        ++cq->users;
      }
      if (rx) {
        rx_cq_ = cq;
        rx_selective_ = flags & FI_SELECTIVE_COMPLETION;
        ++cq->users;
      }
      return 0;
    }
    case FI_CLASS_CNTR: {
      static const uint64_t bits[kCntrs] = {FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE};
      Cntr *cntr = static_cast<Cntr *>(reinterpret_cast<fid_cntr *>(f));
      uint64_t known = 0;
      for (const uint64_t bit : bits) known |= bit;
      if (flags == 0 || (flags & ~known)) return -FI_EBADFLAGS;
      for (size_t i = 0; i < kCntrs; ++i) {
        if (!(flags & bits[i])) continue;
        if (cntrs_[i] != nullptr) return -FI_EINVAL;
        cntrs_[i] = cntr;
        ++cntr->users;
      }
      return 0;
    }
    case FI_CLASS_EQ:
      /* Nothing makes events. */
      return 0;
    default:
      return -FI_EINVAL;
  }
}

/* Listens, and learns where: the manager itself listens at RDMA_LISTEN already, but does not say on which port. */
int Ep::listen() {
  char bound[128];
  const rdma_code_t code = rdma_mgr_listen(mgr_, listen_at_.c_str(), bound, sizeof bound, nullptr);
  if (code == RDMA_OK) {
    if (!self_.set_place(bound)) return -FI_EINVAL;
  } else if (code != RDMA_ALREADY_EXISTS || listen_of_environment().empty() || !self_.set_place(listen_at_)) {
    /* Elsewhere somebody else has the port. */
    return static_cast<int>(refusal(code, FI_LOG_EP_CTRL, listen_at_.c_str()));
  }
  self_.replace_wildcard();
  return 0;
}

/* Whether the application may sleep for something that happens here. */
bool Ep::is_waited_for() const {
  bool waits = (tx_cq_ != nullptr && tx_cq_->pump.waits()) || (rx_cq_ != nullptr && rx_cq_->pump.waits());
  for (const Cntr *cntr : cntrs_) waits = waits || (cntr != nullptr && cntr->pump.waits());
  return waits;
}

int Ep::start_manager() {
  const std::string name = self_.name();
  rdma_mgr_options_t options;
  if (const rdma_code_t code = rdma_mgr_options_init(&options, sizeof options)) return -error_of(code);
  options.name = name.c_str();
  options.progress = domain->thread ? RDMA_PROGRESS_THREAD : RDMA_PROGRESS_MANUAL;
  /* An application that computes for an hour is not gone. */
  options.peer_timeout_ms = 0;
  options.peer_event = on_peer;
  options.peer_event_userdata = this;
  if (const rdma_code_t code = rdma_mgr_create(&options, &mgr_)) {
    mgr_ = nullptr;
    return static_cast<int>(refusal(code, FI_LOG_EP_CTRL, "rdma_mgr_create"));
  }
  if (const int err = listen()) return err;
  /* A manager that is watched makes system calls whenever it is driven. */
  if (is_waited_for()) {
    /* Without it a wait would end by nothing that comes. */
    const rdma_code_t code = domain->thread ? RDMA_OK : rdma_mgr_event_fd(mgr_, &event_fd_);
    if (code != RDMA_OK) return static_cast<int>(refusal(code, FI_LOG_EP_CTRL, "rdma_mgr_event_fd"));
    /* It may be there, of an fi_enable that failed later on. */
    if (timer_fd_ < 0) timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer_fd_ < 0) return -errno;
  }
  if (const rdma_code_t code = rdma_peer_lookup(mgr_, name.c_str(), &self_peer_)) return -error_of(code);
  const auto write = [](rdma_mgr_t *, const rdma_msg_status_t *status, const void *data, void *ep) {
    return static_cast<Ep *>(ep)->on_write(status, data);
  };
  const auto read = [](rdma_mgr_t *, const rdma_msg_status_t *status, const void *, void *ep) {
    return static_cast<Ep *>(ep)->on_read(status);
  };
  const auto atomic = [](rdma_mgr_t *, const rdma_msg_status_t *status, const void *data, void *ep) {
    return static_cast<Ep *>(ep)->on_atomic(status, data);
  };
  const auto ack = [](rdma_mgr_t *, const rdma_msg_status_t *status, const void *, void *ep) {
    static_cast<Ep *>(ep)->on_ack(status);
    return uint32_t{RDMA_MSG_HANDLED};
  };
  /* It copies each byte once, to where it belongs. */
  rdma_code_t code = rdma_msg_handler_in_place(mgr_, kOnWrite, write, this);
  if (code == RDMA_OK) code = rdma_msg_handler(mgr_, kOnRead, read, this);
  if (code == RDMA_OK) code = rdma_msg_handler(mgr_, kOnAtomic, atomic, this);
  if (code == RDMA_OK) code = rdma_msg_handler(mgr_, kOnAck, ack, this);
  return -error_of(code);
}

int Ep::enable() {
  if (mgr_ != nullptr) return 0;
  if (av_ == nullptr) return -FI_ENOAV;
  const bool counted = cntrs_[kCntrSend] || cntrs_[kCntrRecv] || cntrs_[kCntrRead] || cntrs_[kCntrWrite];
  if (tx_cq_ == nullptr && rx_cq_ == nullptr && !counted) return -FI_ENOCQ;
  if (const int err = start_manager()) {
    if (mgr_ != nullptr) rdma_mgr_destroy(mgr_);
    mgr_ = nullptr;
    /* To try again is no use where memory or descriptors lack. */
    return err == -FI_EAGAIN ? -FI_ENOMEM : err;
  }
  bool added = (tx_cq_ == nullptr || tx_cq_->pump.add(this)) && (rx_cq_ == nullptr || rx_cq_->pump.add(this));
  for (Cntr *cntr : cntrs_) added = added && (cntr == nullptr || cntr->pump.add(this));
  if (!added) {
    leave();
    rdma_mgr_destroy(mgr_);
    mgr_ = nullptr;
    return -FI_ENOSPC;
  }
  /* One too many for it is driven by its queues alone. */
  (void)domain->pump.add(this);
  av_->attach(this);
  RDMAT_INFO(FI_LOG_EP_CTRL, "endpoint %s\n", self_.text().c_str());
  return 0;
}

void Ep::leave() {
  domain->pump.remove(this);
  if (tx_cq_ != nullptr) tx_cq_->pump.remove(this);
  if (rx_cq_ != nullptr) rx_cq_->pump.remove(this);
  for (Cntr *cntr : cntrs_) {
    if (cntr != nullptr) cntr->pump.remove(this);
  }
}

int Ep::meet(fi_addr_t at, const Address &address) {
  if (mgr_ == nullptr) return 0;
  const std::string name = address.name();
  rdma_peer_t peer = self_peer_;
  if (!(address == self_)) {
    rdma_code_t code = rdma_mgr_add_peer(mgr_, name.c_str(), address.place().c_str());
    if (code == RDMA_OK) code = rdma_peer_lookup(mgr_, name.c_str(), &peer);
    if (code != RDMA_OK) {
      refusal(code, FI_LOG_AV, "rdma_mgr_add_peer");
      return error_of(code);
    }
  }
  std::lock_guard<std::mutex> hold(meeting_);
  if (!from_peer_.set(peer, at + 1) || !to_peer_.set(at, peer)) return FI_ENOMEM;
  return 0;
}

void Ep::part(fi_addr_t at) {
  std::lock_guard<std::mutex> hold(meeting_);
  const uint64_t peer = to_peer_.get(at);
  if (peer == 0) return;
  to_peer_.set(at, 0);
  from_peer_.set(peer, 0);
}

int Ep::name(void *out, size_t *len) {
  if (mgr_ == nullptr) return -FI_EOPBADSTATE;
  const size_t room = *len;
  *len = sizeof self_;
  if (out != nullptr && room > 0) std::memcpy(out, &self_, room < sizeof self_ ? room : sizeof self_);
  return room < sizeof self_ ? -FI_ETOOSMALL : 0;
}

int Ep::close() {
  if (mgr_ != nullptr) {
    /* What was injected is nobody's but the endpoint's. */
    const int64_t until = deadline(kDrain);
    while (quiet_ > 0 && remaining(until) > 0) rdma_mgr_wait(mgr_, 10);
    closing_ = true;
    leave();
    av_->detach(this);
    if (rdma_mgr_destroy(mgr_) == RDMA_FAILED_PRECONDITION)
      RDMAT_WARN(FI_LOG_EP_CTRL, "the endpoint is of another process: its manager is left alone\n");
  }
  delete this;
  return 0;
}

int Ep::get_option(int level, int option, void *value, size_t *len) {
  if (level != FI_OPT_ENDPOINT || (option != FI_OPT_MIN_MULTI_RECV && option != FI_OPT_CM_DATA_SIZE))
    return -FI_ENOPROTOOPT;
  if (*len < sizeof(size_t)) return -FI_ETOOSMALL;
  *static_cast<size_t *>(value) = option == FI_OPT_MIN_MULTI_RECV ? min_multi_ : 0;
  *len = sizeof(size_t);
  return 0;
}

int Ep::set_option(int level, int option, const void *value, size_t len) {
  if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (len < sizeof(size_t)) return -FI_ETOOSMALL;
  const size_t wanted = *static_cast<const size_t *>(value);
  if (wanted == 0) return -FI_EINVAL;
  min_multi_ = wanted;
  return 0;
}

int Ep::control_flags(int command, uint64_t *flags) {
  const bool tx = *flags & FI_TRANSMIT, rx = *flags & FI_RECV;
  if (tx == rx) return -FI_EINVAL;
  uint64_t &own = tx ? tx_flags : rx_flags;
  if (command == FI_SETOPSFLAG)
    own = *flags & ~(FI_TRANSMIT | FI_RECV);
  else
    *flags = own;
  return 0;
}

namespace {

Ep *of(fid *f) { return ep_of(reinterpret_cast<fid_ep *>(f)); }

int control(fid *f, int command, void *arg) {
  switch (command) {
    case FI_ENABLE: return of(f)->enable();
    case FI_GETOPSFLAG:
    case FI_SETOPSFLAG: return of(f)->control_flags(command, static_cast<uint64_t *>(arg));
    case FI_BACKLOG: return -FI_EINVAL;
    default: return -FI_ENOSYS;
  }
}

fi_ops *fid_table() {
  static fi_ops table = [] {
    fi_ops t{};
    t.size = sizeof t;
    t.close = [](fid *f) { return of(f)->close(); };
    t.bind = [](fid *f, fid *other, uint64_t flags) { return of(f)->bind_to(other, flags); };
    t.control = control;
    t.ops_open = no_int;
    return t;
  }();
  return &table;
}

fi_ops_ep *ep_table() {
  static fi_ops_ep table = [] {
    fi_ops_ep t{};
    t.size = sizeof t;
    t.cancel = [](fid_t f, void *context) { return of(f)->cancel(context); };
    t.getopt = [](fid_t f, int level, int name, void *value, size_t *len) {
      return of(f)->get_option(level, name, value, len);
    };
    t.setopt = [](fid_t f, int level, int name, const void *value, size_t len) {
      return of(f)->set_option(level, name, value, len);
    };
    t.tx_ctx = no_int;
    t.rx_ctx = no_int;
    t.rx_size_left = [](fid_ep *) { return static_cast<ssize_t>(kQueue); };
    t.tx_size_left = [](fid_ep *ep) { return static_cast<ssize_t>(ep_of(ep)->left()); };
    return t;
  }();
  return &table;
}

fi_ops_cm *cm_table() {
  static fi_ops_cm table = [] {
    fi_ops_cm t{};
    t.size = sizeof t;
    t.setname = no_int;
    t.getname = [](fid_t f, void *out, size_t *len) { return of(f)->name(out, len); };
    t.getpeer = no_int;
    t.connect = no_int;
    t.listen = no_int;
    t.accept = no_int;
    t.reject = no_int;
    t.shutdown = no_int;
    t.join = no_int;
    return t;
  }();
  return &table;
}

}  // namespace

int open_ep(fid_domain *domain, fi_info *info, fid_ep **out, void *context) {
  if (info == nullptr || (info->ep_attr != nullptr && info->ep_attr->type != FI_EP_RDM)) return -FI_EINVAL;
  Address source;
  if (info->src_addr != nullptr && !source.read(info->src_addr, info->src_addrlen)) return -FI_EINVAL;
  auto ep = std::make_unique<Ep>(static_cast<Domain *>(domain), info);
  ep->fid = {FI_CLASS_EP, context, fid_table()};
  ep->ops = ep_table();
  ep->cm = cm_table();
  ep->msg = msg_table();
  ep->tagged = tagged_table();
  ep->rma = rma_table();
  /* The endpoint has a function of this name. */
  static_cast<fid_ep *>(ep.get())->atomic = atomic_table();
  *out = ep.release();
  return 0;
}

}  // namespace rdmat
