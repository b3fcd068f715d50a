// The one place that knows how TensorFlow's versions differ. The rest of the plugin is written against the
// names below.
//
// Supported: 2.15.1 and 2.21.0. TensorFlow promises no stable C++ ABI, so a build is for exactly one version;
// the build passes it as RDMA_TF_VERSION and plugin.cc compares it with the running library.
#ifndef RDMA_TF_COMPAT_H_
#define RDMA_TF_COMPAT_H_

#ifndef RDMA_TF_VERSION
#error "RDMA_TF_VERSION, RDMA_TF_MAJOR and RDMA_TF_MINOR come from the build"
#endif

#if !((RDMA_TF_MAJOR == 2) && (RDMA_TF_MINOR >= 15) && (RDMA_TF_MINOR <= 21))
#error "this TensorFlow version is not supported: 2.15.1 and 2.21.0 are"
#endif

#include "absl/strings/string_view.h"
#include "tensorflow/core/common_runtime/bfc_allocator.h"
#include "tensorflow/core/common_runtime/copy_tensor.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/pool_allocator.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/common_runtime/gpu/gpu_process_state.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/allocator_registry.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/mutex.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_tf {

// 2.15 spells it tensorflow::Status, 2.21 absl::Status; both are this type.
using Status = ::absl::Status;

// The renaming of google.protobuf.Any's accessors between protobuf 4 and 6: both accept a std::string.
template <typename Any>
inline void SetAny(Any* any, const std::string& type_url, const std::string& value) {
  any->set_type_url(type_url);
  any->set_value(value);
}

}  // namespace rdma_tf

#endif  // RDMA_TF_COMPAT_H_
