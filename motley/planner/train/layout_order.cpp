// The order of a replica's stages and their layers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "motley/planner/train/layout.hpp"

namespace motley {
namespace {

constexpr std::size_t most_states =
    4096;  // of the dynamic programme; as many as ten stages of five units have, and more

class Ordering {
 public:
  Ordering(const LayoutTables& tables, const std::vector<int>& counts) : tables_(tables) {
    for (int unit = 0; unit < tables.unit_count(); ++unit)
      if (counts[static_cast<std::size_t>(unit)] > 0) {
        units_.push_back(unit);
        counts_.push_back(counts[static_cast<std::size_t>(unit)]);
        stages_ += static_cast<std::size_t>(counts_.back());
      }
    for (const int count : counts_) {
      strides_.push_back(states_);
      states_ = std::min<std::size_t>(states_ * (static_cast<std::size_t>(count) + 1), most_states + 1);
    }
  }

  std::optional<LaidReplica> best(std::int64_t micro_batches) {
    if (stages_ == 0 || static_cast<std::int64_t>(stages_) > tables_.layers) return std::nullopt;
    collect_values();
    std::optional<LaidReplica> laid = states_ <= most_states ? exact() : improved();
    if (laid) polish(*laid, micro_batches);
    return laid;
  }

 private:
  // Layers that a stage may have where no stage is busier than `limit_s`.
  std::int64_t room(int unit, int next, bool first, std::size_t from_end, double limit_s) const {
    const double hop = next < 0 ? 0 : tables_.hop(unit, next);
    const double layers = std::floor((limit_s - hop) / tables_.layer_s[static_cast<std::size_t>(unit)] + 1e-9);
    if (!(layers >= 1)) return 0;
    return std::min(tables_.capacity(unit, first, next < 0, from_end),
                    static_cast<std::int64_t>(std::min(layers, 1e9)));
  }

  // How busy a stage can be: these values alone.
  void collect_values() {
    values_.clear();
    for (const int unit : units_) {
      const auto add = [&](double hop) {
        if (std::isfinite(hop))
          for (std::int64_t n = 1; n <= tables_.layers; ++n)
            values_.push_back(static_cast<double>(n) * tables_.layer_s[static_cast<std::size_t>(unit)] + hop);
      };
      add(0);
      for (const int next : units_) add(tables_.hop(unit, next));
    }
    std::sort(values_.begin(), values_.end());
    values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
  }

  // The first of the values at which `reaches` says that the layers have room.
  template <class Reaches>
  std::optional<double> least_value(Reaches reaches) const {
    if (!reaches(values_.back())) return std::nullopt;
    std::size_t low = 0, high = values_.size() - 1;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (reaches(values_[middle]))
        high = middle;
      else
        low = middle + 1;
    }
    return values_[low];
  }

  std::optional<LaidReplica> exact() {
    const std::size_t kinds = units_.size(), full = states_ - 1;
    behind_.assign(states_ * kinds, -1);
    const auto value = least_value([&](double limit) { return fill(limit) >= tables_.layers; });
    if (!value) return std::nullopt;
    fill(*value);
    // From the first stage to the last, by what the sums were made of.
    std::vector<int> order;
    std::size_t state = full, first = 0;
    for (std::size_t k = 1; k < kinds; ++k)
      if (behind_[state * kinds + k] > behind_[state * kinds + first]) first = k;
    for (std::size_t from_end = stages_; from_end > 0; --from_end) {
      order.push_back(units_[first]);
      const std::size_t rest = state - strides_[first];
      if (from_end == 1) break;
      for (std::size_t next = 0; next < kinds; ++next) {
        const std::int64_t sum = behind_[rest * kinds + next];
        const std::int64_t own = room(units_[first], units_[next], state == full, from_end, *value);
        if (sum >= 0 && own > 0 && sum + own == behind_[state * kinds + first]) {
          state = rest;
          first = next;
          break;
        }
      }
    }
    return cut(order, *value);
  }

  // behind_[state][k]: the most layers in stages of the state, the first of which is of unit k.
  std::int64_t fill(double limit) {
    const std::size_t kinds = units_.size(), full = states_ - 1;
    std::fill(behind_.begin(), behind_.end(), -1);
    std::vector<int> digits(kinds, 0);
    std::size_t count = 0;
    for (std::size_t state = 0; state < full; ++state) {
      if (state > 0) {
        std::size_t k = 0;
        while (digits[k] == counts_[k]) count -= static_cast<std::size_t>(std::exchange(digits[k++], 0));
        ++digits[k];
        ++count;
      }
      for (std::size_t add = 0; add < kinds; ++add) {
        if (digits[add] == counts_[add]) continue;
        const std::size_t to = state + strides_[add];
        std::int64_t& best = behind_[to * kinds + add];
        if (state == 0) {
          if (const std::int64_t own = room(units_[add], -1, to == full, 1, limit); own > 0) best = own;
          continue;
        }
        for (std::size_t next = 0; next < kinds; ++next) {
          const std::int64_t sum = behind_[state * kinds + next];
          if (sum < 0) continue;
          const std::int64_t own = room(units_[add], units_[next], to == full, count + 1, limit);
          if (own > 0) best = std::max(best, sum + own);
        }
      }
    }
    std::int64_t most = -1;
    for (std::size_t k = 0; k < kinds; ++k) most = std::max(most, behind_[full * kinds + k]);
    return most;
  }

  std::int64_t room_of(const std::vector<int>& order, double limit) const {
    std::int64_t sum = 0;
    for (std::size_t s = 0; s < order.size(); ++s) {
      const std::int64_t own =
          room(order[s], s + 1 < order.size() ? order[s + 1] : -1, s == 0, order.size() - s, limit);
      if (own == 0) return -1;
      sum += own;
    }
    return sum;
  }

  double seconds_of(const std::vector<int>& order, std::size_t s, std::int64_t layers) const {
    return static_cast<double>(layers) * tables_.layer_s[static_cast<std::size_t>(order[s])] +
           (s + 1 < order.size() ? tables_.hop(order[s], order[s + 1]) : 0);
  }

  // Layers for an order whose stages have room for them: what is too much goes from the busiest.
  LaidReplica cut(std::vector<int> order, double limit) const {
    LaidReplica laid{std::move(order), {}, {}};
    std::int64_t surplus = -tables_.layers;
    for (std::size_t s = 0; s < laid.units.size(); ++s) {
      laid.layers.push_back(room(laid.units[s], s + 1 < laid.units.size() ? laid.units[s + 1] : -1, s == 0,
                                 laid.units.size() - s, limit));
      laid.seconds.push_back(seconds_of(laid.units, s, laid.layers[s]));
      surplus += laid.layers[s];
    }
    for (; surplus > 0; --surplus) {
      std::size_t busiest = laid.units.size();
      for (std::size_t s = 0; s < laid.units.size(); ++s)
        if (laid.layers[s] > 1 && (busiest == laid.units.size() || laid.seconds[s] > laid.seconds[busiest]))
          busiest = s;
      --laid.layers[busiest];
      laid.seconds[busiest] = seconds_of(laid.units, busiest, laid.layers[busiest]);
    }
    return laid;
  }

  // Too many states: the units that are left most, never twice in a row where that can be; then pairs change places as
  // long as that helps.
  std::optional<LaidReplica> improved() {
    std::vector<int> left = counts_, order;
    while (order.size() < stages_) {
      int pick = -1;
      for (int k = 0; k < static_cast<int>(left.size()); ++k) {
        if (left[static_cast<std::size_t>(k)] == 0) continue;
        const auto rank = [&](int candidate) {
          const bool again = !order.empty() && tables_.kind_of(order.back()) ==
                                                   tables_.kind_of(units_[static_cast<std::size_t>(candidate)]);
          return std::pair(!again, left[static_cast<std::size_t>(candidate)]);
        };
        if (pick < 0 || rank(k) > rank(pick)) pick = k;
      }
      --left[static_cast<std::size_t>(pick)];
      order.push_back(units_[static_cast<std::size_t>(pick)]);
    }
    const auto least = [&](const std::vector<int>& candidate) {
      return least_value([&](double limit) { return room_of(candidate, limit) >= tables_.layers; });
    };
    auto value = least(order);
    constexpr int most_rounds = 2;
    for (int round = 0; round < most_rounds; ++round)
      for (std::size_t a = 0; a < order.size(); ++a)
        for (std::size_t b = a + 1; b < order.size(); ++b) {
          if (order[a] == order[b]) continue;
          std::swap(order[a], order[b]);
          // Only what is strictly better is worth the search for how much.
          const bool better = !value || room_of(order, std::nextafter(*value, 0)) >= tables_.layers;
          const auto other = better ? least(order) : std::nullopt;
          if (other && (!value || *other < *value))
            value = other;
          else
            std::swap(order[a], order[b]);
        }
    if (!value) return std::nullopt;
    return cut(std::move(order), *value);
  }

  // Single layers move while the pipeline gets quicker: filling and draining count too.
  void polish(LaidReplica& laid, std::int64_t micro_batches) const {
    double now = lockstep_s(laid.seconds, micro_batches);
    const auto stages = laid.units.size();
    for (bool better = true; better;) {
      better = false;
      for (std::size_t from = 0; from < stages; ++from)
        for (std::size_t to = 0; to < stages; ++to) {
          if (from == to || laid.layers[from] == 1 ||
              laid.layers[to] >= tables_.capacity(laid.units[to], to == 0, to + 1 == stages, stages - to))
            continue;
          LaidReplica moved = laid;
          --moved.layers[from];
          ++moved.layers[to];
          moved.seconds[from] = seconds_of(laid.units, from, moved.layers[from]);
          moved.seconds[to] = seconds_of(laid.units, to, moved.layers[to]);
          if (const double then = lockstep_s(moved.seconds, micro_batches); then < now * (1 - 1e-12)) {
            laid = std::move(moved);
            now = then;
            better = true;
          }
        }
    }
  }

  const LayoutTables& tables_;
  std::vector<int> units_, counts_;
  std::vector<std::size_t> strides_;
  std::size_t states_ = 1, stages_ = 0;
  std::vector<double> values_;
  std::vector<std::int64_t> behind_;
};

}  // namespace

std::optional<LaidReplica> lay_out(const LayoutTables& tables, const std::vector<int>& unit_counts,
                                   std::int64_t micro_batches) {
  return Ordering(tables, unit_counts).best(micro_batches);
}

}  // namespace motley
