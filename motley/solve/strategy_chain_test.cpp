#include "motley/solve/strategy_chain.hpp"
#include "motley/base/clock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "motley/base/random.hpp"
#include "motley/solve/pareto.hpp"

namespace motley {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Fractional bytes, some zero; asymmetric layout changes, also within a layout; few or many transient sizes.
StrategyChain random_chain(RandomStream& draw, int most_sites, int most_options) {
  StrategyChain chain;
  const int layouts = 1 + draw.below(4);
  chain.layout_change_s.assign(static_cast<std::size_t>(layouts),
                               std::vector<double>(static_cast<std::size_t>(layouts)));
  const double dear = draw.below(3) * 0.5;
  for (int a = 0; a < layouts; ++a)
    for (int b = 0; b < layouts; ++b)
      if (a != b || draw.below(5) == 0)
        chain.layout_change_s[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] = dear * draw.uniform();
  chain.micro_batches = 1 + draw.below(4);
  chain.in_flight = 1 + draw.below(3);
  const int transients = draw.below(3);  // none, two sizes, any
  const auto amount = [&] { return draw.below(6) == 0 ? 0.0 : draw.uniform() * 10; };
  int sites = 1 + draw.below(most_sites);
  while (sites > 0) {
    StrategyRun run;
    run.repeat = std::min(sites, 1 + draw.below(3));
    sites -= static_cast<int>(run.repeat);
    for (int i = 1 + draw.below(most_options); i > 0; --i) {
      const int layout = draw.below(layouts);
      run.options.push_back({.time_s = amount(),
                             .sync_s = amount(),
                             .bytes = amount(),
                             .bytes_in_flight = draw.below(2) * amount(),
                             .transient_bytes = transients == 0   ? 0
                                                : transients == 1 ? 3.3 * (1 + draw.below(2))
                                                                  : amount(),
                             .layout_in = layout,
                             .layout_out = draw.below(4) == 0 ? draw.below(layouts) : layout});
    }
    chain.runs.push_back(run);
  }
  return chain;
}

void for_every_choice(const StrategyChain& chain, const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> radix;
  for (const auto& run : chain.runs)
    for (std::int64_t i = 0; i < run.repeat; ++i) radix.push_back(static_cast<int>(run.options.size()));
  std::vector<int> choice(radix.size(), 0);
  for (;;) {
    visit(choice);
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == radix[i]) choice[i++] = 0;
    if (i == choice.size()) return;
  }
}

struct Enumerated {
  double time_s = infinity, least_bytes = infinity;
};
Enumerated enumerate(const StrategyChain& chain, double budget) {
  Enumerated best;
  for_every_choice(chain, [&](const std::vector<int>& choice) {
    const StrategyTotal total = strategy_total(chain, choice);
    best.least_bytes = std::min(best.least_bytes, total.bytes);
    if (total.bytes <= budget * (1 + 1e-12)) best.time_s = std::min(best.time_s, total.time_s);
  });
  return best;
}

// The definition, by hand: two sites, two micro-batches, three in flight.
TEST(StrategyChain, TotalIsTheDefinition) {
  const StrategyChain chain{.runs = {{{{1, 4, 10, 2, 5, 0, 1}}, 2}},
                            .layout_change_s = {{0, 0.25}, {0.5, 0}},
                            .micro_batches = 2,
                            .in_flight = 3};
  const StrategyTotal total = strategy_total(chain, {0, 0});
  EXPECT_DOUBLE_EQ(total.time_s, 2 * (1 + 1 + 0.5) + 4 + 4);
  EXPECT_DOUBLE_EQ(total.bytes, 2 * (10 + 3 * 2) + 5);
}

// galvatron.md's example: a needs 4 and takes 1, b needs 3 and takes 2, changing costs 0.3.
TEST(StrategyChain, ThreeLayersTwoStrategies) {
  const StrategyChain chain{
      .runs = {{{{.time_s = 1, .bytes = 4}, {.time_s = 2, .bytes = 3, .layout_in = 1, .layout_out = 1}}, 3}},
      .layout_change_s = {{0, 0.3}, {0.3, 0}}};
  const auto time = [&](double budget) { return solve_strategy_chain(chain, budget).time_s; };
  EXPECT_NEAR(time(10), 5.3, 1e-12);
  EXPECT_NEAR(time(11), 4.3, 1e-12);
  EXPECT_NEAR(time(12), 3, 1e-12);
  EXPECT_NEAR(time(9), 6, 1e-12);
  const StrategyAnswer none = solve_strategy_chain(chain, 8);
  EXPECT_EQ(none.status, StrategyStatus::infeasible);
  EXPECT_EQ(none.shortage.least_bytes, 9);
  EXPECT_EQ(none.shortage.site, 2);
  EXPECT_FALSE(none.shortage.alone);
}

TEST(StrategyChain, WhatDoesNotFitAloneIsNamed) {
  const StrategyChain chain{
      .runs = {{{{.time_s = 1, .bytes = 4}}, 2},
               {{{.time_s = 1, .bytes = 3, .transient_bytes = 9}, {.time_s = 1, .bytes = 13}}, 1}},
      .layout_change_s = {}};
  const StrategyAnswer none = solve_strategy_chain(chain, 11);
  EXPECT_EQ(none.status, StrategyStatus::infeasible);
  EXPECT_EQ(none.shortage.site, 2);
  EXPECT_TRUE(none.shortage.alone);
  EXPECT_EQ(none.shortage.site_least_bytes, 12);
  EXPECT_EQ(none.shortage.least_bytes, 20);
  EXPECT_EQ(solve_strategy_chain(chain, 20).status, StrategyStatus::optimal);
}

TEST(StrategyChain, RandomChainsEqualEnumeration) {
  int infeasible = 0, tight = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    RandomStream draw(seed, 0);
    const StrategyChain chain = random_chain(draw, 6, 4);
    const double least = enumerate(chain, infinity).least_bytes;
    const double budget = least * (0.9 + draw.uniform());
    const Enumerated expected = enumerate(chain, budget);
    const StrategyAnswer answer = solve_strategy_chain(chain, budget);
    if (expected.time_s == infinity) {
      ++infeasible;
      ASSERT_EQ(answer.status, StrategyStatus::infeasible) << seed;
      ASSERT_NEAR(answer.shortage.least_bytes, expected.least_bytes, 1e-9) << seed;
      continue;
    }
    tight += expected.time_s > enumerate(chain, infinity).time_s;
    ASSERT_EQ(answer.status, StrategyStatus::optimal) << seed;
    ASSERT_NEAR(answer.time_s, expected.time_s, 1e-9) << seed;
    const StrategyTotal total = strategy_total(chain, answer.choice);
    ASSERT_EQ(total.time_s, answer.time_s) << seed;
    ASSERT_EQ(total.bytes, answer.bytes) << seed;
    ASSERT_LE(total.bytes, budget * (1 + 1e-12)) << seed;
  }
  EXPECT_GT(infeasible, 20);
  EXPECT_GT(tight, 200);
}

TEST(StrategyChain, RandomFrontsEqualEnumeration) {
  for (std::uint64_t seed = 1000; seed < 1500; ++seed) {
    RandomStream draw(seed, 0);
    const StrategyChain chain = random_chain(draw, 5, 4);
    ParetoFront<int> expected;
    for_every_choice(chain, [&](const std::vector<int>& choice) {
      const StrategyTotal total = strategy_total(chain, choice);
      expected.insert(total.bytes, total.time_s, 0);
    });
    ParetoFront<int> found;
    const StrategyFront front = strategy_front(chain);
    ASSERT_EQ(front.gap_s, 0);
    for (const auto& point : front.points) {
      ASSERT_EQ(strategy_total(chain, point.choice).time_s, point.time_s) << seed;
      ASSERT_EQ(strategy_total(chain, point.choice).bytes, point.bytes) << seed;
      found.insert(point.bytes, point.time_s, 0);
    }
    ASSERT_EQ(found.points().size(), expected.points().size()) << seed;
    for (std::size_t i = 0; i < found.points().size(); ++i) {
      ASSERT_NEAR(found.points()[i].first, expected.points()[i].first, 1e-8) << seed;
      ASSERT_NEAR(found.points()[i].second, expected.points()[i].second, 1e-8) << seed;
    }
  }
}

TEST(StrategyChain, MoreMemoryMoreOptionsCheaperChangesNeverHurt) {
  for (std::uint64_t seed = 2000; seed < 2100; ++seed) {
    RandomStream draw(seed, 0);
    StrategyChain chain = random_chain(draw, 12, 6);
    const double budget = 5.0 * static_cast<double>(site_count(chain));
    const auto time = [&](double bytes) {
      const StrategyAnswer answer = solve_strategy_chain(chain, bytes);
      return answer.status == StrategyStatus::infeasible ? infinity : answer.time_s;
    };
    const double before = time(budget), slack = 1e-9;
    ASSERT_LE(time(budget * 1.1), before + slack) << seed;
    StrategyChain changed = chain;
    for (auto& row : changed.layout_change_s)
      for (auto& change : row) change *= 2;
    std::swap(chain, changed);
    ASSERT_GE(time(budget), before - slack) << seed;
    std::swap(chain, changed);
    chain.runs.front().options.push_back({.time_s = draw.uniform() * 5, .bytes = draw.uniform() * 5});
    ASSERT_LE(time(budget), before + slack) << seed;
  }
}

// A budget with tolerance is met within it, and the bound holds.
TEST(StrategyChain, ToleranceIsCertified) {
  for (std::uint64_t seed = 3000; seed < 3050; ++seed) {
    RandomStream draw(seed, 0);
    const StrategyChain chain = random_chain(draw, 30, 8);
    const double budget = 8.0 * static_cast<double>(site_count(chain));
    const StrategyAnswer exact = solve_strategy_chain(chain, budget);
    const StrategyAnswer close = solve_strategy_chain(chain, budget, {.tolerance = 0.01});
    ASSERT_EQ(exact.status == StrategyStatus::infeasible, close.status == StrategyStatus::infeasible) << seed;
    if (exact.status == StrategyStatus::infeasible) continue;
    ASSERT_LE(close.time_s * (1 - 0.01), exact.time_s * (1 + 1e-9)) << seed;
    ASSERT_LE(close.bound_s, exact.time_s * (1 + 1e-9)) << seed;
    ASSERT_LE(close.gap, 0.01 + 1e-9) << seed;
  }
}

// Of every point of the exact front, one of the others takes no more bytes and at most the gap more time.
template <class Exact, class Points>
void expect_within(const Exact& exact, const Points& points, double gap_s) {
  for (const auto& point : exact) {
    const auto above =
        std::find_if(points.rbegin(), points.rend(), [&](const auto& p) { return p.bytes <= point.bytes; });
    ASSERT_NE(above, points.rend());
    EXPECT_LE(above->time_s, point.time_s + gap_s + 1e-12);
  }
}

TEST(StrategyChain, FrontsWithToleranceTellTheirGap) {
  RandomStream draw(11, 0);
  StrategyChain chain = random_chain(draw, 1, 8);
  while (chain.runs.size() < 24) chain.runs.push_back(random_chain(draw, 1, 8).runs.front());
  for (auto& run : chain.runs)
    for (auto& option : run.options) option = {.time_s = option.time_s, .bytes = option.bytes};
  const StrategyFront exact = strategy_front(chain);
  EXPECT_EQ(exact.gap_s, 0);
  const auto& all = exact.points;
  for (const double tolerance : {0.001, 0.01, 0.1}) {
    const StrategyFront whole = strategy_front(chain, {.tolerance = tolerance});
    EXPECT_LE(whole.points.size(), all.size());
    EXPECT_LE(whole.gap_s, tolerance * all.front().time_s);
    expect_within(all, whole.points, whole.gap_s);
  }
  const StrategyFront late = strategy_front(chain, {.deadline = Clock::now()});
  EXPECT_LT(late.points.size(), all.size());
  EXPECT_GT(late.gap_s, 0);
  expect_within(all, late.points, late.gap_s);
}

TEST(StrategyChain, APassedDeadlineStillAnswersWithABound) {
  RandomStream draw(13, 0);
  StrategyChain chain;
  for (int site = 0; site < 60; ++site) {
    StrategyRun run;
    for (int i = 0; i < 40; ++i) {
      const double bytes = 1 + 9 * draw.uniform();
      run.options.push_back({.time_s = (10 + draw.uniform()) / bytes, .bytes = bytes});
    }
    chain.runs.push_back(run);
  }
  const StrategyLimits none{.deadline = Clock::now()};
  const StrategyAnswer answer = solve_strategy_chain(chain, 200, none);
  EXPECT_EQ(answer.status, StrategyStatus::gap);
  EXPECT_LE(answer.bytes, 200);
  EXPECT_LT(answer.gap, 0.01);
  EXPECT_LE(answer.bound_s, solve_strategy_chain(chain, 200).time_s);
}

// What is gained by more memory, near the answer, is the price of the relaxation.
TEST(StrategyChain, ThePriceIsTheSlopeOfTheRelaxation) {
  StrategyChain chain{.runs = {{{{.time_s = 3, .bytes = 1}, {.time_s = 1, .bytes = 5}}, 10}}, .layout_change_s = {}};
  EXPECT_NEAR(solve_strategy_chain(chain, 30).price_s_per_byte, 0.5, 1e-12);
  EXPECT_EQ(solve_strategy_chain(chain, 50).price_s_per_byte, 0);
}

}  // namespace
}  // namespace motley
