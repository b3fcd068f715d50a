// Codes and messages between the library and TensorFlow. The numbers of the codes are the same.
#ifndef RDMA_TF_STATUS_H_
#define RDMA_TF_STATUS_H_

#include <string>

#include "rdma_transport.h"
#include "tf_compat.h"

namespace rdma_tf {

// A status from a code of the library and its message; `context` says what was being done.
Status MakeStatus(rdma_code_t code, absl::string_view message, absl::string_view context);
// The same with the library's last error of this thread.
Status LastError(rdma_code_t code, absl::string_view context);

// How a receive from `worker` failed, with the mark that TensorFlow's own RPCs leave when a task cannot be reached:
// ParameterServerStrategy tells by it a lost parameter server from a lost worker.
Status FromPeer(const Status& status, absl::string_view worker);

// A status of TensorFlow as the message of rdma_response_fail, and back. TensorFlow's mark of a derived error (one
// that only repeats what another worker reported) survives the trip, so that sessions blame the right worker.
std::string EncodeMessage(const Status& status);
// Whether a failure's message is such a status. All others are the library's own words, here or at the peer.
bool IsEncoded(absl::string_view message);
Status DecodeMessage(rdma_code_t code, absl::string_view message);

}  // namespace rdma_tf

#endif  // RDMA_TF_STATUS_H_
