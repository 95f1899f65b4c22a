// Hierarchies along the network's tree, by coordinate descent over kinds of switches.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "motley/base/index.hpp"
#include "motley/planner/collective/candidates.hpp"
#include "motley/planner/collective/factors.hpp"

namespace motley {
namespace {

constexpr std::size_t transfer_limit = 3'000'000;
constexpr std::size_t most_factorisations = 600;

// Switches with as many branches at the same height get the same policy.
struct SwitchKind {
  int height = 0, branches = 0;
  auto operator<=>(const SwitchKind&) const = default;
};

struct Kinds {
  std::map<SwitchKind, std::vector<int>> nodes;

  explicit Kinds(const CollectiveNetwork& network) {
    const auto below = network.ranks_below();
    std::vector<int> height(network.nodes.size(), 0);
    for (std::size_t node = network.nodes.size(); node-- > 0;) {
      int branches = 0;
      for (const int child : network.nodes[node].children) {
        if (below[at(child)] == 0) continue;
        ++branches;
        height[node] = std::max(height[node], height[at(child)] + 1);
      }
      if (branches >= 2) nodes[{height[node], branches}].push_back(static_cast<int>(node));
    }
    for (auto& [kind, list] : nodes) std::reverse(list.begin(), list.end());
  }
};

std::string factors_name(const NodePolicy& policy) {
  std::string name = policy.pattern == GroupPattern::ring ? "ring"
                     : policy.factors.size() < 2          ? "direct"
                                                          : fmt::format("{}", fmt::join(policy.factors, " x "));
  if (policy.owners > 0) name += fmt::format(" to {}", policy.owners);
  return name;
}

class HierarchySearch {
 public:
  HierarchySearch(const CollectiveProblem& problem, RecipeContest& contest)
      : problem_(problem), contest_(contest), kinds_(problem.network), below_(problem.network.ranks_below()) {
    const auto capacity = problem.network.capacities();
    unlike_ways_ =
        std::any_of(capacity.begin(), capacity.end(), [](const LinkCapacity& link) { return link.up != link.down; });
  }

  void run() {
    std::map<SwitchKind, NodePolicy> chosen;
    std::map<SwitchKind, std::vector<NodePolicy>> choices;
    for (const auto& [kind, nodes] : kinds_.nodes) {
      choices[kind] = shortlist(nodes[0], kind.branches);
      chosen[kind] = choices[kind][0];
    }
    rule_ = ShareRule::fastest;
    double best = try_one(chosen);
    if (best == unlimited) {
      rule_ = ShareRule::equal;
      best = try_one(chosen);
    }
    // The descent comes past the same policies again after each change for the better.
    std::set<std::map<SwitchKind, NodePolicy>> tried{chosen};
    for (bool better = true; better && !problem_.expired();) {
      better = false;
      for (const auto& [kind, list] : choices)
        for (const auto& policy : with_owners(kind, list, chosen[kind])) {
          if (problem_.expired()) continue;
          auto changed = chosen;
          changed[kind] = policy;
          if (!tried.insert(changed).second) continue;
          const double seconds = try_one(changed);
          if (seconds >= best * (1 - 1e-9)) continue;
          best = seconds;
          chosen = std::move(changed);
          better = true;
        }
      if (kinds_.nodes.size() < 2) break;
    }
    if (rule_ == ShareRule::equal) return;
    for (const ShareRule other : {ShareRule::spread, ShareRule::equal}) {
      rule_ = other;
      try_one(chosen);
    }
  }

 private:
  static constexpr double unlimited = std::numeric_limits<double>::infinity();

  std::vector<NodePolicy> by_node(const std::map<SwitchKind, NodePolicy>& chosen) const {
    std::vector<NodePolicy> policies(problem_.network.nodes.size());
    for (const auto& [kind, policy] : chosen)
      for (const int node : kinds_.nodes.at(kind)) policies[at(node)] = policy;
    return policies;
  }

  std::string layout(const std::map<SwitchKind, NodePolicy>& chosen) const {
    if (chosen.empty()) return "alone";
    std::string text;
    for (const auto& [kind, policy] : chosen) {
      const auto& nodes = kinds_.nodes.at(kind);
      const std::string& name = problem_.network.nodes[at(nodes[0])].name;
      const std::string where = nodes.size() == 1 ? name : fmt::format("{} and {} equal ones", name, nodes.size() - 1);
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", where, factors_name(policy));
    }
    return text;
  }

  double try_one(const std::map<SwitchKind, NodePolicy>& chosen) {
    const auto policies = by_node(chosen);
    const ShareRule rule = problem_.of_blocks() ? ShareRule::equal : rule_;
    const auto whole = static_cast<double>(problem_.bytes);
    if (rule != ShareRule::equal && unlike_ways_) return try_halves(chosen, policies, rule);
    const auto tree = share_tree(problem_.network, policies, rule, ShareWay::slower, whole);
    const CollectiveOperation operation = problem_.operation;
    // The busiest link alone takes longer than all of the best plan.
    const bool hopeless =
        operation == CollectiveOperation::all_reduce && contest_.best() && tree.steady_s > contest_.best()->seconds;
    if (hopeless) return unlimited;
    const auto alignment = problem_.options.alignment;
    const RoundsFor along_shares = [tree, operation, alignment](std::int64_t bytes) {
      auto rounds = share_rounds(tree, bytes, alignment, transfer_limit);
      if (!rounds || operation == CollectiveOperation::reduce_scatter) return rounds;
      auto back = mirrored(*rounds);
      if (operation == CollectiveOperation::all_gather) return std::optional(std::move(back));
      rounds->insert(rounds->end(), back.begin(), back.end());
      return rounds;
    };
    const auto timed = [&](RoundsFor rounds) {
      return tree.in_step ? rounds : settled(std::move(rounds), problem_.network.ranks());
    };
    auto scored = contest_.score({layout(chosen), timed(along_shares)});
    if (!scored) return unlimited;
    if (problem_.of_blocks()) scored->recipe.rounds = timed(along_blocks(group_of(tree)));
    const double seconds = scored->seconds;
    contest_.keep(std::move(*scored));
    return seconds;
  }

  // Where links differ by direction, each half has shares of its own.
  double try_halves(const std::map<SwitchKind, NodePolicy>& chosen, const std::vector<NodePolicy>& policies,
                    ShareRule rule) {
    const auto whole = static_cast<double>(problem_.bytes);
    const auto reducing = share_tree(problem_.network, policies, rule, ShareWay::down, whole);
    const auto spreading = share_tree(problem_.network, policies, rule, ShareWay::up, whole);
    const RoundsFor rounds = [reducing, spreading, alignment = problem_.options.alignment](std::int64_t bytes) {
      return share_rounds(reducing, spreading, bytes, alignment, transfer_limit);
    };
    auto scored = contest_.score({layout(chosen), settled(rounds, problem_.network.ranks())});
    if (!scored) return unlimited;
    const double seconds = scored->seconds;
    contest_.keep(std::move(*scored));
    return seconds;
  }

  // Owners that are given: each rank's block lies where it must.
  RoundsFor along_blocks(CollectiveGroup group) const {
    const auto block_of = problem_.block_of;
    const bool gathers = problem_.operation == CollectiveOperation::all_gather;
    return [group = std::move(group), block_of, gathers](std::int64_t bytes) {
      const std::int64_t length = bytes / static_cast<std::int64_t>(block_of.size());
      std::vector<CollectiveBlock> blocks;
      for (std::size_t rank = 0; rank < block_of.size(); ++rank)
        blocks.push_back({static_cast<int>(rank), block_of[rank] * length, (block_of[rank] + 1) * length});
      std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      const auto rounds = reduce_scatter_rounds(group, blocks);
      return std::optional(gathers ? mirrored(rounds) : rounds);
    };
  }

  // What a switch costs by the closed forms, its branches taken as alike: enough to leave out what is hopeless.
  GenModelConstants constants(int node) const {
    const auto& network = problem_.network;
    int child = -1;
    for (const int one : network.nodes[at(node)].children)
      if (child < 0 && below_[at(one)] > 0) child = one;
    int leaf = child;
    double latency = 0;
    const auto capacity = network.capacities();
    const double ranks = below_[at(child)];
    GenModelConstants result;
    for (double share = 1.0; leaf >= 0;) {
      const auto& own = network.nodes[at(leaf)];
      share = below_[at(leaf)] / ranks;
      result.beta_s_per_byte =
          std::max(result.beta_s_per_byte, share / std::min(capacity[at(leaf)].up, capacity[at(leaf)].down));
      if (own.down >= 0) {
        const auto& port = network.ports[at(own.down)];
        latency += 2 * port.latency_s;
        if (port.incast_threshold > 0) {
          result.threshold = port.incast_threshold;
          result.epsilon_s_per_byte = std::max(result.epsilon_s_per_byte, share * port.incast_s_per_byte);
        }
      }
      if (own.rank >= 0) {
        result.gamma_s_per_byte = network.reduction[at(own.rank)].add_s_per_byte * share;
        result.delta_s_per_byte = network.reduction[at(own.rank)].access_s_per_byte * share;
        break;
      }
      int next = -1;
      for (const int one : own.children)
        if (next < 0 && below_[at(one)] > 0) next = one;
      leaf = next;
    }
    result.alpha_s = latency;
    return result;
  }

  double pipelined_guess(const PlanCounts& counts, const GenModelConstants& c, double messages) const {
    const auto bytes = static_cast<double>(problem_.bytes);
    const double link = bytes * (counts.moved * c.beta_s_per_byte + counts.excess * c.epsilon_s_per_byte);
    const double rank = bytes * (counts.added * c.gamma_s_per_byte + counts.accessed * c.delta_s_per_byte);
    const double rest = std::min(link, rank);
    const double cut = 2 * std::sqrt(rest * messages * problem_.options.cost.message_s);
    return counts.rounds * c.alpha_s + std::max(link, rank) + std::min(rest, cut);
  }

  std::vector<NodePolicy> shortlist(int node, int branches) const {
    const GenModelConstants c = constants(node);
    const auto bytes = static_cast<double>(problem_.bytes);
    struct Choice {
      NodePolicy policy;
      double rounds = 0, pipelined = 0;
    };
    std::vector<Choice> choices;
    const auto add = [&](NodePolicy policy, const PlanCounts& counts, double messages) {
      choices.push_back({std::move(policy), genmodel_seconds(counts, c, bytes), pipelined_guess(counts, c, messages)});
    };
    for (const auto& factors : ordered_factorisations(branches, most_factorisations)) {
      double messages = 0;
      for (const int factor : factors) messages += 4 * (factor - 1);
      NodePolicy policy;
      policy.factors = factors;
      add(std::move(policy), factored_counts(factors, c.threshold), messages);
    }
    if (branches > 2 && branches <= 64) {
      NodePolicy policy;
      policy.pattern = GroupPattern::ring;
      add(std::move(policy), ring_counts(branches), 4 * (branches - 1));
    }
    const bool pipelined = problem_.options.objective == CollectiveObjective::pipelined;
    std::vector<bool> kept(choices.size(), false);
    std::vector<NodePolicy> list;
    const auto keep = [&](std::size_t index) {
      if (!kept[index]) list.push_back(choices[index].policy);
      kept[index] = true;
    };
    const auto keep_best = [&](std::size_t count, double Choice::*score) {
      std::vector<std::size_t> order(choices.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return choices[a].*score < choices[b].*score; });
      for (std::size_t i = 0; i < std::min(count, order.size()); ++i) keep(order[i]);
    };
    // Unlike branches are not what the closed forms assume: small switches try everything.
    const std::size_t most = branches <= 6 ? 8 : problem_.network.ranks() > 1000 ? 3 : 4;
    if (pipelined) keep_best(most, &Choice::pipelined);
    keep_best(pipelined ? 2 : most, &Choice::rounds);
    if (branches <= 32) keep(0);  // direct: the shortest factorisation stands first
    return list;
  }

  // Ranks right below a switch that has an uplink may leave what goes up it to a few of them.
  std::vector<NodePolicy> with_owners(const SwitchKind& kind, const std::vector<NodePolicy>& list,
                                      const NodePolicy& chosen) const {
    std::vector<NodePolicy> all = list;
    const bool has_uplink = problem_.network.nodes[at(kinds_.nodes.at(kind)[0])].parent >= 0;
    if (kind.height != 1 || !has_uplink || problem_.of_blocks() || chosen.pattern == GroupPattern::ring) return all;
    for (const int owners : {1, 2, kind.branches / 4, kind.branches / 2}) {
      if (owners < 1 || owners >= kind.branches) continue;
      NodePolicy few = chosen;
      few.owners = owners;
      if (std::find(all.begin(), all.end(), few) == all.end()) all.push_back(few);
    }
    NodePolicy everybody = chosen;
    everybody.owners = 0;
    if (std::find(all.begin(), all.end(), everybody) == all.end()) all.push_back(everybody);
    return all;
  }

  const CollectiveProblem& problem_;
  RecipeContest& contest_;
  Kinds kinds_;
  std::vector<int> below_;
  bool unlike_ways_ = false;
  ShareRule rule_ = ShareRule::fastest;
};

}  // namespace

void enter_hierarchies(const CollectiveProblem& problem, RecipeContest& contest) {
  HierarchySearch(problem, contest).run();
}

}  // namespace motley
