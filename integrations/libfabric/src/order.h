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

  /* Behind those that ask for the same. */
  void add(Request *r);
  void remove(Request *r);
  /* The first that asks for the same as `r`; NULL: none waits. */
  Request *first_like(const Request *r) const {
    return waiting_ == 0 ? nullptr : first_like(r, place(r));
  }

 private:
  static constexpr size_t kPlaces = 1024;
  struct Place {
    Request *first = nullptr, *last = nullptr;
  };
  static size_t place(const Request *r);
  Request *first_like(const Request *r, size_t at) const;

  Place places_[kPlaces];
  size_t waiting_ = 0;
};

}  // namespace rdmat
