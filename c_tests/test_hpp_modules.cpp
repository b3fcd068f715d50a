/* The C++ layer in two modules of one process: what a plugin made is used and ended here, and the other way round. */
#include "hpp_module.hpp"
#include "hpp_check.hpp"
#include <dlfcn.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

static std::string provider = "loopback";
static const Maker *module;

static rdma::Manager make(const char *name) {
  return GET(rdma::Manager::create(rdma::Options().name(name).provider(provider).timeout_ms(20000)));
}
struct Ends {
  rdma::Manager ma = make("alpha"), mb = make("beta");
  rdma::Pair a = GET(rdma::Pair::create(ma, 1)), b = GET(rdma::Pair::create(mb, 0));
  Ends() {
    OK(a.connect(GET(b.address()), 0));
    OK(b.connect(GET(a.address()), 20000));
    OK(a.connect(GET(b.address()), 20000));
  }
};
/* What the module's callbacks hold, and how often they ran. */
struct Held {
  std::shared_ptr<int> count = std::make_shared<int>(0);
  bool freed() const { return count.use_count() == 1; }
};

/* The module's buffer ends here, the host's in the midst of it: each lets go of its own callback, and of no other. */
static void buffers() {
  Ends e;
  Held held;
  char from = 1, to[3] = "";
  std::atomic<int> heard{0};
  auto out = GET(e.a.send_buffer(1, &from, 1));
  auto mine = GET(e.b.recv_buffer(1, &to[0], 1, [&](const rdma::BufferEvent &event) {
    if (event.what == RDMA_BUFFER_RECEIVED) heard++;
  }));
  {
    auto theirs = GET(module->buffer(e.b, 2, &to[1], 1, held.count));
    auto more = GET(e.a.send_buffer(2, &from, 1));
    OK(more.send(0, 1));
    CHECK(soon([&] { return *held.count == 1; }));
    rdma::PairBuffer moved = std::move(theirs);
    CHECK(!held.freed());
  }
  CHECK(soon([&] { return held.freed(); }));
  OK(out.send(0, 1));
  CHECK(soon([&] { return heard == 1; }));
  {
    auto theirs = GET(module->buffer(e.b, 3, &to[2], 1, held.count));
    OK(mine.destroy());
    auto more = GET(e.a.send_buffer(3, &from, 1));
    OK(more.send(0, 1));
    CHECK(soon([&] { return *held.count == 2; }));
  }
  CHECK(soon([&] { return held.freed(); }));
}

/* More of the module's callbacks, of what is made there and ends here. */
static void others() {
  Held held;
  {
    rdma::Manager mine = make("mine"), theirs = GET(module->manager("theirs", provider.c_str(), held.count));
    CHECK(!held.freed());
    OK(mine.add_peer("theirs", GET(theirs.listen("127.0.0.1:0"))));
    OK(mine.connect("theirs", 20000));
    CHECK(mine.recv("theirs", "key", 1).status().code() == RDMA_NOT_FOUND && *held.count == 1);
    rdma::Messages messages(mine);
    rdma_peer_t peer = GET(messages.peer("theirs"));
    rdma::Messages at(theirs);
    CHECK(soon([&] { return at.peer("mine").ok(); }));
    char byte = 0;
    auto request = GET(module->receive(theirs, GET(at.peer("mine")), &byte, 1, held.count));
    OK(messages.send(peer, 1, 1, "x", 1));
    CHECK(soon([&] { return *held.count == 2; }) && byte == 'x');
    OK(module->room(mine, peer, held.count));
    CHECK(soon([&] { return *held.count == 3; }));
    theirs = rdma::Manager();
    CHECK(held.freed());
  }
  rdma::Store store = GET(module->store());
  OK(store.set("k", "v"));
  CHECK(GET(store.get("k")) == "v");
}

int main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i++)
    if (!std::strcmp(argv[i], "--provider")) provider = argv[i + 1];
  void *handle = dlopen(HPP_MODULE, RTLD_NOW | RTLD_LOCAL);
  if (!handle) fail(dlerror(), __FILE__, __LINE__);
  module = static_cast<const Maker *>(dlsym(handle, "hpp_module"));
  CHECK(module != nullptr);
  buffers();
  others();
  std::printf("cases: 2 passed, 0 failed, 0 skipped\n");
  return 0;
}
