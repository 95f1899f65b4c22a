#include "motley/solve/matching.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace motley {
namespace {

std::vector<double> random_weights(std::mt19937& random, int n, int values) {
  std::vector<double> weights(static_cast<std::size_t>(n * n));
  for (double& weight : weights) weight = std::uniform_int_distribution<int>(1, values)(random);
  return weights;
}

double bottleneck_by_enumeration(const std::vector<double>& weights, int n) {
  std::vector<int> column(static_cast<std::size_t>(n));
  std::iota(column.begin(), column.end(), 0);
  double least = std::numeric_limits<double>::infinity();
  do {
    double largest = 0;
    for (int row = 0; row < n; ++row)
      largest = std::max(largest, weights[static_cast<std::size_t>(row * n + column[row])]);
    least = std::min(least, largest);
  } while (std::next_permutation(column.begin(), column.end()));
  return least;
}

void expect_matching(const std::vector<double>& weights, int n, const std::vector<int>& match, double bottleneck) {
  std::vector<int> columns = match;
  std::sort(columns.begin(), columns.end());
  for (int i = 0; i < n; ++i) ASSERT_EQ(columns[static_cast<std::size_t>(i)], i);
  double largest = 0;
  for (int row = 0; row < n; ++row)
    largest = std::max(largest, weights[static_cast<std::size_t>(row * n + match[row])]);
  EXPECT_EQ(largest, bottleneck);
}

double by_growing(const std::vector<double>& weights, int n) {
  std::vector<int> edges(weights.size());
  std::iota(edges.begin(), edges.end(), 0);
  std::stable_sort(edges.begin(), edges.end(), [&](int a, int b) { return weights[a] < weights[b]; });
  GrowingMatching matching;
  matching.begin(n);
  for (const int edge : edges) {
    matching.add(edge / n, edge / n + 1, edge % n, edge % n + 1);
    if (matching.perfect()) return weights[edge];
  }
  return std::numeric_limits<double>::infinity();
}

TEST(BottleneckMatching, EqualsEnumerationWithManyTies) {
  std::mt19937 random(1);
  BottleneckMatcher matcher;
  for (int n = 1; n <= 7; ++n)
    for (int round = 0; round < 60; ++round) {
      const auto weights = random_weights(random, n, 2 + round % 12);
      const double bottleneck = matcher.solve(weights, n);
      EXPECT_EQ(bottleneck, bottleneck_by_enumeration(weights, n));
      EXPECT_EQ(by_growing(weights, n), bottleneck);
      EXPECT_EQ(matcher.solve(weights, n), bottleneck);
      expect_matching(weights, n, matcher.match(), bottleneck);
    }
}

// Beyond 64 columns rows have several words. A hidden permutation below all other weights is the answer.
TEST(BottleneckMatching, LongRows) {
  std::mt19937 random(2);
  BottleneckMatcher matcher;
  for (const int n : {63, 64, 65, 130}) {
    auto weights = random_weights(random, n, 1000);
    for (double& weight : weights) weight += 500;
    std::vector<int> hidden(static_cast<std::size_t>(n));
    std::iota(hidden.begin(), hidden.end(), 0);
    std::shuffle(hidden.begin(), hidden.end(), random);
    for (int row = 0; row < n; ++row) weights[static_cast<std::size_t>(row * n + hidden[row])] = row + 1;
    EXPECT_EQ(matcher.solve(weights, n), n);
    EXPECT_EQ(matcher.match(), hidden);
    EXPECT_EQ(by_growing(weights, n), n);
  }
}

// Whole blocks of edges, over the borders of words.
TEST(BottleneckMatching, BlocksOfEdges) {
  for (const int n : {6, 64, 130}) {
    GrowingMatching matching;
    matching.begin(n);
    matching.add(0, n / 2, n / 2, n);
    EXPECT_FALSE(matching.perfect());
    matching.add(n / 2, n, n / 2, n);
    EXPECT_FALSE(matching.perfect());
    matching.add(n / 2, n, 0, n / 2 - 1);
    EXPECT_FALSE(matching.perfect());
    matching.add(0, 1, n / 2 - 1, n / 2);
    EXPECT_TRUE(matching.perfect());
  }
}

// The reverse of Hall's condition: k rows that share k - 1 cheap columns force one of them out.
TEST(BottleneckMatching, ATightSetDecides) {
  const std::vector<double> weights = {1, 1, 9, 9, 1, 1, 8, 9, 1, 1, 9, 7, 9, 9, 1, 1};
  BottleneckMatcher matcher;
  EXPECT_EQ(matcher.solve(weights, 4), 7);
}

}  // namespace
}  // namespace motley
