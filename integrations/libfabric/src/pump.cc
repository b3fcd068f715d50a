#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "ep.h"
#include "objects.h"

namespace rdmat {

namespace {

/* Of turns that find nothing one of so many offers the processor. Who spins for what another process on the same processor has
 * to make would keep that process from it for milliseconds each time. (Open MPI waits so in blocking sends, even if it is told
 * to yield.) Where nobody else wants the processor an offer takes as long as some turns; where somebody took it, it is made after
 * a few turns for a while: more processes wait here than there are processors, and each has something to do for the others. */
constexpr uint32_t kOffer = 256, kOfferSoon = 4;
/* So many offers are made soon then. */
constexpr uint32_t kCrowd = 64;
/* An offer that nobody took is over before that. */
constexpr int64_t kTakenNs = 1500;

}  // namespace

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

/* An endpoint is in use while `f` runs: who removes it waits for that. */
template <typename F>
void Pump::each(F f) {
  const size_t used = used_.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    Slot &slot = slots_[i];
    if (slot.ep.load(std::memory_order_relaxed) == nullptr) continue;
    if (locks_) slot.users.fetch_add(1, std::memory_order_seq_cst);
    if (Ep *ep = slot.ep.load(std::memory_order_seq_cst)) f(ep);
    if (locks_) slot.users.fetch_sub(1, std::memory_order_release);
  }
}

bool Pump::add(Ep *ep) {
  std::lock_guard<std::mutex> hold(changing_);
  Slot *free = nullptr;
  for (Slot &slot : slots_) {
    Ep *there = slot.ep.load();
    if (there == ep) return true;
    if (there == nullptr && free == nullptr) free = &slot;
  }
  if (free == nullptr) return false;
  epoll_event event{};
  event.events = EPOLLIN;
  for (const int fd : {ep->event_fd(), ep->timer_fd()}) {
    if (epoll_ >= 0 && fd >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return false;
  }
  free->ep.store(ep);
  const size_t used = static_cast<size_t>(free - slots_) + 1;
  if (used_.load() < used) used_.store(used);
  return true;
}

void Pump::remove(Ep *ep) {
  std::lock_guard<std::mutex> hold(changing_);
  for (Slot &slot : slots_) {
    if (slot.ep.load() != ep) continue;
    slot.ep.store(nullptr);
    while (slot.users.load() > 0) sched_yield();
    for (const int fd : {ep->event_fd(), ep->timer_fd()}) {
      if (epoll_ >= 0 && fd >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    }
  }
}

void Pump::offer() {
  const int64_t begun = now_ns();
  sched_yield();
  const uint32_t crowd = crowd_.load(std::memory_order_relaxed);
  const uint32_t next = now_ns() - begun > kTakenNs ? kCrowd : crowd > 0 ? crowd - 1 : 0;
  if (next != crowd) crowd_.store(next, std::memory_order_relaxed);
}

void Pump::progress() {
  /* What comes is seen below, whoever had the processor meanwhile. */
  const uint32_t idle = idle_.load(std::memory_order_relaxed);
  const bool offers = idle >= kOfferSoon && idle >= (crowd_.load(std::memory_order_relaxed) > 0 ? kOfferSoon : kOffer);
  if (offers) offer();
  uint32_t events = 0;
  each([&events](Ep *ep) { events += ep->progress(); });
  const uint32_t next = events > 0 ? 0 : offers ? 1 : idle + 1;
  if (next != idle) idle_.store(next, std::memory_order_relaxed);
}

void Pump::rest() {
  each([](Ep *ep) { ep->rest(); });
}

bool Pump::arm_held() {
  if (rung_) {
    /* They have not heard it yet, and may have something to see that nobody else has. */
    if (waiters_ > 0) return false;
    uint64_t count;
    (void)!::read(bell_, &count, sizeof count);
    rung_ = false;
  }
  armed_.store(true, std::memory_order_seq_cst);
  return true;
}

bool Pump::arm() {
  std::lock_guard<std::mutex> hold(bell_lock_);
  return arm_held();
}

bool Pump::enter() {
  std::lock_guard<std::mutex> hold(bell_lock_);
  if (!arm_held()) return false;
  ++waiters_;
  return true;
}

void Pump::leave() {
  std::lock_guard<std::mutex> hold(bell_lock_);
  --waiters_;
}

void Pump::ring() {
  std::lock_guard<std::mutex> hold(bell_lock_);
  armed_.store(false, std::memory_order_seq_cst);
  if (rung_ || bell_ < 0) return;
  const uint64_t one = 1;
  rung_ = ::write(bell_, &one, sizeof one) == sizeof one;
}

void Pump::sleep(int timeout) {
  pollfd fd{};
  fd.fd = epoll_;
  fd.events = POLLIN;
  (void)::poll(&fd, 1, timeout);
}

}  // namespace rdmat
