/* What an algorithm of Gloo takes over one transport, ranks as processes.
 *
 *   gloo_speed tcp|tcp-busy|shm|rdma-tcp exchange|ring|halving RANKS SECONDS BYTES...; prints bytes,microseconds
 *
 * tcp: Gloo's own, tcp-busy: with setSync(true, true); shm, rdma-tcp: ours. Each point is a batch of that many seconds; the batch before
 * it was the warm-up. See bench/gloo. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/pairwise_exchange.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "meet.h"
#include "rdma_gloo/device.h"

namespace {

enum { kMostRounds = 100000 };

/* What the ranks share. */
struct Page {
  pthread_barrier_t all;
  int next; /* rank 0 says how many rounds are next; 0: that was it */
};

struct Setup {
  std::string transport, what;
  int ranks;
  double seconds;
  std::vector<size_t> sizes;
};

std::shared_ptr<gloo::transport::Device> Device(const std::string &transport) {
  if (transport == "tcp" || transport == "tcp-busy") return gloo::transport::tcp::CreateDevice("localhost");
  gloo::transport::rdma::attr attr;
  if (transport != "shm" && transport != "rdma-tcp") throw std::runtime_error("no transport " + transport);
  attr.provider = transport == "shm" ? "shm" : "tcp";
  return gloo::transport::rdma::CreateDevice(attr);
}

std::unique_ptr<gloo::Algorithm> Algorithm(const std::string &what, const std::shared_ptr<gloo::Context> &context,
                                           std::vector<float> &data, size_t bytes) {
  std::unique_ptr<gloo::Algorithm> it;
  int count = static_cast<int>(bytes / sizeof(float));
  if (what == "exchange") it.reset(new gloo::PairwiseExchange(context, static_cast<int>(bytes), 1));
  if (what == "ring") it.reset(new gloo::AllreduceRingChunked<float>(context, {data.data()}, count));
  if (what == "halving") it.reset(new gloo::AllreduceHalvingDoubling<float>(context, {data.data()}, count));
  if (!it) throw std::runtime_error("no algorithm " + what);
  return it;
}

/* Seconds of one round, at rank 0: batches grow until one takes long enough. */
double Measure(gloo::Algorithm &algorithm, Page *page, int rank, double seconds) {
  double took = 0;
  for (int batch = 1, next = 0;; batch = next) {
    pthread_barrier_wait(&page->all);
    auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; i++) algorithm.run();
    took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    const bool enough = took >= seconds || batch >= kMostRounds;
    if (rank == 0) page->next = enough ? 0 : batch * (took < seconds / 16 ? 8 : 2);
    pthread_barrier_wait(&page->all);
    next = page->next;
    if (next == 0) return took / batch;
  }
}

void Rank(const Setup &setup, const std::string &dir, Page *page, int rank) {
  Store store = std::make_shared<gloo::rendezvous::FileStore>(dir);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, setup.ranks);
  meet(*context, store, Device(setup.transport));
  if (setup.transport == "tcp-busy")
    for (int other = 0; other < setup.ranks; other++)
      if (other != rank) context->getPair(other)->setSync(true, true);
  for (size_t bytes : setup.sizes) {
    std::vector<float> data(bytes / sizeof(float), 1);
    auto algorithm = Algorithm(setup.what, context, data, bytes);
    algorithm->run();
    if (setup.what != "exchange")
      for (float x : data)
        if (x != static_cast<float>(setup.ranks)) throw std::runtime_error("a wrong sum");
    std::fill(data.begin(), data.end(), 0.f); /* sums stay what they are */
    double each = Measure(*algorithm, page, rank, setup.seconds);
    if (rank == 0) std::printf("%zu,%.3f\n", bytes, each * 1e6), std::fflush(stdout);
  }
  pthread_barrier_wait(&page->all);
  context->closeConnections();
}

int Run(const Setup &setup) {
  char dir[] = "/tmp/gloo-XXXXXX";
  if (!mkdtemp(dir)) return 1;
  Page *page = static_cast<Page *>(mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&page->all, &attr, static_cast<unsigned>(setup.ranks));
  std::vector<pid_t> children;
  for (int rank = 0; rank < setup.ranks; rank++) {
    pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        Rank(setup, dir, page, rank);
        _exit(0);
      } catch (const std::exception &e) {
        std::fprintf(stderr, "gloo_speed: %s, rank %d: %s\n", setup.transport.c_str(), rank, e.what());
        _exit(1);
      }
    }
    children.push_back(child);
  }
  bool well = true;
  for (size_t i = 0; well && i < children.size(); i++) {
    int status = 0;
    well = wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  /* One that failed leaves the others waiting: they end with this process. */
  return std::system(("rm -rf " + std::string(dir)).c_str()) == 0 && well ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: gloo_speed tcp|tcp-busy|shm|rdma-tcp exchange|ring|halving RANKS SECONDS BYTES...\n");
    return 2;
  }
  Setup setup{argv[1], argv[2], std::atoi(argv[3]), std::atof(argv[4]), {}};
  for (int i = 5; i < argc; i++) setup.sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  return Run(setup);
}
