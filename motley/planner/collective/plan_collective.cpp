#include "motley/planner/collective/plan_collective.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/clock.hpp"
#include "motley/base/index.hpp"
#include "motley/cost/collective/collective_limit.hpp"
#include "motley/cost/collective/collective_price.hpp"
#include "motley/planner/collective/candidates.hpp"
#include "motley/planner/collective/canonical.hpp"

namespace motley {
namespace {

void check_request(int ranks, CollectiveOperation operation, std::int64_t bytes, const CollectiveOptions& options) {
  if (bytes < 1) throw input_error("the size must be at least 1 B", "such as --bytes \"400 MB\"");
  if (options.root < 0 || options.root >= ranks)
    throw input_error(fmt::format("rank {} cannot be the root of {} ranks", options.root, ranks),
                      fmt::format("give a rank from 0 to {}", ranks - 1));
  const bool blocks = operation == CollectiveOperation::reduce_scatter || operation == CollectiveOperation::all_gather;
  if (blocks && bytes % ranks != 0)
    throw input_error(fmt::format("{} bytes must be {} equal blocks", bytes, ranks),
                      fmt::format("use {} bytes", (bytes / ranks + 1) * ranks));
}

void rename(std::vector<CollectiveRound>& rounds, const std::vector<int>& rank_of) {
  for (auto& round : rounds)
    for (auto& transfer : round) {
      transfer.from = rank_of[at(transfer.from)];
      transfer.to = rank_of[at(transfer.to)];
    }
}

CollectiveAnswer finished(const CollectiveProblem& problem, const ScoredRecipe& best, const std::vector<int>& rank_of,
                          const CollectiveLimit& limit) {
  CollectiveShape shape{.operation = problem.operation,
                        .ranks = problem.network.ranks(),
                        .root = problem.root,
                        .bytes = problem.bytes,
                        .chunks = 1,
                        .alignment = problem.options.alignment};
  CollectiveAnswer answer;
  if (problem.options.objective == CollectiveObjective::pipelined) {
    const CollectiveCost whole = price_rounds(problem.network, *best.recipe.rounds(problem.bytes));
    shape.chunks = chunks_that_fit(shape, whole.best_chunks(most_chunks(problem), problem.options.cost));
  }
  // What is predicted is what the program is priced at when it is read again.
  auto rounds = settled_rounds(*best.recipe.rounds(shape.bytes / shape.chunks), shape.ranks);
  answer.cost = price_rounds(problem.network, rounds, shape.chunks);
  answer.predicted =
      predict_collective(answer.cost, shape.chunks, limit.seconds, limit.binding_cut, problem.options.cost);
  rename(rounds, rank_of);
  shape.root = rank_of[at(problem.root)];
  answer.program = program_of_rounds(shape, rounds);
  answer.program.layout = best.recipe.layout;
  return answer;
}

}  // namespace

EnumNames<CollectiveObjective> names_of(Bound<CollectiveObjective>) {
  return {{CollectiveObjective::pipelined, "pipelined"}, {CollectiveObjective::rounds, "rounds"}};
}

CollectiveAnswer plan_collective(const CollectiveNetwork& network, CollectiveOperation operation, std::int64_t bytes,
                                 const CollectiveOptions& options) {
  check_request(network.ranks(), operation, bytes, options);
  if (network.ranks() == 1) {
    CollectiveAnswer alone;
    alone.program = {.operation = operation, .ranks = 1, .bytes = bytes, .layout = "alone", .steps = {{}}};
    alone.predicted.efficiency = 1;
    alone.predicted.binding_cut = "nothing moves";
    return alone;
  }
  const CanonicalNetwork canonical = canonical_network(network);
  const auto root = std::find(canonical.rank_of.begin(), canonical.rank_of.end(), options.root);
  const CollectiveProblem problem{.network = canonical.network,
                                  .operation = operation,
                                  .root = static_cast<int>(root - canonical.rank_of.begin()),
                                  .bytes = bytes,
                                  .block_of = canonical.rank_of,
                                  .options = options,
                                  .start = Clock::now()};
  CollectiveLimit limit = collective_limit(canonical.network, operation, problem.root, static_cast<double>(bytes));
  RecipeContest contest(problem);
  if (operation == CollectiveOperation::broadcast) {
    enter_broadcasts(problem, contest);
  } else {
    enter_hierarchies(problem, contest);
    enter_rings(problem, contest);
    enter_islands(problem, contest);
  }
  if (const double bound = enter_packing(problem, limit.seconds, contest); bound > limit.seconds * (1 + 1e-6))
    limit = {bound, "several links together"};
  CollectiveAnswer answer = finished(problem, *contest.best(), canonical.rank_of, limit);
  answer.evaluated = contest.evaluated();
  answer.expired = problem.expired();
  return answer;
}

CollectivePlan plan_collective(const Cluster& cluster, CollectiveOperation operation, std::int64_t bytes,
                               const CollectiveOptions& options) {
  const auto start = Clock::now();
  CollectiveAnswer answer = plan_collective(collective_network(cluster), operation, bytes, options);
  CollectivePlan plan{
      .cluster = cluster, .program = std::move(answer.program), .predicted = std::move(answer.predicted), .search = {}};
  const double value = plan.predicted.pipelined_s, bound = plan.predicted.limit_s;
  plan.search = {.planner = "collective",
                 .objective = std::string(name_of(options.objective)),
                 .cost = "motley",
                 .seed = static_cast<std::int64_t>(options.seed),
                 .status = answer.expired ? SearchStatus::deadline : SearchStatus::gap,
                 .bound = bound,
                 .gap = value > 0 ? (value - bound) / value : 0,
                 .elapsed_s = seconds_since(start),
                 .evaluated = answer.evaluated};
  if (options.objective == CollectiveObjective::rounds) {
    // The limit bounds the pipelined time; of rounds in sequence nothing is proved.
    plan.search.status = answer.expired ? SearchStatus::deadline : SearchStatus::heuristic;
    plan.search.bound.reset();
    plan.search.gap.reset();
  }
  return plan;
}

}  // namespace motley
