// NVIDIA's GPUs of this machine, by the management library that comes with their driver (NVML), opened at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace motley {

struct NvidiaGpu {
  std::string name;
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;  // now: others may use the card, too
  int major = 0, minor = 0;     // compute capability
};

// In the driver's order. Throws an environment error where the library is missing, does not start, or fails.
std::vector<NvidiaGpu> nvidia_gpus(const std::string& library = "libnvidia-ml.so.1");

}  // namespace motley
