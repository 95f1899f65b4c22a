#include "motley/plan/chain_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "motley/base/error.hpp"
#include "motley/base/reference_test.hpp"

namespace motley {
namespace {

constexpr const char* chain_text = R"({
 "format": "motley.chain/1",
 "budget_bytes": 10.5,
 "sites": [{"name": "in", "options": [{"time_s": 1, "bytes": 0.25, "layout": "b", "transient_bytes": 2}]},
           {"repeat": 2, "options": [{"name": "whole", "time_s": 1, "sync_s": 0.5, "bytes": 4},
                                     {"name": "shard", "time_s": 2, "bytes": 3, "layout": 1, "transient_bytes": 1}]}],
 "layouts": ["a", "b"],
 "layout_change_s": [[0, 0.25], [0.125, 0]]
})";

ChainDescription chain() { return read<ChainDescription>(parse_json(chain_text, "chain.json"), "chain.json"); }

// By hand: b to a costs 0.125, a to b costs 0.25.
ChainPlan chain_example() {
  ChainPlan plan;
  plan.chain = chain();
  plan.choice = {0, 0, 1};
  plan.predicted = {.time_s = 1 + 1.5 + 2 + 0.125 + 0.25, .bytes = 0.25 + 4 + 3 + 2, .price_s_per_byte = {}};
  return plan;
}

TEST(ChainPlan, CostIsTheDefinition) {
  const ChainCost cost = chain_cost(chain(), {0, 0, 1});
  EXPECT_DOUBLE_EQ(cost.time_s, 4);
  EXPECT_DOUBLE_EQ(cost.sync_s, 0.5);
  EXPECT_DOUBLE_EQ(cost.layout_change_s, 0.375);
  EXPECT_DOUBLE_EQ(cost.bytes, 7.25);
  EXPECT_DOUBLE_EQ(cost.transient_bytes, 2);
  EXPECT_TRUE(verify(chain_example()).empty());
}

TEST(ChainPlan, WhatItWritesItReads) {
  ChainPlan plan = chain_example();
  plan.front = {{3, 1}, {2, 5}};
  EXPECT_EQ(read_plan<ChainPlan>(parse_json(to_json(write(plan)), "plan"), "plan"), plan);
}

TEST(ChainPlan, SitesAreNamedAsTheFileHasThem) {
  EXPECT_EQ(site_place(chain(), 0), "sites[0] (in)");
  EXPECT_EQ(site_place(chain(), 2), "sites[1], number 2 of 2");
}

TEST(ChainPlan, EveryDecisionIsChecked) {
  const auto broken = [](const std::function<void(ChainPlan&)>& change) {
    ChainPlan plan = chain_example();
    change(plan);
    std::string all;
    for (const auto& violation : verify(plan)) all += violation.place + ": " + violation.what + "\n";
    return all;
  };
  using testing::HasSubstr;
  EXPECT_THAT(broken([](ChainPlan& p) { p.choice.pop_back(); }), HasSubstr("2 entries for 3 sites"));
  EXPECT_THAT(broken([](ChainPlan& p) { p.choice[1] = 2; }),
              HasSubstr("choice[1]: sites[1], number 1 of 2: option 2 does not exist"));
  EXPECT_THAT(broken([](ChainPlan& p) { p.chain.budget_bytes = 9.2; }), HasSubstr("the budget is 9.2"));
  EXPECT_THAT(broken([](ChainPlan& p) { p.predicted.time_s *= 1.001; }), HasSubstr("predicted.time_s"));
  EXPECT_THAT(broken([](ChainPlan& p) { p.predicted.bytes *= 1.001; }), HasSubstr("predicted.bytes"));
  EXPECT_THAT(broken([](ChainPlan& p) { p.front = {{1, 1}, {2, 2}}; }), HasSubstr("front[1]"));
}

TEST(ChainPlan, DescriptionsThatContradictThemselvesAreRefused) {
  const auto refused = [](const std::string& from, const std::string& to) {
    std::string text = chain_text;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      read<ChainDescription>(parse_json(text, "chain.json"), "chain.json");
    } catch (const Error& error) {
      EXPECT_FALSE(error.hint().empty()) << error.what();
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused("\"layout\": \"b\"", "\"layout\": \"bb\""), HasSubstr("\"bb\" is not among the layouts"));
  EXPECT_THAT(refused("\"layout\": 1", "\"layout\": 2"), HasSubstr("sites[1].options[1].layout"));
  EXPECT_THAT(refused("[\"a\", \"b\"]", "[\"a\", \"a\"]"), HasSubstr("given twice"));
  EXPECT_THAT(refused("[\"a\", \"b\"]", "[\"a\", \"b\", \"c\"]"), HasSubstr("2 rows for 3 layouts"));
  EXPECT_THAT(refused("[0.125, 0]", "[0.125]"), HasSubstr("layout_change_s[1] has 1 entries"));
  EXPECT_THAT(refused("0.125", "-0.125"), HasSubstr("layout_change_s[1][0]: -0.125 is out of range"));
  EXPECT_THAT(refused("\"bytes\": 4", "\"bytes\": -4"), HasSubstr("sites[1].options[0].bytes: -4 is out of range"));
  EXPECT_THAT(refused("\"time_s\": 2", "\"time_s\": 1e300"), HasSubstr("out of range"));
  EXPECT_THAT(refused("\"time_s\": 2, ", ""), HasSubstr("`time_s` is missing"));
  EXPECT_THAT(refused("\"repeat\": 2", "\"repeat\": 0"), HasSubstr("sites[1].repeat: 0 is out of range"));
  EXPECT_THAT(refused("\"repeat\": 2", "\"repeat\": 100000"), HasSubstr("100001 sites are more than"));
  EXPECT_THAT(refused("\"repeat\": 2", "\"repeats\": 2"), HasSubstr("repeats"));
  EXPECT_THAT(refused("10.5", "-1"), HasSubstr("budget_bytes: -1 is out of range"));
}

TEST(ChainPlan, ThereIsSomethingToChooseAtEverySite) {
  const auto refused = [](const std::string& sites) {
    const std::string text = R"({"format": "motley.chain/1", "budget_bytes": 4, "sites": )" + sites + "}";
    try {
      read<ChainDescription>(parse_json(text, "chain.json"), "chain.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string option = R"({"options": [{"time_s": 1, "bytes": 1}]})";
  EXPECT_EQ(refused("[" + option + "]"), "accepted");
  EXPECT_EQ(refused("[]"), "chain.json:1: the chain has no sites");
  EXPECT_EQ(refused("[" + option + R"(, {"options": []}])"), "chain.json:1: sites[1] has no options");
}

TEST(ChainPlan, ReferenceIsCurrent) {
  expect_reference_is_current("chain.md", schema<ChainDescription>().doc());
  expect_reference_is_current("plan-chain.md", schema<ChainPlan>().doc());
}

}  // namespace
}  // namespace motley
