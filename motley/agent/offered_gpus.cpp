#include "motley/agent/offered_gpus.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/units.hpp"
#include "motley/cluster/capability.hpp"
#include "motley/cluster/cluster.hpp"

namespace motley {
namespace {

constexpr std::int64_t gibibyte = std::int64_t{1} << 30;
constexpr std::int64_t headroom_bytes = gibibyte / 2, headroom_with_display_bytes = headroom_bytes + gibibyte;

const ListedGpu* find_gpu(const std::vector<ListedGpu>& gpus, const std::string& uuid) {
  const auto found = std::ranges::find(gpus, uuid, &ListedGpu::uuid);
  return found == gpus.end() ? nullptr : &*found;
}

Error no_such_gpu(int slot, const GpuList& list, const std::vector<std::string>& slots) {
  std::vector<std::string> there;
  for (std::size_t at = 0; at < slots.size(); ++at)
    if (const ListedGpu* gpu = find_gpu(list.gpus, slots[at])) there.push_back(fmt::format("{} ({})", at, gpu->name));
  std::string what = fmt::format("--devices {} names no GPU", slot);
  if (!there.empty())
    what += fmt::format(": there are {}", fmt::join(there, ", "));
  else
    what += list.cause.empty() ? ": this machine has none" : fmt::format(": {}", list.cause);
  return input_error(what, slot > 0 ? fmt::format("--processor-parts {} offers the processor as {} parts", slot, slot)
                                    : "leave --devices out to offer the processor");
}

OfferedDevice offer_of(const ListedGpu& gpu, int slot, std::int64_t memory_bytes, int threads) {
  return {.kind = gpu.name,
          .memory_bytes = memory_bytes,
          .threads = threads,
          .slot = slot,
          .vendor = "nvidia",
          .backend = "cuda:0",
          .uuid = gpu.uuid,
          .total_bytes = gpu.total_bytes,
          .free_bytes = gpu.free_bytes,
          .kernels = gpu.kernels};
}

}  // namespace

std::vector<std::string> gpu_slots(const std::filesystem::path& file, const std::vector<ListedGpu>& gpus) {
  std::vector<std::string> slots;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line); slots.push_back(line))
    if (!is_gpu_uuid(line) || slots.size() == max_offered_devices)
      throw input_error(fmt::format("{}:{}: not the UUID of a GPU in one of {} slots", file.string(), slots.size() + 1,
                                    max_offered_devices),
                        "delete the file: GPUs are then numbered from 0 again");
  for (const ListedGpu& gpu : gpus) {
    if (std::ranges::find(slots, gpu.uuid) != slots.end()) continue;
    if (slots.size() < max_offered_devices)
      slots.push_back(gpu.uuid);
    else if (const auto gone =
                 std::ranges::find_if(slots, [&](const auto& uuid) { return find_gpu(gpus, uuid) == nullptr; });
             gone != slots.end())
      *gone = gpu.uuid;
  }
  return slots;
}

void keep_gpu_slots(const std::filesystem::path& file, const std::vector<std::string>& slots) {
  std::filesystem::create_directories(file.parent_path());
  std::string lines;
  for (const std::string& uuid : slots) lines += uuid + "\n";
  replace_file(file, lines);
}

std::int64_t offered_bytes(const ListedGpu& gpu) {
  return std::max<std::int64_t>(0, gpu.free_bytes - (gpu.display ? headroom_with_display_bytes : headroom_bytes));
}

std::string gpu_objection(const ListedGpu& gpu, std::int64_t memory_bytes) {
  if (gpu.compute_capability < least_compute_capability)
    return fmt::format("its compute capability is {:.1f}, and {:.1f} or more is needed", gpu.compute_capability,
                       least_compute_capability);
  const DeviceType* known = find_in_catalogue(whole_card(gpu.name));
  if (known == nullptr) return "the catalogue does not know it (docs/reference/devices.md)";
  const std::int64_t reserve = known->reserve_bytes.value_or(gibibyte);
  if (memory_bytes <= reserve)
    return fmt::format("{} of its memory can be offered, of which a plan keeps {} free",
                       human_bytes(static_cast<double>(memory_bytes)), human_bytes(static_cast<double>(reserve)));
  return {};
}

OfferedGpus offered_gpus(const GpuList& list, const std::vector<std::string>& slots, const GpuChoice& choice) {
  if (choice.slots)
    for (const int slot : *choice.slots)
      if (slot < 0 || slot >= std::ssize(slots) ||
          find_gpu(list.gpus, slots[static_cast<std::size_t>(slot)]) == nullptr)
        throw no_such_gpu(slot, list, slots);
  OfferedGpus offered;
  for (int slot = 0; slot < std::ssize(slots); ++slot) {
    const ListedGpu* gpu = find_gpu(list.gpus, slots[static_cast<std::size_t>(slot)]);
    if (gpu == nullptr || (choice.slots && std::ranges::find(*choice.slots, slot) == choice.slots->end())) continue;
    const std::int64_t memory = std::min(offered_bytes(*gpu), choice.memory_bytes.value_or(gpu->total_bytes));
    const std::string objection = gpu_objection(*gpu, memory);
    if (objection.empty())
      offered.devices.push_back(offer_of(*gpu, slot, memory, choice.threads));
    else if (!choice.slots)
      offered.left_out.push_back(fmt::format("gpu {} ({}): {}", slot, gpu->name, objection));
    else
      throw input_error(fmt::format("--devices {}: {}: {}", slot, gpu->name, objection),
                        "leave it out, or offer the processor by --devices none");
  }
  return offered;
}

}  // namespace motley
