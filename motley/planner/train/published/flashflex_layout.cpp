#include "motley/planner/train/published/flashflex_layout.hpp"

#include <algorithm>
#include <limits>

namespace motley {
namespace {

constexpr std::size_t farthest = 64;  // stages to the end that memory tells apart

bool same_kind(const Cluster& cluster, int a, int b) {
  const Device& x = cluster.devices[static_cast<std::size_t>(a)];
  const Device& y = cluster.devices[static_cast<std::size_t>(b)];
  if (x.machine != y.machine || x.type != y.type) return false;
  for (int other = 0; other < static_cast<int>(cluster.devices.size()); ++other)
    if (other != a && other != b &&
        (cluster.link(a, other) != cluster.link(b, other) || cluster.link(other, a) != cluster.link(other, b)))
      return false;
  return true;
}

FlashflexGroup first_devices(const std::vector<int>& kind, std::size_t from, int count) {
  const auto begin = kind.begin() + static_cast<std::ptrdiff_t>(from);
  return {begin, begin + count};
}

void add_units(const LayoutProblem& problem, LayoutTables& tables) {
  for (std::size_t kind = 0; kind < tables.kinds.size(); ++kind)
    for (int degree = 1; degree <= static_cast<int>(tables.kinds[kind].size()); degree *= 2) {
      if (problem.model.arch.heads % degree != 0) break;
      try {
        make_shards(problem.model.arch, degree);
      } catch (const Error&) {
        break;  // the layer cannot be cut so
      }
      tables.units.push_back({static_cast<int>(kind), degree});
    }
}

// The layers that fit, by the arithmetic of plans: linear in the layers, and in the micro-batches held.
class Capacity {
 public:
  Capacity(const LayoutProblem& problem, const LayoutUnit& unit, const DeviceType& type, bool first, bool last)
      : training_(training_of(problem.workload)) {
    const auto total = [&](std::int64_t layers, std::int64_t in_flight) {
      const StageFootprint footprint{
          .embedding = first, .head = last, .sequences = problem.micro_batch, .in_flight = in_flight};
      const LayerStrategy strategy{.layers = {0, layers}, .tp = unit.degree, .recompute = problem.recompute};
      std::int64_t most = 0;
      for (const TrainMemory& memory : train_memory(problem.model.arch, training_, footprint, {strategy}))
        most = std::max(most, memory.total());
      return most;
    };
    each_ = total(2, 1) - total(1, 1);
    kept_ = total(1, 2) - total(1, 1);
    fixed_ = total(1, 1) - each_;
    room_ = type.memory_bytes - type.reserve_bytes.value_or(0);
  }

  std::int64_t layers(std::size_t in_flight) const {
    const std::int64_t room = room_ - fixed_;
    return room <= 0 ? 0 : room / (each_ + static_cast<std::int64_t>(in_flight - 1) * kept_);
  }

 private:
  const Training& training_;
  std::int64_t each_ = 0, kept_ = 0, fixed_ = 0, room_ = 0;
};

}  // namespace

std::int64_t LayoutTables::capacity(int unit, bool first, bool last, std::size_t from_end) const {
  const auto& by_place = most_layers[static_cast<std::size_t>(first) + 2 * static_cast<std::size_t>(last)];
  return by_place[static_cast<std::size_t>(unit)][std::min(from_end, farthest) - 1];
}

LayoutTables layout_tables(const LayoutProblem& problem) {
  const Training& training = training_of(problem.workload);
  const Cluster& cluster = problem.cluster;
  LayoutTables tables;
  tables.layers = problem.model.arch.layers;
  tables.micro_batches = training.global_batch / problem.micro_batch;
  for (int device = 0; device < static_cast<int>(cluster.devices.size()); ++device) {
    const auto like = std::find_if(tables.kinds.begin(), tables.kinds.end(),
                                   [&](const auto& kind) { return same_kind(cluster, kind.front(), device); });
    if (like == tables.kinds.end())
      tables.kinds.push_back({device});
    else
      like->push_back(device);
  }
  add_units(problem, tables);
  const FlashflexForm form(problem.cost, cluster, problem.model.arch, training,
                           static_cast<double>(problem.micro_batch));
  for (const auto& a : tables.kinds)
    for (const auto& b : tables.kinds)
      tables.kind_bytes_per_s.push_back(
          a.front() == b.back() ? infinity : cluster.link(a.front(), b.back()).bandwidth_bytes_per_s);
  tables.pipeline_factor = form.step_s(1, 0);
  tables.sync_factor = form.step_s(0, 1);
  const double hidden = static_cast<double>(problem.model.arch.hidden);
  tables.layer_gradient_bytes = 12 * hidden * hidden * 2;
  for (const LayoutUnit& unit : tables.units) {
    const auto& kind = tables.kinds[static_cast<std::size_t>(unit.kind)];
    const FlashflexGroup group = first_devices(kind, 0, unit.degree);
    tables.layer_s.push_back(form.layer_s(group));
    for (const LayoutUnit& next : tables.units) {
      const auto& other = tables.kinds[static_cast<std::size_t>(next.kind)];
      const std::size_t from = unit.kind == next.kind ? static_cast<std::size_t>(unit.degree) : 0;
      const bool apart = from + static_cast<std::size_t>(next.degree) <= other.size();
      tables.hop_s.push_back(apart ? form.hop_s(group, first_devices(other, from, next.degree)) : infinity);
    }
    for (const bool first : {false, true})
      for (const bool last : {false, true}) {
        const Capacity capacity(problem, unit, cluster.type_of(group.front()), first, last);
        std::vector<std::int64_t> by_place;
        for (std::size_t place = 1; place <= farthest; ++place)
          by_place.push_back(std::min(form.most_layers(group, {.first = first, .last = last}), capacity.layers(place)));
        tables.most_layers[static_cast<std::size_t>(first) + 2 * static_cast<std::size_t>(last)].push_back(
            std::move(by_place));
      }
  }
  return tables;
}

double LaidReplica::busiest_s() const { return *std::max_element(seconds.begin(), seconds.end()); }

ReplicaPace lockstep_pace(const std::vector<double>& seconds) {
  const std::int64_t stages = std::ssize(seconds);
  const double busiest_s = *std::max_element(seconds.begin(), seconds.end());
  return {.lockstep_stages_s = seconds,
          .rest_s = lockstep_s(seconds, stages) - static_cast<double>(stages) * busiest_s,
          .each_s = busiest_s};
}

// ---- the price ----

namespace {

// As FlashflexForm::sync_s for stages of one kind each: all sets of ranks are alike.
double layer_sync_s(const LayoutTables& tables, const std::vector<int>& owners) {
  const auto kinds = static_cast<int>(tables.kinds.size());
  int fewest = std::numeric_limits<int>::max(), most = 0;
  double slowest = 0;
  for (std::size_t r = 0; r < owners.size(); ++r) {
    fewest = std::min(fewest, tables.degree_of(owners[r]));
    most = std::max(most, tables.degree_of(owners[r]));
    double sum = 0;
    for (std::size_t other = 0; other < owners.size(); ++other)
      if (other != r)
        sum += 1 / tables.kind_bytes_per_s[static_cast<std::size_t>(tables.kind_of(owners[r]) * kinds +
                                                                    tables.kind_of(owners[other]))];
    slowest = std::max(slowest, sum);
  }
  const double bytes = tables.layer_gradient_bytes / (static_cast<double>(fewest) * static_cast<double>(owners.size()));
  return static_cast<double>(most / fewest) * 2 * slowest * bytes;
}

double sync_s(const LayoutTables& tables, const std::vector<LaidReplica>& replicas) {
  if (replicas.size() < 2) return 0;
  std::vector<std::size_t> stage(replicas.size());
  std::vector<std::int64_t> end(replicas.size());
  std::vector<int> owners(replicas.size());
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    end[r] = replicas[r].layers.front();
    owners[r] = replicas[r].units.front();
  }
  double sum = 0;
  for (std::int64_t layer = 0; layer < tables.layers;) {
    const std::int64_t next = *std::min_element(end.begin(), end.end());
    sum += static_cast<double>(next - layer) * layer_sync_s(tables, owners);
    layer = next;
    for (std::size_t r = 0; r < replicas.size() && layer < tables.layers; ++r)
      if (end[r] == layer) {
        ++stage[r];
        end[r] += replicas[r].layers[stage[r]];
        owners[r] = replicas[r].units[stage[r]];
      }
  }
  return sum;
}

}  // namespace

LayoutPlan price_layout(const LayoutTables& tables, std::vector<LaidReplica> replicas) {
  LayoutPlan layout;
  std::vector<ReplicaPace> paces;
  for (const auto& replica : replicas) paces.push_back(replica.pace);
  layout.micro_batches = apportion(paces, tables.micro_batches, 1);
  layout.step_s = infinity;
  if (!layout.micro_batches.empty()) {
    double slowest = 0;
    for (std::size_t r = 0; r < paces.size(); ++r) slowest = std::max(slowest, paces[r].end_s(layout.micro_batches[r]));
    layout.step_s = tables.pipeline_factor * slowest + tables.sync_factor * sync_s(tables, replicas);
  }
  layout.replicas = std::move(replicas);
  return layout;
}

TrainLayout placed_layout(const LayoutProblem& problem, const LayoutTables& tables, const LayoutPlan& layout) {
  std::vector<std::size_t> taken(tables.kinds.size());
  TrainLayout placed{.replicas = {}, .sync = {.algorithm = SyncAlgorithm::direct}};
  for (std::size_t r = 0; r < layout.replicas.size(); ++r) {
    const LaidReplica& laid = layout.replicas[r];
    ReplicaLayout& replica = placed.replicas.emplace_back();
    replica.micro_batches = layout.micro_batches[r];
    replica.sequences = replica.micro_batches * problem.micro_batch;
    std::int64_t layer = 0;
    for (std::size_t s = 0; s < laid.units.size(); ++s) {
      const LayoutUnit& unit = tables.units[static_cast<std::size_t>(laid.units[s])];
      std::size_t& next = taken[static_cast<std::size_t>(unit.kind)];
      replica.stages.push_back(tensor_parallel_stage(
          {layer, layer + laid.layers[s]},
          first_devices(tables.kinds[static_cast<std::size_t>(unit.kind)], next, unit.degree), problem.recompute));
      layer += laid.layers[s];
      next += static_cast<std::size_t>(unit.degree);
    }
  }
  return placed;
}

}  // namespace motley
