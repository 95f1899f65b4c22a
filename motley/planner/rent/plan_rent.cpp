#include "motley/planner/rent/plan_rent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/clock.hpp"
#include "motley/planner/rent/compare.hpp"
#include "motley/planner/rent/rent_fleet.hpp"

namespace motley {
namespace {

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
