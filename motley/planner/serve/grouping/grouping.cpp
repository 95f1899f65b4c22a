#include "motley/planner/serve/grouping/grouping.hpp"

#include <algorithm>
#include <utility>

#include "motley/base/parallel.hpp"

namespace motley {
namespace {

constexpr std::size_t restarts = 8;
constexpr std::int64_t evaluated_per_restart = 30'000'000;  // some seconds of one core in all
constexpr std::int64_t proposals_per_pipeline = 400;
constexpr std::int64_t most_proposals = 40'000;

// The one pipeline that the objective likes best, of all that some starts propose; where latency is the objective and
// replication allowed, also its equals on other devices.
Grouping best_single(Groups& groups, const std::vector<std::vector<std::vector<int>>>& starts) {
  const ServeOptions& options = groups.problem().options;
  const std::size_t devices = groups.problem().cluster.devices.size();
  std::vector<std::vector<int>> candidates;
  for (const auto& start : starts)
    for (const auto& group : start)
      if (std::find(candidates.begin(), candidates.end(), group) == candidates.end()) candidates.push_back(group);
  if (options.use_devices == UseDevices::all) candidates = {groups.problem().devices()};
  // Small groups first: they are quick, and what time is left goes to the large.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::vector<Pipeline> answers(candidates.size());
  in_parallel(candidates.size(), options.threads, [&](std::size_t i) { answers[i] = groups.best(candidates[i]); });
  Grouping grouping;
  for (const auto& answer : answers) grouping.evaluated += answer.answer->part.evaluated;
  // Every other candidate is a part of the whole cluster.
  grouping.exact = candidates.back().size() == groups.problem().devices().size() && answers.back().answer->part.exact;

  const bool replicate = options.objective == Objective::latency && options.replication == Replication::allowed;
  std::vector<bool> busy(devices, false);
  const auto is_free = [&](int device) { return !busy[static_cast<std::size_t>(device)]; };
  do {
    const Pipeline* best = nullptr;
    for (const auto& answer : answers) {
      if (!answer.found()) continue;
      const std::vector<int> used = answer.used_devices();
      if (!std::all_of(used.begin(), used.end(), is_free)) continue;
      if (!best || better(answer.best(), best->best(), options.objective)) best = &answer;
    }
    if (!best) break;
    const auto& first = grouping.pipelines.empty() ? *best : grouping.pipelines.front();
    if (best->best().latency_s > first.best().latency_s * (1 + objective_tolerance)) break;
    grouping.pipelines.push_back(*best);
    for (const int device : best->used_devices()) busy[static_cast<std::size_t>(device)] = true;
  } while (replicate);
  return grouping;
}

void best_first(std::vector<Pipeline>& pipelines) {
  std::stable_sort(pipelines.begin(), pipelines.end(), [](const Pipeline& a, const Pipeline& b) {
    return a.best().requests_per_s > b.best().requests_per_s;
  });
}

Grouping search_locally(Groups& groups, const std::vector<std::vector<std::vector<int>>>& starts) {
  const ServeProblem& problem = groups.problem();
  const Objective objective = problem.options.objective;
  const bool all = problem.options.use_devices == UseDevices::all;
  std::vector<std::vector<Pipeline>> begun(starts.size());
  std::vector<std::int64_t> evaluated(starts.size(), 0);
  in_parallel(starts.size(), problem.options.threads, [&](std::size_t i) {
    std::size_t placed = 0;
    for (const auto& devices : starts[i]) {
      if (expired(problem) && i > 0) break;
      Pipeline pipeline = groups.best(devices);
      evaluated[i] += pipeline.answer->part.evaluated;
      if (worth(pipeline, objective) <= 0) continue;
      placed += pipeline.used_devices().size();
      begun[i].push_back(std::move(pipeline));
    }
    if (all && placed < problem.devices().size()) begun[i].clear();
  });

  std::vector<std::size_t> order(starts.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return total_worth(begun[a], objective) > total_worth(begun[b], objective);
  });

  std::vector<Grouping> improved(restarts);
  in_parallel(restarts, problem.options.threads, [&](std::size_t i) {
    const std::vector<Pipeline>& start = begun[order[i % std::min<std::size_t>(order.size(), restarts / 2)]];
    const auto pipelines = static_cast<std::int64_t>(start.size());
    const auto scaled = [&](std::int64_t most) {
      return static_cast<std::int64_t>(problem.effort * static_cast<double>(most));
    };
    improved[i] = improve(
        groups, start,
        {scaled(std::min(most_proposals, proposals_per_pipeline * (pipelines + 4))), scaled(evaluated_per_restart)}, i);
  });
  Grouping best;
  for (auto& grouping : improved) {
    const std::int64_t before = best.evaluated;
    const std::int64_t after = before + grouping.evaluated;
    if (total_worth(grouping.pipelines, objective) > total_worth(best.pipelines, objective) * (1 + 1e-9))
      best = std::move(grouping);
    best.evaluated = after;
  }
  for (const std::int64_t states : evaluated) best.evaluated += states;
  best.exact = false;
  return best;
}

}  // namespace

double worth(const Pipeline& pipeline, Objective objective) {
  if (!pipeline.found()) return 0;
  const Candidate& best = pipeline.best();
  return objective == Objective::slo && best.excess > 1e-9 ? 0 : best.requests_per_s;
}

double total_worth(const std::vector<Pipeline>& pipelines, Objective objective) {
  double sum = 0;
  for (const auto& pipeline : pipelines) sum += worth(pipeline, objective);
  return sum;
}

Grouping search_groupings(Groups& groups) {
  const ServeOptions& options = groups.problem().options;
  const bool one = options.replication == Replication::one_pipeline || options.objective == Objective::latency;
  if (!one && few_enough_for_partitions(groups.problem())) {
    Grouping grouping = best_partition(groups);
    best_first(grouping.pipelines);
    if (!grouping.pipelines.empty()) return grouping;
  }
  const auto starts = structured_starts(groups);
  if (!one) {
    Grouping grouping = search_locally(groups, starts);
    best_first(grouping.pipelines);
    if (!grouping.pipelines.empty()) return grouping;
  }
  // One pipeline is asked for; or none keeps the deadlines, and the one that misses them least has to do.
  return best_single(groups, starts);
}

}  // namespace motley
