// Which GPUs a machine offers, in which slots, and how much of their memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/agent/agent_messages.hpp"
#include "motley/workers/gpu_list.hpp"

namespace motley {

// The UUID of the GPU in each slot, as `file` keeps them, one a line; those of `gpus` that are new follow. A GPU that
// is gone keeps its slot, until there are as many as a machine may have: then one that is new takes it. Throws an input
// error for a file that holds something else.
std::vector<std::string> gpu_slots(const std::filesystem::path& file, const std::vector<ListedGpu>& gpus);
void keep_gpu_slots(const std::filesystem::path& file, const std::vector<std::string>& slots);

struct GpuChoice {
  std::optional<std::vector<int>> slots = {};     // none: all that can be used
  std::optional<std::int64_t> memory_bytes = {};  // most of each
  int threads = 1;                                // of each one's worker
};

struct OfferedGpus {
  std::vector<OfferedDevice> devices;  // by slot
  std::vector<std::string> left_out;   // why others are not: "gpu 1 (NVIDIA P40): ..."
};

// Of each what is free now, less what its other users take from time to time. Throws an input error where a slot is
// chosen in which no GPU is, or one that cannot be used.
OfferedGpus offered_gpus(const GpuList& list, const std::vector<std::string>& slots, const GpuChoice& choice);

// Less than what is free of it: 1.5 GiB where a desktop is shown on it, otherwise 0.5 GiB.
std::int64_t offered_bytes(const ListedGpu& gpu);
// Why no plan can use it; empty: one can.
std::string gpu_objection(const ListedGpu& gpu, std::int64_t memory_bytes);

}  // namespace motley
