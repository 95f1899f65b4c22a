#include "motley/planner/collective/tree_packing.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/index.hpp"
#include "motley/solve/milp.hpp"

namespace motley {
namespace {

struct Halves {
  bool reduces = false, spreads = false;
};

Halves halves_of(CollectiveOperation operation) {
  return {operation == CollectiveOperation::all_reduce || operation == CollectiveOperation::reduce_scatter,
          operation != CollectiveOperation::reduce_scatter};
}

// A tree as a column: seconds that it keeps every port busy if the whole vector went along it.
struct TreeColumn {
  int root = 0;
  bool reduces = false;
  std::vector<int> above;
  std::vector<double> busy_s;
};

class Packing {
 public:
  Packing(const CollectiveNetwork& network, CollectiveOperation operation, int root, double bytes)
      : network_(network),
        operation_(operation),
        halves_(halves_of(operation)),
        bytes_(bytes),
        ranks_(network.ranks()) {
    for (int from = 0; from < ranks_; ++from)
      for (int to = 0; to < ranks_; ++to) paths_.push_back(from == to ? std::vector<int>{} : network.path(from, to));
    if (operation == CollectiveOperation::broadcast)
      roots_ = {root};
    else {
      roots_.resize(at(ranks_));
      std::iota(roots_.begin(), roots_.end(), 0);
    }
    // At first every port at the price of its slowness.
    price_.assign(network.ports.size(), 0);
    for (const auto& port : network.ports) master_price_.push_back(1 / port.bytes_per_s);
    normalise(master_price_);
    steady_price_ = master_price_;
  }

  TreePacking run(const PackingOptions& options) {
    const auto start = Clock::now();
    TreePacking packing;
    for (int pass = 0; pass < options.most_passes; ++pass) {
      // Prices between the master's and those of the best bound: the master's own jump to and back.
      bool grew = false;
      for (const double part : {pass == 0 ? 0.0 : 0.7, 0.0}) {
        for (std::size_t port = 0; port < price_.size(); ++port)
          price_[port] = part * steady_price_[port] + (1 - part) * master_price_[port];
        grew = make_columns() || grew;
        if (bound_ > packing.bound_s) {
          packing.bound_s = bound_;
          steady_price_ = price_;
        }
        if (grew) break;
      }
      if (!grew) break;
      solve();
      packing.steady_s = time_;
      if (time_ <= packing.bound_s * (1 + options.gap)) break;
      if (seconds_since(start) > options.deadline_s) break;
    }
    packing.trees = overlaid();
    return packing;
  }

 private:
  // Least-cost trees of every root under the present prices; also a bound: whatever is packed costs at least as much.
  bool make_columns() {
    std::vector<double> out_of(at(ranks_) * at(ranks_)), into(out_of.size());
    for (int from = 0; from < ranks_; ++from)
      for (int to = 0; to < ranks_; ++to) {
        double cost = 0;
        for (const int port : paths_[at(from) * at(ranks_) + at(to)]) cost += price_[at(port)];
        out_of[at(from) * at(ranks_) + at(to)] = cost;
        into[at(to) * at(ranks_) + at(from)] = cost;
      }
    double capacity = 0;
    for (std::size_t port = 0; port < price_.size(); ++port)
      if (price_[port] > 0) capacity += price_[port] * network_.ports[port].bytes_per_s;
    bool grew = false;
    double least = 0, sum = 0;
    for (const int root : roots_) {
      double cost = 0;
      for (const bool reduces : {true, false}) {
        if (reduces ? !halves_.reduces : !halves_.spreads) continue;
        const auto& costs = reduces ? into : out_of;
        const auto above = least_arborescence(costs, ranks_, root);
        for (int rank = 0; rank < ranks_; ++rank)
          if (above[at(rank)] >= 0) cost += costs[at(above[at(rank)]) * at(ranks_) + at(rank)];
        grew |= add(root, reduces, above);
      }
      least = root == roots_.front() ? cost : std::min(least, cost);
      sum += cost / static_cast<double>(roots_.size());
    }
    bound_ = bytes_ * (free_roots() ? least : sum) / capacity;
    return grew;
  }

  bool free_roots() const { return operation_ == CollectiveOperation::all_reduce; }

  bool add(int root, bool reduces, const std::vector<int>& above) {
    for (const auto& column : columns_)
      if (column.root == root && column.reduces == reduces && column.above == above) return false;
    TreeColumn column{root, reduces, above, std::vector<double>(network_.ports.size(), 0)};
    for (int rank = 0; rank < ranks_; ++rank) {
      const int other = above[at(rank)];
      if (other < 0) continue;
      const int from = reduces ? rank : other, to = reduces ? other : rank;
      for (const int port : paths_[at(from) * at(ranks_) + at(to)])
        column.busy_s[at(port)] += bytes_ / network_.ports[at(port)].bytes_per_s;
    }
    columns_.push_back(std::move(column));
    return true;
  }

  // The least time of the present columns: minimise T, with each port's busy time at most T.
  void solve() {
    double scale = 0;  // seconds; keeps the programme's numbers near 1
    for (const double busy : columns_[0].busy_s) scale = std::max(scale, busy);
    MilpModel model;
    const int time = model.add_column({.cost = 1, .lower = 0, .upper = 1e4});
    for (std::size_t c = 0; c < columns_.size(); ++c) model.add_column({.cost = 0, .lower = 0, .upper = 1});
    for (std::size_t port = 0; port < price_.size(); ++port) {
      MilpRow row{.upper = 0, .entries = {{time, -1}}};
      for (std::size_t c = 0; c < columns_.size(); ++c)
        if (columns_[c].busy_s[port] > 0)
          row.entries.push_back({static_cast<int>(c) + 1, columns_[c].busy_s[port] / scale});
      model.add_row(std::move(row));
    }
    add_balance(model);
    const MilpAnswer answer = solve_milp(model, {.integrality = Integrality::relaxed});
    if (!answer.has_solution()) return;
    time_ = answer.objective * scale;
    share_.assign(answer.values.begin() + 1, answer.values.end());
    for (std::size_t port = 0; port < price_.size(); ++port)
      master_price_[port] = std::max(0.0, -answer.row_duals[port]) / network_.ports[port].bytes_per_s;
    normalise(master_price_);
  }

  // So that all ports together cost 1 in a second.
  void normalise(std::vector<double>& price) const {
    double sum = 0;
    for (std::size_t port = 0; port < price.size(); ++port)
      if (price[port] > 0) sum += price[port] * network_.ports[port].bytes_per_s;
    for (double& one : price) one /= sum > 0 ? sum : 1;
  }

  // As much comes together in a root as is spread from it; all together is the vector.
  void add_balance(MilpModel& model) const {
    for (const int root : roots_) {
      for (const bool reduces : {true, false}) {
        if (free_roots() ? !reduces : (reduces ? !halves_.reduces : !halves_.spreads)) continue;
        const double whole = 1.0 / static_cast<double>(roots_.size());
        MilpRow row{.lower = free_roots() ? 0.0 : whole, .upper = free_roots() ? 0.0 : whole};
        for (std::size_t c = 0; c < columns_.size(); ++c) {
          if (columns_[c].root != root || (!free_roots() && columns_[c].reduces != reduces)) continue;
          row.entries.push_back({static_cast<int>(c) + 1, columns_[c].reduces || !free_roots() ? 1.0 : -1.0});
        }
        model.add_row(std::move(row));
      }
    }
    if (!free_roots()) return;
    MilpRow all{.lower = 1, .upper = 1};
    for (std::size_t c = 0; c < columns_.size(); ++c)
      if (columns_[c].reduces) all.entries.push_back({static_cast<int>(c) + 1, 1.0});
    model.add_row(std::move(all));
  }

  // A root's part of the vector, cut by its reducing trees and by its spreading ones.
  std::vector<PackedTree> overlaid() const {
    constexpr double nothing = 1e-7;
    std::vector<PackedTree> trees;
    for (const int root : roots_) {
      std::vector<std::pair<double, const TreeColumn*>> lists[2];
      for (std::size_t c = 0; c < share_.size(); ++c)
        if (columns_[c].root == root && share_[c] > nothing)
          lists[columns_[c].reduces ? 0 : 1].push_back({share_[c], &columns_[c]});
      if (!halves_.reduces || !halves_.spreads) {
        for (const auto& [share, column] : lists[halves_.reduces ? 0 : 1])
          trees.push_back({share, root, halves_.reduces ? column->above : std::vector<int>{},
                           halves_.spreads ? column->above : std::vector<int>{}});
        continue;
      }
      std::size_t a = 0, b = 0;
      while (a < lists[0].size() && b < lists[1].size()) {
        const double share = std::min(lists[0][a].first, lists[1][b].first);
        if (share > nothing) trees.push_back({share, root, lists[0][a].second->above, lists[1][b].second->above});
        if ((lists[0][a].first -= share) <= nothing) ++a;
        if ((lists[1][b].first -= share) <= nothing) ++b;
      }
    }
    return trees;
  }

  const CollectiveNetwork& network_;
  CollectiveOperation operation_;
  Halves halves_;
  double bytes_;
  int ranks_;
  std::vector<int> roots_;
  std::vector<std::vector<int>> paths_;
  std::vector<TreeColumn> columns_;
  std::vector<double> price_;  // of a byte through each port: those in use, the master's, those of the best bound
  std::vector<double> master_price_, steady_price_;
  std::vector<double> share_;  // of the columns
  double time_ = 0, bound_ = 0;
};

void append(std::vector<CollectiveRound>& rounds, const std::vector<CollectiveRound>& added, std::size_t first) {
  if (rounds.size() < first + added.size()) rounds.resize(first + added.size());
  for (std::size_t round = 0; round < added.size(); ++round)
    rounds[first + round].insert(rounds[first + round].end(), added[round].begin(), added[round].end());
}

std::vector<CollectiveRound> reducing(const std::vector<int>& to, std::int64_t first, std::int64_t last) {
  auto rounds = mirrored(broadcast_rounds(to, first, last));
  for (auto& round : rounds)
    for (auto& transfer : round) transfer.kind = CollectiveStepKind::reduce;
  return rounds;
}

}  // namespace

TreePacking pack_trees(const CollectiveNetwork& network, CollectiveOperation operation, int root, double bytes,
                       const PackingOptions& options) {
  MOTLEY_CHECK(network.ranks() >= 2);
  return Packing(network, operation, root, bytes).run(options);
}

std::vector<CollectiveRound> packed_rounds(const TreePacking& packing, CollectiveOperation operation,
                                           const std::vector<int>& block_of, std::int64_t bytes,
                                           std::int64_t alignment) {
  const bool blocks = operation == CollectiveOperation::reduce_scatter || operation == CollectiveOperation::all_gather;
  std::vector<CollectiveRound> up, down;
  std::map<int, std::vector<const PackedTree*>> by_root;
  for (const auto& tree : packing.trees) by_root[blocks ? tree.root : 0].push_back(&tree);
  for (const auto& [root, trees] : by_root) {
    const std::int64_t length = blocks ? bytes / static_cast<std::int64_t>(block_of.size()) : bytes;
    const std::int64_t begin = blocks ? block_of[at(root)] * length : 0;
    std::vector<double> weights;
    for (const auto* tree : trees) weights.push_back(tree->share);
    const auto parts = share_blocks(length, static_cast<int>(trees.size()), weights, alignment);
    for (std::size_t t = 0; t < trees.size(); ++t) {
      const std::int64_t first = begin + parts[t].first, last = begin + parts[t].last;
      if (first == last) continue;
      // Reductions end together, so that the second half can begin for all.
      const auto reduce =
          trees[t]->reduce_to.empty() ? std::vector<CollectiveRound>{} : reducing(trees[t]->reduce_to, first, last);
      append(up, reduce, 0);
      if (!trees[t]->receives_from.empty()) append(down, broadcast_rounds(trees[t]->receives_from, first, last), 0);
    }
  }
  up.insert(up.end(), down.begin(), down.end());
  return up;
}

}  // namespace motley
