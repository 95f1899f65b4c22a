// Whole experts where columns of each would not divide as the devices' shares do.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

Cluster box_of(const std::string& devices) {
  return cluster_of(fmt::format(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = [{}]
[[device_type]]
name = "fast"
vendor = "nvidia"
memory = "16 GiB"
memory_bandwidth = "1000 GB/s"
flops = {{ fp16 = "100 TFLOP/s" }}
[[device_type]]
name = "slow"
vendor = "nvidia"
memory = "16 GiB"
memory_bandwidth = "600 GB/s"
flops = {{ fp16 = "60 TFLOP/s" }}
[network]
within_machine = {{ latency = "1 us", bandwidth = "300 GB/s" }}
)",
                                devices));
}

ServePlan planned(const std::string& devices, DType weights, Objective objective = Objective::latency) {
  ServeOptions options;
  options.step = {.max_tokens = 256, .max_sequences = 8, .block_tokens = 16};
  options.objective = objective;
  options.weight_type = weights;
  options.kv_type = DType::fp16;
  options.max_batch = 8;
  const Model model = read_model(MOTLEY_SOURCE_DIR "/data/models/qwen3-30b-a3b");
  const ServeOutcome outcome = plan_serve(box_of(devices), model, workload_of(64, 64), options);
  EXPECT_TRUE(outcome.plan) << outcome.reason;
  return outcome.plan.value_or(ServePlan{});
}

// No other division of the experts among the devices of its only stage takes less time by the 5 % for which the rule
// gives columns up: neither of whole ones, nor of these.
void expect_best_division(const ServePlan& plan) {
  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_TRUE(verify(plan).empty());
  const Stage& stage = plan.stages[0];
  ASSERT_EQ(stage.expert_shares.size(), stage.devices.size());
  EXPECT_EQ(std::accumulate(stage.expert_shares.begin(), stage.expert_shares.end(), std::int64_t{0}), 128);
  const auto latency_s = [&](const std::vector<std::int64_t>& shares) {
    ServePlan other = plan;
    other.stages[0].expert_shares = shares;
    return price_serve(other, {}).latency_s;
  };
  double least = latency_s({});  // columns
  const auto try_all = [&](auto&& self, std::vector<std::int64_t> shares, std::int64_t left) -> void {
    if (shares.size() + 1 == stage.devices.size()) {
      shares.push_back(left);
      least = std::min(least, latency_s(shares));
      return;
    }
    for (std::int64_t count = 4; count < left; count += 4) {
      std::vector<std::int64_t> more = shares;
      more.push_back(count);
      self(self, more, left - count);
    }
  };
  try_all(try_all, {}, 128);
  EXPECT_LT(latency_s(stage.expert_shares), 1.05 * least);
}

// 768 columns are three blocks of 256, of which one of two equal devices would have two.
TEST(ExpertSharesChoice, DividesEquallyAmongEqualDevices) {
  const ServePlan plan = planned(R"("fast*2")", DType::q4_k);
  expect_best_division(plan);
  EXPECT_EQ(plan.stages[0].expert_shares, (std::vector<std::int64_t>{64, 64}));
}

TEST(ExpertSharesChoice, FollowsBandwidthWhereDevicesAreUnlike) {
  const ServePlan plan = planned(R"("fast", "slow")", DType::q4_k);
  expect_best_division(plan);
  EXPECT_EQ(plan.stages[0].expert_shares, (std::vector<std::int64_t>{80, 48}));
}

TEST(ExpertSharesChoice, DividesAmongThree) { expect_best_division(planned(R"("fast*2", "slow*1")", DType::q4_k)); }

TEST(ExpertSharesChoice, KeepsColumnsWhereTheyServe) {
  const ServePlan plan = planned(R"("fast", "fast", "slow", "slow")", DType::q8_0);
  for (const Stage& stage : plan.stages) EXPECT_TRUE(stage.expert_shares.empty());
}

// Plans whose stages are shared say the same as plans of pipelines.
TEST(ExpertSharesChoice, HoldsForSharedStages) {
  const ServePlan plan = planned(R"("slow*2")", DType::q4_k, Objective::flow);
  EXPECT_TRUE(verify(plan).empty());
  for (const Stage& stage : plan.stages)
    EXPECT_EQ(stage.expert_shares,
              stage.devices.size() == 2 ? (std::vector<std::int64_t>{64, 64}) : std::vector<std::int64_t>{});
}

}  // namespace
}  // namespace motley
