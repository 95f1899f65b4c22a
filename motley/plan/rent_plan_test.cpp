#include "motley/plan/rent_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "motley/base/error.hpp"
#include "motley/base/reference_test.hpp"

namespace motley {
namespace {

constexpr const char* offers_text = R"({
 "format": "motley.offers/1",
 "classes": [{"name": "first", "share": 0.8}, {"name": "second", "share": 0.2}],
 "types": {"t1": {"price_usd_per_hour": 4, "available": 2, "domain": "a"},
           "t2": {"price": "2 $/h", "available": 2, "domain": "b"}},
 "configurations": [{"name": "c1", "devices": {"t1": 1}, "rate_per_s": [1.0, 1.2]},
                    {"name": "c4", "devices": {"t2": 2}, "rate_per_s": [2.4, 1.5]}]
})";

Offers offers() { return read<Offers>(parse_json(offers_text, "offers.json"), "offers.json"); }

// The worked example of arXiv 2502.00722: one c1 and one c4 carry 100 requests in 1450/51 s.
RentPlan rent_example() {
  RentPlan plan;
  plan.offers = offers();
  plan.goal = {.form = RentForm::budget, .budget_usd_per_hour = 8, .survive = 0, .startup_share = 0, .current = {}};
  plan.fleet = {{"c1", {{"t1", 1}}, 1, 4}, {"c4", {{"t2", 2}}, 1, 4}};
  plan.assignment = {{"first", {{"c1", 5.0 / 34}, {"c4", 29.0 / 34}}}, {"second", {{"c1", 1}}}};
  plan.predicted.throughput_per_s = 100 * 51.0 / 1450;
  plan.predicted.cost_usd_per_hour = 8;
  return plan;
}

TEST(RentPlan, PricesAreReadInBothForms) {
  EXPECT_EQ(offers().types.at("t1").usd_per_hour, 4);
  EXPECT_EQ(offers().types.at("t2").usd_per_hour, 2);
  EXPECT_EQ(read<Offers>(write(offers()), "again"), offers());
}

TEST(RentPlan, WhatItWritesItReads) {
  RentPlan plan = rent_example();
  plan.goal.current = {{"c1", 1}};
  plan.predicted.slower = {{"t1", 1.25, 3, 9.5}};
  plan.fallback = {{"a", {{"first", {{"c4", 1}}}}}};
  plan.workload = default_workload();
  EXPECT_EQ(read_plan<RentPlan>(parse_json(to_json(write(plan)), "plan"), "plan"), plan);
}

TEST(RentPlan, TheWorkedExampleIsSound) {
  EXPECT_NEAR(100 / carried_per_s(rent_example().offers, rent_example().fleet, rent_example().assignment), 1450.0 / 51,
              1e-9);
  EXPECT_TRUE(verify(rent_example()).empty());
}

TEST(RentPlan, EveryDecisionIsChecked) {
  const auto broken = [](const std::function<void(RentPlan&)>& change) {
    RentPlan plan = rent_example();
    change(plan);
    std::string all;
    for (const auto& violation : verify(plan)) all += violation.place + ": " + violation.what + "\n";
    return all;
  };
  using testing::HasSubstr;
  EXPECT_THAT(broken([](RentPlan& p) { p.fleet.clear(); }), HasSubstr("nothing is rented"));
  EXPECT_THAT(broken([](RentPlan& p) { p.fleet[0].configuration = "c9"; }), HasSubstr("not offered"));
  EXPECT_THAT(broken([](RentPlan& p) { p.fleet[0].devices["t1"] = 2; }),
              HasSubstr("the devices are not those of configuration \"c1\""));
  EXPECT_THAT(broken([](RentPlan& p) { p.fleet[1].usd_per_hour = 1; }), HasSubstr("costs 4"));
  EXPECT_THAT(broken([](RentPlan& p) { p.fleet[1].copies = 2; }), HasSubstr("4 are rented, but only 2 are available"));
  EXPECT_THAT(broken([](RentPlan& p) { p.fleet[0].copies = 3; }), HasSubstr("3 are rented, but only 2 are available"));
  EXPECT_THAT(broken([](RentPlan& p) { p.fleet.push_back(p.fleet[0]); }), HasSubstr("is listed twice"));
  EXPECT_THAT(broken([](RentPlan& p) {
                p.goal.budget_usd_per_hour = 11;
                p.goal.startup_share = 0.5;
                p.predicted.startup_usd_per_hour = 4;
              }),
              HasSubstr("the fleet costs 12 $/h, but the budget is 11"));
  EXPECT_THAT(broken([](RentPlan& p) {
                p.assignment["first"] = {{"c1", -0.25}, {"c4", 1}};
              }),
              HasSubstr("has a share of -0.25"));
  EXPECT_THAT(broken([](RentPlan& p) {
                p.goal.survive = 0.5;
                p.predicted.throughput_per_s *= 1.001;
              }),
              HasSubstr("the shares carry"));
  EXPECT_THAT(broken([](RentPlan& p) { p.goal.budget_usd_per_hour = 7; }), HasSubstr("the budget is 7"));
  EXPECT_THAT(broken([](RentPlan& p) { p.goal.budget_usd_per_hour.reset(); }),
              HasSubstr("goal: the form `budget` has no budget_usd_per_hour"));
  EXPECT_THAT(broken([](RentPlan& p) {
                for (auto& one : p.offers.classes) {
                  one.demand_per_s = 5 * *one.share;
                  one.share.reset();
                }
                p.predicted.headroom = 2;
              }),
              HasSubstr("predicted.headroom: 2 is predicted, but it is 0.703448"));
  EXPECT_THAT(broken([](RentPlan& p) { p.predicted.cost_usd_per_hour = 7; }), HasSubstr("the fleet costs 8"));
  EXPECT_THAT(broken([](RentPlan& p) { p.predicted.throughput_per_s *= 1.001; }), HasSubstr("the shares carry"));
  EXPECT_THAT(broken([](RentPlan& p) { p.assignment.erase("second"); }), HasSubstr("has no destination"));
  EXPECT_THAT(broken([](RentPlan& p) { p.assignment["third"]["c1"] = 1; }),
              HasSubstr("class \"third\" does not exist"));
  EXPECT_THAT(broken([](RentPlan& p) { p.assignment["first"]["c1"] = 0.5; }), HasSubstr("sum to 1.35"));
  EXPECT_THAT(broken([](RentPlan& p) { p.assignment["second"] = {{"c2", 1}}; }), HasSubstr("not rented"));
  EXPECT_THAT(broken([](RentPlan& p) { p.offers.configurations[0].rate_per_s[1] = 0; }), HasSubstr("cannot serve"));
  EXPECT_THAT(broken([](RentPlan& p) { p.goal.survive = 0.5; }), HasSubstr("fallback.a: is missing"));
  EXPECT_THAT(broken([](RentPlan& p) {
                p.goal.survive = 0.5;
                p.fallback["a"] = p.fallback["b"] = p.assignment;
              }),
              HasSubstr("lost with a"));
  EXPECT_THAT(broken([](RentPlan& p) {
                p.goal.startup_share = 0.5;
                p.goal.current["c1"] = 1;
              }),
              HasSubstr("new copies cost 2"));
  EXPECT_THAT(broken([](RentPlan& p) {
                p.goal.form = RentForm::cheapest;
                for (auto& one : p.offers.classes) {
                  one.demand_per_s = 5 * *one.share;
                  one.share.reset();
                }
              }),
              HasSubstr("of the demanded 5"));
}

// Without c1 one c4 carries a request of the mix in 0.8 / 2.4 + 0.2 / 1.5 s: 15 / 7 per second of 3.52.
TEST(RentPlan, WhatIsLeftAfterALossIsCounted) {
  RentPlan plan = rent_example();
  plan.offers.types["t2"].domain.clear();
  plan.fallback["a"] = {{"first", {{"c4", 1}}}, {"second", {{"c4", 1}}}};
  plan.goal.survive = 0.6;
  EXPECT_TRUE(verify(plan).empty());
  plan.goal.survive = 0.62;
  ASSERT_EQ(verify(plan).size(), 1u);
  EXPECT_EQ(verify(plan)[0].place, "fallback.a");
  EXPECT_THAT(verify(plan)[0].what, testing::HasSubstr("2.14286 requests/s are left"));
  // Where the demand is given, it is what must be left of, not what the fleet could carry.
  plan.goal.form = RentForm::cheapest;
  for (auto& one : plan.offers.classes) {
    one.demand_per_s = 3 * *one.share;
    one.share.reset();
  }
  plan.goal.survive = 0.7;
  EXPECT_TRUE(verify(plan).empty());
  plan.goal.survive = 0.72;
  EXPECT_EQ(verify(plan).size(), 1u);
}

TEST(RentPlan, CopiesAndUtilisationScaleWhatIsCarried) {
  RentPlan plan = rent_example();
  const double once = carried_per_s(plan.offers, plan.fleet, plan.assignment);
  plan.offers.utilisation = 0.5;
  EXPECT_NEAR(carried_per_s(plan.offers, plan.fleet, plan.assignment), 0.5 * once, 1e-12);
  for (auto& rented : plan.fleet) rented.copies = 3;
  EXPECT_NEAR(carried_per_s(plan.offers, plan.fleet, plan.assignment), 1.5 * once, 1e-12);
  plan.fleet[0].copies = 1;
  EXPECT_LT(carried_per_s(plan.offers, plan.fleet, plan.assignment), 1.5 * once);
}

// Nine cards in stages of three: eight slots hold two stages.
TEST(RentPlan, RentedMachinesHoldWholeStages) {
  RentPlan plan;
  plan.offers = read<Offers>(parse_json(R"({
 "format": "motley.offers/1",
 "classes": [{"name": "all", "share": 1}],
 "types": {"A6000": {"price": "2 $/h"}},
 "configurations": [{"name": "nine", "devices": {"A6000": 9}, "rate_per_s": [1]}]
})",
                                        "offers.json"),
                             "offers.json");
  plan.offers.configurations[0].stages = {{.device_type = "A6000", .degree = 3},
                                          {.device_type = "A6000", .degree = 3},
                                          {.device_type = "A6000", .degree = 3}};
  plan.fleet = {{"nine", {{"A6000", 9}}, 2, 18}};
  const ClusterDescription cluster = rented_cluster(plan);
  ASSERT_EQ(cluster.machines.size(), 2u);
  EXPECT_EQ(cluster.machines[0].devices, std::vector<std::string>{"A6000*6"});
  EXPECT_EQ(cluster.machines[1].devices, std::vector<std::string>{"A6000*3"});
  EXPECT_EQ(cluster.machines[0].usd_per_hour, 12);
  EXPECT_EQ(cluster.machines[1].usd_per_hour, 6);
  EXPECT_EQ(cluster.machines[1].count, 2);
  EXPECT_FALSE(cluster.network.between_sites) << "all at one place";
}

TEST(RentPlan, OffersThatContradictThemselvesAreRefused) {
  const auto refused = [](const std::string& from, const std::string& to) {
    std::string text = offers_text;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    try {
      read<Offers>(parse_json(text, "offers.json"), "offers.json");
    } catch (const Error& error) {
      EXPECT_FALSE(error.hint().empty()) << error.what();
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused("\"share\": 0.8", "\"share\": 0.7"), HasSubstr("sum to 0.9"));
  EXPECT_THAT(refused("\"share\": 0.8", "\"demand_per_s\": 4"), HasSubstr("some classes have a demand"));
  EXPECT_THAT(refused("\"share\": 0.8", "\"share\": 0.8, \"demand_per_s\": 4"), HasSubstr("not both"));
  EXPECT_THAT(refused(", \"share\": 0.8", ""), HasSubstr("not nothing"));
  EXPECT_THAT(refused("\"second\"", "\"first\""), HasSubstr("given twice"));
  EXPECT_THAT(refused("[1.0, 1.2]", "[1.0]"), HasSubstr("1 rates for 2 classes"));
  EXPECT_THAT(refused("{\"t2\": 2}", "{\"t3\": 2}"), HasSubstr("not among the types"));
  EXPECT_THAT(refused("{\"t2\": 2}", "{}"), HasSubstr("no devices"));
  EXPECT_THAT(refused("\"price\": \"2 $/h\", ", ""), HasSubstr("the price is missing"));
  EXPECT_THAT(refused("\"price\": \"2 $/h\"", "\"price\": \"2 $/h\", \"price_usd_per_hour\": 2"), HasSubstr("twice"));
  EXPECT_THAT(refused("\"2 $/h\"", "2"), HasSubstr("needs its unit"));
  EXPECT_THAT(refused("\"name\": \"c1\"", "\"name\": \"c1\", \"model\": \"m\""), HasSubstr("hosts model \"m\""));
  EXPECT_THAT(refused("[2.4, 1.5]", "[-2.4, 1.5]"), HasSubstr("out of range"));
  EXPECT_THAT(refused("\"price\": \"2 $/h\", \"available\": 2", "\"price\": \"0 $/h\""),
              HasSubstr("devices without a price need `available`"));
}

TEST(RentPlan, FiguresInAWrongUnitDrawAWarningWithTheValueRead) {
  EXPECT_TRUE(offer_warnings(offers()).empty());
  Offers absurd = offers();
  absurd.types["t1"].usd_per_hour = 4000;
  absurd.configurations[0].rate_per_s[0] = 1e6;
  const auto warnings = offer_warnings(absurd);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], testing::HasSubstr("4000 $/h"));
  EXPECT_THAT(warnings[1], testing::HasSubstr("1e+06 requests/s"));
}

TEST(RentPlan, ReferenceIsCurrent) {
  expect_reference_is_current("offers.md", schema<Offers>().doc());
  expect_reference_is_current("plan-rent.md", schema<RentPlan>().doc());
}

}  // namespace
}  // namespace motley
