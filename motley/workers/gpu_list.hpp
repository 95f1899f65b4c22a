// The GPUs of this machine, as a process sees them that opens CUDA. That process is `motley-worker --devices`, which
// lists them and ends: CUDA takes some hundred MB of a device, and does not survive a fork.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/workers/child_answer.hpp"

namespace motley {

struct ListedGpu {
  std::string uuid;  // "GPU-...", or "MIG-..." of a slice of one: as CUDA_VISIBLE_DEVICES takes it
  std::string name;  // "NVIDIA RTX A6000"
  std::string pci_bus = {};
  double compute_capability = 0;  // 8.6
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;          // now, to a process that has opened it
  bool display = false;                 // a desktop is shown on it
  std::int32_t kernels = 0;             // version of motley's own; 0: LibTorch's alone
  std::string software = {};            // what rates depend on: versions of the driver, LibTorch and the kernels
  std::vector<std::string> peers = {};  // UUIDs of those whose memory it reaches
  bool is_slice() const { return uuid.starts_with("MIG-"); }
  bool operator==(const ListedGpu&) const = default;
};
Schema<ListedGpu> schema_of(Bound<ListedGpu>);

struct GpuList {
  std::vector<ListedGpu> gpus;  // by PCI bus
  std::string cause = {};       // why there are none: a driver or a library is missing
};

// Whether the kernel of this machine shows a sign of NVIDIA's driver. Where it does not, list_gpus() would find none.
bool may_have_gpus();

// Runs `program --devices`. Throws an environment error, with a hint, where it cannot be started, fails, has not ended
// in time, or answers what no such program does; it is ended then.
GpuList list_gpus(const std::filesystem::path& program, double within_s = 30);

// What the program answers: a line of JSON for each, or one line that says why there are none.
std::string gpu_lines(const std::vector<ListedGpu>& gpus);
std::string no_gpu_line(std::string_view cause);

bool is_gpu_uuid(std::string_view text);
// "NVIDIA H100 80GB HBM3" of its slice "NVIDIA H100 80GB HBM3 MIG 1g.10gb"; other names as they are.
std::string_view whole_card(std::string_view name);

// A process that has these in its environment sees this GPU alone, as cuda:0, whatever happens to others.
Variables gpu_variables(const std::string& uuid);

}  // namespace motley
