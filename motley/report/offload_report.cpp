#include "motley/report/offload_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

// "12 of 48 layers", or a percentage where the share is not whole.
std::string share_text(double share, std::int64_t units) {
  const double exact = share * static_cast<double>(units);
  if (std::abs(exact - std::round(exact)) < 1e-6) return fmt::format("{:.0f} of {}", exact, units);
  return percent(share);
}

}  // namespace

std::string resource_text(std::string_view resource) {
  static const std::map<std::string_view, std::string> texts = {{"device", "computing on the device"},
                                                                {"processors", "attention on the host's processors"},
                                                                {"upload", "upload from host memory"},
                                                                {"download", "download to host memory"},
                                                                {"disk_read", "disk reads"},
                                                                {"disk_write", "disk writes"},
                                                                {"disk", "disk reads and writes together"},
                                                                {"host_memory", "host memory bandwidth"},
                                                                {"waiting", "the device, with its waits"}};
  const auto found = texts.find(resource);
  return found == texts.end() ? std::string(resource) : found->second;
}

std::string binding_resource(const OffloadPlan& plan) {
  const auto& busy = plan.predicted.busy;
  const auto most =
      std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == busy.end() ? "" : most->first;
}

std::string offload_summary(const OffloadPlan& plan) {
  const std::int64_t layers = plan.model.arch.layers;
  return fmt::format(
      "{} micro-batches of {} sequences share a pass; weights {} layers on {}, {} in host memory, {} on disk",
      plan.batches, plan.batch, share_text(plan.weights.device, layers), plan.device,
      share_text(plan.weights.host, layers), share_text(plan.weights.disk, layers));
}

std::string offload_report(const OffloadPlan& plan) {
  const std::int64_t layers = plan.model.arch.layers;
  const auto found = plan.predicted.memory_bytes.find(plan.device);
  const DeviceMemory memory = found == plan.predicted.memory_bytes.end() ? DeviceMemory{} : found->second;
  Table table({"tier", ">weights", ">keys and values", ">activations", ">bytes", ">of"});
  for (const auto& [name, of, share] : {std::tuple("device", &DeviceMemory::device, &TierShares::device),
                                        std::tuple("host", &DeviceMemory::host, &TierShares::host),
                                        std::tuple("disk", &DeviceMemory::disk, &TierShares::disk)})
    table.add({name, share_text(plan.weights.*share, layers), share_text(plan.kv.*share, layers),
               share_text(plan.activations.*share, plan.batches),
               human_bytes(static_cast<double>((memory.*of).total())),
               human_bytes(static_cast<double>((memory.*of).limit))});
  std::string text =
      fmt::format("{} on {}\n{} micro-batches of {} sequences share a pass over {} layers\n\n{}\n",
                  printable(plan.model.name), printable(plan.device), plan.batches, plan.batch, layers, table.render());
  text += fmt::format("types       weights {}, keys and values {}\n", name_of(plan.weight_type), name_of(plan.kv_type));
  if (plan.kv.device < 1)
    text += fmt::format("attention   {}\n", plan.cpu_attention
                                                ? "by the host's processors where the keys are not on the device"
                                                : "on the device");
  text += fmt::format("predicted   {:.4g} tokens/s, {} per request\n", plan.predicted.tokens_per_s,
                      human_seconds(plan.predicted.latency_s));
  if (plan.predicted.kl) text += fmt::format("quality     divergence {:.2g} nats\n", *plan.predicted.kl);
  if (const std::string binding = binding_resource(plan); !binding.empty())
    text += fmt::format("bound by    {}\n", resource_text(binding));
  text += fmt::format("search      {}, {} candidates in {}", name_of(plan.search.status), plan.search.evaluated,
                      human_seconds(plan.search.elapsed_s));
  if (plan.search.bound && plan.search.gap.value_or(0) > 1e-9)
    text += fmt::format("; at most {:.4g} tokens/s", *plan.search.bound);
  return text + "\n";
}

}  // namespace motley
