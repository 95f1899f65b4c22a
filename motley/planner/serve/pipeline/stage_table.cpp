#include "motley/planner/serve/pipeline/stage_table.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/planner/serve/pipeline/offloading.hpp"

namespace motley {

std::vector<double> uneven_shares(const Architecture& arch, int degree) {
  const std::vector<Shard> shards = make_shards(arch, degree);
  const auto heads = [](const Shard& shard) { return shard.heads.front().size(); };
  const bool even = std::all_of(shards.begin(), shards.end(),
                                [&](const Shard& shard) { return heads(shard) == heads(shards.front()); });
  std::vector<double> shares;
  if (even) return shares;
  for (const auto& shard : shards)
    shares.push_back(static_cast<double>(heads(shard)) / static_cast<double>(arch.heads));
  return shares;
}

std::vector<LayerRange> layers_of(const std::vector<ChainStage>& stages) {
  std::vector<LayerRange> layers;
  for (const ChainStage& stage : stages) {
    const std::int64_t first = layers.empty() ? 0 : layers.back().end;
    layers.push_back({first, first + stage.units});
  }
  return layers;
}

StageTable::StageTable(const ServeProblem& problem, std::vector<DeviceClass> classes)
    : cluster_(problem.cluster),
      arch_(problem.model.arch),
      classes_(std::move(classes)),
      step_(problem.options.step),
      weights_(problem.weight_types()),
      kv_type_(problem.kv_type),
      crossing_type_(problem.options.crossing_type) {
  const ServeOptions& options = problem.options;
  for (std::size_t k = 0; k < classes_.size(); ++k) add_place({static_cast<int>(k)});
  add_alike(options);
  if (options.tensor_parallel == TensorParallel::across_machines) add_across_machines();
  if (options.stage_types == StageTypes::mixed && options.cost.form == "motley") add_mixed(options);
  add_offloading(problem);
}

// Groups of one class.
void StageTable::add_alike(const ServeOptions& options) {
  for (std::size_t k = 0; k < classes_.size(); ++k) {
    const bool wide = classes_[k].one_machine || options.tensor_parallel == TensorParallel::across_machines;
    const int most = wide ? static_cast<int>(classes_[k].units.size()) : 1;
    const Unit& unit = classes_[k].units[0];
    const auto fixed = options.degrees.find(cluster_.machines[cluster_.devices[unit[0]].machine].name);
    for (int n = 1; n <= most; ++n) {
      if (fixed != options.degrees.end() && n * static_cast<int>(unit.size()) != fixed->second) continue;
      std::vector<int> takes(classes_.size(), 0);
      takes[k] = n;
      add_kind(std::move(takes), static_cast<int>(k));
    }
  }
}

// Groups over several classes of one type: equally many units of each of a run of such classes.
void StageTable::add_across_machines() {
  const auto type = [&](std::size_t k) { return cluster_.devices[classes_[k].units[0][0]].type; };
  for (std::size_t first = 0; first < classes_.size(); ++first) {
    std::vector<int> members = {static_cast<int>(first)};
    std::size_t least = classes_[first].units.size();
    for (std::size_t k = first + 1; k < classes_.size(); ++k) {
      if (type(k) != type(first)) continue;
      members.push_back(static_cast<int>(k));
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

// In thousandths, to be read; empty where all are equal.
template <class Weight>
std::vector<double> StageTable::shares_by(const std::vector<int>& devices, Weight weight) const {
  std::vector<double> weights;
  for (const int device : devices) weights.push_back(weight(cluster_.type_of(device)));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (std::all_of(weights.begin(), weights.end(), [&](double w) { return w == weights.front(); })) return {};
  std::vector<int> thousandths;
  for (const double w : weights) thousandths.push_back(std::max(1, static_cast<int>(std::lround(1000 * w / sum))));
  const int excess = std::accumulate(thousandths.begin(), thousandths.end(), 0) - 1000;
  *std::max_element(thousandths.begin(), thousandths.end()) -= excess;
  std::vector<double> shares;
  for (const int part : thousandths) shares.push_back(part / 1000.0);
  return shares;
}

// All devices of several classes of one machine. Each rank's share follows what binds it: memory bandwidth, or memory.
void StageTable::add_mixed(const ServeOptions& options) {
  constexpr std::size_t most_classes = 4;  // 11 sets
  for (std::size_t machine = 0; machine < cluster_.machines.size(); ++machine) {
    if (options.degrees.contains(cluster_.machines[machine].name)) continue;
    std::vector<int> here;
    for (std::size_t k = 0; k < classes_.size(); ++k)
      if (classes_[k].one_machine && cluster_.devices[classes_[k].units[0][0]].machine == static_cast<int>(machine))
        here.push_back(static_cast<int>(k));
    if (here.size() > most_classes) here.resize(most_classes);
    for (unsigned set = 1; set < 1u << here.size(); ++set) {
      if (std::popcount(set) < 2) continue;
      std::vector<int> takes(classes_.size(), 0), members;
      for (std::size_t i = 0; i < here.size(); ++i)
        if ((set >> i & 1u) != 0) {
          members.push_back(here[i]);
          takes[here[i]] = static_cast<int>(classes_[here[i]].units.size());
        }
      const std::vector<int> devices = devices_taken(takes);
      const int place = add_place(members);
      const auto by_bandwidth = shares_by(devices, [](const DeviceType& type) {
        return type.memory_bandwidth_bytes_per_s * type.efficiency.bandwidth;
      });
      const auto by_memory = shares_by(devices, [](const DeviceType& type) {
        return static_cast<double>(type.memory_bytes - type.reserve_bytes.value_or(0));
      });
      add_kind(takes, place, by_bandwidth);
      if (by_memory != by_bandwidth) add_kind(takes, place, by_memory);
    }
  }
}

// Time is not linear in the layers of such a stage, so each number of layers is a kind of its own.
void StageTable::add_offloading(const ServeProblem& problem) {
  for (std::size_t k = 0; k < classes_.size(); ++k) {
    const Unit& unit = classes_[k].units[0];
    if (unit.size() > 1) continue;
    const auto fixed = problem.options.degrees.find(cluster_.machines[cluster_.devices[unit[0]].machine].name);
    if (fixed != problem.options.degrees.end() && fixed->second != 1) continue;
    const std::optional<MemoryTiers> tiers = offload_tiers(problem, unit[0]);
    if (!tiers) continue;
    const std::vector<std::int64_t> sizes = offload_sizes(arch_.layers);
    all_sizes_ = std::ssize(sizes) == arch_.layers;
    for (const std::int64_t layers : sizes) {
      std::vector<int> takes(classes_.size(), 0);
      takes[k] = 1;
      add_kind(std::move(takes), static_cast<int>(k));
      kinds_.back().tiers = tiers;
      kinds_.back().most_layers = layers;
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

std::vector<int> StageTable::devices_taken(const std::vector<int>& takes) const {
  std::vector<int> devices;
  for (std::size_t k = 0; k < takes.size(); ++k)
    for (int i = 0; i < takes[k]; ++i)
      devices.insert(devices.end(), classes_[k].units[i].begin(), classes_[k].units[i].end());
  return devices;
}

void StageTable::add_kind(std::vector<int> takes, int place, std::vector<double> shares) {
  std::vector<int> devices = devices_taken(takes);
  const auto degree = static_cast<std::int64_t>(devices.size());
  if (degree > arch_.heads || degree > narrowest_ffn(arch_) || degree > arch_.vocabulary)
    return;  // make_shards() would refuse it
  const DType weights = weights_.on(cluster_, devices);
  std::vector<std::int64_t> expert_shares = choose_expert_shares(arch_, static_cast<int>(degree), shares, weights);
  if (shares.empty()) shares = uneven_shares(arch_, static_cast<int>(degree));
  StageKind kind{.takes = std::move(takes),
                 .place = place,
                 .shares = std::move(shares),
                 .expert_shares = std::move(expert_shares),
                 .group = {}};
  kind.group =
      make_group(cluster_, arch_, std::move(devices), kind.shares, weights, kv_type_, step_, kind.expert_shares);
  kinds_.push_back(std::move(kind));
}

std::vector<int> StageTable::counts() const {
  std::vector<int> counts;
  for (const auto& alike : classes_) counts.push_back(static_cast<int>(alike.units.size()));
  return counts;
}

// By the form's own rule, where it has one, and by the bytes of model/.
LayerRoom StageTable::room(const ServeForm& form, const TensorGroup& group, const CacheRoom& caches,
                           std::int64_t in_flight, MemoryRule rule) const {
  if (!form.most_layers(group, {}, in_flight)) return layer_room(arch_, group, caches, step_);
  LayerRoom room{.size = std::vector<std::int64_t>(arch_.kinds.size(), 1)};
  for (const StageEnds ends : all_ends) {
    std::int64_t& capacity = room.capacity[ends_index(ends)];
    capacity = *form.most_layers(group, ends, in_flight);
    if (rule == MemoryRule::true_bytes)
      capacity = std::min(capacity, most_layers_in_memory(arch_, group, ends, caches, step_));
  }
  return room;
}

ChainProblem StageTable::problem(const ServeForm& form, const ServePoint& point, std::int64_t in_flight,
                                 MemoryRule rule, std::vector<int> must_use, LoadOf load) const {
  const double further = std::max(0.0, form.chunks() - 1);
  const auto seconds = [&](const StagePrice& price) {
    return StageSeconds{price.latency.sum(), load == LoadOf::request ? price.load_s : further * price.chunk_s};
  };
  ChainProblem problem;
  problem.counts = counts();
  problem.must_use = std::move(must_use);
  problem.units = arch_.layers;
  problem.kind_of_unit = arch_.kind_of_layer;
  const std::size_t layer_kinds = arch_.kinds.size();
  const CacheRoom caches = room_of(point, in_flight);
  for (const auto& kind : kinds_) {
    ChainOption option{.place = kind.place, .takes = kind.takes, .per_unit = {}, .at = {}};
    if (kind.tiers) {
      option.per_unit.assign(layer_kinds, StageSeconds());
      option.unit_size.assign(layer_kinds, 1);
      for (const StageEnds ends : all_ends)
        if (const auto placed =
                place_offloaded(form, arch_, kind.group, ends, mean_layer_counts(arch_, kind.most_layers), caches,
                                step_.block_tokens, *kind.tiers))
          option.at[ends_index(ends)] = {seconds(form.streamed(kind.group, ends, *placed)), kind.most_layers};
    } else {
      LayerRoom fits = room(form, kind.group, caches, in_flight, rule);
      for (std::size_t k = 0; k < layer_kinds; ++k) option.per_unit.push_back(seconds(form.block(kind.group, k)));
      for (const StageEnds ends : all_ends)
        option.at[ends_index(ends)] = {seconds(form.ends(kind.group, ends)), fits.capacity[ends_index(ends)]};
      option.unit_size = std::move(fits.size);
    }
    option.at[static_cast<int>(ChainPosition::only)].fixed.latency_s += form.token_return(kind.group, kind.group).sum();
    problem.options.push_back(std::move(option));
  }
  const int places = static_cast<int>(place_devices_.size());
  for (int from = 0; from < places; ++from) {
    problem.hops.emplace_back();
    problem.return_latency_s.emplace_back();
    for (int to = 0; to < places; ++to) {
      const auto ends = neighbours(from, to);
      problem.hops.back().push_back(ends ? seconds(form.hop(ends->first, ends->second)) : StageSeconds{});
      problem.return_latency_s.back().push_back(ends ? form.token_return(ends->first, ends->second).sum() : 0);
    }
  }
  return problem;
}

// Devices of two places, as groups between which a hop can be priced; none where there is only one device in all.
std::optional<std::pair<TensorGroup, TensorGroup>> StageTable::neighbours(int from, int to) const {
  const auto group = [&](const std::vector<int>& devices) {
    return TensorGroup{.devices = devices, .weight_type = weights_.on(cluster_, devices), .kv_type = kv_type_};
  };
  const auto pair = [&](const std::vector<int>& senders, const std::vector<int>& receivers) {
    std::pair<TensorGroup, TensorGroup> ends(group(senders), group(receivers));
    set_sending(ends.first, ends.second);
    return ends;
  };
  const std::vector<int>& here = place_devices_[from];
  if (from != to) return pair(here, place_devices_[to]);
  if (here.size() > 1) return pair({here.front()}, {here.back()});  // two stages have no device in common
  // No second stage can stand where there is one device alone: any value will do, and the next place's lets the solver
  // see that places are alike.
  if (place_devices_.size() == 1) return std::nullopt;
  return pair(here, place_devices_[(to + 1) % static_cast<int>(place_devices_.size())]);
}

void StageTable::set_sending(TensorGroup& from, const TensorGroup& to) const {
  if (crosses_machines(cluster_, from.devices, to.devices)) from.sends_in = crossing_type_;
}

ChainOffload StageTable::place(const ServeForm& form, const ServePoint& point, std::int64_t in_flight,
                               const std::vector<ChainStage>& stages) const {
  ChainOffload offload(stages.size());
  const std::vector<LayerRange> layers = layers_of(stages);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageKind& kind = kinds_[stages[i].option];
    if (kind.tiers)
      offload[i] =
          place_offloaded(form, arch_, kind.group, {i == 0, i + 1 == stages.size()}, layer_counts(arch_, layers[i]),
                          room_of(point, in_flight), step_.block_tokens, *kind.tiers);
  }
  return offload;
}

PathPrice StageTable::price(const ServeForm& form, const std::vector<ChainStage>& stages,
                            const ChainOffload& offload) const {
  auto devices = devices_of(stages);
  std::vector<TensorGroup> groups;
  for (std::size_t i = 0; i < stages.size(); ++i)
    groups.push_back(group_on(cluster_, kinds_[stages[i].option].group, std::move(devices[i])));
  for (std::size_t i = 0; i + 1 < groups.size(); ++i) set_sending(groups[i], groups[i + 1]);
  const std::vector<LayerRange> layers = layers_of(stages);
  std::vector<PathStage> path;
  for (std::size_t i = 0; i < stages.size(); ++i)
    path.push_back({&groups[i],
                    {i == 0, i + 1 == stages.size()},
                    layer_counts(arch_, layers[i]),
                    offload[i] ? &*offload[i] : nullptr});
  return price_path(form, path);
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
