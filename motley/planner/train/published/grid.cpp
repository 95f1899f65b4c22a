#include "motley/planner/train/published/grid.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "motley/base/clock.hpp"
#include "motley/base/parallel.hpp"
#include "motley/base/random.hpp"
#include "motley/planner/train/published/grid_state.hpp"

namespace motley {
namespace {

constexpr double reached = 1e-9;  // relative: the bound, or no improvement
// Rounds of annealing, each from another random start: moves per pair of stages, and replica. Short ones one after the
// other; where they do not agree the problem is not easy, and long ones follow side by side.
constexpr std::int64_t short_rounds[] = {50, 100, 200};
constexpr std::int64_t long_rounds[] = {1000, 1000, 1000};
constexpr double hottest = 0.02, coldest = 0.003;               // temperatures, as shares of the cost
constexpr std::int64_t moves_between_looks = 64;                // at the clock
constexpr std::uint64_t after_starts = std::uint64_t{1} << 32;  // random starts draw the numbers before it

// Moves between neighbouring assignments. Good ones are made of a few kinds of stages, each repeated: so in addition
// to single devices, stages that are alike change together, and a stage becomes like another.
class GridMoves {
 public:
  GridMoves(const GridProblem& problem, const GridState& state, RandomStream random)
      : problem_(problem),
        state_(state),
        random_(random),
        idle_(problem.pairs.devices - problem.stages * problem.replicas),
        parts_(problem.stages + (idle_ > 0 ? 1 : 0)) {}

  bool possible() const { return parts_ > 1; }
  RandomStream& random() { return random_; }

  // Empty where the move drawn changes nothing or cannot be made.
  const std::vector<GridState::Change>& draw() {
    changes_.clear();
    const int i = random_.below(parts_);
    int j = random_.below(parts_ - 1);
    if (j >= i) ++j;
    const double kind = random_.uniform();
    if (kind < 0.3)
      swap(i, j);
    else if (kind < 0.4)
      swap_alike(i, j);
    else if (kind < 0.7)
      convert(i, j);
    else
      assimilate(i, j);
    return changes_;
  }

 private:
  const Counts& counts(int part) const { return state_.parts()[static_cast<std::size_t>(part)]; }
  int size(int part) const { return part < problem_.stages ? problem_.replicas : idle_; }

  // The class of one of a part's devices.
  int draw_class(int part) {
    int place = random_.below(size(part)), k = 0;
    while (place >= counts(part)[static_cast<std::size_t>(k)]) place -= counts(part)[static_cast<std::size_t>(k++)];
    return k;
  }

  void exchange(int part, int out, int in) {
    changes_.push_back({part, counts(part)});
    --changes_.back().counts[static_cast<std::size_t>(out)];
    ++changes_.back().counts[static_cast<std::size_t>(in)];
  }

  void swap(int i, int j) {
    const int a = draw_class(i), b = draw_class(j);
    if (a == b) return;
    exchange(i, a, b);
    exchange(j, b, a);
  }

  // The same swap between as many stages like i as there are like j.
  void swap_alike(int i, int j) {
    const int a = draw_class(i), b = draw_class(j);
    if (a == b || state_.alike(i, j)) return;
    int from_i = 0, from_j = 0;
    while (from_i < parts_ && from_j < parts_) {
      if (!state_.alike(from_i, i)) {
        ++from_i;
      } else if (!state_.alike(from_j, j)) {
        ++from_j;
      } else {
        exchange(from_i++, a, b);
        exchange(from_j++, b, a);
      }
    }
  }

  // All stages like i give a device of one class for one of another, wherever the others hold those: first stages like
  // j, then any.
  void convert(int i, int j) {
    const int a = draw_class(i), b = draw_class(j);
    if (a == b || i >= problem_.stages || state_.alike(i, j)) return;
    int wanted = 0;
    for (int part = 0; part < problem_.stages; ++part)
      if (state_.alike(part, i)) {
        exchange(part, a, b);
        ++wanted;
      }
    const int first = random_.below(parts_);
    for (const bool like_j : {true, false})
      for (int step = 0; step < parts_ && wanted > 0; ++step) {
        const int part = (first + step) % parts_;
        if (state_.alike(part, i) || state_.alike(part, j) != like_j) continue;
        const int given = std::min<int>(wanted, like_j ? 1 : counts(part)[static_cast<std::size_t>(b)]);
        for (int n = 0; n < given; ++n) {
          if (n == 0)
            exchange(part, b, a);
          else {
            --changes_.back().counts[static_cast<std::size_t>(b)];
            ++changes_.back().counts[static_cast<std::size_t>(a)];
          }
        }
        wanted -= given;
      }
    if (wanted > 0) changes_.clear();
  }

  // Stage i becomes like stage j; what that takes and leaves is a third part's.
  void assimilate(int i, int j) {
    if (i >= problem_.stages || j >= problem_.stages || parts_ < 3) return;
    const int k = random_.below(parts_);
    if (k == i || k == j || state_.alike(i, j)) return;
    Counts third = counts(k);
    for (std::size_t c = 0; c < third.size(); ++c) {
      third[c] = static_cast<std::int16_t>(third[c] + counts(i)[c] - counts(j)[c]);
      if (third[c] < 0) return;
    }
    changes_.push_back({i, counts(j)});
    changes_.push_back({k, std::move(third)});
  }

  const GridProblem& problem_;
  const GridState& state_;
  RandomStream random_;
  int idle_, parts_;
  std::vector<GridState::Change> changes_;
};

class GridSearch {
 public:
  GridSearch(const GridProblem& problem, const GridOptions& options)
      : problem_(problem), options_(options), classes_(grid_classes(problem.pairs)), state_(problem, classes_) {
    outcome_.bound_s = grid_bound(problem);
    outcome_.best.dp_s = std::numeric_limits<double>::infinity();
  }

  GridOutcome run() {
    if (options_.starts == GridStarts::structured)
      for (const auto& start : structured_starts(problem_, classes_)) {
        keep(start);
        if (finished()) break;
      }
    std::size_t agreeing = 0;
    std::uint64_t stream = 0;
    for (const std::int64_t moves : short_rounds) {
      if (finished() || expired()) break;
      const double before = outcome_.best.cost_s();
      const double ended = keep(round(state_, ++stream, moves));
      if (outcome_.best.cost_s() < before * (1 - reached)) agreeing = 0;
      if (ended <= outcome_.best.cost_s() * (1 + reached)) ++agreeing;
    }
    outcome_.evaluated = state_.evaluated();
    if (!finished() && !expired() && agreeing < std::size(short_rounds)) {
      std::vector<std::vector<Counts>> found(std::size(long_rounds));
      std::vector<std::int64_t> evaluated(found.size());
      in_parallel(found.size(), options_.threads, [&](std::size_t i) {
        GridState state(problem_, classes_);
        found[i] = round(state, stream + 1 + i, long_rounds[i]);
        evaluated[i] = state.evaluated();
      });
      for (const auto& parts : found) keep(parts);
      outcome_.evaluated = std::accumulate(evaluated.begin(), evaluated.end(), outcome_.evaluated);
    }
    outcome_.status = finished() ? SearchStatus::optimal : expired() ? SearchStatus::deadline : SearchStatus::gap;
    return std::move(outcome_);
  }

 private:
  bool finished() const { return outcome_.best.cost_s() <= outcome_.bound_s * (1 + reached); }
  bool expired() const { return Clock::now() >= options_.deadline; }

  // Its cost with the order and the pipelines that are best for it; the best is kept.
  double keep(const std::vector<Counts>& parts) {
    DtfmAssignment found = assignment_of(problem_, classes_, parts);
    const double cost = found.cost_s();
    if (cost < outcome_.best.cost_s()) outcome_.best = std::move(found);
    outcome_.trace.push_back(outcome_.best.cost_s());
    return cost;
  }

  // The best that annealing comes to from a random start.
  std::vector<Counts> round(GridState& state, std::uint64_t stream, std::int64_t moves_each) const {
    state.assign(random_start(problem_, classes_, options_.seed, stream));
    GridMoves moves(problem_, state, RandomStream(options_.seed, stream, after_starts));
    if (!moves.possible()) return state.parts();
    const std::int64_t count = moves_each * problem_.stages * std::max(1, problem_.stages - 1) / 2 * problem_.replicas;
    std::vector<Counts> least = state.parts();
    double least_cost = state.cost_s();
    const double enough = outcome_.bound_s * (1 + reached);
    for (std::int64_t move = 0; move < count && least_cost > enough; ++move) {
      if (move % moves_between_looks == 0 && expired()) break;
      const auto& changes = moves.draw();
      if (changes.empty()) continue;
      const double progress = static_cast<double>(move) / static_cast<double>(count);
      const double temperature = state.cost_s() * hottest * std::pow(coldest / hottest, progress);
      const double limit = state.objective_s() - temperature * std::log(1 - moves.random().uniform());
      if (state.propose(changes, limit) > limit) continue;
      state.apply();
      if (state.cost_s() < least_cost) {
        least_cost = state.cost_s();
        least = state.parts();
      }
    }
    return least;
  }

  const GridProblem& problem_;
  const GridOptions& options_;
  GridClasses classes_;
  GridState state_;
  GridOutcome outcome_;
};

// Sizes of the islands that links up to a length make, of every device's island.
std::vector<int> island_sizes(const DtfmPairs& pairs, double longest_s) {
  const int n = pairs.devices;
  std::vector<int> root(static_cast<std::size_t>(n));
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](int device) {
    while (root[static_cast<std::size_t>(device)] != device) device = root[static_cast<std::size_t>(device)];
    return device;
  };
  for (int a = 0; a < n; ++a)
    for (int b = 0; b < a; ++b)
      if (pairs.hop_s[static_cast<std::size_t>(a * n + b)] <= longest_s) {
        const int low = std::min(find(a), find(b)), high = std::max(find(a), find(b));
        root[static_cast<std::size_t>(high)] = low;
      }
  std::vector<int> members(static_cast<std::size_t>(n)), sizes(static_cast<std::size_t>(n));
  for (int device = 0; device < n; ++device) ++members[static_cast<std::size_t>(find(device))];
  for (int device = 0; device < n; ++device)
    sizes[static_cast<std::size_t>(device)] = members[static_cast<std::size_t>(find(device))];
  return sizes;
}

// The least number of hops that are longer than `longest_s`, whatever the assignment.
int least_longer_hops(const GridProblem& problem, double longest_s) {
  const int idle = problem.pairs.devices - problem.stages * problem.replicas;
  std::vector<int> sizes = island_sizes(problem.pairs, longest_s);
  std::sort(sizes.begin(), sizes.end());
  // A run is a row of stages with shorter hops alone: every replica spends it inside one island.
  int longest_run = problem.stages;
  const auto pieces = [&](int length) {
    double sum = 0;  // each island counts once in all: 1 / size for each of its devices
    for (const int size : sizes) sum += static_cast<double>(size / length) / size;
    return static_cast<int>(std::floor(sum + 1e-6));
  };
  while (longest_run > 1 && pieces(longest_run) < problem.replicas) --longest_run;
  // The first `idle` devices may stay out; R devices more make one more stage that an island of their size bounds.
  double runs = 0;
  for (int stage = 0; stage < problem.stages; ++stage) {
    const int size = sizes[static_cast<std::size_t>(idle + stage * problem.replicas)];
    runs += 1.0 / std::min(size, longest_run);
  }
  return static_cast<int>(std::ceil(runs - 1e-9)) - 1;
}

}  // namespace

double grid_bound(const GridProblem& problem) {
  const DtfmPairs& pairs = problem.pairs;
  const int n = pairs.devices, idle = n - problem.stages * problem.replicas;
  // At least one of the idle + 1 devices that are furthest from their nearest peers takes part.
  std::vector<double> sync;
  for (int device = 0; device < n; ++device) {
    std::vector<double> peers;
    for (int peer = 0; peer < n; ++peer)
      if (peer != device) peers.push_back(pairs.sync_s[static_cast<std::size_t>(device * n + peer)]);
    std::sort(peers.begin(), peers.end());
    sync.push_back(std::accumulate(peers.begin(), peers.begin() + (problem.replicas - 1), 0.0));
  }
  std::sort(sync.rbegin(), sync.rend());
  double bound = sync[static_cast<std::size_t>(idle)];
  // A path's length is the integral, over all lengths, of how many of its hops are longer.
  std::vector<double> lengths;
  for (int a = 0; a < n; ++a)
    for (int b = 0; b < a; ++b) lengths.push_back(pairs.hop_s[static_cast<std::size_t>(a * n + b)]);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  constexpr std::size_t most_lengths = 128;  // the rest is left out: a lower bound still
  double before = 0;
  int longer = problem.stages - 1;
  const std::size_t stride = std::max<std::size_t>(1, lengths.size() / most_lengths);
  for (std::size_t i = 0; i < lengths.size() && longer > 0; i += stride) {
    if (i > 0) longer = std::min(longer, least_longer_hops(problem, lengths[i - 1]));
    bound += (lengths[i] - before) * longer;
    before = lengths[i];
  }
  return bound;
}

GridOutcome search_grid(const GridProblem& problem, const GridOptions& options) {
  MOTLEY_CHECK(problem.stages > 0 && problem.replicas > 0 &&
               problem.pairs.devices >= problem.stages * problem.replicas);
  return GridSearch(problem, options).run();
}

}  // namespace motley
