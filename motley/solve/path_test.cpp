#include "motley/solve/path.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace motley {
namespace {

std::vector<double> random_weights(std::mt19937& random, int n) {
  std::vector<double> weights(static_cast<std::size_t>(n * n));
  std::uniform_real_distribution<double> uniform(0, 10);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < i; ++j)
      weights[static_cast<std::size_t>(i * n + j)] = weights[static_cast<std::size_t>(j * n + i)] = uniform(random);
  return weights;
}

double length_by_enumeration(const std::vector<double>& weights, int n) {
  std::vector<int> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  double least = std::numeric_limits<double>::infinity();
  do least = std::min(least, path_length(weights, n, order));
  while (std::next_permutation(order.begin(), order.end()));
  return least;
}

void expect_path(const std::vector<double>& weights, int n, const OpenPath& path) {
  std::vector<int> nodes = path.order;
  EXPECT_NEAR(path_length(weights, n, nodes), path.length, 1e-12 * std::max(1.0, path.length));
  std::vector<int> turned(nodes.rbegin(), nodes.rend());
  EXPECT_NEAR(path_length(weights, n, turned), path.length, 1e-12 * std::max(1.0, path.length));
  std::sort(nodes.begin(), nodes.end());
  for (int i = 0; i < n; ++i) ASSERT_EQ(nodes[static_cast<std::size_t>(i)], i);
}

TEST(OpenPath, HeldAndKarpEqualEnumeration) {
  std::mt19937 random(1);
  for (int n = 1; n <= 9; ++n)
    for (int round = 0; round < (n < 9 ? 12 : 2); ++round) {
      const auto weights = random_weights(random, n);
      const OpenPath path = shortest_open_path(weights, n);
      EXPECT_NEAR(path.length, length_by_enumeration(weights, n), 1e-12 * 90);
      expect_path(weights, n, path);
      const std::vector<int> turned(path.order.rbegin(), path.order.rend());
      EXPECT_NEAR(path_length(weights, n, turned), path.length, 1e-12 * 90);
    }
}

// Its memory is that of the problem before, larger or smaller.
TEST(OpenPath, AProgrammeIsUsedAgain) {
  std::mt19937 random(2);
  HeldKarp kept;
  for (const int n : {8, 3, 9, 1, 2, 8}) {
    const auto weights = random_weights(random, n);
    EXPECT_NEAR(kept.solve(weights, n), length_by_enumeration(weights, n), 1e-12 * 90);
    expect_path(weights, n, {path_length(weights, n, kept.order()), kept.order()});
  }
}

TEST(OpenPath, TheLocalSearchIsCloseToTheShortest) {
  std::mt19937 random(3);
  double excess = 0;
  for (int round = 0; round < 30; ++round) {
    const int n = 10 + round % 4;
    const auto weights = random_weights(random, n);
    const OpenPath local = local_path(weights, n);
    expect_path(weights, n, local);
    const double exact = shortest_open_path(weights, n).length;
    EXPECT_GE(local.length, exact - 1e-9);
    excess += local.length / exact - 1;
  }
  EXPECT_LT(excess / 30, 0.05);
}

// Points on a line, in a random order: the line is the path.
TEST(OpenPath, LongPathsAlongALineAreFound) {
  std::mt19937 random(4);
  const int n = 40;
  std::vector<double> place(static_cast<std::size_t>(n)), weights(static_cast<std::size_t>(n * n));
  for (int i = 0; i < n; ++i) place[static_cast<std::size_t>(i)] = i;
  std::shuffle(place.begin(), place.end(), random);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) weights[static_cast<std::size_t>(i * n + j)] = std::abs(place[i] - place[j]);
  const OpenPath path = shortest_open_path(weights, n);
  expect_path(weights, n, path);
  EXPECT_EQ(path.length, n - 1);
}

}  // namespace
}  // namespace motley
