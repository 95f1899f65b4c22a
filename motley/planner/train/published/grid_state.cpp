#include "motley/planner/train/published/grid_state.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "motley/base/random.hpp"

namespace motley {
namespace {

constexpr int exact_stages = 9;  // beyond, the order of the stages is improved, not solved, at every step
constexpr std::size_t cache_entries = std::size_t{1} << 17;

bool same_links(const DtfmPairs& pairs, int a, int b) {
  const auto n = static_cast<std::size_t>(pairs.devices);
  const auto row_a = static_cast<std::size_t>(a) * n, row_b = static_cast<std::size_t>(b) * n;
  for (std::size_t peer = 0; peer < n; ++peer)
    if (static_cast<int>(peer) != a && static_cast<int>(peer) != b &&
        (pairs.sync_s[row_a + peer] != pairs.sync_s[row_b + peer] ||
         pairs.hop_s[row_a + peer] != pairs.hop_s[row_b + peer]))
      return false;
  return true;
}

// Spreads what differs by little over all bits (the finisher of splitmix64).
std::uint64_t mixed(std::uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

}  // namespace

GridClasses grid_classes(const DtfmPairs& pairs) {
  GridClasses classes;
  for (int device = 0; device < pairs.devices; ++device) {
    const auto like = std::find_if(classes.devices.begin(), classes.devices.end(),
                                   [&](const auto& members) { return same_links(pairs, members.front(), device); });
    if (like == classes.devices.end())
      classes.devices.push_back({device});
    else
      like->push_back(device);
  }
  const int count = classes.count();
  for (int a = 0; a < count; ++a)
    for (int b = 0; b < count; ++b) {
      const auto& of_a = classes.devices[static_cast<std::size_t>(a)];
      const auto& of_b = classes.devices[static_cast<std::size_t>(b)];
      const int from = of_a.front(), to = a != b ? of_b.front() : of_b.back();  // the same device in a class of one
      const auto at = static_cast<std::size_t>(from * pairs.devices + to);
      classes.sync_s.push_back(pairs.sync_s[at]);
      classes.hop_s.push_back(pairs.hop_s[at]);
      classes.by_hop.emplace_back(a, b);
    }
  std::stable_sort(classes.by_hop.begin(), classes.by_hop.end(), [&](const auto& x, const auto& y) {
    return classes.hop_s[classes.at(x.first, x.second)] < classes.hop_s[classes.at(y.first, y.second)];
  });
  return classes;
}

GridState::GridState(const GridProblem& problem, const GridClasses& classes)
    : problem_(problem), classes_(classes), stages_(problem.stages), cache_(cache_entries) {
  for (int k = 0; k < classes.count(); ++k) marks_.push_back(mixed(static_cast<std::uint64_t>(k) + 1));
  least_hop_ = std::numeric_limits<double>::infinity();
  for (int a = 0; a < classes.count(); ++a)
    for (int b = 0; b < classes.count(); ++b)
      if (a != b || classes.devices[static_cast<std::size_t>(a)].size() > 1)
        least_hop_ = std::min(least_hop_, classes.hop_s[classes.at(a, b)]);
}

double GridState::sync_of(const Counts& part) const {
  double worst = 0;
  for (int a = 0; a < classes_.count(); ++a) {
    if (part[static_cast<std::size_t>(a)] == 0) continue;
    double sum = -classes_.sync_s[classes_.at(a, a)];
    for (int b = 0; b < classes_.count(); ++b)
      sum += static_cast<double>(part[static_cast<std::size_t>(b)]) * classes_.sync_s[classes_.at(a, b)];
    worst = std::max(worst, sum);
  }
  return worst;
}

std::uint64_t GridState::key_of(const Counts& part) const {
  std::uint64_t key = 0;
  for (std::size_t k = 0; k < part.size(); ++k) key += static_cast<std::uint64_t>(part[k]) * marks_[k];
  return key;
}

const HopWeights* GridState::known_hop(std::uint64_t key) const {
  const Cached& entry = cache_[key % cache_entries];
  return entry.key == key ? &entry.hop : nullptr;
}

// No matching does better: every device needs a partner.
double GridState::least_bottleneck(const Counts& a, const Counts& b) {
  const auto classes = static_cast<std::size_t>(classes_.count());
  present_.clear();
  for (std::size_t y = 0; y < classes; ++y)
    if (b[y] != 0) present_.push_back(y);
  // The largest of all rows' least lengths, and of all columns'.
  least_of_column_.assign(present_.size(), std::numeric_limits<double>::infinity());
  double most = 0;
  for (std::size_t x = 0; x < classes; ++x) {
    if (a[x] == 0) continue;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < present_.size(); ++i) {
      const double length = classes_.hop_s[x * classes + present_[i]];
      least = std::min(least, length);
      least_of_column_[i] = std::min(least_of_column_[i], length);
    }
    most = std::max(most, least);
  }
  for (const double least : least_of_column_) most = std::max(most, least);
  return most;
}

// Pairs of classes that two stages have, shortest hop first.
const std::vector<std::pair<int, int>>& GridState::pairs_by_hop(const Counts& a, const Counts& b) {
  const int classes = classes_.count();
  if (classes <= 2 * problem_.replicas) return classes_.by_hop;  // few more than they have
  pairs_.clear();
  for (int x = 0; x < classes; ++x)
    for (int y = 0; y < classes && a[static_cast<std::size_t>(x)] != 0; ++y)
      if (b[static_cast<std::size_t>(y)] != 0) pairs_.emplace_back(x, y);
  std::sort(pairs_.begin(), pairs_.end(), [&](const auto& p, const auto& q) {
    const double of_p = classes_.hop_s[classes_.at(p.first, p.second)];
    const double of_q = classes_.hop_s[classes_.at(q.first, q.second)];
    return std::tie(of_p, p) < std::tie(of_q, q);
  });
  return pairs_;
}

// Links come in shortest first: the greedy matching takes what it can of each, the other waits until it is perfect.
HopWeights GridState::match(const Counts& a, const Counts& b) {
  const auto classes = static_cast<std::size_t>(classes_.count());
  left_a_ = a;
  left_b_ = b;
  first_a_.resize(classes);
  first_b_.resize(classes);
  for (std::size_t k = 0, at_a = 0, at_b = 0; k < classes; ++k) {
    first_a_[k] = static_cast<int>(std::exchange(at_a, at_a + static_cast<std::size_t>(a[k])));
    first_b_[k] = static_cast<int>(std::exchange(at_b, at_b + static_cast<std::size_t>(b[k])));
  }
  const double least = least_bottleneck(a, b);
  const auto& pairs = pairs_by_hop(a, b);
  matching_.begin(problem_.replicas);
  HopWeights hop;
  double sum = 0;
  int left = problem_.replicas;
  bool perfect = false;
  for (std::size_t i = 0; left > 0 || !perfect; ++i) {
    const auto x = static_cast<std::size_t>(pairs[i].first), y = static_cast<std::size_t>(pairs[i].second);
    if (a[x] == 0 || b[y] == 0) continue;
    const double length = classes_.hop_s[x * classes + y];
    if (const std::int16_t both = std::min(left_a_[x], left_b_[y]); both > 0) {
      left_a_[x] = static_cast<std::int16_t>(left_a_[x] - both);
      left_b_[y] = static_cast<std::int16_t>(left_b_[y] - both);
      sum += both * length;
      left -= both;
    }
    if (perfect) continue;
    if (left == 0 && length <= least) {  // the greedy one is as good as any
      hop.bottleneck_s = length;
      perfect = true;
      continue;
    }
    matching_.add(first_a_[x], first_a_[x] + a[x], first_b_[y], first_b_[y] + b[y]);
    if (length < least) continue;
    hop.bottleneck_s = length;
    perfect = matching_.perfect();
  }
  hop.mean_s = sum / problem_.replicas;
  return hop;
}

void GridState::weigh() {
  weights_.resize(trial_.hops.size());
  for (std::size_t at = 0; at < weights_.size(); ++at)
    weights_[at] = trial_.hops[at].bottleneck_s + slope * trial_.hops[at].mean_s;
}

// The shortest tree: a path is one.
double GridState::path_bound() {
  const auto count = static_cast<std::size_t>(stages_);
  reached_.assign(weights_.begin(), weights_.begin() + stages_);  // from stage 0; below zero: in the tree
  reached_[0] = -1;
  double sum = 0;
  for (std::size_t edges = 1; edges < count; ++edges) {
    std::size_t nearest = 0;
    for (std::size_t s = 1; s < count; ++s)
      if (reached_[s] >= 0 && (nearest == 0 || reached_[s] < reached_[nearest])) nearest = s;
    sum += reached_[nearest];
    reached_[nearest] = -1;
    for (std::size_t s = 1; s < count; ++s) reached_[s] = std::min(reached_[s], weights_[nearest * count + s]);
  }
  return sum;
}

double GridState::shortest_path() {
  if (stages_ <= exact_stages) {
    const double length = path_.solve(weights_, stages_);
    trial_.order = path_.order();
    return length;
  }
  OpenPath path = improved_path(weights_, stages_, order_);
  trial_.order = std::move(path.order);
  return path.length;
}

void GridState::assign(std::vector<Counts> parts) {
  const auto count = static_cast<std::size_t>(stages_);
  parts_ = std::move(parts);
  keys_.assign(parts_.size(), 0);
  sync_.assign(count, 0);
  hops_.assign(count * count, {});
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0);
  std::vector<Change> all;
  for (std::size_t part = 0; part < parts_.size(); ++part) all.push_back({static_cast<int>(part), parts_[part]});
  propose(all, std::numeric_limits<double>::infinity());
  apply();
}

double GridState::propose(const std::vector<Change>& changes, double limit) {
  const auto count = static_cast<std::size_t>(stages_);
  trial_.changes = changes;
  trial_.keys = keys_;
  trial_.sync = sync_;
  for (const Change& change : changes) {
    trial_.keys[static_cast<std::size_t>(change.part)] = key_of(change.counts);
    if (change.part < stages_) trial_.sync[static_cast<std::size_t>(change.part)] = sync_of(change.counts);
  }
  const double worst = *std::max_element(trial_.sync.begin(), trial_.sync.end());
  const double least = worst + (stages_ - 1) * (1 + slope) * least_hop_;
  if (least > limit) return least;

  trial_.hops = hops_;
  const auto counts = [&](std::size_t part) -> const Counts& {
    for (const Change& change : changes)
      if (change.part == static_cast<int>(part)) return change.counts;
    return parts_[part];
  };
  // First what is known and what is surely not less; what is still worth it then in full.
  unknown_.clear();
  for (const Change& change : changes) {
    if (change.part >= stages_) continue;
    const auto a = static_cast<std::size_t>(change.part);
    for (std::size_t b = 0; b < count; ++b) {
      if (b == a) continue;
      const std::uint64_t key = mixed(trial_.keys[a]) + mixed(trial_.keys[b]);  // either way round
      const HopWeights* known = known_hop(key);
      if (!known) unknown_.push_back({a, b, key});
      trial_.hops[a * count + b] = trial_.hops[b * count + a] =
          known ? *known : HopWeights{least_bottleneck(change.counts, counts(b)), least_hop_};
    }
  }
  ++evaluated_;
  const double sum = std::accumulate(trial_.sync.begin(), trial_.sync.end(), 0.0);
  const double sync = worst + slope * sum / stages_;
  weigh();
  if (const double bound = sync + path_bound(); bound > limit) return bound;
  if (!unknown_.empty()) {
    for (const Unknown& pair : unknown_) {
      const HopWeights hop = match(counts(pair.a), counts(pair.b));
      cache_[pair.key % cache_entries] = {pair.key, hop};
      trial_.hops[pair.a * count + pair.b] = trial_.hops[pair.b * count + pair.a] = hop;
    }
    weigh();
    if (const double bound = sync + path_bound(); bound > limit) return bound;
  }
  trial_.objective = sync + shortest_path();
  trial_.cost = worst;
  for (std::size_t s = 0; s + 1 < count; ++s)
    trial_.cost += trial_.hops[static_cast<std::size_t>(trial_.order[s] * stages_ + trial_.order[s + 1])].bottleneck_s;
  return trial_.objective;
}

void GridState::apply() {
  for (const Change& change : trial_.changes) parts_[static_cast<std::size_t>(change.part)] = change.counts;
  std::swap(keys_, trial_.keys);
  std::swap(sync_, trial_.sync);
  std::swap(hops_, trial_.hops);
  std::swap(order_, trial_.order);
  objective_ = trial_.objective;
  cost_ = trial_.cost;
}

DtfmAssignment assignment_of(const GridProblem& problem, const GridClasses& classes, const std::vector<Counts>& parts) {
  std::vector<std::size_t> taken(static_cast<std::size_t>(classes.count()));
  std::vector<std::vector<int>> stages(static_cast<std::size_t>(problem.stages));
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::size_t k = 0; k < taken.size(); ++k)
      for (std::int16_t i = 0; i < parts[s][k]; ++i) stages[s].push_back(classes.devices[k][taken[k]++]);
  return dtfm_assign(problem.pairs, stages);
}

}  // namespace motley
