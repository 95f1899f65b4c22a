#include "motley/cost/collective/genmodel.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "motley/cost/collective/collective_limit.hpp"
#include "motley/cost/collective/genmodel_cases_test.hpp"
#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

constexpr double vector_bytes = 4e8;

// Ranks alike on one switch; a path's latency is alpha.
CollectiveNetwork switch_of(int ranks, const GenModelConstants& constants) {
  CollectiveNetwork network = empty_network("switch");
  const double speed = 1 / constants.beta_s_per_byte;
  for (int rank = 0; rank < ranks; ++rank)
    add_rank(network, 0, "r" + std::to_string(rank), {constants.alpha_s / 2, speed, speed},
             {constants.threshold, constants.epsilon_s_per_byte},
             {constants.gamma_s_per_byte, constants.delta_s_per_byte});
  return network;
}

CollectiveShape shape_of(int ranks) {
  return {.operation = CollectiveOperation::all_reduce,
          .ranks = ranks,
          .root = 0,
          .bytes = 4 * 12 * 8 * 7 * 5 * 1000,
          .chunks = 1,
          .alignment = 4};
}

std::vector<std::vector<int>> factorisations(int ranks) {
  std::vector<std::vector<int>> found;
  std::vector<int> factors;
  const std::function<void(int)> extend = [&](int left) {
    if (left == 1) found.push_back(factors);
    for (int factor = 2; factor <= left; ++factor) {
      if (left % factor) continue;
      factors.push_back(factor);
      extend(left / factor);
      factors.pop_back();
    }
  };
  extend(ranks);
  return found;
}

double price(int ranks, const GenModelConstants& constants, const CollectiveProgram& program) {
  const double scale = vector_bytes / static_cast<double>(program.bytes);
  return price_rounds(switch_of(ranks, constants), rounds_of(program), scale).time_s;
}

TEST(GenModel, ClosedFormsEqualTheCountedSchedule) {
  for (const int ranks : {2, 3, 4, 6, 8, 12})
    for (const auto& factors : factorisations(ranks)) {
      const auto program = factored_program(shape_of(ranks), factors);
      const auto counts = factored_counts(factors, 3);
      // Each constant by itself: the count that stands before it. A link must have some speed.
      for (const GenModelConstants& one : std::vector<GenModelConstants>{{1e-3, 1e-15, 0, 0, 0, 3},
                                                                         {0, 1e-9, 0, 0, 0, 3},
                                                                         {0, 1e-15, 1e-9, 0, 0, 3},
                                                                         {0, 1e-15, 0, 1e-9, 0, 3},
                                                                         {0, 1e-15, 0, 0, 1e-9, 3},
                                                                         p10})
        EXPECT_NEAR(price(ranks, one, program),
                    genmodel_seconds(factored_counts(factors, one.threshold), one, vector_bytes), 1e-8)
            << ranks;
      EXPECT_EQ(counts.rounds, 2 * static_cast<double>(factors.size()));
    }
  std::vector<int> order(8);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_NEAR(price(8, p10, ring_program(shape_of(8), order)), genmodel_seconds(ring_counts(8), p10, vector_bytes),
              1e-8);
}

TEST(GenModel, MemoryAndIncast) {
  EXPECT_NEAR(factored_counts({6, 2}, 9).accessed, 17.0 / 12, 1e-12);
  EXPECT_NEAR(factored_counts({2, 6}, 9).accessed, 25.0 / 12, 1e-12);
  EXPECT_NEAR(factored_counts({12}, 9).excess, 5.5, 1e-12);
  EXPECT_NEAR(factored_counts({12}, 9).accessed, 13.0 / 12, 1e-12);
  EXPECT_NEAR(factored_counts({24}, 9).excess, 28.75, 1e-12);
  EXPECT_NEAR(factored_counts({8, 3}, 9).accessed, 31.0 / 24, 1e-12);
  EXPECT_EQ(factored_counts({8, 3}, 9).excess, 0);
}

TEST(GenModel, TimesOnOneSwitch) {
  const auto shape = [](int ranks) {
    auto whole = shape_of(ranks);
    whole.bytes = 400'000'000;
    return whole;
  };
  EXPECT_NEAR(price(9, p10, direct_program(shape(9), {})), 0.648989, 1e-6);
  EXPECT_NEAR(price(10, p10, factored_program(shape(10), {5, 2})), 0.6722, 5e-5);
  EXPECT_NEAR(price(16, p10, factored_program(shape(16), {8, 2})), 0.6902, 5e-5);
  std::vector<int> order(16);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_NEAR(price(16, p10, ring_program(shape(16), order)), 0.7515, 5e-5);
}

TEST(GenModel, TheTreeAddsUp) {
  for (const auto& factors : std::vector<std::vector<int>>{{12}, {4, 3}, {2, 3, 2}}) {
    const auto cost = price_rounds(switch_of(12, p10), rounds_of(factored_program(shape_of(12), factors)), 10);
    const Term rounds = genmodel_term(cost);
    check_consistent(rounds);
    EXPECT_NEAR(rounds.value, cost.time_s, 1e-12);
    for (const int chunks : {1, 7, 100}) {
      const Term pipelined = pipelined_term(cost, chunks, {});
      check_consistent(pipelined);
      EXPECT_NEAR(pipelined.value, cost.pipelined_s(chunks, {}), 1e-12);
    }
    EXPECT_NEAR(cost.pipelined_s(1, {}), cost.time_s, 1e-12);
    const int best = cost.best_chunks(4096, {});
    for (const int chunks : {1, best - 1, best + 1, 4096})
      if (chunks >= 1) {
        EXPECT_LE(cost.pipelined_s(best, {}), cost.pipelined_s(chunks, {}) + 1e-15);
      }
  }
}

// Two levels, 4 switches of 6 hosts, everything 10 Gbit/s: sums of rounds mislead where chunks overlap.
TEST(GenModel, PipeliningChangesTheOrder) {
  CollectiveNetwork network = empty_network("core");
  for (int s = 0; s < 4; ++s) {
    const int node = add_switch(network, 0, "s" + std::to_string(s), {0, 1.25e9, 1.25e9}, {}, {});
    for (int host = 0; host < 6; ++host)
      add_rank(network, node, "h" + std::to_string(6 * s + host), {0, 1.25e9, 1.25e9}, {}, {});
  }
  auto shape = shape_of(24);
  shape.bytes = 400'000'800;
  const auto two_levels = price_rounds(network, rounds_of(factored_program(shape, {6, 4})));
  std::vector<int> order(24);
  std::iota(order.begin(), order.end(), 0);
  const auto ring = price_rounds(network, rounds_of(ring_program(shape, order)));
  EXPECT_GT(two_levels.time_s, ring.time_s);
  EXPECT_LT(two_levels.steady_s, 0.6134);
  EXPECT_NEAR(collective_limit(network, CollectiveOperation::all_reduce, 0, vector_bytes).seconds, 0.61333, 1e-5);
}

TEST(CollectiveLimit, SpecialCases) {
  CollectiveNetwork star = empty_network("switch");
  for (const double gbit : {10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 1.0, 1.0})
    add_rank(star, 0, "r", {0, gbit * 0.125e9, gbit * 0.125e9}, {}, {});
  EXPECT_NEAR(collective_limit(star, CollectiveOperation::all_reduce, 0, vector_bytes).seconds, 3.2, 1e-9);

  CollectiveNetwork sites = empty_network("wide area");
  for (int s = 0; s < 2; ++s) {
    const int node = add_switch(sites, 0, "site" + std::to_string(s), {0.01, 0.25e9, 0.25e9}, {}, {});
    for (int host = 0; host < 8; ++host) add_rank(sites, node, "h", {0, 1.25e9, 1.25e9}, {}, {});
  }
  // 1 Gbit/s between the sites, in series with itself: two links of 2 Gbit/s would not bind.
  for (auto& port : sites.ports)
    if (port.name.starts_with("site")) port.bytes_per_s = 0.125e9;
  const auto limit = collective_limit(sites, CollectiveOperation::all_reduce, 0, vector_bytes);
  EXPECT_NEAR(limit.seconds, 3.2, 1e-9);
  EXPECT_TRUE(limit.binding_cut.starts_with("site")) << limit.binding_cut;

  // A star that is alike: (N - 1) / N of the vector through every port, and twice that for an all_reduce.
  const auto alike = switch_of(8, p10);
  EXPECT_NEAR(collective_limit(alike, CollectiveOperation::all_reduce, 0, vector_bytes).seconds, 0.56, 1e-9);
  EXPECT_NEAR(collective_limit(alike, CollectiveOperation::reduce_scatter, 0, vector_bytes).seconds, 0.28, 1e-9);
  EXPECT_NEAR(collective_limit(alike, CollectiveOperation::all_gather, 0, vector_bytes).seconds, 0.28, 1e-9);
  EXPECT_NEAR(collective_limit(alike, CollectiveOperation::broadcast, 3, vector_bytes).seconds, 0.32, 1e-9);
}

}  // namespace
}  // namespace motley
