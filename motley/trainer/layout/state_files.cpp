#include "motley/trainer/layout/state_files.hpp"

#include <fmt/format.h>

#include "motley/checkpoint/manifest.hpp"
#include "motley/model/part_tensors.hpp"
#include "motley/trainer/layout/worker_layout.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_file_bytes = std::int64_t{4} << 30;

std::string file_type(DType type) {
  switch (type) {
    case DType::fp32: return "F32";
    case DType::bf16: return "BF16";
    default:
      throw input_error(fmt::format("the trainer cannot train in {}", name_of(type)),
                        "set precision to fp32 or bf16 in the workload's [training]");
  }
}

// Splits entries into files of at most most_file_bytes.
std::vector<StateFile> split(const std::vector<std::pair<SafetensorsEntry, std::int64_t>>& entries) {
  std::vector<StateFile> files;
  std::int64_t bytes = most_file_bytes;
  for (const auto& [entry, size] : entries) {
    if (bytes + size > most_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += size;
    files.back().entries.push_back(entry);
  }
  return files;
}

}  // namespace

std::string state_name(const std::string& tensor, StateKind kind) {
  switch (kind) {
    case StateKind::weight: return tensor;
    case StateKind::exp_avg: return tensor + ".exp_avg";
    case StateKind::exp_avg_sq: return tensor + ".exp_avg_sq";
    case StateKind::master: return tensor + ".master";
  }
  MOTLEY_CHECK(false);
}

std::vector<StateKind> state_kinds(const Training& training) {
  std::vector<StateKind> kinds = {StateKind::weight};
  const bool adam = training.optimizer != "sgd";
  if (adam || training.momentum > 0) kinds.push_back(StateKind::exp_avg);
  if (adam) kinds.push_back(StateKind::exp_avg_sq);
  if (training.precision != DType::fp32) kinds.push_back(StateKind::master);
  return kinds;
}

StateFiles state_files(const Architecture& arch, const Training& training) {
  StateFiles all;
  const auto add_files = [&](const std::string& stem, const std::vector<StateKind>& kinds) {
    std::vector<std::pair<SafetensorsEntry, std::int64_t>> entries;
    for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch)))
      for (const StateKind kind : kinds) {
        const DType type = kind == StateKind::weight ? training.precision : DType::fp32;
        entries.push_back(
            {{state_name(tensor.name, kind), file_type(type), tensor.shape}, bytes_of(type, tensor.elements())});
      }
    std::vector<StateFile> files = split(entries);
    for (std::size_t i = 0; i < files.size(); ++i) {
      files[i].name = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, files.size());
      for (std::size_t e = 0; e < files[i].entries.size(); ++e)
        all.places[files[i].entries[e].name] = {all.files.size(), e};
      all.files.push_back(std::move(files[i]));
    }
  };
  std::vector<StateKind> kinds = state_kinds(training);
  add_files("model", {kinds.front()});
  all.weight_files = all.files.size();
  kinds.erase(kinds.begin());
  if (!kinds.empty()) add_files(states_stem, kinds);
  return all;
}

std::vector<StateRows> state_rows(const TrainPlan& plan, const std::string& device, bool with_states) {
  const Architecture& arch = plan.model.arch;
  const TrainPlace place = place_of(plan, device);
  std::vector<StateKind> kinds = state_kinds(training_of(plan.workload));
  if (!with_states) kinds.resize(1);
  std::vector<StateRows> rows;
  for (const StrategyRanks& ranks : strategies_of(plan, place.replica)) {
    if (ranks.stage != &plan.replicas[place.replica].stages[place.stage]) continue;
    const Shard shard = ranks.shards(arch).at(static_cast<std::size_t>(place.rank % ranks.strategy->tp));
    for (const TensorSpec& tensor : part_tensors(arch, with_ends(arch, ranks.strategy->layers)))
      for (const StateKind kind : kinds)
        rows.push_back({state_name(tensor.name, kind), kind, slice_of(arch, tensor, shard).rows});
  }
  return rows;
}

std::vector<StateSlice> state_slices(const TrainPlan& plan) {
  TrainPlan divided = plan;
  for (TrainReplica& replica : divided.replicas)
    for (TrainStage& stage : replica.stages)
      for (LayerStrategy& strategy : stage.strategies)
        if (strategy.shard == Sharding::zero1) strategy.shard = Sharding::zero2;
  std::vector<StateSlice> parts;
  for (GradientSlice& part : gradient_slices(divided))
    parts.push_back({std::move(part.tensor), part.slice, part.holders.front().device});
  return parts;
}

}  // namespace motley
