#include "motley/trainer/layout/worker_layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

Span overlap(const Span& a, const Span& b) {
  const std::int64_t first = std::max(a.first, b.first);
  return {first, std::max(first, std::min(a.end, b.end))};
}

// The number of each device.
std::map<std::string, int> worker_numbers(const TrainPlan& plan) {
  std::map<std::string, int> numbers;
  for (const std::string& device : train_devices(plan)) numbers.emplace(device, static_cast<int>(numbers.size()));
  return numbers;
}

template <class Visit>
void for_each_crossing(const TrainPlan& plan, const Visit& visit) {
  const Training& training = training_of(plan.workload);
  for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
    const std::vector<StrategyRanks> strategies = strategies_of(plan, r);
    const std::int64_t most = micro_batch_sequences(training, plan.replicas[r]);
    for (std::size_t s = 0; s + 1 < strategies.size(); ++s)
      // Micro-batches differ by a sequence, and with it the ranks that meet.
      for (const std::int64_t sequences : {most, most - 1}) {
        if (sequences < 1 || stays(strategies[s], strategies[s + 1])) continue;
        visit(crossing(strategies[s], strategies[s + 1], sequences, training.sequence_length));
        visit(crossing(strategies[s + 1], strategies[s], sequences, training.sequence_length));
      }
  }
}

}  // namespace

std::vector<std::string> train_devices(const TrainPlan& plan) {
  std::vector<std::string> devices;
  for (const TrainReplica& replica : plan.replicas)
    for (const TrainStage& stage : replica.stages)
      devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  return devices;
}

TrainPlace place_of(const TrainPlan& plan, const std::string& device) {
  int first_worker = 0;
  for (std::size_t r = 0; r < plan.replicas.size(); ++r)
    for (std::size_t s = 0; s < plan.replicas[r].stages.size(); ++s) {
      const std::vector<std::string>& devices = plan.replicas[r].stages[s].devices;
      if (const auto found = std::ranges::find(devices, device); found != devices.end())
        return {r, s, static_cast<int>(found - devices.begin()), first_worker};
      first_worker += static_cast<int>(devices.size());
    }
  throw input_error(fmt::format("device \"{}\" is in no stage of the plan", device),
                    "the plan names its devices under `replicas[].stages[].devices`");
}

std::vector<int> StrategyRanks::tensor_group(std::int64_t dp) const {
  std::vector<int> workers;
  for (std::int64_t tp = 0; tp < strategy->tp; ++tp) workers.push_back(worker(dp, tp));
  return workers;
}

std::vector<int> StrategyRanks::data_group(std::int64_t tp) const {
  std::vector<int> workers;
  for (std::int64_t dp = 0; dp < strategy->dp; ++dp) workers.push_back(worker(dp, tp));
  return workers;
}

std::vector<Shard> StrategyRanks::shards(const Architecture& arch) const {
  const bool shared = strategy->dp == 1 && strategy->tp > 1;
  return make_shards(arch, static_cast<int>(strategy->tp), shared ? stage->shares : std::vector<double>{});
}

std::vector<StrategyRanks> strategies_of(const TrainPlan& plan, std::size_t replica) {
  std::vector<StrategyRanks> strategies;
  int first_worker = 0;
  for (std::size_t r = 0; r <= replica; ++r)
    for (const TrainStage& stage : plan.replicas[r].stages) {
      if (r == replica)
        for (const LayerStrategy& strategy : stage.strategies) strategies.push_back({&stage, &strategy, first_worker});
      first_worker += static_cast<int>(stage.devices.size());
    }
  return strategies;
}

std::vector<std::int64_t> replica_bounds(const TrainPlan& plan) {
  std::vector<std::int64_t> bounds = {0};
  for (const TrainReplica& replica : plan.replicas)
    bounds.push_back(bounds.back() + replica_sequences(training_of(plan.workload), replica));
  return bounds;
}

std::vector<std::int64_t> micro_batch_bounds(std::int64_t sequences, std::int64_t micro_batches) {
  std::vector<std::int64_t> bounds;
  for (std::int64_t i = 0; i <= micro_batches; ++i) bounds.push_back(i * sequences / micro_batches);
  return bounds;
}

std::vector<std::int64_t> data_bounds(const StrategyRanks& ranks, std::int64_t sequences) {
  const std::int64_t dp = ranks.strategy->dp;
  const std::vector<double>& shares = ranks.stage->shares;
  if (dp == 1 || shares.empty()) return micro_batch_bounds(sequences, dp);
  std::vector<std::int64_t> bounds = {0};
  double share = 0;
  for (std::int64_t d = 0; d < dp; ++d) {
    share += shares[static_cast<std::size_t>(d)];
    bounds.push_back(std::llround(std::floor(share * static_cast<double>(sequences) + share_tolerance)));
  }
  bounds.back() = sequences;
  return bounds;
}

bool stays(const StrategyRanks& from, const StrategyRanks& to) {
  return from.stage == to.stage && from.strategy->tp == to.strategy->tp && from.strategy->dp == to.strategy->dp;
}

std::vector<RowRegion> crossing(const StrategyRanks& from, const StrategyRanks& to, std::int64_t sequences,
                                std::int64_t sequence_length) {
  const auto sent = data_bounds(from, sequences), received = data_bounds(to, sequences);
  std::vector<RowRegion> regions;
  for (std::int64_t d = 0; d < to.strategy->dp; ++d)
    for (std::int64_t e = 0; e < from.strategy->dp; ++e) {
      const auto at = static_cast<std::size_t>(d), other = static_cast<std::size_t>(e);
      const Span common = overlap({received[at], received[at + 1]}, {sent[other], sent[other + 1]});
      if (common.size() == 0) continue;
      RowRegion& region = regions.emplace_back();
      region.rows = {common.first * sequence_length, common.end * sequence_length};
      region.dp = d;
      const std::int64_t tp = to.strategy->tp;
      for (std::int64_t k = 0; k < tp; ++k)
        region.parts.push_back(
            {from.worker(e, k * from.strategy->tp / tp),
             to.worker(d, k),
             {region.rows.first + region.rows.size() * k / tp, region.rows.first + region.rows.size() * (k + 1) / tp}});
    }
  return regions;
}

std::string TrainGroup::name() const {
  constexpr const char* names[] = {"all workers", "tensor parallel", "data parallel", "gradients"};
  const char* of = names[static_cast<std::size_t>(kind)];
  return kind == GroupKind::all ? of : fmt::format("{} {}", of, fmt::join(workers, "+"));
}

std::vector<TrainGroup> train_groups(const TrainPlan& plan) {
  std::set<TrainGroup> groups;
  const auto add = [&](GroupKind kind, const std::vector<int>& workers) {
    if (workers.size() > 1) groups.insert({kind, workers});
  };
  std::vector<int> all;
  for (int worker = 0; worker < std::ssize(train_devices(plan)); ++worker) all.push_back(worker);
  add(GroupKind::all, all);
  for (std::size_t r = 0; r < plan.replicas.size(); ++r)
    for (const StrategyRanks& ranks : strategies_of(plan, r)) {
      for (std::int64_t d = 0; d < ranks.strategy->dp; ++d) add(GroupKind::tensor, ranks.tensor_group(d));
      if (ranks.strategy->shard != Sharding::none)
        for (std::int64_t k = 0; k < ranks.strategy->tp; ++k) add(GroupKind::data, ranks.data_group(k));
    }
  for (const GradientBucket& bucket : gradient_buckets(plan)) add(GroupKind::gradients, bucket.workers);
  return {groups.begin(), groups.end()};
}

std::vector<std::pair<int, int>> crossing_pairs(const TrainPlan& plan) {
  std::set<std::pair<int, int>> pairs;
  for_each_crossing(plan, [&](const std::vector<RowRegion>& regions) {
    for (const RowRegion& region : regions)
      for (const RowTransfer& part : region.parts)
        if (part.from != part.to && part.rows.size() > 0) pairs.emplace(part.from, part.to);
  });
  return {pairs.begin(), pairs.end()};
}

std::vector<GradientBucket> gradient_buckets(const TrainPlan& plan, std::int64_t most_bytes) {
  const Architecture& arch = plan.model.arch;
  std::map<std::string, std::int64_t> layers;  // of each tensor; of a tied table the embedding's
  for (const ModelUnit& unit : part_units(arch, whole_model(arch)))
    for (const TensorSpec& tensor : unit.tensors) layers.try_emplace(tensor.name, unit.layer);

  const std::map<std::string, int> numbers = worker_numbers(plan);
  std::vector<GradientSlice> parts = gradient_slices(plan);
  std::ranges::stable_sort(parts, std::greater(),
                           [&](const GradientSlice& part) { return layers.at(part.tensor.name); });
  std::vector<GradientBucket> buckets;
  std::map<std::vector<int>, std::size_t> open;  // the bucket that still takes parts, by workers
  for (GradientSlice& part : parts) {
    std::set<int> workers;
    for (const GradientHolder& holder : part.holders) workers.insert(numbers.at(holder.device));
    const std::vector<int> key(workers.begin(), workers.end());
    const std::int64_t elements = part.slice.rows.size() * part.slice.columns.size();
    auto found = open.find(key);
    constexpr std::int64_t bytes = 4;  // fp32
    if (found == open.end() || (buckets[found->second].elements + elements) * bytes > most_bytes) {
      found = open.insert_or_assign(key, buckets.size()).first;
      buckets.push_back({.workers = key, .parts = {}, .elements = 0, .layer = 0});
    }
    GradientBucket& bucket = buckets[found->second];
    bucket.layer = layers.at(part.tensor.name);
    bucket.elements += elements;
    bucket.parts.push_back(std::move(part));
  }
  std::ranges::stable_sort(buckets, std::greater(), &GradientBucket::layer);
  return buckets;
}

}  // namespace motley
