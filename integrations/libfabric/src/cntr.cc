#include <sched.h>

#include "clock.h"
#include "objects.h"

namespace rdmat {

void Cntr::add(uint64_t n) {
  value.fetch_add(n, std::memory_order_seq_cst);
  pump.signal();
}

void Cntr::add_error(uint64_t n) {
  errors.fetch_add(n, std::memory_order_seq_cst);
  pump.signal();
}

bool Cntr::try_wait() {
  if (changed() || !pump.arm()) return false;
  progress();
  pump.rest();
  if (!changed()) return true;
  pump.ring();
  return false;
}

namespace {

/* Nothing rings for what endpoints do that are not bound to the counter: it looks again. */
constexpr int kNap = 1;

}  // namespace

int Cntr::nap(int left) const {
  const bool rings = regions == 0 || domain->thread;
  return rings || (left >= 0 && left < kNap) ? left : kNap;
}

/* Until the counter is there; an error that is counted meanwhile ends the wait. */
int Cntr::wait(uint64_t threshold, int timeout) {
  if (wait_obj == FI_WAIT_NONE) return -FI_ENOSYS;
  const int64_t until = deadline(timeout);
  const uint64_t failed = errors;
  for (;;) {
    progress();
    if (value >= threshold) return 0;
    if (errors != failed) return -FI_EAVAIL;
    const int left = remaining(until);
    if (left == 0) return -FI_ETIMEDOUT;
    if (!pump.enter()) {
      sched_yield();
      continue;
    }
    progress();
    pump.rest();
    if (value < threshold && errors == failed) pump.sleep(nap(left));
    pump.leave();
  }
}

namespace {

Cntr *of(fid_cntr *cntr) { return static_cast<Cntr *>(cntr); }
Cntr *of(fid *f) { return of(reinterpret_cast<fid_cntr *>(f)); }

int close_cntr(fid *f) {
  Cntr *cntr = of(f);
  if (cntr->users > 0) return -FI_EBUSY;
  --cntr->domain->users;
  delete cntr;
  return 0;
}

int control_cntr(fid *f, int command, void *arg) {
  Cntr *cntr = of(f);
  switch (command) {
    case FI_GETWAIT:
      if (cntr->wait_obj != FI_WAIT_FD) return -FI_ENODATA;
      *static_cast<int *>(arg) = cntr->pump.fd();
      return 0;
    case FI_GETWAITOBJ:
      *static_cast<fi_wait_obj *>(arg) = cntr->wait_obj;
      return 0;
    default:
      return -FI_ENOSYS;
  }
}

fi_ops *fid_table() {
  static fi_ops table = [] {
    fi_ops t{};
    t.size = sizeof t;
    t.close = close_cntr;
    t.bind = no_int;
    t.control = control_cntr;
    t.ops_open = no_int;
    return t;
  }();
  return &table;
}

uint64_t read_value(fid_cntr *cntr) {
  of(cntr)->progress();
  /* Who reads nothing but the value is told of an error once. */
  of(cntr)->errors_read = of(cntr)->errors.load();
  return of(cntr)->value_read = of(cntr)->value.load();
}

fi_ops_cntr *cntr_table() {
  static fi_ops_cntr table = [] {
    fi_ops_cntr t{};
    t.size = sizeof t;
    t.read = read_value;
    t.readerr = [](fid_cntr *cntr) -> uint64_t { return of(cntr)->errors_read = of(cntr)->errors.load(); };
    t.add = [](fid_cntr *cntr, uint64_t n) { return of(cntr)->add(n), 0; };
    t.set = [](fid_cntr *cntr, uint64_t n) {
      of(cntr)->value = n;
      of(cntr)->pump.signal();
      return 0;
    };
    t.wait = [](fid_cntr *cntr, uint64_t threshold, int timeout) { return of(cntr)->wait(threshold, timeout); };
    t.adderr = [](fid_cntr *cntr, uint64_t n) { return of(cntr)->add_error(n), 0; };
    t.seterr = [](fid_cntr *cntr, uint64_t n) {
      of(cntr)->errors = n;
      of(cntr)->pump.signal();
      return 0;
    };
    return t;
  }();
  return &table;
}

}  // namespace

int open_cntr(fid_domain *domain_fid, fi_cntr_attr *attr, fid_cntr **out, void *context) {
  Domain *domain = static_cast<Domain *>(domain_fid);
  if (attr != nullptr && attr->events != FI_CNTR_EVENTS_COMP) return -FI_ENOSYS;
  const fi_wait_obj wait = attr != nullptr ? attr->wait_obj : FI_WAIT_UNSPEC;
  if (wait != FI_WAIT_NONE && wait != FI_WAIT_UNSPEC && wait != FI_WAIT_FD) return -FI_ENOSYS;
  auto cntr = std::make_unique<Cntr>(domain, wait);
  if (const int err = cntr->pump.open(wait)) return -err;
  cntr->fid = {FI_CLASS_CNTR, context, fid_table()};
  cntr->ops = cntr_table();
  ++domain->users;
  *out = cntr.release();
  return 0;
}

}  // namespace rdmat
