// A stage on one rank: memory, refusals, and that nothing depends on who else is in a batch. Layouts of several ranks
// and equality with `transformers` are tests/parity's.
#include "motley/engine/stage/stage_model.hpp"
#include "motley/engine/cpu/cpu_device.hpp"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/weights/load_weights.hpp"

namespace motley {
namespace {

constexpr const char* config =
    R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 80, "vocab_size": 101, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": TIED})";

Architecture llama_architecture(bool tied) {
  std::string text = config;
  text.replace(text.find("TIED"), 4, tied ? "true" : "false");
  return read_architecture(parse_json(text, "config"), "config");
}

constexpr std::pair<DType, DType> weight_and_kv_types[] = {
    {DType::fp32, DType::fp32}, {DType::bf16, DType::bf16}, {DType::fp32, DType::q8_0}, {DType::bf16, DType::q8_0}};

// A folder with random weights for the architecture.
class StageModelTest : public ::testing::Test {
 protected:
  StageModelTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "stage-model-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    write_random_model(folder, llama_architecture(false));
  }
  ~StageModelTest() override { std::filesystem::remove_all(folder); }

  static StageSpec whole(bool tied = false) {
    return {.arch = llama_architecture(tied),
            .layers = {0, 2},
            .embedding = true,
            .head = true,
            .kv_tokens = 200,
            .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 8}};
  }

  // Logits of every sampling sequence of a step.
  static at::Tensor run(StageModel& model, const Step& step) {
    return model.logits(step, model.forward(step, {})).clone();
  }

  std::filesystem::path folder;
};

StepSequence part(std::uint64_t id, std::int64_t position, std::int64_t count, std::vector<std::int32_t> blocks) {
  StepSequence sequence{
      .sequence = id, .position = position, .count = count, .blocks = std::move(blocks), .sampling = Sampling{}};
  for (std::int64_t i = position; i < position + count; ++i)
    sequence.tokens.push_back(static_cast<std::int32_t>((static_cast<std::int64_t>(id) * 31 + i * 7) % 101));
  return sequence;
}

TEST_F(StageModelTest, AllocatesWhatWasPredicted) {
  for (const bool tied : {false, true})
    for (const auto& [embedding, head] : {std::pair(true, true), {true, false}, {false, true}, {false, false}})
      for (const auto& [type, kv_type] : weight_and_kv_types) {
        StageSpec spec = whole(tied);
        spec.embedding = embedding;
        spec.head = head;
        spec.weight_type = type;
        spec.kv_type = kv_type;
        const Shard shard = make_shards(spec.arch, 1).front();
        const StageModel::Allocated real = StageModel(spec, folder, nullptr, cpu_device()).allocated();
        const ModelPart part{spec.layers, embedding, head};
        EXPECT_EQ(real.weights, weight_bytes(spec.arch, part, shard, type));
        EXPECT_EQ(real.kv, part.layers.size() *
                               kv_cache_bytes(spec.arch, 0, shard, kv_type, spec.kv_tokens, spec.limits.block_tokens));
        EXPECT_EQ(real.activations, activation_bytes(spec.arch, part, shard, type, spec.limits));
      }
}

TEST_F(StageModelTest, ReportsProgressToTheEnd) {
  std::vector<double> seen;
  StageModel(whole(), folder, nullptr, cpu_device(), [&](double fraction) { seen.push_back(fraction); });
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_DOUBLE_EQ(seen.back(), 1);
}

// To the bit: alone, in a batch with others, and in chunks.
TEST_F(StageModelTest, ARequestDoesNotDependOnItsCompany) {
  for (const auto& [type, kv_type] : weight_and_kv_types) {
    StageSpec spec = whole();
    spec.weight_type = type;
    spec.kv_type = kv_type;
    StageModel alone(spec, folder, nullptr, cpu_device()), together(spec, folder, nullptr, cpu_device()),
        chunked(spec, folder, nullptr, cpu_device());
    const at::Tensor first = run(alone, {.step = 1, .sequences = {part(1, 0, 20, {3, 1, 2})}});
    const at::Tensor next = run(alone, {.step = 2, .sequences = {part(1, 20, 1, {3, 1, 2})}});

    const at::Tensor in_batch = run(
        together, {.step = 1, .sequences = {part(2, 0, 7, {0}), part(1, 0, 20, {5, 4, 7}), part(3, 0, 13, {8, 9})}});
    const at::Tensor next_in_batch = run(
        together, {.step = 2, .sequences = {part(1, 20, 1, {5, 4, 7}), part(2, 7, 9, {0, 6}), part(3, 13, 1, {8, 9})}});
    EXPECT_TRUE(in_batch[1].equal(first[0]));
    EXPECT_TRUE(next_in_batch[0].equal(next[0]));

    for (std::int64_t position = 0; position < 15; position += 5)
      chunked.forward({.step = 1, .sequences = {part(1, position, 5, {0, 1, 2})}}, {});
    EXPECT_TRUE(run(chunked, {.step = 2, .sequences = {part(1, 15, 5, {0, 1, 2})}})[0].equal(first[0]));
  }
}

TEST_F(StageModelTest, TwoStagesEqualOne) {
  StageSpec first = whole(), second = whole();
  first.layers = {0, 1};
  first.head = false;
  second.layers = {1, 2};
  second.embedding = false;
  StageModel model(whole(), folder, nullptr, cpu_device()), front(first, folder, nullptr, cpu_device()),
      back(second, folder, nullptr, cpu_device());
  const Step step{.step = 1, .sequences = {part(1, 0, 9, {0, 1}), part(2, 0, 3, {2})}};
  const at::Tensor hidden = front.forward(step, {});
  const at::Tensor incoming = back.incoming_buffer().narrow(0, 0, 12);
  const c10::InferenceMode guard;
  incoming.copy_(hidden);
  EXPECT_TRUE(back.logits(step, back.forward(step, incoming)).equal(run(model, step)));
}

// Experts in every other layer: a stage has of each kind what its own layers need.
TEST_F(StageModelTest, LayersOfUnlikeKindsMayBeCutAnywhere) {
  Architecture arch = read_architecture(
      parse_json(R"({"model_type": "mixtral", "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 6,
                     "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 24, "num_local_experts": 5,
                     "num_experts_per_tok": 2, "vocab_size": 101, "max_position_embeddings": 64})",
                 "config"),
      "config");
  LayerKind dense = arch.kinds.front();
  dense.experts = {};
  dense.ffn = 80;
  arch.kinds.push_back(dense);
  arch.kind_of_layer = {1, 0, 1, 0};
  write_random_model(folder, arch);
  const auto stage_of = [&](const LayerRange& layers) {
    StageSpec spec = whole();
    spec.arch = arch;
    spec.layers = layers;
    spec.embedding = layers.first == 0;
    spec.head = layers.end == arch.layers;
    auto stage = std::make_unique<StageModel>(spec, folder, nullptr, cpu_device());
    const ModelPart part{layers, spec.embedding, spec.head};
    const Shard shard = make_shards(arch, 1).front();
    EXPECT_EQ(stage->allocated().weights, weight_bytes(arch, part, shard, DType::fp32)) << layers.first;
    EXPECT_EQ(stage->allocated().activations, activation_bytes(arch, part, shard, DType::fp32, spec.limits));
    return stage;
  };
  const Step step{.step = 1, .sequences = {part(1, 0, 9, {0, 1}), part(2, 0, 3, {2})}};
  const at::Tensor expected = run(*stage_of({0, 4}), step);
  for (std::int64_t cut = 1; cut < 4; ++cut) {
    const auto front = stage_of({0, cut}), back = stage_of({cut, 4});
    const at::Tensor hidden = front->forward(step, {});
    const at::Tensor incoming = back->incoming_buffer().narrow(0, 0, 12);
    const c10::InferenceMode guard;
    incoming.copy_(hidden);
    EXPECT_TRUE(back->logits(step, back->forward(step, incoming)).equal(expected)) << cut;
  }
}

TEST_F(StageModelTest, OnlySamplingSequencesHaveLogits) {
  StageModel model(whole(), folder, nullptr, cpu_device());
  Step step{.step = 1, .sequences = {part(1, 0, 4, {0}), part(2, 0, 5, {1})}};
  const at::Tensor both = run(model, step);
  EXPECT_EQ(both.size(0), 2);
  step.sequences[0].sampling.reset();
  EXPECT_TRUE(run(model, step)[0].equal(both[1]));
  step.sequences[1].sampling.reset();
  EXPECT_EQ(run(model, step).size(0), 0);
}

// A store that holds one block at a time, read again from the checkpoint at each use.
class ReloadedBlocks final : public BlockStore {
 public:
  explicit ReloadedBlocks(WeightLoader loader) : loader_(std::move(loader)) {}
  const BlockWeights& block(std::int64_t layer) override {
    block_ = {};
    const std::int64_t before = loader_.bytes();
    block_ = loader_.block(layer);
    bytes_ = loader_.bytes() - before;
    ++loads;
    return block_;
  }
  std::int64_t bytes() const override { return bytes_; }

  int loads = 0;

 private:
  WeightLoader loader_;
  BlockWeights block_;
  std::int64_t bytes_ = 0;
};

// The tokens that a model says after a prompt, the likeliest each.
std::vector<std::int32_t> say(StageModel& model, std::int64_t count) {
  StepSequence sequence = part(1, 0, 11, {3, 1, 2});
  std::vector<std::int32_t> said;
  for (std::uint64_t step = 1; std::ssize(said) < count; ++step) {
    const Step one{.step = step, .sequences = {sequence}};
    said.push_back(
        static_cast<std::int32_t>(model.logits(one, model.forward(one, {}))[0].argmax().item<std::int64_t>()));
    sequence.position += sequence.count;
    sequence.count = 1;
    sequence.tokens = {said.back()};
  }
  return said;
}

TEST_F(StageModelTest, BlocksThatAreReadAgainAtEachUseSayTheSame) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    StageSpec spec = whole();
    spec.weight_type = type;
    StageModel resident(spec, folder, nullptr, cpu_device());
    EndWeights ends = load_weights(spec, folder, cpu_device()).ends;
    auto blocks = std::make_unique<ReloadedBlocks>(WeightLoader(spec, folder, cpu_device()));
    const ReloadedBlocks& store = *blocks;
    StageModel reloading(spec, {std::move(blocks), std::move(ends)}, nullptr, cpu_device());
    EXPECT_EQ(say(reloading, 12), say(resident, 12));
    EXPECT_EQ(store.loads, 12 * 2);
    EXPECT_LT(reloading.allocated().weights, resident.allocated().weights);
    const Step step{.step = 20, .sequences = {part(2, 0, 20, {4, 5, 6})}};
    EXPECT_TRUE(run(reloading, step).equal(run(resident, step)));
  }
}

// Each matrix in 8 bits with a scale per 16 inputs, or the values that this stands for.
void quantise(LinearWeights& linear, bool back) {
  if (!linear.weight.defined()) return;
  constexpr std::int64_t group = 16;
  const at::Tensor values = linear.weight.values;
  const at::Tensor grouped = values.view({values.size(0), -1, group});
  const at::Tensor scales = grouped.abs().amax(2) / 127;
  const at::Tensor rounded = (grouped / scales.unsqueeze(2)).round().to(at::kChar).view(values.sizes());
  linear.weight = {.values = rounded, .scales = scales, .group = group, .type = DType::int8};
  if (back) linear.weight = {.values = dequantised(linear.weight, values.scalar_type())};
}

class QuantisedBlocks final : public BlockStore {
 public:
  QuantisedBlocks(BlockStore& from, const LayerRange& layers, bool back) {
    for (std::int64_t layer = layers.first; layer < layers.end; ++layer) {
      BlockWeights& block = blocks_.emplace_back(from.block(layer));
      for (LinearWeights* linear : {&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down})
        quantise(*linear, back);
    }
  }
  const BlockWeights& block(std::int64_t layer) override { return blocks_.at(static_cast<std::size_t>(layer)); }
  std::int64_t bytes() const override { return 0; }

 private:
  std::vector<BlockWeights> blocks_;
};

TEST_F(StageModelTest, RunsOnWeightsOfEightBits) {
  const StageSpec spec = whole();
  const Step step{.step = 1, .sequences = {part(1, 0, 20, {3, 1, 2}), part(2, 0, 5, {4})}};
  const auto logits = [&](bool back) {
    const c10::InferenceMode guard;
    StageWeights weights = load_weights(spec, folder, cpu_device());
    weights.blocks = std::make_unique<QuantisedBlocks>(*weights.blocks, spec.layers, back);
    StageModel model(spec, std::move(weights), nullptr, cpu_device());
    return run(model, step);
  };
  const at::Tensor eight = logits(false), back = logits(true);
  StageModel plain(spec, folder, nullptr, cpu_device());
  const at::Tensor exact = run(plain, step);
  EXPECT_TRUE(at::allclose(eight, back, 1e-4, 1e-4)) << (eight - back).abs().max().item<float>();
  EXPECT_FALSE(eight.equal(exact));
  EXPECT_LT((eight - exact).norm().item<double>(), 0.05 * exact.norm().item<double>());
}

struct BadStep {
  const char* what;
  std::function<void(Step&)> damage;
};

TEST_F(StageModelTest, RefusesStepsThatCannotBe) {
  StageModel model(whole(), folder, nullptr, cpu_device());
  const Step good{.step = 1, .sequences = {part(1, 6, 4, {0, 1})}};
  const std::vector<BadStep> steps = {
      {"negative position", [](Step& s) { s.sequences[0].position = -1; }},
      {"a position that overflows", [](Step& s) { s.sequences[0].position = INT64_MAX; }},
      {"no tokens", [](Step& s) { s.sequences[0].count = 0; }},
      {"more tokens than announced", [](Step& s) { s.sequences[0].tokens.push_back(1); }},
      {"beyond the context",
       [](Step& s) {
         s.sequences[0].position = 61;  // of 64, in blocks that hold 72
         s.sequences[0].blocks = {0, 1, 2, 3, 4, 5, 6, 7, 8};
       }},
      {"a negative token", [](Step& s) { s.sequences[0].tokens[2] = -1; }},
      {"a token beyond the vocabulary", [](Step& s) { s.sequences[0].tokens[2] = 101; }},
      {"too few blocks", [](Step& s) { s.sequences[0].blocks.pop_back(); }},
      {"a block too few for one token",
       [](Step& s) {
         s.sequences[0].position = 5;  // up to 9
         s.sequences[0].blocks.pop_back();
       }},
      {"a block that there is not", [](Step& s) { s.sequences[0].blocks[1] = 25; }},
      {"a negative block", [](Step& s) { s.sequences[0].blocks[0] = -3; }},
      {"too many sequences", [](Step& s) { s.sequences.resize(5, s.sequences[0]); }},
      {"too many tokens", [](Step& s) {
         s.sequences = {part(1, 0, 21, {0, 1, 2}), part(2, 0, 20, {3, 4, 5})};
       }}};
  for (const BadStep& bad : steps) {
    Step step = good;
    bad.damage(step);
    try {
      model.forward(step, {});
      ADD_FAILURE() << bad.what << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer) << bad.what;
    }
  }
  EXPECT_NO_THROW(model.forward(good, {}));
}

TEST_F(StageModelTest, RefusesTypesItCannotComputeIn) {
  for (const DType type : {DType::fp16, DType::int8, DType::int4}) {
    StageSpec spec = whole();
    spec.weight_type = type;
    EXPECT_THROW(StageModel(spec, folder, nullptr, cpu_device()), Error);
  }
}

TEST_F(StageModelTest, RefusesKeysAndValuesThatAreNotWholeBlocks) {
  StageSpec spec = whole();
  spec.kv_type = DType::q8_0;
  spec.arch.kinds.front().head_dim = 16;
  try {
    StageModel(spec, StageWeights(), nullptr, cpu_device());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "q8_0 keys and values come in blocks of 32 along a head, and the model's head_dim is 16");
    EXPECT_EQ(error.hint(), "set `kv_type` (`--kv-type`) to fp32 or bf16");
  }
}

// A worker in the middle of a long step must come to its next launch while the others wait for it.
TEST_F(StageModelTest, ALongStepStopsAsAskedAndCanBeRunAgain) {
  const c10::InferenceMode guard;
  StageModel model(whole(), folder, nullptr, cpu_device()), other(whole(), folder, nullptr, cpu_device());
  const Step step{1, 0, {part(1, 0, 20, {0, 1, 2})}};
  std::stop_source asked;
  asked.request_stop();
  EXPECT_THROW(model.forward(step, {}, asked.get_token()), GroupBroken);
  EXPECT_TRUE(at::equal(run(model, step), run(other, step)));
}

}  // namespace
}  // namespace motley
