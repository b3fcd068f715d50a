// A runtime that keeps its own rendezvous. The library asks it by the source callback; what is not
// there yet is answered when it is produced. One process produces, another one fetches.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <rdma_transport.hpp>
#include <thread>

namespace {
constexpr int kKeys = 200;
constexpr std::int64_t kSteps = 5;

[[noreturn]] void die(const char *what, const rdma::Status &s) {
  std::fprintf(stderr, "host_rendezvous: %s: %s\n", what, s.to_string().c_str());
  std::_Exit(1);
}
void must(const rdma::Status &s, const char *what) {
  if (!s.ok()) die(what, s);
}

std::string key_of(int i) { return "layer" + std::to_string(i) + "/activation"; }
std::vector<float> content_of(int i, std::int64_t step) {
  std::vector<float> v(static_cast<std::size_t>(1 + i * i));
  for (std::size_t k = 0; k < v.size(); k++) v[k] = static_cast<float>(i) + static_cast<float>(step) * 1000 + static_cast<float>(k);
  return v;
}

// The runtime's table: values that nobody has asked for, and askers whose value is still missing.
class Table {
 public:
  void put(std::int64_t step, const std::string &key, std::vector<float> value) {
    auto held = std::make_shared<std::vector<float>>(std::move(value));
    std::unique_lock<std::mutex> lock(mutex_);
    auto waiting = waiting_.find({step, key});
    if (waiting == waiting_.end()) {
      values_[{step, key}] = std::move(held);
      return;
    }
    rdma::Response response = waiting->second;
    waiting_.erase(waiting);
    late_++;
    lock.unlock();
    answer(response, std::move(held));
  }
  void ask(std::int64_t step, const std::string &key, rdma::Response response) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto there = values_.find({step, key});
    if (there == values_.end()) {
      waiting_.emplace(std::make_pair(step, key), response);
      return;
    }
    auto held = std::move(there->second);
    values_.erase(there);
    lock.unlock();
    answer(response, std::move(held));
  }
  int late() const { return late_; }
  void wait_answered(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    all_taken_.wait(lock, [&] { return taken_ >= count; });
  }

 private:
  using Key = std::pair<std::int64_t, std::string>;
  using Value = std::shared_ptr<std::vector<float>>;
  void answer(const rdma::Response &response, Value held) {
    const rdma::Tensor t(held->data(), held->size() * sizeof(float), {static_cast<std::int64_t>(held->size())}, 1);
    // The callback keeps the value alive until the library has read it.
    must(response.send(t, [this, held](const rdma::Status &s, const rdma::TransferInfo &) {
      must(s, "answer");
      std::lock_guard<std::mutex> lock(mutex_);
      taken_++;
      all_taken_.notify_all();
    }), "answer");
  }
  std::mutex mutex_;
  std::map<Key, Value> values_;
  std::map<Key, rdma::Response> waiting_;
  std::condition_variable all_taken_;
  int late_ = 0, taken_ = 0;
};

int produce(int announce, int finished) {
  Table table;
  auto m = rdma::Manager::create(rdma::Options().name("producer"));
  must(m.status(), "manager");
  must(m->set_source([&](rdma::Response response, std::string_view, std::string_view key, std::int64_t step) {
    table.ask(step, std::string(key), response);
  }), "source");
  auto address = m->listen("127.0.0.1:0");
  must(address.status(), "listen");
  if (write(announce, address->c_str(), address->size() + 1) < 0) return 1;
  std::mt19937 random(1);
  for (std::int64_t step = 0; step < kSteps; step++)
    for (int i = 0; i < kKeys; i++) {
      if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      table.put(step, key_of(i), content_of(i, step));
    }
  char end;
  if (read(finished, &end, 1) != 1) return 1;
  table.wait_answered(kKeys * kSteps);
  std::printf("producer: %d of %d requests came before their tensor\n", table.late(), static_cast<int>(kKeys * kSteps));
  return 0;
}

int fetch(const char *address, int finished, pid_t producer) {
  auto m = rdma::Manager::create(rdma::Options().name("consumer"));
  must(m.status(), "manager");
  must(m->add_peer("producer", address), "add_peer");
  for (std::int64_t step = 0; step < kSteps; step++) {
    std::vector<std::future<rdma::Result<rdma::Received>>> all;
    for (int i = 0; i < kKeys; i++) all.push_back(m->recv_future("producer", key_of(i), step));
    for (int i = 0; i < kKeys; i++) {
      auto got = all[static_cast<std::size_t>(i)].get();
      must(got.status(), "fetch");
      const auto want = content_of(i, step);
      if (got->tensor.nbytes() != want.size() * sizeof(float) ||
          std::memcmp(got->tensor.data(), want.data(), got->tensor.nbytes()) != 0)
        die("content", rdma::Status(RDMA_DATA_LOSS, key_of(i)));
    }
    std::printf("consumer: step %d, %d tensors, all right\n", static_cast<int>(step), kKeys);
  }
  // This manager stays until the producer knows that its last answers were taken.
  int status = 1;
  if (write(finished, "x", 1) != 1) return 1;
  waitpid(producer, &status, 0);
  return status ? 1 : 0;
}
}  // namespace

int main(int argc, char **argv) {
  static const char usage[] = "usage: host_rendezvous\nruns a producer and a consumer as processes of this machine\n";
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return std::fputs(usage, stdout), 0;
  if (argc > 1) return std::fprintf(stderr, "not an argument: '%s'\n%s", argv[1], usage), 2;
  int announce[2], finished[2];
  char address[256] = "";
  if (pipe(announce) != 0 || pipe(finished) != 0) return 1;
  pid_t producer = fork();  // before any manager exists
  if (producer == 0) {
    close(finished[1]);
    int rc = produce(announce[1], finished[0]);
    std::fflush(stdout);
    _exit(rc);
  }
  close(announce[1]);
  if (read(announce[0], address, sizeof address - 1) <= 0) return 1;
  return fetch(address, finished[1], producer);
}
