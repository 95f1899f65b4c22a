// From the layout that a search found to the plan: every planner of training writes its plan here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/train/train_price.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// What the planners of training are asked, and what they answer.
struct TrainOptions {
  CostOptions cost = {};
  Profile profile = {};
  std::optional<std::int64_t> stages = {}, replicas = {};  // fix the grid
  double deadline_s = 10;
  std::uint64_t seed = 0;
  int threads = 1;
  double effort = 1;  // scales the number of local moves
};

struct TrainOutcome {
  std::optional<TrainPlan> plan;
  std::string reason, hint;  // where there is none
};

// The plan with its figures, its memory and the devices that stay idle. Of the search it records what the options say;
// record_search() adds the rest.
TrainPlan make_train_plan(const Cluster& cluster, const Model& model, const Workload& workload,
                          const TrainOptions& options, const TrainLayout& layout);

struct TrainSearch {
  std::string planner;  // "train/joint"
  SearchStatus status = SearchStatus::heuristic;
  double bound_s = 0;  // no step is shorter
  std::int64_t evaluated = 0;
  double elapsed_s = 0;
};
void record_search(TrainPlan& plan, const TrainSearch& search);

// Whether a stage fits the memory of its devices, by the arithmetic that verify() uses.
bool stage_fits(const TrainProblemView& view, const TrainLayout& layout, std::size_t replica, std::size_t stage);
// The layers of stages that do not fit are computed again in the backward pass.
void recompute_where_needed(const TrainProblemView& view, TrainLayout& layout);

// A stage whose layers are all tensor parallel over its devices.
PlacedStage tensor_parallel_stage(LayerRange layers, std::vector<int> devices, bool recompute);

// Sequences of a step over replicas whose next micro-batch takes each as long: whole numbers that differ by at most
// one.
std::vector<std::int64_t> equal_shares(std::int64_t sequences, std::int64_t replicas);

}  // namespace motley
