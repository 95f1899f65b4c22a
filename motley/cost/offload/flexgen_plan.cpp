#include "motley/cost/offload/flexgen_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace motley {
namespace {

Term phase(std::string name, const FlexgenPhase& of, double times, bool upload_hides) {
  const auto part = [&](std::string what, double seconds) { return leaf(std::move(what), times * seconds); };
  if (upload_hides)
    return max_of(std::move(name), {sum_of("in", {part("upload", of.upload), part("disk read", of.disk_read)}),
                                    sum_of("out", {part("download", of.download), part("disk write", of.disk_write)}),
                                    part("compute", of.compute)});
  return sum_of(std::move(name),
                {part("upload", of.upload),
                 max_of("at the same time", {part("download", of.download), part("disk read", of.disk_read),
                                             part("disk write", of.disk_write), part("compute", of.compute)})});
}

}  // namespace

FlexgenCase flexgen_case(const OffloadPlan& plan, const CostOptions& options) {
  const int device = plan.cluster.find_device(plan.device);
  const MemoryTiers tiers = tiers_of(plan.cluster, device);
  if (tiers.host_bytes == 0)
    throw input_error(fmt::format("the machine of {} has no `host_memory`", plan.device),
                      "give it in the cluster file, as in host_memory = \"208 GiB\": the form flexgen needs it");
  const Architecture& arch = plan.model.arch;
  constexpr double fp16_bits = 16;  // the form knows fp16 and 4 bits
  const double bits = plan.weight_type == DType::int4 ? 4 : dtype_row(plan.weight_type).bits_per_value();
  return {.layers = static_cast<double>(arch.layers),
          .hidden = static_cast<double>(arch.hidden),
          .ffn = static_cast<double>(arch.kinds.front().ffn),
          .heads = static_cast<double>(arch.heads),
          .prompt = plan.workload.mean_prompt_tokens(),
          .output = plan.workload.mean_output_tokens(),
          .device_bytes = static_cast<double>(plan.cluster.type_of(device).memory_bytes),
          .host_bytes = static_cast<double>(tiers.host_bytes),
          .disk_bytes = tiers.disk ? static_cast<double>(tiers.disk->capacity_bytes) : 0,
          .weight_factor = plan.weight_type == DType::file ? 1 : std::min(fp16_bits, bits) / fp16_bits,
          .rates = flexgen_rates(options)};
}

FlexgenPolicy flexgen_policy(const OffloadPlan& plan) {
  return {static_cast<double>(plan.batch), static_cast<double>(plan.batches), plan.weights, plan.kv, plan.activations};
}

Term explain_flexgen(const OffloadPlan& plan, const CostOptions& options) {
  const FlexgenCase input = flexgen_case(plan, options);
  const FlexgenTimes times = flexgen_times(input, flexgen_policy(plan));
  return sum_of("a block",
                {phase("prefill", times.prefill, input.layers, true),
                 phase("decode", times.decode, input.layers * (input.output - 1), false)},
                fmt::format("{} x {} sequences, {:.4g} tokens/s", plan.batch, plan.batches, times.tokens_per_s));
}

}  // namespace motley
