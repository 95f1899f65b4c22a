#include "motley/planner/serve/plan_again.hpp"

#include <gmock/gmock.h>

#include "motley/cost/form/cases_test.hpp"
#include "motley/planner/serve/if_lost.hpp"
#include "motley/planner/serve/plan_warnings.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Each machine's devices hold the model by themselves.
Cluster two_machines() {
  return cluster_of(R"(format = "motley.cluster/1"
machine = [{ name = "a", devices = ["card*2"] }, { name = "b", devices = ["card"] }]
[[device_type]]
name = "card"
vendor = "nvidia"
memory = "400 MiB"
memory_bandwidth = "400 GB/s"
flops = { fp16 = "40 TFLOP/s" }
reserve = "8 MiB"
[network]
within_site = { latency = "10 us", bandwidth = "100 GB/s" }
)");
}

ServePlan plan_for(const Workload& workload, Objective objective) {
  return plan_serve(two_machines(), llama_of(1024, 6, 8, 8, 2816, 4000), workload,
                    {.objective = objective,
                     .step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16},
                     .deadline_s = 2,
                     .front = Front::skip,
                     .weight_type = DType::fp16,
                     .max_batch = 8,
                     .roles = StageRoles::both})
      .plan.value();
}

std::set<std::string> used_devices(const ServePlan& plan) {
  std::set<std::string> devices;
  for (const Stage& stage : plan.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  return devices;
}

std::string complaint_of(const ServePlan& plan, const Changes& changes) {
  try {
    plan_changed(plan, changes);
  } catch (const Error& error) {
    return std::string(error.what()) + "; " + error.hint();
  }
  return "";
}

TEST(PlanAgain, GoesByWhatThePlanTells) {
  const ServePlan plan = plan_for(workload_of(60, 20), Objective::throughput);
  const ServeOptions options = options_of(plan);
  EXPECT_EQ(options.objective, Objective::throughput);
  EXPECT_EQ(options.step, plan.step);
  EXPECT_EQ(options.weight_type, DType::fp16);
  EXPECT_EQ(options.cost.form, "motley");
  EXPECT_EQ(options.standby_bytes, std::nullopt);
  ServePlan other = plan;
  other.search.objective = "thruput";
  EXPECT_THROW(options_of(other), Error);
  EXPECT_EQ(plan_changed(plan, {}).plan->stages, plan.stages);
}

TEST(PlanAgain, WithoutADeviceOrWithOneMachineMore) {
  const ServePlan plan = plan_for(workload_of(60, 20), Objective::throughput);
  EXPECT_EQ(used_devices(plan), (std::set<std::string>{"a/0", "a/1", "b/0"}));
  EXPECT_EQ(used_devices(*plan_changed(plan, {.without = {"a/1"}, .add = {}, .what_if = {}}).plan),
            (std::set<std::string>{"a/0", "b/0"}));
  EXPECT_EQ(used_devices(*plan_changed(plan, {.without = {}, .add = {"card"}, .what_if = {}}).plan),
            (std::set<std::string>{"a/0", "a/1", "b/0", "added-0/0"}));
}

TEST(PlanAgain, WithAnotherDegreeOnAMachine) {
  const ServePlan plan = plan_for(workload_of(60, 20), Objective::throughput);
  const ServePlan changed = *plan_changed(plan, {.without = {}, .add = {}, .what_if = {"tp=2 on a"}}).plan;
  EXPECT_TRUE(std::ranges::any_of(changed.stages, [](const Stage& stage) {
    return stage.devices == std::vector<std::string>{"a/0", "a/1"};
  }));
}

TEST(PlanAgain, AChangeThatMakesNoSenseIsRefused) {
  const ServePlan plan = plan_for(workload_of(60, 20), Objective::throughput);
  for (const char* text : {"", "tp=2", "tp= on a", "tp=x on a", "tp=2 on ", "2 on a", "tp=2x on a"})
    EXPECT_THAT(complaint_of(plan, {.without = {}, .add = {}, .what_if = {text}}),
                HasSubstr("--what-if needs a degree"))
        << text;
  EXPECT_THAT(complaint_of(plan, {.without = {}, .add = {"card @ mars"}, .what_if = {}}),
              HasSubstr("the cluster has no site \"mars\""));
  EXPECT_NE(complaint_of(plan, {.without = {}, .add = {"no card"}, .what_if = {}}), "");
}

TEST(IfLost, EachMachineThenEachDeviceOfThoseWithSeveral) {
  const ServePlan plan = plan_for(workload_of(60, 20), Objective::throughput);
  std::vector<std::string> names;
  for (const PossibleLoss& loss : possible_losses(plan)) names.push_back(loss.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "a/0", "a/1"));
  EXPECT_EQ(possible_losses(plan)[0].devices, (std::set<std::string>{"a/0", "a/1"}));
}

TEST(IfLost, LessIsLeftOrNothingFits) {
  const ServePlan plan = plan_for(workload_of(60, 20), Objective::throughput);
  for (const LossImpact& loss : loss_impacts(plan)) {
    ASSERT_TRUE(loss.rest) << loss.name;
    EXPECT_LT(loss.rest->tokens_per_s, plan.predicted.tokens_per_s);
  }
  ServePlan alone = plan_serve(plan.cluster, plan.model, plan.workload,
                               {.step = plan.step, .front = Front::skip, .excluded = {"b/0"}})
                        .plan.value();
  alone.cluster = cluster_of(R"(format = "motley.cluster/1"
machine = [{ name = "a", devices = ["card*2"] }]
[[device_type]]
name = "card"
vendor = "nvidia"
memory = "400 MiB"
memory_bandwidth = "400 GB/s"
flops = { fp16 = "40 TFLOP/s" }
reserve = "8 MiB"
[network]
within_site = { latency = "10 us", bandwidth = "100 GB/s" }
)");
  const std::vector<LossImpact> losses = loss_impacts(alone);
  EXPECT_FALSE(losses.at(0).rest);
  EXPECT_EQ(to_json(loss_impacts_value({losses.at(0)})), R"([{"machine":"a","fits":false}])");
  EXPECT_EQ(to_json(loss_impacts_value({{"a/1", LossImpact::Rest{2.5, 7}}})),
            R"([{"device":"a/1","fits":true,"tokens_per_s":2.5,"loaded_bytes":7}])");
}

TEST(PlanWarnings, NameDeadlinesOutOfReachWhereTheyAreWhatCounts) {
  Workload workload = workload_of(60, 20);
  workload.classes[0].deadline.first_token_s = 1e-9;
  const ServePlan plan = plan_for(workload, Objective::slo);
  const ServeOptions options = options_of(plan);
  EXPECT_THAT(plan_warnings(plan, options),
              ElementsAre(HasSubstr("no plan keeps the deadline first_token = \"1 ns\" of class")));
  ServeOptions throughput = options;
  throughput.objective = Objective::throughput;
  EXPECT_THAT(plan_warnings(plan, throughput), IsEmpty());
}

TEST(PlanWarnings, NameRequestsThatNoCacheHolds) {
  ServePlan plan = plan_for(workload_of(60, 20), Objective::throughput);
  EXPECT_THAT(plan_warnings(plan, options_of(plan)), IsEmpty());
  for (Stage& stage : plan.stages) stage.kv_tokens = 79;
  EXPECT_THAT(plan_warnings(plan, options_of(plan)),
              ElementsAre(HasSubstr("its mean request has 80 tokens, the largest KV cache 79; ")));
}

}  // namespace
}  // namespace motley
