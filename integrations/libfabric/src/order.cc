#include "order.h"

namespace rdmat {

namespace {

bool alike(const Request *a, const Request *b) {
  return a->wanted == b->wanted && a->ignore == b->ignore && a->comm == b->comm &&
         a->peer.load(std::memory_order_relaxed) == b->peer.load(std::memory_order_relaxed);
}

}  // namespace

uint32_t Order::place(const Request *r) {
  uint64_t h = r->wanted ^ r->ignore * 3 ^ r->peer.load(std::memory_order_relaxed) << 17 ^ r->comm;
  h *= 0x9e3779b97f4a7c15;
  return static_cast<uint32_t>(h >> 54);
}

Request *Order::first_like(const Request *r) const {
  for (Request *one = places_[r->place].first; one != nullptr; one = one->after) {
    if (alike(one, r)) return one;
  }
  return nullptr;
}

void Order::add(Request *r) {
  Place &p = places_[r->place];
  r->ordered = true;
  r->before = p.last;
  r->after = nullptr;
  (p.last != nullptr ? p.last->after : p.first) = r;
  p.last = r;
}

void Order::remove(Request *r) {
  Place &p = places_[r->place];
  (r->before != nullptr ? r->before->after : p.first) = r->after;
  (r->after != nullptr ? r->after->before : p.last) = r->before;
  r->ordered = false;
  if (r->held) --held_;
}

}  // namespace rdmat
