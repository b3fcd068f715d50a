// What happens when TensorFlow loads the plugin, and the few C functions that Python calls.

#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "context.h"
#include "gpudirect.h"
#include "memory.h"
#include "rdma_transport.h"
#include "server.h"
#include "tensorflow/c/c_api.h"
#include "tf_compat.h"

namespace rdma_tf {
namespace {

std::string& LoadError() {
  static std::string* const error = new std::string;
  return *error;
}

void Log(int32_t level, const char* message, size_t length, void*) {
  const absl::string_view text(message, length);
  switch (level) {
    case RDMA_LOG_ERROR:
      LOG(ERROR) << "rdma-transport: " << text;
      break;
    case RDMA_LOG_WARN:
      LOG(WARNING) << "rdma-transport: " << text;
      break;
    default:
      LOG(INFO) << "rdma-transport: " << text;
  }
}

// RDMA_LOG chooses the level; warnings otherwise.
int32_t LogLevel() {
  const char* const value = std::getenv("RDMA_LOG");
  if (value == nullptr) return RDMA_LOG_WARN;
  if (std::strcmp(value, "error") == 0) return RDMA_LOG_ERROR;
  if (std::strcmp(value, "info") == 0) return RDMA_LOG_INFO;
  if (std::strcmp(value, "debug") == 0) return RDMA_LOG_DEBUG;
  return RDMA_LOG_WARN;
}

bool Load() {
  if (std::strcmp(TF_Version(), RDMA_TF_VERSION) != 0) {
    LoadError() = absl::StrCat("this plugin is built for TensorFlow " RDMA_TF_VERSION ", the one running is ",
                               TF_Version());
  } else if (rdma_abi_version() != RDMA_ABI_VERSION) {
    LoadError() = absl::StrCat("this plugin needs ABI ", RDMA_ABI_VERSION, " of librdma_transport, the one loaded has ",
                               rdma_abi_version());
  }
  if (LoadError().empty()) LoadError() = std::string(Memory::Get().Install().message());
  if (!LoadError().empty()) {
    LOG(ERROR) << "grpc+verbs is not available: " << LoadError();
    return false;
  }
  (void)rdma_set_log_callback(&Log, LogLevel(), nullptr);
  GpuDirect::Get().InstallVisitors();
  RegisterServerFactory();
  return true;
}

const bool loaded = Load();

// For a caller who frees it. Null: no memory.
char* Copy(const std::string& text) {
  char* const out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out != nullptr) std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

}  // namespace
}  // namespace rdma_tf

using rdma_tf::Copy;

extern "C" {

// Why the plugin did not register, "" if it did.
const char* rdma_tf_load_error() { return rdma_tf::LoadError().c_str(); }

// The version of TensorFlow that this plugin is for.
const char* rdma_tf_version() { return RDMA_TF_VERSION; }

// Statistics of every server in this process as JSON; the caller frees the text with rdma_tf_free.
char* rdma_tf_stats() { return Copy(rdma_tf::AllStatsJson()); }

// Where TensorFlow's CPU memory comes from as JSON; the caller frees the text with rdma_tf_free.
char* rdma_tf_memory() { return Copy(rdma_tf::Memory::Get().UsageJson()); }

void rdma_tf_free(void* text) { std::free(text); }

// Ends every server's transport; the process is about to exit.
void rdma_tf_shutdown() { rdma_tf::ShutdownAll(); }

}  // extern "C"
