// How often a stage expands its quantised weights where a step has more rows than the kernels of products take: those
// for GPUs, run on the processor.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "motley/engine/stage/kernels_on_host_test.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"

namespace motley {
namespace {

// By matrix; without the look-ups of tokens.
std::map<const void*, int>& expansions() {
  static std::map<const void*, int> all;
  return all;
}

cuda::Kernels kernels_that_count() {
  cuda::Kernels kernels = open_cuda_kernels(MOTLEY_HOST_KERNELS);
  kernels.most_quantised_rows = kernels.most_quantised_tokens = 4;
  kernels.expand = [](const cuda::ExpandTask& task, void* stream) {
    if (task.rows == nullptr) ++expansions()[task.matrix.values];
    return open_cuda_kernels(MOTLEY_HOST_KERNELS).expand(task, stream);
  };
  return kernels;
}

// Of two prompts, and of their next parts; `steps` of them.
void run_steps(const std::string& keys, int steps) {
  const c10::InferenceMode guard;
  std::string pattern = (std::filesystem::temp_directory_path() / "expansions-XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  const std::string config = R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 101, "max_position_embeddings": 64, )";
  StageSpec spec{.layers = {0, 2},
                 .embedding = true,
                 .head = true,
                 .weight_type = DType::q8_0,
                 .kv_tokens = 200,
                 .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 8}};
  spec.arch = read_architecture(parse_json(config + keys + "}", "config"), "config");
  write_random_model(folder, spec.arch);
  const KernelsOnHost device(kernels_that_count());
  StageModel model(spec, folder, nullptr, device);
  std::filesystem::remove_all(folder);
  expansions().clear();
  for (std::int64_t step = 0; step < steps; ++step) {
    Step asked{.step = static_cast<std::uint64_t>(step + 1)};
    for (std::int32_t id = 0; id < 2; ++id) {
      StepSequence sequence{.sequence = static_cast<std::uint64_t>(id),
                            .position = 20 * step,
                            .count = 20,
                            .blocks = {8 * id, 8 * id + 1, 8 * id + 2, 8 * id + 3, 8 * id + 4},
                            .sampling = Sampling{}};
      for (std::int32_t i = 0; i < 20; ++i) sequence.tokens.push_back((31 * id + 7 * i) % 101);
      asked.sequences.push_back(sequence);
    }
    model.logits(asked, model.forward(asked, {}));
  }
}

TEST(Expansions, OfAMatrixAreOneInAStep) {
  for (const int steps : {1, 2}) {
    run_steps(R"("model_type": "llama")", steps);
    EXPECT_EQ(expansions().size(), 2 * 7) << "of the head's few rows none";
    for (const auto& [matrix, count] : expansions()) EXPECT_EQ(count, steps);
  }
}

TEST(Expansions, OfAnExpertAreOneInAStep) {
  run_steps(R"("model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2)", 1);
  EXPECT_GT(expansions().size(), 2 * (4 + 3 * 2));
  for (const auto& [matrix, count] : expansions()) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace motley
