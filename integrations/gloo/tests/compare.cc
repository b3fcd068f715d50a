/* One program over two of Gloo's transports, side by side: two ranks, processes of their own, bound buffers.
 *
 *   gloo_compare --provider P [--ibverbs DEVICE[:GID_INDEX]] [--rounds N]
 *
 * Compares ours with Gloo's ibverbs on that device, or with Gloo's tcp. Half a round trip by size, and an allreduce of
 * 1 MiB; medians of the rounds, which alternate. Exit status 1: something came wrong. */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/ibverbs/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>

#include "meet.h"
#include "rdma_gloo/device.h"

static std::string provider = "auto", verbs;
static const size_t sizes[] = {8, 1024, 65536, 1 << 20};
enum { kSizes = 4, kPoints = kSizes + 1 };
struct Figures {
  double us[kPoints];
};

static std::shared_ptr<gloo::transport::Device> device(bool ours) {
  if (ours) {
    gloo::transport::rdma::attr attr;
    attr.provider = provider;
    return gloo::transport::rdma::CreateDevice(attr);
  }
  if (verbs.empty()) return gloo::transport::tcp::CreateDevice("localhost");
  size_t colon = verbs.find(':');
  gloo::transport::ibverbs::attr attr;
  attr.name = verbs.substr(0, colon);
  attr.port = 1;
  attr.index = colon == std::string::npos ? 0 : std::atoi(verbs.c_str() + colon + 1);
  return gloo::transport::ibverbs::CreateDevice(attr);
}

static double micros(std::chrono::steady_clock::duration d, int n) {
  return std::chrono::duration<double, std::micro>(d).count() / n;
}

static bool run(const std::string &dir, bool ours, int rank, Figures *figures) {
  Store store = std::make_shared<gloo::rendezvous::FileStore>(dir);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
  meet(*context, store, device(ours));
  auto &pair = context->getPair(1 - rank);
  bool right = true;
  for (int s = 0; s < kSizes; s++) {
    size_t n = sizes[s];
    std::vector<unsigned char> out(n), in(n);
    int slot = context->nextSlot();
    auto send = pair->createSendBuffer(slot, out.data(), n), recv = pair->createRecvBuffer(slot, in.data(), n);
    int turns = n > 100000 ? 30 : 200, warm = turns / 4;
    std::chrono::steady_clock::time_point begun;
    for (int i = -warm; i < turns; i++) {
      if (i == 0) begun = std::chrono::steady_clock::now();
      unsigned char mark = static_cast<unsigned char>(i);
      if (rank == 0) {
        std::memset(out.data(), mark, n);
        send->send(0, n);
        recv->waitRecv();
        send->waitSend();
      } else {
        recv->waitRecv();
        out = in; /* the next may come as soon as this one has left */
        send->send(0, n);
        send->waitSend();
      }
      const std::vector<unsigned char> &came = rank == 0 ? in : out;
      if (came[0] != mark || came[n - 1] != mark) {
        std::fprintf(stderr, "%s, rank %d: %zu bytes, turn %d: %d and %d came\n", ours ? "ours" : "Gloo's", rank, n, i,
                     came[0], came[n - 1]);
        right = false;
      }
    }
    figures->us[s] = micros(std::chrono::steady_clock::now() - begun, 2 * turns);
  }
  std::vector<float> v(1 << 18, 1);
  gloo::AllreduceRingChunked<float> allreduce(context, {v.data()}, static_cast<int>(v.size()));
  auto begun = std::chrono::steady_clock::now();
  int turns = 5;
  for (int i = 0; i < turns; i++) allreduce.run();
  figures->us[kSizes] = micros(std::chrono::steady_clock::now() - begun, turns);
  for (float x : v) right &= x == 32;
  if (!right) std::fprintf(stderr, "%s, rank %d: wrong, %f\n", ours ? "ours" : "Gloo's", rank, static_cast<double>(v[0]));
  /* Gloo's own want their last completions before they go. */
  usleep(200000);
  context->closeConnections();
  return right;
}

static bool round(bool ours, Figures *shared) {
  char dir[] = "/tmp/gloo-XXXXXX";
  if (!mkdtemp(dir)) return false;
  pid_t children[2];
  for (int rank = 0; rank < 2; rank++)
    if ((children[rank] = fork()) == 0) {
      Figures mine;
      bool right = false;
      try {
        right = run(dir, ours, rank, &mine);
      } catch (const std::exception &e) {
        std::fprintf(stderr, "%s, rank %d: %s\n", ours ? "ours" : "Gloo's", rank, e.what());
      }
      if (rank == 0) *shared = mine;
      _exit(right ? 0 : 1);
    }
  bool well = true;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    well &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return well && std::system(("rm -rf " + std::string(dir)).c_str()) == 0;
}

int main(int argc, char **argv) {
  int rounds = 5;
  for (int i = 1; i + 1 < argc; i++) {
    if (!std::strcmp(argv[i], "--provider")) provider = argv[i + 1];
    if (!std::strcmp(argv[i], "--ibverbs")) verbs = argv[i + 1];
    if (!std::strcmp(argv[i], "--rounds")) rounds = std::atoi(argv[i + 1]);
  }
  Figures *shared = static_cast<Figures *>(
      mmap(nullptr, sizeof(Figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<double> seen[2][kPoints];
  for (int r = 0; r < rounds; r++)
    for (int ours = 0; ours < 2; ours++) {
      if (!round(ours, shared)) return std::printf("0 passed, 1 failed, 0 skipped\n"), 1;
      for (int p = 0; p < kPoints; p++) seen[ours][p].push_back(shared->us[p]);
    }
  const char *names[kPoints] = {"8 B", "1 KiB", "64 KiB", "1 MiB", "allreduce 1 MiB"};
  const char *theirs = verbs.empty() ? "tcp" : "ibverbs";
  for (int p = 0; p < kPoints; p++) {
    double medians[2];
    for (int ours = 0; ours < 2; ours++) {
      std::sort(seen[ours][p].begin(), seen[ours][p].end());
      medians[ours] = seen[ours][p][static_cast<size_t>(rounds) / 2];
    }
    std::printf("%-16s Gloo's %s %10.1f us   ours (%s) %10.1f us   ratio %.2f\n", names[p], theirs, medians[0],
                provider.c_str(), medians[1], medians[1] / medians[0]);
  }
  std::printf("1 passed, 0 failed, 0 skipped\n");
  return 0;
}
