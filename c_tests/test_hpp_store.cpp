/* The C++ layer of stores and meshes. */
#include <rdma_transport_msg.hpp>
#include <rdma_transport_store.hpp>
#include "hpp_check.hpp"
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <unistd.h>

using rdma::Store;

static void values(const Store &one, const Store &other) {
  OK(one.set("k", "value"));
  CHECK(GET(other.get("k")) == "value");
  const std::string large(100000, 'l');
  OK(one.multi_set({"a", "b", "c"}, {large, "", large + "x"}));
  CHECK((GET(other.multi_get({"a", "b", "c"})) == std::vector<std::string>{large, "", large + "x"}));
  CHECK(GET(other.get("a")) == large);
  const rdma::Status uneven = one.multi_set({"a"}, {});
  CHECK(uneven.code() == RDMA_INVALID_ARGUMENT);
  CHECK(uneven.message() == "Store::multi_set: 1 keys and 0 values are given, allowed are as many values as keys");
  OK(other.wait({"a", "b"}));
  CHECK(other.wait({"a", "none"}, 10).code() == RDMA_DEADLINE_EXCEEDED);
  CHECK(other.get("none", RDMA_STORE_NOW).status().code() == RDMA_NOT_FOUND);
  CHECK(GET(one.check({"a", "b"})) && !GET(one.check({"a", "none"})));
  CHECK(GET(one.add("n", 5)) == 5 && GET(other.add("n", -7)) == -2);
  const std::string expected = "value";
  CHECK(GET(one.compare_set("new", nullptr, large)).set());
  rdma::Compared c = GET(one.compare_set("new", &expected, ""));
  CHECK(!c.set() && c.result == RDMA_STORE_DIFFERS && c.there == large);
  CHECK(GET(one.compare_set("none", &expected, "")).result == RDMA_STORE_ABSENT);
  CHECK(GET(one.remove("k")) && !GET(one.remove("k")));
}

static void views() {
  Store all = GET(Store::memory());
  Store job = GET(all.prefix("job"));
  {
    Store leased = GET(job.lease(60000));
    OK(leased.set("k", "v"));
    CHECK(GET(all.get("job/k")) == "v");
  }
  CHECK(!GET(all.check({"job/k"})));
  OK(all.close());
  CHECK(all.set("k", "v").code() == RDMA_INVALID_ARGUMENT);
  OK(job.set("k", "v"));
  Store none;
  CHECK(none.get("k").status().code() == RDMA_INVALID_ARGUMENT);
  CHECK(Store::file("/nonexistent/a/b").status().code() == RDMA_NOT_FOUND);
  CHECK(Store::redis("nowhere").status().code() == RDMA_INVALID_ARGUMENT);
}

/* ---- stores of the application's ---- */
static std::function<void()> inside;
static rdma_code_t own_set(const char *, size_t, const void *, size_t, int64_t, void *) {
  if (inside) inside();
  return RDMA_OK;
}
static rdma_code_t own_get(const char *, size_t, int64_t, rdma_store_give_fn, void *, void *) { return RDMA_OUT_OF_RANGE; }
static Store own() {
  rdma_store_ops_t ops{};
  ops.struct_size = sizeof ops;
  ops.set = own_set, ops.get = own_get;
  return GET(Store::custom(ops, nullptr));
}

/* Its code is not taken for that of a buffer which is too small, again and again. */
static void own_codes() {
  Store store = own();
  CHECK(store.get("k", 1000).status().code() == RDMA_OUT_OF_RANGE);
  CHECK(store.multi_get({"k", "l"}, 1000).status().code() == RDMA_OUT_OF_RANGE);
}

/* What is destroyed inside a callback ends all the same, though nobody makes or ends another. */
static void ends_inside() {
  Store memory = GET(Store::memory()), store = own(), lease = GET(memory.lease(60000));
  OK(lease.set("leased", "v"));
  inside = [&] {
    CHECK(lease.close().code() == RDMA_FAILED_PRECONDITION);
    lease = Store();
  };
  OK(store.set("k", "v"));
  inside = nullptr;
  for (int i = 0; i < 6000 && GET(memory.check({"leased"})); i++) usleep(10000);
  CHECK(!GET(memory.check({"leased"})));
  inside = [&] { store = Store(); }; /* itself, while it is in use */
  OK(store.set("k", "v"));
  inside = nullptr;
}

static void ranks(const std::string &provider) {
  std::string bound;
  rdma::StoreOptions secret;
  secret.secret = "sesame";
  Store served = GET(Store::serve("127.0.0.1:0", &bound, secret));
  std::thread other([&] {
    rdma::Manager mgr = GET(rdma::Manager::create(rdma::Options().name("one").provider(provider)));
    rdma::Mesh mesh = GET(rdma::Mesh::connect(mgr, GET(Store::tcp(bound, secret)), 1, 2));
    rdma::Messages messages(mgr);
    int n = 0;
    OK(messages.recv(GET(mesh.peer(0)), 1, 1, RDMA_MSG_TAG_MASK, &n, sizeof n).status);
    CHECK(n == 7 && GET(mesh.rank(GET(mesh.peer(0)))) == 0);
  });
  rdma::Manager mgr = GET(rdma::Manager::create(rdma::Options().name("zero").provider(provider)));
  rdma::MeshOptions full;
  full.full = true;
  rdma::Mesh mesh = GET(rdma::Mesh::connect(mgr, served, 0, 2, full));
  rdma::Messages messages(mgr);
  const int n = 7;
  OK(messages.send(GET(mesh.peer(1)), 1, 1, &n, sizeof n));
  CHECK(mesh.peer(2).status().code() == RDMA_INVALID_ARGUMENT);
  CHECK(rdma::Mesh().peer(0).status().code() == RDMA_INVALID_ARGUMENT);
  other.join();
}

/* C would end them there, and mean another file or address. */
static void texts_with_a_nul() {
  const std::string cut("/tmp\0 and more", 14);
  for (const auto &made : {std::make_pair("path", Store::file(cut).status()), std::make_pair("address", Store::serve(cut).status()),
                           std::make_pair("address", Store::tcp(cut).status()), std::make_pair("address", Store::redis(cut).status())}) {
    CHECK(made.second.code() == RDMA_INVALID_ARGUMENT);
    CHECK(made.second.message().find(": " + std::string(made.first) + " of 14 bytes has a NUL at 4") == made.second.message().find(": "));
    CHECK(made.second.message().find("Store::") == 0);
  }
}

/* One that was given reaches C, which refuses it: an empty file with the secret would serve everybody. */
static void empty_secret() {
  rdma::StoreOptions options;
  CHECK(!options.secret);
  options.secret = "";
  options.allow_remote = true;
  CHECK(options.secret);
  for (const rdma::Status &made : {Store::serve("127.0.0.1:0", nullptr, options).status(), Store::tcp("127.0.0.1:1", options).status(),
                                   Store::redis("127.0.0.1:1", options).status()})
    CHECK(made.code() == RDMA_INVALID_ARGUMENT && made.message().find("options.secret_len is 0") != std::string::npos);
  options.secret = std::string("better");
  Store store = GET(Store::serve("127.0.0.1:0", nullptr, options));
  CHECK(store && !Store() && !rdma::Mesh());
}

int main(int argc, char **argv) {
  const std::string provider = argc > 2 ? argv[2] : "loopback";
  Store memory = GET(Store::memory());
  values(memory, memory);
  std::string bound;
  Store served = GET(Store::serve("127.0.0.1:0", &bound));
  values(served, GET(Store::tcp(bound)));
  views();
  own_codes();
  texts_with_a_nul();
  empty_secret();
  ends_inside();
  ranks(provider);
  std::printf("cases: 8 passed, 0 failed, 0 skipped\n");
  return 0;
}
