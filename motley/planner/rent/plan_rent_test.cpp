#include "motley/planner/rent/plan_rent.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "motley/base/error.hpp"
#include "motley/planner/rent/cases_test.hpp"
#include "motley/planner/rent/rent_fleet.hpp"
#include "motley/solve/cbc_test.hpp"

namespace motley {
namespace {

RentOptions budget(double usd_per_hour) {
  return {.form = RentForm::budget, .budget_usd_per_hour = usd_per_hour, .comparisons = Comparisons::skip};
}
RentOptions cheapest() { return {.form = RentForm::cheapest, .comparisons = Comparisons::skip}; }

RentPlan planned(const Offers& offers, const RentOptions& options) {
  const RentOutcome outcome = plan_rent(offers, options);
  if (!outcome.plan) throw input_error(outcome.reason, outcome.hint);
  EXPECT_TRUE(verify(*outcome.plan).empty());
  return *outcome.plan;
}

std::map<std::string, std::int64_t> copies(const RentPlan& plan) {
  std::map<std::string, std::int64_t> all;
  for (const auto& rented : plan.fleet) all[rented.configuration] = rented.copies;
  return all;
}

using Fleet = std::map<std::string, std::int64_t>;

std::vector<MilpSolver> solvers() {
  std::vector<MilpSolver> list = {MilpSolver::built_in};
  if (highs_available()) list.push_back(MilpSolver::highs);
  return list;
}

// ---- the worked examples, answers by hand ----

TEST(Rent, TheWorkedExampleTakes28_4314Seconds) {
  for (const MilpSolver solver : solvers()) {
    RentOptions options = budget(8);
    options.solver = solver;
    const RentPlan plan = planned(worked_example(), options);
    EXPECT_EQ(copies(plan), (Fleet{{"c1", 1}, {"c4", 1}}));
    EXPECT_NEAR(100 / plan.predicted.throughput_per_s, 1450.0 / 51, 1e-6);
    EXPECT_NEAR(plan.predicted.cost_usd_per_hour, 8, 1e-9);
    EXPECT_NEAR(plan.assignment.at("second").at("c1"), 1, 1e-6);
    EXPECT_NEAR(plan.assignment.at("first").at("c1"), 5.0 / 34, 1e-6);
    EXPECT_EQ(plan.search.status, SearchStatus::optimal);
  }
}

TEST(Rent, MelangesExampleAsAFluidCosts4_68) {
  for (const MilpSolver solver : solvers()) {
    RentOptions options = cheapest();
    options.solver = solver;
    const RentPlan plan = planned(melange_example(), options);
    EXPECT_EQ(copies(plan), (Fleet{{"A", 1}, {"B", 1}}));
    EXPECT_NEAR(plan.predicted.cost_usd_per_hour, 4.68, 1e-9);
    EXPECT_NEAR(*plan.predicted.headroom, 1, 1e-6);
    EXPECT_NEAR(plan.assignment.at("c").at("A"), 1.0 / 3, 1e-6);
  }
}

TEST(Rent, TwoShapesCost2_60) {
  const RentPlan plan = planned(two_shapes(), cheapest());
  EXPECT_EQ(copies(plan), (Fleet{{"A", 1}, {"B", 1}}));
  EXPECT_NEAR(plan.predicted.cost_usd_per_hour, 2.6, 1e-9);
}

TEST(Rent, TwoTargetsCost96ADayWithSixteenFifteenthsHeadroom) {
  RentOptions options = cheapest();
  options.comparisons = Comparisons::made;
  const RentPlan plan = planned(two_targets(), options);
  EXPECT_EQ(copies(plan), (Fleet{{"SA", 1}, {"SB", 1}}));
  EXPECT_NEAR(plan.predicted.cost_usd_per_hour * 24, 96, 1e-9);
  EXPECT_NEAR(*plan.predicted.headroom, 5.333 / 5, 1e-8);
  // The best single type: two of the large one.
  ASSERT_EQ(plan.predicted.homogeneous.size(), 2u);
  EXPECT_EQ(plan.predicted.homogeneous[0].type, "large");
  EXPECT_NEAR(*plan.predicted.homogeneous[0].unlimited * 24, 144, 1e-9);
  EXPECT_FALSE(plan.predicted.homogeneous[1].unlimited);  // the small one cannot serve the long class
}

// One cheap card and dear ones, half a request per second each: the dear ones' price is the margin, and one cheap card
// more would save the difference.
TEST(Rent, PricesSayWhatMoreWouldCostAndWhatMoreDevicesAreWorth) {
  Offers offers;
  offers.classes = {class_of_demand("c", 0.8)};
  offers.types = {{"cheap", type_at(1, 1)}, {"dear", type_at(3)}};
  offers.configurations = {shape_of("C", {{"cheap", 1}}, {0.5}), shape_of("D", {{"dear", 1}}, {0.5})};
  const RentPrediction cheap = planned(offers, cheapest()).predicted;
  EXPECT_NEAR(cheap.shadow_price_usd_per_hour.at("cheap"), 2, 1e-6);
  EXPECT_NEAR(cheap.shadow_price_usd_per_hour.at("dear"), 0, 1e-6);
  // 3 $/h for half a request per second: 6 $ for 3600 requests, of which the cheap card's scarcity is two thirds.
  EXPECT_NEAR(cheap.classes.at("c").usd_per_1000_requests, 6.0 / 3.6, 1e-6);
  EXPECT_NEAR(cheap.classes.at("c").scarcity_share, 2.0 / 3, 1e-6);
  EXPECT_EQ(cheap.classes.at("c").binding, "available cheap");

  offers.classes = {class_of_share("c", 1)};
  const RentPrediction rich = planned(offers, budget(4)).predicted;
  EXPECT_NEAR(rich.shadow_price_usd_per_hour.at("cheap"), 2, 1e-6) << "in money, whatever a request is worth";
}

TEST(Rent, SlowerDevicesCarryLessAndMoreAreNeeded) {
  Offers offers;
  offers.classes = {class_of_demand("c", 2)};
  offers.types = {{"A", type_at(2)}};
  offers.configurations = {shape_of("A", {{"A", 1}}, {0.5})};
  RentOptions options = cheapest();
  options.comparisons = Comparisons::made;
  const RentPlan plan = planned(offers, options);
  ASSERT_EQ(plan.predicted.slower.size(), 2u);
  EXPECT_EQ(plan.predicted.slower[0].factor, 1.25);
  EXPECT_NEAR(plan.predicted.slower[0].throughput_per_s, 1.6, 1e-6);
  EXPECT_NEAR(*plan.predicted.slower[0].replanned_usd_per_hour, 10, 1e-6);
  EXPECT_NEAR(plan.predicted.slower[1].throughput_per_s, 4 / 3.0, 1e-6);
  EXPECT_NEAR(*plan.predicted.slower[1].replanned_usd_per_hour, 12, 1e-6);
}

// Two devices where the other has one: no better offer, where the first is scarce.
TEST(Rent, AShapeIsUselessOnlyBesideOneThatNeedsNoMore) {
  Offers offers;
  offers.classes = {class_of_demand("c", 1)};
  offers.types = {{"A", type_at(1, 2)}, {"B", type_at(2)}};
  offers.configurations = {shape_of("one", {{"A", 1}, {"B", 1}}, {0.5}), shape_of("two", {{"A", 2}}, {0.6})};
  EXPECT_EQ(undominated(std::get<RentProblem>(make_problem(offers, cheapest()))).size(), 2u);
  // What runs already is kept, whatever else there is.
  offers.configurations[1].rate_per_s = {0.4};
  offers.configurations[1].devices = {{"A", 1}, {"B", 2}};
  EXPECT_EQ(undominated(std::get<RentProblem>(make_problem(offers, cheapest()))).size(), 1u);
  RentOptions running = cheapest();
  running.current["two"] = 1;
  EXPECT_EQ(undominated(std::get<RentProblem>(make_problem(offers, running))).size(), 2u);
}

// ---- nothing to rent ----

TEST(Rent, AClassThatNobodyHostsIsNamedBeforeAnySolve) {
  Offers offers = two_targets();
  offers.configurations.pop_back();
  const RentOutcome outcome = plan_rent(offers, cheapest());
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::HasSubstr("\"long\""));
  EXPECT_THAT(outcome.hint, testing::Not(testing::IsEmpty()));
  const auto made = make_problem(offers, cheapest());
  EXPECT_TRUE(std::holds_alternative<Refusal>(made));
}

TEST(Rent, AClassWhoseConfigurationsNeedMoreDevicesThanThereAreIsNamed) {
  Offers offers = two_targets();
  offers.types["large"].available = 0;
  const RentOutcome outcome = plan_rent(offers, cheapest());
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::AllOf(testing::HasSubstr("\"long\""), testing::HasSubstr("large"),
                                             testing::HasSubstr("only 0")));
}

TEST(Rent, ABudgetBelowTheCheapestUsefulFleetCarriesNothingAndSaysWhatWould) {
  Offers offers = two_targets();
  const RentOutcome outcome = plan_rent(offers, budget(2.5));
  EXPECT_FALSE(outcome.plan);
  EXPECT_EQ(outcome.throughput_per_s, 0);
  EXPECT_THAT(outcome.reason, testing::AllOf(testing::HasSubstr("0 requests/s"), testing::HasSubstr("3 $/h"),
                                             testing::HasSubstr("SB")));
  EXPECT_THAT(outcome.hint, testing::HasSubstr("3 $/h"));
  EXPECT_TRUE(plan_rent(offers, budget(3)).plan);  // the nearest thing that would work works
}

TEST(Rent, TwoShapesThatAreEachPaidForMayNotBePaidForTogether) {
  Offers offers;
  offers.classes = {class_of_share("a", 0.5), class_of_share("b", 0.5)};
  offers.types = {{"A", type_at(2)}, {"B", type_at(3)}};
  offers.configurations = {shape_of("A", {{"A", 1}}, {1, 0}), shape_of("B", {{"B", 1}}, {0, 1})};
  const RentOutcome outcome = plan_rent(offers, budget(4));
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::HasSubstr("5 $/h"));
}

TEST(Rent, ADemandBeyondWhatIsAvailableSaysHowMuchCouldBeCarried) {
  Offers offers = two_shapes();
  offers.types["A"].available = 1;
  offers.types["B"].available = 0;
  const RentOutcome outcome = plan_rent(offers, cheapest());
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::HasSubstr("33.3 %"));
}

TEST(Rent, WhatContradictsItselfIsRefused) {
  EXPECT_THROW(plan_rent(worked_example(), cheapest()), Error);  // shares are no demand
  RentOptions survive = cheapest();
  survive.survive = 0.5;
  EXPECT_THROW(plan_rent(two_shapes(), survive), Error);  // no domain to lose
  EXPECT_THROW(plan_rent({}, cheapest()), Error);
  Offers offers = two_shapes();
  offers.configurations[0].rate_per_s.push_back(1);
  EXPECT_THROW(plan_rent(offers, cheapest()), Error);
}

// ---- against enumeration ----

// The best figure over all fleets of up to `most` copies of each shape, the inner programme by CBC's rival: the
// simplex.
std::optional<double> enumerated(const RentProblem& problem, int most) {
  std::optional<double> best;
  Copies fleet(problem.shapes.size(), 0);
  std::function<void(std::size_t)> grow = [&](std::size_t c) {
    if (c < fleet.size()) {
      for (fleet[c] = 0; fleet[c] <= most; ++fleet[c]) grow(c + 1);
      fleet[c] = 0;
      return;
    }
    double cost = 0;
    std::vector<int> used(problem.available.size(), 0);
    for (std::size_t i = 0; i < fleet.size(); ++i) {
      cost += problem.cost(problem.shapes[i], fleet[i]);
      for (const auto& [type, count] : problem.shapes[i].devices) used[type] += count * fleet[i];
    }
    for (std::size_t n = 0; n < used.size(); ++n)
      if (problem.available[n] >= 0 && used[n] > problem.available[n]) return;
    if (problem.form == RentForm::cheapest && best && cost >= *best) return;
    if (problem.form == RentForm::budget && cost > problem.budget_usd_per_hour * (1 + 1e-12)) return;
    const double level = route(problem, fleet).level;
    if (problem.form == RentForm::cheapest) {
      if (level >= 1 - 1e-9) best = cost;
    } else if (level > best.value_or(0)) {
      best = level;
    }
  };
  grow(0);
  return best;
}

void expect_enumerated(std::uint64_t seed, const RentOptions& given, bool domains) {
  Draw draw(seed + 5000);
  const bool demands = given.form == RentForm::cheapest || draw.chance(0.5);
  Offers offers = random_market(seed, {.shapes = draw.integer(2, 4),
                                       .classes = draw.integer(1, 3),
                                       .types = draw.integer(2, 3),
                                       .most_available = 6,
                                       .demands = demands,
                                       .domains = domains});
  for (auto& [name, type] : offers.types) type.available = std::min<std::int64_t>(6, type.available.value_or(6));
  RentOptions options = given;
  if (options.startup_share > 0)
    for (const auto& configuration : offers.configurations)
      if (draw.chance(0.5)) options.current[configuration.name] = draw.integer(1, 3);
  const auto made = make_problem(offers, options);
  if (std::holds_alternative<Refusal>(made)) {
    EXPECT_FALSE(plan_rent(offers, options).plan);
    return;
  }
  const RentProblem& problem = std::get<RentProblem>(made);
  const std::optional<double> truth = enumerated(problem, 6);
  for (const MilpSolver solver : solvers()) {
    options.solver = solver;
    const RentOutcome outcome = plan_rent(offers, options);
    ASSERT_EQ(outcome.plan.has_value(), truth.has_value()) << "seed " << seed << ": " << outcome.reason;
    if (!truth) continue;
    const RentPrediction& predicted = outcome.plan->predicted;
    const double demand = total_demand_per_s(offers);
    const double value = options.form == RentForm::cheapest
                             ? predicted.cost_usd_per_hour + predicted.startup_usd_per_hour
                             : predicted.throughput_per_s / (demand > 0 ? demand : 1);
    EXPECT_NEAR(value, *truth, 1e-6 * *truth) << "seed " << seed << " solver " << static_cast<int>(solver);
    const double bound = *outcome.plan->search.bound / (options.form == RentForm::budget && demand > 0 ? demand : 1);
    if (options.form == RentForm::cheapest)
      EXPECT_LE(bound, *truth * (1 + 1e-6)) << "seed " << seed;
    else
      EXPECT_GE(bound, *truth * (1 - 1e-6)) << "seed " << seed;
    EXPECT_TRUE(verify(*outcome.plan).empty());
  }
}

// What stays outside a pool is not forgotten: the pool grows until nothing there could be better.
TEST(Rent, PoolsThatBeginWithOneShapeEqualEnumeration) {
  for (std::uint64_t seed = 400; seed < 425; ++seed) {
    RentOptions options = seed % 2 == 0 ? cheapest() : budget(Draw(seed).between(2, 20));
    options.pool = 1;
    expect_enumerated(seed, options, false);
  }
}

TEST(Rent, TheBudgetFormEqualsEnumeration) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) expect_enumerated(seed, budget(Draw(seed).between(2, 20)), false);
}

TEST(Rent, TheCheapestFormEqualsEnumeration) {
  for (std::uint64_t seed = 100; seed < 150; ++seed) expect_enumerated(seed, cheapest(), false);
}

TEST(Rent, SurvivingTheLossOfADomainEqualsEnumeration) {
  for (std::uint64_t seed = 200; seed < 225; ++seed) {
    RentOptions options = seed % 2 == 0 ? cheapest() : budget(Draw(seed).between(6, 25));
    options.survive = seed % 3 == 0 ? 1 : 0.5;
    expect_enumerated(seed, options, true);
  }
}

TEST(Rent, SwitchingCostEqualsEnumeration) {
  for (std::uint64_t seed = 300; seed < 325; ++seed) {
    RentOptions options = seed % 2 == 0 ? cheapest() : budget(Draw(seed).between(4, 20));
    options.startup_share = 0.4;
    expect_enumerated(seed, options, false);
  }
}

// ---- what must not change, and what must not get worse ----

double throughput(const Offers& offers, const RentOptions& options) {
  const RentOutcome outcome = plan_rent(offers, options);
  return outcome.plan ? outcome.plan->predicted.throughput_per_s : 0;
}

TEST(RentInvariants, PricesAndBudgetScaleTogether) {
  for (std::uint64_t seed = 0; seed < 15; ++seed) {
    Offers offers = random_market(seed, {.shapes = 8, .classes = 3, .types = 4, .demands = false});
    const double before = throughput(offers, budget(10));
    for (auto& [name, type] : offers.types) type.usd_per_hour *= 7;
    EXPECT_NEAR(throughput(offers, budget(70)), before, 2e-6 * std::max(1.0, before));
  }
}

TEST(RentInvariants, TwiceTheDemandIsHalfTheHeadroom) {
  for (std::uint64_t seed = 20; seed < 30; ++seed) {
    Offers offers = random_market(seed, {.shapes = 8, .classes = 3, .types = 4});
    const RentOutcome before = plan_rent(offers, budget(10));
    for (auto& one : offers.classes) *one.demand_per_s *= 2;
    const RentOutcome after = plan_rent(offers, budget(10));
    ASSERT_EQ(before.plan.has_value(), after.plan.has_value());
    if (!before.plan) continue;
    EXPECT_NEAR(*after.plan->predicted.headroom * 2, *before.plan->predicted.headroom,
                2e-6 * *before.plan->predicted.headroom);
  }
}

TEST(RentInvariants, HalvedClassesDoubledShapesAndDominatedShapesChangeNothing) {
  for (std::uint64_t seed = 40; seed < 50; ++seed) {
    const Offers offers = random_market(seed, {.shapes = 8, .classes = 3, .types = 4, .demands = false});
    const double truth = throughput(offers, budget(10));
    Offers halves = offers;
    halves.classes[0].share = *halves.classes[0].share / 2;
    halves.classes.push_back(halves.classes[0]);
    halves.classes.back().name = "other half";
    for (auto& shape : halves.configurations) shape.rate_per_s.push_back(shape.rate_per_s[0]);
    EXPECT_NEAR(throughput(halves, budget(10)), truth, 2e-6 * std::max(1.0, truth));

    Offers twice = offers;
    twice.configurations.push_back(offers.configurations[0]);
    twice.configurations.back().name = "again";
    EXPECT_NEAR(throughput(twice, budget(10)), truth, 2e-6 * std::max(1.0, truth));

    Offers worse = offers;
    worse.configurations.push_back(offers.configurations[0]);
    worse.configurations.back().name = "slower";
    for (double& rate : worse.configurations.back().rate_per_s) rate *= 0.9;
    EXPECT_NEAR(throughput(worse, budget(10)), truth, 2e-6 * std::max(1.0, truth));
    const auto made = make_problem(worse, budget(10));
    const auto* problem = std::get_if<RentProblem>(&made);
    if (!problem) continue;
    for (const int c : undominated(*problem))
      EXPECT_NE(worse.configurations[problem->shapes[c].configuration].name, "slower");
  }
}

TEST(RentInvariants, MoreMoneyAndMoreDevicesNeverCarryLess) {
  for (std::uint64_t seed = 60; seed < 70; ++seed) {
    Offers offers = random_market(seed, {.shapes = 8, .classes = 3, .types = 4, .demands = false});
    double last = 0;
    for (const double money : {3.0, 5.0, 8.0, 13.0, 21.0}) {
      const double now = throughput(offers, budget(money));
      EXPECT_GE(now, last * (1 - 2e-6));
      last = now;
    }
    for (auto& [name, type] : offers.types)
      if (type.available) ++*type.available;
    EXPECT_GE(throughput(offers, budget(21)), last * (1 - 2e-6));
  }
}

// ---- solvers, prices, pools ----

TEST(RentFamily, CbcTheBuiltInSolverAndHighsAgree) {
  int compared = 0;
  for (std::uint64_t seed = 400; seed < 425; ++seed) {
    const RentOptions options = seed % 2 == 0 ? cheapest() : budget(12);
    const Offers offers = random_market(seed, {.shapes = 8, .classes = 3, .types = 4, .most_available = 12});
    const auto made = make_problem(offers, options);
    const auto* problem = std::get_if<RentProblem>(&made);
    if (!problem || problem->level_bound <= 0) continue;
    const FamilyModel family = build_family(*problem, undominated(*problem), Aim::goal);
    const MilpAnswer reference = solve_cbc(family.milp);
    for (const MilpSolver solver : solvers()) {
      const MilpAnswer answer = solve_milp(family.milp, {.solver = solver, .relative_gap = 1e-9});
      ASSERT_EQ(answer.status, reference.status) << "seed " << seed;
      if (!answer.has_solution()) continue;
      EXPECT_NEAR(answer.objective, reference.objective, 1e-6 * std::max(1.0, std::abs(reference.objective)));
    }
    compared += reference.has_solution() ? 1 : 0;
  }
  EXPECT_GT(compared, 12);
}

// The loosened relaxation's level and its prices.
std::pair<double, Prices> loosened(const Offers& offers, const RentOptions& options) {
  const RentProblem problem = std::get<RentProblem>(make_problem(offers, options));
  FamilyModel family = build_family(problem, undominated(problem), Aim::goal);
  loosen(family);
  const MilpAnswer answer = solve_milp(family.milp, {.integrality = Integrality::relaxed});
  return {answer.objective * problem.level_bound, prices_of(problem, family, answer.row_duals)};
}

TEST(RentFamily, OneMoreDeviceIsWorthAtMostItsShadowPrice) {
  int binding = 0;
  for (std::uint64_t seed = 500; seed < 520; ++seed) {
    Offers offers =
        random_market(seed, {.shapes = 10, .classes = 3, .types = 4, .most_available = 6, .demands = false});
    const RentOptions options = budget(25);
    // Enough for one copy of every shape: a first copy that one more device makes possible is worth more.
    for (auto& [name, type] : offers.types)
      if (type.available) type.available = std::max<std::int64_t>(*type.available, 5);
    if (std::holds_alternative<Refusal>(make_problem(offers, options))) continue;
    const auto [level, prices] = loosened(offers, options);
    std::size_t n = 0;
    for (auto& [name, type] : offers.types) {
      const double worth = prices.devices[n++];
      if (!type.available) {
        EXPECT_EQ(worth, 0);
        continue;
      }
      ++*type.available;
      const double gained = loosened(offers, options).first - level;
      EXPECT_GE(gained, -1e-7);
      EXPECT_LE(gained, worth * (1 + 1e-6) + 1e-7) << "seed " << seed << " " << name;
      binding += worth > 1e-6 ? 1 : 0;
      --*type.available;
    }
  }
  EXPECT_GT(binding, 5);
}

TEST(Rent, PoolsOfManyColumnsTellTheirTrueGap) {
  Offers offers = random_market(600, {.shapes = 2500, .classes = 4, .types = 8, .demands = true});
  for (auto& one : offers.classes) *one.demand_per_s *= 20;
  for (auto& [name, type] : offers.types) type.available = 60;
  const RentProblem problem = std::get<RentProblem>(make_problem(offers, cheapest()));
  const MilpAnswer whole = solve_milp(build_family(problem, undominated(problem), Aim::goal).milp,
                                      {.integrality = Integrality::relaxed, .time_limit_s = 60});
  ASSERT_EQ(whole.status, MilpStatus::optimal);
  std::vector<RentPlan> plans;
  for (const std::int64_t pool : {30, 300}) {
    RentOptions options = cheapest();
    options.relative_gap = 1e-2;
    options.pool = pool;
    plans.push_back(planned(offers, options));
    EXPECT_LE(*plans.back().search.gap, 1e-2);
    // Column generation over part of the columns proves what the relaxation over all does.
    EXPECT_GE(*plans.back().search.bound, whole.objective * (1 - 1e-6));
    EXPECT_LE(plans.back().predicted.cost_usd_per_hour, whole.objective * 1.05);
  }
  EXPECT_LE(*plans[0].search.bound, plans[1].predicted.cost_usd_per_hour * (1 + 1e-9));
  EXPECT_LE(*plans[1].search.bound, plans[0].predicted.cost_usd_per_hour * (1 + 1e-9));
}

// ---- a thousand markets through the checker ----

TEST(Rent, AThousandMarketsPassTheCheckerAndTheCertificates) {
  int planned_count = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Draw draw(seed + 90000);
    const bool domains = draw.chance(0.2);
    const bool least_cost = draw.chance(0.5);
    const Offers offers = random_market(seed + 10000, {.shapes = draw.integer(2, 14),
                                                       .classes = draw.integer(1, 5),
                                                       .types = draw.integer(1, 5),
                                                       .most_available = draw.integer(1, 12),
                                                       .demands = least_cost || draw.chance(0.5),
                                                       .domains = domains});
    RentOptions options = least_cost ? cheapest() : budget(draw.between(0.5, 30));
    if (domains) options.survive = draw.between(0.1, 1);
    if (draw.chance(0.2)) {
      options.startup_share = draw.between(0, 1);
      options.current = {{"c00000", 1}, {"c00001", 2}};
    }
    options.solver = seed % 2 == 0 ? MilpSolver::best : MilpSolver::built_in;
    const RentOutcome outcome = plan_rent(offers, options);
    if (!outcome.plan) {
      EXPECT_FALSE(outcome.reason.empty()) << "seed " << seed;
      EXPECT_FALSE(outcome.hint.empty()) << "seed " << seed;
      continue;
    }
    ++planned_count;
    const auto violations = verify(*outcome.plan);
    EXPECT_TRUE(violations.empty()) << "seed " << seed << ": " << violations[0].place << " " << violations[0].what;
    EXPECT_EQ(outcome.plan->search.status, SearchStatus::optimal) << "seed " << seed;
    // The certificates that need no solver.
    const RentProblem problem = std::get<RentProblem>(make_problem(offers, options));
    const RentPrediction& predicted = outcome.plan->predicted;
    if (least_cost) {
      EXPECT_GE(predicted.cost_usd_per_hour, problem.cost_bound * (1 - 1e-9)) << "seed " << seed;
      EXPECT_GE(predicted.cost_usd_per_hour + predicted.startup_usd_per_hour, *outcome.plan->search.bound * (1 - 1e-6))
          << "seed " << seed;
    } else {
      const double demand = total_demand_per_s(offers);
      const double level = predicted.throughput_per_s / (demand > 0 ? demand : 1);
      EXPECT_LE(level, problem.level_bound * (1 + 1e-9)) << "seed " << seed;
      EXPECT_LE(predicted.throughput_per_s, *outcome.plan->search.bound * (1 + 1e-6)) << "seed " << seed;
    }
  }
  EXPECT_GT(planned_count, 600);
}

}  // namespace
}  // namespace motley
