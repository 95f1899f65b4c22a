#include "motley/solve/matching.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "motley/base/error.hpp"

namespace motley {

double BottleneckMatcher::solve(std::span<const double> weights, int n) {
  const double least = begin(weights, n);
  const double bottleneck = search(least);
  MOTLEY_CHECK(complete(bottleneck));
  return bottleneck;
}

double BottleneckMatcher::begin(std::span<const double> weights, int n) {
  MOTLEY_CHECK(n > 0 && weights.size() == static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
  const auto size = static_cast<std::size_t>(n);
  n_ = n;
  words_ = (n + 63) / 64;
  weights_ = weights;
  edges_.resize(size * static_cast<std::size_t>(words_));
  column_of_.assign(size, -1);
  row_of_.assign(size, -1);
  matched_ = 0;
  double least = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < size; ++i) {
    double row = weights[i * size], column = weights[i];
    for (std::size_t j = 1; j < size; ++j) {
      row = std::min(row, weights[i * size + j]);
      column = std::min(column, weights[j * size + i]);
    }
    least = std::max({least, row, column});
  }
  return least;
}

double BottleneckMatcher::search(double least) {
  if (complete(least)) return least;
  values_.clear();
  for (const double weight : weights_)
    if (weight > least) values_.push_back(weight);
  std::sort(values_.begin(), values_.end());
  values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
  std::size_t low = 0, high = values_.size() - 1;  // the answer is among [low, high]
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    kept_columns_ = column_of_;
    kept_rows_ = row_of_;
    const int kept = matched_;
    if (complete(values_[middle])) {
      high = middle;
      // It may use edges above the answer: go back to what lower thresholds gave.
      column_of_ = kept_columns_;
      row_of_ = kept_rows_;
      matched_ = kept;
    } else {
      low = middle + 1;
    }
  }
  return values_[low];
}

bool BottleneckMatcher::complete(double threshold) {
  const auto size = static_cast<std::size_t>(n_), words = static_cast<std::size_t>(words_);
  std::fill(edges_.begin(), edges_.end(), 0);
  for (std::size_t i = 0; i < size; ++i)
    for (std::size_t j = 0; j < size; ++j)
      if (weights_[i * size + j] <= threshold) edges_[i * words + j / 64] |= std::uint64_t{1} << (j % 64);
  while (matched_ < n_)
    if (!layered_search()) return false;
  return true;
}

// One phase: distances of rows from free rows, then disjoint shortest augmenting paths.
bool BottleneckMatcher::layered_search() {
  const auto size = static_cast<std::size_t>(n_), words = static_cast<std::size_t>(words_);
  depth_.assign(size, -1);
  queue_.clear();
  for (int row = 0; row < n_; ++row)
    if (column_of_[static_cast<std::size_t>(row)] < 0) {
      depth_[static_cast<std::size_t>(row)] = 0;
      queue_.push_back(row);
    }
  free_.assign(words, ~std::uint64_t{0});
  bool reached = false;
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const auto row = static_cast<std::size_t>(queue_[head]);
    for (std::size_t w = 0; w < words; ++w)
      for (std::uint64_t fresh = edges_[row * words + w] & free_[w]; fresh != 0; fresh &= fresh - 1) {
        const std::size_t column = w * 64 + static_cast<std::size_t>(std::countr_zero(fresh));
        free_[w] &= ~(std::uint64_t{1} << (column % 64));
        const int next = row_of_[column];
        if (next < 0) {
          reached = true;
        } else if (depth_[static_cast<std::size_t>(next)] < 0) {
          depth_[static_cast<std::size_t>(next)] = depth_[row] + 1;
          queue_.push_back(next);
        }
      }
  }
  if (!reached) return false;
  free_.assign(words, ~std::uint64_t{0});
  bool grown = false;
  for (int row = 0; row < n_; ++row)
    if (column_of_[static_cast<std::size_t>(row)] < 0 && augment(row)) {
      ++matched_;
      grown = true;
    }
  return grown;
}

bool BottleneckMatcher::augment(int row) {
  const auto words = static_cast<std::size_t>(words_), from = static_cast<std::size_t>(row);
  for (std::size_t w = 0; w < words; ++w)
    for (std::uint64_t fresh = edges_[from * words + w] & free_[w]; fresh != 0;
         fresh = edges_[from * words + w] & free_[w] & ~((fresh & -fresh) | ((fresh & -fresh) - 1))) {
      const std::size_t column = w * 64 + static_cast<std::size_t>(std::countr_zero(fresh));
      const int next = row_of_[column];
      if (next >= 0 && depth_[static_cast<std::size_t>(next)] != depth_[from] + 1) continue;
      free_[w] &= ~(std::uint64_t{1} << (column % 64));
      if (next >= 0 && !augment(next)) continue;
      column_of_[from] = static_cast<int>(column);
      row_of_[column] = row;
      return true;
    }
  return false;
}

// ---- growing ----

void GrowingMatching::begin(int n) {
  MOTLEY_CHECK(n > 0);
  n_ = static_cast<std::size_t>(n);
  words_ = (n_ + 63) / 64;
  edges_.assign(n_ * words_, 0);
  free_.assign(words_, ~std::uint64_t{0});
  if (n_ % 64 != 0) free_.back() = (std::uint64_t{1} << (n_ % 64)) - 1;
  row_of_.assign(n_, -1);
  open_.resize(n_);
  std::iota(open_.begin(), open_.end(), std::size_t{0});
}

void GrowingMatching::add(int first_row, int last_row, int first_column, int last_column) {
  for (auto word = static_cast<std::size_t>(first_column / 64); word * 64 < static_cast<std::size_t>(last_column);
       ++word) {
    const int from = std::max(0, first_column - static_cast<int>(word) * 64);
    const int to = std::min(64, last_column - static_cast<int>(word) * 64);
    const std::uint64_t columns = (to - from == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (to - from)) - 1) << from;
    for (auto row = static_cast<std::size_t>(first_row); row < static_cast<std::size_t>(last_row); ++row)
      edges_[row * words_ + word] |= columns;
  }
}

bool GrowingMatching::perfect() {
  for (std::size_t i = 0; i < open_.size();) {
    unasked_.assign(words_, ~std::uint64_t{0});
    if (augment(open_[i])) {
      open_[i] = open_.back();
      open_.pop_back();
    } else {
      return false;  // whatever the others find, this row's edges must grow
    }
  }
  return true;
}

bool GrowingMatching::augment(std::size_t row) {
  const std::uint64_t* edges = edges_.data() + row * words_;
  for (std::size_t w = 0; w < words_; ++w)
    if (const std::uint64_t column = edges[w] & free_[w]; column != 0) {
      const int bit = std::countr_zero(column);
      free_[w] &= ~(std::uint64_t{1} << bit);
      row_of_[w * 64 + static_cast<std::size_t>(bit)] = static_cast<int>(row);
      return true;
    }
  for (std::size_t w = 0; w < words_; ++w)
    while (const std::uint64_t columns = edges[w] & unasked_[w]) {
      const int bit = std::countr_zero(columns);
      unasked_[w] &= ~(std::uint64_t{1} << bit);
      int& owner = row_of_[w * 64 + static_cast<std::size_t>(bit)];
      if (!augment(static_cast<std::size_t>(owner))) continue;
      owner = static_cast<int>(row);
      return true;
    }
  return false;
}

}  // namespace motley
