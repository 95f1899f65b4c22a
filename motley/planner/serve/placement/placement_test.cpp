#include "motley/planner/serve/placement/placement.hpp"
#include "motley/base/clock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace motley {
namespace {

const Instant no_deadline = Instant::max();

// Rates of the published single-site instance: Llama-2-70B, tokens per second holding 1, 2, ... layers.
const std::vector<double> a100 = {23833.9, 11384.3, 7201.4, 5264.6, 4096.7, 3124.1,
                                  2595.7,  2045.6,  1754.4, 1392.6, 1212.2, 952.1};
const std::vector<double> l4 = {7557.9, 3625.7, 2171.9, 1476.1, 1017.6, 747.8, 531.7};
const std::vector<double> t4 = {5709.2, 2434.4, 1347.9, 757.9};
constexpr double link_tokens_per_s = 1e9 / 16384;

PlacementNode node_of(std::vector<double> rates, int place = 0) {
  PlacementNode node{.tokens_per_s = std::move(rates), .most_layers = {}, .place = place};
  for (auto& most : node.most_layers) most = std::ssize(node.tokens_per_s);
  return node;
}

PlacementProblem published(Handover handover, const std::vector<std::pair<std::vector<double>, int>>& nodes) {
  PlacementProblem problem{.layers = 80, .nodes = {}, .link = {{link_tokens_per_s}}, .handover = handover};
  for (const auto& [rates, count] : nodes)
    for (int i = 0; i < count; ++i) problem.nodes.push_back(node_of(rates));
  return problem;
}

PlacementProblem published(Handover handover = Handover::exact) {
  return published(handover, {{a100, 4}, {l4, 8}, {t4, 12}});
}

// ---- evaluation ----

TEST(PlacementFlow, AChainFlowsAsItsSlowestNode) {
  PlacementProblem problem{.layers = 6, .nodes = {}, .link = {{1e9}}};
  for (const double scale : {3.0, 1.0, 2.0}) problem.nodes.push_back(node_of({12 * scale, 6 * scale, 4 * scale}));
  const Placement chain = {{0, 3}, {3, 4}, {4, 6}};
  EXPECT_NEAR(placement_flow(problem, chain), 12, 1e-9);
  PlacementFlow flow(problem);
  flow.place(chain);
  flow.maximise();
  // 12 tokens per second everywhere: every node limits.
  EXPECT_EQ(flow.limiting_nodes().size(), 1u);
  const auto ways = flow.ways();
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_EQ(ways[0].nodes, (std::vector<int>{0, 1, 2}));
  EXPECT_NEAR(ways[0].tokens_per_s, 12, 1e-9);
}

TEST(PlacementFlow, NodesOnOneRangeAddAndLinksLimit) {
  PlacementProblem problem{.layers = 4, .nodes = {}, .link = {{1e9, 3}, {1e9, 1e9}}};
  problem.nodes = {node_of({20, 10}), node_of({20, 10}, 1), node_of({20, 10}, 1)};
  EXPECT_NEAR(placement_flow(problem, {{0, 2}, {2, 4}, {2, 4}}), 6, 1e-9);
  problem.link[0][1] = 7;
  EXPECT_NEAR(placement_flow(problem, {{0, 2}, {2, 4}, {2, 4}}), 10, 1e-9);
  EXPECT_EQ(placement_flow(problem, {{0, 2}, {3, 4}, {3, 4}}), 0);
}

TEST(PlacementFlow, EveryRangeThatIsTakenBackLeavesNoTrace) {
  std::mt19937 random(7);
  for (const Handover handover : {Handover::exact, Handover::partial}) {
    PlacementProblem problem{.layers = 5, .nodes = {}, .link = {{9, 4}, {5, 7}}, .handover = handover};
    for (int i = 0; i < 6; ++i) problem.nodes.push_back(node_of({10.0 + i, 6.0 + i, 4.0 + i, 2.0 + i, 1.0 + i}, i % 2));
    PlacementFlow flow(problem);
    for (int change = 0; change < 400; ++change) {
      const int node = static_cast<int>(random() % problem.nodes.size());
      const auto first = static_cast<std::int64_t>(random() % 6), last = static_cast<std::int64_t>(random() % 6);
      flow.place(node, first < last ? LayerRange{first, last} : LayerRange{});
      ASSERT_EQ(flow.maximise(), placement_flow(problem, flow.placement()));
      double sum = 0;
      for (const auto& way : flow.ways()) sum += way.tokens_per_s;
      ASSERT_NEAR(sum, flow.maximise(), 1e-6);
    }
  }
}

TEST(PlacementFlow, PartialHandoverNeverLowersTheFlow) {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    PlacementProblem problem{.layers = 6, .nodes = {}, .link = {{50}}};
    Placement placement;
    for (int i = 0; i < 7; ++i) {
      problem.nodes.push_back(node_of({30, 15, 10, 7, 5, 4}));
      const auto first = static_cast<std::int64_t>(random() % 6);
      placement.push_back({first, first + 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(6 - first))});
    }
    const double exact = placement_flow(problem, placement);
    problem.handover = Handover::partial;
    EXPECT_GE(placement_flow(problem, placement), exact);
  }
}

// ---- the published instance ----

// Twenty stages of four layers; the nodes that are left over double some of them. With fewer than all T4 doubled, one
// T4 alone on a stage sets the pace.
TEST(PublishedPlacement, SwarmFlowsAsOneT4WithFourLayers) {
  const PlacementProblem problem = published();
  Placement placement;
  for (std::int64_t i = 0; i < std::ssize(problem.nodes); ++i) placement.push_back({4 * (i % 20), 4 * (i % 20) + 4});
  EXPECT_NEAR(placement_flow(problem, placement), 757.85, 0.1);
}

// Servers join one after another with as many layers as they hold, where the sorted rates of the layers so far are
// least.
TEST(PublishedPlacement, PetalsFlowsExactlyAndPartially) {
  PlacementProblem problem = published(Handover::exact, {{t4, 12}, {a100, 4}, {l4, 8}});
  std::vector<double> rates(80, 0.0);
  Placement placement;
  for (const auto& node : problem.nodes) {
    const auto held = std::ssize(node.tokens_per_s);
    std::int64_t chosen = 0;
    std::vector<double> least;
    for (std::int64_t first = 0; first + held <= 80; ++first) {
      std::vector<double> here(rates.begin() + first, rates.begin() + first + held);
      std::sort(here.begin(), here.end());
      if (!least.empty() && !(here < least)) continue;
      least = std::move(here);
      chosen = first;
    }
    placement.push_back({chosen, chosen + held});
    for (std::int64_t layer = chosen; layer < chosen + held; ++layer) rates[layer] += node.tokens_per_s.back();
  }
  EXPECT_NEAR(placement_flow(problem, placement), 531.7, 1e-3);
  problem.handover = Handover::partial;
  EXPECT_NEAR(placement_flow(problem, placement), 952.1, 1e-3);
}

// The published program stops at 1289.56; its bound by computing alone is 2803.9.
TEST(PublishedPlacement, IsSolvedToTheBound) {
  for (const Handover handover : {Handover::exact, Handover::partial}) {
    const PlacementProblem problem = published(handover);
    const PlacementAnswer answer = search_placement(problem, {});
    EXPECT_NEAR(compute_bound(problem), 2803.9, 0.05);
    EXPECT_NEAR(answer.bound, 2045.6, 1e-6);
    EXPECT_NEAR(answer.tokens_per_s, 2045.6, 1e-6);
    EXPECT_NEAR(placement_flow(problem, answer.placement), answer.tokens_per_s, 1e-6);
  }
}

// Three sites, 12.5 MB/s between any two machines of different sites.
PlacementProblem three_sites() {
  constexpr double inside = 1.25e9 / 16384, across = 12.5e6 / 16384;
  PlacementProblem problem{.layers = 80, .nodes = {}, .link = {}};
  for (const auto& [rates, count, place] : std::vector<std::tuple<std::vector<double>, int, int>>{
           {a100, 4, 0}, {l4, 2, 1}, {t4, 8, 1}, {l4, 6, 2}, {t4, 4, 2}})
    for (int i = 0; i < count; ++i) problem.nodes.push_back(node_of(rates, place));
  problem.link = {{inside, across, across}, {across, inside, across}, {across, across, inside}};
  return problem;
}

TEST(PublishedPlacement, SlowLinksAreCrossedByPairsOfNodes) {
  const PlacementProblem problem = three_sites();
  const PlacementAnswer answer = search_placement(problem, {.restarts = 4});
  EXPECT_GT(answer.tokens_per_s, 12.5e6 / 16384 * 1.9);  // more than one link between sites carries
  EXPECT_LE(answer.tokens_per_s, answer.bound);
}

// ---- against enumeration ----

PlacementProblem random_problem(std::mt19937& random) {
  std::uniform_real_distribution<double> speed(5, 20), fall(0.5, 1.2), link(2, 40);
  PlacementProblem problem;
  problem.layers = 3 + static_cast<std::int64_t>(random() % 3);
  const int nodes = problem.layers == 5 ? 3 : 3 + static_cast<int>(random() % 2);
  problem.handover = random() % 2 == 0 ? Handover::exact : Handover::partial;
  problem.link.assign(2, std::vector<double>(2, 0.0));
  for (auto& row : problem.link)
    for (auto& rate : row) rate = link(random);
  for (int i = 0; i < nodes; ++i) {
    const auto most = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(problem.layers));
    std::vector<double> rates = {speed(random)};
    for (std::int64_t k = 2; k <= most; ++k)
      rates.push_back(rates.back() * static_cast<double>(k - 1) / static_cast<double>(k) * fall(random));
    PlacementNode node = node_of(rates, static_cast<int>(random() % 2));
    for (int ends = 1; ends < 3; ++ends) node.most_layers[ends] -= static_cast<std::int64_t>(random() % 2);
    node.most_layers[3] = std::min(node.most_layers[1], node.most_layers[2]);
    problem.nodes.push_back(std::move(node));
  }
  return problem;
}

double best_of_all(const PlacementProblem& problem) {
  PlacementFlow flow(problem);
  double best = 0;
  const std::function<void(int)> visit = [&](int node) {
    if (node == std::ssize(problem.nodes)) {
      best = std::max(best, flow.maximise());
      return;
    }
    flow.place(node, {});
    visit(node + 1);
    for (std::int64_t first = 0; first < problem.layers; ++first)
      for (std::int64_t last = first + 1; last <= problem.layers; ++last)
        if (problem.fits(node, {first, last})) {
          flow.place(node, {first, last});
          visit(node + 1);
        }
    flow.place(node, {});
  };
  visit(0);
  return best;
}

TEST(SearchPlacement, EqualsEnumerationOnSmallInstances) {
  std::mt19937 random(11);
  int feasible = 0;
  for (int round = 0; round < 45; ++round) {
    const PlacementProblem problem = random_problem(random);
    const double best = best_of_all(problem);
    const PlacementAnswer answer = search_placement(problem, {});
    EXPECT_NEAR(answer.tokens_per_s, best, 1e-9) << "round " << round;
    EXPECT_GE(answer.bound, best * (1 - 1e-9));
    feasible += best > 0;
  }
  EXPECT_GE(feasible, 30);
}

// ---- invariants ----

TEST(SearchPlacement, IsTheSameWhateverTheThreads) {
  const PlacementProblem problem = three_sites();
  const PlacementOptions one{.seed = 5, .deadline = no_deadline, .threads = 1, .restarts = 4, .moves_per_node = 60};
  PlacementOptions four = one;
  four.threads = 4;
  const PlacementAnswer a = search_placement(problem, one), b = search_placement(problem, four);
  EXPECT_EQ(a.placement, b.placement);
  EXPECT_EQ(a.tokens_per_s, b.tokens_per_s);
  EXPECT_EQ(a.evaluated, b.evaluated);
}

TEST(SearchPlacement, ObeysTheDeadline) {
  const PlacementProblem problem = three_sites();
  const Instant start = Clock::now();
  const PlacementAnswer answer = search_placement(
      problem, {.deadline = start + std::chrono::milliseconds(100), .restarts = 100000, .moves_per_node = 1000});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
  EXPECT_FALSE(answer.complete);
  EXPECT_GT(answer.tokens_per_s, 0);
}

TEST(SearchPlacement, NodesThatHoldTooLittleGiveNoFlow) {
  PlacementProblem problem{.layers = 9, .nodes = {}, .link = {{1e9}}};
  for (int i = 0; i < 4; ++i) problem.nodes.push_back(node_of({8, 4}));
  const PlacementAnswer answer = search_placement(problem, {});
  EXPECT_EQ(answer.tokens_per_s, 0);
}

// Without the embedding's and the head's room, the ends take one layer less.
TEST(SearchPlacement, EndsHoldFewerLayers) {
  PlacementProblem problem{.layers = 4, .nodes = {}, .link = {{1e9}}};
  for (int i = 0; i < 3; ++i) {
    problem.nodes.push_back(node_of({12, 6}));
    for (int ends = 1; ends < 4; ++ends) problem.nodes.back().most_layers[ends] = 1;
  }
  const PlacementAnswer answer = search_placement(problem, {});
  EXPECT_NEAR(answer.tokens_per_s, 6, 1e-9);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(problem.fits(i, answer.placement[i]));
}

TEST(PlacementBound, CountsDevicesInTheBestGroups) {
  // Each alone 10 tokens/s with one layer, as a pair 30 with up to two.
  const std::vector<NodeChoice> choices = {{{10}, 1}, {{30, 30}, 2}};
  EXPECT_NEAR(placement_bound(2, {{2, choices}}), 30, 1e-9);
  EXPECT_NEAR(placement_bound(3, {{4, choices}}), 40, 1e-9);
  EXPECT_EQ(placement_bound(4, {{2, choices}}), 0);  // they cannot hold four
}

}  // namespace
}  // namespace motley
