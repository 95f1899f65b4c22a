#include "motley/base/nvidia.hpp"

#include "motley/base/nvml.hpp"

namespace motley {

std::vector<NvidiaGpu> nvidia_gpus(const std::string& library) {
  const Nvml nvml(library);
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  std::vector<NvidiaGpu> gpus(count);
  for (unsigned i = 0; i < count; ++i) {
    NvidiaGpu& gpu = gpus[i];
    NvmlDevice device = nullptr;
    nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &device);
    char name[96] = {};
    nvml.call("nvmlDeviceGetName", device, static_cast<char*>(name), static_cast<unsigned>(sizeof name - 1));
    NvmlMemory memory;
    nvml.call("nvmlDeviceGetMemoryInfo", device, &memory);
    nvml.call("nvmlDeviceGetCudaComputeCapability", device, &gpu.major, &gpu.minor);
    gpu.name = name;
    gpu.memory_bytes = static_cast<std::int64_t>(memory.total);
    gpu.free_bytes = static_cast<std::int64_t>(memory.free);
  }
  return gpus;
}

}  // namespace motley
