// The shortest open path that visits every node of a complete graph once, ends free (an open travelling-salesman path).
#pragma once

#include <span>
#include <vector>

namespace motley {

struct OpenPath {
  double length = 0;
  std::vector<int> order;
};

// Largest n that shortest_open_path() solves exactly.
constexpr int exact_path_nodes = 13;

// `weights`: n x n, row-major, symmetric, at least 0. Held and Karp's dynamic programme (J. SIAM 1962) up to
// exact_path_nodes, local_path() beyond.
OpenPath shortest_open_path(std::span<const double> weights, int n);

// Greedy paths from every node, the best few improved by turning and moving pieces (2-opt, Or-opt) until none helps,
// and by exact reordering of windows. Deterministic.
OpenPath local_path(std::span<const double> weights, int n);

// The same improvement of one given path.
OpenPath improved_path(std::span<const double> weights, int n, std::vector<int> order);

double path_length(std::span<const double> weights, int n, std::span<const int> order);

// Held and Karp's programme, on halves: a shortest path is two that begin at its ends and meet in its middle, so
// subsets of more than half of the nodes are never asked. Memory is kept between calls.
class HeldKarp {
 public:
  // Length of the shortest path; n <= 20.
  double solve(std::span<const double> weights, int n);
  // Of the last solve().
  const std::vector<int>& order() const { return order_; }

 private:
  double& best(unsigned subset, int last) { return table_[static_cast<std::size_t>(subset) * stride_ + last]; }
  // Appends the path over `subset` that ends at `last`, backwards.
  void trace(unsigned subset, int last);

  std::size_t stride_ = 0;
  std::span<const double> weights_;
  std::vector<double> table_;  // [subset][last node]: shortest path over the subset that ends there
  std::vector<int> order_;
};

}  // namespace motley
