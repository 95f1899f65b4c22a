// The search over replicas: structured starts, then moves of stages between them.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "motley/base/clock.hpp"
#include "motley/base/random.hpp"
#include "motley/planner/train/published/flashflex_layout.hpp"

namespace motley {
namespace {

constexpr std::size_t annealed_starts = 4;
constexpr std::int64_t moves_per_device = 125;  // of one annealing

using UnitCounts = std::vector<int>;        // stages of every unit in one replica
using Candidate = std::vector<UnitCounts>;  // replicas

class LayoutSearch {
 public:
  LayoutSearch(const LayoutProblem& problem, const LayoutTables& tables, const LayoutOptions& options)
      : problem_(problem), tables_(tables), options_(options), random_(options.seed, 0, std::uint64_t{1} << 32) {}

  LayoutOutcome run() {
    outcome_.bound_s = bound();
    std::vector<std::pair<double, Candidate>> starts = structured_starts();
    std::stable_sort(starts.begin(), starts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::set<std::size_t> begun;  // numbers of replicas: one start of each
    for (const auto& [step, start] : starts) {
      if (expired() || begun.size() == annealed_starts) break;
      if (step < infinity && begun.insert(start.size()).second) anneal(start, step);
    }
    if (outcome_.best && !expired()) anneal(best_, outcome_.best->step_s);
    if (expired()) outcome_.status = SearchStatus::deadline;
    return std::move(outcome_);
  }

 private:
  bool expired() const { return Clock::now() >= options_.deadline; }

  // Every device at its peak, all the time, on the layers and nothing else: the step of the published form without
  // hops, collectives, bubbles and sync.
  double bound() const {
    double layers_per_s = 0;
    for (std::size_t kind = 0; kind < tables_.kinds.size(); ++kind) {
      double best = 0;
      for (int unit = 0; unit < tables_.unit_count(); ++unit)
        if (tables_.kind_of(unit) == static_cast<int>(kind))
          best = std::max(best, 1 / (tables_.layer_s[static_cast<std::size_t>(unit)] * tables_.degree_of(unit)));
      layers_per_s += best * static_cast<double>(tables_.kinds[kind].size());
    }
    return tables_.pipeline_factor * static_cast<double>(tables_.micro_batches * tables_.layers) / layers_per_s;
  }

  // ---- candidates ----

  // A replica laid out for its likely part of the batch; remembered, for most replicas recur.
  const std::optional<LaidReplica>& laid(const UnitCounts& replica, std::size_t replicas) {
    auto [entry, fresh] = laid_.try_emplace(replica);
    if (fresh)
      entry->second = lay_out(tables_, replica,
                              std::max<std::int64_t>(1, tables_.micro_batches / static_cast<std::int64_t>(replicas)));
    return entry->second;
  }

  bool allowed(const Candidate& candidate) const {
    if (problem_.replicas > 0 && candidate.size() != static_cast<std::size_t>(problem_.replicas)) return false;
    if (problem_.stages == 0) return true;
    return std::all_of(candidate.begin(), candidate.end(), [&](const UnitCounts& replica) {
      return std::accumulate(replica.begin(), replica.end(), std::int64_t{0}) == problem_.stages;
    });
  }

  // Seconds of a step; infinite where it cannot be done.
  double price(const Candidate& candidate) {
    if (candidate.empty() || !allowed(candidate)) return infinity;
    std::vector<LaidReplica> replicas;
    for (const UnitCounts& replica : candidate) {
      const auto& found = laid(replica, candidate.size());
      if (!found) return infinity;
      replicas.push_back(*found);
    }
    ++outcome_.evaluated;
    LayoutPlan layout = price_layout(tables_, std::move(replicas));
    const double step = layout.step_s;
    if (step < infinity && (!outcome_.best || step < outcome_.best->step_s * (1 - 1e-12))) {
      outcome_.best = std::move(layout);
      best_ = candidate;
    }
    return step;
  }

  int unit_of(int kind, int degree) const {
    for (int unit = 0; unit < tables_.unit_count(); ++unit)
      if (tables_.kind_of(unit) == kind && tables_.degree_of(unit) == degree) return unit;
    return -1;
  }

  // ---- starts ----

  // For every number of replicas, and for no or one kind of device in larger groups: units dealt out in turn, and laid
  // down one replica after another.
  std::vector<std::pair<double, Candidate>> structured_starts() {
    std::vector<std::pair<double, Candidate>> starts;
    const auto devices = static_cast<std::int64_t>(problem_.cluster.devices.size());
    const std::int64_t most = std::min({devices, tables_.micro_batches, std::int64_t{64}});
    std::vector<std::vector<int>> degrees = {std::vector<int>(tables_.kinds.size(), 1)};
    for (int unit = 0; unit < tables_.unit_count(); ++unit)
      if (tables_.degree_of(unit) > 1) {
        degrees.push_back(degrees.front());
        degrees.back()[static_cast<std::size_t>(tables_.kind_of(unit))] = tables_.degree_of(unit);
      }
    for (std::int64_t replicas = 1; replicas <= most && !expired(); ++replicas) {
      if (problem_.replicas > 0 && replicas != problem_.replicas) continue;
      for (const auto& degree : degrees)
        for (const bool in_turn : {true, false}) {
          Candidate candidate = in_turn ? dealt(degree, static_cast<std::size_t>(replicas))
                                        : laid_down(degree, static_cast<std::size_t>(replicas));
          const double step = price(candidate);
          starts.emplace_back(step, std::move(candidate));
        }
    }
    return starts;
  }

  // Units of all kinds, quickest devices first; where stages are fixed, as many as are needed.
  std::vector<int> all_units(const std::vector<int>& degree, std::size_t replicas) const {
    std::vector<int> units;
    for (std::size_t kind = 0; kind < tables_.kinds.size(); ++kind) {
      const int unit = unit_of(static_cast<int>(kind), degree[kind]);
      units.insert(units.end(), tables_.kinds[kind].size() / static_cast<std::size_t>(degree[kind]), unit);
    }
    std::stable_sort(units.begin(), units.end(), [&](int a, int b) {
      return tables_.layer_s[static_cast<std::size_t>(a)] < tables_.layer_s[static_cast<std::size_t>(b)];
    });
    if (problem_.stages > 0) units.resize(std::min(units.size(), replicas * static_cast<std::size_t>(problem_.stages)));
    return units;
  }

  Candidate empty_candidate(std::size_t replicas) const {
    return Candidate(replicas, UnitCounts(static_cast<std::size_t>(tables_.unit_count())));
  }

  Candidate dealt(const std::vector<int>& degree, std::size_t replicas) const {
    Candidate candidate = empty_candidate(replicas);
    std::size_t next = 0;
    for (const int unit : all_units(degree, replicas)) ++candidate[next++ % replicas][static_cast<std::size_t>(unit)];
    return candidate;
  }

  Candidate laid_down(const std::vector<int>& degree, std::size_t replicas) const {
    Candidate candidate = empty_candidate(replicas);
    const std::vector<int> units = all_units(degree, replicas);
    double speed = 0, done = 0;
    for (const int unit : units) speed += 1 / tables_.layer_s[static_cast<std::size_t>(unit)];
    for (const int unit : units) {
      const double middle = done + 0.5 / tables_.layer_s[static_cast<std::size_t>(unit)];
      const auto replica = static_cast<std::size_t>(middle / speed * static_cast<double>(replicas));
      ++candidate[std::min(replica, replicas - 1)][static_cast<std::size_t>(unit)];
      done += 1 / tables_.layer_s[static_cast<std::size_t>(unit)];
    }
    return candidate;
  }

  // ---- moves ----

  std::vector<int> free_devices(const Candidate& candidate) const {
    std::vector<int> free;
    for (const auto& kind : tables_.kinds) free.push_back(static_cast<int>(kind.size()));
    for (const UnitCounts& replica : candidate)
      for (int unit = 0; unit < tables_.unit_count(); ++unit)
        free[static_cast<std::size_t>(tables_.kind_of(unit))] -=
            replica[static_cast<std::size_t>(unit)] * tables_.degree_of(unit);
    return free;
  }

  // The unit of one of a replica's stages; -1 where it has none.
  int draw_stage(const UnitCounts& replica) {
    const int stages = std::accumulate(replica.begin(), replica.end(), 0);
    if (stages == 0) return -1;
    auto place = static_cast<int>(random_.below(static_cast<std::size_t>(stages)));
    int unit = 0;
    while (place >= replica[static_cast<std::size_t>(unit)]) place -= replica[static_cast<std::size_t>(unit++)];
    return unit;
  }

  // A neighbour; empty where the move drawn cannot be made.
  Candidate neighbour(const Candidate& from) {
    Candidate to = from;
    const std::size_t a = random_.below(to.size()), b = random_.below(to.size());
    const int unit = draw_stage(to[a]);
    if (unit < 0) return {};
    const auto at = [](UnitCounts& replica, int u) -> int& { return replica[static_cast<std::size_t>(u)]; };
    const double kind = random_.uniform();
    if (kind < 0.25) {  // a stage to another replica
      if (a == b) return {};
      --at(to[a], unit);
      ++at(to[b], unit);
    } else if (kind < 0.55) {  // two stages change places
      const int other = draw_stage(to[b]);
      if (a == b || other == unit || other < 0) return {};
      --at(to[a], unit);
      ++at(to[a], other);
      --at(to[b], other);
      ++at(to[b], unit);
    } else if (kind < 0.7) {  // a stage becomes two, or two of the same unit one
      const int degree = tables_.degree_of(unit), half = unit_of(tables_.kind_of(unit), degree / 2);
      const int twice = unit_of(tables_.kind_of(unit), degree * 2);
      if (degree > 1 && random_.uniform() < 0.5) {
        --at(to[a], unit);
        at(to[a], half) += 2;
      } else if (twice >= 0 && at(to[a], unit) >= 2) {
        at(to[a], unit) -= 2;
        ++at(to[a], twice);
      } else {
        return {};
      }
    } else if (kind < 0.8) {  // a stage stays idle
      --at(to[a], unit);
    } else if (kind < 0.95) {  // idle devices join
      const std::vector<int> free = free_devices(to);
      const int joining = static_cast<int>(random_.below(static_cast<std::size_t>(tables_.unit_count())));
      if (free[static_cast<std::size_t>(tables_.kind_of(joining))] < tables_.degree_of(joining)) return {};
      ++at(to[a], joining);
      if (random_.uniform() < 0.5) --at(to[a], unit);  // in the place of another
    } else {
      reshape(to, a, b);
    }
    std::erase_if(to, [](const UnitCounts& replica) {
      return std::all_of(replica.begin(), replica.end(), [](int count) { return count == 0; });
    });
    std::sort(to.begin(), to.end());
    return to;
  }

  // Two replicas become one, or one two.
  void reshape(Candidate& to, std::size_t a, std::size_t b) {
    if (a != b) {
      for (std::size_t unit = 0; unit < to[a].size(); ++unit) to[a][unit] += to[b][unit];
      to.erase(to.begin() + static_cast<std::ptrdiff_t>(b));
      return;
    }
    UnitCounts half(to[a].size());
    for (std::size_t unit = 0; unit < half.size(); ++unit) {
      half[unit] = (to[a][unit] + static_cast<int>(random_.below(2))) / 2;
      to[a][unit] -= half[unit];
    }
    to.push_back(std::move(half));
  }

  void anneal(Candidate now, double step) {
    const auto moves = moves_per_device * static_cast<std::int64_t>(problem_.cluster.devices.size());
    for (std::int64_t move = 0; move < moves; ++move) {
      if (move % moves_between_looks == 0 && expired()) return;
      Candidate next = neighbour(now);
      if (next.empty()) continue;
      const double progress = static_cast<double>(move) / static_cast<double>(moves);
      const double temperature = step * hottest * std::pow(coldest / hottest, progress);
      const double limit = step - temperature * std::log(1 - random_.uniform());
      if (const double other = price(next); other <= limit) {
        now = std::move(next);
        step = other;
      }
    }
  }

  static constexpr double hottest = 0.02, coldest = 0.0005;  // temperatures, as shares of the step
  static constexpr std::int64_t moves_between_looks = 16;    // at the clock

  const LayoutProblem& problem_;
  const LayoutTables& tables_;
  const LayoutOptions& options_;
  RandomStream random_;
  std::map<UnitCounts, std::optional<LaidReplica>> laid_;
  Candidate best_;
  LayoutOutcome outcome_;
};

// ---- enumeration ----

// All replicas there can be, as sequences of units and layers; then all sets of them.
class Enumeration {
 public:
  Enumeration(const LayoutProblem& problem, const LayoutTables& tables, std::int64_t most)
      : problem_(problem), tables_(tables), most_(most) {
    for (const auto& kind : tables.kinds) free_.push_back(static_cast<int>(kind.size()));
  }

  std::optional<LayoutOutcome> run() {
    LaidReplica replica;
    grow(replica, tables_.layers);
    if (too_many_) return std::nullopt;
    choose(0);
    if (too_many_) return std::nullopt;
    if (outcome_.best) outcome_.bound_s = outcome_.best->step_s;
    outcome_.status = SearchStatus::optimal;
    return std::move(outcome_);
  }

 private:
  void take(const LaidReplica& replica, int sign) {
    for (const int unit : replica.units)
      free_[static_cast<std::size_t>(tables_.kind_of(unit))] -= sign * tables_.degree_of(unit);
  }

  void grow(LaidReplica& replica, std::int64_t left) {
    if (too_many_) return;
    if (left == 0) return finish(replica);
    if (problem_.stages > 0 && static_cast<std::int64_t>(replica.units.size()) == problem_.stages) return;
    for (int unit = 0; unit < tables_.unit_count(); ++unit) {
      int& free = free_[static_cast<std::size_t>(tables_.kind_of(unit))];
      if (free < tables_.degree_of(unit)) continue;
      free -= tables_.degree_of(unit);
      replica.units.push_back(unit);
      for (std::int64_t layers = 1; layers <= left; ++layers) {
        replica.layers.push_back(layers);
        grow(replica, left - layers);
        replica.layers.pop_back();
      }
      replica.units.pop_back();
      free += tables_.degree_of(unit);
    }
  }

  void finish(LaidReplica& replica) {
    const std::size_t stages = replica.units.size();
    if (problem_.stages > 0 && static_cast<std::int64_t>(stages) != problem_.stages) return;
    replica.seconds.clear();
    for (std::size_t s = 0; s < stages; ++s) {
      const bool last = s + 1 == stages;
      if (replica.layers[s] > tables_.capacity(replica.units[s], s == 0, last, stages - s)) return;
      replica.seconds.push_back(static_cast<double>(replica.layers[s]) *
                                    tables_.layer_s[static_cast<std::size_t>(replica.units[s])] +
                                (last ? 0 : tables_.hop(replica.units[s], replica.units[s + 1])));
    }
    candidates_.push_back(replica);
    candidates_.back().pace = lockstep_pace(replica.seconds);
    too_many_ = too_many_ || static_cast<std::int64_t>(candidates_.size()) > most_;
  }

  void choose(std::size_t from) {
    if (too_many_) return;
    if (!chosen_.empty() &&
        (problem_.replicas == 0 || static_cast<std::int64_t>(chosen_.size()) == problem_.replicas)) {
      LayoutPlan layout = price_layout(tables_, chosen_);
      too_many_ = ++outcome_.evaluated > most_;
      if (layout.step_s < infinity && (!outcome_.best || layout.step_s < outcome_.best->step_s))
        outcome_.best = std::move(layout);
    }
    for (std::size_t i = from; i < candidates_.size(); ++i) {
      take(candidates_[i], 1);
      if (std::all_of(free_.begin(), free_.end(), [](int free) { return free >= 0; })) {
        chosen_.push_back(candidates_[i]);
        choose(i);
        chosen_.pop_back();
      }
      take(candidates_[i], -1);
    }
  }

  const LayoutProblem& problem_;
  const LayoutTables& tables_;
  std::int64_t most_;
  std::vector<int> free_;
  std::vector<LaidReplica> candidates_, chosen_;
  bool too_many_ = false;
  LayoutOutcome outcome_;
};

}  // namespace

LayoutOutcome search_layout(const LayoutProblem& problem, const LayoutTables& tables, const LayoutOptions& options) {
  return LayoutSearch(problem, tables, options).run();
}

std::optional<LayoutOutcome> enumerate_layouts(const LayoutProblem& problem, const LayoutTables& tables,
                                               std::int64_t most) {
  return Enumeration(problem, tables, most).run();
}

}  // namespace motley
