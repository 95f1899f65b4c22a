// Checks a rent plan against its own offers: prices, availability, budget, shares, and the throughput that the shares
// give. No solver: what an optimizer says is recomputed from the decisions alone.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/plan/rent_plan.hpp"

namespace motley {
namespace {

constexpr double tolerance = 1e-6;  // relative

bool close(double a, double b) { return std::abs(a - b) <= tolerance * std::max({1.0, std::abs(a), std::abs(b)}); }

class RentVerifier {
 public:
  explicit RentVerifier(const RentPlan& plan) : plan_(plan), mix_(class_mix(plan.offers)) {}

  std::vector<Violation> run() {
    check_fleet();
    check_available();
    if (!violations_.empty()) return std::move(violations_);  // what follows counts with a sound fleet
    check_money();
    const double carried = check_assignment(plan_.assignment, "assignment", "");
    if (carried > 0) check_throughput(carried);
    check_fallback();
    return std::move(violations_);
  }

 private:
  void add(std::string place, std::string what, std::string hint = {}) {
    violations_.push_back({std::move(place), std::move(what), std::move(hint)});
  }

  const Configuration* find(const std::string& name) const {
    for (const auto& configuration : plan_.offers.configurations)
      if (configuration.name == name) return &configuration;
    return nullptr;
  }
  const RentedConfiguration* find_rented(const std::string& name) const {
    for (const auto& rented : plan_.fleet)
      if (rented.configuration == name) return &rented;
    return nullptr;
  }

  void check_fleet() {
    if (plan_.fleet.empty()) add("fleet", "nothing is rented");
    for (std::size_t i = 0; i < plan_.fleet.size(); ++i) {
      const RentedConfiguration& rented = plan_.fleet[i];
      const std::string place = fmt::format("fleet[{}]", i);
      const Configuration* configuration = find(rented.configuration);
      if (!configuration) {
        add(place, fmt::format("\"{}\" is not offered", rented.configuration));
        continue;
      }
      if (find_rented(rented.configuration) != &rented)
        add(place, fmt::format("\"{}\" is listed twice", rented.configuration),
            "list it once, with the sum of the copies");
      if (rented.devices != configuration->devices)
        add(place, fmt::format("the devices are not those of configuration \"{}\"", rented.configuration));
      const double price = copy_usd_per_hour(plan_.offers, *configuration);
      if (!close(rented.usd_per_hour, price))
        add(place, fmt::format("{:g} $/h is given, but a copy costs {:g} $/h", rented.usd_per_hour, price));
    }
  }

  void check_available() {
    std::map<std::string, std::int64_t> used;
    for (const auto& rented : plan_.fleet)
      for (const auto& [type, count] : rented.devices) used[type] += count * rented.copies;
    for (const auto& [name, count] : used) {
      const auto type = plan_.offers.types.find(name);
      if (type != plan_.offers.types.end() && type->second.available && count > *type->second.available)
        add(name, fmt::format("{} are rented, but only {} are available", count, *type->second.available));
    }
  }

  void check_money() {
    double cost = 0, startup = 0;
    for (const auto& rented : plan_.fleet) {
      const auto current = plan_.goal.current.find(rented.configuration);
      const std::int64_t running = current == plan_.goal.current.end() ? 0 : current->second;
      cost += static_cast<double>(rented.copies) * rented.usd_per_hour;
      startup += plan_.goal.startup_share * rented.usd_per_hour *
                 static_cast<double>(std::max<std::int64_t>(0, rented.copies - running));
    }
    const RentPrediction& predicted = plan_.predicted;
    if (!close(predicted.cost_usd_per_hour, cost))
      add("predicted.cost_usd_per_hour",
          fmt::format("{:g} is predicted, but the fleet costs {:g}", predicted.cost_usd_per_hour, cost));
    if (!close(predicted.startup_usd_per_hour, startup))
      add("predicted.startup_usd_per_hour",
          fmt::format("{:g} is predicted, but new copies cost {:g}", predicted.startup_usd_per_hour, startup));
    if (plan_.goal.form != RentForm::budget) return;
    if (!plan_.goal.budget_usd_per_hour)
      add("goal", "the form `budget` has no budget_usd_per_hour");
    else if (const double budget = *plan_.goal.budget_usd_per_hour; cost + startup > budget * (1 + tolerance))
      add("goal", fmt::format("the fleet costs {:g} $/h, but the budget is {:g}", cost + startup, budget));
  }

  // Requests per second that it carries; 0 where it is not sound. `lost`: a domain whose copies do not count.
  double check_assignment(const RentAssignment& assignment, const std::string& place, const std::string& lost) {
    const std::size_t before = violations_.size();
    for (const auto& [name, shares] : assignment)
      if (std::none_of(plan_.offers.classes.begin(), plan_.offers.classes.end(),
                       [&](const auto& one) { return one.name == name; }))
        add(place, fmt::format("class \"{}\" does not exist", name));
    for (std::size_t w = 0; w < mix_.size(); ++w) {
      if (mix_[w] <= 0) continue;
      const std::string& name = plan_.offers.classes[w].name;
      const auto shares = assignment.find(name);
      if (shares == assignment.end()) {
        add(place, fmt::format("class \"{}\" has no destination", name));
        continue;
      }
      double sum = 0;
      for (const auto& [target, share] : shares->second) {
        sum += share;
        if (!find_rented(target))
          add(place, fmt::format("class \"{}\" goes to \"{}\", which is not rented", name, target));
        else if (share > 0 && find(target)->rate_per_s[w] <= 0)
          add(place, fmt::format("class \"{}\" goes to \"{}\", which cannot serve it", name, target));
        else if (share > 0 && !lost.empty() && in_domain(plan_.offers, *find(target), lost))
          add(place, fmt::format("class \"{}\" goes to \"{}\", which is lost with {}", name, target, lost));
        if (!(share >= 0 && share <= 1 + tolerance))
          add(place, fmt::format("class \"{}\" has a share of {:g}", name, share));
      }
      if (!close(sum, 1)) add(place, fmt::format("the shares of class \"{}\" sum to {:g}", name, sum));
    }
    return violations_.size() > before ? 0 : carried_per_s(plan_.offers, plan_.fleet, assignment);
  }

  void check_throughput(double carried) {
    const RentPrediction& predicted = plan_.predicted;
    // Where a loss must be survived, the promise may be less than what the whole fleet carries.
    const bool promised_less = plan_.goal.survive > 0 && predicted.throughput_per_s <= carried;
    if (!promised_less && !close(predicted.throughput_per_s, carried))
      add("predicted.throughput_per_s",
          fmt::format("{:g} is predicted, but the shares carry {:g}", predicted.throughput_per_s, carried));
    const double demand = total_demand_per_s(plan_.offers);
    if (demand > 0 && predicted.headroom && !close(*predicted.headroom, predicted.throughput_per_s / demand))
      add("predicted.headroom",
          fmt::format("{:g} is predicted, but it is {:g}", *predicted.headroom, predicted.throughput_per_s / demand));
    if (plan_.goal.form == RentForm::cheapest && carried < demand * (1 - tolerance))
      add("assignment", fmt::format("the fleet carries {:g} requests/s of the demanded {:g}", carried, demand));
  }

  void check_fallback() {
    if (plan_.goal.survive <= 0) return;
    const double whole =
        plan_.goal.form == RentForm::cheapest ? total_demand_per_s(plan_.offers) : plan_.predicted.throughput_per_s;
    for (const auto& domain : domains_of(plan_.offers)) {
      const std::string place = fmt::format("fallback.{}", domain);
      const auto assignment = plan_.fallback.find(domain);
      if (assignment == plan_.fallback.end()) {
        add(place, "is missing", "the goal asks that the fleet survives its loss");
        continue;
      }
      const double carried = check_assignment(assignment->second, place, domain);
      if (carried > 0 && carried < plan_.goal.survive * whole * (1 - tolerance))
        add(place,
            fmt::format("{:g} requests/s are left, but the goal asks for {:g}", carried, plan_.goal.survive * whole));
    }
  }

  const RentPlan& plan_;
  std::vector<double> mix_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> verify(const RentPlan& plan) { return RentVerifier(plan).run(); }

}  // namespace motley
