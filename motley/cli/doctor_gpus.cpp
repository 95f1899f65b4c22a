#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "motley/agent/gpu_rates.hpp"
#include "motley/agent/offered_gpus.hpp"
#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/base/units.hpp"
#include "motley/base/worker_program.hpp"
#include "motley/cli/doctor.hpp"

namespace motley::cli {
namespace {

// Those that this machine has offered before keep their numbers.
std::vector<std::string> numbered(const std::vector<ListedGpu>& gpus) {
  try {
    return gpu_slots(state_folder() / "agents/slots", gpus);
  } catch (const Error&) {
    return gpu_slots({}, gpus);
  }
}

std::string rates_of(const ListedGpu& gpu, const KeptGpuRates& kept) {
  const DeviceType* rates = kept.rates(gpu);
  if (rates == nullptr) return "rates of the catalogue until it is offered, and measured";
  return fmt::format("measured: {} of weights, {} up and {} down", human_rate(rates->memory_bandwidth_bytes_per_s),
                     human_rate(rates->copies.upload_bytes_per_s), human_rate(rates->copies.download_bytes_per_s));
}

Finding offer_of(const ListedGpu& gpu, std::size_t slot, const std::vector<std::string>& slots,
                 const KeptGpuRates& kept) {
  const std::int64_t offered = offered_bytes(gpu);
  const std::string objection = gpu_objection(gpu, offered);
  std::string text = fmt::format("{} ({}): ", gpu.name, gpu.uuid);
  text += objection.empty() ? fmt::format("{}{}, by {}", human_bytes(static_cast<double>(offered)),
                                          gpu.display ? " with a desktop on it" : "",
                                          gpu.kernels > 0 ? "motley's kernels" : "LibTorch's kernels alone")
                            : "not offered: " + objection;
  if (objection.empty()) text += "; " + rates_of(gpu, kept);
  std::vector<std::size_t> reached;
  for (std::size_t other = 0; other < slots.size(); ++other)
    if (std::ranges::find(gpu.peers, slots[other]) != gpu.peers.end()) reached.push_back(other);
  if (!reached.empty()) text += fmt::format("; reaches the memory of {}", fmt::join(reached, ", "));
  return {fmt::format("offer {}", slot), objection.empty() ? State::ok : State::warn, text};
}

}  // namespace

std::vector<Finding> offers_of_gpus() {
  if (!may_have_gpus()) return {};
  GpuList list;
  try {
    list = list_gpus(prepare_worker_program());
  } catch (const Error& error) {
    list.cause = with_hint(error);
  }
  if (!list.cause.empty())
    return {{"offer", State::warn, fmt::format("the processor alone, since CUDA lists no GPU: {}", list.cause)}};
  std::vector<Finding> findings;
  const std::vector<std::string> slots = numbered(list.gpus);
  const KeptGpuRates kept(state_folder() / "agents" / gpu_rates_file);
  for (std::size_t slot = 0; slot < slots.size(); ++slot)
    if (const auto gpu = std::ranges::find(list.gpus, slots[slot], &ListedGpu::uuid); gpu != list.gpus.end())
      findings.push_back(offer_of(*gpu, slot, slots, kept));
  return findings;
}

}  // namespace motley::cli
