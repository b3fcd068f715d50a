/* Fabric, domain, address vector, memory region, queues and counters, as libfabric's structs with what is behind them. */
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "address.h"
#include "common.h"

namespace rdmat {

class Ep;

struct Fabric : fid_fabric {
  std::atomic<int> users{0};
};

/* What a queue or a counter drives and waits for, and a domain drives: its endpoints. */
class Pump {
 public:
  /* With `locks`, one thread may drive while another adds or removes. */
  explicit Pump(bool locks) : locks_(locks) {}
  ~Pump();
  /* FI_WAIT_NONE, FI_WAIT_UNSPEC or FI_WAIT_FD; an errno. */
  int open(fi_wait_obj wait);
  bool add(Ep *ep);
  /* When it returns, nobody drives it from here any more. */
  void remove(Ep *ep);
  /* Drives its endpoints once. After many times in which nothing came it offers the processor to others first. */
  void progress();
  bool waits() const { return epoll_ >= 0; }
  int fd() const { return epoll_; }
  /* Somebody is about to wait on the descriptor: the next signal() is heard. What came before is not: look again after this.
   * False: the bell still rings for threads that sleep; look again instead of waiting. */
  bool arm();
  /* The same, for a thread that goes to sleep() and then has to leave(). */
  bool enter();
  void leave();
  /* What was waited for may have come: all that wait look again. */
  void signal() {
    if (armed_.load(std::memory_order_seq_cst)) ring();
  }
  /* Rings whether or not somebody waits: for fi_cq_signal, and for what is left for others that wait. */
  void ring();
  /* Before a wait: endpoints look after what nobody may answer, and have the wait end when they have to again. */
  void rest();
  /* Sleeps until there is something to do, or the time (milliseconds, -1: none) is over. */
  void sleep(int timeout);

 private:
  struct Slot {
    std::atomic<Ep *> ep{nullptr};
    /* Threads that may be in it. */
    std::atomic<uint32_t> users{0};
  };
  template <typename F>
  void each(F f);

  const bool locks_;
  /* Held where slots change. */
  std::mutex changing_;
  Slot slots_[kEndpoints];
  std::atomic<size_t> used_{0};
  /* Turns in a row that found nothing, about. */
  std::atomic<uint32_t> idle_{0};
  /* Offers of the processor that are still made soon, since somebody took it. */
  std::atomic<uint32_t> crowd_{0};
  void offer();
  bool arm_held();
  int epoll_ = -1, bell_ = -1;
  /* The bell is quiet, and somebody may wait for it. It rings until who is about to wait silences it, so that once is enough for
   * all that wait now. */
  std::atomic<bool> armed_{false};
  std::mutex bell_lock_;
  bool rung_ = false;
  /* Threads between enter() and leave(). */
  unsigned waiters_ = 0;
};

/* Remote memory that one operation names. */
struct Span {
  uint64_t addr;
  uint64_t len;
  uint64_t key;
};

struct Domain;
class Cntr;

struct Mr : fid_mr {
  Domain *domain = nullptr;
  uint8_t *base = nullptr;
  size_t len = 0;
  uint64_t access = 0;
  /* It is being closed: its key is not free yet, but peers find nothing any more. Under the lock of the domain's regions. */
  bool closing = false;
  /* Counts what peers write into it. Set before peers know its key, or seen by the next of them. */
  std::atomic<Cntr *> writes{nullptr};
  /* Operations of peers that are under way in it. */
  std::atomic<uint64_t> users{0};
};

struct Domain : fid_domain {
  Domain(bool locks, bool thread) : locks(locks), thread(thread), pump(locks) {}

  Fabric *fabric = nullptr;
  const bool locks;
  /* FI_PROGRESS_AUTO: managers have a thread of their own. */
  const bool thread;
  /* Addresses of remote memory are those of the process that owns it, not offsets. */
  bool virt_addr = false;
  bool own_keys = false;
  std::atomic<int> users{0};
  Pump pump;

  std::mutex regions_lock;
  std::unordered_map<uint64_t, Mr *> regions;
  uint64_t next_key = 1;
  /* Atomic operations of all endpoints come one at a time. */
  std::mutex atomics;

  /* Where remote memory lies here, and its region, which is in use until `users` is counted down. Otherwise an errno. */
  int find(const Span &span, uint64_t access, uint8_t **at, Mr **region);
};

class Av : public fid_av {
 public:
  Av(Domain *domain, fi_av_type type) : domain(domain), type(type) {}

  Domain *const domain;
  const fi_av_type type;
  std::atomic<int> users{0};

  /* Makes its addresses known to an endpoint, now and later. */
  void attach(Ep *ep);
  void detach(Ep *ep);
  /* Of a name, which may be in it or not. */
  fi_addr_t find(const Address &address);
  bool address(fi_addr_t at, Address *out);
  /* Also of one that was removed: what is under way to it goes on. */
  bool was(fi_addr_t at, Address *out);

  int insert(const void *addresses, size_t count, fi_addr_t *out, uint64_t flags, void *context);
  int remove(const fi_addr_t *addresses, size_t count);

 private:
  struct Entry {
    Address address;
    unsigned uses;
  };
  std::mutex lock_;
  std::vector<Entry> entries_;
  std::unordered_map<Address, fi_addr_t, AddressHash> index_;
  std::vector<Ep *> eps_;
};

/* What one completion tells. */
struct Completion {
  void *context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
  uint64_t tag;
  fi_addr_t source;
};

class Cq : public fid_cq {
 public:
  Cq(Domain *domain, fi_cq_format format, fi_wait_obj wait)
      : domain(domain), format(format), wait(wait), pump(domain->locks), lock_(domain->locks) {}

  Domain *const domain;
  const fi_cq_format format;
  const fi_wait_obj wait;
  Pump pump;
  std::atomic<int> users{0};

  void push(const Completion &completion) {
    {
      Hold hold(lock_);
      Entry &entry = slot();
      static_cast<Completion &>(entry) = completion;
      entry.failed = false;
      one_more();
    }
    pump.signal();
  }
  void push_error(const Completion &completion, int err, rdma_code_t code, size_t olen);
  ssize_t read(void *buf, size_t count, fi_addr_t *sources);
  ssize_t read_error(fi_cq_err_entry *entry);
  ssize_t sread(void *buf, size_t count, fi_addr_t *sources, const void *cond, int timeout);
  int signal();
  bool empty();
  /* Before a wait on the descriptor: false if there is something already. */
  bool try_wait();

 private:
  struct Failure {
    size_t olen;
    int err;
    rdma_code_t code;
  };
  struct Entry : Completion {
    bool failed;
  };
  Entry &slot() {
    const size_t count = count_.load(std::memory_order_relaxed);
    if (count == ring_.size()) grow();
    return ring_[(head_ + count) & (ring_.size() - 1)];
  }
  void grow();
  /* With the lock held. Who is about to sleep sees it, or is seen. */
  void one_more() {
    const size_t count = count_.load(std::memory_order_relaxed) + 1;
    if (pump.waits())
      count_.store(count, std::memory_order_seq_cst);
    else
      count_.store(count, std::memory_order_release);
  }
  bool quiet();
  ssize_t take(void *buf, size_t count, fi_addr_t *sources);
  void put(void *buf, size_t index, const Completion &c) const;

  Lock lock_;
  /* A ring, of a power of two, which grows: operations are bounded where they begin. */
  std::vector<Entry> ring_ = std::vector<Entry>(256);
  size_t head_ = 0;
  std::atomic<size_t> count_{0};
  std::deque<Failure> failures_;
  std::atomic<bool> signalled_{false};
};

class Cntr : public fid_cntr {
 public:
  Cntr(Domain *domain, fi_wait_obj wait) : domain(domain), wait_obj(wait), pump(domain->locks) {}

  Domain *const domain;
  const fi_wait_obj wait_obj;
  Pump pump;
  std::atomic<int> users{0};
  std::atomic<uint64_t> value{0}, errors{0};
  /* What the application has read last. */
  std::atomic<uint64_t> value_read{0}, errors_read{0};
  /* Regions that it counts for. Their endpoints are any of the domain. */
  std::atomic<int> regions{0};

  void add(uint64_t n);
  void add_error(uint64_t n);
  int wait(uint64_t threshold, int timeout);
  void progress() {
    pump.progress();
    if (regions > 0) domain->pump.progress();
  }
  bool changed() const { return value != value_read || errors != errors_read; }
  bool try_wait();

 private:
  /* How long a wait may sleep at once. */
  int nap(int left) const;
};

int open_domain(fid_fabric *, fi_info *, fid_domain **, void *);
int open_eq(fid_fabric *, fi_eq_attr *, fid_eq **, void *);
int open_av(fid_domain *, fi_av_attr *, fid_av **, void *);
int open_cq(fid_domain *, fi_cq_attr *, fid_cq **, void *);
int open_cntr(fid_domain *, fi_cntr_attr *, fid_cntr **, void *);
int open_poll(fid_domain *, fi_poll_attr *, fid_poll **);
int open_ep(fid_domain *, fi_info *, fid_ep **, void *);
int query_atomic(fid_domain *, fi_datatype, fi_op, fi_atomic_attr *, uint64_t);
int reg(fid *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, fid_mr **, void *);
int regv(fid *, const iovec *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, fid_mr **, void *);
int regattr(fid *, const fi_mr_attr *, uint64_t, fid_mr **);
int try_wait(fid_fabric *, fid **, int);
bool event_queue_empty(fid *eq);

int get_info(uint32_t, const char *, const char *, uint64_t, const fi_info *, fi_info **);
int open_fabric(fi_fabric_attr *, fid_fabric **, void *);

}  // namespace rdmat
