#include "motley/solve/path.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double improvement = 1e-12;  // relative: less counts as none
constexpr int window_nodes = 8;
constexpr std::size_t improved_starts = 4;

}  // namespace

double HeldKarp::solve(std::span<const double> weights, int n) {
  MOTLEY_CHECK(n > 0 && n <= 20 && weights.size() == static_cast<std::size_t>(n * n));
  stride_ = static_cast<std::size_t>(n);
  weights_ = weights;
  const unsigned all = (1u << n) - 1;
  const int half = (n + 1) / 2;
  table_.resize((static_cast<std::size_t>(all) + 1) * stride_);
  double least = infinity;
  unsigned best_front = 0;
  int front_end = 0, back_end = 0;
  for (unsigned subset = 1; subset <= all; ++subset) {
    const int size = std::popcount(subset);
    if (size > half) continue;
    for (unsigned lasts = subset; lasts != 0; lasts &= lasts - 1) {
      const int last = std::countr_zero(lasts);
      const unsigned rest = subset & ~(1u << last);
      double shortest = rest == 0 ? 0 : infinity;
      const double* to_last = weights.data() + static_cast<std::size_t>(last) * stride_;
      const double* before = &best(rest, 0);
      for (unsigned others = rest; others != 0; others &= others - 1) {
        const int previous = std::countr_zero(others);
        shortest = std::min(shortest, before[previous] + to_last[previous]);
      }
      best(subset, last) = shortest;
    }
  }
  for (unsigned front = 1; front <= all; ++front) {
    if (std::popcount(front) != half) continue;
    const unsigned back = all & ~front;
    for (unsigned ends = front; ends != 0; ends &= ends - 1) {
      const int end = std::countr_zero(ends);
      double behind = back == 0 ? 0 : infinity;
      int next = end;
      for (unsigned others = back; others != 0; others &= others - 1) {
        const int other = std::countr_zero(others);
        const double length = best(back, other) + weights[static_cast<std::size_t>(end) * stride_ + other];
        if (length >= behind) continue;
        behind = length;
        next = other;
      }
      if (const double length = best(front, end) + behind; length < least) {
        least = length;
        best_front = front;
        front_end = end;
        back_end = next;
      }
    }
  }
  order_.clear();
  trace(best_front, front_end);
  std::reverse(order_.begin(), order_.end());
  if (n > 1) trace(all & ~best_front, back_end);
  return least;
}

void HeldKarp::trace(unsigned subset, int last) {
  while (true) {
    order_.push_back(last);
    const unsigned rest = subset & ~(1u << last);
    if (rest == 0) return;
    const double* to_last = weights_.data() + static_cast<std::size_t>(last) * stride_;
    int previous = -1;
    for (unsigned others = rest; others != 0; others &= others - 1) {
      const int node = std::countr_zero(others);
      if (previous < 0 || best(rest, node) + to_last[node] < best(rest, previous) + to_last[previous]) previous = node;
    }
    subset = rest;
    last = previous;
  }
}

double path_length(std::span<const double> weights, int n, std::span<const int> order) {
  double length = 0;
  for (std::size_t i = 0; i + 1 < order.size(); ++i)
    length += weights[static_cast<std::size_t>(order[i] * n + order[i + 1])];
  return length;
}

namespace {

class LocalPath {
 public:
  LocalPath(std::span<const double> weights, int n) : weights_(weights), n_(n) {}

  std::vector<int> greedy(int start) const {
    std::vector<int> order = {start};
    std::vector<bool> visited(static_cast<std::size_t>(n_));
    visited[static_cast<std::size_t>(start)] = true;
    while (static_cast<int>(order.size()) < n_) {
      int nearest = -1;
      for (int node = 0; node < n_; ++node)
        if (!visited[static_cast<std::size_t>(node)] &&
            (nearest < 0 || weight(order.back(), node) < weight(order.back(), nearest)))
          nearest = node;
      visited[static_cast<std::size_t>(nearest)] = true;
      order.push_back(nearest);
    }
    return order;
  }

  void improve(std::vector<int>& order) {
    order_ = order;
    while (turn() || move() || reorder()) {
    }
    order = order_;
  }

 private:
  double weight(int a, int b) const { return weights_[static_cast<std::size_t>(a * n_ + b)]; }
  int at(int place) const { return order_[static_cast<std::size_t>(place)]; }
  // Of the edge between neighbours on the path; 0 beyond its ends.
  double edge(int place, int next) const { return place < 0 || next >= n_ ? 0 : weight(at(place), at(next)); }
  bool helps(double before, double after) const { return after < before - improvement * std::max(1.0, before); }

  // Turns a piece round.
  bool turn() {
    bool any = false;
    for (int i = 0; i + 1 < n_; ++i)
      for (int j = i + 1; j < n_; ++j) {
        const double before = edge(i - 1, i) + edge(j, j + 1);
        const double after = (i > 0 ? weight(at(i - 1), at(j)) : 0) + (j + 1 < n_ ? weight(at(i), at(j + 1)) : 0);
        if (!helps(before, after)) continue;
        std::reverse(order_.begin() + i, order_.begin() + j + 1);
        any = true;
      }
    return any;
  }

  // Moves up to three neighbours elsewhere, either way round.
  bool move() {
    const double now = path_length(weights_, n_, order_);
    for (int length = 1; length <= std::min(3, n_ - 1); ++length)
      for (int from = 0; from + length <= n_; ++from) {
        std::vector<int> rest = order_, piece(order_.begin() + from, order_.begin() + from + length);
        rest.erase(rest.begin() + from, rest.begin() + from + length);
        for (const bool turned : {false, true}) {
          if (turned) std::reverse(piece.begin(), piece.end());
          for (std::size_t to = 0; to <= rest.size(); ++to) {
            std::vector<int> candidate = rest;
            candidate.insert(candidate.begin() + static_cast<std::ptrdiff_t>(to), piece.begin(), piece.end());
            if (!helps(now, path_length(weights_, n_, candidate))) continue;
            order_ = std::move(candidate);
            return true;
          }
        }
      }
    return false;
  }

  // The best order of a window between its neighbours: the outer nodes become ends that must be ends.
  bool reorder() {
    bool any = false;
    for (int from = 0; from < n_; from += window_nodes / 2) {
      const int to = std::min(from + window_nodes, n_);
      std::vector<int> window(order_.begin() + from, order_.begin() + to);
      std::vector<int> best = window;
      double least = length_between(from - 1, window, to);
      const double before = least;
      best_order(from - 1, window, to, best, least);
      if (!helps(before, least)) continue;
      std::copy(best.begin(), best.end(), order_.begin() + from);
      any = true;
    }
    return any;
  }

  double length_between(int before, const std::vector<int>& window, int after) const {
    return (before >= 0 ? weight(at(before), window.front()) : 0) + path_length(weights_, n_, window) +
           (after < n_ ? weight(window.back(), at(after)) : 0);
  }

  // A dynamic programme over subsets of the window, from its left neighbour to its right one.
  void best_order(int before, const std::vector<int>& window, int after, std::vector<int>& order, double& least) {
    const auto size = window.size();
    const std::size_t subsets = std::size_t{1} << size;
    std::vector<double> table(subsets * size, infinity);
    std::vector<int> from(subsets * size, -1);
    for (std::size_t i = 0; i < size; ++i)
      table[(std::size_t{1} << i) * size + i] = before >= 0 ? weight(at(before), window[i]) : 0;
    for (std::size_t subset = 1; subset < subsets; ++subset)
      for (std::size_t last = 0; last < size; ++last) {
        const double reached = table[subset * size + last];
        if (reached == infinity) continue;
        for (std::size_t next = 0; next < size; ++next) {
          if (subset >> next & 1) continue;
          const std::size_t place = (subset | std::size_t{1} << next) * size + next;
          if (const double length = reached + weight(window[last], window[next]); length < table[place]) {
            table[place] = length;
            from[place] = static_cast<int>(last);
          }
        }
      }
    int end = -1;
    for (std::size_t last = 0; last < size; ++last) {
      const double length = table[(subsets - 1) * size + last] + (after < n_ ? weight(window[last], at(after)) : 0);
      if (length < least) {
        least = length;
        end = static_cast<int>(last);
      }
    }
    if (end < 0) return;
    order.clear();
    for (std::size_t subset = subsets - 1; end >= 0;) {
      order.push_back(window[static_cast<std::size_t>(end)]);
      const int previous = from[subset * size + static_cast<std::size_t>(end)];
      subset &= ~(std::size_t{1} << end);
      end = previous;
    }
    std::reverse(order.begin(), order.end());
  }

  std::span<const double> weights_;
  int n_;
  std::vector<int> order_;
};

}  // namespace

OpenPath local_path(std::span<const double> weights, int n) {
  MOTLEY_CHECK(n > 0 && weights.size() == static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
  LocalPath search(weights, n);
  std::vector<OpenPath> starts;
  for (int start = 0; start < n; ++start) {
    OpenPath path{0, search.greedy(start)};
    path.length = path_length(weights, n, path.order);
    starts.push_back(std::move(path));
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const OpenPath& a, const OpenPath& b) { return a.length < b.length; });
  starts.resize(std::min(starts.size(), improved_starts));
  for (OpenPath& path : starts) {
    search.improve(path.order);
    path.length = path_length(weights, n, path.order);
  }
  return *std::min_element(starts.begin(), starts.end(),
                           [](const OpenPath& a, const OpenPath& b) { return a.length < b.length; });
}

OpenPath improved_path(std::span<const double> weights, int n, std::vector<int> order) {
  MOTLEY_CHECK(order.size() == static_cast<std::size_t>(n));
  LocalPath(weights, n).improve(order);
  const double length = path_length(weights, n, order);
  return {length, std::move(order)};
}

OpenPath shortest_open_path(std::span<const double> weights, int n) {
  if (n > exact_path_nodes) return local_path(weights, n);
  HeldKarp exact;
  const double length = exact.solve(weights, n);
  return {length, exact.order()};
}

}  // namespace motley
