#include "motley/planner/train/strategy_tables.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "motley/solve/strategy_chain.hpp"

namespace motley {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-3;               // of a stage's time
constexpr std::int64_t kMostPoints = 200'000;     // of the kernel: some milliseconds
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

// What one block asks for under a strategy.
struct BlockOption {
  LayerStrategy strategy;
  double seconds = 0;  // of a micro-batch, with the block's part of what happens once per step
  Bytes bytes;
  double end_bytes = 0, end_s = 0;  // of the stage's ends, which are held as their neighbouring block is
};

std::vector<BlockOption> block_options(const TrainProblem& problem, const std::vector<int>& devices,
                                       const StagePlace& place) {
  std::vector<BlockOption> options;
  const StageWork work{devices, {}, place.sequences};
  for (const LayerStrategy& strategy : stage_strategies(problem.model.arch, std::ssize(devices), place.sequences)) {
    const BlockPass pass = problem.cost.block(work, strategy);
    const BlockPass head = place.ends.last ? problem.cost.head(work, strategy) : BlockPass{};
    BlockOption& option = options.emplace_back();
    option.strategy = strategy;
    option.seconds = pass.forward_s + pass.backward_s +
                     sync_s(problem, devices, strategy) / static_cast<double>(place.micro_batches);
    option.bytes = block_bytes(problem, strategy, place);
    option.end_s = head.forward_s + head.backward_s;
    option.end_bytes = place.ends.first || place.ends.last ? end_bytes(problem, strategy, place) : 0;
  }
  return options;
}

double budget_of(const TrainProblem& problem, const std::vector<int>& devices) {
  std::int64_t budget = std::numeric_limits<std::int64_t>::max();
  for (const int device : devices) {
    const DeviceType& type = problem.cluster.type_of(device);
    budget = std::min(budget, type.memory_bytes - type.reserve_bytes.value_or(0) - kRoundingBytes);
  }
  return static_cast<double>(budget);
}

}  // namespace

// Of a strategy a as many layers as memory holds, the rest under b, which is slower and smaller: all pairs of one
// degree. Blocks are alike, so nothing else matters but how many there are of each.
StrategyTable::StrategyTable(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place)
    : reversed_(place.ends.last && !place.ends.first) {
  const std::int64_t layers = problem.model.arch.layers;
  mixes_.resize(static_cast<std::size_t>(layers) + 1);
  seconds_.assign(mixes_.size(), kNever);
  const double budget = budget_of(problem, devices);
  const auto in_flight = static_cast<double>(place.in_flight);
  const std::vector<BlockOption> options = block_options(problem, devices, place);
  const auto held = [&](const BlockOption& option) { return option.bytes.held + in_flight * option.bytes.in_flight; };
  for (const BlockOption& a : options)
    for (const BlockOption& b : options) {
      const bool alone = &a == &b;
      if (a.strategy.tp != b.strategy.tp || (!alone && (a.seconds >= b.seconds || held(a) <= held(b)))) continue;
      const double room = budget - std::max(a.bytes.transient, b.bytes.transient);
      // The end stands beside a layer of a or of b; both ends of one stage may stand beside either.
      for (const BlockOption* end : {&a, &b})
        for (std::int64_t n = 1; n <= layers; ++n) {
          const double end_bytes =
              place.ends.first && place.ends.last ? std::max(a.end_bytes, b.end_bytes) : end->end_bytes;
          const double left = room - end_bytes - static_cast<double>(n) * held(b);
          if (left < 0) break;
          const std::int64_t most = alone ? n : static_cast<std::int64_t>(left / (held(a) - held(b)));
          const std::int64_t count = std::min(n, most);
          if ((end == &a && count == 0) || (end == &b && count == n && !alone)) continue;
          const double seconds =
              static_cast<double>(count) * a.seconds + static_cast<double>(n - count) * b.seconds + end->end_s;
          if (seconds >= seconds_[static_cast<std::size_t>(n)]) continue;
          seconds_[static_cast<std::size_t>(n)] = seconds;
          mixes_[static_cast<std::size_t>(n)] =
              end == &a ? Mix{a.strategy, b.strategy, count} : Mix{b.strategy, a.strategy, n - count};
          most_layers_ = std::max(most_layers_, n);
        }
    }
}

std::vector<LayerStrategy> StrategyTable::strategies(std::int64_t first, std::int64_t layers) const {
  MOTLEY_CHECK(layers >= 1 && layers <= most_layers_);
  Mix mix = mixes_[static_cast<std::size_t>(layers)];
  // The strategy at the end comes first, or last where the end is the head.
  if (reversed_) mix = {mix.other, mix.at_end, layers - mix.count};
  std::vector<LayerStrategy> ranges;
  if (mix.count > 0) ranges.push_back(mix.at_end);
  if (mix.count < layers) ranges.push_back(mix.other);
  ranges.front().layers = {first, first + (ranges.size() == 2 ? mix.count : layers)};
  if (ranges.size() == 2) ranges.back().layers = {first + mix.count, first + layers};
  return ranges;
}

std::vector<LayerStrategy> best_strategies(const TrainProblem& problem, const std::vector<int>& devices,
                                           const StagePlace& place, LayerRange layers) {
  // Sites: the end, and the blocks from it. Layouts: activations by degree, beside an end also by sharding, for an end
  // is sharded as its block is.
  const bool has_end = place.ends.first || place.ends.last;
  const bool reversed = place.ends.last && !place.ends.first;
  const std::vector<BlockOption> options = block_options(problem, devices, place);
  std::map<std::tuple<std::int64_t, Sharding>, int> classes;
  const auto layout_class = [&](const LayerStrategy& strategy) {
    return std::tuple(strategy.tp, has_end ? strategy.shard : Sharding::none);
  };
  for (const auto& option : options) classes.emplace(layout_class(option.strategy), static_cast<int>(classes.size()));
  const auto count = classes.size();
  StrategyRun ends{.options = {}, .repeat = 1}, blocks{.options = {}, .repeat = layers.size()};
  std::set<int> with_end;
  for (const auto& option : options) {
    const int layout = classes.at(layout_class(option.strategy));
    blocks.options.push_back({.time_s = option.seconds,
                              .sync_s = 0,
                              .bytes = option.bytes.held,
                              .bytes_in_flight = option.bytes.in_flight,
                              .transient_bytes = option.bytes.transient,
                              .layout_in = layout,
                              .layout_out = layout});
    const int outer = layout + static_cast<int>(count);
    if (has_end && with_end.insert(layout).second)
      ends.options.push_back(
          {.time_s = option.end_s, .bytes = option.end_bytes, .layout_in = outer, .layout_out = outer});
  }
  StrategyChain chain{.runs = {}, .layout_change_s = {}};
  if (has_end) chain.runs.push_back(std::move(ends));
  chain.runs.push_back(std::move(blocks));
  chain.in_flight = static_cast<double>(place.in_flight);
  const std::size_t layouts = has_end ? 2 * count : count;
  chain.layout_change_s.assign(layouts, std::vector<double>(layouts, kForbidden_s));
  const double change_s =
      devices.size() > 1 ? 2 * problem.cost.hop({devices[0]}, {devices[1]}, place.sequences).busy_s : 0;
  for (const auto& [from, a] : classes) {
    if (has_end) chain.layout_change_s[static_cast<std::size_t>(a) + count][static_cast<std::size_t>(a)] = 0;
    for (const auto& [to, b] : classes)
      chain.layout_change_s[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] =
          std::get<0>(from) == std::get<0>(to) ? 0 : change_s;
  }

  const StrategyAnswer answer =
      solve_strategy_chain(chain, budget_of(problem, devices), {.tolerance = kTolerance, .max_points = kMostPoints});
  if (answer.choice.empty() || answer.time_s >= kForbidden_s) return {};
  std::vector<int> choice(answer.choice.begin() + (has_end ? 1 : 0), answer.choice.end());
  if (reversed) std::reverse(choice.begin(), choice.end());
  std::vector<LayerStrategy> ranges;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    const std::int64_t layer = layers.first + static_cast<std::int64_t>(i);
    if (i > 0 && choice[i] == choice[i - 1]) {
      ++ranges.back().layers.last;
      continue;
    }
    ranges.push_back(options[static_cast<std::size_t>(choice[i])].strategy);
    ranges.back().layers = {layer, layer + 1};
  }
  return ranges;
}

const StrategyTable& StrategyTables::table(const std::vector<int>& devices, const StagePlace& where) {
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
  if (!table) table = std::make_unique<StrategyTable>(problem_, devices, place);
  return *table;
}

}  // namespace motley
