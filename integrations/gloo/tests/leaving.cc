/* Buffers, and whole ranks, that go when they have sent and before the other end has looked: over Gloo's tcp what they have sent lies in
 * the socket by then, and its algorithms end without a waitSend. And a rank that is killed. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>

#include "behaviour.h"

/* The other end opens its slot when this has had time to go. */
static void open_late(const std::atomic<bool> &going) {
  while (!going) std::this_thread::yield();
  std::this_thread::sleep_for(Millis(100));
}

void buffers_that_go() {
  for (size_t size : {size_t(1), size_t(4096), size_t(100000)}) {
    std::atomic<bool> going{false};
    spawn(2, [&](const Context &c) {
      std::vector<char> memory(size, static_cast<char>('a' + c->rank));
      if (c->rank == 0) {
        auto buffer = c->getPair(1)->createSendBuffer(1, memory.data(), size);
        for (int i = 0; i < 3; i++) buffer->send(0, size);
        going = true;
        buffer.reset();
        /* The memory is this rank's again, and so is the slot. */
        std::fill(memory.begin(), memory.end(), 'z');
        auto next = c->getPair(1)->createSendBuffer(1, memory.data(), size);
        next->send(0, size);
        next->waitSend();
      } else {
        open_late(going);
        auto buffer = c->getPair(0)->createRecvBuffer(1, memory.data(), size);
        for (int i = 0; i < 4; i++) buffer->waitRecv();
        CHECK(memory == std::vector<char>(size, 'z'));
      }
      barrier(c);
    });
  }
}

void ranks_that_go() {
  for (bool before : {true, false}) {
    std::atomic<bool> going{false}, open{false};
    spawn(2, [&](const Context &c) {
      char memory = c->rank == 0 ? 'a' : 'b';
      if (c->rank == 0) {
        while (before && !open) std::this_thread::yield();
        c->getPair(1)->createSendBuffer(1, &memory, 1)->send(0, 1);
        going = true;
      } else {
        if (!before) open_late(going);
        auto buffer = c->getPair(0)->createRecvBuffer(1, &memory, 1);
        open = true;
        if (before) open_late(going);
        buffer->waitRecv();
        CHECK(memory == 'a');
      }
    });
  }
}

/* Whether a pair is connected; Debian's Gloo does not ask, and then this is what it has to be. */
template <class Pair>
static auto connected(Pair &pair, bool) -> decltype(pair.isConnected()) {
  return pair.isConnected();
}
template <class Pair>
static bool connected(Pair &, int wanted) {
  return wanted != 0;
}

void pairs_that_go() {
  spawn(2, [](const Context &c) {
    barrier(c);
    /* It has begun to connect, and goes on by itself. */
    while (!connected(*c->getPair(1 - c->rank), true)) std::this_thread::yield();
    barrier(c);
    c->getPair(1 - c->rank)->close();
    CHECK(!connected(*c->getPair(1 - c->rank), false));
  });
}

/* The rank that gets nothing of the sum has ended when it has given its part. */
void ranks_that_get_nothing() {
  for (int size : {3, 5, 7}) {
    for (int i = 0; i < 20; i++) {
      spawn(size, [&](const Context &c) {
        std::vector<float> values(size - 1, static_cast<float>(c->rank + 1));
        std::vector<int> counts(size, 1);
        counts[size - 1] = 0;
        {
          gloo::ReduceScatterHalvingDoubling<float> algorithm(c, {values.data()}, size - 1, counts);
          algorithm.run();
        }
        CHECK(c->rank == size - 1 || values[0] == static_cast<float>(size * (size + 1) / 2));
        barrier(c);
      }, Millis(10000));
    }
  }
}

/* What a rank hears in its waits for one that is killed, each of them: in time, and not of a time-out. */
static bool hears_of(const Context &c, int gone) {
  const size_t size = 64 << 20; /* more than sockets hold, whose sends end without a receiver */
  int value = 0;
  std::vector<char> memory(size, 'x');
  auto notice = c->getPair(gone)->createRecvBuffer(1, &value, sizeof value);
  auto bound = c->getPair(gone)->createSendBuffer(2, memory.data(), size);
  auto buffer = c->createUnboundBuffer(&value, sizeof value), big = c->createUnboundBuffer(memory.data(), size);
  barrier(c);
  const auto begun = std::chrono::steady_clock::now();
  const std::pair<const char *, std::function<void()>> waits[] = {
      {"waitSend", [&] { bound->send(0, size); bound->waitSend(); }},
      {"waitRecv", [&] { notice->waitRecv(); }},
      {"waitRecv of an unbound one", [&] { buffer->recv(gone, 7); buffer->waitRecv(); }},
      {"waitSend of an unbound one", [&] { big->send(gone, 8); big->waitSend(); }}};
  bool all = true;
  for (const auto &wait : waits) {
    const std::string error = error_of(wait.second);
    const bool quick = std::chrono::steady_clock::now() - begun < std::chrono::seconds(30);
    if (error.empty() || says(error, "Timed out") || !quick) {
      std::fprintf(stderr, "rank %d, %s: '%s'\n", c->rank, wait.first, error.c_str());
      all = false;
    }
  }
  return all;
}

/* A rank that is killed: the others hear of it in their waits, and do not hang. */
void killed_rank() {
  char dir[] = "/tmp/gloo-XXXXXX";
  CHECK(mkdtemp(dir));
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; rank++) {
    pid_t child = fork();
    if (child == 0) {
      Store store = std::make_shared<gloo::rendezvous::FileStore>(dir);
      Context c = join(store, rank, 3);
      if (rank != 2) _exit(hears_of(c, 2) ? 0 : 1);
      barrier(c);
      std::this_thread::sleep_for(Millis(200)); /* the others have begun */
      raise(SIGKILL);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < 3; rank++) {
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    CHECK(rank == 2 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(std::system(("rm -rf " + std::string(dir)).c_str()) == 0);
}

/* Ranks that end as soon as they have their sum, without a word to anybody: what they had sent is there. */
void ranks_that_exit() {
  const int size = 4, rounds = 20;
  for (int round = 0; round < rounds; round++) {
    char dir[] = "/tmp/gloo-XXXXXX";
    CHECK(mkdtemp(dir));
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; rank++) {
      pid_t child = fork();
      if (child == 0) {
        Store store = std::make_shared<gloo::rendezvous::FileStore>(dir);
        Context c = join(store, rank, size);
        barrier(c);
        std::vector<int> values(1000, rank + 1);
        const std::string error = error_of([&] {
          gloo::AllreduceOptions options(c);
          options.setOutput(values.data(), values.size());
          options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
          options.setReduceFunction(
              [](void *to, const void *a, const void *b, size_t n) { gloo::sum<int>(to, a, b, n); });
          gloo::allreduce(options);
        });
        if (!error.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, error.c_str());
        _exit(error.empty() && values == std::vector<int>(values.size(), size * (size + 1) / 2) ? 0 : 1);
      }
      children.push_back(child);
    }
    for (pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(std::system(("rm -rf " + std::string(dir)).c_str()) == 0);
  }
}
