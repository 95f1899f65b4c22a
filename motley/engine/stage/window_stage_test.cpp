// Layers with a window, whose slots have the blocks of that alone: the same logits as where they keep all tokens.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <numeric>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/stage/cache_handover.hpp"
#include "motley/engine/stage/kernels_on_host_test.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/engine/weights/load_weights.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

struct WindowCase {
  const char* name;
  const char* keys;
};
std::ostream& operator<<(std::ostream& out, const WindowCase& family) { return out << family.name; }

constexpr const char* window_config =
    R"("hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
       "intermediate_size": 32, "vocab_size": 101, "max_position_embeddings": 4096, "sliding_window": 100)";
const std::vector<WindowCase> window_cases = {
    {"gpt_oss", R"("model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2)"},
    {"gemma3", R"("model_type": "gemma3_text", "sliding_window_pattern": 3)"},
    {"gemma4",
     R"("model_type": "gemma4_text", "global_head_dim": 64, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"])"},
    {"mistral", R"("model_type": "mistral")"},
};

class WindowStageTest : public ::testing::TestWithParam<WindowCase> {
 protected:
  WindowStageTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "window-stage-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    const std::string keys = fmt::format("{{{}, {}}}", window_config, GetParam().keys);
    whole_.arch = read_architecture(parse_json(keys, "config"), "config");
    whole_.layers = {0, 3};
    write_random_model(folder_, whole_.arch);
  }
  ~WindowStageTest() override { std::filesystem::remove_all(folder_); }

  StageSpec in_slots() const {
    StageSpec spec = whole_;
    spec.kv_sequences = 3;
    return spec;
  }

  // Each sequence's blocks lie side by side.
  StepSequence rows(std::int32_t slot, std::int64_t position, std::int64_t count) const {
    StepSequence sequence{.sequence = static_cast<std::uint64_t>(slot),
                          .position = position,
                          .count = count,
                          .sampling = Sampling{},
                          .slot = slot};
    for (std::int64_t i = position; i < position + count; ++i)
      sequence.tokens.push_back(static_cast<std::int32_t>((slot * 31 + i * 7 + i * i % 13) % 101));
    const std::int64_t size = whole_.limits.block_tokens;
    sequence.blocks.resize(static_cast<std::size_t>((position + count + size - 1) / size));
    std::iota(sequence.blocks.begin(), sequence.blocks.end(),
              static_cast<std::int32_t>(slot * (whole_.kv_tokens / 3 / size)));
    return sequence;
  }
  static at::Tensor logits_of(StageModel& model, const Step& step) {
    const c10::InferenceMode guard;
    return model.logits(step, model.forward(step, {})).cpu().clone();
  }
  // Chunks of unlike sizes of two prompts, and decodes among them; a third one begins in the first one's slot.
  std::vector<Step> steps() const {
    return {{1, 0, {rows(0, 0, 150), rows(1, 0, 20)}},
            {2, 0, {rows(0, 150, 99), rows(1, 20, 1)}},
            {3, 0, {rows(0, 249, 1), rows(1, 21, 190)}},
            {4, 0, {rows(0, 250, 1), rows(1, 211, 1)}},
            {5, 0, {rows(0, 0, 7), rows(1, 212, 1)}},
            {6, 0, {rows(0, 7, 1), rows(1, 213, 120), rows(2, 0, 61)}},
            {7, 0, {rows(0, 8, 1), rows(1, 333, 1), rows(2, 61, 1)}}};
  }

  std::filesystem::path folder_;
  StageSpec whole_{.embedding = true,
                   .head = true,
                   .kv_tokens = 3 * 4096,
                   .limits = {.max_tokens = 256, .max_sequences = 3, .block_tokens = 16}};
};

TEST_P(WindowStageTest, AllocatesWhatWasPredicted) {
  for (const DType type : {DType::fp32, DType::bf16, DType::q8_0}) {
    StageSpec spec = in_slots();
    spec.kv_type = type;
    const Shard shard = make_shards(spec.arch, 1).front();
    const std::int64_t real = StageModel(spec, folder_, nullptr, cpu_device()).allocated().kv;
    EXPECT_EQ(real, cache_bytes(spec.arch, spec.layers, shard, type, spec.cache_room(), spec.limits));
    spec.kv_sequences = 0;
    EXPECT_LT(real, StageModel(spec, folder_, nullptr, cpu_device()).allocated().kv);
  }
}

TEST_P(WindowStageTest, SaysTheSameToTheBit) {
  for (const DType type : {DType::fp32, DType::bf16, DType::q8_0}) {
    whole_.kv_type = type;
    StageModel whole(whole_, folder_, nullptr, cpu_device()), slots(in_slots(), folder_, nullptr, cpu_device());
    for (const Step& step : steps())
      EXPECT_TRUE(logits_of(slots, step).equal(logits_of(whole, step))) << name_of(type) << ", step " << step.step;
  }
}

TEST_P(WindowStageTest, SaysTheSameOnDevicesOfOtherKinds) {
  const KernelsOnHost kernels;
  for (const ComputeDevice* device : {static_cast<const ComputeDevice*>(&kernels), &apart_device()}) {
    StageModel whole(whole_, folder_, nullptr, *device), slots(in_slots(), folder_, nullptr, *device);
    for (const Step& step : steps()) {
      const at::Tensor expected = logits_of(whole, step);
      EXPECT_LT((logits_of(slots, step) - expected).abs().max().item<double>(), 1e-5 * expected.std().item<double>())
          << device->kernels() << ", step " << step.step;
    }
  }
}

TEST_P(WindowStageTest, SaysTheSameFarBeyondTheWindow) {
  StageModel whole(whole_, folder_, nullptr, cpu_device()), slots(in_slots(), folder_, nullptr, cpu_device());
  std::int64_t position = 0;
  for (std::uint64_t step = 1; position < 4000; ++step) {
    const std::int64_t most = step % 3 == 0 ? 1 : 250 - static_cast<std::int64_t>(step % 7),
                       count = std::min(most, 4000 - position);
    const Step next{step, 0, {rows(1, position, count)}};
    ASSERT_TRUE(logits_of(slots, next).equal(logits_of(whole, next))) << position;
    position += count;
  }
}

// Under the next plan a worker keeps what it has, with more or fewer slots; where slots come or go it keeps nothing of
// these layers.
TEST_P(WindowStageTest, SlotsStayUnderAnotherPlan) {
  const auto next = [&](const StageSpec& spec, std::unique_ptr<StageModel> earlier, std::uint64_t epoch) {
    return std::make_unique<StageModel>(
        spec, folder_, nullptr, cpu_device(), [](double) {}, std::move(earlier), epoch);
  };
  StageModel whole(whole_, folder_, nullptr, cpu_device());
  auto model = next(in_slots(), nullptr, 1);
  const Step prompt{1, 0, {rows(1, 0, 200)}}, decode{2, 0, {rows(1, 200, 1)}}, later{3, 0, {rows(1, 201, 1)}};
  EXPECT_TRUE(logits_of(*model, prompt).equal(logits_of(whole, prompt)));
  StageSpec more = in_slots();
  more.kv_sequences = 9;
  model = next(more, std::move(model), 2);
  EXPECT_EQ(model->cache_epoch(), 1u);
  EXPECT_TRUE(logits_of(*model, decode).equal(logits_of(whole, decode)));
  model = next(in_slots(), std::move(model), 3);
  EXPECT_EQ(model->cache_epoch(), 1u);
  EXPECT_TRUE(logits_of(*model, decode).equal(logits_of(whole, decode))) << "a step that was lost comes again";
  EXPECT_TRUE(logits_of(*model, later).equal(logits_of(whole, later)));
  model = next(whole_, std::move(model), 4);
  EXPECT_EQ(model->cache_epoch(), 4u);
}

TEST_P(WindowStageTest, SlotsAreHandedOver) {
  const Step prompt{1, 0, {rows(0, 0, 40), rows(1, 0, 200)}}, decode{2, 0, {rows(1, 200, 1)}};
  StageModel whole(whole_, folder_, nullptr, cpu_device());
  logits_of(whole, prompt);
  const at::Tensor expected = logits_of(whole, decode);
  const auto spec = in_slots();
  CacheHandover handover{.moves = {{0, 0, 1}, {1, 0, 1}, {2, 0, 1}}, .blocks = {}, .slots = {1}};
  for (const std::int32_t block : rows(1, 0, 201).blocks) handover.blocks.push_back(block);
  LinkedGroups groups("shm", 2);
  std::vector<std::future<at::Tensor>> workers;
  for (const int rank : {0, 1})
    workers.push_back(std::async(std::launch::async, [&, rank] {
      const c10::InferenceMode guard;
      StageModel model(
          spec, folder_, nullptr, cpu_device(), [](double) {}, nullptr, rank == 0 ? 1 : 2);
      if (rank == 0) logits_of(model, prompt);
      hand_over(handover, rank, 2, *groups[static_cast<std::size_t>(rank)], model, cpu_device());
      EXPECT_EQ(model.cache_epoch(), 1u);
      return logits_of(model, decode);
    }));
  for (auto& worker : workers) EXPECT_TRUE(worker.get().equal(expected));
}

TEST_P(WindowStageTest, RefusesSlotsThatCannotBe) {
  StageModel model(in_slots(), folder_, nullptr, cpu_device());
  for (const auto& [first, second] : {std::pair(-1, 1), {3, 1}, {1, 1}}) {
    Step step{1, 0, {rows(0, 0, 4), rows(1, 0, 4)}};
    step.sequences[0].slot = first;
    step.sequences[1].slot = second;
    EXPECT_THROW(model.forward(step, {}), Error) << first << ", " << second;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, WindowStageTest, ::testing::ValuesIn(window_cases),
                         [](const auto& family) { return std::string(family.param.name); });

class NoBlocks final : public BlockStore {
 public:
  const BlockWeights& block(std::int64_t) override { throw Error(ErrorCode::internal, "there are none"); }
  std::int64_t bytes() const override { return 0; }
};

// 24 layers with the heads of gpt-oss-20b, and 8,000 tokens of one sequence: 24,576 bytes of each token on the full
// layers, and of the others a window of 128 tokens of 2,048 bytes.
TEST(WindowCaches, AreAsSmallAsTheWindows) {
  Architecture arch = read_model("gpt-oss-20b").arch;
  for (LayerKind& kind : arch.kinds) kind.ffn = 8, kind.experts = {};
  arch.vocabulary = 16;
  StageSpec spec{.arch = arch,
                 .layers = {0, arch.layers},
                 .weight_type = DType::bf16,
                 .kv_type = DType::bf16,
                 .kv_tokens = 8000,
                 .kv_sequences = 1,
                 .limits = {.max_tokens = 512, .max_sequences = 1}};
  StageWeights weights;
  weights.blocks = std::make_unique<NoBlocks>();
  const std::int64_t real = StageModel(spec, std::move(weights), nullptr, cpu_device()).allocated().kv;
  const std::int64_t under_way = 12 * (spec.limits.max_tokens + spec.limits.block_tokens) * 2048;
  const double expected = 8000 * 24576 + 12 * 128 * 2048;
  EXPECT_NEAR(static_cast<double>(real - under_way), expected, 0.02 * expected);
}

}  // namespace
}  // namespace motley
