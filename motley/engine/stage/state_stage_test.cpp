// Layers with a delta net, which keep a state in each slot. Layouts and equality with `transformers` are
// tests/parity's.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"

namespace motley {
namespace {

constexpr const char* state_config =
    R"({"model_type": "qwen3_5_text", "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 40, "vocab_size": 101, "max_position_embeddings": 256, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20})";

class StateStageTest : public ::testing::Test {
 protected:
  StateStageTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "state-stage-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    spec_.arch = read_architecture(parse_json(state_config, "config"), "config");
    write_random_model(folder_, spec_.arch);
  }
  ~StateStageTest() override { std::filesystem::remove_all(folder_); }

  static StepSequence rows(std::uint64_t id, std::int32_t slot, std::int64_t position, std::int64_t count) {
    StepSequence sequence{.sequence = id,
                          .position = position,
                          .count = count,
                          .blocks = {static_cast<std::int32_t>(2 * id), static_cast<std::int32_t>(2 * id + 1)},
                          .sampling = Sampling{},
                          .slot = slot};
    for (std::int64_t i = position; i < position + count; ++i)
      sequence.tokens.push_back(static_cast<std::int32_t>((static_cast<std::int64_t>(id) * 31 + i * 7) % 101));
    return sequence;
  }
  static at::Tensor logits_of(StageModel& model, const Step& step) {
    const c10::InferenceMode guard;
    return model.logits(step, model.forward(step, {})).clone();
  }

  // Rates and gates are computed by ATen, whose last bit depends on how many rows a step has.
  static void expect_close(const at::Tensor& real, const at::Tensor& expected) {
    EXPECT_LT((real - expected).abs().max().item<double>(), 1e-5 * expected.std().item<double>());
  }

  std::filesystem::path folder_;
  StageSpec spec_{.layers = {0, 4},
                  .embedding = true,
                  .head = true,
                  .kv_tokens = 256,
                  .kv_sequences = 5,
                  .limits = {.max_tokens = 64, .max_sequences = 3, .block_tokens = 32}};
};

TEST_F(StateStageTest, AllocatesWhatWasPredicted) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    spec_.weight_type = spec_.kv_type = type;
    const Shard shard = make_shards(spec_.arch, 1).front();
    EXPECT_EQ(StageModel(spec_, folder_, nullptr, cpu_device()).allocated().kv,
              cache_bytes(spec_.arch, spec_.layers, shard, type, spec_.cache_room(), spec_.limits));
  }
}

// Sequences that change places, one of which is preempted: another one takes its slot, and it begins again.
TEST_F(StateStageTest, ARequestDoesNotDependOnWhoHadItsSlot) {
  StageModel alone(spec_, folder_, nullptr, cpu_device()), together(spec_, folder_, nullptr, cpu_device());
  logits_of(alone, {1, 0, {rows(1, 0, 0, 30)}});
  const at::Tensor expected = logits_of(alone, {2, 0, {rows(1, 0, 30, 1)}}),
                   other = logits_of(alone, {3, 0, {rows(2, 3, 0, 17)}});
  logits_of(together, {1, 0, {rows(1, 4, 0, 20), rows(3, 1, 0, 9)}});
  expect_close(logits_of(together, {2, 0, {rows(3, 1, 9, 1), rows(2, 4, 0, 17)}})[1], other[0]);
  logits_of(together, {3, 0, {rows(1, 0, 0, 13), rows(2, 4, 17, 1)}});
  logits_of(together, {4, 0, {rows(2, 4, 18, 1), rows(1, 0, 13, 17)}});
  expect_close(logits_of(together, {5, 0, {rows(2, 4, 19, 1), rows(1, 0, 30, 1)}})[1], expected[0]);
}

// There is no going on without the state of the last token.
TEST_F(StateStageTest, StatesCountFromTheirPlanOn) {
  auto before = std::make_unique<StageModel>(spec_, folder_, nullptr, cpu_device());
  const StageModel after(
      spec_, folder_, nullptr, cpu_device(), [](double) {}, std::move(before), 2);
  EXPECT_EQ(after.cache_epoch(), 2u);
}

TEST_F(StateStageTest, RefusesAStageWithoutSlots) {
  spec_.kv_sequences = 0;
  EXPECT_THROW(StageModel(spec_, folder_, nullptr, cpu_device()), Error);
}

}  // namespace
}  // namespace motley
