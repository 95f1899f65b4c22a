#include "motley/solve/multiple_choice_test.hpp"

#include <gtest/gtest.h>

#include "motley/base/random.hpp"

namespace motley {
namespace {

// By hand: two sites, budget 5. From (1 byte, 9 s) each: 4 s per byte to 2 bytes, then 1 s per byte to 4 bytes; the
// other site 2 s per byte to 3 bytes. Taken: 1 byte for 4 s, 2 bytes for 4 s; no byte is left.
TEST(MultipleChoice, ByHand) {
  const StrategyChain chain{
      .runs = {{{{.time_s = 9, .bytes = 1}, {.time_s = 5, .bytes = 2}, {.time_s = 3, .bytes = 4}}, 1},
               {{{.time_s = 9, .bytes = 1}, {.time_s = 5, .bytes = 3}}, 1}},
      .layout_change_s = {}};
  const auto whole = relax_multiple_choice(chain, 5);
  EXPECT_EQ(whole.bound_s, 10);
  EXPECT_EQ(whole.mixed_sites, 0);
  const auto half = relax_multiple_choice(chain, 4);
  EXPECT_EQ(half.bound_s, 12);
  EXPECT_EQ(half.rounded_s, 14);
  EXPECT_EQ(half.mixed_sites, 1);
  EXPECT_EQ(half.price_s_per_byte, 2);
  EXPECT_FALSE(relax_multiple_choice(chain, 1.5).feasible);
}

TEST(MultipleChoice, BoundsTheOptimumFromBothSides) {
  std::uint64_t index = 0;
  int mixed = 0;
  const auto draw = [&] { return uniform_at(5, index++); };
  for (int instance = 0; instance < 200; ++instance) {
    StrategyChain chain;
    const int sites = 1 + static_cast<int>(draw() * 10);
    for (int site = 0; site < sites; ++site) {
      StrategyRun run;
      for (int i = 2 + static_cast<int>(draw() * 3); i > 0; --i)
        run.options.push_back({.time_s = draw(), .bytes = draw()});
      chain.runs.push_back(run);
    }
    const double budget = sites * (0.2 + 0.6 * draw());
    const MultipleChoiceRelaxation relaxed = relax_multiple_choice(chain, budget);
    const StrategyAnswer exact = solve_strategy_chain(chain, budget);
    ASSERT_EQ(relaxed.feasible, exact.status == StrategyStatus::optimal);
    if (!relaxed.feasible) continue;
    EXPECT_LE(relaxed.bound_s, exact.time_s + 1e-12);
    EXPECT_GE(relaxed.rounded_s, exact.time_s - 1e-12);
    EXPECT_NEAR(strategy_total(chain, relaxed.rounded).time_s, relaxed.rounded_s, 1e-12);
    EXPECT_LE(strategy_total(chain, relaxed.rounded).bytes, budget * (1 + 1e-12));
    EXPECT_LE(relaxed.mixed_sites, 1);
    mixed += relaxed.mixed_sites;
  }
  EXPECT_GT(mixed, 50);
}

}  // namespace
}  // namespace motley
