// Plans whose stages prefill or decode only.
#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/flow.hpp"
#include "motley/cost/serve/hand_over.hpp"
#include "motley/cost/serve/serve_cost.hpp"

namespace motley {
namespace {

// D1: the big machine prefills in one stage; the small one decodes in two.
ServePlan split_plan() {
  ServePlan plan;
  plan.model = d1_model();
  plan.cluster = d1_cluster();
  plan.workload = d1_workload();
  plan.stages = {{.id = "p",
                  .role = StageRole::prefill,
                  .layers = {0, 8},
                  .devices = {"m0/0", "m0/1"},
                  .shares = {},
                  .embedding = true,
                  .head = true,
                  .kv_tokens = 1024},
                 {.id = "d0",
                  .role = StageRole::decode,
                  .layers = {0, 3},
                  .devices = {"m1/0"},
                  .shares = {},
                  .embedding = true,
                  .kv_tokens = 4096},
                 {.id = "d1",
                  .role = StageRole::decode,
                  .layers = {3, 8},
                  .devices = {"m1/1"},
                  .shares = {},
                  .head = true,
                  .kv_tokens = 4096}};
  for (auto& stage : plan.stages) stage.weight_type = stage.kv_type = DType::fp16;
  plan.routes = {{.id = "r0", .path = {{"p", {0, 8}}, {"d0", {0, 3}}, {"d1", {3, 8}}}, .batch = 8}};
  return plan;
}

// The same stages as routes of their own that do both.
ServeCost as_both(ServePlan plan, std::vector<Hop> path) {
  std::erase_if(plan.stages, [&](const Stage& stage) {
    return std::none_of(path.begin(), path.end(), [&](const Hop& hop) { return hop.stage == stage.id; });
  });
  for (auto& stage : plan.stages) stage.role = StageRole::any;
  plan.routes[0].path = std::move(path);
  plan.routes[0].batch = 1;
  return price_serve(plan, {});
}

// 128 tokens of 2 x 4096 x 2 bytes in each layer; 100 us and 1.25 GB/s between the machines.
constexpr double layer_kv_bytes = 128.0 * 16384;

TEST(HandOver, EveryDecodingStageGetsItsLayers) {
  const ServePlan plan = split_plan();
  const auto moves = kv_moves(plan, plan.routes[0]);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].to, 1u);
  EXPECT_EQ(moves[1].to, 2u);
  EXPECT_DOUBLE_EQ(moves[0].bytes, 3 * layer_kv_bytes);
  EXPECT_DOUBLE_EQ(moves[1].bytes, 5 * layer_kv_bytes);
  // One link between the machines, one after the other.
  EXPECT_EQ(link_loads(moves).size(), 1u);
  EXPECT_NEAR(link_loads(moves).begin()->second, 8 * layer_kv_bytes / 1.25e9, 1e-12);
  EXPECT_NEAR(seconds_of(moves), 8 * layer_kv_bytes / 1.25e9 + 1e-4 + usual_copies_s(5 * layer_kv_bytes), 1e-12);
}

TEST(HandOver, ARequestOfOneTokenStaysWhereItWasPrefilled) {
  ServePlan plan = split_plan();
  plan.workload.classes[0].output_tokens.mean = 1;
  EXPECT_TRUE(kv_moves(plan, plan.routes[0]).empty());
}

TEST(HandOver, TwoPrefillStagesSendTheirParts) {
  ServePlan plan = split_plan();
  const auto moves = kv_moves(plan.cluster, plan.model.arch, {{{0}, {0, 4}, DType::fp16}, {{1}, {4, 8}, DType::fp16}},
                              {{{2}, {0, 3}, DType::fp16}, {{3}, {3, 8}, DType::fp16}}, 10);
  ASSERT_EQ(moves.size(), 3u);
  std::vector<double> layers;
  for (const auto& move : moves) layers.push_back(move.bytes / 163840);
  EXPECT_EQ(layers, (std::vector<double>{3, 1, 4}));
}

TEST(HandOver, APhaseCostsWhatItIsOfAWholeRequest) {
  const ServePlan plan = split_plan();
  const ServeCost cost = price_serve(plan, {});
  const ServeCost prefill = as_both(plan, {{"p", {0, 8}}}), decode = as_both(plan, {{"d0", {0, 3}}, {"d1", {3, 8}}});
  const RouteCost& route = cost.routes[0];
  EXPECT_NEAR(route.first_token_s, prefill.routes[0].first_token_s, 1e-12);
  // Alone, a request waits for prefill, the transfer and its decode steps.
  ServePlan alone = plan;
  alone.routes[0].batch = 1;
  const double decode_s = decode.latency_s - decode.routes[0].first_token_s;
  const double transfer_s = seconds_of(kv_moves(plan, plan.routes[0]));
  EXPECT_NEAR(price_serve(alone, {}).latency_s, prefill.routes[0].first_token_s + transfer_s + decode_s, 1e-9);
  EXPECT_GT(route.latency_s, route.first_token_s + transfer_s);
  EXPECT_NEAR(cost.tree.value, cost.latency_s, 1e-9 * cost.latency_s);
  EXPECT_TRUE(std::any_of(cost.tree.children.begin(), cost.tree.children.end(),
                          [](const Term& term) { return term.name == "keys and values"; }));
}

TEST(HandOver, TheLinkMayBeTheBottleneck) {
  ServePlan plan = split_plan();
  plan.routes[0].batch = 64;
  plan.cluster.description.network.within_site->bandwidth_bytes_per_s = 1e7;
  const ServeCost cost = price_serve(plan, {});
  EXPECT_NEAR(cost.bottleneck_s, 8 * layer_kv_bytes / 1e7, 1e-9);
  EXPECT_NEAR(cost.requests_per_s, 1e7 / (8 * layer_kv_bytes), 1e-9);
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_EQ(flow.bottleneck, "m0 > m1");
  EXPECT_NEAR(flow.requests_per_s, cost.requests_per_s, 1e-9);
}

// Two routes that share the prefill stage: its load counts both, and so does the link.
TEST(HandOver, RoutesMayShareTheStageThatPrefills) {
  ServePlan plan = split_plan();
  plan.stages[1].layers = plan.stages[2].layers = {0, 8};
  plan.stages[1].head = plan.stages[2].embedding = true;
  plan.routes = {{.id = "r0", .path = {{"p", {0, 8}}, {"d0", {0, 8}}}, .weight = 3, .batch = 4},
                 {.id = "r1", .path = {{"p", {0, 8}}, {"d1", {0, 8}}}, .weight = 1, .batch = 4}};
  plan.cluster.description.network.within_site->bandwidth_bytes_per_s = 1e7;
  const ServeCost cost = price_serve(plan, {});
  EXPECT_NEAR(cost.requests_per_s, 1e7 / (8 * layer_kv_bytes), 1e-9);
  EXPECT_NEAR(cost.routes[0].requests_per_s, 3 * cost.routes[1].requests_per_s, 1e-9);
}

TEST(HandOver, PublishedFormsKnowNoRoles) {
  EXPECT_THROW(price_serve(split_plan(), {.form = "hexgen", .settings = {}}), Error);
}

}  // namespace
}  // namespace motley
