#include "motley/planner/serve/placement/placement_search.hpp"

#include <atomic>
#include <thread>
#include <utility>

#include "motley/base/clock.hpp"

namespace motley {
namespace {

struct Restart {
  Annealed annealed;
  bool complete = false;
};

// First over chains of stages, where one move rebalances all layers, then over all placements: every other time near
// what was found, otherwise far from it.
Annealed restart(const PlacementProblem& problem, const Placement& start, const PlacementOptions& options,
                 std::uint64_t index, const AnnealingBudget& budget) {
  const Annealed chain = anneal_stages(problem, start, RandomStream(options.seed, 2 * index), budget);
  AnnealingBudget second = budget;
  second.hottest = index % 2 == 0 ? 0.03 : 0.3;
  Annealed best = anneal_ranges(problem, chain.placement, RandomStream(options.seed, 2 * index + 1), second);
  best.evaluated += chain.evaluated;
  return best;
}

}  // namespace

PlacementAnswer search_placement(const PlacementProblem& problem, const PlacementOptions& options) {
  return search_placement(problem, stage_placements(problem, options.deadline), options);
}

PlacementAnswer search_placement(const PlacementProblem& problem, std::vector<PlacedFlow> starts,
                                 const PlacementOptions& options) {
  if (starts.empty()) starts.push_back({Placement(problem.nodes.size()), 0});
  PlacementAnswer answer{.placement = starts.front().placement,
                         .tokens_per_s = starts.front().tokens_per_s,
                         .bound = placement_bound(problem),
                         .evaluated = std::ssize(starts)};
  const auto at_bound = [&](double tokens_per_s) { return tokens_per_s >= answer.bound * bound_reached; };
  if (at_bound(answer.tokens_per_s)) return answer;

  std::vector<Restart> restarts(std::max(options.restarts, 0));
  std::atomic<std::int64_t> next{0}, enough{std::ssize(restarts)};  // the first restart that reaches the bound
  const auto work = [&] {
    for (std::int64_t r = next++; r < std::ssize(restarts); r = next++) {
      const auto stop = [&] { return r > enough || Clock::now() >= options.deadline; };
      if (stop()) continue;
      const AnnealingBudget budget{
          .moves = options.moves_per_node * std::ssize(problem.nodes), .bound = answer.bound, .stop = stop};
      restarts[r].annealed =
          restart(problem, starts[r % std::ssize(starts)].placement, options, static_cast<std::uint64_t>(r), budget);
      restarts[r].complete = !stop();
      if (!at_bound(restarts[r].annealed.tokens_per_s)) continue;
      for (std::int64_t known = enough; r < known && !enough.compare_exchange_weak(known, r);) {
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < options.threads; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();

  for (std::int64_t r = 0; r < std::ssize(restarts) && r <= enough; ++r) {
    Annealed& annealed = restarts[r].annealed;
    answer.evaluated += annealed.evaluated;
    answer.complete = answer.complete && restarts[r].complete;
    if (annealed.tokens_per_s <= answer.tokens_per_s) continue;
    answer.tokens_per_s = annealed.tokens_per_s;
    answer.placement = std::move(annealed.placement);
  }
  return answer;
}

}  // namespace motley
