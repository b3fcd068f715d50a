#include <sched.h>

#include <cstring>

#include "clock.h"
#include "objects.h"

namespace rdmat {

namespace {

Cq *of(fid_cq *cq) { return static_cast<Cq *>(cq); }
Cq *of(fid *f) { return of(reinterpret_cast<fid_cq *>(f)); }


}  // namespace

/* It is full. */
void Cq::grow() {
  const size_t count = ring_.size();
  std::vector<Entry> larger(count * 2);
  for (size_t i = 0; i < count; ++i) larger[i] = ring_[(head_ + i) & (count - 1)];
  ring_.swap(larger);
  head_ = 0;
}

void Cq::push_error(const Completion &completion, int err, rdma_code_t code, size_t olen) {
  {
    Hold hold(lock_);
    Entry &entry = slot();
    static_cast<Completion &>(entry) = completion;
    entry.failed = true;
    failures_.push_back({olen, err, code});
    one_more();
  }
  pump.signal();
}

void Cq::put(void *buf, size_t index, const Completion &c) const {
  switch (format) {
    case FI_CQ_FORMAT_MSG:
      static_cast<fi_cq_msg_entry *>(buf)[index] = {c.context, c.flags, c.len};
      break;
    case FI_CQ_FORMAT_DATA:
      static_cast<fi_cq_data_entry *>(buf)[index] = {c.context, c.flags, c.len, c.buf, c.data};
      break;
    case FI_CQ_FORMAT_TAGGED:
      static_cast<fi_cq_tagged_entry *>(buf)[index] = {c.context, c.flags, c.len, c.buf, c.data, c.tag};
      break;
    default:
      static_cast<fi_cq_entry *>(buf)[index] = {c.context};
      break;
  }
}

/* What is there; 0 if nothing. */
ssize_t Cq::take(void *buf, size_t count, fi_addr_t *sources) {
  if (count_.load(std::memory_order_acquire) == 0) return 0;
  Hold hold(lock_);
  const size_t there = count_.load(std::memory_order_relaxed);
  size_t taken = 0;
  for (; taken < count && taken < there; ++taken) {
    const Entry &entry = ring_[head_];
    if (entry.failed) {
      if (taken == 0) return -FI_EAVAIL;
      break;
    }
    put(buf, taken, entry);
    if (sources != nullptr) sources[taken] = entry.source;
    head_ = (head_ + 1) & (ring_.size() - 1);
  }
  count_.store(there - taken, std::memory_order_relaxed);
  return static_cast<ssize_t>(taken);
}

ssize_t Cq::read(void *buf, size_t count, fi_addr_t *sources) {
  if (count == 0) {
    pump.progress();
    return -FI_EAGAIN;
  }
  ssize_t got = take(buf, count, sources);
  if (got == 0) {
    pump.progress();
    got = take(buf, count, sources);
  }
  return got == 0 ? -FI_EAGAIN : got;
}

ssize_t Cq::read_error(fi_cq_err_entry *entry) {
  Hold hold(lock_);
  if (count_.load(std::memory_order_relaxed) == 0 || !ring_[head_].failed) return -FI_EAGAIN;
  const Completion &c = ring_[head_];
  const Failure failure = failures_.front();
  failures_.pop_front();
  /* err_data is neither given nor written: the application may have put a buffer of its own there. */
  entry->op_context = c.context;
  entry->flags = c.flags;
  entry->len = c.len;
  entry->buf = c.buf;
  entry->data = c.data;
  entry->tag = c.tag;
  entry->olen = failure.olen;
  entry->err = failure.err;
  entry->prov_errno = failure.code;
  entry->err_data_size = 0;
  head_ = (head_ + 1) & (ring_.size() - 1);
  count_.store(count_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  return 1;
}

bool Cq::empty() { return count_.load(std::memory_order_seq_cst) == 0; }

/* Whether a wait would have nothing to see, once the pump is armed. Others that wait see the rest of what is there. */
bool Cq::quiet() {
  pump.progress();
  pump.rest();
  if (empty() && !signalled_.load()) return true;
  pump.ring();
  return false;
}

bool Cq::try_wait() {
  /* A signal ends one wait. */
  return !signalled_.exchange(false) && empty() && pump.arm() && quiet();
}

ssize_t Cq::sread(void *buf, size_t count, fi_addr_t *sources, const void *, int timeout) {
  if (!pump.waits()) return -FI_ENOSYS;
  const int64_t until = deadline(timeout);
  for (;;) {
    const ssize_t got = read(buf, count, sources);
    if (got != -FI_EAGAIN) return got;
    if (signalled_.exchange(false)) return -FI_EAGAIN;
    const int left = remaining(until);
    if (left == 0) return -FI_EAGAIN;
    if (!pump.enter()) {
      sched_yield();
      continue;
    }
    if (quiet()) pump.sleep(left);
    pump.leave();
  }
}

int Cq::signal() {
  if (!pump.waits()) return -FI_ENOSYS;
  signalled_.store(true);
  pump.ring();
  return 0;
}

namespace {

int close_cq(fid *f) {
  Cq *cq = of(f);
  if (cq->users > 0) return -FI_EBUSY;
  --cq->domain->users;
  delete cq;
  return 0;
}

int control_cq(fid *f, int command, void *arg) {
  Cq *cq = of(f);
  switch (command) {
    case FI_GETWAIT:
      if (cq->wait != FI_WAIT_FD) return -FI_ENODATA;
      *static_cast<int *>(arg) = cq->pump.fd();
      return 0;
    case FI_GETWAITOBJ:
      *static_cast<fi_wait_obj *>(arg) = cq->wait;
      return 0;
    default:
      return -FI_ENOSYS;
  }
}

const char *error_text(fid_cq *, int code, const void *, char *buf, size_t len) {
  const char *name = rdma_code_name(code);
  if (buf != nullptr && len > 0) {
    std::strncpy(buf, name, len - 1);
    buf[len - 1] = '\0';
  }
  return name;
}

fi_ops *fid_table() {
  static fi_ops table = [] {
    fi_ops t{};
    t.size = sizeof t;
    t.close = close_cq;
    t.bind = no_int;
    t.control = control_cq;
    t.ops_open = no_int;
    return t;
  }();
  return &table;
}

fi_ops_cq *cq_table() {
  static fi_ops_cq table = [] {
    fi_ops_cq t{};
    t.size = sizeof t;
    t.read = [](fid_cq *cq, void *buf, size_t count) { return of(cq)->read(buf, count, nullptr); };
    t.readfrom = [](fid_cq *cq, void *buf, size_t count, fi_addr_t *from) { return of(cq)->read(buf, count, from); };
    t.readerr = [](fid_cq *cq, fi_cq_err_entry *entry, uint64_t) { return of(cq)->read_error(entry); };
    t.sread = [](fid_cq *cq, void *buf, size_t count, const void *cond, int timeout) {
      return of(cq)->sread(buf, count, nullptr, cond, timeout);
    };
    t.sreadfrom = [](fid_cq *cq, void *buf, size_t count, fi_addr_t *from, const void *cond, int timeout) {
      return of(cq)->sread(buf, count, from, cond, timeout);
    };
    t.signal = [](fid_cq *cq) { return of(cq)->signal(); };
    t.strerror = error_text;
    return t;
  }();
  return &table;
}

}  // namespace

int open_cq(fid_domain *domain_fid, fi_cq_attr *attr, fid_cq **out, void *context) {
  Domain *domain = static_cast<Domain *>(domain_fid);
  const fi_wait_obj wait = attr != nullptr ? attr->wait_obj : FI_WAIT_NONE;
  fi_cq_format format = attr != nullptr ? attr->format : FI_CQ_FORMAT_UNSPEC;
  if (wait != FI_WAIT_NONE && wait != FI_WAIT_UNSPEC && wait != FI_WAIT_FD) return -FI_ENOSYS;
  if (format > FI_CQ_FORMAT_TAGGED) return -FI_ENOSYS;
  if (format == FI_CQ_FORMAT_UNSPEC) format = FI_CQ_FORMAT_CONTEXT;
  if (attr != nullptr) attr->format = format;
  auto cq = std::make_unique<Cq>(domain, format, wait);
  if (const int err = cq->pump.open(wait)) return -err;
  cq->fid = {FI_CLASS_CQ, context, fid_table()};
  cq->ops = cq_table();
  ++domain->users;
  *out = cq.release();
  return 0;
}

}  // namespace rdmat
