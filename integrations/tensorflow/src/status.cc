#include "status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/status.h"

namespace rdma_tf {
namespace {

// In front of a message: a derived error, or an ordinary one. Control characters: no message of the library begins
// with one.
constexpr char kDerived = '\x01';
constexpr char kOrdinary = '\x02';
// The library takes a little more.
constexpr size_t kMaxMessage = 60'000;

absl::StatusCode Code(rdma_code_t code) {
  const bool known = code > RDMA_OK && code <= RDMA_UNAUTHENTICATED;
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

}  // namespace

Status MakeStatus(rdma_code_t code, absl::string_view message, absl::string_view context) {
  if (code == RDMA_OK) return Status();
  return Status(Code(code), absl::StrCat(context, ": ", message));
}

Status LastError(rdma_code_t code, absl::string_view context) {
  if (code == RDMA_OK) return Status();
  char text[1024];
  rdma_last_error(text, sizeof text);
  return MakeStatus(code, text, context);
}

Status FromPeer(const Status& status, absl::string_view worker) {
  if (status.code() != absl::StatusCode::kUnavailable && status.code() != absl::StatusCode::kAborted) return status;
  // The words of grpc_state.h, which cluster_coordinator.py looks for.
  Status marked(status.code(), absl::StrCat(status.message(), "\nAdditional GRPC error information from remote target ",
                                            worker, " while receiving by grpc+verbs"));
  status.ForEachPayload(
      [&marked](absl::string_view url, const absl::Cord& payload) { marked.SetPayload(url, payload); });
  return marked;
}

std::string EncodeMessage(const Status& status) {
  const bool derived = tensorflow::StatusGroup::IsDerived(status);
  return absl::StrCat(absl::string_view(derived ? &kDerived : &kOrdinary, 1),
                      absl::string_view(status.message()).substr(0, kMaxMessage));
}

bool IsEncoded(absl::string_view message) {
  return !message.empty() && (message.front() == kDerived || message.front() == kOrdinary);
}

Status DecodeMessage(rdma_code_t code, absl::string_view message) {
  const bool derived = message.front() == kDerived;
  message.remove_prefix(1);
  const Status status(Code(code), message);
  return derived ? tensorflow::StatusGroup::MakeDerived(status) : status;
}

}  // namespace rdma_tf
