#include "motley/report/plan_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/report/cost_report.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

struct Slot {
  std::string machine;
  int slot = -1;  // -1: not of the form machine/number
};

Slot split_device(const std::string& device) {
  const auto slash = device.rfind('/');
  if (slash == std::string::npos) return {device, -1};
  int slot = -1;
  const char* end = device.data() + device.size();
  if (const auto [at, status] = std::from_chars(device.data() + slash + 1, end, slot);
      status != std::errc() || at != end)
    return {device, -1};
  return {device.substr(0, slash), slot};
}

std::string stage_types(const ServePlan& plan, const Stage& stage) {
  std::vector<std::string> names;
  for (const auto& device : stage.devices) {
    const std::string& type = plan.cluster.type_of(plan.cluster.find_device(device)).name;
    if (std::find(names.begin(), names.end(), type) == names.end()) names.push_back(type);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string shares_text(const Stage& stage) {
  std::vector<std::string> parts;
  for (const double share : stage.shares) parts.push_back(percent(share));
  std::string text = parts.empty() ? stage.devices.size() > 1 ? "equal" : "" : fmt::format("{}", fmt::join(parts, " "));
  if (!stage.expert_shares.empty()) text += fmt::format(", experts {}", fmt::join(stage.expert_shares, " "));
  return text;
}

std::string stages_table(const ServePlan& plan, const Route& route) {
  Table table({"stage", "layers", ">", ">tp", "devices", "type", "shares", ">kv tokens", "holds"});
  for (const auto& hop : route.path) {
    const Stage& stage = plan.stage(hop.stage);
    std::vector<std::string> extras;
    if (stage.role != StageRole::any) extras.emplace_back(name_of(stage.role));
    if (stage.embedding) extras.emplace_back("embedding");
    if (stage.head) extras.emplace_back("head");
    if (is_quantised(stage.weight_type)) extras.push_back(fmt::format("{} weights", name_of(stage.weight_type)));
    for (const StandbyWeights& standby : stage.standby_weights)
      extras.push_back(fmt::format("copies of {}-{}", standby.layers.first, standby.layers.end - 1));
    if (stage.offload) extras.push_back(streaming_text(stage));
    if (stage.kv_sequences > 0) extras.push_back(fmt::format("at most {} sequences", stage.kv_sequences));
    if (hop.activation_type) extras.push_back(fmt::format("sends {}", name_of(*hop.activation_type)));
    table.add({stage.id, fmt::format("{}-{}", hop.layers.first, hop.layers.end - 1),
               fmt::format("{}", hop.layers.size()), fmt::format("{}", stage.devices.size()),
               compact_devices(stage.devices), stage_types(plan, stage), shares_text(stage),
               fmt::format("{}", stage.kv_tokens), fmt::format("{}", fmt::join(extras, ", "))});
  }
  return table.render();
}

std::string memory_table(const ServePlan& plan) {
  const bool stands_by = std::ranges::any_of(plan.predicted.memory_bytes,
                                             [](const auto& memory) { return memory.second.device.standby > 0; });
  std::vector<std::string> titles = {"device", "type"};
  for (const char* title : {">weights", ">kv", ">buffers", ">reserve", ">copies", ">used", ">of", ">"})
    if (stands_by || title != std::string_view(">copies")) titles.push_back(title);
  Table table(std::move(titles));
  for (const auto& stage : plan.stages) {
    for (const auto& device : stage.devices) {
      const auto memory = plan.predicted.memory_bytes.find(device);
      if (memory == plan.predicted.memory_bytes.end()) continue;
      const auto show = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
      const std::string& type = plan.cluster.type_of(plan.cluster.find_device(device)).name;
      for (const auto& [tier, of] : memory_tiers) {
        const TierMemory& m = memory->second.*of;
        const bool own = of == &DeviceMemory::device;
        if (!own && m.total() == 0) continue;
        std::vector<std::string> cells{own ? device : "",   own ? type : std::string(tier),
                                       show(m.weights),     show(m.kv),
                                       show(m.activations), show(m.reserve)};
        if (stands_by) cells.push_back(show(m.standby));
        const double used = static_cast<double>(m.total()) / static_cast<double>(std::max<std::int64_t>(m.limit, 1));
        cells.insert(cells.end(), {show(m.total()), show(m.limit), percent(used)});
        table.add(std::move(cells));
      }
    }
  }
  return table.empty() ? "" : table.render();
}

std::string batches_text(const ServePlan& plan) {
  const auto by_batch = [](const Route& a, const Route& b) { return a.batch < b.batch; };
  const auto [least, most] = std::minmax_element(plan.routes.begin(), plan.routes.end(), by_batch);
  if (least == plan.routes.end()) return "0";
  return least->batch == most->batch ? fmt::format("{}", least->batch)
                                     : fmt::format("{} to {}", least->batch, most->batch);
}

std::string predicted_table(const ServePlan& plan) {
  const ServePrediction& p = plan.predicted;
  Table table({"", ">", ""});
  table.add({"request latency", human_seconds(p.latency_s),
             fmt::format("mean lengths, {} in flight per route", batches_text(plan))});
  table.add({"busiest stage", human_seconds(p.bottleneck_s), "busy per request"});
  table.add({"requests", fmt::format("{:.3g}/s", p.requests_per_s), ""});
  table.add({"output tokens", fmt::format("{:.4g}/s", p.tokens_per_s),
             p.tokens_per_s_range ? range_text(*p.tokens_per_s_range, "/s: types that were not measured") : ""});
  if (p.kl) table.add({"divergence", fmt::format("{:.2g}", *p.kl), "KL to the unquantised model, as published"});
  if (p.slo_attainment) table.add({"inside deadlines", percent(*p.slo_attainment), ""});
  return table.render();
}

}  // namespace

std::string streaming_text(const Stage& stage) {
  const TierCounts weights = counts_of(stage.offload->weights, stage.layers.size());
  const TierCounts kv = counts_of(stage.offload->kv, stage.layers.size());
  std::vector<std::string> homes;
  if (weights.host > 0) homes.push_back(fmt::format("{} from host memory", weights.host));
  if (weights.disk > 0) homes.push_back(fmt::format("{} from disk", weights.disk));
  std::string text = homes.empty() ? "" : fmt::format("streams {}", fmt::join(homes, " and "));
  if (kv.away() > 0) text += fmt::format("{}keys of {} layers away", text.empty() ? "" : ", ", kv.away());
  return text.empty() ? "all on the device" : text;
}

std::string compact_devices(const std::vector<std::string>& devices) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < devices.size();) {
    const Slot first = split_device(devices[i]);
    std::size_t end = i + 1;
    while (first.slot >= 0 && end < devices.size()) {
      const Slot next = split_device(devices[end]);
      if (next.machine != first.machine || next.slot != first.slot + static_cast<int>(end - i)) break;
      ++end;
    }
    parts.push_back(end - i > 1 ? fmt::format("{}-{}", devices[i], split_device(devices[end - 1]).slot) : devices[i]);
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string plan_summary(const ServePlan& plan) {
  std::size_t used = 0;
  for (const auto& stage : plan.stages) used += stage.devices.size();
  const auto count = [](std::size_t n, std::string_view word) {
    return fmt::format("{} {}{}", n, word, n == 1 ? "" : "s");
  };
  std::string text =
      fmt::format("{}, {} on {} of {}", count(plan.routes.size(), "route"), count(plan.stages.size(), "stage"), used,
                  count(plan.cluster.devices.size(), "device"));
  if (plan.routes.size() == 1) {
    std::vector<std::string> degrees, layers;
    for (const auto& hop : plan.routes[0].path) {
      degrees.push_back(fmt::format("{}", plan.stage(hop.stage).devices.size()));
      layers.push_back(fmt::format("{}", hop.layers.size()));
    }
    text += fmt::format("; tp {}; layers {}", fmt::join(degrees, " > "), fmt::join(layers, " | "));
  }
  return text;
}

std::string plan_report(const ServePlan& plan) {
  std::string out =
      fmt::format("{} ({} parameters) on {}: {}\n", printable(plan.model.name),
                  human_count(static_cast<double>(total_parameters(plan.model.arch))),
                  plan.cluster.description.name.empty() ? "the cluster" : printable(plan.cluster.description.name),
                  plan_summary(plan));
  double weights = 0;
  for (const auto& route : plan.routes) weights += route.weight;
  for (const auto& route : plan.routes)
    out +=
        fmt::format("\nroute {}{}\n{}", route.id,
                    plan.routes.size() > 1 ? fmt::format(": {} of the requests", percent(route.weight / weights)) : "",
                    stages_table(plan, route));
  if (const std::string memory = memory_table(plan); !memory.empty()) out += "\nmemory\n" + memory;
  out += "\npredicted\n" + predicted_table(plan);
  if (!plan.unused.empty()) {
    Table table({"device", "reason"});
    for (const auto& unused : plan.unused) table.add({unused.device, unused.reason});
    out += "\nunused\n" + table.render();
  }
  return out;
}

std::string violations_report(const std::vector<Violation>& violations) {
  if (violations.empty()) return "no violations\n";
  std::string out;
  for (const auto& violation : violations) {
    out += fmt::format("{}: {}\n", violation.place, violation.what);
    if (!violation.hint.empty()) out += fmt::format("  hint: {}\n", violation.hint);
  }
  return out;
}

}  // namespace motley
