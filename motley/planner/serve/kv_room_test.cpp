// The weakest stage's KV room bounds what a route has in flight, and so decides layouts.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/plan_serve.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

// Two devices of one speed, one of them short of memory; each too small for the whole model.
Cluster roomy_and_tight() {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["roomy", "tight"]
[[device_type]]
name = "roomy"
vendor = "nvidia"
memory = "7 GiB"
memory_bandwidth = "900 GB/s"
flops = { fp16 = "60 TFLOP/s" }
[[device_type]]
name = "tight"
vendor = "nvidia"
memory = "5 GiB"
memory_bandwidth = "900 GB/s"
flops = { fp16 = "60 TFLOP/s" }
)");
}

Model model_of_8_gb() { return llama_of(4096, 20, 32, 32, 11008, 32000); }

ServePlan planned(const Workload& workload) {
  return plan_serve(roomy_and_tight(), model_of_8_gb(), workload,
                    {.objective = Objective::throughput, .stage_types = StageTypes::alike, .front = Front::skip})
      .plan.value();
}

const Stage& stage_on(const ServePlan& plan, const std::string& device) {
  return *std::find_if(plan.stages.begin(), plan.stages.end(),
                       [&](const Stage& stage) { return stage.devices == std::vector<std::string>{device}; });
}

// What memory leaves, by hand: a stage holds as many tokens as fit with weights, buffers and reserve, in blocks of
// 16, and q8_0 takes 34 bytes for 32 values where fp16 takes 64.
TEST(KvRoom, KeysAndValuesOfEightBitsHaveMoreRoom) {
  const Workload lengthy = workload_of(1500, 500);
  std::map<DType, ServePlan> plans;
  for (const DType type : {DType::fp16, DType::q8_0})
    plans[type] = plan_serve(roomy_and_tight(), model_of_8_gb(), lengthy,
                             {.objective = Objective::throughput,
                              .stage_types = StageTypes::alike,
                              .front = Front::skip,
                              .kv_type = type})
                      .plan.value();
  for (const auto& [type, plan] : plans) {
    EXPECT_TRUE(verify(plan).empty());
    std::int64_t room = std::numeric_limits<std::int64_t>::max();
    for (const Stage& stage : plan.stages) {
      EXPECT_EQ(stage.kv_type, type);
      const TierMemory memory = plan.predicted.memory_bytes.at(stage.devices[0]).device;
      const std::int64_t left = memory.limit - memory.weights - memory.activations - memory.reserve;
      const std::int64_t token_bytes = stage.layers.size() * 2 * 32 * 128 / 32 * (type == DType::fp16 ? 64 : 34);
      room = std::min(room, left / token_bytes / 16 * 16);
      EXPECT_EQ(memory.kv, stage.kv_tokens * token_bytes);
    }
    EXPECT_EQ(plan.stages[0].kv_tokens, room);
  }
  EXPECT_GT(plans[DType::q8_0].stages[0].kv_tokens, plans[DType::fp16].stages[0].kv_tokens);
  EXPECT_GT(plans[DType::q8_0].routes[0].batch, plans[DType::fp16].routes[0].batch);
  EXPECT_GT(plans[DType::q8_0].predicted.tokens_per_s, plans[DType::fp16].predicted.tokens_per_s);
  // Not of itself: the default is the type of activations.
  EXPECT_EQ(planned(lengthy).stages[0].kv_type, DType::fp16);
}

// By hand: a token takes 2,048 bytes on each of twelve full layers, and on each of the others every slot nine blocks of
// 16; those of a step are 32 of its tokens and one for each of its sequences.
TEST(KvRoom, LayersWithAWindowKeepThatAlone) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["RTX 3090"]
)");
  const ServePlan plan =
      plan_serve(cluster, read_model("gpt-oss-20b"), workload_of(1500, 500),
                 {.objective = Objective::throughput, .weight_type = DType::mxfp4, .kv_type = DType::bf16})
          .plan.value();
  EXPECT_TRUE(verify(plan).empty());
  ASSERT_EQ(plan.stages.size(), 1u);
  const Stage& stage = plan.stages[0];
  EXPECT_GE(stage.kv_sequences, std::max<std::int64_t>(plan.step.max_sequences, plan.routes[0].batch));
  const TierMemory memory = plan.predicted.memory_bytes.at("box/0").device;
  const std::int64_t windows =
      12 * (9 * stage.kv_sequences + plan.step.max_tokens / 16 + plan.step.max_sequences) * 16 * 2048;
  const std::int64_t left = memory.limit - memory.weights - memory.activations - memory.reserve - windows;
  EXPECT_EQ(stage.kv_tokens, left / (12 * 2048) / 16 * 16);
  EXPECT_EQ(memory.kv, windows + stage.kv_tokens * 12 * 2048);
}

TEST(KvRoom, DeltaNetsHaveASlotForEachSequence) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["RTX 3090*2"]
)");
  ServePlan plan = plan_serve(cluster, read_model("qwen3.5-35b-a3b"), workload_of(1500, 500),
                              {.objective = Objective::throughput, .weight_type = DType::q4_k, .kv_type = DType::bf16})
                       .plan.value();
  EXPECT_TRUE(verify(plan).empty());
  const Architecture& arch = plan.model.arch;
  for (const Stage& stage : plan.stages) {
    EXPECT_GE(stage.kv_sequences, plan.routes[0].batch);
    const std::vector<Shard> shards = make_shards(arch, static_cast<int>(stage.devices.size()), stage.shares);
    EXPECT_EQ(
        plan.predicted.memory_bytes.at(stage.devices[0]).device.kv,
        cache_bytes(arch, stage.layers, shards[0], DType::bf16, {stage.kv_tokens, stage.kv_sequences}, plan.step));
  }
  plan.stages[0].kv_sequences = 0;
  ASSERT_FALSE(verify(plan).empty());
  EXPECT_EQ(verify(plan)[0].place, "stages[0].kv_sequences");
}

TEST(KvRoom, LongRequestsMoveLayersOffTheTightDevice) {
  const Workload brief = workload_of(16, 16), lengthy = workload_of(1500, 500);
  const ServePlan for_brief = planned(brief), for_lengthy = planned(lengthy);
  ASSERT_EQ(for_brief.stages.size(), 2u);
  ASSERT_EQ(for_lengthy.stages.size(), 2u);
  EXPECT_LT(stage_on(for_lengthy, "box/1").layers.size(), stage_on(for_brief, "box/1").layers.size());
  EXPECT_GT(for_lengthy.stages[0].kv_tokens, for_brief.stages[0].kv_tokens);
  // The balanced layout would have fewer long requests in flight, and serve fewer.
  ServePlan balanced = for_brief;
  balanced.workload = lengthy;
  balanced.routes[0].batch = for_lengthy.routes[0].batch;
  const ServeCost cost = price_serve(balanced, {});
  EXPECT_LT(cost.routes[0].batch, for_lengthy.routes[0].batch);
  EXPECT_LT(cost.requests_per_s, for_lengthy.predicted.requests_per_s);
}

TEST(KvRoom, NoRouteHasMoreInFlightThanItsWeakestStageHolds) {
  for (const Workload& workload : {workload_of(16, 16), workload_of(300, 100), workload_of(1500, 500)}) {
    const ServePlan plan = planned(workload);
    const ServePoint point{workload.mean_prompt_tokens(), workload.mean_output_tokens(), 1, plan.step};
    for (const auto& route : plan.routes)
      for (const auto& hop : route.path) EXPECT_LE(kv_tokens_of(point, route.batch), plan.stage(hop.stage).kv_tokens);
    // Simulated, far above what it can serve: blocks are never overdrawn, and sequences under way hold blocks.
    Workload heavy = workload;
    heavy.classes[0].rate_per_s = 1e3;
    const auto requests = draw_requests(heavy, {.requests = 400});
    const SimResult result = simulate(plan, requests, {.router = {.max_queue = 1 << 20}, .record = Record::timeline});
    EXPECT_EQ(result.all.finished, 400);
    const std::int64_t blocks = plan.stages[0].kv_tokens / plan.step.block_tokens;
    const auto prompt_blocks = static_cast<std::int64_t>(workload.mean_prompt_tokens()) / plan.step.block_tokens;
    std::int64_t most_running = 0;
    for (const auto& sample : result.timeline->samples) {
      EXPECT_LE(sample.kv_blocks, blocks);
      most_running = std::max(most_running, sample.running);
    }
    EXPECT_GT(most_running, 0);
    EXPECT_LE(most_running, blocks / std::max<std::int64_t>(1, prompt_blocks) + 1);
  }
}

}  // namespace
}  // namespace motley
