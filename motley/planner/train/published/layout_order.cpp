// The order of a replica's stages and their layers.
#include <algorithm>
#include <cmath>

#include "motley/planner/train/published/flashflex_layout.hpp"

namespace motley {
namespace {

constexpr std::size_t most_states = 1024;  // of the dynamic programme: all that ten stages can have

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
    std::vector<int> order = plausible();
    collect_values(order);
    const auto least = least_value(0, values_.size() - 1, [&](double limit) { return relaxed_room(limit); });
    if (!least) return std::nullopt;
    std::size_t most = values_.size() - 1;
    auto value = least_value(*least, most, [&](double limit) { return room_of(order, limit); });
    if (value) most = *value;
    if (!value || *value > *least) {
      if (states_ <= most_states) {
        value = least_value(*least, most, [&](double limit) { return fill(limit); });
        if (value) order = order_behind(values_[*value]);
      } else {
        value = improve(order, value, *least);
      }
    }
    if (!value) return std::nullopt;
    LaidReplica laid = cut(std::move(order), values_[*value]);
    polish(laid, micro_batches);
    laid.pace = lockstep_pace(laid.seconds);
    return laid;
  }

 private:
  // Layers that a stage may have where no stage is busier than `limit_s`: for its time alone, and in its memory too.
  std::int64_t time_room(int unit, int next, double limit_s) const {
    const double hop = next < 0 ? 0 : tables_.hop(unit, next);
    const double layers = std::floor((limit_s - hop) / tables_.layer_s[static_cast<std::size_t>(unit)] + 1e-9);
    return layers >= 1 ? static_cast<std::int64_t>(std::min(layers, 1e9)) : 0;
  }
  std::int64_t room(int unit, int next, bool first, std::size_t from_end, double limit_s) const {
    return std::min(tables_.capacity(unit, first, next < 0, from_end), time_room(unit, next, limit_s));
  }

  // A time within which the stages of this order have room for all layers; infinite where memory forbids it.
  double enough_s(const std::vector<int>& order, double least_s) const {
    constexpr double step = 1.25;
    constexpr int most_steps = 32;  // a factor of 1,000: then it is not for want of time
    double limit_s = least_s;
    for (int i = 0; i < most_steps; ++i, limit_s *= step)
      if (room_of(order, limit_s) >= tables_.layers) return limit_s * (1 + 1e-6);
    return infinity;
  }

  // How busy the busiest stage can be: these values alone, none below a perfect balance and, where `order` will do,
  // none above what it needs.
  void collect_values(const std::vector<int>& order) {
    values_.clear();
    double layers_per_s = 0;
    for (std::size_t k = 0; k < units_.size(); ++k)
      layers_per_s += counts_[k] / tables_.layer_s[static_cast<std::size_t>(units_[k])];
    const double least = static_cast<double>(tables_.layers) / layers_per_s * (1 - 1e-9);
    const double enough = enough_s(order, least);
    std::vector<double> hops;
    for (const int unit : units_) {
      hops.assign(1, 0);
      for (const int next : units_)
        if (std::isfinite(tables_.hop(unit, next))) hops.push_back(tables_.hop(unit, next));
      std::sort(hops.begin(), hops.end());
      hops.erase(std::unique(hops.begin(), hops.end()), hops.end());
      const double layer = tables_.layer_s[static_cast<std::size_t>(unit)];
      for (const double hop : hops)
        for (std::int64_t n = 1; n <= tables_.layers && static_cast<double>(n) * layer + hop <= enough; ++n)
          if (const double value = static_cast<double>(n) * layer + hop; value >= least) values_.push_back(value);
    }
    std::sort(values_.begin(), values_.end());
    values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
  }

  // The first of the values [low, high] at which the stages have room for all layers.
  template <class Room>
  std::optional<std::size_t> least_value(std::size_t low, std::size_t high, Room room_at) const {
    if (room_at(values_[high]) < tables_.layers) return std::nullopt;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (room_at(values_[middle]) >= tables_.layers)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  // No order has more: every stage hands on over its shortest hop, one to none, with the memory of its best place.
  std::int64_t relaxed_room(double limit) const {
    std::int64_t sum = 0, most_gained = 0;
    for (std::size_t k = 0; k < units_.size(); ++k) {
      const int unit = units_[k];
      std::int64_t own = 0;
      for (std::size_t n = 0; n < units_.size(); ++n)
        if (n != k || counts_[k] > 1) own = std::max(own, room(unit, units_[n], false, 2, limit));
      const std::int64_t as_last = room(unit, -1, false, 1, limit);
      sum += counts_[k] * own;
      most_gained = std::max(most_gained, as_last - own);
    }
    return sum + most_gained;
  }

  // The order that fill() found room with, from the first stage to the last.
  std::vector<int> order_behind(double limit) {
    const std::size_t kinds = units_.size(), full = states_ - 1;
    fill(limit);
    std::vector<int> order;
    std::size_t state = full, first = 0;
    for (std::size_t k = 1; k < kinds; ++k)
      if (behind_[state * kinds + k] > behind_[state * kinds + first]) first = k;
    for (std::size_t from_end = stages_; from_end > 0; --from_end) {
      order.push_back(units_[first]);
      const std::size_t rest = state - strides_[first];
      for (std::size_t next = 0; next < kinds && from_end > 1; ++next) {
        const std::int64_t sum = behind_[rest * kinds + next];
        const std::int64_t own = room(units_[first], units_[next], state == full, from_end, limit);
        if (sum >= 0 && own > 0 && sum + own == behind_[state * kinds + first]) {
          state = rest;
          first = next;
          break;
        }
      }
    }
    return order;
  }

  // behind_[state][k]: the most layers in stages of the state, the first of which is of unit k.
  std::int64_t fill(double limit) {
    const std::size_t kinds = units_.size(), full = states_ - 1;
    behind_.assign(states_ * kinds, -1);
    // What the busiest stage allows, from unit to unit; memory by place comes on top.
    std::vector<std::int64_t> quick(kinds * kinds);
    for (std::size_t k = 0; k < kinds; ++k)
      for (std::size_t next = 0; next < kinds; ++next)
        quick[k * kinds + next] = time_room(units_[k], units_[next], limit);
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
        const std::int64_t held = tables_.capacity(units_[add], to == full, false, count + 1);
        for (std::size_t next = 0; next < kinds; ++next) {
          const std::int64_t sum = behind_[state * kinds + next], own = std::min(held, quick[add * kinds + next]);
          if (sum >= 0 && own > 0) best = std::max(best, sum + own);
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

  // The units that are left most, never one machine twice in a row where that can be.
  std::vector<int> plausible() const {
    std::vector<int> left = counts_, order;
    while (order.size() < stages_) {
      int pick = -1;
      const auto rank = [&](int k) {
        const int unit = units_[static_cast<std::size_t>(k)];
        const double hop = order.empty() ? 0 : tables_.hop(order.back(), unit);
        return std::pair(-hop, left[static_cast<std::size_t>(k)]);
      };
      for (int k = 0; k < static_cast<int>(left.size()); ++k)
        if (left[static_cast<std::size_t>(k)] > 0 && (pick < 0 || rank(k) > rank(pick))) pick = k;
      --left[static_cast<std::size_t>(pick)];
      order.push_back(units_[static_cast<std::size_t>(pick)]);
    }
    return order;
  }

  // Where there are too many states: pairs change places as long as that helps.
  std::optional<std::size_t> improve(std::vector<int>& order, std::optional<std::size_t> value, std::size_t least) {
    constexpr int most_rounds = 2;
    for (int round = 0; round < most_rounds; ++round)
      for (std::size_t a = 0; a < order.size(); ++a)
        for (std::size_t b = a + 1; b < order.size(); ++b) {
          if (order[a] == order[b]) continue;
          if (value && *value == least) return value;
          std::swap(order[a], order[b]);
          // Only what is strictly better is worth the search for how much.
          const std::size_t highest = value ? *value - 1 : values_.size() - 1;
          if (const auto other = least_value(least, highest, [&](double limit) { return room_of(order, limit); }))
            value = other;
          else
            std::swap(order[a], order[b]);
        }
    return value;
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
