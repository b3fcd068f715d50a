#include "transfer.hpp"

#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <iostream>
#include <rdma_transport.hpp>
#include <stdexcept>

#include "safetensors.hpp"

namespace {
// Step 0 carries the header, 1 each tensor by its name, 2 the checksums, 3 the end.
enum Step : std::int64_t { kHeader, kTensor, kChecksum, kFarewell };
constexpr std::size_t kWindow = 16;  // receives under way at once

void must(const rdma::Status &s, const std::string &what) {
  if (!s.ok()) throw std::runtime_error(what + ": " + s.to_string());
}

std::uint32_t checksum(const char *data, std::uint64_t n) {
  uLong crc = crc32_z(0, nullptr, 0);
  return static_cast<std::uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef *>(data), n));
}

rdma::Manager manager(const std::string &name, const Settings &s) {
  rdma::Options o;
  o.name(name);
  if (!s.provider.empty()) o.provider(s.provider);
  auto m = rdma::Manager::create(o);
  must(m.status(), "manager");
  return *std::move(m);
}

class Bar {
 public:
  explicit Bar(std::uint64_t total) : total_(total), tty_(isatty(1)) {}
  void show(std::uint64_t done, std::size_t tensors, std::size_t of, bool last) {
    auto now = Clock::now();
    double pause = tty_ ? 0.1 : 1.0;
    if (!last && std::chrono::duration<double>(now - shown_).count() < pause) return;
    shown_ = now;
    double seconds = std::chrono::duration<double>(now - start_).count() + 1e-9;
    double rate = static_cast<double>(done) / seconds;
    double left = rate > 0 ? static_cast<double>(total_ - done) / rate : 0;
    int filled = total_ ? static_cast<int>(30 * done / total_) : 30;
    std::printf("%s[%.*s%.*s] %zu of %zu tensors  %.1f of %.1f MB  %.2f GB/s  %.1f s left%s", tty_ ? "\r" : "", filled,
                "##############################", 30 - filled, "..............................", tensors, of,
                static_cast<double>(done) / 1e6, static_cast<double>(total_) / 1e6, rate / 1e9, left,
                tty_ && !last ? "   " : "\n");
    std::fflush(stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::uint64_t total_;
  bool tty_;
  Clock::time_point start_ = Clock::now(), shown_{};
};

rdma::Tensor tensor(const FileTensor &t, const char *file) {
  return rdma::Tensor(file + t.offset, t.nbytes, t.shape, dtype_number(t.dtype));
}
}  // namespace

int serve(const Settings &s) {
  const Mapping file = Mapping::open(s.file);
  const auto tensors = parse_header(file.data(), file.size(), file.size());
  std::vector<std::uint32_t> sums;
  for (const auto &t : tensors) sums.push_back(checksum(file.data() + t.offset, t.nbytes));
  const std::uint64_t size = file.size();

  auto m = manager("sender", s);
  auto address = m.listen(s.listen);
  must(address.status(), "listen");
  std::string line = *address + "\n";
  if (s.announce_fd >= 0) {
    if (write(s.announce_fd, line.data(), line.size()) < 0) throw std::runtime_error("announce");
    close(s.announce_fd);
  } else {
    std::cout << "sender: " << tensors.size() << " tensors at " << line << std::flush;
  }
  // Straight from the mapped file: nothing is copied here.
  must(m.send("size", kHeader, rdma::Tensor(&size, sizeof size)), "send");
  must(m.send("header", kHeader, rdma::Tensor(file.data(), header_size(file.data(), file.size()))), "send");
  for (const auto &t : tensors) must(m.send(t.name, kTensor, tensor(t, file.data())), t.name);
  must(m.send("checksums", kChecksum, rdma::Tensor(sums.data(), sums.size() * 4)), "send");
  // The last tensor is fetched when everything has been checked; then the receiver says goodbye.
  std::promise<rdma::Status> fetched;
  must(m.send("done", kFarewell, rdma::Tensor::dead(),
              [&](const rdma::Status &status, const rdma::TransferInfo &) { fetched.set_value(status); }),
       "send");
  must(fetched.get_future().get(), "the receiver");
  m.recv("receiver", "goodbye", kFarewell);  // or it is gone already: as good
  return 0;
}

int pull(const Settings &s) {
  Mapping out = Mapping::memory(0);  // before the manager: it outlives every receive that writes into it
  auto m = manager("receiver", s);
  must(m.add_peer("sender", s.from), "add_peer");
  auto size = m.recv("sender", "size", kHeader);
  must(size.status(), "size");
  auto header = m.recv("sender", "header", kHeader);
  must(header.status(), "header");
  std::uint64_t file_size = 0;
  if (size->tensor.nbytes() != sizeof file_size) throw std::runtime_error("size: not 8 bytes");
  std::memcpy(&file_size, size->tensor.data(), sizeof file_size);
  const char *text = static_cast<const char *>(header->tensor.data());
  const std::uint64_t text_size = header->tensor.nbytes();
  if (header_size(text, text_size) != text_size) throw std::runtime_error("header: something follows it");
  const auto tensors = parse_header(text, text_size, file_size);
  out = s.out.empty() ? Mapping::memory(file_size) : Mapping::create(s.out, file_size);
  std::memcpy(out.data(), text, text_size);

  std::uint64_t total = 0;
  for (const auto &t : tensors) total += t.nbytes;
  Bar bar(total);
  std::uint64_t done = 0;
  std::vector<std::future<rdma::Result<rdma::Received>>> pending;
  for (std::size_t i = 0; i < tensors.size(); i++) {
    for (; pending.size() < tensors.size() && pending.size() < i + kWindow;) {
      const FileTensor &next = tensors[pending.size()];
      rdma::RecvOptions into;  // each tensor arrives at its place in the file
      into.dst = out.data() + next.offset;
      into.dst_len = next.nbytes;
      pending.push_back(m.recv_future("sender", next.name, kTensor, into));
    }
    auto got = pending[i].get();
    must(got.status(), tensors[i].name);
    if (got->tensor.nbytes() != tensors[i].nbytes) throw std::runtime_error(tensors[i].name + ": another size");
    done += tensors[i].nbytes;
    bar.show(done, i + 1, tensors.size(), i + 1 == tensors.size());
  }
  auto sums = m.recv("sender", "checksums", kChecksum);
  must(sums.status(), "checksums");
  if (sums->tensor.nbytes() != tensors.size() * 4) throw std::runtime_error("checksums: another number");
  for (std::size_t i = 0; i < tensors.size(); i++) {
    std::uint32_t want = 0;
    std::memcpy(&want, static_cast<const char *>(sums->tensor.data()) + 4 * i, 4);
    if (checksum(out.data() + tensors[i].offset, tensors[i].nbytes) != want)
      throw std::runtime_error(tensors[i].name + ": the checksum is wrong");
  }
  auto info = m.peer_info("sender");
  must(m.recv("sender", "done", kFarewell).status(), "done");
  std::promise<rdma::Status> heard;
  must(m.send("goodbye", kFarewell, rdma::Tensor::dead(),
              [&](const rdma::Status &status, const rdma::TransferInfo &) { heard.set_value(status); }, 5000),
       "goodbye");
  heard.get_future().wait();
  std::cout << "receiver: " << tensors.size() << " tensors over " << (info ? info->provider : "?")
            << ", every checksum right" << std::endl;
  return 0;
}
