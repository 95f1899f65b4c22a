#include "motley/planner/serve/choose_types.hpp"

#include <gtest/gtest.h>

#include "motley/cost/form/cases_test.hpp"
#include "motley/model/type_quality.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

Cluster two_cards() {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["A5000", "RTX 2080 Ti"]
)");
}

// A search that is given the types, of all the chooser's assignments the best.
std::optional<ServePlan> best_of_all(const Cluster& cluster, const Model& model, double most_kl) {
  std::optional<ServePlan> best;
  for (const DType on_first : weight_type_choices(model.arch))
    for (const DType on_second : weight_type_choices(model.arch))
      for (const DType kv : kv_type_choices(model.arch)) {
        const ServeOptions options{.objective = Objective::throughput,
                                   .front = Front::skip,
                                   .weight_types = {{"A5000", on_first}, {"RTX 2080 Ti", on_second}},
                                   .kv_type = kv};
        const auto plan = plan_serve(cluster, model, default_workload(), options).plan;
        if (plan && plan_kl(*plan) <= most_kl &&
            (!best || plan->predicted.requests_per_s > best->predicted.requests_per_s))
          best = plan;
      }
  return best;
}

TEST(ChooseTypes, EachDeviceTypeGetsTheBestThatTheBoundAllows) {
  const Cluster cluster = two_cards();
  const Model model = read_model("qwen3-32b");
  for (const double most_kl : {0.003, 0.004, 0.02}) {
    const ServeOutcome outcome =
        plan_serve(cluster, model, default_workload(),
                   {.objective = Objective::throughput, .front = Front::skip, .most_kl = most_kl});
    ASSERT_TRUE(outcome.plan) << outcome.reason;
    EXPECT_LE(plan_kl(*outcome.plan), most_kl);
    EXPECT_EQ(outcome.plan->predicted.kl, plan_kl(*outcome.plan));
    const auto best = best_of_all(cluster, model, most_kl);
    ASSERT_TRUE(best);
    EXPECT_DOUBLE_EQ(outcome.plan->predicted.requests_per_s, best->predicted.requests_per_s) << most_kl;
  }
}

// In 8 bits it does not fit, in 6 the bound is exceeded: only unlike types do.
TEST(ChooseTypes, UnlikeTypesFitWhereNoSingleOneDoes) {
  const Cluster cluster = two_cards();
  const Model model = read_model("qwen3-32b");
  for (const DType type : weight_type_choices(model.arch)) {
    const auto plan = plan_serve(cluster, model, default_workload(), {.front = Front::skip, .weight_type = type}).plan;
    EXPECT_TRUE(!plan || plan_kl(*plan) > 0.004) << name_of(type);
  }
  const ServeOutcome outcome = plan_serve(cluster, model, default_workload(), {.front = Front::skip, .most_kl = 0.004});
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  ASSERT_EQ(outcome.plan->stages.size(), 2u);
  EXPECT_NE(outcome.plan->stages[0].weight_type, outcome.plan->stages[1].weight_type);
  EXPECT_TRUE(verify(*outcome.plan).empty());
}

TEST(ChooseTypes, ABoundThatNothingKeepsSaysWhatWould) {
  const ServeOutcome outcome =
      plan_serve(two_cards(), read_model("qwen3-32b"), default_workload(), {.front = Front::skip, .most_kl = 0.0015});
  EXPECT_FALSE(outcome.plan);
  EXPECT_NE(outcome.reason.find("no choice of weight types"), std::string::npos) << outcome.reason;
  EXPECT_NE(outcome.hint.find("--max-kl"), std::string::npos) << outcome.hint;
}

TEST(ChooseTypes, AModelThatIsQuantisedIsRefused) {
  Model model = read_model("qwen3-32b");
  model.arch.checkpoint_type = DType::q8_0;
  EXPECT_THROW(plan_serve(two_cards(), model, default_workload(), {.front = Front::skip, .most_kl = 0.02}), Error);
}

// What does not fit names the types with which it would.
TEST(ChooseTypes, WhatDoesNotFitNamesTypesThatWould) {
  const ServeOutcome outcome = plan_serve(two_cards(), read_model("qwen3-32b"), default_workload(), {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_NE(outcome.hint.find("use --weight-type q6_k, q5_k, q4_k or iq4_xs, which would fit"), std::string::npos)
      << outcome.hint;
}

}  // namespace
}  // namespace motley
