#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <optional>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/planner/serve/placement/placement.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_states = 4000;
constexpr std::size_t most_choices = 500;
constexpr double precision = 1e-4;  // of the greatest flow that covers all layers

// Nodes that are alike, dealt out in bundles so that the table of the programme stays small.
struct NodeKind {
  std::vector<int> nodes;
  std::vector<double> tokens_per_s;  // of a bundle
  int bundles = 0;
  int bundle_size = 1;
  int place = 0;
};

enum class KindBy { rate_and_place, rate };

// Lists cut to what fits at both ends serve where the looser lists leave the ends without room.
enum class EndRule { loose, strict };

std::vector<NodeKind> node_kinds(const PlacementProblem& problem, KindBy by, EndRule rule) {
  std::map<std::pair<std::vector<double>, int>, NodeKind> found;
  for (int i = 0; i < std::ssize(problem.nodes); ++i) {
    const PlacementNode& node = problem.nodes[i];
    std::vector<double> rates = node.tokens_per_s;
    const std::int64_t most = node.most_layers[rule == EndRule::strict ? 3 : 0];
    if (std::ssize(rates) > most) rates.resize(most);
    if (rates.empty()) continue;
    NodeKind& kind = found[{rates, by == KindBy::rate ? 0 : node.place}];
    kind.tokens_per_s = rates;
    kind.place = node.place;
    kind.nodes.push_back(i);
  }
  std::vector<NodeKind> kinds;
  for (auto& [key, kind] : found) kinds.push_back(std::move(kind));
  return kinds;
}

double states(const std::vector<NodeKind>& kinds) {
  double product = 1;
  for (const auto& kind : kinds) product *= kind.bundles + 1;
  return product;
}

void bundle(std::vector<NodeKind>& kinds) {
  for (auto& kind : kinds) kind.bundles = static_cast<int>(kind.nodes.size());
  while (states(kinds) > most_states) {
    NodeKind& largest = *std::max_element(kinds.begin(), kinds.end(),
                                          [](const auto& a, const auto& b) { return a.bundles < b.bundles; });
    if (largest.bundles <= 1) break;
    ++largest.bundle_size;
    largest.bundles = static_cast<int>(largest.nodes.size()) / largest.bundle_size;
  }
  for (auto& kind : kinds)
    for (double& rate : kind.tokens_per_s) rate *= kind.bundle_size;
}

struct StageChoice {
  std::vector<int> takes;  // bundles of every kind
  std::int64_t layers = 0;
};

// For every least set of bundles that passes the flow on, the most layers it can do so with.
class StageChoices {
 public:
  StageChoices(const std::vector<NodeKind>& kinds, double flow) : kinds_(kinds), flow_(flow), takes_(kinds.size(), 0) {
    std::size_t longest = 0;
    for (const auto& kind : kinds) longest = std::max(longest, kind.tokens_per_s.size());
    for (std::int64_t layers = static_cast<std::int64_t>(longest); layers > 0; --layers) add(layers, 0, 0);
  }
  std::vector<StageChoice> list() const {
    std::vector<StageChoice> choices;
    for (const auto& [takes, layers] : found_) choices.push_back({takes, layers});
    return choices;
  }

 private:
  void add(std::int64_t layers, std::size_t kind, double rate) {
    if (kind == kinds_.size() || found_.size() >= most_choices) return;
    const auto& rates = kinds_[kind].tokens_per_s;
    const double each = layers <= std::ssize(rates) ? rates[layers - 1] : 0;
    for (int taken = 0; taken <= kinds_[kind].bundles; ++taken) {
      takes_[kind] = taken;
      if (rate + taken * each >= flow_) {
        found_.try_emplace(takes_, layers);
        break;
      }
      add(layers, kind + 1, rate + taken * each);
      if (each <= 0) break;
    }
    takes_[kind] = 0;
  }

  const std::vector<NodeKind>& kinds_;
  double flow_;
  std::vector<int> takes_;
  std::map<std::vector<int>, std::int64_t> found_;
};

struct StagePlan {
  std::int64_t layers = 0;  // covered
  std::vector<StageChoice> stages;
};

// Numbers of bundles of every kind, side by side in one word with a spare bit above each, so that one subtraction tells
// whether all suffice.
class PackedCounts {
 public:
  explicit PackedCounts(const std::vector<NodeKind>& kinds) {
    int bit = 0;
    for (const auto& kind : kinds) {
      shift_.push_back(bit);
      bit += std::bit_width(static_cast<unsigned>(kind.bundles));
      spare_ |= std::uint64_t{1} << bit++;
    }
    MOTLEY_CHECK(bit <= 64);  // the product of the counts is at most `most_states`
  }
  std::uint64_t pack(const std::vector<int>& counts) const {
    std::uint64_t word = 0;
    for (std::size_t k = 0; k < counts.size(); ++k) word |= static_cast<std::uint64_t>(counts[k]) << shift_[k];
    return word;
  }
  bool enough(std::uint64_t have, std::uint64_t takes) const { return (((have | spare_) - takes) & spare_) == spare_; }

 private:
  std::vector<int> shift_;
  std::uint64_t spare_ = 0;
};

// The most layers that can be covered if every stage passes on `flow`.
StagePlan cover(const std::vector<NodeKind>& kinds, double flow) {
  const std::vector<StageChoice> choices = StageChoices(kinds, flow).list();
  const PackedCounts counts(kinds);
  std::vector<std::int64_t> digit(kinds.size());
  std::int64_t size = 1;
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    digit[k] = size;
    size *= kinds[k].bundles + 1;
  }
  std::vector<std::uint64_t> takes;
  std::vector<std::int64_t> offset;
  for (const auto& choice : choices) {
    takes.push_back(counts.pack(choice.takes));
    offset.push_back(std::inner_product(choice.takes.begin(), choice.takes.end(), digit.begin(), std::int64_t{0}));
  }
  std::vector<std::int64_t> layers(size, 0);
  std::vector<int> last(size, -1);  // choice; -1: none fits
  std::vector<int> have(kinds.size());
  for (std::int64_t used = 1; used < size; ++used) {
    for (std::size_t k = 0; k < kinds.size(); ++k) have[k] = static_cast<int>(used / digit[k] % (kinds[k].bundles + 1));
    const std::uint64_t packed = counts.pack(have);
    for (std::size_t c = 0; c < choices.size(); ++c) {
      if (!counts.enough(packed, takes[c])) continue;
      const std::int64_t covered = layers[used - offset[c]] + choices[c].layers;
      if (covered <= layers[used]) continue;
      layers[used] = covered;
      last[used] = static_cast<int>(c);
    }
  }
  StagePlan plan{.layers = layers[size - 1], .stages = {}};
  for (std::int64_t used = size - 1; last[used] >= 0;) {
    const int choice = last[used];
    plan.stages.push_back(choices[choice]);
    used -= offset[choice];
  }
  return plan;
}

struct DealtStage {
  std::vector<int> nodes;
  std::int64_t layers = 0;
};

std::vector<DealtStage> deal(const std::vector<NodeKind>& kinds, const StagePlan& plan) {
  std::vector<std::size_t> next(kinds.size(), 0);
  std::vector<DealtStage> stages;
  for (const auto& choice : plan.stages) {
    DealtStage stage{.nodes = {}, .layers = choice.layers};
    for (std::size_t k = 0; k < kinds.size(); ++k)
      for (int i = 0; i < choice.takes[k] * kinds[k].bundle_size; ++i) stage.nodes.push_back(kinds[k].nodes[next[k]++]);
    stages.push_back(std::move(stage));
  }
  return stages;
}

double stage_rate(const PlacementProblem& problem, const DealtStage& stage, std::int64_t layers) {
  double rate = 0;
  for (const int node : stage.nodes) rate += problem.nodes[node].rate(layers);
  return rate;
}

// Takes surplus layers from the stage that is slowest.
void trim(const PlacementProblem& problem, std::vector<DealtStage>& stages) {
  std::int64_t surplus = -problem.layers;
  for (const auto& stage : stages) surplus += stage.layers;
  for (; surplus > 0; --surplus) {
    DealtStage* slowest = nullptr;
    for (auto& stage : stages)
      if (stage.layers > 1 &&
          (!slowest || stage_rate(problem, stage, stage.layers) < stage_rate(problem, *slowest, slowest->layers)))
        slowest = &stage;
    if (slowest)
      --slowest->layers;
    else
      stages.pop_back();
  }
}

// Stages one after another; leftover nodes stay idle. Nothing where the ends do not fit.
std::optional<Placement> lay_out(const PlacementProblem& problem, const std::vector<DealtStage>& stages) {
  Placement placement(problem.nodes.size());
  std::int64_t first = 0;
  for (const auto& stage : stages) {
    for (const int node : stage.nodes) {
      placement[node] = {first, first + stage.layers};
      if (!problem.fits(node, placement[node])) return std::nullopt;
    }
    first += stage.layers;
  }
  return placement;
}

// Places in a row: stages of one place together, those on several places between their neighbours; the widest stages
// of a place at its borders, where links to other places must carry all.
void order_by_place(const PlacementProblem& problem, std::vector<DealtStage>& stages) {
  const auto key = [&](const DealtStage& stage) {
    double sum = 0;
    for (const int node : stage.nodes) sum += problem.nodes[node].place;
    return sum / static_cast<double>(stage.nodes.size());
  };
  std::stable_sort(stages.begin(), stages.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
}

void add_starts(const PlacementProblem& problem, KindBy by, EndRule rule, Instant deadline,
                std::vector<Placement>& starts) {
  std::vector<NodeKind> kinds = node_kinds(problem, by, rule);
  const double bound = placement_bound(problem);
  if (kinds.empty() || bound <= 0) return;
  bundle(kinds);
  if (states(kinds) > most_states) return;
  const auto covers = [&](double flow) { return cover(kinds, flow).layers >= problem.layers; };
  double low = 0, high = bound;
  if (covers(high * (1 - 1e-9))) low = high * (1 - 1e-9);
  while (high > precision * bound && low < high * (1 - precision) && Clock::now() < deadline) {
    const double middle = (low + high) / 2;
    (covers(middle) ? low : high) = middle;
  }
  for (const double share : {1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.5}) {
    if (low <= 0) return;
    std::vector<DealtStage> stages = deal(kinds, cover(kinds, low * share));
    trim(problem, stages);
    order_by_place(problem, stages);
    if (auto placement = lay_out(problem, stages)) starts.push_back(std::move(*placement));
    if (Clock::now() >= deadline) return;
  }
}

}  // namespace

std::vector<PlacedFlow> stage_placements(const PlacementProblem& problem, Instant deadline) {
  std::vector<Placement> found;
  for (const KindBy by : {KindBy::rate, KindBy::rate_and_place})
    for (const EndRule rule : {EndRule::loose, EndRule::strict}) add_starts(problem, by, rule, deadline, found);
  std::vector<PlacedFlow> starts;
  for (auto& placement : found) {
    const bool known = std::any_of(starts.begin(), starts.end(),
                                   [&](const PlacedFlow& start) { return start.placement == placement; });
    if (known) continue;
    const double flow = placement_flow(problem, placement);
    starts.push_back({std::move(placement), flow});
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const PlacedFlow& a, const PlacedFlow& b) { return a.tokens_per_s > b.tokens_per_s; });
  return starts;
}

}  // namespace motley
