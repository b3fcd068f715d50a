/* The monotonic clock; deadlines in milliseconds of it. */
#pragma once

#include <ctime>

#include "common.h"

namespace rdmat {

inline int64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
}

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

/* When a wait of so many milliseconds is over; negative: never, which is -1. */
inline int64_t deadline(int timeout) { return timeout < 0 ? -1 : now_ms() + timeout; }

/* What is left until then, -1 for ever. */
inline int remaining(int64_t until) {
  if (until < 0) return -1;
  const int64_t left = until - now_ms();
  return left > 0 ? static_cast<int>(left) : 0;
}

}  // namespace rdmat
