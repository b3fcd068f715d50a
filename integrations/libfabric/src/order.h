/* The order in which receives are told of. A message meets the first of the receives that ask for the same, so a receive
 * that has its message while one before it, which asked for the same, has not ended, means that that one is met, too:
 * its content is longer and still on its way. It is waited for: MPI's one-sided operations over messages work on what
 * comes in the order of the completions. */
#pragma once

#include "request.h"

namespace rdmat {

class Order {
 public:
  explicit Order(bool locks) : lock(locks) {}
  /* Held by who calls the functions below; and from the beginning of a receive until it is in here. */
  Lock lock;

  /* Where what asks for the same is. Before all of the others. */
  void find_place(Request *r) const { r->place = place(r); }
  /* Behind those that ask for the same. */
  void add(Request *r);
  void remove(Request *r);
  /* The first that asks for the same as `r`; NULL: none waits. */
  Request *first_like(const Request *r) const;
  /* It has ended, and waits to be told of. */
  void hold(Request *r) {
    r->held = true;
    ++held_;
  }
  /* Whether there are such. */
  bool holds() const { return held_ > 0; }

 private:
  static constexpr size_t kPlaces = 1024;
  struct Place {
    Request *first = nullptr, *last = nullptr;
  };
  static uint32_t place(const Request *r);

  Place places_[kPlaces];
  size_t held_ = 0;
};

}  // namespace rdmat
