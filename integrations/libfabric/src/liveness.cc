/* Peers that are gone. The library tries again to reach a peer for as long as an operation may last, which is for ever
 * here: a peer that computes does not answer either. What nobody can answer ends with an error: receives from a peer
 * whose connection has ended, and what waits for an address at which nobody listens. Answers to a peer whose connection
 * has ended are taken back: they keep regions of memory in use. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "clock.h"
#include "ep.h"

namespace rdmat {

namespace {

constexpr int64_t kEvery = 1000;
/* So many looks in a row that find nobody listening are enough. */
constexpr int kRefusals = 2;

/* Begins to connect to it. A descriptor; or -1, and *err says how it ended. */
int knock(const Address &address, int *err) {
  sockaddr_storage to{};
  socklen_t len;
  if (address.family == 4) {
    sockaddr_in *in = reinterpret_cast<sockaddr_in *>(&to);
    in->sin_family = AF_INET;
    std::memcpy(&in->sin_addr, address.ip, 4);
    std::memcpy(&in->sin_port, address.port, 2);
    len = sizeof *in;
  } else {
    sockaddr_in6 *in = reinterpret_cast<sockaddr_in6 *>(&to);
    in->sin6_family = AF_INET6;
    std::memcpy(&in->sin6_addr, address.ip, 16);
    std::memcpy(&in->sin6_port, address.port, 2);
    len = sizeof *in;
  }
  const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    *err = 0;
    return -1;
  }
  *err = connect(fd, reinterpret_cast<sockaddr *>(&to), len) == 0 ? 0 : errno;
  if (*err == EINPROGRESS) return fd;
  ::close(fd);
  return -1;
}

bool nobody(int err) {
  return err == ECONNREFUSED || err == EHOSTUNREACH || err == ENETUNREACH || err == ETIMEDOUT || err == EHOSTDOWN;
}

}  // namespace

void Ep::on_peer(rdma_mgr_t *mgr, int32_t event, const char *name, size_t, rdma_code_t code, const char *message,
                 size_t, void *userdata) {
  Ep *ep = static_cast<Ep *>(userdata);
  if (ep->closing_) return;
  rdma_peer_t peer;
  if (rdma_peer_lookup(mgr, name, &peer) != RDMA_OK) return;
  {
    std::lock_guard<std::mutex> hold(ep->meeting_);
    ep->told_.set(peer, event == RDMA_PEER_GONE ? kGone : kCame);
  }
  if (event != RDMA_PEER_GONE) return;
  RDMAT_INFO(FI_LOG_EP_CTRL, "peer %s is gone: %s: %s\n", name, rdma_code_name(code), message);
  ep->lost(peer, FI_ECONNRESET);
  /* Its operations have ended at its end, too: it does not wait for answers that were not sent. */
  ep->answers.forsake(mgr, peer, [&] {
    rdma_peer_info_t info{};
    info.struct_size = sizeof info;
    return rdma_mgr_peer_info(mgr, name, &info) == RDMA_OK && info.state == RDMA_PEER_CONNECTED;
  });
}

/* What waits for this peer ends: receives from it, answers of it. */
void Ep::lost(rdma_peer_t peer, int err) {
  requests_.each([&](Request *r) {
    const uint64_t number = r->number();
    const Kind kind = r->kind;
    if (r->peer != peer) return;
    if (kind == Kind::Receive || kind == Kind::MultiReceive || kind == Kind::Read) {
      if (r->stop_for(number, err)) take_back(r, number, r->message);
    } else if (kind == Kind::Write) {
      answer(r, number, err);
    }
  });
}

void Ep::watch() {
  if (!watched_.load(std::memory_order_seq_cst) && !watched_.exchange(true)) set_timer();
}

void Ep::set_timer() {
  if (timer_fd_ < 0) return;
  /* Another thread may find that it is otherwise meanwhile. */
  bool on;
  do {
    on = watched_;
    itimerspec when{};
    const int64_t at = on ? std::max(looked_ + kEvery, now_ms() + 1) : 0;
    when.it_value.tv_sec = at / 1000;
    when.it_value.tv_nsec = at % 1000 * 1000000;
    timerfd_settime(timer_fd_, TFD_TIMER_ABSTIME, &when, nullptr);
  } while (on != watched_);
}

void Ep::rest() {
  look();
  if (watched_) set_timer();
}

void Ep::look() {
  if (mgr_ == nullptr || !watched_) return;
  const int64_t now = now_ms();
  int64_t last = looked_;
  if (now - last < kEvery || !looked_.compare_exchange_strong(last, now)) return;
  /* Peers for which something waits, each once. What begins meanwhile sees that nothing is watched. */
  watched_ = false;
  std::unordered_map<rdma_peer_t, fi_addr_t> peers;
  requests_.each([&](Request *r) {
    const Kind kind = r->kind;
    const rdma_peer_t peer = r->peer;
    if (kind != Kind::Free && kind != Kind::Discard && peer != RDMA_PEER_ANY && r->to != FI_ADDR_UNSPEC)
      peers.emplace(peer, r->to);
  });
  answers.go_on(closing_);
  /* Who came and went at once was not told of, and answers may begin after their peer has gone. */
  answers.look(mgr_, [this](rdma_peer_t peer) { return peer == self_peer_ || told_.get(peer) == kCame; });
  if (!peers.empty() || answers.any()) watched_ = true;
  set_timer();
  for (const auto &one : peers) test_reach(one.first, one.second);
}

void Ep::test_reach(rdma_peer_t peer, fi_addr_t at) {
  Address address;
  if (peer == self_peer_ || !av_->was(at, &address)) return;
  rdma_peer_info_t info{};
  info.struct_size = sizeof info;
  const bool known = rdma_mgr_peer_info(mgr_, address.name().c_str(), &info) == RDMA_OK;
  std::lock_guard<std::mutex> hold(suspects_lock_);
  Suspect &suspect = suspects_[at];
  int err = 0;
  /* Until a try has failed there is nothing to suspect. */
  const bool failed = info.state != RDMA_PEER_CONNECTED && info.reason[0] != '\0';
  if (!known || !failed) {
    if (suspect.fd >= 0) ::close(suspect.fd);
    suspects_.erase(at);
    return;
  }
  if (suspect.fd < 0) {
    suspect.fd = knock(address, &err);
    if (suspect.fd >= 0) return;
  } else {
    pollfd fd{};
    fd.fd = suspect.fd;
    fd.events = POLLOUT;
    if (::poll(&fd, 1, 0) == 0) return;
    socklen_t len = sizeof err;
    getsockopt(suspect.fd, SOL_SOCKET, SO_ERROR, &err, &len);
    ::close(suspect.fd);
    suspect.fd = -1;
  }
  suspect.refused = nobody(err) ? suspect.refused + 1 : 0;
  if (suspect.refused < kRefusals) return;
  suspects_.erase(at);
  RDMAT_WARN(FI_LOG_EP_CTRL, "nobody listens at %s: %s\n", address.text().c_str(), std::strerror(err));
  lost(peer, FI_ECONNREFUSED);
  requests_.each([&](Request *r) {
    const uint64_t number = r->number();
    const Kind kind = r->kind;
    if (r->peer != peer || (kind != Kind::Send && kind != Kind::Read && kind != Kind::Write)) return;
    if (r->stop_for(number, FI_ECONNREFUSED)) take_back(r, number, kind == Kind::Send ? r->message : r->question);
  });
}

}  // namespace rdmat
