#include "context.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpudirect.h"
#include "memory.h"
#include "shared_pool.h"
#include "source.h"

namespace rdma_tf {
namespace {

// TensorFlow cancels what takes too long; the library's own deadline is a backstop unless RDMA_TIMEOUT_MS sets it.
constexpr int64_t kTimeoutMillis = 7LL * 24 * 3600 * 1000;

// Every live context. Never destroyed: contexts may outlive the static objects of this library.
struct Registry {
  std::mutex mu;
  std::vector<std::weak_ptr<Context>> contexts;
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

std::vector<std::shared_ptr<Context>> LiveContexts() {
  const std::lock_guard<std::mutex> lock(registry().mu);
  std::vector<std::shared_ptr<Context>> live;
  for (const auto& weak : registry().contexts) {
    if (auto context = weak.lock()) live.push_back(std::move(context));
  }
  return live;
}

void Register(const std::shared_ptr<Context>& context) {
  const std::lock_guard<std::mutex> lock(registry().mu);
  auto& all = registry().contexts;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& weak) { return weak.expired(); }), all.end());
  all.push_back(context);
}

bool IsLoopback(absl::string_view host) {
  return host.empty() || host == "localhost" || host == "::1" || host == "[::1]" || absl::StartsWith(host, "127.");
}

std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + '"';
}

}  // namespace

Context::Context(std::string name, const tensorflow::WorkerEnv* env, VerbsWorker* worker)
    : name_(std::move(name)),
      patience_(Patience::FromEnv()),
      env_(env),
      worker_(worker),
      peers_(new Peers(patience_)) {}

Status Context::Create(const std::string& name, const std::string& host, const tensorflow::WorkerEnv* env,
                       VerbsWorker* worker, std::shared_ptr<Watch> watch, std::shared_ptr<Context>* out) {
  std::shared_ptr<Context> context(new Context(name, env, worker));
  const Status status = context->Start(host);
  if (!status.ok()) return status;
  context->watch_ = std::move(watch);
  if (context->watch_ != nullptr) context->watch_->Start(context);
  Register(context);
  *out = std::move(context);
  return Status();
}

Status Context::Start(const std::string& host) {
  rdma_mgr_options_t options;
  rdma_code_t code = rdma_mgr_options_init(&options, sizeof options);
  if (code != RDMA_OK) return LastError(code, "grpc+verbs: options");
  options.name = name_.c_str();
  options.timeout_ms = kTimeoutMillis;
  // gRPC's patience: a server that is stopped, collects garbage or swaps is waited for, as long as its connection
  // lives. RDMA_PEER_TIMEOUT_MS sets the stricter rule.
  options.peer_timeout_ms = 0;
  options.pool = SharedPool::Handle();
  std::string listen;
  if (!IsLoopback(host)) {
    // The cluster spec names an address that other machines reach, and TensorFlow's own port is already open there.
    listen = absl::StrCat(host, ":0");
    options.listen = listen.c_str();
    options.allow_remote = 1;
  }
  code = rdma_mgr_create(&options, &mgr_);
  if (code != RDMA_OK && options.listen != nullptr) {
    const Status first = LastError(code, listen);
    LOG(WARNING) << "grpc+verbs: cannot listen where the cluster spec says (" << first.message()
                 << "); listening on every address";
    options.listen = "0.0.0.0:0";
    code = rdma_mgr_create(&options, &mgr_);
  }
  if (code != RDMA_OK) return LastError(code, absl::StrCat("grpc+verbs: manager of ", name_));
  code = rdma_mgr_set_source(mgr_, &OnRequest, this);
  if (code != RDMA_OK) return LastError(code, "grpc+verbs: source");
  Memory::Get().Attach(mgr_);
  GpuDirect::Get().Attach(mgr_, env_->compute_pool);
  return Status();
}

Context::~Context() { Shutdown(); }

void Context::Shutdown() {
  if (closed_.exchange(true) || mgr_ == nullptr) return;
  if (watch_ != nullptr) watch_->Stop();
  peers_->Stop();
  Memory::Get().Detach(mgr_);
  // Calls that entered before see a live manager; later ones see none.
  while (users_.load() != 0) tensorflow::Env::Default()->SleepForMicroseconds(50);
  const rdma_code_t code = rdma_mgr_destroy(mgr_);
  if (code != RDMA_OK) LOG(ERROR) << LastError(code, "grpc+verbs: end of the manager").message();
  GpuDirect::Get().Detach(mgr_);  // last: the manager called its copy functions until now
}

rdma_mgr_t* Context::Enter() const {
  users_.fetch_add(1);
  return closed_.load() ? nullptr : mgr_;
}

void Context::Leave() const { users_.fetch_sub(1); }

Status Context::ExportAddress(std::string* blob) const {
  const Use use(*this);
  if (!use) return MakeStatus(RDMA_UNAVAILABLE, "server stopped", "grpc+verbs");
  blob->resize(512);
  for (;;) {
    size_t length = 0;
    const rdma_code_t code =
        rdma_mgr_export_address(use.mgr(), reinterpret_cast<uint8_t*>(&(*blob)[0]), blob->size(), &length);
    if (code == RDMA_OK) {
      blob->resize(length);
      return Status();
    }
    if (code != RDMA_OUT_OF_RANGE || blob->size() >= (1u << 20)) return LastError(code, "grpc+verbs: own address");
    blob->resize(blob->size() * 4);
  }
}

Status Context::ImportAddress(const std::string& blob, std::string* name) const {
  const Use use(*this);
  if (!use) return MakeStatus(RDMA_UNAVAILABLE, "server stopped", "grpc+verbs");
  char text[RDMA_MAX_NAME_LEN + 1];
  size_t length = 0;
  const rdma_code_t code = rdma_mgr_import_address(use.mgr(), reinterpret_cast<const uint8_t*>(blob.data()),
                                                   blob.size(), text, sizeof text, &length);
  if (code != RDMA_OK) return LastError(code, "grpc+verbs: a peer's address");
  name->assign(text, length);
  return Status();
}

bool Context::Connected(const std::string& worker) const {
  const std::string name = peers_->NameOf(worker);
  const Use use(*this);
  if (!use || name.empty()) return false;
  rdma_peer_info_t info;
  info.struct_size = sizeof info;
  return rdma_mgr_peer_info(use.mgr(), name.c_str(), &info) == RDMA_OK && info.state == RDMA_PEER_CONNECTED;
}

void Context::Connect(const PeerRef& peer) const {
  const Use use(*this);
  // What cannot begin now is begun again when the worker is next looked at.
  if (use) (void)rdma_mgr_connect(use.mgr(), peer.name.c_str(), 0);
}

std::string Context::StatsJson() const {
  const Use use(*this);
  if (!use) return "null";
  std::string text(1 << 14, '\0');
  for (;;) {
    size_t length = 0;
    const rdma_code_t code = rdma_mgr_stats_json(use.mgr(), &text[0], text.size(), &length);
    if (code == RDMA_OK) {
      text.resize(length);
      return text;
    }
    if (code != RDMA_OUT_OF_RANGE || text.size() >= (1u << 26)) return "null";
    text.resize(text.size() * 4);
  }
}

std::string AllStatsJson() {
  std::string out = "[";
  for (const auto& context : LiveContexts()) {
    if (out.size() > 1) out += ',';
    absl::StrAppend(&out, "{\"name\":", JsonString(context->name()), ",\"stats\":", context->StatsJson(), "}");
  }
  return out + "]";
}

void ShutdownAll() {
  for (const auto& context : LiveContexts()) context->Shutdown();
}

}  // namespace rdma_tf
