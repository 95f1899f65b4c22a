#include "motley/cost/serve/flow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/plan/example_test.hpp"

namespace motley {
namespace {

// Four single devices in four machines of two sites, six layers, rates from a profile: holding k layers 120 / k tokens
// per second (type fast) or 60 / k (type slow).
ServePlan measured_plan() {
  ServePlan plan;
  plan.model = llama_of(64, 6, 4, 4, 128, 1000);
  plan.cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "f"
count = 2
site = "east"
devices = ["fast"]
[[machine]]
name = "s"
count = 2
site = "west"
devices = ["slow"]
[[device_type]]
name = "fast"
vendor = "nvidia"
memory = "8 GiB"
memory_bandwidth = "100 GB/s"
flops = { fp16 = "10 TFLOP/s" }
[[device_type]]
name = "slow"
vendor = "nvidia"
memory = "8 GiB"
memory_bandwidth = "50 GB/s"
flops = { fp16 = "5 TFLOP/s" }
[network]
within_site = { latency = "1 ms", bandwidth = "1 GB/s" }
between_sites = { latency = "10 ms", bandwidth = "1 GB/s" }
)");
  plan.workload = workload_of(11, 10);  // 20 tokens through every layer
  plan.profile.layer_rate = {{"fast", 1, {120, 60, 40, 30, 24, 20}}, {"slow", 1, {60, 30, 20, 15, 12, 10}}};
  const auto stage = [](std::string id, LayerRange layers, std::string device) {
    return Stage{.id = std::move(id),
                 .layers = layers,
                 .devices = {std::move(device)},
                 .shares = {},
                 .embedding = layers.first == 0,
                 .head = layers.end == 6,
                 .kv_tokens = 1024,
                 .weight_type = DType::fp16,
                 .kv_type = DType::fp16};
  };
  plan.stages = {stage("a", {0, 3}, "f-0/0"), stage("b", {3, 6}, "f-1/0"), stage("c", {3, 6}, "s-0/0")};
  plan.routes = {{.id = "ab", .path = {{"a", {0, 3}}, {"b", {3, 6}}}, .weight = 3},
                 {.id = "ac", .path = {{"a", {0, 3}}, {"c", {3, 6}}}, .weight = 1}};
  plan.unused = {{"s-1/0", "test"}};
  return plan;
}

double hidden_bytes(const ServePlan& plan) { return static_cast<double>(plan.model.arch.hidden) * 2; }

TEST(PlanFlow, IsTheNarrowestStageOfAChain) {
  ServePlan plan = measured_plan();
  plan.routes.resize(1);
  plan.stages.resize(2);
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.most_tokens_per_s, 40, 1e-6);
  EXPECT_NEAR(flow.tokens_per_s, 40, 1e-9);
  EXPECT_NEAR(flow.requests_per_s, 2, 1e-9);  // 11 + 10 - 1 tokens each
  EXPECT_NEAR(flow.output_tokens_per_s, 20, 1e-9);
}

TEST(PlanFlow, SharedStagesLimitAllRoutesThroughThem) {
  const ServePlan plan = measured_plan();
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.most_tokens_per_s, 40, 1e-6);
  EXPECT_EQ(flow.cut, std::vector<std::string>{"a"});
  // a: all of them, 40; b: 3/4 of them, 40; c: 1/4, 20.
  EXPECT_NEAR(flow.tokens_per_s, 40, 1e-9);
  EXPECT_EQ(flow.bottleneck, "a");
  ASSERT_EQ(flow.stages.size(), 3u);
  EXPECT_NEAR(flow.stages[1].use(), 0.75, 1e-9);
  EXPECT_NEAR(flow.stages[2].use(), 0.5, 1e-9);
}

TEST(PlanFlow, WeightsMayWasteWhatTheStagesCouldCarry) {
  ServePlan plan = measured_plan();
  plan.routes[0].weight = plan.routes[1].weight = 1;
  plan.profile.layer_rate[0].tokens_per_s[2] = 100;
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.most_tokens_per_s, 100, 1e-6);
  EXPECT_NEAR(flow.tokens_per_s, 40, 1e-9);  // half of it through c
  EXPECT_EQ(flow.bottleneck, "c");
}

TEST(PlanFlow, LinksCountInHiddenStates) {
  ServePlan plan = measured_plan();
  const double bytes = hidden_bytes(plan);
  plan.cluster.description.network.within_site->bandwidth_bytes_per_s = 25 * bytes;
  plan.cluster.description.network.between_sites->bandwidth_bytes_per_s = 7 * bytes;
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.most_tokens_per_s, 32, 1e-6);
  EXPECT_EQ(flow.cut, (std::vector<std::string>{"a > b", "a > c"}));
  EXPECT_NEAR(flow.tokens_per_s, 28, 1e-9);  // a quarter over the slow link
  EXPECT_EQ(flow.bottleneck, "a > c");

  plan.profile.link_tokens = {{"east", "west", 12}};
  EXPECT_NEAR(plan_flow(plan, {}).most_tokens_per_s, 37, 1e-6);
}

TEST(PlanFlow, RoutesOfTwoMachinesShareTheirLink) {
  ServePlan plan = measured_plan();
  plan.cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "f"
devices = ["fast*2"]
[[machine]]
name = "s"
devices = ["slow*2"]
[[device_type]]
name = "fast"
vendor = "nvidia"
memory = "8 GiB"
memory_bandwidth = "100 GB/s"
flops = { fp16 = "10 TFLOP/s" }
[[device_type]]
name = "slow"
vendor = "nvidia"
memory = "8 GiB"
memory_bandwidth = "50 GB/s"
flops = { fp16 = "5 TFLOP/s" }
[network]
within_site = { latency = "1 ms", bandwidth = "1 GB/s" }
)");
  plan.cluster.description.network.within_site->bandwidth_bytes_per_s = 15 * hidden_bytes(plan);
  plan.stages[0].devices = {"f/0"};
  plan.stages[1].devices = {"s/0"};
  plan.stages[2].devices = {"s/1"};
  plan.routes[0].weight = 1;
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.tokens_per_s, 15, 1e-9);
  EXPECT_EQ(flow.bottleneck, "f > s");
}

// Both ways between two machines: each has its own speed and carries its own hidden states.
TEST(PlanFlow, EachDirectionOfALinkIsItsOwn) {
  ServePlan plan = measured_plan();
  const double bytes = hidden_bytes(plan);
  plan.routes.resize(1);
  plan.stages.resize(2);
  plan.cluster.description.links = {
      {.between = {"f-0", "f-1"},
       .speed = {.bandwidth_up_bytes_per_s = 25 * bytes, .bandwidth_down_bytes_per_s = 15 * bytes}}};
  EXPECT_NEAR(plan_flow(plan, {}).tokens_per_s, 25, 1e-9);
  std::swap(plan.stages[0].devices, plan.stages[1].devices);
  EXPECT_NEAR(plan_flow(plan, {}).tokens_per_s, 15, 1e-9);
  // A route in each direction: neither takes from the other.
  plan.stages = {plan.stages[0], plan.stages[1], plan.stages[0], plan.stages[1]};
  plan.stages[2].id = "a2";
  plan.stages[3].id = "b2";
  std::swap(plan.stages[2].devices, plan.stages[3].devices);
  plan.routes = {{.id = "back", .path = {{"a", {0, 3}}, {"b", {3, 6}}}, .weight = 3},
                 {.id = "forth", .path = {{"a2", {0, 3}}, {"b2", {3, 6}}}, .weight = 5}};
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.tokens_per_s, 40, 1e-9);
  ASSERT_EQ(flow.links.size(), 2u);
}

// The third stage holds [2, 6) and is entered at 3: it computes [3, 6), at the rate of all it holds.
TEST(PlanFlow, PartialRangesCountAsWhole) {
  ServePlan plan = measured_plan();
  plan.stages[2].layers = {2, 6};
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.stages[2].capacity_tokens_per_s, 15, 1e-9);
  EXPECT_NEAR(flow.most_tokens_per_s, 40, 1e-6);
}

TEST(PlanFlow, StagesOfOnePhaseSeeItsTokensOnly) {
  ServePlan plan = measured_plan();
  // Prompts through a and b, then decoding on c alone: 11 of 20 tokens and 9 of 20.
  plan.stages[0].role = plan.stages[1].role = StageRole::prefill;
  plan.stages[2].role = StageRole::decode;
  plan.stages[2].layers = {0, 6};
  plan.stages[2].embedding = true;
  plan.routes = {{.id = "abc", .path = {{"a", {0, 3}}, {"b", {3, 6}}, {"c", {0, 6}}}}};
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.tokens_per_s, 10 / 0.45, 1e-6);
  EXPECT_NEAR(flow.most_tokens_per_s, 10 / 0.45, 1e-6);
  EXPECT_EQ(flow.bottleneck, "c");
}

TEST(PlanFlow, MoreLayersThanMeasuredAreRefused) {
  ServePlan plan = measured_plan();
  plan.profile.layer_rate[0].tokens_per_s.resize(2);
  EXPECT_THROW(plan_flow(plan, {}), Error);
}

// Without a profile the flow of one pipeline is the closed form's busiest stage, less the sending of hidden states,
// which overlaps here: at most what the slowest link takes for a request.
TEST(PlanFlow, AgreesWithTheClosedFormOnChains) {
  for (ServePlan plan : {garage_plan(), box_plan()}) {
    plan.routes[0].batch = 64;
    for (Stage& stage : plan.stages) stage.kv_tokens = 1 << 20;
    const ServeCost cost = price_serve(plan, {});
    const PlanFlow flow = plan_flow(plan, {});
    EXPECT_GE(flow.requests_per_s, 1 / cost.bottleneck_s * (1 - 1e-9));
    double slowest = std::numeric_limits<double>::infinity();
    for (const FlowPart& link : flow.links) slowest = std::min(slowest, link.capacity_tokens_per_s);
    EXPECT_LE(flow.requests_per_s, 1 / (cost.bottleneck_s - tokens_through(plan.workload) / slowest) * (1 + 1e-9));
    EXPECT_NEAR(flow.most_tokens_per_s, flow.tokens_per_s, 1e-6 * flow.tokens_per_s);
    EXPECT_NEAR(flow.output_tokens_per_s, flow.requests_per_s * plan.workload.mean_output_tokens(), 1e-9);
  }
}

}  // namespace
}  // namespace motley
