#include "motley/planner/collective/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/base/clock.hpp"
#include "motley/base/index.hpp"
#include "motley/planner/collective/tree_packing.hpp"
#include "motley/solve/path.hpp"

namespace motley {
namespace {

constexpr int most_packed_ranks = 16;
constexpr int most_ring_ranks = 1024;
// A port that is never idle makes up for no delay; one with time to spare does. Worth so much of the time, if it is all
// ports or none (docs/figures/collectives-benchmarks.md: the small tree).
constexpr double full_port_part = 0.02;
// A ring's rounds, as many as ranks, are made only where one of them promises that much: blocks of that many units are
// rounded by less.
constexpr double worth_all_rounds = 1.02;
constexpr std::int64_t even_block_units = 64;
constexpr std::size_t most_settled_transfers =
    20'000;  // beyond, candidates are compared in the rounds they are made in

void collect_leaves(const CollectiveNetwork& network, int node, int first, std::vector<int>& order) {
  const auto& own = network.nodes[at(node)];
  if (own.rank >= 0) order.push_back(own.rank);
  if (first >= 0) collect_leaves(network, first, -1, order);
  for (const int child : own.children)
    if (child != first) collect_leaves(network, child, -1, order);
}

// Ranks in the order of the tree, beginning with `root` and its neighbours.
std::vector<int> order_from(const CollectiveNetwork& network, int root) {
  std::vector<int> order;
  int below = -1;
  for (int node = network.leaves[at(root)]; node >= 0; node = network.nodes[at(node)].parent) {
    const auto& own = network.nodes[at(node)];
    if (own.rank >= 0) order.push_back(own.rank);
    for (const int child : own.children)
      if (child != below) collect_leaves(network, child, -1, order);
    below = node;
  }
  return order;
}

RoundsFor along_group(const CollectiveProblem& problem, const CollectiveGroup& group) {
  const auto operation = problem.operation;
  const auto alignment = problem.options.alignment;
  const auto block_of = problem.block_of;
  return [group, operation, alignment, block_of](std::int64_t bytes) -> std::optional<std::vector<CollectiveRound>> {
    if (operation == CollectiveOperation::all_reduce) {
      auto rounds = reduce_scatter_rounds(group, share_blocks(bytes, group, {}, alignment));
      const auto back = mirrored(rounds);
      rounds.insert(rounds.end(), back.begin(), back.end());
      return rounds;
    }
    const std::int64_t length = bytes / static_cast<std::int64_t>(block_of.size());
    std::vector<CollectiveBlock> blocks;
    for (std::size_t rank = 0; rank < block_of.size(); ++rank)
      blocks.push_back({static_cast<int>(rank), block_of[rank] * length, (block_of[rank] + 1) * length});
    std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    auto rounds = reduce_scatter_rounds(group, blocks);
    return operation == CollectiveOperation::all_gather ? mirrored(rounds) : rounds;
  };
}

// All rounds of a ring are alike but for how its blocks are rounded: one of them, over and over.
CollectiveCost ring_cost(const CollectiveProblem& problem, const std::vector<int>& order) {
  const std::int64_t block = problem.bytes / static_cast<std::int64_t>(order.size());
  CollectiveRound round;
  for (std::size_t place = 0; place < order.size(); ++place)
    round.push_back({order[place], order[(place + 1) % order.size()], 0, block, CollectiveStepKind::reduce});
  std::vector<CollectiveRound> halves;
  if (problem.operation != CollectiveOperation::all_gather) halves.push_back(round);
  if (problem.operation != CollectiveOperation::reduce_scatter) halves.push_back(mirrored({round})[0]);
  CollectiveCost cost = price_rounds(problem.network, halves);
  const auto rounds = static_cast<double>(order.size()) - 1;
  for (double* part : {&cost.time_s, &cost.latency_s, &cost.steady_s, &cost.busy_s, &cost.messages}) *part *= rounds;
  return cost;
}

// Slowness of the path between two ranks, the slower way, seconds per byte.
double slowness(const CollectiveNetwork& network, int a, int b) {
  double slowest = 0;
  for (const auto& path : {network.path(a, b), network.path(b, a)})
    for (const int port : path) slowest = std::max(slowest, 1 / network.ports[at(port)].bytes_per_s);
  return slowest;
}

}  // namespace

bool CollectiveProblem::expired() const { return left_s() <= 0; }
double CollectiveProblem::left_s() const { return options.deadline_s - seconds_since(start); }
bool CollectiveProblem::of_blocks() const {
  return operation == CollectiveOperation::reduce_scatter || operation == CollectiveOperation::all_gather;
}

int most_chunks(const CollectiveProblem& problem) {
  constexpr std::int64_t most = 4096;
  const std::int64_t least_bytes = problem.options.alignment * problem.network.ranks();
  return static_cast<int>(std::clamp<std::int64_t>(problem.bytes / least_bytes, 1, most));
}

RoundsFor settled(RoundsFor rounds, int ranks) {
  return [rounds = std::move(rounds), ranks](std::int64_t bytes) {
    auto made = rounds(bytes);
    std::size_t transfers = 0;
    if (made)
      for (const auto& round : *made) transfers += round.size();
    if (made && transfers <= most_settled_transfers) made = settled_rounds(*made, ranks);
    return made;
  };
}

double RecipeContest::seconds(const CollectiveCost& cost) const {
  const auto& options = problem_.options;
  if (options.objective == CollectiveObjective::rounds) return cost.time_s;
  const double seconds = cost.pipelined_s(cost.best_chunks(most_chunks(problem_), options.cost), options.cost);
  return seconds * (1 + full_port_part * cost.full_share);
}

std::optional<ScoredRecipe> RecipeContest::score(const CollectiveRecipe& recipe) {
  const auto rounds = recipe.rounds(problem_.bytes);
  if (!rounds) return std::nullopt;
  ++evaluated_;
  const CollectiveCost cost = price_rounds(problem_.network, *rounds);
  return ScoredRecipe{recipe, seconds(cost), cost.steady_s};
}

void RecipeContest::enter(const CollectiveRecipe& recipe) {
  if (auto scored = score(recipe)) keep(std::move(*scored));
}

void RecipeContest::keep(ScoredRecipe scored) {
  if (!best_ || scored.seconds < best_->seconds * (1 - 1e-9)) best_ = std::move(scored);
}

std::vector<int> ring_order(const CollectiveNetwork& network) {
  const int ranks = network.ranks();
  std::vector<int> order;
  collect_leaves(network, 0, -1, order);
  if (!network.has_mesh() || ranks > 128) return order;
  // The slowest link counts first, the sum second: a high power of the slowness does both.
  std::vector<double> weights(at(ranks) * at(ranks), 0);
  double least = 0;
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < ranks; ++b) {
      if (a == b) continue;
      weights[at(a * ranks + b)] = slowness(network, a, b);
      least = least == 0 ? weights[at(a * ranks + b)] : std::min(least, weights[at(a * ranks + b)]);
    }
  for (double& weight : weights) weight = std::pow(weight / least, 6);
  return ranks <= exact_path_nodes ? shortest_open_path(weights, ranks).order : local_path(weights, ranks).order;
}

void enter_rings(const CollectiveProblem& problem, RecipeContest& contest) {
  if (problem.network.ranks() > most_ring_ranks || problem.network.ranks() < 3) return;
  const auto order = ring_order(problem.network);
  const bool even = problem.bytes >= even_block_units * problem.options.alignment * problem.network.ranks();
  if (even && contest.best() && contest.seconds(ring_cost(problem, order)) > contest.best()->seconds * worth_all_rounds)
    return;
  contest.enter({"ring", along_group(problem, flat_group(order, GroupPattern::ring))});
}

void enter_islands(const CollectiveProblem& problem, RecipeContest& contest) {
  const auto& network = problem.network;
  const int ranks = network.ranks();
  if (!network.has_mesh() || ranks > 256) return;
  std::vector<double> slow(at(ranks) * at(ranks), 0), levels;
  for (int a = 0; a < ranks; ++a)
    for (int b = a + 1; b < ranks; ++b) {
      slow[at(a * ranks + b)] = slow[at(b * ranks + a)] = slowness(network, a, b);
      levels.push_back(slow[at(a * ranks + b)]);
    }
  std::sort(levels.begin(), levels.end());
  levels.erase(std::unique(levels.begin(), levels.end(), [](double a, double b) { return b < a * 1.25; }),
               levels.end());
  std::size_t last_islands = at(ranks);
  for (const double level : levels) {
    std::vector<int> island(at(ranks));
    std::iota(island.begin(), island.end(), 0);
    const auto top = [&](int rank) {
      while (island[at(rank)] != rank) rank = island[at(rank)];
      return rank;
    };
    for (int a = 0; a < ranks; ++a)
      for (int b = a + 1; b < ranks; ++b)
        if (slow[at(a * ranks + b)] <= level) island[at(std::max(top(a), top(b)))] = std::min(top(a), top(b));
    std::vector<std::vector<int>> members(at(ranks));
    for (int rank = 0; rank < ranks; ++rank) members[at(top(rank))].push_back(rank);
    std::erase_if(members, [](const auto& list) { return list.empty(); });
    if (members.size() < 2) break;
    if (members.size() == last_islands || problem.expired()) continue;
    last_islands = members.size();
    for (const GroupPattern outer : {GroupPattern::direct, GroupPattern::ring}) {
      CollectiveGroup group{.rank = -1, .pattern = outer, .members = {}};
      for (const auto& list : members) group.members.push_back(flat_group(list, GroupPattern::direct));
      contest.enter({fmt::format("{} islands{}", members.size(), outer == GroupPattern::ring ? " in a ring" : ""),
                     settled(along_group(problem, group), ranks)});
    }
  }
}

void enter_broadcasts(const CollectiveProblem& problem, RecipeContest& contest) {
  const int ranks = problem.network.ranks();
  const auto order = order_from(problem.network, problem.root);
  for (int degree = 1; degree < 2 * ranks; degree = degree < 4 ? degree + 1 : degree * 2) {
    const int children = std::min(degree, ranks - 1);
    std::vector<int> parents(at(ranks), -1);
    for (int place = 1; place < ranks; ++place) parents[at(order[at(place)])] = order[at((place - 1) / children)];
    contest.enter({children == 1           ? "chain"
                   : children == ranks - 1 ? "direct"
                                           : fmt::format("tree of degree {}", children),
                   [parents](std::int64_t bytes) { return std::optional(broadcast_rounds(parents, 0, bytes)); }});
    if (children == ranks - 1) break;
  }
}

double enter_packing(const CollectiveProblem& problem, double limit_s, RecipeContest& contest) {
  const int ranks = problem.network.ranks();
  const bool close = contest.best() && contest.best()->steady_s <= limit_s * 1.005;
  if (ranks > most_packed_ranks || ranks < 2 || close || problem.expired()) return 0;
  const auto packing = pack_trees(problem.network, problem.operation, problem.root, static_cast<double>(problem.bytes),
                                  {.deadline_s = problem.left_s()});
  const auto operation = problem.operation;
  const auto alignment = problem.options.alignment;
  const RoundsFor rounds = [packing, operation, block_of = problem.block_of, alignment](std::int64_t bytes) {
    return std::optional(packed_rounds(packing, operation, block_of, bytes, alignment));
  };
  contest.enter({fmt::format("{} trees", packing.trees.size()), settled(rounds, ranks)});
  return packing.bound_s;
}

}  // namespace motley
