#include "motley/cost/published/galvatron_vldb.hpp"

#include <algorithm>
#include <array>

#include "motley/base/error.hpp"
#include "motley/cost/published/galvatron.hpp"

namespace motley {
namespace {

constexpr double vldb_shard_pad = 0.025;
constexpr double vldb_slowdown = 1.3;
constexpr double fudge = 1.1;                // of every time
constexpr double change_mib_per_sample = 2;  // 512 x 1024 x 4 bytes, whatever the model
constexpr double layers_of_extra = 24;

// Measured ms per MB of all-reduce on one node: rows 1, 2, 4 stages.
double ms_per_mib(int stages, int ranks, bool adjacent) {
  if (ranks == 1) return 0;
  if (stages == 1) {
    if (ranks == 8) return 0.21530878;
    if (ranks == 4) return adjacent ? 0.226519097 : 0.220138889;
    return adjacent ? 0.277994792 : 0.271614583;
  }
  if (stages == 2) return ranks == 4 ? 0.230750868 : adjacent ? 0.275195313 : 0.224153646;
  return 0.264908854;
}

// Share of the backward pass that hides gradients, as set for each pair of degrees.
double hiding_share(const VldbStrategy& strategy, VldbLayerKind kind) {
  if (strategy.tensor == 1) return 1;
  if (strategy.stages == 2) return 0.5;
  if (kind == VldbLayerKind::decoder) return 2.0 / 3;
  return strategy.tensor == 2 ? 1 : 0.5;
}

}  // namespace

std::vector<int> vldb_tree_counts(int devices, VldbTrees trees) {
  // Orders of k distinct dimensions times the ways to write 2^levels as a product of k powers of two above 1.
  const auto orders = [&](int dimensions) {
    if (dimensions == 1) return 3;
    if (dimensions == 2) return trees == VldbTrees::mixed ? 6 : 4;
    return trees == VldbTrees::mixed ? 6 : 0;
  };
  std::vector<int> counts;
  for (int stages = 1; stages <= devices; stages *= 2) {
    const int levels = log2_of(devices / stages);
    const std::array<int, 3> compositions = {levels > 0 ? 1 : 0, std::max(0, levels - 1),
                                             levels > 2 ? (levels - 1) * (levels - 2) / 2 : 0};
    int count = levels == 0 ? 1 : 0;
    for (int k = 1; k <= 3; ++k) count += orders(k) * compositions[static_cast<std::size_t>(k - 1)];
    counts.push_back(count);
  }
  return counts;
}

std::vector<VldbStrategy> vldb_strategies() {
  std::vector<VldbStrategy> strategies;
  for (int stages = 1; stages <= 8; stages *= 2)
    for (int tensor = 1; tensor <= 8 / stages; tensor *= 2) {
      const int data = 8 / stages / tensor;
      const bool both = tensor > 1 && data > 1;
      for (const bool sharded : data > 1 ? std::vector<bool>{false, true} : std::vector<bool>{false})
        for (const bool adjacent : both ? std::vector<bool>{false, true} : std::vector<bool>{true})
          strategies.push_back({stages, tensor, data, sharded, adjacent});
    }
  return strategies;
}

VldbModel vldb_bert_huge() {
  return {.name = "bert-huge",
          .layer = {.name = "encoder",
                    .count = 32,
                    .parameter_mib = 76.98,
                    .forward_ms = 55.0 / 24,
                    .activation_mib = {94.07, 52.475, 31.754375, 21.61171875},
                    .sequence = 512,
                    .hidden = 1280},
          .ends_states_mib = 793,
          .ends_activation_mib = 313,
          .extra_ms = 100};
}

double vldb_micro_batches(const VldbStrategy& strategy, double local_batch) {
  if (strategy.stages == 1) return 1;
  if (strategy.data == 1 && strategy.tensor > 1) return local_batch / 4;
  return local_batch < 6 ? local_batch / 2 : local_batch / 8 + 2;
}

double vldb_layer_mib(const VldbModel& model, const VldbStrategy& strategy, int batch) {
  const double shard = strategy.sharded ? 1.0 / strategy.data + vldb_shard_pad : 1;
  return 4 * model.layer.parameter_mib / strategy.tensor * shard +
         model.layer.activation_mib.at(static_cast<std::size_t>(log2_of(strategy.tensor))) * batch / strategy.data;
}

double vldb_ends_mib(const VldbModel& model, const VldbStrategy& strategy, int batch) {
  return model.ends_states_mib + model.ends_activation_mib * batch / strategy.tensor / strategy.data +
         galvatron_context_mib;
}

double vldb_layer_seconds(const VldbModel& model, const VldbStrategy& strategy, int batch) {
  const VldbLayer& layer = model.layer;
  const int t = strategy.tensor, d = strategy.data, stages = strategy.stages;
  MOTLEY_CHECK(stages * t * d == 8);
  const double local_batch = static_cast<double>(batch) / d;
  const double forward = layer.forward_ms * local_batch / t, backward = 2 * forward;
  const double gradient_mib = 2.0 * (d - 1) / d * layer.parameter_mib / t;
  const double exchange_rate = ms_per_mib(stages, d, t == 1 || !strategy.tensor_adjacent);
  const double collectives = layer.kind == VldbLayerKind::encoder ? 4 : 6;
  const double tensor_ms = 2.0 * (t - 1) / t * local_batch * layer.sequence * layer.hidden * collectives * 4 /
                           galvatron_mib * ms_per_mib(stages, t, d == 1 || strategy.tensor_adjacent);
  const double exchange = gradient_mib * exchange_rate;
  const double hiding = backward * hiding_share(strategy, layer.kind);
  const double compute = forward + backward + tensor_ms;
  double ms = compute;
  if (d > 1) {
    double side_by_side = galvatron_overlap(hiding, exchange, vldb_slowdown);
    // In a pipeline of plain replicas, what remains of the exchange is counted for one stage alone.
    if (stages > 1 && t == 1 && !strategy.sharded && exchange > hiding)
      side_by_side = vldb_slowdown * hiding + (exchange - hiding) / stages;
    ms += side_by_side - hiding + model.extra_ms / layers_of_extra;
  }
  if (stages > 1) {
    const double m = vldb_micro_batches(strategy, local_batch);
    ms = compute * (stages + m - 1) / (stages * m) + (ms - compute);
  }
  if (strategy.sharded) ms += 0.5 * exchange;
  return 1e-3 * fudge * ms;
}

double vldb_change_seconds(const VldbStrategy& from, const VldbStrategy& to, int batch) {
  const bool ordered = from.tensor > 1 && from.data > 1 && to.tensor > 1 && to.data > 1;
  const bool other_order = ordered && from.tensor_adjacent != to.tensor_adjacent;
  if (from.tensor == to.tensor && from.data == to.data && !other_order) {
    // Sharded layers first, of choices that cost the same.
    return from.sharded && !to.sharded ? 1e-4 : 0;
  }
  const bool regroup =
      other_order && (to.tensor == from.tensor || (from.tensor * from.data == 8 && from.tensor == 4 && to.tensor == 2));
  if (to.tensor <= from.tensor && !regroup) return 0;
  const double rate = ms_per_mib(to.stages, to.tensor, to.data == 1 || to.tensor_adjacent);
  return 1e-3 * rate * (to.tensor - 1.0) / to.tensor * change_mib_per_sample * batch / to.data;
}

}  // namespace motley
