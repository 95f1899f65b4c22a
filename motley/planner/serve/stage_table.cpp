#include "motley/planner/serve/stage_table.hpp"

#include <algorithm>
#include <utility>

namespace motley {

std::vector<double> uneven_shares(const Architecture& arch, int degree) {
  const std::vector<Shard> shards = make_shards(arch, degree);
  const auto heads = [](const Shard& shard) { return shard.heads.size(); };
  const bool even = std::all_of(shards.begin(), shards.end(),
                                [&](const Shard& shard) { return heads(shard) == heads(shards.front()); });
  std::vector<double> shares;
  if (even) return shares;
  for (const auto& shard : shards)
    shares.push_back(static_cast<double>(heads(shard)) / static_cast<double>(arch.heads));
  return shares;
}

StageTable::StageTable(const Cluster& cluster, const Architecture& arch, std::vector<DeviceClass> classes,
                       const ServeOptions& options, DType weight_type, DType kv_type)
    : cluster_(cluster),
      arch_(arch),
      classes_(std::move(classes)),
      step_(options.step),
      weight_type_(weight_type),
      kv_type_(kv_type) {
  const int count = static_cast<int>(classes_.size());
  const bool across = options.tensor_parallel == TensorParallel::across_machines;
  for (int k = 0; k < count; ++k) {
    const int place = add_place({k});
    const int units = static_cast<int>(classes_[k].units.size());
    for (int n = 1; n <= (classes_[k].one_machine || across ? units : 1); ++n) {
      std::vector<int> takes(classes_.size(), 0);
      takes[k] = n;
      add_kind(std::move(takes), place);
    }
  }
  if (!across) return;
  // Groups over several classes of one type: equally many units of each of a run of such classes.
  for (int first = 0; first < count; ++first) {
    const int type = cluster.devices[classes_[first].units[0][0]].type;
    std::vector<int> members = {first};
    std::size_t least = classes_[first].units.size();
    for (int k = first + 1; k < count; ++k) {
      if (cluster.devices[classes_[k].units[0][0]].type != type) continue;
      members.push_back(k);
      least = std::min(least, classes_[k].units.size());
      const int place = add_place(members);
      for (int n = 1; n <= static_cast<int>(least); ++n) {
        std::vector<int> takes(classes_.size(), 0);
        for (const int member : members) takes[member] = n;
        add_kind(std::move(takes), place);
      }
    }
  }
}

int StageTable::add_place(const std::vector<int>& members) {
  std::vector<int> devices;
  for (const int k : members)
    for (std::size_t i = 0; i < std::min<std::size_t>(2, classes_[k].units.size()); ++i)
      devices.push_back(classes_[k].units[i][0]);
  place_devices_.push_back(std::move(devices));
  return static_cast<int>(place_devices_.size()) - 1;
}

void StageTable::add_kind(std::vector<int> takes, int place) {
  std::vector<int> devices;
  for (std::size_t k = 0; k < takes.size(); ++k)
    for (int i = 0; i < takes[k]; ++i)
      devices.insert(devices.end(), classes_[k].units[i].begin(), classes_[k].units[i].end());
  const auto degree = static_cast<std::int64_t>(devices.size());
  if (degree > arch_.heads || degree > arch_.ffn || degree > arch_.vocabulary) return;  // make_shards() would refuse it
  StageKind kind{
      .takes = std::move(takes), .place = place, .shares = uneven_shares(arch_, static_cast<int>(degree)), .group = {}};
  kind.group = make_group(cluster_, arch_, std::move(devices), kind.shares, weight_type_, kv_type_, step_);
  kinds_.push_back(std::move(kind));
}

std::vector<int> StageTable::counts() const {
  std::vector<int> counts;
  for (const auto& alike : classes_) counts.push_back(static_cast<int>(alike.units.size()));
  return counts;
}

ChainProblem StageTable::problem(const ServeForm& form, const ServePoint& point, std::int64_t in_flight,
                                 MemoryRule rule, std::vector<int> must_use) const {
  const auto seconds = [](const StagePrice& price) { return StageSeconds{price.latency.sum(), price.load.sum()}; };
  ChainProblem problem;
  problem.counts = counts();
  problem.must_use = std::move(must_use);
  problem.units = arch_.layers;
  const std::int64_t kv_tokens = kv_tokens_of(point, in_flight);
  for (const auto& kind : kinds_) {
    ChainOption option{.place = kind.place, .takes = kind.takes, .per_unit = seconds(form.block(kind.group)), .at = {}};
    for (int position = 0; position < 4; ++position) {
      const StageEnds ends{(position & 1) != 0, (position & 2) != 0};
      std::int64_t capacity = form.most_layers(kind.group, ends, in_flight);
      if (rule == MemoryRule::true_bytes)
        capacity = std::min(capacity, most_layers_in_memory(arch_, kind.group, ends, kv_tokens, step_));
      option.at[position] = {seconds(form.ends(kind.group, ends)), capacity};
    }
    problem.options.push_back(std::move(option));
  }
  std::vector<TensorGroup> places;
  for (const auto& devices : place_devices_)
    places.push_back({.devices = devices, .weight_type = weight_type_, .kv_type = kv_type_});
  for (std::size_t p = 0; p < places.size(); ++p) {
    problem.hops.emplace_back();
    problem.return_latency_s.emplace_back();
    for (std::size_t q = 0; q < places.size(); ++q) {
      // No second stage can stand where there is one device alone: any value will do, and the neighbour's lets the
      // solver see that places are alike.
      const bool alone = p == q && places[p].devices.size() == 1;
      const TensorGroup& to = alone ? places[(q + 1) % places.size()] : places[q];
      const bool none = alone && places.size() == 1;
      problem.hops.back().push_back(none ? StageSeconds{} : seconds(form.hop(places[p], to)));
      problem.return_latency_s.back().push_back(none ? 0 : form.token_return(places[p], to).sum());
    }
  }
  return problem;
}

double StageTable::prefill_s(const ServeForm& form, const std::vector<ChainStage>& stages) const {
  double seconds = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const TensorGroup& group = kinds_[stages[i].option].group;
    seconds += form.block(group).latency.prefill_s * static_cast<double>(stages[i].units) +
               form.ends(group, {i == 0, i + 1 == stages.size()}).latency.prefill_s;
    if (i + 1 < stages.size()) seconds += form.hop(group, kinds_[stages[i + 1].option].group).latency.prefill_s;
  }
  return seconds;
}

std::vector<std::vector<int>> StageTable::devices_of(const std::vector<ChainStage>& stages) const {
  std::vector<std::size_t> used(classes_.size(), 0);
  std::vector<std::vector<int>> devices;
  for (const auto& stage : stages) {
    devices.emplace_back();
    const StageKind& kind = kinds_[stage.option];
    for (std::size_t k = 0; k < classes_.size(); ++k)
      for (int i = 0; i < kind.takes[k]; ++i) {
        const Unit& unit = classes_[k].units[used[k]++];
        devices.back().insert(devices.back().end(), unit.begin(), unit.end());
      }
  }
  return devices;
}

}  // namespace motley
