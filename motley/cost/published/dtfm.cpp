#include "motley/cost/published/dtfm.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/rounding.hpp"
#include "motley/base/units.hpp"
#include "motley/cost/form/form.hpp"
#include "motley/solve/matching.hpp"
#include "motley/solve/path.hpp"

namespace motley {
namespace {

std::size_t pair(const DtfmPairs& pairs, int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(pairs.devices) + static_cast<std::size_t>(b);
}

// What one device of a stage spends on its peers.
double sync_of(const DtfmPairs& pairs, std::span<const int> stage, int device) {
  double sum = 0;
  for (const int peer : stage)
    if (peer != device) sum += pairs.sync_s[pair(pairs, device, peer)];
  return sum;
}

double worst_sync(const DtfmPairs& pairs, const std::vector<std::vector<int>>& grid) {
  double worst = 0;
  for (const auto& stage : grid) worst = std::max(worst, dtfm_sync_s(pairs, stage));
  return worst;
}

double hop_of(const DtfmPairs& pairs, const std::vector<int>& from, const std::vector<int>& to) {
  double slowest = 0;
  for (std::size_t r = 0; r < from.size(); ++r) slowest = std::max(slowest, pairs.hop_s[pair(pairs, from[r], to[r])]);
  return slowest;
}

}  // namespace

DtfmVolumes dtfm_volumes(const CostOptions& options, const Architecture& arch, const Training& training,
                         std::int64_t stages, std::int64_t replicas) {
  const double layers = static_cast<double>(ceil_div(arch.layers, stages));
  const auto element = static_cast<double>(bytes_of(training.precision, 1));
  const double tokens = static_cast<double>(training.global_batch * training.sequence_length);
  return {
      .gradient_bytes = setting(options, "dtfm.gradient_bytes",
                                layers * mean_block_parameters(arch) * state_bytes(training).gradient),
      .activation_bytes = setting(options, "dtfm.activation_bytes",
                                  tokens / static_cast<double>(replicas) * static_cast<double>(arch.hidden) * element)};
}

DtfmPairs dtfm_pairs(const Cluster& cluster, const DtfmVolumes& volumes, std::int64_t replicas) {
  const auto n = static_cast<int>(cluster.devices.size());
  const auto size = static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
  DtfmPairs pairs{.devices = n,
                  .latency_s = std::vector<double>(size),
                  .s_per_byte = std::vector<double>(size),
                  .sync_s = std::vector<double>(size),
                  .hop_s = std::vector<double>(size)};
  for (int a = 0; a < n; ++a)
    for (int b = 0; b < a; ++b) {
      const PathSpeed there = cluster.link(a, b), back = cluster.link(b, a);
      const double latency = (there.latency_s + back.latency_s) / 2;
      const double per_byte = 2 / (there.bandwidth_bytes_per_s + back.bandwidth_bytes_per_s);
      for (const std::size_t at : {pair(pairs, a, b), pair(pairs, b, a)}) {
        pairs.latency_s[at] = latency;
        pairs.s_per_byte[at] = per_byte;
        pairs.sync_s[at] = 2 * (latency + volumes.gradient_bytes / static_cast<double>(replicas) * per_byte);
        pairs.hop_s[at] = 2 * (latency + volumes.activation_bytes * per_byte);
      }
    }
  return pairs;
}

double dtfm_sync_s(const DtfmPairs& pairs, std::span<const int> stage) {
  double worst = 0;
  for (const int device : stage) worst = std::max(worst, sync_of(pairs, stage, device));
  return worst;
}

DtfmAssignment dtfm_assign(const DtfmPairs& pairs, const std::vector<std::vector<int>>& stages) {
  const std::size_t count = stages.size(), replicas = stages.front().size();
  BottleneckMatcher matcher;
  std::vector<double> hops(replicas * replicas);
  const auto match = [&](const std::vector<int>& from, const std::vector<int>& to) {
    for (std::size_t i = 0; i < replicas; ++i)
      for (std::size_t j = 0; j < replicas; ++j) hops[i * replicas + j] = pairs.hop_s[pair(pairs, from[i], to[j])];
    return matcher.solve(hops, static_cast<int>(replicas));
  };
  std::vector<double> weights(count * count);
  for (std::size_t j = 0; j < count; ++j)
    for (std::size_t k = 0; k < j; ++k) weights[j * count + k] = weights[k * count + j] = match(stages[j], stages[k]);
  const OpenPath path = shortest_open_path(weights, static_cast<int>(count));
  DtfmAssignment assignment{.dp_s = worst_sync(pairs, stages), .pp_s = path.length, .grid = {}};
  for (const int stage : path.order) {
    const auto& devices = stages[static_cast<std::size_t>(stage)];
    std::vector<int> row = devices;
    if (!assignment.grid.empty()) {
      match(assignment.grid.back(), devices);
      for (std::size_t r = 0; r < replicas; ++r) row[r] = devices[static_cast<std::size_t>(matcher.match()[r])];
    }
    assignment.grid.push_back(std::move(row));
  }
  return assignment;
}

DtfmAssignment dtfm_price(const DtfmPairs& pairs, std::vector<std::vector<int>> grid) {
  DtfmAssignment assignment{.dp_s = worst_sync(pairs, grid), .pp_s = 0, .grid = {}};
  for (std::size_t s = 0; s + 1 < grid.size(); ++s) assignment.pp_s += hop_of(pairs, grid[s], grid[s + 1]);
  assignment.grid = std::move(grid);
  return assignment;
}

double dtfm_worst_pipeline_s(const DtfmPairs& pairs, const std::vector<std::vector<int>>& grid) {
  double worst = 0;
  for (std::size_t r = 0; r < grid.front().size(); ++r) {
    double sum = 0;
    for (std::size_t s = 0; s + 1 < grid.size(); ++s) sum += pairs.hop_s[pair(pairs, grid[s][r], grid[s + 1][r])];
    worst = std::max(worst, sum);
  }
  return worst;
}

double dtfm_pipelined_s(const DtfmPairs& pairs, double activation_bytes, const std::vector<std::vector<int>>& grid,
                        std::int64_t micro_batches) {
  const double bytes = activation_bytes / static_cast<double>(micro_batches);
  double worst = 0;
  for (std::size_t r = 0; r < grid.front().size(); ++r) {
    double way = 0, slowest = 0;
    for (std::size_t s = 0; s + 1 < grid.size(); ++s) {
      const std::size_t at = pair(pairs, grid[s][r], grid[s + 1][r]);
      way += pairs.latency_s[at] + bytes * pairs.s_per_byte[at];
      slowest = std::max(slowest, bytes * pairs.s_per_byte[at]);
    }
    worst = std::max(worst, 2 * (way + static_cast<double>(micro_batches - 1) * slowest));  // forward and backward
  }
  return worst;
}

namespace {

std::vector<std::vector<int>> grid_of(const TrainPlan& plan) {
  std::vector<std::vector<int>> grid(plan.replicas.front().stages.size());
  for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
    const auto& stages = plan.replicas[r].stages;
    const auto refuse = [&](std::string what) {
      throw input_error(fmt::format("replicas[{}]: {}", r, what),
                        "use --cost flashflex: the cost form \"dtfm\" is for equal pipelines of single devices");
    };
    if (stages.size() != grid.size())
      refuse(fmt::format("{} stages, and replicas[0] has {}", stages.size(), grid.size()));
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].devices.size() != 1) refuse(fmt::format("stages[{}] has {} devices", s, stages[s].devices.size()));
      grid[s].push_back(plan.cluster.find_device(stages[s].devices.front()));
    }
  }
  return grid;
}

}  // namespace

TrainCost price_dtfm(const TrainPlan& plan, const CostOptions& options) {
  const auto grid = grid_of(plan);
  const auto replicas = static_cast<std::int64_t>(plan.replicas.size());
  const DtfmVolumes volumes = dtfm_volumes(options, plan.model.arch, training_of(plan.workload),
                                           static_cast<std::int64_t>(grid.size()), replicas);
  const DtfmPairs pairs = dtfm_pairs(plan.cluster, volumes, replicas);
  const auto name = [&](int device) { return plan.cluster.devices[static_cast<std::size_t>(device)].name; };
  std::vector<Term> syncs, hops;
  for (std::size_t s = 0; s < grid.size(); ++s) {
    const int slowest = *std::max_element(grid[s].begin(), grid[s].end(), [&](int a, int b) {
      return sync_of(pairs, grid[s], a) < sync_of(pairs, grid[s], b);
    });
    syncs.push_back(leaf(fmt::format("stage {}", s), dtfm_sync_s(pairs, grid[s]),
                         fmt::format("{} and its {} peers, {} each, both ways", name(slowest), replicas - 1,
                                     human_bytes(volumes.gradient_bytes / static_cast<double>(replicas)))));
  }
  for (std::size_t s = 0; s + 1 < grid.size(); ++s) {
    std::size_t slowest = 0;
    for (std::size_t r = 1; r < grid[s].size(); ++r)
      if (pairs.hop_s[pair(pairs, grid[s][r], grid[s + 1][r])] >
          pairs.hop_s[pair(pairs, grid[s][slowest], grid[s + 1][slowest])])
        slowest = r;
    hops.push_back(leaf(fmt::format("hop {} to {}", s, s + 1), hop_of(pairs, grid[s], grid[s + 1]),
                        fmt::format("{} to {}, {}, both ways", name(grid[s][slowest]), name(grid[s + 1][slowest]),
                                    human_bytes(volumes.activation_bytes))));
  }
  TrainCost cost;
  cost.tree = sum_of("communication", {max_of("dp", std::move(syncs), "gradients of a stage's replicas"),
                                       sum_of("pp", std::move(hops), "the slowest pipeline at every hop")});
  cost.iteration_s = cost.tree.value;
  cost.remarks = {{"pp, the worst whole pipeline", dtfm_worst_pipeline_s(pairs, grid)},
                  {"pp, micro-batches overlapping",
                   dtfm_pipelined_s(pairs, volumes.activation_bytes, grid, plan.replicas.front().micro_batches)}};
  return cost;
}

}  // namespace motley
