/* Poll sets, and fi_trywait. */
#include <algorithm>
#include <utility>

#include "objects.h"

namespace rdmat {

namespace {

struct Poll : fid_poll {
  Domain *domain = nullptr;
  std::mutex lock;
  std::vector<struct ::fid *> fids;
  /* Of counters: what was seen last. */
  std::unordered_map<struct ::fid *, uint64_t> seen;
};

Poll *of(fid_poll *poll) { return static_cast<Poll *>(poll); }

Cq *cq_of(fid *f) { return static_cast<Cq *>(reinterpret_cast<fid_cq *>(f)); }
Cntr *cntr_of(fid *f) { return static_cast<Cntr *>(reinterpret_cast<fid_cntr *>(f)); }

int close_poll(fid *f) {
  Poll *poll = of(reinterpret_cast<fid_poll *>(f));
  --poll->domain->users;
  delete poll;
  return 0;
}

/* Whether there is something in it. */
bool ready(Poll *poll, fid *f) {
  if (f->fclass == FI_CLASS_CQ) {
    Cq *cq = cq_of(f);
    if (cq->empty()) cq->pump.progress();
    return !cq->empty();
  }
  Cntr *cntr = cntr_of(f);
  cntr->progress();
  const uint64_t now = cntr->value + cntr->errors;
  uint64_t &seen = poll->seen[f];
  return std::exchange(seen, now) != now;
}

int poll_all(fid_poll *poll_fid, void **contexts, int count) {
  Poll *poll = of(poll_fid);
  std::lock_guard<std::mutex> hold(poll->lock);
  int found = 0;
  for (fid *f : poll->fids) {
    if (found == count) break;
    if (ready(poll, f)) contexts[found++] = f->context;
  }
  return found;
}

int poll_add(fid_poll *poll_fid, fid *f, uint64_t) {
  if (f->fclass != FI_CLASS_CQ && f->fclass != FI_CLASS_CNTR) return -FI_EINVAL;
  Poll *poll = of(poll_fid);
  std::lock_guard<std::mutex> hold(poll->lock);
  if (std::find(poll->fids.begin(), poll->fids.end(), f) == poll->fids.end()) poll->fids.push_back(f);
  return 0;
}

int poll_del(fid_poll *poll_fid, fid *f, uint64_t) {
  Poll *poll = of(poll_fid);
  std::lock_guard<std::mutex> hold(poll->lock);
  const auto at = std::find(poll->fids.begin(), poll->fids.end(), f);
  if (at == poll->fids.end()) return -FI_EINVAL;
  poll->fids.erase(at);
  poll->seen.erase(f);
  return 0;
}

}  // namespace

int open_poll(fid_domain *domain, fi_poll_attr *, fid_poll **out) {
  static fi_ops fids = [] {
    fi_ops t{};
    t.size = sizeof t;
    t.close = close_poll;
    t.bind = no_int;
    t.control = no_int;
    t.ops_open = no_int;
    return t;
  }();
  static fi_ops_poll table = [] {
    fi_ops_poll t{};
    t.size = sizeof t;
    t.poll = poll_all;
    t.poll_add = poll_add;
    t.poll_del = poll_del;
    return t;
  }();
  auto poll = std::make_unique<Poll>();
  poll->fid = {FI_CLASS_POLL, nullptr, &fids};
  poll->ops = &table;
  poll->domain = static_cast<Domain *>(domain);
  ++poll->domain->users;
  *out = poll.release();
  return 0;
}

int try_wait(fid_fabric *, fid **fids, int count) {
  for (int i = 0; i < count; ++i) {
    switch (fids[i]->fclass) {
      case FI_CLASS_CQ:
        if (!cq_of(fids[i])->pump.waits()) return -FI_EINVAL;
        if (!cq_of(fids[i])->try_wait()) return -FI_EAGAIN;
        break;
      case FI_CLASS_CNTR:
        if (!cntr_of(fids[i])->pump.waits()) return -FI_EINVAL;
        if (!cntr_of(fids[i])->try_wait()) return -FI_EAGAIN;
        break;
      case FI_CLASS_EQ:
        if (!event_queue_empty(fids[i])) return -FI_EAGAIN;
        break;
      default:
        return -FI_EINVAL;
    }
  }
  return 0;
}

}  // namespace rdmat
