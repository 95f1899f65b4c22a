#include "motley/planner/rent/plan_rent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "motley/base/clock.hpp"
#include "motley/planner/rent/rent_fleet.hpp"

namespace motley {
namespace {

// What is shown with a rent plan: what binds it, fleets of one type, and slower devices.

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

// Shadow prices and what binds each class, from the relaxation's prices.
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

// The best fleet of each type alone, with what is available and with as many as one likes.
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

// The plan's fleet where all devices, or those of one type, are 1.25 and 1.5 times slower.
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

constexpr double search_share = 0.6;  // of the time; the rest is for what is shown with the plan

Instant after(Instant start, double seconds) { return start + duration_of(std::clamp(seconds, 0.0, 1e6)); }

void check_goal(const Offers& offers, const RentOptions& options) {
  check_offers(offers, "");
  if (offers.classes.empty()) throw input_error("`classes` is missing", "add `classes`: the requests to serve");
  if (offers.configurations.empty())
    throw input_error("`configurations` is missing", "add `configurations`, or give a model to make them from");
  const bool has_demand = offers.classes[0].demand_per_s.has_value();
  if (options.form == RentForm::cheapest && !has_demand)
    throw input_error("--cheapest needs a demand: the classes have shares only",
                      "give every class a demand_per_s, or use --budget");
  if (options.form == RentForm::budget && !(options.budget_usd_per_hour >= 0))
    throw input_error("the budget must not be negative", "give an amount, as in --budget \"30 $/h\"");
  if (!(options.survive >= 0 && options.survive <= 1))
    throw input_error(fmt::format("the share of the throughput must be from 0 to 1, found {:g}", options.survive),
                      "give a share from 0 to 1");
  if (options.survive > 0 && domains_of(offers).empty())
    throw input_error("the types have no `domain`",
                      "give each type its zone, region or spot pool, as in domain = \"east\"");
  if (!(options.startup_share >= 0))
    throw input_error("the start of a copy must not have a negative cost", "give a time, as in --startup \"10 min\"");
}

std::string copies_text(const Offers& offers, const RentProblem& problem, const std::vector<int>& shapes) {
  std::string text;
  for (const int c : shapes)
    text += fmt::format("{}{}", text.empty() ? "" : ", ",
                        offers.configurations[static_cast<std::size_t>(problem.shapes[c].configuration)].name);
  return text;
}

// The cheapest set of single copies that serves every class at any rate: below its price, nothing is of use.
std::vector<int> cheapest_useful(const RentProblem& problem, const RentOptions& options) {
  MilpModel model;
  std::vector<MilpRow> served(static_cast<std::size_t>(problem.classes), MilpRow{.lower = 1});
  std::vector<MilpRow> available(problem.available.size());
  for (const auto& shape : problem.shapes) {
    const int column = model.add_column({.cost = shape.usd_per_hour, .upper = 1, .integer = true});
    for (const auto& rate : shape.rates) served[rate.class_index].entries.push_back({column, 1});
    for (const auto& [type, count] : shape.devices)
      available[type].entries.push_back({column, static_cast<double>(count)});
  }
  for (auto& row : served) model.add_row(std::move(row));
  for (std::size_t n = 0; n < available.size(); ++n)
    if (problem.available[n] >= 0 && !available[n].entries.empty()) {
      available[n].upper = problem.available[n];
      model.add_row(std::move(available[n]));
    }
  const MilpAnswer answer = solve_milp(model, {.solver = options.solver, .time_limit_s = options.deadline_s});
  std::vector<int> chosen;
  for (std::size_t c = 0; c < answer.values.size(); ++c)
    if (answer.values[c] > 0.5) chosen.push_back(static_cast<int>(c));
  return chosen;
}

void refuse_budget(const Offers& offers, const RentProblem& problem, const RentOptions& options, RentOutcome& outcome) {
  const std::vector<int> useful = cheapest_useful(problem, options);
  if (useful.empty()) {
    outcome.reason = "the available devices cannot serve all classes at once";
    outcome.hint = "remove a class, or add devices";
    return;
  }
  double price = 0;
  for (const int c : useful) price += problem.shapes[c].usd_per_hour * (1 + options.startup_share);
  outcome.reason = fmt::format(
      "the budget of {:g} $/h carries 0 requests/s: the cheapest fleet that serves every class "
      "costs {:g} $/h ({})",
      options.budget_usd_per_hour, price, copies_text(offers, problem, useful));
  outcome.hint = fmt::format("give at least --budget \"{:g} $/h\"", std::ceil(price * 100 - 1e-6) / 100);
}

void refuse_demand(const Offers& offers, const RentProblem& problem, const FleetAnswer& answer, RentOutcome& outcome) {
  outcome.throughput_per_s = 0;
  if (answer.capacity <= 0 || answer.capacity >= 1 - milp_tolerance) {
    outcome.reason =
        "no fleet that carries the demand was found: the available devices carry it only with fractions of copies";
    outcome.hint = "add devices, or reduce the demand slightly";
    return;
  }
  std::vector<std::string> scarce;
  std::size_t n = 0;
  for (const auto& [name, type] : offers.types) {
    if (n < answer.prices.devices.size() && answer.prices.devices[n] > 1e-9 && problem.available[n] >= 0)
      scarce.push_back(name);
    ++n;
  }
  outcome.reason =
      fmt::format("all available devices together carry at most {:.1f} % of the demand", 100 * answer.capacity);
  outcome.hint = fmt::format("add {}, or reduce the demand to {:.0f} %", fmt::join(scarce, ", "),
                             std::floor(100 * answer.capacity));
}

RentAssignment shares_of(const Offers& offers, const RentProblem& problem, const std::vector<TimeShare>& times) {
  constexpr double least = 1e-9;  // smaller shares are rounding
  const std::vector<double> mix = class_mix(offers);
  RentAssignment assignment;
  int index = -1;
  for (std::size_t w = 0; w < mix.size(); ++w) {
    if (mix[w] <= 0) continue;
    ++index;
    std::map<std::string, double> levels;
    double sum = 0;
    for (const auto& share : times) {
      if (share.class_index != index) continue;
      const RentShape& shape = problem.shapes[share.shape];
      const auto rate = std::find_if(shape.rates.begin(), shape.rates.end(),
                                     [&](const ClassRate& candidate) { return candidate.class_index == index; });
      levels[offers.configurations[static_cast<std::size_t>(shape.configuration)].name] += share.copies * rate->level;
      sum += share.copies * rate->level;
    }
    std::erase_if(levels, [&](const auto& entry) { return entry.second <= least * sum; });
    sum = 0;
    for (const auto& [name, level] : levels) sum += level;
    for (auto& [name, level] : levels) level /= sum;
    assignment[offers.classes[w].name] = std::move(levels);
  }
  return assignment;
}

RentPlan write(const Offers& offers, const RentProblem& problem, const RentOptions& options,
               const FleetAnswer& answer) {
  RentPlan plan;
  plan.offers = offers;
  plan.goal = {.form = options.form,
               .budget_usd_per_hour = std::nullopt,
               .survive = options.survive,
               .startup_share = options.startup_share,
               .current = options.current};
  if (options.form == RentForm::budget) plan.goal.budget_usd_per_hour = options.budget_usd_per_hour;
  for (std::size_t c = 0; c < problem.shapes.size(); ++c) {
    if ((*answer.copies)[c] == 0) continue;
    const Configuration& configuration =
        offers.configurations[static_cast<std::size_t>(problem.shapes[c].configuration)];
    plan.fleet.push_back(
        {configuration.name, configuration.devices, (*answer.copies)[c], problem.shapes[c].usd_per_hour});
    plan.predicted.cost_usd_per_hour += problem.shapes[c].usd_per_hour * (*answer.copies)[c];
  }
  plan.predicted.startup_usd_per_hour = answer.cost - plan.predicted.cost_usd_per_hour;
  if (options.startup_share == 0) plan.predicted.startup_usd_per_hour = 0;
  plan.assignment = shares_of(offers, problem, answer.routing.times[0]);
  if (problem.domains > 0) {
    const std::vector<std::string> domains = domains_of(offers);
    for (std::size_t z = 0; z < domains.size(); ++z)
      plan.fallback[domains[z]] = shares_of(offers, problem, answer.routing.times[z + 1]);
  }
  plan.predicted.throughput_per_s = carried_per_s(offers, plan.fleet, plan.assignment);
  const double demand = total_demand_per_s(offers);
  if (options.form == RentForm::budget && problem.domains > 0)
    plan.predicted.throughput_per_s =
        std::min(plan.predicted.throughput_per_s, answer.routing.level * (demand > 0 ? demand : 1));
  if (demand > 0) plan.predicted.headroom = plan.predicted.throughput_per_s / demand;
  return plan;
}

SearchRecord record(const Offers& offers, const RentOptions& options, const FleetAnswer& answer) {
  SearchRecord search;
  search.planner = "rent/milp";
  search.objective = std::string(name_of(options.form));
  search.cost = "offers";
  search.seed = static_cast<std::int64_t>(options.seed);
  search.status = answer.exact ? SearchStatus::optimal : SearchStatus::gap;
  const double demand = total_demand_per_s(offers);
  search.bound = answer.bound * (options.form == RentForm::budget && demand > 0 ? demand : 1);
  search.gap = answer.gap;
  search.evaluated = answer.evaluated;
  return search;
}

void check_verified(const RentPlan& plan) {
  const std::vector<Violation> violations = verify(plan);
  if (!violations.empty())
    throw Error(ErrorCode::internal, fmt::format("the planner made a plan that does not verify: {}: {}",
                                                 violations[0].place, violations[0].what));
}

}  // namespace

RentOutcome plan_rent(const Offers& offers, const RentOptions& options) {
  const Instant start = Clock::now();
  check_goal(offers, options);
  RentOutcome outcome;
  const auto made = make_problem(offers, options);
  if (const Refusal* refusal = std::get_if<Refusal>(&made)) {
    outcome.reason = refusal->reason;
    outcome.hint = refusal->hint;
    return outcome;
  }
  const RentProblem& problem = std::get<RentProblem>(made);
  const bool compared = options.comparisons == Comparisons::made;
  const Instant searched = after(start, options.deadline_s * (compared ? search_share : 1));
  const FleetAnswer answer = solve_fleet(
      problem,
      {.solver = options.solver, .relative_gap = options.relative_gap, .pool = options.pool, .deadline = searched});
  if (!answer.copies || (options.form == RentForm::budget && answer.routing.level <= 0)) {
    if (options.form == RentForm::budget)
      refuse_budget(offers, problem, options, outcome);
    else
      refuse_demand(offers, problem, answer, outcome);
    return outcome;
  }
  RentPlan plan = write(offers, problem, options, answer);
  plan.search = record(offers, options, answer);
  if (!answer.exact && seconds_left(searched) <= 0) plan.search.status = SearchStatus::deadline;
  explain_prices(offers, problem, answer, plan.predicted);
  if (compared) {
    const Instant end = after(start, options.deadline_s);
    plan.predicted.homogeneous = homogeneous_fleets(offers, options, end);
    plan.predicted.slower = slower_cases(offers, options, plan, end);
  }
  plan.search.elapsed_s = seconds_since(start);
  check_verified(plan);
  outcome.throughput_per_s = plan.predicted.throughput_per_s;
  outcome.plan = std::move(plan);
  return outcome;
}

}  // namespace motley
