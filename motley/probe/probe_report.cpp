#include "motley/probe/probe_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "motley/base/units.hpp"
#include "motley/cost/serve/step.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

Value path_json(const PathSpeed& path) {
  return Value::object({{"latency_s", path.latency_s}, {"bandwidth_bytes_per_s", path.bandwidth_bytes_per_s}});
}

Value steps_json(const std::vector<ProbedStep>& steps) {
  Value list = Value::array();
  for (const ProbedStep& step : steps)
    list.push_back(Value::object({{"ffn", step.ffn},
                                  {"layers", step.layers},
                                  {"sequences", step.sequences},
                                  {"tokens", step.tokens},
                                  {"position", step.position},
                                  {"measured_s", step.measured_s},
                                  {"predicted_s", step.predicted_s}}));
  return list;
}

}  // namespace

Value probe_json(const Cluster& cluster, const ProbeResult& result) {
  Value types = Value::object();
  for (const auto& [type, probed] : result.types)
    types.set(
        name_of(type),
        Value::object({{"bandwidth_bytes_per_s", probed.rates.bandwidth_bytes_per_s},
                       {"product_flop_per_s", probed.rates.product_flop_per_s},
                       {"attention_bandwidth_bytes_per_s", probed.rates.attention_bandwidth_bytes_per_s},
                       {"attention_flop_per_s", probed.rates.attention_flop_per_s},
                       {"layer_overhead_s", probed.rates.overhead.layer_s},
                       {"step_overhead_s", probed.rates.overhead.step_s},
                       {"in_turn", probed.rates.in_turn},
                       {"fit_error", Value::object({{"median", probed.error.median}, {"worst", probed.error.worst}})},
                       {"steps", steps_json(probed.steps)}}));
  Value channels = Value::object(), machines = Value::object();
  for (const auto& [transport, path] : result.channels) channels.set(transport, path_json(path));
  for (std::size_t m = 0; m < result.inside.size(); ++m)
    if (result.inside[m]) machines.set(cluster.machines[m].name, path_json(*result.inside[m]));
  Value measured = Value::object({{"types", types},
                                  {"channels", channels},
                                  {"machines", machines},
                                  {"driver_step_s", result.driver.step_s},
                                  {"driver_request_s", result.driver.request_s},
                                  {"cores", result.cores},
                                  {"elapsed_s", result.elapsed_s}});
  if (result.tiers)
    measured.set("tiers", Value::object({{"disk_free_bytes", result.tiers->disk.capacity_bytes},
                                         {"disk_read_bytes_per_s", result.tiers->disk.read_bytes_per_s},
                                         {"disk_write_bytes_per_s", result.tiers->disk.write_bytes_per_s},
                                         {"disk_both_bytes_per_s", result.tiers->disk.both_bytes_per_s},
                                         {"host_memory_bytes", result.host_memory_bytes},
                                         {"host_copy_bytes_per_s", result.tiers->copy_bytes_per_s}}));
  return measured;
}

std::string probe_text(const Cluster& cluster, const ProbeResult& result) {
  Table rates(
      {"weights", ">one row", ">many rows", ">attention, one", ">many", ">per layer", ">per step", "fit error"});
  for (const auto& [type, probed] : result.types)
    rates.add({std::string(name_of(type)), human_rate(probed.rates.bandwidth_bytes_per_s),
               human_flop(probed.rates.product_flop_per_s) + "/s",
               human_rate(probed.rates.attention_bandwidth_bytes_per_s),
               human_flop(probed.rates.attention_flop_per_s) + "/s", human_seconds(probed.rates.overhead.layer_s),
               human_seconds(probed.rates.overhead.step_s),
               fmt::format("{:.0f} % (worst {:.0f} %)", 100 * probed.error.median, 100 * probed.error.worst)});
  Table links({"link", ">latency", ">bandwidth"});
  const auto add = [&](const std::string& name, const PathSpeed& path) {
    links.add({name, human_seconds(path.latency_s), human_rate(path.bandwidth_bytes_per_s)});
  };
  for (const auto& [transport, path] : result.channels) add("between two workers, " + transport, path);
  for (std::size_t m = 0; m < result.inside.size(); ++m)
    if (result.inside[m])
      add(fmt::format("in {}, {} workers at once", cluster.machines[m].name, cluster.machines[m].devices.size()),
          *result.inside[m]);
  std::string tiers;
  if (result.tiers) {
    const Disk& disk = result.tiers->disk;
    Table table({"tier", ">free", ">read", ">write", ">both"});
    table.add({"disk", human_bytes(static_cast<double>(disk.capacity_bytes)), human_rate(disk.read_bytes_per_s),
               human_rate(disk.write_bytes_per_s), human_rate(disk.both_bytes_per_s)});
    table.add({"host memory", human_bytes(static_cast<double>(result.host_memory_bytes)),
               human_rate(result.tiers->copy_bytes_per_s), "", ""});
    tiers = table.render() + "\n";
  }
  const bool linked =
      !result.channels.empty() || std::ranges::any_of(result.inside, [](const auto& path) { return path.has_value(); });
  return fmt::format("{}\n{}{}driver: {} per step, {} per request; {} cores; measured in {}\n", rates.render(),
                     linked ? links.render() + "\n" : "", tiers, human_seconds(result.driver.step_s),
                     human_seconds(result.driver.request_s), result.cores, human_seconds(result.elapsed_s));
}

std::string profile_text(const Profile& profile) {
  Table times({"device type", ">degree", ">sequences", "part", ">forward", ">backward", ">update"});
  for (const LayerTime& time : profile.layer_time)
    times.add({time.device_type, fmt::format("{}", time.tp), fmt::format("{}", time.micro_batch),
               std::string(name_of(time.part)), human_seconds(time.forward_s), human_seconds(time.backward_s),
               human_seconds(time.update_s)});
  std::string text = times.render();
  for (const LinkRate& rate : profile.link_rate)
    text +=
        fmt::format("  gradients between {} and {}: {}/s\n", rate.from, rate.to, human_bytes(rate.bytes_per_s.front()));
  return text;
}

std::string routing_text(const Profile& profile, const Model& model) {
  struct Sums {
    double layers = 0, sequences = 0, fewest = 0, most = 0, prompt = 0;
    double priced_sequences = 0, priced_prompt = 0, by_chance = 0;
  };
  const std::vector<RoutingGamma> chance = {{.model = model.name}};
  std::map<std::int64_t, Sums> by_tokens;
  for (const ExpertCount& count : profile.routing) {
    const Experts& experts = model.arch.kind(count.layer).experts;
    const auto tokens = static_cast<double>(count.tokens), all = static_cast<double>(experts.count);
    const StepLoad decoding{.tokens = tokens, .logits = tokens}, prompt{.tokens = tokens};
    Sums& sums = by_tokens[count.tokens];
    sums.fewest = sums.layers == 0 ? count.distinct : std::min(sums.fewest, count.distinct);
    sums.most = std::max(sums.most, count.distinct);
    sums.layers += 1;
    sums.sequences += count.distinct;
    sums.prompt += count.distinct_of_prompt;
    sums.priced_sequences += all * touched_share(experts, decoding, profile.gamma);
    sums.priced_prompt += all * touched_share(experts, prompt, profile.gamma);
    sums.by_chance += all * touched_share(experts, decoding, chance);
  }
  Table table({">tokens", ">of sequences", ">fewest, most", ">priced", ">of one prompt", ">priced", ">by chance"});
  for (const auto& [tokens, sums] : by_tokens) {
    const auto over_layers = [layers = sums.layers](double sum) { return fmt::format("{:.1f}", sum / layers); };
    table.add({fmt::format("{}", tokens), over_layers(sums.sequences),
               fmt::format("{:.1f}, {:.1f}", sums.fewest, sums.most), over_layers(sums.priced_sequences),
               over_layers(sums.prompt), over_layers(sums.priced_prompt), over_layers(sums.by_chance)});
  }
  std::string text = table.render();
  for (const RoutingGamma& gamma : profile.gamma)
    text += fmt::format("  gamma up to {} tokens: {:.3f} of sequences, {:.3f} of one prompt\n", gamma.tokens,
                        gamma.sequences, gamma.prompt);
  return text;
}

}  // namespace motley
