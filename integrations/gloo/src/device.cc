#include "rdma_gloo/device.h"

#include <cstdio>
#include <random>

#include "context.h"
#include "worker.h"

namespace gloo {
namespace transport {
namespace rdma {

std::string LastError() {
  std::string text(rdma_last_error(nullptr, 0), '\0');
  if (!text.empty()) rdma_last_error(&text[0], text.size() + 1);
  return text;
}

void FailTimedOut() { GLOO_THROW_IO_EXCEPTION("Application timeout caused pair closure"); }

void Fail(rdma_code_t code, const std::string &what) {
  GLOO_THROW_IO_EXCEPTION(what, ": ", rdma_code_name(code), ": ", LastError());
}

Worker::Worker(const attr &attr) : synchronous(attr.synchronousSends) {
  /* Short and unlike any other: it is a part of every address. */
  std::random_device random;
  char name[32];
  std::snprintf(name, sizeof name, "g%08x%08x", static_cast<unsigned>(random()), static_cast<unsigned>(random()));
  rdma_mgr_options_t options;
  Check(rdma_mgr_options_init(&options, sizeof options), "rdma_mgr_options_init");
  options.name = name;
  options.provider = attr.provider.c_str();
  options.listen = attr.listen.c_str();
  options.allow_remote = attr.allowRemote;
  if (!attr.secret.empty()) {
    options.secret = attr.secret.data();
    options.secret_len = attr.secret.size();
  }
  Check(rdma_mgr_create(&options, &mgr_), "rdma_mgr_create");
}

Worker::~Worker() { rdma_mgr_destroy(mgr_); }

void Worker::sending(rdma_pair_t pair) {
  std::lock_guard<std::mutex> lock(mutex_);
  sending_[pair] = ++sends_;
}

void Worker::settle(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  std::map<rdma_pair_t, uint64_t> pairs;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pairs = sending_;
  }
  for (const auto &sent : pairs) {
    rdma_pair_info_t info{};
    info.struct_size = sizeof info;
    while (rdma_pair_info(mgr_, sent.first, &info) == RDMA_OK && info.reading > 0) {
      rdma_mgr_wait(mgr_, 10);
      if (timeout != kNoTimeout && std::chrono::steady_clock::now() > until)
        GLOO_THROW_IO_EXCEPTION("Timed out: ", info.reading, " sends to rank ", info.rank, " after ", timeout.count(), "ms");
    }
    /* Others may wait for it as well, or have sent more since. */
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sending_.find(sent.first);
    if (found != sending_.end() && found->second == sent.second) sending_.erase(found);
  }
}

namespace {

class DeviceImpl : public ::gloo::transport::Device {
 public:
  explicit DeviceImpl(attr attr) : attr_(std::move(attr)) {
    /* What is wrong with the attributes is said now. */
    Worker probe(attr_);
  }
  std::string str() const override { return "rdma, listen=" + attr_.listen + ", provider=" + attr_.provider; }
  const std::string &getPCIBusID() const override { return none_; }
  std::shared_ptr<::gloo::transport::Context> createContext(int rank, int size) override {
    return std::make_shared<Context>(worker(), rank, size);
  }

 private:
  /* One context at a time has the port that was asked for, others any: the address of a pair says which. */
  std::shared_ptr<Worker> worker() {
    std::lock_guard<std::mutex> lock(mutex_);
    attr mine = attr_;
    if (!first_.expired()) {
      const size_t colon = mine.listen.rfind(':');
      if (colon != std::string::npos) mine.listen.replace(colon + 1, std::string::npos, "0");
      return std::make_shared<Worker>(mine);
    }
    auto worker = std::make_shared<Worker>(mine);
    first_ = worker;
    return worker;
  }

  const attr attr_;
  std::mutex mutex_;
  std::weak_ptr<Worker> first_;
  const std::string none_;
};

}  // namespace

std::shared_ptr<::gloo::transport::Device> CreateDevice(const attr &attr) {
  return std::make_shared<DeviceImpl>(attr);
}

}  // namespace rdma
}  // namespace transport
}  // namespace gloo
