/* What the tests of the C++ layer check with: what does not hold ends the process, and says where. */
#ifndef HPP_CHECK_HPP
#define HPP_CHECK_HPP

#include <rdma_transport_types.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#define CHECK(cond) ((cond) ? void() : fail(#cond, __FILE__, __LINE__))
#define OK(expr) check((expr), __FILE__, __LINE__)
/* The value of a result that has to be there. */
#define GET(expr) get((expr), __FILE__, __LINE__)

inline void fail(const char *what, const char *file, int line) {
  const char *name = std::strrchr(file, '/');
  std::fprintf(stderr, "    FAILED at %s:%d: %s\n", name ? name + 1 : file, line, what);
  std::_Exit(1);
}
inline void check(const rdma::Status &s, const char *file, int line) {
  if (!s.ok()) fail(s.to_string().c_str(), file, line);
}
template <class T>
T get(rdma::Result<T> r, const char *file, int line) {
  check(r.status(), file, line);
  return *std::move(r);
}
template <class F>
bool soon(F done) {
  for (int i = 0; i < 20000 && !done(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return done();
}

#endif
