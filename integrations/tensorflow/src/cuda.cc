#include "cuda.h"

#include <dlfcn.h>

namespace rdma_tf {
namespace {

// Numbers of cuda.h.
constexpr int kPointerAttributeContext = 1;
constexpr int kRangeHandleTypeDmabuf = 1;

uint64_t Address(const void* device) { return reinterpret_cast<uintptr_t>(device); }

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

const Cuda* Cuda::Get() {
  static const Cuda* const instance = []() -> const Cuda* {
    auto* const cuda = new Cuda;
    if (cuda->Load()) return cuda;
    delete cuda;
    return nullptr;
  }();
  return instance;
}

bool Cuda::Load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && Find(library, "cuInit", &init_) &&
         Find(library, "cuPointerGetAttribute", &pointer_get_attribute_) &&
         Find(library, "cuCtxSetCurrent", &set_current_) && Find(library, "cuMemcpyDtoH_v2", &copy_to_host_) &&
         Find(library, "cuMemcpyHtoD_v2", &copy_from_host_) &&
         Find(library, "cuMemGetHandleForAddressRange", &get_handle_);
}

int Cuda::Enter(const void* device) const {
  std::call_once(once_, [this] { started_ = init_(0); });
  if (started_ != 0) return started_;
  void* context = nullptr;
  const int error = pointer_get_attribute_(&context, kPointerAttributeContext, Address(device));
  return error != 0 ? error : set_current_(context);
}

int Cuda::ExportDmabuf(const void* device, size_t length) const {
  int fd = -1;
  int error = Enter(device);
  if (error == 0) error = get_handle_(&fd, Address(device), length, kRangeHandleTypeDmabuf, 0);
  return error == 0 ? fd : -error;
}

bool Cuda::CopyToHost(void* host, const void* device, size_t length) const {
  return Enter(device) == 0 && copy_to_host_(host, Address(device), length) == 0;
}

bool Cuda::CopyFromHost(void* device, const void* host, size_t length) const {
  return Enter(device) == 0 && copy_from_host_(Address(device), host, length) == 0;
}

}  // namespace rdma_tf
