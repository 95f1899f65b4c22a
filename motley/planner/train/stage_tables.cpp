#include "motley/planner/train/stage_tables.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace motley {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 2e-3;               // of a stage's time
constexpr double kForbidden_s = 1e15;             // a layout change that nobody takes
constexpr std::int64_t kRoundingBytes = 1 << 20;  // every part of a stage is rounded up to whole bytes

bool can_cut(const Architecture& arch, std::int64_t degree) {
  return arch.heads % degree == 0 && (arch.kv_heads % degree == 0 || degree % arch.kv_heads == 0) &&
         arch.ffn % degree == 0;
}

}  // namespace

std::vector<LayerStrategy> stage_strategies(const Architecture& arch, std::int64_t devices, std::int64_t sequences) {
  std::vector<LayerStrategy> list;
  for (std::int64_t tp = 1; tp <= devices; ++tp) {
    const std::int64_t dp = devices / tp;
    if (devices % tp != 0 || !can_cut(arch, tp) || dp > sequences) continue;
    for (const Sharding shard : {Sharding::none, Sharding::zero1, Sharding::zero2, Sharding::zero3})
      for (const bool recompute : {false, true})
        if (dp > 1 || shard == Sharding::none)
          list.push_back({.layers = {}, .tp = tp, .dp = dp, .shard = shard, .recompute = recompute});
  }
  return list;
}

namespace {

double most_bytes(const std::vector<TrainMemory>& ranks) {
  std::int64_t most = 0;
  for (const TrainMemory& rank : ranks) most = std::max(most, rank.total());
  return static_cast<double>(most);
}

struct Bytes {
  double held = 0, in_flight = 0, transient = 0;
};

// Of one block, from the arithmetic that the verifier uses.
Bytes block_bytes(const TrainProblem& problem, LayerStrategy strategy, const StagePlace& place) {
  strategy.layers = {0, 1};
  const auto total = [&](std::int64_t layers, std::int64_t in_flight) {
    strategy.layers = {0, layers};
    return most_bytes(train_memory(problem.model.arch, problem.training,
                                   {.sequences = place.sequences, .in_flight = in_flight}, {strategy}));
  };
  const double one = total(1, 0), two = total(2, 0);
  return {two - one, total(1, 1) - one, one - (two - one)};
}

// States of the ends' parameters, and the logits at work.
double end_bytes(const TrainProblem& problem, LayerStrategy strategy, const StagePlace& place) {
  strategy.layers = {0, 1};
  StageFootprint footprint{.sequences = place.sequences, .in_flight = 0};
  const double without = most_bytes(train_memory(problem.model.arch, problem.training, footprint, {strategy}));
  footprint.embedding = place.ends.first;
  footprint.head = place.ends.last;
  return most_bytes(train_memory(problem.model.arch, problem.training, footprint, {strategy})) - without;
}

// Once per step for one block inside the stage: what the exchange of gradients will cost it.
double sync_s(const TrainProblem& problem, const std::vector<int>& devices, const LayerStrategy& strategy) {
  if (strategy.dp < 2 || strategy.shard >= Sharding::zero2) return 0;
  const double bytes =
      problem.cost.block_bytes(state_bytes(problem.training).gradient) / static_cast<double>(strategy.tp);
  const auto ranks = static_cast<double>(strategy.dp);
  LinkLoads loads(problem.cluster, problem.profile);
  for (std::int64_t k = 0; k < strategy.tp; ++k) {
    std::vector<int> ring;
    for (std::int64_t d = 0; d < strategy.dp; ++d)
      ring.push_back(devices[static_cast<std::size_t>(d * strategy.tp + k)]);
    loads.add_ring(ring, 2 * bytes * (ranks - 1) / ranks, bytes / ranks);
  }
  return loads.seconds();
}

}  // namespace

// The sites are the end, where there is one, and then the blocks: from the front, or from the head backwards, so that
// the first n + 1 sites are a stage of n layers whatever n is. A stage with both ends has them in one site.
StageTable::StageTable(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place)
    : strategies_(stage_strategies(problem.model.arch, std::ssize(devices), place.sequences)),
      ends_first_(place.ends.first || place.ends.last),
      reversed_(place.ends.last) {
  const Architecture& arch = problem.model.arch;
  const std::int64_t layers = arch.layers;
  seconds_.assign(static_cast<std::size_t>(layers) + 1, kNever);
  points_.resize(seconds_.size());
  if (strategies_.empty()) return;

  // Layouts: activations by degree; beside an end also by sharding, for an end is sharded as its block is.
  StrategyRun ends{.options = {}, .repeat = 1}, blocks{.options = {}, .repeat = layers};
  std::map<std::tuple<std::int64_t, Sharding>, int> classes;
  const auto layout_class = [&](const LayerStrategy& strategy) {
    return std::tuple(strategy.tp, ends_first_ ? strategy.shard : Sharding::none);
  };
  for (const auto& strategy : strategies_) classes.emplace(layout_class(strategy), static_cast<int>(classes.size()));
  const auto count = classes.size();
  const StageWork work{devices, {}, place.sequences};
  std::set<int> with_end;
  for (const auto& strategy : strategies_) {
    const int layout = classes.at(layout_class(strategy));
    const BlockPass pass = problem.cost.block(work, strategy);
    const Bytes bytes = block_bytes(problem, strategy, place);
    blocks.options.push_back({.time_s = pass.forward_s + pass.backward_s,
                              .sync_s = sync_s(problem, devices, strategy),
                              .bytes = bytes.held,
                              .bytes_in_flight = bytes.in_flight,
                              .transient_bytes = bytes.transient,
                              .layout_in = layout,
                              .layout_out = layout});
    if (!ends_first_ || !with_end.insert(layout).second) continue;
    const BlockPass head = place.ends.last ? problem.cost.head(work, strategy) : BlockPass{};
    ends.options.push_back({.time_s = head.forward_s + head.backward_s,
                            .bytes = end_bytes(problem, strategy, place),
                            .layout_in = layout + static_cast<int>(count),
                            .layout_out = layout + static_cast<int>(count)});
  }
  StrategyChain chain{.runs = {}, .layout_change_s = {}};
  if (ends_first_) chain.runs.push_back(std::move(ends));
  chain.runs.push_back(std::move(blocks));
  chain.micro_batches = static_cast<double>(place.micro_batches);
  chain.in_flight = static_cast<double>(place.in_flight);
  const std::size_t layouts = ends_first_ ? 2 * count : count;
  chain.layout_change_s.assign(layouts, std::vector<double>(layouts, kForbidden_s));
  const double change_s =
      devices.size() > 1 ? 2 * problem.cost.hop({devices[0]}, {devices[1]}, place.sequences).busy_s : 0;
  for (const auto& [from, a] : classes) {
    if (ends_first_) chain.layout_change_s[static_cast<std::size_t>(a) + count][static_cast<std::size_t>(a)] = 0;
    for (const auto& [to, b] : classes)
      chain.layout_change_s[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] =
          std::get<0>(from) == std::get<0>(to) ? 0 : change_s;
  }

  std::int64_t budget = std::numeric_limits<std::int64_t>::max();
  for (const int device : devices) {
    const DeviceType& type = problem.cluster.type_of(device);
    budget = std::min(budget, type.memory_bytes - type.reserve_bytes.value_or(0) - kRoundingBytes);
  }
  fronts_ = std::make_unique<StrategyFronts>(chain, StrategyLimits{.tolerance = kTolerance});
  for (std::int64_t n = 1; n <= layers; ++n) {
    const auto front = fronts_->front(ends_first_ ? n + 1 : n);
    // By bytes, ascending: the last that fits is the quickest.
    const auto after = std::partition_point(
        front.begin(), front.end(), [&](const auto& point) { return point.bytes <= static_cast<double>(budget); });
    if (after == front.begin() || std::prev(after)->time_s >= kForbidden_s) break;
    points_[static_cast<std::size_t>(n)] = *std::prev(after);
    seconds_[static_cast<std::size_t>(n)] = std::prev(after)->time_s / static_cast<double>(place.micro_batches);
    most_layers_ = n;
  }
}

std::vector<LayerStrategy> StageTable::strategies(std::int64_t first, std::int64_t layers) const {
  MOTLEY_CHECK(layers >= 1 && layers <= most_layers_);
  const std::int64_t sites = ends_first_ ? layers + 1 : layers;
  std::vector<int> choice = fronts_->choice(sites, points_[static_cast<std::size_t>(layers)]);
  if (ends_first_) choice.erase(choice.begin());
  if (reversed_) std::reverse(choice.begin(), choice.end());
  std::vector<LayerStrategy> ranges;
  for (std::int64_t i = 0; i < layers; ++i) {
    LayerStrategy strategy = strategies_[static_cast<std::size_t>(choice[static_cast<std::size_t>(i)])];
    strategy.layers = {first + i, first + i + 1};
    if (!ranges.empty()) {
      LayerStrategy longer = ranges.back();
      longer.layers.last = strategy.layers.last;
      LayerStrategy same = strategy;
      same.layers = longer.layers;
      if (same == longer) {
        ranges.back() = longer;
        continue;
      }
    }
    ranges.push_back(strategy);
  }
  return ranges;
}

const StageTable& StageTables::table(const std::vector<int>& devices, const StagePlace& where) {
  StagePlace place = where;
  if (devices.size() == 1) place.micro_batches = 1;  // nothing happens once per step
  Look look;
  for (const int device : devices) {
    look.push_back(problem_.cluster.devices[static_cast<std::size_t>(device)].type);
    for (const int other : devices) {
      if (other == device) continue;
      const PathSpeed path = problem_.cluster.link(device, other);
      look.push_back(path.latency_s);
      look.push_back(path.bandwidth_bytes_per_s);
    }
  }
  const std::pair key(std::move(look), place);
  const std::lock_guard lock(mutex_);
  auto& table = tables_[key];
  if (!table) table = std::make_unique<StageTable>(problem_, devices, place);
  return *table;
}

}  // namespace motley
