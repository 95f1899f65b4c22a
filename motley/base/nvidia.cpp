#include "motley/base/nvidia.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

#include "motley/base/error.hpp"

namespace motley {
namespace {

using Device = void*;
struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

class Library {
 public:
  explicit Library(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_)
      throw Error(ErrorCode::environment, fmt::format("cannot open {}: no NVIDIA driver", name),
                  "install NVIDIA's driver, or use the processor");
    call("nvmlInit_v2");
  }
  ~Library() {
    if (auto* shutdown = reinterpret_cast<int (*)()>(::dlsym(handle_.get(), "nvmlShutdown"))) shutdown();
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <class... A>
  void call(const char* name, A... arguments) const {
    auto* function = reinterpret_cast<int (*)(A...)>(::dlsym(handle_.get(), name));
    const int error = function == nullptr ? -1 : function(arguments...);
    if (error != 0)
      throw Error(ErrorCode::environment,
                  function == nullptr ? fmt::format("NVIDIA's management library has no {}", name)
                                      : fmt::format("NVIDIA's management library: {}: error {}", name, error),
                  "`nvidia-smi` must list the machine's GPUs");
  }

 private:
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  std::unique_ptr<void, Close> handle_;
};

}  // namespace

std::vector<NvidiaGpu> nvidia_gpus(const std::string& library) {
  const Library nvml(library);
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  std::vector<NvidiaGpu> gpus(count);
  for (unsigned i = 0; i < count; ++i) {
    NvidiaGpu& gpu = gpus[i];
    Device device = nullptr;
    nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &device);
    char name[96] = {};
    nvml.call("nvmlDeviceGetName", device, static_cast<char*>(name), static_cast<unsigned>(sizeof name - 1));
    Memory memory{};
    nvml.call("nvmlDeviceGetMemoryInfo", device, &memory);
    nvml.call("nvmlDeviceGetCudaComputeCapability", device, &gpu.major, &gpu.minor);
    gpu.name = name;
    gpu.memory_bytes = static_cast<std::int64_t>(memory.total);
    gpu.free_bytes = static_cast<std::int64_t>(memory.free);
  }
  return gpus;
}

}  // namespace motley
