/* What the tests of the behaviour share: ranks as threads, and how they fail. */
#ifndef RDMA_GLOO_TESTS_BEHAVIOUR_H
#define RDMA_GLOO_TESTS_BEHAVIOUR_H

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include "rdma_gloo/device.h"

#include "meet.h"

#define CHECK(cond) ((cond) ? void() : fail(#cond, __FILE__, __LINE__))
[[noreturn]] inline void fail(const char *what, const char *file, int line) {
  std::fprintf(stderr, "    FAILED at %s:%d: %s\n", file, line, what);
  std::_Exit(1);
}

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Millis = std::chrono::milliseconds;
/* Of all contexts here; "gloo" is Gloo's own tcp. */
extern std::string provider;
/* attr::synchronousSends of those that are made from now on. */
extern bool synchronous;

inline std::shared_ptr<gloo::transport::Device> device() {
  if (provider == "gloo") return gloo::transport::tcp::CreateDevice("localhost");
  gloo::transport::rdma::attr attr;
  attr.provider = provider;
  attr.synchronousSends = synchronous;
  return gloo::transport::rdma::CreateDevice(attr);
}

inline Context join(const Store &store, int rank, int size, Millis timeout = Millis(60000)) {
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(timeout);
  meet(*context, store, device());
  return context;
}

inline void spawn(int size, const std::function<void(const Context &)> &body, Millis timeout = Millis(60000)) {
  Store store = std::make_shared<gloo::rendezvous::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] { body(join(store, rank, size, timeout)); });
  for (std::thread &thread : threads) thread.join();
}

inline void barrier(const Context &c) {
  gloo::BarrierOptions o(c);
  gloo::barrier(o);
}

template <class F>
static std::string error_of(F f) {
  try {
    f();
  } catch (const gloo::IoException &e) {
    return e.what();
  }
  return "";
}

inline bool says(const std::string &error, const char *what) { return error.find(what) != std::string::npos; }

/* Tests of buffers and contexts that go while something is under way (leaving.cc). */
void buffers_that_go();
void ranks_that_go();
void pairs_that_go();
void ranks_that_get_nothing();
void killed_rank();
void ranks_that_exit();

#endif
