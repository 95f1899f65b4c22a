// Layers with experts between layers without: what a plan's stages hold is summed over their own layers.
#include <gtest/gtest.h>

#include <array>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

// 50 MB of experts in four of six layers, 17 MB of FFN in the others.
Model dense_at_both_ends() {
  Model model;
  model.name = "unlike layers";
  model.config = parse_json(R"({"model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 6,
                                "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1024,
                                "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 8000,
                                "max_position_embeddings": 4096, "torch_dtype": "float16"})",
                            "config");
  model.arch = read_architecture(model.config, "config");
  LayerKind dense = model.arch.kinds.front();
  dense.experts = {};
  dense.ffn = 2816;
  model.arch.kinds.push_back(dense);
  model.arch.kind_of_layer = {1, 0, 0, 0, 0, 1};
  return model;
}

// Two machines of which neither holds the model.
Cluster unlike_machines() {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "large"
devices = ["large"]
[[machine]]
name = "small"
devices = ["small"]
[[device_type]]
name = "large"
vendor = "nvidia"
memory = "280 MiB"
memory_bandwidth = "400 GB/s"
flops = { fp16 = "40 TFLOP/s" }
reserve = "0 B"
[[device_type]]
name = "small"
vendor = "nvidia"
memory = "180 MiB"
memory_bandwidth = "200 GB/s"
flops = { fp16 = "20 TFLOP/s" }
reserve = "0 B"
[network]
within_site = { latency = "50 us", bandwidth = "1.25 GB/s" }
)");
}

// The plan with its two stages cut elsewhere, and room for the keys and values of four requests.
ServePlan cut_before(ServePlan plan, std::int64_t layer) {
  const std::array<LayerRange, 2> layers = {{{0, layer}, {layer, plan.model.arch.layers}}};
  for (std::size_t i = 0; i < 2; ++i) {
    plan.routes[0].path[i].layers = plan.stages[i].layers = layers[i];
    plan.stages[i].kv_tokens = 4 * 64;
  }
  plan.predicted.memory_bytes.clear();
  return plan;
}

TEST(UnlikeLayers, ArePlannedVerifiedAndExplained) {
  const Model model = dense_at_both_ends();
  ServeOptions options;
  options.step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16};
  options.max_batch = 4;
  options.objective = Objective::throughput;
  const ServeOutcome outcome = plan_serve(unlike_machines(), model, workload_of(32, 32), options);
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  const ServePlan& plan = *outcome.plan;
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_TRUE(verify(plan).empty());
  const Shard whole = make_shards(model.arch, 1).front();
  for (const Stage& stage : plan.stages)
    EXPECT_EQ(plan.predicted.memory_bytes.at(stage.devices.front()).device.weights,
              weight_bytes(model.arch, {stage.layers, stage.embedding, stage.head}, whole, stage.weight_type));
  const ServeCost cost = price_serve(plan, options.cost);
  check_consistent(cost.tree);
  EXPECT_DOUBLE_EQ(cost.tree.value, cost.latency_s);
  EXPECT_DOUBLE_EQ(cost.requests_per_s, plan.predicted.requests_per_s);

  int others = 0;
  for (std::int64_t layer = 1; layer < model.arch.layers; ++layer) {
    const ServePlan other = cut_before(plan, layer);
    if (layer == plan.stages[0].layers.end || !verify(other).empty()) continue;
    ++others;
    EXPECT_LT(price_serve(other, options.cost).requests_per_s, cost.requests_per_s) << layer;
  }
  EXPECT_GT(others, 0);
}

}  // namespace
}  // namespace motley
