#include "motley/planner/train/joint/strategy_tables.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "motley/planner/train/plan/apportion.hpp"
#include "motley/solve/strategy_chain.hpp"

namespace motley {
namespace {

constexpr double time_tolerance = 1e-3;           // of a stage's time
constexpr std::int64_t most_points = 200'000;     // of the kernel: some milliseconds
constexpr double forbidden_s = 1e15;              // a layout change that is never taken
constexpr std::int64_t rounding_bytes = 1 << 20;  // every part of a stage is rounded up to whole bytes

constexpr std::int64_t split_counts[] = {1, 4};  // of a gathered layer

bool can_cut(const Architecture& arch, std::int64_t degree) {
  return arch.heads % degree == 0 && std::ranges::all_of(arch.kinds, [&](const LayerKind& kind) {
           return kind.ffn % degree == 0 && (kind.kv_heads % degree == 0 || degree % kind.kv_heads == 0);
         });
}

bool alike(const TrainProblem& problem, const std::vector<int>& devices) {
  const auto type = [&](int device) { return problem.cluster.devices[static_cast<std::size_t>(device)].type; };
  return std::all_of(devices.begin(), devices.end(), [&](int device) { return type(device) == type(devices.front()); });
}

bool can_share(const TrainProblem& problem, const std::vector<int>& devices, const LayerStrategy& strategy) {
  if (strategy.tp > 1 && strategy.dp > 1) return false;
  try {
    make_shards(problem.model.arch, static_cast<int>(strategy.tp),
                strategy.tp > 1 ? work_shares(problem, devices, strategy, 1) : std::vector<double>{});
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

double blocks_per_s(const TrainProblem& problem, int device) { return 1 / problem.cost.sequence_time(device).block_s; }

std::vector<double> work_shares(const TrainProblem& problem, const std::vector<int>& devices,
                                const LayerStrategy& strategy, std::int64_t sequences) {
  if (alike(problem, devices)) return {};
  std::vector<double> shares;
  for (const int device : devices) shares.push_back(blocks_per_s(problem, device));
  if (strategy.dp > 1) {
    std::vector<ReplicaPace> paces;
    for (const double speed : shares) paces.push_back({.each_s = 1 / speed});
    const std::vector<std::int64_t> counts = apportion(paces, sequences, 1);
    MOTLEY_CHECK(counts.size() == devices.size());
    shares.assign(counts.begin(), counts.end());
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

std::vector<LayerStrategy> stage_strategies(const TrainProblem& problem, const std::vector<int>& devices,
                                            std::int64_t sequences) {
  std::vector<LayerStrategy> list;
  const std::int64_t count = std::ssize(devices);
  const bool like = alike(problem, devices);
  for (std::int64_t tp = 1; tp <= count; ++tp) {
    const LayerStrategy degrees{.layers = {}, .tp = tp, .dp = count / tp};
    if (count % tp != 0 || degrees.dp > sequences) continue;
    if (like ? !can_cut(problem.model.arch, tp) : !can_share(problem, devices, degrees)) continue;
    for (const Sharding shard : {Sharding::none, Sharding::zero1, Sharding::zero2, Sharding::zero3})
      for (const bool recompute : {false, true})
        for (const std::int64_t split : split_counts) {
          if ((degrees.dp == 1 && shard != Sharding::none) || (shard != Sharding::zero3 && split > 1)) continue;
          LayerStrategy& strategy = list.emplace_back(degrees);
          strategy.shard = shard;
          strategy.recompute = recompute;
          strategy.split = split;
        }
  }
  return list;
}

namespace {

// What a stage's memory is held against: bytes on the rank where they weigh most, as bytes of its smallest device.
class Weighing {
 public:
  Weighing(const TrainProblem& problem, const std::vector<int>& devices) {
    for (const int device : devices) {
      const DeviceType& type = problem.cluster.type_of(device);
      const std::int64_t room = type.memory_bytes - type.reserve_bytes.value_or(0) - rounding_bytes;
      scales_.push_back(static_cast<double>(std::max<std::int64_t>(room, 1)));
    }
    budget_ = *std::min_element(scales_.begin(), scales_.end());
    for (double& scale : scales_) scale = budget_ / scale;
  }
  double budget() const { return budget_; }
  // Of a x `first` + b x `second`, rank by rank.
  double most(const std::vector<TrainMemory>& first, double a, const std::vector<TrainMemory>& second, double b) const {
    double most = 0;
    for (std::size_t rank = 0; rank < first.size(); ++rank)
      most = std::max(most, scales_[rank] * (a * static_cast<double>(first[rank].total()) +
                                             b * static_cast<double>(second[rank].total())));
    return most;
  }

 private:
  std::vector<double> scales_;
  double budget_ = 0;
};

// From the arithmetic that the verifier uses, of a model of one kind of layer.
void weigh(const TrainProblem& problem, const Weighing& weighing, StageEnds ends, std::int64_t sequences,
           const BlockOption& option, std::size_t kind, BlockCost& block) {
  Architecture alike = problem.model.arch;
  alike.kinds = {alike.kinds[kind]};
  alike.kind_of_layer = {};
  LayerStrategy strategy = option.strategy;
  const auto memory = [&](std::int64_t layers, std::int64_t in_flight, std::int64_t waiting, bool with_ends) {
    strategy.layers = {0, layers};
    return train_memory(alike, problem.training,
                        {.embedding = with_ends && ends.first,
                         .head = with_ends && ends.last,
                         .sequences = sequences,
                         .in_flight = in_flight,
                         .waiting = waiting},
                        {strategy}, option.shares);
  };
  const auto one = memory(1, 0, 0, false), two = memory(2, 0, 0, false);
  block.held = weighing.most(two, 1, one, -1);
  block.in_flight = weighing.most(memory(1, 1, 0, false), 1, one, -1);
  block.waiting = weighing.most(memory(1, 0, 1, false), 1, one, -1);
  block.transient = weighing.most(one, 2, two, -1);
  if (ends.first || ends.last) block.end = weighing.most(memory(1, 0, 0, true), 1, one, -1);
}

// Once per step for one block inside the stage: what the exchange of gradients will cost it.
double sync_s(const TrainProblem& problem, const std::vector<int>& devices, const LayerStrategy& strategy,
              std::size_t kind) {
  if (strategy.dp < 2 || strategy.shard >= Sharding::zero2) return 0;
  const double bytes =
      problem.cost.block_bytes(kind, state_bytes(problem.training).gradient) / static_cast<double>(strategy.tp);
  const auto ranks = static_cast<double>(strategy.dp);
  LinkLoads loads(problem.cost.links());
  for (std::int64_t k = 0; k < strategy.tp; ++k) {
    std::vector<int> ring;
    for (std::int64_t d = 0; d < strategy.dp; ++d)
      ring.push_back(devices[static_cast<std::size_t>(d * strategy.tp + k)]);
    loads.add_ring(ring, 2 * bytes * (ranks - 1) / ranks, bytes / ranks);
  }
  return loads.seconds();
}

}  // namespace

GroupOptions group_options(const TrainProblem& problem, const std::vector<int>& devices, StageEnds ends,
                           std::int64_t sequences) {
  const Weighing weighing(problem, devices);
  GroupOptions group{.budget_bytes = weighing.budget(), .options = {}};
  for (const LayerStrategy& strategy : stage_strategies(problem, devices, sequences)) {
    BlockOption& option = group.options.emplace_back();
    option.strategy = strategy;
    option.shares = work_shares(problem, devices, strategy, sequences);
    const StageWork work{devices, option.shares, sequences};
    const BlockPass head = ends.last ? problem.cost.head(work, strategy) : BlockPass{};
    option.end_s = head.forward_s + head.backward_s;
    for (std::size_t kind = 0; kind < problem.model.arch.kinds.size(); ++kind) {
      const BlockPass pass = problem.cost.block(work, strategy, nullptr, kind);
      BlockCost& block = option.blocks.emplace_back();
      block.seconds = pass.forward_s + pass.backward_s;
      block.sync_s = sync_s(problem, devices, strategy, kind);
      weigh(problem, weighing, ends, sequences, option, kind, block);
    }
  }
  return group;
}

LayerLine::LayerLine(const Architecture& arch) : before_(arch.kinds.size(), {0}) {
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    for (std::size_t kind = 0; kind < before_.size(); ++kind)
      before_[kind].push_back(before_[kind].back() + (kind == arch.kind_index(layer) ? 1 : 0));
}

// Time and memory of blocks at a place in the pipeline.
struct StrategyTable::Blocks {
  const BlockOption* option = nullptr;
  std::vector<double> seconds;  // by kind, of a micro-batch, with the block's part of what happens once per step
  std::vector<double> held;     // by kind

  // Of the kinds in a range of layers the one that is largest while it is under way.
  const BlockCost& largest(const LayerLine& line, std::int64_t first, std::int64_t end) const {
    const BlockCost* largest = nullptr;
    for (std::size_t kind = 0; kind < line.kinds(); ++kind) {
      const BlockCost& block = option->blocks[kind];
      if (line.count(kind, first, end) > 0 && (largest == nullptr || block.transient > largest->transient))
        largest = &block;
    }
    return *largest;
  }
  // Whether no kind of block is better under the other.
  bool beats(const Blocks& other) const {
    if (option->strategy.tp != other.option->strategy.tp || option->end_s > other.option->end_s) return false;
    for (std::size_t kind = 0; kind < seconds.size(); ++kind) {
      const BlockCost &own = option->blocks[kind], &its = other.option->blocks[kind];
      if (seconds[kind] > other.seconds[kind] || held[kind] > other.held[kind] || own.transient > its.transient ||
          own.end > its.end)
        return false;
    }
    return true;
  }
};

// Without those that another of their degree beats in everything.
StrategyTable::StrategyTable(const GroupOptions& group, const StagePlace& place, const LayerLine& line)
    : reversed_(place.ends.last && !place.ends.first) {
  std::vector<Blocks> all, kept;
  for (const BlockOption& option : group.options) {
    Blocks& blocks = all.emplace_back(Blocks{.option = &option, .seconds = {}, .held = {}});
    for (const BlockCost& block : option.blocks) {
      blocks.seconds.push_back(block.step_s(place));
      blocks.held.push_back(block.held_bytes(place));
    }
  }
  for (const Blocks& blocks : all)
    if (std::none_of(all.begin(), all.end(), [&](const Blocks& other) {
          return &other != &blocks && other.beats(blocks) && (!blocks.beats(other) || &other < &blocks);
        }))
      kept.push_back(blocks);
  rows_.resize(line.kinds() == 1 || place.ends.first ? 1 : static_cast<std::size_t>(line.layers()));
  for (std::size_t first = 0; first < rows_.size(); ++first)
    fill(kept, group.budget_bytes, place, line, static_cast<std::int64_t>(first));
}

// Of a strategy a as many layers as memory holds, the rest under b, which is slower and smaller: all pairs of one
// degree. Of blocks that are alike nothing else matters but how many there are of each.
void StrategyTable::fill(const std::vector<Blocks>& blocks, double budget_bytes, const StagePlace& place,
                         const LayerLine& line, std::int64_t first) {
  Row& row = rows_[static_cast<std::size_t>(first)];
  const std::int64_t layers = line.layers() - first;
  row.mixes.resize(static_cast<std::size_t>(line.layers()) + 1);
  row.seconds.assign(row.mixes.size(), std::numeric_limits<double>::infinity());
  const bool alike = line.kinds() == 1;
  const std::int64_t fewest = !alike && place.ends.last ? layers : 1;  // unlike stages end where they end
  std::vector<double> more(line.kinds());                              // that a holds of each kind
  for (const Blocks& a : blocks)
    for (const Blocks& b : blocks) {
      const bool alone = &a == &b;
      bool quicker = false, larger = true;
      for (std::size_t kind = 0; kind < more.size(); ++kind) {
        more[kind] = a.held[kind] - b.held[kind];
        quicker = quicker || a.seconds[kind] < b.seconds[kind];
        larger = larger && more[kind] > 0;
      }
      if (a.option->strategy.tp != b.option->strategy.tp || (!alone && !(quicker && larger))) continue;
      // The end is next to a layer of a or of b; both ends of one stage may be next to either.
      for (const Blocks* end : {&a, &b}) {
        const bool a_first = (end == &a) != reversed_;
        for (std::int64_t n = fewest; n <= layers; ++n) {
          const std::int64_t last = first + n;
          const BlockCost &of_a = a.largest(line, first, last), &of_b = b.largest(line, first, last);
          const double room = budget_bytes - std::max(of_a.transient, of_b.transient);
          const double end_bytes =
              place.ends.first && place.ends.last ? std::max(of_a.end, of_b.end) : (end == &a ? of_a : of_b).end;
          const double left = room - end_bytes - line.sum(b.held, first, last);
          if (left < 0) break;
          std::int64_t count = n;
          if (!alone && alike) {
            count = std::min(n, static_cast<std::int64_t>(left / more.front()));
          } else if (!alone) {
            const auto held = [&](std::int64_t of) {
              return a_first ? line.sum(more, first, first + of) : line.sum(more, last - of, last);
            };
            std::int64_t too_many = n + 1;
            for (count = 0; too_many - count > 1;) {
              const std::int64_t middle = count + (too_many - count) / 2;
              (held(middle) <= left ? count : too_many) = middle;
            }
          }
          if ((end == &a && count == 0) || (end == &b && count == n && !alone)) continue;
          const std::int64_t border = a_first ? first + count : last - count;
          const double seconds = line.sum(a.seconds, a_first ? first : border, a_first ? border : last) +
                                 line.sum(b.seconds, a_first ? border : first, a_first ? last : border) +
                                 end->option->end_s;
          if (seconds >= row.seconds[static_cast<std::size_t>(n)]) continue;
          row.seconds[static_cast<std::size_t>(n)] = seconds;
          const Blocks& other = end == &a ? b : a;
          row.mixes[static_cast<std::size_t>(n)] = {end->option->strategy, other.option->strategy,
                                                    end == &a ? count : n - count, a.option->shares};
          most_layers_ = std::max(most_layers_, n);
        }
      }
    }
}

StageChoice StrategyTable::choice(std::int64_t first, std::int64_t layers) const {
  MOTLEY_CHECK(layers >= 1 && layers <= most_layers_);
  Mix mix = row(first).mixes[static_cast<std::size_t>(layers)];
  // The strategy at the end comes first, or last where the end is the head.
  if (reversed_) mix = {mix.other, mix.at_end, layers - mix.count, std::move(mix.shares)};
  std::vector<LayerStrategy> ranges;
  if (mix.count > 0) ranges.push_back(mix.at_end);
  if (mix.count < layers) ranges.push_back(mix.other);
  ranges.front().layers = {first, first + (ranges.size() == 2 ? mix.count : layers)};
  if (ranges.size() == 2) ranges.back().layers = {first + mix.count, first + layers};
  return {std::move(ranges), std::move(mix.shares)};
}

namespace {

// A stage for the kernel. Sites: the end, and the blocks from it. Layouts: activations by degree, next to an end also
// by sharding, for an end is sharded as its block is.
struct StageChain {
  StrategyChain chain;
  double budget_bytes = 0;
  std::vector<BlockOption> options;  // of every block
  bool has_end = false;
};

StageChain stage_chain(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place,
                       LayerRange layers, const std::vector<double>& shares) {
  GroupOptions group = group_options(problem, devices, place.ends, place.sequences);
  StageChain stage{.chain = {.runs = {}, .layout_change_s = {}},
                   .budget_bytes = group.budget_bytes,
                   .options = std::move(group.options),
                   .has_end = place.ends.first || place.ends.last};
  std::erase_if(stage.options, [&](const BlockOption& option) { return option.shares != shares; });
  std::map<std::tuple<std::int64_t, Sharding>, int> classes;
  const auto layout_class = [&](const LayerStrategy& strategy) {
    return std::tuple(strategy.tp, stage.has_end ? strategy.shard : Sharding::none);
  };
  for (const auto& option : stage.options)
    classes.emplace(layout_class(option.strategy), static_cast<int>(classes.size()));
  const auto count = classes.size();
  const Architecture& arch = problem.model.arch;
  const bool reversed = place.ends.last && !place.ends.first;
  const std::size_t at_end = arch.kind_index(reversed ? layers.end - 1 : layers.first);
  StrategyRun ends{.options = {}, .repeat = 1};
  std::set<int> with_end;
  std::vector<std::vector<StrategyOption>> blocks(arch.kinds.size());  // by kind of layer
  for (const auto& option : stage.options) {
    const int layout = classes.at(layout_class(option.strategy));
    for (std::size_t kind = 0; kind < blocks.size(); ++kind)
      blocks[kind].push_back({.time_s = option.blocks[kind].step_s(place),
                              .sync_s = 0,
                              .bytes = option.blocks[kind].held_bytes(place),
                              .transient_bytes = option.blocks[kind].transient,
                              .layout_in = layout,
                              .layout_out = layout});
    const int outer = layout + static_cast<int>(count);
    if (stage.has_end && with_end.insert(layout).second)
      ends.options.push_back(
          {.time_s = option.end_s, .bytes = option.blocks[at_end].end, .layout_in = outer, .layout_out = outer});
  }
  StrategyChain& chain = stage.chain;
  if (stage.has_end) chain.runs.push_back(std::move(ends));
  std::size_t before = arch.kinds.size();  // the kind of the layer before
  for (std::int64_t i = 0; i < layers.size(); ++i) {
    const std::size_t kind = arch.kind_index(reversed ? layers.end - 1 - i : layers.first + i);
    if (kind == before)
      ++chain.runs.back().repeat;
    else
      chain.runs.push_back({.options = blocks[kind], .repeat = 1});
    before = kind;
  }
  const std::size_t layouts = stage.has_end ? 2 * count : count;
  chain.layout_change_s.assign(layouts, std::vector<double>(layouts, forbidden_s));
  const double change_s =
      devices.size() > 1 ? 2 * problem.cost.hop({devices[0]}, {devices[1]}, place.sequences).busy_s : 0;
  for (const auto& [from, a] : classes) {
    if (stage.has_end) chain.layout_change_s[static_cast<std::size_t>(a) + count][static_cast<std::size_t>(a)] = 0;
    for (const auto& [to, b] : classes)
      chain.layout_change_s[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] =
          std::get<0>(from) == std::get<0>(to) ? 0 : change_s;
  }
  return stage;
}

}  // namespace

StageChoice best_strategies(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place,
                            LayerRange layers, const std::vector<double>& shares) {
  const StageChain stage = stage_chain(problem, devices, place, layers, shares);
  if (stage.options.empty()) return {};
  const StrategyAnswer answer =
      solve_strategy_chain(stage.chain, stage.budget_bytes, {.tolerance = time_tolerance, .max_points = most_points});
  if (answer.choice.empty() || answer.time_s >= forbidden_s) return {};
  std::vector<int> choice(answer.choice.begin() + (stage.has_end ? 1 : 0), answer.choice.end());
  if (place.ends.last && !place.ends.first) std::reverse(choice.begin(), choice.end());
  std::vector<LayerStrategy> ranges;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    const std::int64_t layer = layers.first + static_cast<std::int64_t>(i);
    if (i > 0 && choice[i] == choice[i - 1]) {
      ++ranges.back().layers.end;
      continue;
    }
    ranges.push_back(stage.options[static_cast<std::size_t>(choice[i])].strategy);
    ranges.back().layers = {layer, layer + 1};
  }
  return {std::move(ranges), shares};
}

double memory_price_s_per_byte(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place,
                               LayerRange layers, const std::vector<double>& shares) {
  const StageChain stage = stage_chain(problem, devices, place, layers, shares);
  if (stage.options.empty()) return 0;
  return solve_strategy_chain(stage.chain, stage.budget_bytes, {.tolerance = time_tolerance, .max_points = most_points})
      .price_s_per_byte;
}

const StrategyTable& StrategyTables::table(const std::vector<int>& devices, const StagePlace& where) {
  StagePlace place = where;
  if (devices.size() == 1) place.micro_batches = 1;  // nothing happens once per step
  Look look;
  for (const int device : devices) {
    look.push_back(problem_.cluster.devices[static_cast<std::size_t>(device)].type);
    for (const int other : devices) {
      if (other == device) continue;
      const PathSpeed path = problem_.cost.links().path(device, other);
      look.push_back(path.latency_s);
      look.push_back(path.bandwidth_bytes_per_s);
    }
  }
  const std::lock_guard lock(mutex_);
  auto& options = options_[{std::move(look), place.ends.first, place.ends.last, place.sequences}];
  if (!options) options = std::make_unique<GroupOptions>(group_options(problem_, devices, place.ends, place.sequences));
  auto& table = tables_[{options.get(), place}];
  if (!table) table = std::make_unique<StrategyTable>(*options, place, line_);
  return *table;
}

}  // namespace motley
