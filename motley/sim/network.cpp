#include "motley/sim/network.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace motley::sim {
namespace {

bool alike(const Rank& a, const Rank& b) {
  return a.block_bytes == b.block_bytes && a.memory_bandwidth_bytes_per_s == b.memory_bandwidth_bytes_per_s &&
         a.flop_per_s == b.flop_per_s && a.efficiency == b.efficiency && a.overhead == b.overhead &&
         a.block_flops == b.block_flops && a.attention_flops == b.attention_flops && a.kv_bytes == b.kv_bytes &&
         a.head_bytes == b.head_bytes && a.head_flops == b.head_flops;
}

// The slowest rank sets the pace, so that one of each kind says as much as all.
void drop_repeated_ranks(TensorGroup& group) {
  std::vector<Rank> kinds;
  for (const Rank& rank : group.ranks)
    if (std::ranges::none_of(kinds, [&](const Rank& kind) { return alike(kind, rank); })) kinds.push_back(rank);
  group.ranks = std::move(kinds);
}

std::pair<int, int> fastest_pair(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to,
                                 double bytes) {
  std::pair<int, int> fastest{from.front(), to.front()};
  double least = std::numeric_limits<double>::infinity();
  for (const int a : from)
    for (const int b : to)
      if (const double seconds = cluster.link(a, b).seconds(bytes); seconds < least) {
        least = seconds;
        fastest = {a, b};
      }
  return fastest;
}

void check_settings(const CostOptions& options) {
  for (const auto& [key, value] : options.settings) {
    if (key != "motley.layer_overhead_s" && key != "motley.step_overhead_s")
      throw input_error("the simulator has no setting \"" + key + "\"",
                        "use motley.layer_overhead_s or motley.step_overhead_s");
    if (!(value >= 0) || !std::isfinite(value))
      throw input_error(key + " must be a time in seconds", "give a number of at least 0");
  }
}

}  // namespace

double Way::occupancy_s(double tokens, double bytes) const {
  if (tokens_per_s > 0) return tokens / tokens_per_s;
  if (rate != nullptr) return bytes / bytes_per_s(*rate, bytes);
  return bytes / path(bytes).bandwidth_bytes_per_s;
}

Network::Network(const ServePlan& plan, const Router& router, const CostOptions& options)
    : plan_(plan), cost_(options, plan.cluster, plan.model.arch) {
  check_settings(options);
  std::map<std::string, int> device_numbers;
  for (std::size_t i = 0; i < plan.cluster.devices.size(); ++i)
    device_numbers[plan.cluster.devices[i].name] = static_cast<int>(i);
  std::map<std::string, std::uint32_t> stage_numbers;
  for (const Stage& stage : plan.stages) {
    stage_numbers[stage.id] = static_cast<std::uint32_t>(stages_.size());
    std::vector<int> devices;
    for (const std::string& name : stage.devices) devices.push_back(device_numbers.at(name));
    const auto measured = measured_tokens_per_s(plan.profile, plan.cluster, devices, stage.layers.size());
    stages_.push_back({make_group(plan.cluster, plan.model.arch, std::move(devices), stage.shares, stage.weight_type,
                                  stage.kv_type, plan.step),
                       measured.value_or(0)});
    stages_.back().workers = stages_.back().group.degree();
    drop_repeated_ranks(stages_.back().group);
  }
  for (const RouteChain& chain : router.chains()) chains_.push_back(chain_model(chain, stage_numbers));
  for (std::size_t route = 0; route < plan.routes.size(); ++route)
    if (const auto decode = router.decode_chain(route)) add_transfers(chains_[route], chains_[*decode], route);
}

ChainModel Network::chain_model(const RouteChain& chain, const std::map<std::string, std::uint32_t>& stage_numbers) {
  ChainModel model;
  for (std::size_t i = 0; i < chain.hops; ++i) {
    const Hop& hop = plan_.routes[chain.route].path[chain.first_hop + i];
    model.hops.push_back({.stage = stage_numbers.at(hop.stage),
                          .layers = hop.layers.size(),
                          .ends = {i == 0, i + 1 == chain.hops},
                          .next = {}});
    if (i > 0) model.hops[i - 1].next = way(model.hops[i - 1].stage, model.hops[i].stage);
  }
  if (chain.hops > 1)
    model.back = best_link(plan_.cluster, stages_[model.hops.back().stage].group.devices,
                           stages_[model.hops.front().stage].group.devices, token_id_bytes);
  return model;
}

void Network::add_transfers(ChainModel& prefill, const ChainModel& decode, std::size_t route) {
  const std::vector<Hop>& path = plan_.routes[route].path;
  for (std::size_t i = 0; i < prefill.hops.size(); ++i)
    for (std::size_t j = 0; j < decode.hops.size(); ++j) {
      const LayerRange &here = path[i].layers, &there = path[prefill.hops.size() + j].layers;
      const std::int64_t common = std::min(here.end, there.end) - std::max(here.first, there.first);
      const std::uint32_t from = prefill.hops[i].stage, to = decode.hops[j].stage;
      if (common <= 0 || from == to) continue;
      const auto layer_bytes = static_cast<double>(kv_bytes_per_token(plan_.model.arch, plan_.stages[from].kv_type));
      prefill.transfers.push_back({way(from, to), static_cast<double>(common) * layer_bytes});
    }
}

Way Network::way(std::uint32_t from, std::uint32_t to) {
  const TensorGroup &sender = stages_[from].group, &receiver = stages_[to].group;
  const double most = cost_.activation_bytes(sender, static_cast<double>(plan_.step.max_tokens));
  const auto [a, b] = fastest_pair(plan_.cluster, sender.devices, receiver.devices, cost_.activation_bytes(sender, 1));
  const auto [c, d] = fastest_pair(plan_.cluster, sender.devices, receiver.devices, most);
  const MeasuredLink measured = measured_link(plan_.profile, plan_.cluster, c, d);
  return {.link = link_between(from, to, c, d),
          .small = plan_.cluster.link(a, b),
          .large = plan_.cluster.link(c, d),
          .token_bytes = cost_.activation_bytes(sender, 1),
          .tokens_per_s = measured.tokens != nullptr ? measured.tokens->tokens_per_s : 0,
          .rate = measured.rate};
}

// Everything from one machine to another shares one link in that direction; inside a machine every pair of stages has
// its own.
std::uint32_t Network::link_between(std::uint32_t from_stage, std::uint32_t to_stage, int from, int to) {
  const auto machine = [&](int device) {
    return static_cast<std::uint32_t>(plan_.cluster.devices[static_cast<std::size_t>(device)].machine);
  };
  const std::uint32_t here = machine(from), there = machine(to);
  const bool inside = here == there;
  const auto [entry, added] = link_numbers_.try_emplace(
      inside ? std::tuple(true, from_stage, to_stage) : std::tuple(false, here, there), links_.size());
  if (added)
    links_.push_back(inside ? LinkModel{plan_.stages[from_stage].id, plan_.stages[to_stage].id}
                            : LinkModel{plan_.cluster.machines[here].name, plan_.cluster.machines[there].name});
  return entry->second;
}

// A token in the middle of a chunk sees half of the chunk.
StepLoad Network::load_of(const RoutedStep& step) const {
  StepLoad load;
  for (const ScheduledSequence& part : step.sequences) {
    const auto count = static_cast<double>(part.count);
    const double context = cost_.seen(static_cast<double>(part.position) + count / 2);
    load.tokens += count;
    load.context += count * context;
    load.cached += context;
    load.logits += part.samples ? 1 : 0;
  }
  load.context /= load.tokens;
  return load;
}

double Network::stage_s(const StageHop& hop, const StepLoad& load) const {
  const StageModel& stage = stages_[hop.stage];
  if (stage.measured_tokens_per_s > 0) return load.tokens / stage.measured_tokens_per_s;
  return static_cast<double>(hop.layers) * cost_.block_s(stage.group, load) + cost_.ends_s(stage.group, hop.ends, load);
}

double Network::back_s(const ChainModel& chain, double sequences) const {
  const double link_s =
      chain.hops.size() > 1 && !plan_.cluster.description.driver ? chain.back.seconds(sequences * token_id_bytes) : 0;
  return link_s + cost_.driver().step_s;
}

}  // namespace motley::sim
