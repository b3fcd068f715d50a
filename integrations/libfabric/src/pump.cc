#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ep.h"
#include "objects.h"

namespace rdmat {

Pump::~Pump() {
  if (epoll_ >= 0) close(epoll_);
  if (bell_ >= 0) close(bell_);
}

int Pump::open(fi_wait_obj wait) {
  if (wait == FI_WAIT_NONE) return 0;
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ < 0 || bell_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, bell_, &event) != 0) return errno;
  return 0;
}

bool Pump::add(Ep *ep) {
  for (size_t i = 0; i < kEndpoints; ++i) {
    if (eps_[i].load() == ep) return true;
  }
  for (size_t i = 0; i < kEndpoints; ++i) {
    Ep *none = nullptr;
    if (!eps_[i].compare_exchange_strong(none, ep)) continue;
    size_t used = used_.load();
    while (used < i + 1 && !used_.compare_exchange_weak(used, i + 1)) {
    }
    if (epoll_ >= 0 && ep->event_fd() >= 0) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (epoll_ctl(epoll_, EPOLL_CTL_ADD, ep->event_fd(), &event) != 0 && errno != EEXIST) {
        eps_[i].store(nullptr);
        return false;
      }
    }
    return true;
  }
  return false;
}

void Pump::remove(Ep *ep) {
  for (size_t i = 0; i < kEndpoints; ++i) {
    if (eps_[i].load() != ep) continue;
    eps_[i].store(nullptr);
    if (epoll_ >= 0 && ep->event_fd() >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, ep->event_fd(), nullptr);
  }
}

void Pump::progress() {
  const size_t used = used_.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    Ep *ep = eps_[i].load(std::memory_order_acquire);
    if (ep != nullptr) ep->progress();
  }
}

void Pump::arm() { armed_.store(true, std::memory_order_seq_cst); }

void Pump::disarm() {
  armed_.store(false, std::memory_order_seq_cst);
  uint64_t rung;
  if (bell_ >= 0) (void)!::read(bell_, &rung, sizeof rung);
}

void Pump::ring() {
  const uint64_t one = 1;
  if (bell_ >= 0) (void)!::write(bell_, &one, sizeof one);
}

void Pump::sleep(int timeout) {
  pollfd fd{};
  fd.fd = epoll_;
  fd.events = POLLIN;
  (void)::poll(&fd, 1, timeout);
  const size_t used = used_.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    if (Ep *ep = eps_[i].load(std::memory_order_acquire)) ep->look();
  }
}

}  // namespace rdmat
