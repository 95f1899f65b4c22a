// The tales model in every quantised type, held against what llama.cpp made of the same files, teacher-forced.
#include <gtest/gtest.h>

#include <cmath>

#include "motley/engine/gguf_file_test.hpp"
#include "motley/engine/weights.hpp"

namespace motley {
namespace {

// tests/reference/llama_cpp_goldens.py
const Value& goldens() {
  static const Value value = read_document(MOTLEY_SOURCE_DIR "/tests/data/llama_cpp_tales.json");
  return value;
}

constexpr std::int64_t chunk_tokens = 128, told = chunk_tokens / 2, asked = 32, chunk_blocks = chunk_tokens / 16;
// Where llama.cpp's two best logits are further apart than this, its choice is ours. Its activations have 8 bits.
constexpr double clear_margin = 0.1;

// Tokens [first, end) of each chunk as a sequence of its own.
Step step_of(std::int64_t first, std::int64_t end, std::size_t first_chunk, std::size_t end_chunk) {
  Step step{.step = 1};
  const Value::Array& chunks = goldens().find("tokens")->as_array();
  for (std::size_t chunk = first_chunk; chunk < end_chunk; ++chunk) {
    StepSequence sequence{.sequence = chunk, .position = first, .count = end - first, .sampling = Sampling{}};
    for (std::int64_t i = first; i < end; ++i)
      sequence.tokens.push_back(
          static_cast<std::int32_t>(chunks[chunk].as_array()[static_cast<std::size_t>(i)].as_integer()));
    for (std::int64_t i = 0; i < chunk_blocks; ++i)
      sequence.blocks.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(chunk) * chunk_blocks + i));
    step.sequences.push_back(std::move(sequence));
  }
  return step;
}

class LlamaCppTest : public GgufFileTest, public ::testing::WithParamInterface<DType> {};

TEST_P(LlamaCppTest, SaysTheSame) {
  const auto model = file_of(GetParam());
  const std::size_t chunks = goldens().find("tokens")->as_array().size();
  StageSpec spec = whole(model, DType::file);
  spec.kv_tokens = chunk_tokens * static_cast<std::int64_t>(chunks);
  spec.limits = {.max_tokens = told, .max_sequences = static_cast<std::int64_t>(chunks), .block_tokens = 16};
  StageModel stage(spec, model, nullptr, at::kCPU);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) stage.forward(step_of(0, told, chunk, chunk + 1), {});

  const Value& expected = *goldens().find("types")->find(name_of(GetParam()));
  double mine = 0, theirs = 0, positions = 0;
  for (std::int64_t i = told; i < told + asked; ++i) {
    const Step step = step_of(i, i + 1, 0, chunks);
    const at::Tensor logs = at::log_softmax(stage.logits(step, stage.forward(step, {})), 1);
    const at::Tensor best = logs.argmax(1);
    const Step next = step_of(i + 1, i + 2, 0, chunks);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const auto row = static_cast<std::int64_t>(chunk);
      const auto of = [&](const char* key) {
        return expected.find(key)->as_array()[chunk].as_array()[static_cast<std::size_t>(i - told)];
      };
      const bool clear = of("margin").as_number() > clear_margin;
      EXPECT_TRUE(!clear || best[row].item<std::int64_t>() == of("best").as_integer())
          << "chunk " << chunk << " position " << i;
      mine -= logs[row][next.sequences[chunk].tokens[0]].item<float>();
      theirs -= of("following").as_number();
      ++positions;
    }
  }
  EXPECT_NEAR(std::exp((mine - theirs) / positions), 1, 0.005) << "perplexity " << std::exp(mine / positions);
}

INSTANTIATE_TEST_SUITE_P(Types, LlamaCppTest,
                         ::testing::Values(DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q4_k,
                                           DType::q5_k, DType::q6_k),
                         [](const auto& type) { return std::string(name_of(type.param)); });

}  // namespace
}  // namespace motley
