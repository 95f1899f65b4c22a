#include <algorithm>
#include <limits>

#include "motley/planner/rent/rent_fleet.hpp"

namespace motley {
namespace {

constexpr double level_tolerance = 1e-9;  // of a level

class Cover {
 public:
  Cover(const RentProblem& problem, double level)
      : problem_(problem), level_(level), worth_(static_cast<std::size_t>(problem.classes)) {
    std::fill(worth_.begin(), worth_.end(), std::numeric_limits<double>::infinity());
    for (const auto& shape : problem.shapes)
      if (shape.most > 0)
        for (const auto& rate : shape.rates)
          worth_[rate.class_index] = std::min(worth_[rate.class_index], shape.usd_per_hour / rate.level);
    copies_.assign(problem.shapes.size(), 0);
    left_ = problem.available;
  }

  std::optional<Copies> run() {
    for (int scenario = 0; scenario < problem_.scenarios(); ++scenario)
      if (!cover(scenario)) return std::nullopt;
    return copies_;
  }

 private:
  // Most worth per time first.
  std::vector<ClassRate> preferred(const RentShape& shape) const {
    std::vector<ClassRate> order = shape.rates;
    std::stable_sort(order.begin(), order.end(), [&](const ClassRate& a, const ClassRate& b) {
      return worth_[a.class_index] * a.level > worth_[b.class_index] * b.level;
    });
    return order;
  }

  // What `time` of the shape takes from the residual levels; `apply` does it. Returns its worth.
  double fill(const std::vector<ClassRate>& order, double time, std::vector<double>& residual, bool apply) const {
    double gained = 0;
    for (const auto& rate : order) {
      const double served = std::min(residual[rate.class_index], rate.level * time);
      if (served <= 0) continue;
      gained += worth_[rate.class_index] * served;
      time -= served / rate.level;
      if (apply) residual[rate.class_index] -= served;
      if (time <= 0) break;
    }
    return gained;
  }

  bool affordable(int c) const {
    if (copies_[c] >= problem_.shapes[c].most) return false;
    return std::all_of(problem_.shapes[c].devices.begin(), problem_.shapes[c].devices.end(),
                       [&](const auto& need) { return left_[need.first] < 0 || left_[need.first] >= need.second; });
  }

  bool cover(int scenario) {
    std::vector<double> residual(worth_.size(), level_ * problem_.scenario_level(scenario));
    std::vector<std::vector<ClassRate>> order;
    for (const auto& shape : problem_.shapes) order.push_back(preferred(shape));
    for (std::size_t c = 0; c < copies_.size(); ++c)
      if (copies_[c] > 0 && problem_.runs(problem_.shapes[c], scenario)) fill(order[c], copies_[c], residual, true);
    while (std::any_of(residual.begin(), residual.end(), [&](double r) { return r > level_tolerance * level_; })) {
      int best = -1;
      double most = 0;
      for (std::size_t i = 0; i < copies_.size(); ++i) {
        const int c = static_cast<int>(i);
        const RentShape& shape = problem_.shapes[c];
        if (!problem_.runs(shape, scenario) || !affordable(c)) continue;
        const double price = problem_.cost(shape, copies_[c] + 1) - problem_.cost(shape, copies_[c]);
        const double gain = fill(order[c], 1, residual, false) / std::max(price, 1e-9);
        if (gain > most * (1 + 1e-12)) {
          most = gain;
          best = c;
        }
      }
      if (best < 0) return false;
      buy(best, order[best], residual);
    }
    return true;
  }

  // As many copies at once as its first class keeps busy.
  void buy(int c, const std::vector<ClassRate>& order, std::vector<double>& residual) {
    const RentShape& shape = problem_.shapes[c];
    int count = 1;
    for (const auto& rate : order)
      if (residual[rate.class_index] > 0) {
        count = std::max(1, static_cast<int>(std::min(residual[rate.class_index] / rate.level, 1e6)));
        break;
      }
    count = std::min(count, shape.most - copies_[c]);
    if (copies_[c] < shape.current) count = std::min(count, shape.current - copies_[c]);
    for (const auto& [type, need] : shape.devices)
      if (left_[type] >= 0) count = std::min(count, left_[type] / need);
    for (const auto& [type, need] : shape.devices)
      if (left_[type] >= 0) left_[type] -= count * need;
    copies_[c] += count;
    fill(order, count, residual, true);
  }

  const RentProblem& problem_;
  double level_;
  std::vector<double> worth_;  // $/h of one level of each class, at its cheapest shape
  Copies copies_;
  std::vector<int> left_;
};

// Gives back copies, dearest first, as long as the level stays.
void give_back(const RentProblem& problem, double level, Copies& copies) {
  std::vector<int> rented;
  for (std::size_t c = 0; c < copies.size(); ++c)
    if (copies[c] > 0) rented.push_back(static_cast<int>(c));
  std::stable_sort(rented.begin(), rented.end(),
                   [&](int a, int b) { return problem.shapes[a].usd_per_hour > problem.shapes[b].usd_per_hour; });
  for (const int c : rented) {
    int least = 0;  // copies that are known to be too few, plus one
    while (least < copies[c]) {
      const int tried = (least + copies[c]) / 2;
      const int before = std::exchange(copies[c], tried);
      if (route(problem, copies).level >= level * (1 - level_tolerance)) continue;
      copies[c] = before;
      least = tried + 1;
    }
  }
}

}  // namespace

std::optional<Copies> greedy_cover(const RentProblem& problem, double level) { return Cover(problem, level).run(); }

std::optional<Copies> greedy_fleet(const RentProblem& problem) {
  if (problem.form == RentForm::cheapest) {
    std::optional<Copies> fleet = greedy_cover(problem, 1);
    if (fleet) give_back(problem, 1, *fleet);
    return fleet;
  }
  std::optional<Copies> best;
  double low = 0, high = problem.level_bound;
  for (int i = 0; i < 24 && high > 0; ++i) {
    const double level = i == 0 ? high : (low + high) / 2;
    std::optional<Copies> fleet = greedy_cover(problem, level);
    const bool paid = fleet && problem.cost(*fleet) <= problem.budget_usd_per_hour * (1 + 1e-12);
    (paid ? low : high) = level;
    if (paid) best = std::move(fleet);
  }
  return best;
}

}  // namespace motley
