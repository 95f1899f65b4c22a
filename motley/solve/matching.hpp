// Bottleneck perfect matching: pairs the two sides of a complete bipartite graph so that the largest weight of a pair
// is least.
//
// Method: the answer is one of the weights, and at least the largest of all rows' and columns' least weights. Above
// that, a binary search over the distinct weights; whether the edges up to a threshold hold a perfect matching is asked
// of Hopcroft and Karp's algorithm (SIAM J. Comput. 1973) on rows of bits, and a matching that fell short at a lower
// threshold is continued, since its edges are still there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace motley {

class BottleneckMatcher {
 public:
  // `weights`: n x n, row-major, finite. Returns the bottleneck. Scratch memory is kept between calls.
  double solve(std::span<const double> weights, int n);
  // Column of every row in the matching that the last solve() found.
  const std::vector<int>& match() const { return column_of_; }

 private:
  double begin(std::span<const double> weights, int n);  // returns the lower bound
  double search(double least);
  bool complete(double threshold);  // continues the present matching; true where it is perfect
  bool layered_search();
  bool augment(int row);

  int n_ = 0, words_ = 0, matched_ = 0;
  std::span<const double> weights_;
  std::vector<std::uint64_t> edges_;  // n x words: columns within the threshold
  std::vector<std::uint64_t> free_;   // columns not yet visited
  std::vector<int> column_of_, row_of_, kept_columns_, kept_rows_, depth_, queue_;
  std::vector<double> values_;
};

// A matching that is continued while edges come in, shortest first: where it becomes perfect is the bottleneck. For
// whom the edges' order costs nothing this is quicker than a search over thresholds. Augmenting paths, depth first, on
// bits.
class GrowingMatching {
 public:
  void begin(int n);
  // All edges from rows [first_row, last_row) to columns [first_column, last_column).
  void add(int first_row, int last_row, int first_column, int last_column);
  bool perfect();

 private:
  bool augment(std::size_t row);

  std::size_t n_ = 0, words_ = 0;
  std::vector<std::uint64_t> edges_;    // n x words
  std::vector<std::uint64_t> free_;     // columns that no row has
  std::vector<std::uint64_t> unasked_;  // columns not yet visited
  std::vector<int> row_of_;
  std::vector<std::size_t> open_;  // rows that have no column
};

}  // namespace motley
