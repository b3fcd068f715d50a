#include "rendezvous.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "receive.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_tf {
namespace {

using tensorflow::Rendezvous;
using tensorflow::Tensor;

class VerbsRendezvous : public tensorflow::BaseRemoteRendezvous {
 public:
  VerbsRendezvous(const tensorflow::WorkerEnv* env, int64_t step, std::shared_ptr<Context> context)
      : tensorflow::BaseRemoteRendezvous(env, step), context_(std::move(context)) {}

 protected:
  void RecvFromRemoteAsync(const Rendezvous::ParsedKey& parsed, const Rendezvous::Args& args,
                           DoneCallback done) override;

 private:
  ~VerbsRendezvous() override = default;

  // Null where the server failed to start.
  const std::shared_ptr<Context> context_;
};

void VerbsRendezvous::RecvFromRemoteAsync(const Rendezvous::ParsedKey& parsed, const Rendezvous::Args& args,
                                          DoneCallback done) {
  const auto fail = [&](const Status& status) { done(status, Rendezvous::Args(), args, Tensor(), false); };
  if (context_ == nullptr) return fail(MakeStatus(RDMA_UNAVAILABLE, "server not started", "grpc+verbs"));
  Receive::What what;
  std::string device;
  if (!tensorflow::DeviceNameUtils::SplitDeviceName(parsed.src_device, &what.worker, &device)) {
    return fail(Status(absl::StatusCode::kInternal,
                       absl::StrCat("grpc+verbs: invalid remote device: ", absl::string_view(parsed.src_device))));
  }
  const Status status = session()->device_mgr()->LookupDevice(parsed.dst_device, &what.device);
  if (!status.ok()) return fail(status);
  what.key = std::string(parsed.FullKey());
  what.incarnation = parsed.src_incarnation;
  what.step = step_id_;
  what.args = args;
  auto call = std::make_shared<Receive>(context_, std::move(what));
  RegisterCall(call.get(), call->what().args);
  if (!call->status().ok()) {  // aborted already
    DeregisterCall(call.get(), call->what().args);
    return fail(call->status());
  }
  Ref();
  call->Start(session()->GetSharedWorkerCache(), [this, call, done = std::move(done)] {
    DeregisterCall(call.get(), call->what().args);
    done(call->status(), Rendezvous::Args(), call->what().args, call->tensor(), call->is_dead());
    Unref();
  });
}

}  // namespace

tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> VerbsRendezvousMgr::Create(
    int64_t step, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>(new VerbsRendezvous(env, step, context_));
}

}  // namespace rdma_tf
