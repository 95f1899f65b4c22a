// What steps of models with delta nets cost: the states of the sequences that decode, whatever their length.
#include <gtest/gtest.h>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/step_time.hpp"
#include "motley/plan/example_test.hpp"

namespace motley {
namespace {

constexpr double state_elements = 32 * 128 * 128 + 8192 * 3;  // of Qwen3.5-35B-A3B, of a sequence and layer

struct DeltaNetCost : ::testing::Test {
  DeltaNetCost() {
    plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/qwen3.5-35b-a3b");
    group = make_group(plan.cluster, plan.model.arch, {0, 1}, {}, DType::bf16, DType::bf16, plan.step);
  }
  ServePlan plan = box_plan();
  TensorGroup group;
};

TEST_F(DeltaNetCost, OfLayersWithoutKeysAndValuesTheStatesAreReadAndWritten) {
  const Rank& rank = group.ranks.front();
  const BlockWork &delta = rank.blocks.at(0), &attention = rank.blocks.at(1);
  EXPECT_EQ(delta.state_bytes, 4 * state_elements / 2);
  EXPECT_EQ(attention.state_bytes, 0);
  const StepLoad decoding{.tokens = 16, .context = 1000, .cached = 16000, .logits = 16};
  EXPECT_EQ(kept_bytes(delta, decoding), 2 * 16 * 4 * state_elements / 2);
  EXPECT_EQ(kept_bytes(attention, decoding), 16000 * attention.kv_bytes);
  EXPECT_EQ(attention.kv_bytes, 2 * 256 * 2) << "one of two KV heads";
  EXPECT_EQ(attention.attention_flops, 4 * 8 * 256) << "of the layers that have attention";

  const StepCost cost({}, plan.cluster, plan.model.arch);
  const BlockTime time = cost.block_time(group, 0, decoding);
  expect_close(time.attention.memory_s, 16 * 4 * state_elements / attention_bandwidth(rank));
  EXPECT_EQ(time.attention.compute_s, 0);
  StepLoad longer = decoding;
  longer.context *= 10, longer.cached *= 10;
  EXPECT_EQ(cost.block_s(group, 0, longer), cost.block_s(group, 0, decoding));
  EXPECT_GT(cost.block_s(group, 1, longer), cost.block_s(group, 1, decoding));
}

TEST_F(DeltaNetCost, ATokenComputesWithTheStates) {
  const BlockWork &delta = group.ranks.front().blocks.at(0), &attention = group.ranks.front().blocks.at(1);
  const double mixed = 2048.0 * (2 * 2048 + 2 * 4096 + 2 * 32 + 4096) + 4 * 8192,
               attended = 2048.0 * (2 * 4096 + 2 * 512 + 4096);
  expect_close(delta.flops - attention.flops, 2 * (mixed - attended) / 2 + 8 * 16 * 128 * 128);
}

// The simulator's times are those of the closed form.
TEST_F(DeltaNetCost, StepByStepItIsTheSame) {
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const LayerRange layers{static_cast<std::int64_t>(i) * 13,
                            i + 1 == plan.stages.size() ? 40 : static_cast<std::int64_t>(i + 1) * 13};
    plan.stages[i].layers = plan.routes[0].path[i].layers = layers;
  }
  predict_memory(plan);
  const StepTimes times(plan, {});
  const RouteChain chain{0, 0, plan.routes[0].path.size()};
  const StepCost cost({}, plan.cluster, plan.model.arch);
  StepLoad load;
  for (int sequence = 0; sequence < 4; ++sequence) add_sequence(load, 0, 500 + sequence, 1, true);
  double expected = cost.ends_s(times.group(1), {}, load);
  const LayerCounts counts = layer_counts(plan.model.arch, plan.stages[1].layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind)
    expected += counts[kind] * cost.block_s(times.group(1), kind, load);
  expect_close(times.stage(chain, 1).seconds(load), expected);
}

}  // namespace
}  // namespace motley
