/* Event queues: nothing here makes events, so they hold what the application writes. */
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "objects.h"

namespace rdmat {

namespace {

struct Eq : fid_eq {
  struct Event {
    uint32_t event;
    std::vector<uint8_t> bytes;
  };
  Fabric *fabric = nullptr;
  fi_wait_obj wait = FI_WAIT_NONE;
  int bell = -1;
  std::mutex lock;
  std::deque<Event> events;

  ~Eq() {
    if (bell >= 0) ::close(bell);
  }
};

Eq *of(fid_eq *eq) { return static_cast<Eq *>(eq); }
Eq *of(fid *f) { return of(reinterpret_cast<fid_eq *>(f)); }

int close_eq(fid *f) {
  --of(f)->fabric->users;
  delete of(f);
  return 0;
}

int control_eq(fid *f, int command, void *arg) {
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj *>(arg) = of(f)->wait;
    return 0;
  }
  if (command != FI_GETWAIT) return -FI_ENOSYS;
  if (of(f)->wait != FI_WAIT_FD) return -FI_ENODATA;
  *static_cast<int *>(arg) = of(f)->bell;
  return 0;
}

ssize_t read_event(fid_eq *eq_fid, uint32_t *event, void *buf, size_t len, uint64_t flags) {
  Eq *eq = of(eq_fid);
  std::lock_guard<std::mutex> hold(eq->lock);
  if (eq->events.empty()) return -FI_EAGAIN;
  const Eq::Event &first = eq->events.front();
  if (first.bytes.size() > len) return -FI_ETOOSMALL;
  *event = first.event;
  const size_t size = first.bytes.size();
  if (size > 0) std::memcpy(buf, first.bytes.data(), size);
  if (!(flags & FI_PEEK)) {
    eq->events.pop_front();
    /* The bell counts events. */
    uint64_t one;
    (void)!::read(eq->bell, &one, sizeof one);
  }
  return static_cast<ssize_t>(size);
}

ssize_t write_event(fid_eq *eq_fid, uint32_t event, const void *buf, size_t len, uint64_t) {
  Eq *eq = of(eq_fid);
  std::lock_guard<std::mutex> hold(eq->lock);
  if (eq->events.size() >= kQueue) return -FI_EAGAIN;
  const uint8_t *bytes = static_cast<const uint8_t *>(buf);
  eq->events.push_back({event, std::vector<uint8_t>(bytes, bytes + len)});
  const uint64_t one = 1;
  (void)!::write(eq->bell, &one, sizeof one);
  return static_cast<ssize_t>(len);
}

ssize_t wait_event(fid_eq *eq, uint32_t *event, void *buf, size_t len, int timeout, uint64_t flags) {
  if (of(eq)->wait == FI_WAIT_NONE) return -FI_ENOSYS;
  const ssize_t got = read_event(eq, event, buf, len, flags);
  if (got != -FI_EAGAIN) return got;
  pollfd fd{};
  fd.fd = of(eq)->bell;
  fd.events = POLLIN;
  if (::poll(&fd, 1, timeout) < 0) return -errno;
  return read_event(eq, event, buf, len, flags);
}

fi_ops *fid_table() {
  static fi_ops table = [] {
    fi_ops t{};
    t.size = sizeof t;
    t.close = close_eq;
    t.bind = no_int;
    t.control = control_eq;
    t.ops_open = no_int;
    return t;
  }();
  return &table;
}

fi_ops_eq *eq_table() {
  static fi_ops_eq table = [] {
    fi_ops_eq t{};
    t.size = sizeof t;
    t.read = read_event;
    t.readerr = [](fid_eq *, fi_eq_err_entry *, uint64_t) -> ssize_t { return -FI_EAGAIN; };
    t.write = write_event;
    t.sread = wait_event;
    t.strerror = [](fid_eq *, int code, const void *, char *, size_t) { return rdma_code_name(code); };
    return t;
  }();
  return &table;
}

}  // namespace

bool event_queue_empty(fid *eq) {
  std::lock_guard<std::mutex> hold(of(eq)->lock);
  return of(eq)->events.empty();
}

int open_eq(fid_fabric *fabric, fi_eq_attr *attr, fid_eq **out, void *context) {
  const fi_wait_obj wait = attr != nullptr ? attr->wait_obj : FI_WAIT_UNSPEC;
  if (wait != FI_WAIT_NONE && wait != FI_WAIT_UNSPEC && wait != FI_WAIT_FD) return -FI_ENOSYS;
  auto eq = std::make_unique<Eq>();
  eq->wait = wait;
  eq->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  if (eq->bell < 0) return -errno;
  eq->fid = {FI_CLASS_EQ, context, fid_table()};
  eq->ops = eq_table();
  eq->fabric = static_cast<Fabric *>(fabric);
  ++eq->fabric->users;
  *out = eq.release();
  return 0;
}

}  // namespace rdmat
