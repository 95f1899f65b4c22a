// Annealing over chains of stages: an ordered partition of the nodes. Layers follow from the partition (the least rate
// of any stage as large as can be), so one move rebalances all of them; the value is the true flow, links included.
#include <numeric>
#include <queue>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/planner/serve/placement/placement_search.hpp"

namespace motley {
namespace {

using Stages = std::vector<std::vector<int>>;  // nodes of each, first stage first; the last entry: idle nodes

// What a border lets through counts a little in addition to the flow, so that a step towards a wider border shows
// before the last narrow one is gone.
constexpr double border_weight = 0.03;

Stages stages_of(const PlacementProblem& problem, const Placement& placement) {
  std::vector<int> order(placement.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::pair(placement[a].first, placement[a].end) < std::pair(placement[b].first, placement[b].end);
  });
  Stages stages;
  std::vector<int> idle;
  LayerRange before;
  for (const int node : order) {
    if (placement[node].size() == 0) {
      idle.push_back(node);
      continue;
    }
    if (stages.empty() || placement[node] != before) stages.emplace_back();
    stages.back().push_back(node);
    before = placement[node];
  }
  if (stages.empty())  // no start: every node by itself
    for (; !idle.empty() && std::ssize(stages) < problem.layers; idle.pop_back()) stages.push_back({idle.back()});
  stages.push_back(std::move(idle));
  return stages;
}

class StageAnnealing {
 public:
  StageAnnealing(const PlacementProblem& problem, const Placement& start, RandomStream random, double bound)
      : problem_(problem), flow_(problem), random_(random), bound_(bound), stages_(stages_of(problem, start)) {
    best_.placement = start;
    best_.tokens_per_s = placement_flow(problem, start);
    value_ = evaluate(stages_);
  }

  void run(const AnnealingBudget& budget) {
    const double scale = best_.tokens_per_s > 0 ? best_.tokens_per_s : bound_ / 2;
    for (std::int64_t step = 0; step < budget.moves && best_.tokens_per_s < bound_ * bound_reached; ++step) {
      if (budget.stop()) return;
      ++best_.evaluated;
      Stages changed = stages_;
      if (!propose(changed)) continue;
      const double value = evaluate(changed);
      const double temperature =
          annealing_temperature(budget.hottest * scale, static_cast<double>(step) / static_cast<double>(budget.moves));
      if (value < value_ && !random_.chance(std::exp((value - value_) / temperature))) continue;
      value_ = value;
      stages_ = std::move(changed);
    }
  }

  const Annealed& best() const { return best_; }

 private:
  // ---- moves: false where there is nothing to move ----

  bool propose(Stages& stages) {
    switch (random_.below(8)) {
      case 0: return swap_nodes(stages);
      case 1: return swap_stages(stages);
      case 2: return move_stage(stages);
      case 3: return new_stage(stages);
      case 4: return merge(stages);
      default: return move_node(stages);
    }
  }

  static std::int64_t chain_length(const Stages& stages) { return std::ssize(stages) - 1; }

  int take_any(Stages& stages) {
    std::int64_t index = random_.below(std::ssize(problem_.nodes));
    for (auto& stage : stages) {
      if (index < std::ssize(stage)) {
        const int node = stage[index];
        stage.erase(stage.begin() + index);
        return node;
      }
      index -= std::ssize(stage);
    }
    check_failed("every node is in a stage or idle", __FILE__, __LINE__);
  }

  static void drop_empty(Stages& stages) {
    stages.erase(std::remove_if(stages.begin(), stages.end() - 1, [](const auto& stage) { return stage.empty(); }),
                 stages.end() - 1);
  }

  bool move_node(Stages& stages) {
    const int node = take_any(stages);
    // Seldom into idleness.
    const std::int64_t to =
        random_.chance(0.02) ? chain_length(stages) : random_.below(std::max<std::int64_t>(chain_length(stages), 1));
    stages[to].push_back(node);
    drop_empty(stages);
    return true;
  }

  bool new_stage(Stages& stages) {
    const int node = take_any(stages);
    stages.insert(stages.begin() + random_.below(chain_length(stages) + 1), std::vector<int>{node});
    drop_empty(stages);
    return true;
  }

  bool swap_nodes(Stages& stages) {
    const std::int64_t a = random_.below(std::ssize(stages)), b = random_.below(std::ssize(stages));
    if (a == b || stages[a].empty() || stages[b].empty()) return false;
    std::swap(stages[a][random_.below(std::ssize(stages[a]))], stages[b][random_.below(std::ssize(stages[b]))]);
    return true;
  }

  bool swap_stages(Stages& stages) {
    if (chain_length(stages) < 2) return false;
    const std::int64_t a = random_.below(chain_length(stages)), b = random_.below(chain_length(stages));
    std::swap(stages[a], stages[b]);
    return a != b;
  }

  bool move_stage(Stages& stages) {
    if (chain_length(stages) < 2) return false;
    const std::int64_t from = random_.below(chain_length(stages)), to = random_.below(chain_length(stages));
    const auto at = stages.begin();
    if (from < to)
      std::rotate(at + from, at + from + 1, at + to + 1);
    else
      std::rotate(at + to, at + from, at + from + 1);
    return from != to;
  }

  bool merge(Stages& stages) {
    if (chain_length(stages) < 2) return false;
    const std::int64_t a = random_.below(chain_length(stages) - 1);
    stages[a].insert(stages[a].end(), stages[a + 1].begin(), stages[a + 1].end());
    stages.erase(stages.begin() + a + 1);
    return true;
  }

  // ---- value ----

  double rate(const std::vector<int>& stage, std::int64_t layers) const {
    double sum = 0;
    for (const int node : stage) sum += problem_.nodes[node].rate(layers);
    return sum;
  }

  std::int64_t most_layers(const std::vector<int>& stage, bool first, bool last) const {
    std::int64_t most = problem_.layers;
    for (const int node : stage) most = std::min(most, problem_.nodes[node].most((first ? 1 : 0) + (last ? 2 : 0)));
    return most;
  }

  // Layers go one by one to the stage that is fastest with one more. Empty where they do not fit.
  std::vector<std::int64_t> balance(const Stages& stages) const {
    const std::int64_t count = chain_length(stages);
    if (count == 0 || count > problem_.layers) return {};
    std::vector<std::int64_t> layers(count, 1), most(count);
    std::priority_queue<std::pair<double, std::int64_t>> next;
    const auto offer = [&](std::int64_t s) {
      if (layers[s] < most[s]) next.push({rate(stages[s], layers[s] + 1), -s});
    };
    for (std::int64_t s = 0; s < count; ++s) {
      most[s] = most_layers(stages[s], s == 0, s + 1 == count);
      if (most[s] < 1) return {};
      offer(s);
    }
    for (std::int64_t placed = count; placed < problem_.layers; ++placed) {
      if (next.empty()) return {};
      const std::int64_t s = -next.top().second;
      next.pop();
      ++layers[s];
      offer(s);
    }
    return layers;
  }

  double link(int from, int to) const { return problem_.link[problem_.nodes[from].place][problem_.nodes[to].place]; }

  // At most what the links between two stages let through, judged node by node from either side.
  double border(const std::vector<int>& from, const std::vector<int>& to) const {
    double out = 0, in = 0;
    for (const int a : from) {
      double sum = 0;
      for (const int b : to) sum += link(a, b);
      out += std::min(sum, problem_.nodes[a].rate(flow_.placement()[a].size()));
    }
    for (const int b : to) {
      double sum = 0;
      for (const int a : from) sum += link(a, b);
      in += std::min(sum, problem_.nodes[b].rate(flow_.placement()[b].size()));
    }
    return std::min({in, out, bound_});
  }

  // The flow and the borders; keeps the best flow seen.
  double evaluate(const Stages& stages) {
    const std::vector<std::int64_t> layers = balance(stages);
    if (layers.empty()) return 0;
    Placement placement(problem_.nodes.size());
    std::int64_t first = 0;
    for (std::int64_t s = 0; s < std::ssize(layers); ++s) {
      for (const int node : stages[s]) placement[node] = {first, first + layers[s]};
      first += layers[s];
    }
    flow_.place(placement);
    const double flow = flow_.maximise();
    if (flow > best_.tokens_per_s) {
      best_.tokens_per_s = flow;
      best_.placement = flow_.placement();
    }
    double borders = 0;
    for (std::int64_t s = 0; s + 1 < std::ssize(layers); ++s) borders += border(stages[s], stages[s + 1]);
    return flow + border_weight * borders;
  }

  const PlacementProblem& problem_;
  PlacementFlow flow_;
  RandomStream random_;
  double bound_;
  Stages stages_;
  double value_ = 0;
  Annealed best_;
};

}  // namespace

Annealed anneal_stages(const PlacementProblem& problem, const Placement& start, RandomStream random,
                       const AnnealingBudget& budget) {
  StageAnnealing annealing(problem, start, random, budget.bound);
  annealing.run(budget);
  return annealing.best();
}

}  // namespace motley
