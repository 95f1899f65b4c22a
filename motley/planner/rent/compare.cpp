#include "motley/planner/rent/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace motley {
namespace {

constexpr double comparison_gap = 1e-4;

// Requests per second of one level.
double level_per_s(const Offers& offers) {
  const double demand = total_demand_per_s(offers);
  return demand > 0 ? demand : 1;
}

FleetAnswer solve_quickly(const RentProblem& problem, const RentOptions& options, Instant deadline) {
  return solve_fleet(problem, {.solver = options.solver,
                               .relative_gap = std::max(comparison_gap, options.relative_gap),
                               .pool = options.pool,
                               .deadline = deadline});
}

// The goal's figure of the best fleet for these offers; nothing where there is none.
std::optional<double> best_figure(const Offers& offers, const RentOptions& options, Instant deadline) {
  const auto made = make_problem(offers, options);
  const RentProblem* problem = std::get_if<RentProblem>(&made);
  if (!problem) return std::nullopt;
  const FleetAnswer answer = solve_quickly(*problem, options, deadline);
  if (!answer.copies) return std::nullopt;
  return options.form == RentForm::cheapest ? answer.cost : answer.routing.level * level_per_s(offers);
}

Offers slowed(const Offers& offers, const std::string& type, double factor) {
  Offers slower = offers;
  for (auto& configuration : slower.configurations)
    if (type.empty() || configuration.devices.contains(type))
      for (double& rate : configuration.rate_per_s) rate /= factor;
  return slower;
}

}  // namespace

void explain_prices(const Offers& offers, const RentProblem& problem, const FleetAnswer& answer,
                    RentPrediction& predicted) {
  const Prices& prices = answer.prices;
  if (prices.classes.empty()) return;
  std::vector<std::string> types;
  for (const auto& [name, type] : offers.types) types.push_back(name);
  const double money = prices.money > 0 ? prices.money : 1;
  for (std::size_t n = 0; n < types.size(); ++n)
    predicted.shadow_price_usd_per_hour[types[n]] = prices.devices[n] / money;

  const std::vector<double> mix = class_mix(offers);
  int index = -1;
  for (std::size_t w = 0; w < mix.size(); ++w) {
    if (mix[w] <= 0) continue;
    ++index;
    double price = 0;  // of one level
    for (int scenario = 0; scenario < problem.scenarios(); ++scenario)
      price += prices.classes[static_cast<std::size_t>(scenario * problem.classes + index)] *
               problem.scenario_level(scenario) / money;
    const double requests_per_hour = mix[w] * level_per_s(offers) * 3600;
    ClassExplanation explained;
    explained.usd_per_1000_requests = price / requests_per_hour * 1000;
    // The shape that serves most of the class shows what its price is paid for.
    const TimeShare* largest = nullptr;
    const auto served = [&](const TimeShare& share) {
      for (const auto& rate : problem.shapes[share.shape].rates)
        if (rate.class_index == share.class_index) return share.copies * rate.level;
      return 0.0;
    };
    for (const auto& share : answer.routing.times[0])
      if (share.class_index == index && (!largest || served(share) > served(*largest))) largest = &share;
    explained.binding = problem.form == RentForm::budget ? "budget" : "demand";
    if (largest) {
      const RentShape& shape = problem.shapes[largest->shape];
      double scarce = 0, dearest = 0;
      for (const auto& [type, count] : shape.devices) {
        const double part = prices.devices[type] * count;
        scarce += part;
        if (part > dearest && part > 1e-9 * prices.money * shape.usd_per_hour) {
          dearest = part;
          explained.binding = fmt::format("available {}", types[static_cast<std::size_t>(type)]);
        }
      }
      const double whole = scarce + prices.money * shape.usd_per_hour;
      explained.scarcity_share = whole > 0 ? scarce / whole : 0;
    }
    predicted.classes[offers.classes[w].name] = explained;
  }
}

std::vector<HomogeneousFleet> homogeneous_fleets(const Offers& offers, const RentOptions& options, Instant deadline) {
  std::vector<HomogeneousFleet> fleets;
  RentOptions alone = options;
  alone.survive = 0;
  alone.current.clear();
  alone.startup_share = 0;
  for (const auto& [name, type] : offers.types) {
    Offers only = offers;
    std::erase_if(only.configurations, [&](const Configuration& configuration) {
      return configuration.devices.size() != 1 || configuration.devices.begin()->first != name;
    });
    if (only.configurations.empty()) continue;
    HomogeneousFleet fleet{.type = name, .limited = best_figure(only, alone, deadline), .unlimited = std::nullopt};
    if (!type.available) {
      fleet.unlimited = fleet.limited;
    } else if (type.usd_per_hour > 0) {
      only.types.at(name).available.reset();
      fleet.unlimited = best_figure(only, alone, deadline);
    }
    fleets.push_back(std::move(fleet));
  }
  return fleets;
}

std::vector<SlowerCase> slower_cases(const Offers& offers, const RentOptions& options, const RentPlan& plan,
                                     Instant deadline) {
  std::set<std::string> rented;
  for (const auto& entry : plan.fleet)
    for (const auto& [type, count] : entry.devices) rented.insert(type);
  std::vector<std::pair<std::string, double>> cases = {{"", 1.25}, {"", 1.5}};
  if (rented.size() > 1)
    for (const auto& type : rented) cases.emplace_back(type, 1.25);

  std::vector<SlowerCase> slower;
  for (const auto& [type, factor] : cases) {
    const Offers changed = slowed(offers, type, factor);
    SlowerCase one{.type = type, .factor = factor, .throughput_per_s = 0, .replanned_usd_per_hour = std::nullopt};
    const auto made = make_problem(changed, options);
    if (const RentProblem* problem = std::get_if<RentProblem>(&made)) {
      Copies copies;
      for (const auto& shape : problem->shapes) {
        const std::string& name = changed.configurations[static_cast<std::size_t>(shape.configuration)].name;
        const auto entry = std::find_if(plan.fleet.begin(), plan.fleet.end(),
                                        [&](const auto& candidate) { return candidate.configuration == name; });
        copies.push_back(entry == plan.fleet.end() ? 0 : static_cast<int>(entry->copies));
      }
      one.throughput_per_s = route(*problem, copies).level * level_per_s(offers);
      if (options.form == RentForm::cheapest) one.replanned_usd_per_hour = best_figure(changed, options, deadline);
    }
    slower.push_back(std::move(one));
  }
  return slower;
}

}  // namespace motley
