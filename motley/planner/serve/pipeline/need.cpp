#include "motley/planner/serve/pipeline/need.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "motley/base/units.hpp"
#include "motley/model/type_quality.hpp"
#include "motley/planner/serve/pipeline/offloading.hpp"

namespace motley {
namespace {

Shard whole_shard(const Architecture& arch) { return make_shards(arch, 1).front(); }

double usable_bytes(const ServeProblem& problem) {
  double sum = 0;
  for (const int device : problem.devices()) sum += usable_with_tiers(problem, device);
  return sum;
}

bool has_tiers(const ServeProblem& problem) {
  return std::ranges::any_of(problem.devices(), [&](int device) { return offload_tiers(problem, device).has_value(); });
}

// Those with fewer bits in which all layers could be placed: "bf16", "q8_0, q6_k or q4_k". None where types were given
// by device type.
std::string types_that_fit(const ServeProblem& problem) {
  if (!problem.options.weight_types.empty()) return {};
  std::vector<DType> choices = weight_type_choices(problem.model.arch);
  if (problem.weight_type == DType::fp32 && std::ranges::find(choices, DType::bf16) == choices.end())
    choices.insert(choices.begin(), DType::bf16);
  std::vector<std::string_view> names;
  for (const DType type : choices) {
    if (dtype_row(type).bits_per_value() >= dtype_row(problem.weight_type).bits_per_value()) continue;
    ServeProblem other = problem;
    other.weight_type = type;
    other.kv_type = problem.options.kv_type.value_or(dtype_row(type).computed_in);
    if (most_layers_placed(other, problem.devices()) >= problem.model.arch.layers) names.push_back(name_of(type));
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  return text;
}

std::string devices_text(const ServeProblem& problem) {
  std::map<std::string, int> counts;
  for (const int device : problem.devices()) ++counts[problem.cluster.type_of(device).name];
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} x {}", count, name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

Need least_need(const ServeProblem& problem) {
  const Architecture& arch = problem.model.arch;
  const Shard whole = whole_shard(arch);
  const ServePoint point = problem.point(1);
  return {
      static_cast<double>(weight_bytes(arch, whole_model(arch), whole, problem.smallest_weights())),
      static_cast<double>(cache_bytes(arch, {0, arch.layers}, whole, problem.kv_type, room_of(point, 1), point.step))};
}

double usable_bytes(const ServeProblem& problem, int device) {
  const DeviceType& type = problem.cluster.type_of(device);
  return std::max(0.0, static_cast<double>(type.memory_bytes - type.reserve_bytes.value_or(0)));
}

double usable_with_tiers(const ServeProblem& problem, int device) {
  const std::optional<MemoryTiers> tiers = offload_tiers(problem, device);
  if (!tiers) return usable_bytes(problem, device);
  const std::int64_t disk = tiers->disk ? tiers->disk->capacity_bytes : 0;
  return usable_bytes(problem, device) + static_cast<double>(tiers->host_bytes + disk);
}

void say_why(const ServeProblem& problem, ServeOutcome& outcome) {
  const Need need = least_need(problem);
  const double usable = usable_bytes(problem);
  const Architecture& arch = problem.model.arch;
  const double tokens = std::ceil(problem.workload.mean_prompt_tokens() + problem.workload.mean_output_tokens());
  const std::string holds =
      fmt::format("{} of weights at {} and {} of keys and values for one request of {:g} tokens",
                  human_bytes(need.weights), name_of(problem.smallest_weights()), human_bytes(need.kv), tokens);
  const std::string has =
      fmt::format("{} usable on {} ({})", human_bytes(usable), devices_text(problem),
                  has_tiers(problem) ? "memory less reserve, with host memory and disk" : "memory less reserve");
  double missing = need.total() - usable;
  if (missing > 0) {
    outcome.reason = fmt::format("needs {} more: {}, {}", human_bytes(missing), holds, has);
  } else {
    const std::int64_t placed = most_layers_placed(problem, problem.devices());
    const bool all = problem.options.use_devices == UseDevices::all;
    missing = need.total() / static_cast<double>(arch.layers) * static_cast<double>(arch.layers - placed);
    if (placed >= arch.layers && all) {
      outcome.reason = "no layout uses every device";
      outcome.hint = "leave out --all-devices";
      return;
    }
    outcome.reason = fmt::format(
        "only {} of {} layers can be placed: {}, {}, but whole layers, buffers and the embedding must fit on each",
        placed, arch.layers, holds, has);
  }
  const auto largest = *std::max_element(
      problem.cluster.devices.begin(), problem.cluster.devices.end(), [&](const Device& a, const Device& b) {
        return problem.cluster.types[a.type].memory_bytes < problem.cluster.types[b.type].memory_bytes;
      });
  const DeviceType& type = problem.cluster.types[largest.type];
  const double each = static_cast<double>(type.memory_bytes - type.reserve_bytes.value_or(0));
  outcome.hint = fmt::format("add about {} of device memory, such as {:g} x {}", human_bytes(missing),
                             std::max(1.0, std::ceil(missing / std::max(each, 1.0))), type.name);
  if (const std::string types = types_that_fit(problem); !types.empty())
    outcome.hint = fmt::format("use --weight-type {}, which would fit; or {}", types, outcome.hint);
}

}  // namespace motley
