// The cost form `dtfm`: the communication of a grid of stages x replicas with one device each, as DT-FM counts it
// (arXiv 2206.01288). Devices are alike; only who does what is priced. docs/figures/dtfm.md: what it reproduces, and
// where it departs from what a step takes.
//
//   sync of a stage   DP(C) = max over d in C of  sum over e in C, e != d of  2 (a + c_dp / (R b))
//   hop               w(j, k) = min over perfect matchings of C_j to C_k of the largest 2 (a + c_pp / b)
//   cost              max over stages of DP(C)  +  the shortest open path over w
//
// a, b: the mean of both directions of latency and bandwidth; R replicas; c_dp bytes of gradients of one stage; c_pp
// bytes of activations that one replica sends over one boundary in a step.
#pragma once

#include <span>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/form/train_form.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

struct DtfmVolumes {
  double gradient_bytes = 0;    // c_dp
  double activation_bytes = 0;  // c_pp
};

// The settings `dtfm.gradient_bytes` and `dtfm.activation_bytes`, or what model and job give: the gradients of the
// blocks of the largest stage in their precision, and one hidden state per token of a replica's part of the batch.
DtfmVolumes dtfm_volumes(const CostOptions& options, const Architecture& arch, const Training& training,
                         std::int64_t stages, std::int64_t replicas);

// Between every two devices, both ways alike; n x n, row-major, 0 on the diagonal.
struct DtfmPairs {
  int devices = 0;
  std::vector<double> latency_s = {}, s_per_byte = {};
  std::vector<double> sync_s = {};  // 2 (a + c_dp / (R b))
  std::vector<double> hop_s = {};   // 2 (a + c_pp / b)
};
DtfmPairs dtfm_pairs(const Cluster& cluster, const DtfmVolumes& volumes, std::int64_t replicas);

// DP(C) of one stage.
double dtfm_sync_s(const DtfmPairs& pairs, std::span<const int> stage);

// A grid of devices with its cost: grid[s][r] works for stage s in replica r.
struct DtfmAssignment {
  double dp_s = 0;
  double pp_s = 0;
  std::vector<std::vector<int>> grid = {};
  double cost_s() const { return dp_s + pp_s; }
};
// The best order of the stages and the best pipelines through them, for given sets of devices: the published objective.
DtfmAssignment dtfm_assign(const DtfmPairs& pairs, const std::vector<std::vector<int>>& stages);
// The same objective of a grid as it is: a hop costs what its slowest pipeline pays.
DtfmAssignment dtfm_price(const DtfmPairs& pairs, std::vector<std::vector<int>> grid);

// Readings of the pipelines that are closer to a run. The published one adds up the worst of every hop, though no
// pipeline need be worst at all of them.
double dtfm_worst_pipeline_s(const DtfmPairs& pairs, const std::vector<std::vector<int>>& grid);
// Micro-batches follow one another and hops overlap: the way of one, and the slowest hop for each of the others. With
// one micro-batch, the worst whole pipeline.
double dtfm_pipelined_s(const DtfmPairs& pairs, double activation_bytes, const std::vector<std::vector<int>>& grid,
                        std::int64_t micro_batches);

// Prices a plan as it is written; throws an input error where replicas are not alike pipelines of single devices. Its
// terms are `dp` and `pp`.
TrainCost price_dtfm(const TrainPlan& plan, const CostOptions& options);

}  // namespace motley
