#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/report/chain_report.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/rent_report.hpp"
#include "motley/report/table.hpp"
#include "motley/sim/plans_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

TEST(Table, AlignsByCharactersNotBytes) {
  Table table({"name", ">size"});
  table.add({"µs", "5"});
  table.add({"seconds", "10"});
  EXPECT_EQ(table.render(""), "name     size\nµs          5\nseconds    10\n");
}

TEST(Table, NoTitlesNoTitleLine) {
  Table table({"", ""});
  table.add({"a", ""});
  EXPECT_EQ(table.render("> "), "> a\n");
}

TEST(CompactDevices, JoinsConsecutiveSlots) {
  EXPECT_EQ(compact_devices({"box/0", "box/1", "box/2"}), "box/0-2");
  EXPECT_EQ(compact_devices({"box/0", "box/2", "lab/3", "lab/4"}), "box/0, box/2, lab/3-4");
  EXPECT_EQ(compact_devices({"odd"}), "odd");
}

TEST(PlanReport, SharesOfRoutesAreOfAllWeights) {
  ServePlan plan = timed_plan({{.tokens_per_s = 300}, {.tokens_per_s = 400}}, {{0}, {1}});
  plan.routes[0].weight = 9;
  plan.routes[1].weight = 3;
  const std::string report = plan_report(plan);
  EXPECT_THAT(report, HasSubstr(": 75% of the requests"));
  EXPECT_THAT(report, HasSubstr(": 25% of the requests"));
}

// Three copies of two devices each: what is rented and paid counts every one.
TEST(RentReport, CopiesCount) {
  RentPlan plan;
  plan.offers = read<Offers>(parse_json(R"({"format": "motley.offers/1",
    "classes": [{"name": "only", "share": 1.0}],
    "types": {"t1": {"price_usd_per_hour": 6, "available": 4}, "t2": {"price_usd_per_hour": 1}},
    "configurations": [{"name": "c1", "devices": {"t1": 1}, "rate_per_s": [1.0]},
                       {"name": "c4", "devices": {"t2": 2}, "rate_per_s": [2.4]}]})",
                                        "offers"),
                             "offers");
  plan.goal.budget_usd_per_hour = 20;
  plan.fleet = {{"c1", {{"t1", 1}}, 1, 6}, {"c4", {{"t2", 2}}, 3, 2}};
  plan.assignment = {{"only", {{"c1", 0.25}, {"c4", 0.75}}}};
  plan.predicted.cost_usd_per_hour = 12;
  const std::string report = rent_report(plan);
  EXPECT_THAT(report, testing::ContainsRegex("c4 +t2\\*2 +3 +2.00 +6.00"));
  EXPECT_THAT(report, HasSubstr("12.00 $/h (288.00 $ a day)"));
  EXPECT_THAT(rent_explanation(plan), testing::ContainsRegex("t2 +1.00 +6 +any"));
  const Value terms = explain_rent_json(plan);
  const Value& fleet = *terms.find("terms")->find("terms");
  EXPECT_EQ(fleet.as_array()[1].find("share")->as_number(), 0.5);
  EXPECT_EQ(fleet.as_array()[1].find("terms")->as_array()[0].find("usd_per_hour")->as_number(), 6);
}

TEST(ChainReport, SynchronisingIsPartOfARunsTime) {
  ChainPlan plan;
  plan.chain = read<ChainDescription>(parse_json(R"({"format": "motley.chain/1", "name": "sync", "budget_bytes": 10,
    "sites": [{"name": "layer", "repeat": 3, "options": [{"name": "only", "time_s": 1, "sync_s": 0.5, "bytes": 2}]}]})",
                                                 "chain"),
                                      "chain");
  plan.choice = {0, 0, 0};
  ASSERT_EQ(chain_runs(plan).size(), 1u);
  EXPECT_EQ(chain_runs(plan)[0].seconds, 4.5);
  EXPECT_EQ(chain_runs(plan)[0].bytes, 6);
}

}  // namespace
}  // namespace motley
