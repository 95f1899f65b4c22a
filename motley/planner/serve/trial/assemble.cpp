#include "motley/planner/serve/trial/assemble.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "motley/base/parallel.hpp"
#include "motley/solve/milp.hpp"

namespace motley {
namespace {

constexpr std::int64_t pipeline_requests = 300;
constexpr double pipeline_target = 0.98;  // of so few requests; together pipelines keep more than each alone
constexpr double first_share = 1.0 / 64;  // of what the closed form expects
constexpr std::int64_t most_nodes = 20'000;

using Column = std::pair<std::vector<int>, const Pipeline*>;  // devices in use, ascending

std::vector<Column> distinct(const std::vector<Pipeline>& proposed) {
  std::vector<Column> columns;
  std::set<std::pair<std::vector<int>, const GroupAnswer*>> known;
  for (const Pipeline& pipeline : proposed) {
    std::vector<int> devices = pipeline.used_devices();
    std::sort(devices.begin(), devices.end());
    if (known.emplace(devices, pipeline.answer.get()).second) columns.emplace_back(std::move(devices), &pipeline);
  }
  return columns;
}

// Multiples of the workload's rate that a pipeline keeps alone.
double capacity(const ServeProblem& problem, const Pipeline& pipeline) {
  const ServePlan plan = trial_plan(problem, {pipeline});
  const double least = first_share * plan.predicted.requests_per_s / problem.workload.total_rate_per_s();
  if (simulated_attainment(problem, plan, least, pipeline_requests) < pipeline_target) return 0;
  return highest_scale(problem, plan, pipeline_target, least, pipeline_requests);
}

}  // namespace

std::vector<Pipeline> assembled(const ServeProblem& problem, const std::vector<Pipeline>& proposed) {
  const std::vector<Column> columns = distinct(proposed);
  // Images of each other serve alike.
  std::map<const GroupAnswer*, std::size_t> number_of;
  std::vector<const Pipeline*> unlike;
  for (const auto& [devices, pipeline] : columns)
    if (number_of.try_emplace(pipeline->answer.get(), unlike.size()).second) unlike.push_back(pipeline);
  std::vector<double> capacities(unlike.size(), 0);
  in_parallel(unlike.size(), problem.options.threads, [&](std::size_t i) {
    if (!expired(problem)) capacities[i] = capacity(problem, *unlike[i]);
  });
  if (expired(problem)) return {};

  MilpModel model{.sense = Sense::maximize};
  std::map<int, MilpRow> row_of_device;
  std::vector<std::pair<double, const Pipeline*>> used;
  for (const auto& [devices, pipeline] : columns) {
    const double worth = capacities[number_of.at(pipeline->answer.get())];
    if (worth <= 0) continue;
    const int column = model.add_column({.cost = worth, .upper = 1, .integer = true});
    used.emplace_back(worth, pipeline);
    for (const int device : devices) {
      MilpRow& row = row_of_device[device];
      row.upper = 1;
      row.entries.push_back({column, 1});
    }
  }
  if (used.empty()) return {};
  for (auto& [device, row] : row_of_device) model.add_row(std::move(row));
  const MilpAnswer answer = solve_milp(model, {.relative_gap = 1e-3, .node_limit = most_nodes});
  std::vector<std::pair<double, const Pipeline*>> chosen;
  for (std::size_t i = 0; i < answer.values.size(); ++i)
    if (answer.values[i] > 0.5) chosen.push_back(used[i]);
  std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Pipeline> pipelines;
  for (const auto& [worth, pipeline] : chosen) pipelines.push_back(*pipeline);
  return pipelines;
}

}  // namespace motley
