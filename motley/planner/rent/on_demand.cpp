// Renting for a model: configurations are made by the cost model, those of two types only where they might pay.
#include <algorithm>
#include <cmath>

#include "motley/base/clock.hpp"
#include "motley/planner/rent/rent_fleet.hpp"
#include "motley/planner/rent/shapes.hpp"

namespace motley {
namespace {

constexpr std::size_t per_round = 24;  // mixed shapes that are made between two relaxations
constexpr int most_rounds = 8;

bool serves_all(const Offers& offers) {
  for (std::size_t w = 0; w < offers.classes.size(); ++w)
    if (std::none_of(offers.configurations.begin(), offers.configurations.end(),
                     [&](const Configuration& c) { return c.rate_per_s[w] > 0; }))
      return false;
  return true;
}

bool serves_any(const Configuration& configuration) {
  return std::any_of(configuration.rate_per_s.begin(), configuration.rate_per_s.end(), [](double r) { return r > 0; });
}

// Mixed shapes with the reduced cost that the bounds of their rates allow, most promising first; those that could not
// improve the relaxation are left out. Without prices (some class is not served at all) by what they cost.
std::vector<std::pair<double, std::size_t>> promising(ShapeMaker& maker, const Offers& offers,
                                                      const std::vector<ShapeSpec>& specs,
                                                      const std::vector<bool>& made, const RentOptions& options) {
  std::vector<std::pair<double, std::size_t>> order;
  Prices prices;
  Offers bounded = offers;
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (made[i]) continue;
    index[shape_name(specs[i])] = i;
    bounded.configurations.push_back({.name = shape_name(specs[i]),
                                      .model = {},
                                      .devices = shape_devices(specs[i]),
                                      .rate_per_s = maker.rate_bounds(specs[i]),
                                      .stages = {}});
  }
  const auto problem = make_problem(offers, options);
  const bool priced = std::holds_alternative<RentProblem>(problem);
  if (priced)
    prices = relaxed_prices(std::get<RentProblem>(problem), {.solver = options.solver,
                                                             .relative_gap = options.relative_gap,
                                                             .pool = options.pool,
                                                             .deadline = deadline_in(60)});
  const auto with_bounds = make_problem(bounded, options);
  if (const auto* all = std::get_if<RentProblem>(&with_bounds))
    for (const auto& shape : all->shapes) {
      const auto found = index.find(bounded.configurations[static_cast<std::size_t>(shape.configuration)].name);
      if (found == index.end() || shape.most == 0) continue;
      if (prices.classes.empty()) {
        order.emplace_back(shape.usd_per_hour, found->second);
      } else if (const double reduced = reduced_cost(*all, shape, prices); reduced < -1e-9 * std::abs(prices.bound)) {
        order.emplace_back(reduced, found->second);
      }
    }
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

Offers catalogue_market() {
  Offers market;
  for (const auto& type : device_catalogue())
    if (type.usd_per_hour > 0)
      market.types[type.name] = {.usd_per_hour = type.usd_per_hour, .available = {}, .domain = {}};
  return market;
}

RentOutcome plan_rent(const Offers& market, const Model& model, const Workload& workload, const RentOptions& options,
                      const ModelRentOptions& model_options) {
  const Instant start = Clock::now();
  if (!(model_options.utilisation > 0 && model_options.utilisation <= 1))
    throw input_error("the utilisation must be above 0 and at most 1",
                      "give a share, as in --utilisation 0.8 (the default)");
  ShapeMaker maker(market, model, workload, model_options);
  Offers offers = maker.market();
  const auto keep = [&](Configuration made) {
    if (serves_any(made)) offers.configurations.push_back(std::move(made));
  };
  for (const auto& spec : maker.alike()) keep(maker.make(spec));
  const std::vector<ShapeSpec> mixed = maker.mixed();
  std::vector<bool> made(mixed.size(), false);
  for (int round = 0; round < most_rounds; ++round) {
    auto order = promising(maker, offers, mixed, made, options);
    if (order.empty()) break;
    order.resize(std::min(order.size(), per_round));
    for (const auto& [reduced, i] : order) {
      made[i] = true;
      keep(maker.make(mixed[i]));
    }
  }
  if (!serves_all(offers))
    for (std::size_t w = 0; w < offers.classes.size(); ++w) {
      if (std::any_of(offers.configurations.begin(), offers.configurations.end(),
                      [&](const Configuration& c) { return c.rate_per_s[w] > 0; }))
        continue;
      const ShapeMaker::Lack lack = maker.why_unserved(w);
      return {.plan = std::nullopt, .throughput_per_s = 0, .reason = lack.reason, .hint = lack.hint};
    }
  const double spent = seconds_since(start);
  RentOptions rest = options;
  rest.deadline_s = std::max(0.1, options.deadline_s - spent);
  RentOutcome outcome = plan_rent(offers, rest);
  if (outcome.plan) {
    outcome.plan->model = model;
    outcome.plan->workload = workload;
    outcome.plan->search.cost = "motley";
    outcome.plan->search.elapsed_s += spent;
  }
  return outcome;
}

}  // namespace motley
