/* The C++ layer of pairs and buffers. */
#include <rdma_transport_pair.hpp>
#include "hpp_check.hpp"
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

static std::string provider = "loopback";

static rdma::Manager make(const char *name) {
  return GET(rdma::Manager::create(rdma::Options().name(name).provider(provider).timeout_ms(20000)));
}
struct Ends {
  rdma::Manager ma = make("alpha"), mb = make("beta");
  rdma::Pair a, b;
  Ends() { join(); }
  void join() { /* anew */
    a = GET(rdma::Pair::create(ma, 1));
    b = GET(rdma::Pair::create(mb, 0));
    OK(a.connect(GET(b.address()), 0));
    OK(b.connect(GET(a.address()), 20000));
    OK(a.connect(GET(b.address()), 20000));
    CHECK(GET(a.info()).state == RDMA_PAIR_CONNECTED && GET(b.info()).rank == 0);
  }
};

static void send_and_wait() {
  Ends e;
  char from[100], to[100] = "";
  std::memset(from, 7, sizeof from);
  rdma::PairBuffer out = GET(e.a.send_buffer(3, from, sizeof from)), in = GET(e.b.recv_buffer(3, to, sizeof to));
  OK(out.send(10, 50, 20));
  OK(in.wait_recv());
  OK(out.wait_send());
  CHECK(to[19] == 0 && to[20] == 7 && to[69] == 7 && to[70] == 0);
  CHECK(GET(in.test()).second == 0);
  CHECK(out.send(10, 500, 20).code() == RDMA_OUT_OF_RANGE);
  CHECK(in.wait_recv(1).code() == RDMA_DEADLINE_EXCEEDED);
  rdma::PairBuffer other = std::move(out), none;
  OK(other.send(0, 1));
  OK(in.wait_recv());
  other.destroy();
  CHECK(none.id() == 0 && other.id() == 0);
  e.b.close();
  CHECK(soon([&] { return GET(e.a.info()).state == RDMA_PAIR_BROKEN; }));
  CHECK(e.a.send_buffer(1, nullptr, 0).status().code() == RDMA_UNAVAILABLE);
}

static void callbacks() {
  Ends e;
  std::atomic<int> sent{0}, received{0}, broken{0};
  char from[8] = "", to[8];
  rdma::PairBuffer in, last;
  rdma::PairBuffer out = GET(e.a.send_buffer(1, from, 8, [&](const rdma::BufferEvent &event) {
    CHECK(event.what == RDMA_BUFFER_SENT && event.status.ok());
    sent++;
  }));
  in = GET(e.b.recv_buffer(1, to, 8, [&](const rdma::BufferEvent &event) {
    CHECK(event.what == RDMA_BUFFER_RECEIVED);
    if (++received == 10) in.destroy(); /* itself */
  }));
  last = GET(e.b.recv_buffer(2, to, 8, [&](const rdma::BufferEvent &event) {
    CHECK(event.what == RDMA_BUFFER_BROKEN && event.status.code() == RDMA_UNAVAILABLE);
    broken++;
  }));
  for (int i = 0; i < 10; i++) OK(out.send(0, 8));
  CHECK(soon([&] { return received == 10 && sent == 10; }));
  e.a.close();
  CHECK(soon([&] { return broken == 1; }));
}

/* Buffers that end themselves in their callbacks, one after the other: none hears what was meant for one before it. */
static void one_after_the_other() {
  Ends e;
  char from = 1, to = 0;
  auto held = std::make_shared<int>(0);
  std::mutex mutex;
  std::atomic<int> ended{0};
  for (int i = 0; i < 30; i++) {
    e.join(); /* such an end may break what was connected */
    rdma::PairBuffer in, out = GET(e.a.send_buffer(1, &from, 1));
    {
      std::lock_guard<std::mutex> lock(mutex); /* until `in` is the new one */
      in = GET(e.b.recv_buffer(1, &to, 1, [&, held, i](const rdma::BufferEvent &) {
        std::lock_guard<std::mutex> inside(mutex);
        CHECK(ended == i);
        OK(in.destroy());
        CHECK(!in);
        ended++;
      }));
      CHECK(in);
    }
    OK(out.send(0, 1));
    CHECK(soon([&] { return ended == i + 1; }));
  }
  e.join();
  CHECK(soon([&] { return held.use_count() == 1; }));
  /* An empty function is none: its arrivals are waited for. */
  rdma::PairBuffer in = GET(e.b.recv_buffer(2, &to, 1, rdma::BufferTold())), out = GET(e.a.send_buffer(2, &from, 1));
  OK(out.send(0, 1));
  OK(in.wait_recv());
}

/* What came before its buffer is told at once, perhaps while the call that makes it has not returned. */
static void early() {
  Ends e;
  char from = 1, to = 0;
  std::atomic<int> heard{0};
  for (int i = 0; i < 100; i++) {
    const std::uint64_t slot = static_cast<std::uint64_t>(i);
    rdma::PairBuffer out = GET(e.a.send_buffer(slot, &from, 1));
    OK(out.send(0, 1));
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    rdma::PairBuffer in = GET(e.b.recv_buffer(slot, &to, 1, [&](const rdma::BufferEvent &) { heard++; }));
    CHECK(soon([&] { return heard == i + 1; }));
  }
}

/* They end after their manager, and without one there are none. */
static void without_a_manager() {
  char byte = 0;
  auto held = std::make_shared<int>(0);
  auto told = [held](const rdma::BufferEvent &) {};
  rdma::Pair none;
  CHECK(!none && none.recv_buffer(1, &byte, 1, told).status().code() == RDMA_INVALID_ARGUMENT);
  rdma::Manager m = make("alone");
  rdma::Pair pair = GET(rdma::Pair::create(m, 1));
  {
    rdma::PairBuffer buffer = GET(pair.recv_buffer(1, &byte, 1, told));
    CHECK(pair.recv_buffer(1, &byte, 1, told).status().code() == RDMA_ALREADY_EXISTS && held.use_count() == 3);
    m = rdma::Manager();
    CHECK(pair && buffer && pair.recv_buffer(2, &byte, 1, told).status().code() == RDMA_FAILED_PRECONDITION);
  }
  CHECK(held.use_count() == 2);
}

static void unbound() {
  Ends e; /* whose managers know each other */
  rdma_peer_t alpha = GET(e.b.info()).peer, beta = GET(e.a.info()).peer;
  int from[4] = {1, 2, 3, 4}, to[4] = {0};
  rdma::UnboundBuffer a, none;
  a = GET(rdma::UnboundBuffer::create(e.ma, 2, to, sizeof to));
  {
    rdma::UnboundBuffer b = GET(rdma::UnboundBuffer::create(e.mb, 2, from, sizeof from));
    OK(a.recv(beta, 7, 0, 4));
    OK(a.recv({alpha, beta}, 8, 4, 4));
    OK(a.recv(std::vector<rdma_peer_t>{}, 9, 8, 4));
    for (int i = 0; i < 3; i++) {
      OK(b.send(alpha, 7u + static_cast<unsigned>(i), 4u * static_cast<unsigned>(i), 4));
      rdma::UnboundEnd in = a.wait_recv(), out = b.wait_send();
      CHECK(in && in.taken && in.peer == beta && in.slot == 7u + static_cast<unsigned>(i) && in.bytes == 4);
      CHECK(out && out.taken && out.peer == alpha && to[i] == from[i]);
    }
    CHECK(GET(b.test()).first == 0);
    CHECK(b.send(alpha, 1, 17, 0).code() == RDMA_OUT_OF_RANGE);
  }
  OK(a.abort_wait_send());
  rdma::UnboundEnd end = a.wait_send(RDMA_MSG_FOREVER);
  CHECK(!end && !end.taken && end.status.code() == RDMA_CANCELLED);
  OK(a.recv(beta, 7, 0, 4, 30));
  OK(a.cancel());
  rdma::UnboundEnd cancelled = a.wait_recv(RDMA_MSG_FOREVER);
  CHECK(!cancelled && cancelled.taken && cancelled.status.code() == RDMA_CANCELLED);
  OK(a.recv(beta, 7, 0, 4, 30));
  end = a.wait_recv(20000);
  CHECK(!end && end.taken && end.peer == beta && end.status.code() == RDMA_DEADLINE_EXCEEDED);
  std::thread other([&] { CHECK(a.wait_recv(RDMA_MSG_FOREVER).status.code() == RDMA_CANCELLED); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  OK(a.abort_wait_recv());
  other.join();
  OK(a.recv(beta, 7, 0, 4, RDMA_MSG_FOREVER)); /* ends with its buffer */
  none = std::move(a);
  CHECK(a.id() == 0 && !a && none.id() != 0 && none);
}

int main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i++)
    if (!std::strcmp(argv[i], "--provider")) provider = argv[i + 1];
  send_and_wait();
  callbacks();
  one_after_the_other();
  early();
  without_a_manager();
  unbound();
  std::printf("cases: 6 passed, 0 failed, 0 skipped\n");
  return 0;
}
