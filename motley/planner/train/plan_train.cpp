#include "motley/planner/train/plan_train.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "motley/base/clock.hpp"
#include "motley/base/rounding.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/model/training.hpp"
#include "motley/planner/train/published/flashflex_layout.hpp"
#include "motley/planner/train/published/grid.hpp"

namespace motley {
namespace {

constexpr std::int64_t enumerated = 100000;  // layouts that are few enough to try all

struct Job {
  const Cluster& cluster;
  const Model& model;
  const Workload& workload;
  const TrainOptions& options;
  const Training& training;
  Instant start;

  Instant deadline() const { return start + duration_of(options.deadline_s); }
  double elapsed_s() const { return seconds_since(start); }
};

void record(TrainPlan& plan, const Job& job, std::string planner, SearchStatus status, double bound,
            std::int64_t evaluated) {
  record_search(plan, {.planner = std::move(planner),
                       .status = status,
                       .bound_s = bound,
                       .evaluated = evaluated,
                       .elapsed_s = job.elapsed_s()});
}

// A plan that does not hold its own memory is not a plan.
TrainOutcome checked(TrainPlan plan) {
  if (const auto violations = verify(plan); !violations.empty())
    return {.plan = {},
            .reason = fmt::format("{}: {}", violations.front().place, violations.front().what),
            .hint = violations.front().hint};
  return {.plan = std::move(plan), .reason = "", .hint = ""};
}

// ---- dtfm ----

struct Shape {
  std::int64_t stages = 0, replicas = 0;
};

// Grids that use as many devices as they can.
std::vector<Shape> shapes_of(const Job& job) {
  const auto devices = static_cast<std::int64_t>(job.cluster.devices.size());
  const std::optional<std::int64_t> stages = job.options.stages, replicas = job.options.replicas;
  if (stages && replicas) return {{*stages, *replicas}};
  if (stages) return {{*stages, std::min(devices / *stages, job.training.global_batch)}};
  if (replicas) return {{std::min(devices / *replicas, job.model.arch.layers), *replicas}};
  std::vector<Shape> shapes;
  for (std::int64_t depth = 1; depth <= std::min(devices, job.model.arch.layers); ++depth)
    shapes.push_back({depth, std::min(devices / depth, job.training.global_batch)});
  return shapes;
}

GridProblem grid_problem(const Job& job, const Shape& shape) {
  const DtfmVolumes volumes =
      dtfm_volumes(job.options.cost, job.model.arch, job.training, shape.stages, shape.replicas);
  return {static_cast<int>(shape.stages), static_cast<int>(shape.replicas),
          dtfm_pairs(job.cluster, volumes, shape.replicas)};
}

TrainLayout placed_grid(const Job& job, const DtfmAssignment& assignment) {
  const auto stages = static_cast<std::int64_t>(assignment.grid.size());
  const auto replicas = static_cast<std::int64_t>(assignment.grid.front().size());
  const auto sequences = equal_shares(job.training.global_batch, replicas);
  const auto layers = equal_shares(job.model.arch.layers, stages);
  const std::int64_t micro_batch = std::max<std::int64_t>(1, job.training.micro_batch);
  TrainLayout placed{.replicas = {}, .sync = {.algorithm = SyncAlgorithm::direct}};
  for (std::size_t r = 0; r < static_cast<std::size_t>(replicas); ++r) {
    ReplicaLayout& replica = placed.replicas.emplace_back(
        ReplicaLayout{.sequences = sequences[r], .micro_batches = ceil_div(sequences[r], micro_batch), .stages = {}});
    std::int64_t layer = 0;
    for (std::size_t s = 0; s < static_cast<std::size_t>(stages); ++s) {
      replica.stages.push_back(tensor_parallel_stage({layer, layer + layers[s]}, {assignment.grid[s][r]}, false));
      layer += layers[s];
    }
  }
  recompute_where_needed({job.cluster, job.model.arch, job.training, job.options.profile}, placed);
  return placed;
}

TrainOutcome written_grid(const Job& job, const GridOutcome& found) {
  TrainPlan plan = make_train_plan(job.cluster, job.model, job.workload, job.options, placed_grid(job, found.best));
  for (auto& unused : plan.unused) unused.reason = "not needed by the grid";
  return checked(std::move(plan));
}

TrainOutcome plan_grid(const Job& job) {
  TrainOutcome refused, kept;
  std::optional<GridOutcome> best;
  const std::vector<Shape> shapes = shapes_of(job);
  double bound_s =
      std::numeric_limits<double>::infinity();  // of all shapes: what one of them proves of itself is not enough
  std::int64_t evaluated = 0;
  for (const Shape& shape : shapes) {
    // Between many shapes structured starts decide; the search goes on with the best.
    GridOutcome outcome =
        search_grid(grid_problem(job, shape), {.seed = job.options.seed,
                                               .threads = job.options.threads,
                                               .deadline = shapes.size() > 1 ? Clock::now() : job.deadline()});
    bound_s = std::min(bound_s, outcome.bound_s);
    evaluated += outcome.evaluated;
    if (best && outcome.best.cost_s() >= best->best.cost_s()) continue;
    TrainOutcome trial = written_grid(job, outcome);
    if (trial.plan) {
      best = std::move(outcome);
      kept = std::move(trial);
    } else if (refused.reason.empty()) {
      refused = std::move(trial);
    }
  }
  if (!best) return refused;
  if (shapes.size() > 1) {
    const Shape shape{static_cast<std::int64_t>(best->best.grid.size()),
                      static_cast<std::int64_t>(best->best.grid.front().size())};
    GridOutcome searched =
        search_grid(grid_problem(job, shape),
                    {.seed = job.options.seed, .threads = job.options.threads, .deadline = job.deadline()});
    evaluated += searched.evaluated;
    best->status = searched.status;
    // The search knows nothing of memory: what it found last may not fit where the start did.
    if (TrainOutcome last = written_grid(job, searched); last.plan) kept = std::move(last);
    if (best->status == SearchStatus::optimal && kept.plan->predicted.iteration_s > bound_s * (1 + 1e-9))
      best->status = SearchStatus::gap;
  }
  record(*kept.plan, job, "train/grid", best->status, bound_s, evaluated);
  return kept;
}

// ---- flashflex ----

TrainOutcome plan_layout(const Job& job) {
  const LayoutProblem problem{.cluster = job.cluster,
                              .model = job.model,
                              .workload = job.workload,
                              .cost = job.options.cost,
                              .micro_batch = std::max<std::int64_t>(1, job.training.micro_batch),
                              .recompute = setting(job.options.cost, "flashflex.recompute", 1) != 0,
                              .stages = job.options.stages.value_or(0),
                              .replicas = job.options.replicas.value_or(0)};
  if (job.training.global_batch % problem.micro_batch != 0)
    throw input_error(fmt::format("a global batch of {} sequences must be a multiple of the micro-batch, found {}",
                                  job.training.global_batch, problem.micro_batch),
                      "choose a divisor: the cost form \"flashflex\" counts whole micro-batches");
  const LayoutTables tables = layout_tables(problem);
  auto outcome = enumerate_layouts(problem, tables, enumerated);
  if (!outcome) outcome = search_layout(problem, tables, {.seed = job.options.seed, .deadline = job.deadline()});
  if (!outcome->best) {
    std::int64_t most = 0;
    for (int unit = 0; unit < tables.unit_count(); ++unit)
      most = std::max(most, tables.capacity(unit, false, false, 1));
    return {.plan = {},
            .reason = fmt::format("no layout holds the {} layers of {}", tables.layers, job.model.name),
            .hint = fmt::format("use more devices, fewer bytes of optimizer states, or shorter sequences: the largest "
                                "part holds {} layers with micro-batches of {}",
                                most, problem.micro_batch)};
  }
  TrainPlan plan = make_train_plan(job.cluster, job.model, job.workload, job.options,
                                   placed_layout(problem, tables, *outcome->best));
  record(plan, job, "train/layout", outcome->status, outcome->bound_s, outcome->evaluated);
  return checked(std::move(plan));
}

void check_shape(const Job& job) {
  const auto devices = static_cast<std::int64_t>(job.cluster.devices.size());
  const std::int64_t stages = job.options.stages.value_or(1), replicas = job.options.replicas.value_or(1);
  if (stages > job.model.arch.layers)
    throw input_error(fmt::format("{} stages for {} layers", stages, job.model.arch.layers),
                      "use fewer stages: each holds at least one layer");
  if (replicas > job.training.global_batch)
    throw input_error(fmt::format("{} replicas for {} sequences", replicas, job.training.global_batch),
                      "use fewer replicas: each takes at least one sequence per step");
  if (stages * replicas > devices)
    throw input_error(
        fmt::format("{} stages x {} replicas need {} devices, found {}", stages, replicas, stages * replicas, devices),
        "reduce --stages or --replicas");
}

}  // namespace

TrainOutcome plan_train(const Cluster& cluster, const Model& model, const Workload& workload,
                        const TrainOptions& options) {
  if (const std::string why = untrainable(model.arch); !why.empty())
    return {.plan = {}, .reason = fmt::format("{} cannot be trained: {}", model.name, why), .hint = untrainable_hint};
  if (options.cost.form != "dtfm" && options.cost.form != "flashflex")
    return plan_joint(cluster, model, workload, options);
  check_train_settings(options.cost);
  if (!(options.profile == Profile{}))
    throw input_error(fmt::format("the cost form \"{}\" takes no profile", options.cost.form),
                      "use --cost motley for measured figures");
  const Job job{cluster, model, workload, options, training_of(workload), Clock::now()};
  check_shape(job);
  return options.cost.form == "dtfm" ? plan_grid(job) : plan_layout(job);
}

}  // namespace motley
