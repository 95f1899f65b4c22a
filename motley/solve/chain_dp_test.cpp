#include "motley/solve/chain_dp.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace motley {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();
const Instant no_deadline = Instant::max();

// Every chain of a problem, by definition.
void each_chain(const ChainProblem& problem, const std::function<void(const std::vector<ChainStage>&)>& visit) {
  std::vector<ChainStage> stages;
  std::vector<int> used(problem.counts.size(), 0);
  const auto complete = [&] {
    for (std::size_t k = 0; k < used.size(); ++k)
      if (used[k] < problem.must_use[k]) return false;
    std::size_t unit = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const int position = (i == 0 ? 1 : 0) | (i + 1 == stages.size() ? 2 : 0);
      const ChainOption& option = problem.options[stages[i].option];
      std::int64_t size = 0;
      for (std::int64_t n = 0; n < stages[i].units; ++n, ++unit)
        size += option.unit_size.empty()
                    ? 1
                    : option.unit_size[problem.kind_of_unit.empty() ? 0 : problem.kind_of_unit[unit]];
      if (size > option.at[position].capacity) return false;
    }
    return true;
  };
  std::function<void(std::int64_t)> grow = [&](std::int64_t left) {
    if (left == 0) {
      if (complete()) visit(stages);
      return;
    }
    for (int o = 0; o < static_cast<int>(problem.options.size()); ++o) {
      const auto& takes = problem.options[o].takes;
      bool fits = true;
      for (std::size_t k = 0; k < used.size(); ++k) fits = fits && used[k] + takes[k] <= problem.counts[k];
      if (!fits) continue;
      for (std::size_t k = 0; k < used.size(); ++k) used[k] += takes[k];
      for (std::int64_t units = 1; units <= left; ++units) {
        stages.push_back({o, units});
        grow(left - units);
        stages.pop_back();
      }
      for (std::size_t k = 0; k < used.size(); ++k) used[k] -= takes[k];
    }
  };
  grow(problem.units);
}

ParetoFront<std::vector<ChainStage>> enumerated_front(const ChainProblem& problem) {
  ParetoFront<std::vector<ChainStage>> front;
  each_chain(problem, [&](const std::vector<ChainStage>& stages) {
    const StageSeconds seconds = chain_seconds(problem, stages);
    front.insert(seconds.latency_s, seconds.load_s, stages);
  });
  return front;
}

enum class Items { may_idle, all };
enum class Units { alike, unlike };

ChainProblem random_problem(std::mt19937& random, Items items, Units units = Units::alike) {
  const auto integer = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto seconds = [&](double scale) { return scale * std::uniform_real_distribution<double>(0.1, 1)(random); };
  ChainProblem problem;
  const int classes = integer(1, 3);
  for (int k = 0; k < classes; ++k) problem.counts.push_back(integer(1, classes == 3 ? 1 : classes == 2 ? 2 : 4));
  problem.must_use = items == Items::all ? problem.counts : std::vector<int>(problem.counts.size(), 0);
  problem.units = integer(2, 8);
  if (units == Units::unlike)
    for (std::int64_t unit = 0; unit < problem.units; ++unit)
      problem.kind_of_unit.push_back(static_cast<std::uint8_t>(integer(0, 2)));
  const int places = classes + integer(0, 1);
  for (int k = 0; k < classes; ++k)
    for (int n = 1; n <= problem.counts[k]; ++n) {
      ChainOption option;
      option.place = integer(0, 3) == 0 ? places - 1 : k;
      option.takes.assign(classes, 0);
      option.takes[k] = n;
      if (classes > 1 && integer(0, 5) == 0) option.takes[(k + 1) % classes] = 1;  // a group over two classes
      option.per_unit = {{seconds(1), seconds(1)}};
      for (auto& at : option.at) at = {{seconds(0.5), seconds(0.5)}, integer(0, 5)};
      if (units == Units::unlike) {
        option.per_unit.insert(option.per_unit.end(), {{seconds(4), seconds(4)}, {seconds(0.3), seconds(0.3)}});
        option.unit_size = {1, integer(1, 4), integer(1, 2)};
        for (auto& at : option.at) at.capacity = integer(0, 12);
      }
      problem.options.push_back(option);
    }
  const double hop_scale = integer(0, 1) == 0 ? 0.1 : 3;
  for (int p = 0; p < places; ++p) {
    problem.hops.emplace_back();
    problem.return_latency_s.emplace_back();
    for (int q = 0; q < places; ++q) {
      problem.hops[p].push_back({seconds(hop_scale), seconds(hop_scale)});
      problem.return_latency_s[p].push_back(seconds(hop_scale));
    }
  }
  return problem;
}

void expect_front_equals_enumeration(const ChainProblem& problem) {
  ChainSolver solver(problem);
  const ChainFront front = pareto_front(solver, no_deadline);
  const auto expected = enumerated_front(problem).points();
  ASSERT_EQ(front.chains.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(front.chains[i].seconds.latency_s, expected[i].first, 1e-9 * expected[i].first);
    EXPECT_NEAR(front.chains[i].seconds.load_s, expected[i].second, 1e-9 * expected[i].second);
    EXPECT_EQ(front.chains[i].seconds, chain_seconds(problem, front.chains[i].stages));
  }
}

TEST(ChainDp, FrontEqualsEnumerationWhereItemsMayIdle) {
  std::mt19937 random(1);
  int feasible = 0;
  for (int i = 0; i < 150; ++i) {
    const ChainProblem problem = random_problem(random, Items::may_idle);
    feasible += !enumerated_front(problem).points().empty();
    expect_front_equals_enumeration(problem);
  }
  EXPECT_GE(feasible, 100);
}

TEST(ChainDp, FrontEqualsEnumerationWhereAllItemsAreUsed) {
  std::mt19937 random(2);
  int feasible = 0;
  for (int i = 0; i < 300; ++i) {
    const ChainProblem problem = random_problem(random, Items::all);
    feasible += !enumerated_front(problem).points().empty();
    expect_front_equals_enumeration(problem);
  }
  EXPECT_GE(feasible, 50);
}

TEST(ChainDp, FrontOfUnlikeUnitsEqualsEnumeration) {
  std::mt19937 random(7);
  int feasible = 0;
  for (int i = 0; i < 300; ++i) {
    const ChainProblem problem = random_problem(random, i % 2 == 0 ? Items::may_idle : Items::all, Units::unlike);
    feasible += !enumerated_front(problem).points().empty();
    expect_front_equals_enumeration(problem);
  }
  EXPECT_GE(feasible, 100);
}

TEST(ChainDp, LeastCycleEqualsEnumeration) {
  std::mt19937 random(3);
  for (int i = 0; i < 150; ++i) {
    const ChainProblem problem = random_problem(random, Items::may_idle, i % 3 == 0 ? Units::unlike : Units::alike);
    for (const double in_flight : {1.0, 2.0, 3.0, 8.0}) {
      double expected = unbounded;
      each_chain(problem, [&](const std::vector<ChainStage>& stages) {
        const StageSeconds seconds = chain_seconds(problem, stages);
        expected = std::min(expected, std::max(seconds.load_s, seconds.latency_s / in_flight));
      });
      ChainSolver solver(problem);
      const CycleAnswer answer = least_cycle(solver, in_flight, unbounded, no_deadline);
      ASSERT_EQ(answer.chain.has_value(), expected < unbounded);
      if (!answer.chain) continue;
      const StageSeconds seconds = answer.chain->seconds;
      EXPECT_NEAR(std::max(seconds.load_s, seconds.latency_s / in_flight), expected, 2e-9 * expected);
      EXPECT_FALSE(least_cycle(solver, in_flight, expected * (1 - 1e-6), no_deadline).chain)
          << "nothing lies below the least";
    }
  }
}

TEST(ChainDp, MoreItemsNeverWorsenTheOptimumWhereTheyMayIdle) {
  std::mt19937 random(4);
  for (int i = 0; i < 100; ++i) {
    ChainProblem problem = random_problem(random, Items::may_idle);
    ChainSolver few(problem);
    const auto before = least_cycle(few, 3, unbounded, no_deadline).chain;
    ChainProblem larger = problem;
    ++larger.counts[static_cast<std::size_t>(i) % larger.counts.size()];
    ChainSolver many(larger);
    const auto after = least_cycle(many, 3, unbounded, no_deadline).chain;
    if (!before) continue;
    ASSERT_TRUE(after);
    const auto cycle = [](const Chain& chain) { return std::max(chain.seconds.load_s, chain.seconds.latency_s / 3); };
    EXPECT_LE(cycle(*after), cycle(*before) * (1 + 2e-9));
  }
}

// For a fixed sequence of stages the least latency fills the cheapest stage per unit up to its capacity, the others
// hold one.
TEST(ChainDp, LeastLatencyOfOneSequenceIsTheGreedyFill) {
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    const auto integer = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const int stages = integer(1, 4);
    ChainProblem problem;
    problem.units = integer(stages, 9);
    problem.counts.assign(stages, 1);
    problem.must_use = problem.counts;
    problem.hops.assign(stages, std::vector<StageSeconds>(stages, {1, 1}));
    problem.return_latency_s.assign(stages, std::vector<double>(stages, 0));
    for (int k = 0; k < stages; ++k) {
      ChainOption option;
      option.place = k;
      option.takes.assign(stages, 0);
      option.takes[k] = 1;
      const double per_unit = std::uniform_real_distribution<double>(0.1, 1)(random);
      option.per_unit = {{per_unit, per_unit}};
      const int capacity = integer(1, 6);
      for (auto& at : option.at) at.capacity = capacity;
      problem.options.push_back(option);
    }
    std::vector<std::int64_t> filled(stages, 1);
    std::vector<int> order(stages);
    for (int k = 0; k < stages; ++k) order[k] = k;
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return problem.options[a].per_unit.front().latency_s < problem.options[b].per_unit.front().latency_s;
    });
    std::int64_t left = problem.units - stages;
    for (const int k : order) {
      const std::int64_t more = std::min(left, problem.options[k].at[0].capacity - 1);
      filled[k] += more;
      left -= more;
    }
    ChainSolver solver(problem);
    const auto chain = solver.least_latency();
    ASSERT_EQ(chain.has_value(), left == 0);
    if (!chain) continue;
    double expected = stages - 1;  // hops
    for (int k = 0; k < stages; ++k)
      expected += problem.options[k].per_unit.front().latency_s * static_cast<double>(filled[k]);
    EXPECT_NEAR(chain->seconds.latency_s, expected, 1e-9 * expected);
    std::vector<ChainStage> stages_of_fill;
    double least = unbounded;
    each_chain(problem,
               [&](const std::vector<ChainStage>& s) { least = std::min(least, chain_seconds(problem, s).latency_s); });
    EXPECT_NEAR(least, expected, 1e-9 * expected) << "the greedy fill is the least by enumeration";
  }
}

TEST(ChainDp, StopsAtTheDeadlineWithWhatItHas) {
  std::mt19937 random(6);
  ChainProblem problem = random_problem(random, Items::may_idle);
  while (enumerated_front(problem).points().size() < 2) problem = random_problem(random, Items::may_idle);
  ChainSolver solver(problem);
  const ChainFront front = pareto_front(solver, Instant::min());
  EXPECT_EQ(front.end, SearchEnd::deadline);
  EXPECT_EQ(front.chains.size(), 1u);
  EXPECT_EQ(front.chains[0], *solver.least_latency());
}

TEST(ParetoFrontTest, KeepsOnlyWhatNothingDominates) {
  ParetoFront<int> front;
  EXPECT_TRUE(front.insert(2, 2, 0));
  EXPECT_FALSE(front.insert(2, 3, 1));
  EXPECT_TRUE(front.insert(1, 3, 2));
  EXPECT_FALSE(front.insert(2 * (1 + 1e-12), 2 * (1 - 1e-12), 3)) << "equal within the tolerance";
  EXPECT_TRUE(front.insert(1, 1, 4));
  ASSERT_EQ(front.points().size(), 1u);
  EXPECT_EQ(front.points()[0].payload, 4);
}

}  // namespace
}  // namespace motley
