// The block of each family: differentiated as it is served, and its gradients against differences.
#include "motley/engine/stage/block.hpp"
#include "motley/engine/cpu/cpu_device.hpp"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/weights/weights.hpp"

namespace motley {
namespace {

using at::Tensor;

struct BlockCase {
  const char* name;
  const char* keys;
};
std::ostream& operator<<(std::ostream& out, const BlockCase& family) { return out << family.name; }

constexpr const char* common_keys =
    R"("hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 53, "max_position_embeddings": 64)";
const std::vector<BlockCase> block_cases = {
    {"llama", R"("model_type": "llama", "intermediate_size": 40, "num_key_value_heads": 2)"},
    {"llama_with_biases",
     R"("model_type": "llama", "intermediate_size": 40, "num_key_value_heads": 4, "attention_bias": true, "mlp_bias": true)"},
    {"mistral", R"("model_type": "mistral", "intermediate_size": 40, "num_key_value_heads": 2, "sliding_window": 4)"},
    {"qwen2", R"("model_type": "qwen2", "intermediate_size": 40, "num_key_value_heads": 2)"},
    {"qwen3", R"("model_type": "qwen3", "intermediate_size": 40, "num_key_value_heads": 2, "head_dim": 16)"},
    {"mixtral",
     R"("model_type": "mixtral", "intermediate_size": 40, "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2)"},
    {"qwen3_moe",
     R"("model_type": "qwen3_moe", "intermediate_size": 40, "moe_intermediate_size": 24, "num_key_value_heads": 2, "num_experts": 5, "num_experts_per_tok": 2)"},
    {"glm4_moe",
     R"("model_type": "glm4_moe", "intermediate_size": 40, "moe_intermediate_size": 24, "num_key_value_heads": 2, "n_routed_experts": 5,
        "num_experts_per_tok": 2, "n_shared_experts": 3, "routed_scaling_factor": 1.5, "use_qk_norm": true, "attention_bias": true)"},
    {"minimax_m2",
     R"("model_type": "minimax_m2", "intermediate_size": 24, "num_key_value_heads": 2, "head_dim": 16, "rotary_dim": 8,
        "num_local_experts": 5, "num_experts_per_tok": 2)"},
    {"gpt_oss",
     R"("model_type": "gpt_oss", "intermediate_size": 24, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 5,
        "num_experts_per_tok": 2, "swiglu_limit": 1.5, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4)"},
    {"gemma4",
     R"("model_type": "gemma4_text", "intermediate_size": 40, "num_key_value_heads": 4, "head_dim": 16, "global_head_dim": 32,
        "num_global_key_value_heads": 2, "attention_k_eq_v": true, "enable_moe_block": true, "num_experts": 5, "top_k_experts": 2,
        "moe_intermediate_size": 24, "hidden_size_per_layer_input": 0, "sliding_window": 4, "final_logit_softcapping": 30)"},
    {"gemma3",
     R"("model_type": "gemma3_text", "intermediate_size": 40, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 4)"},
    {"opt", R"("model_type": "opt", "ffn_dim": 40, "do_layer_norm_before": true)"},
    {"opt_norm_after",
     R"("model_type": "opt", "ffn_dim": 40, "do_layer_norm_before": false, "word_embed_proj_dim": 16)"},
};

class BlockTest : public ::testing::TestWithParam<BlockCase> {
 protected:
  BlockTest()
      : arch(read_architecture(parse_json(fmt::format("{{{}, {}}}", common_keys, GetParam().keys), "config"),
                               "config")) {
    at::manual_seed(5);
    for (const TensorSpec& tensor : with_each_expert(block_tensors(arch, 1))) {
      const Tensor noise = at::randn(tensor.shape) * 0.3;
      const bool norm = tensor.role.find("norm.weight") != std::string::npos;
      tensors.emplace(tensor.role, norm ? noise + 1 : noise);
    }
    frequencies = rotary_frequencies(arch, arch.context);
    hidden = at::randn({11, arch.hidden});
  }

  // The whole prompts of two sequences.
  Tensor forward(const Ops& ops, const std::map<std::string, Tensor>& weights, Tensor input,
                 const LayerCache& cache = {}, const BlockBuffers& buffers = {}) const {
    Collectives alone(nullptr, cpu_device());
    const Tensor positions = at::cat({at::arange(7), at::arange(4)});
    const std::vector<SequenceRows> sequences = {{0, 7, 0, first_blocks}, {7, 4, 0, second_blocks}};
    const BlockCall pass{arch, ops, alone, frequencies, positions, sequences};
    std::map<std::string, WeightMatrix> held;
    for (const auto& [role, values] : weights) held.emplace(role, WeightMatrix{.values = values});
    run_block(pass, block_of(held, 0), 1, cache, buffers, input);
    return input;
  }

  Architecture arch;
  std::map<std::string, Tensor> tensors;
  std::vector<RotaryFrequencies> frequencies;
  Tensor hidden;
  std::vector<std::int32_t> first_blocks = {2, 0}, second_blocks = {1};
};

TEST_P(BlockTest, IsTheSameDifferentiatedAndServed) {
  const Shard shard = make_shards(arch, 1).front();
  std::map<std::string, Tensor> rows;
  for (const Buffer& buffer :
       activation_buffers(arch, {.layers = {0, 2}}, shard, DType::fp32, {.max_tokens = 11, .max_sequences = 2}))
    rows.emplace(buffer.name, at::zeros(buffer.shape, buffer.type ? at::kFloat : at::kLong));
  const LayerKind& kind = arch.kind(1);
  const auto part_of = [&](const char* buffer, std::int64_t count, const Span& columns) {
    if (!rows[buffer].defined() || columns.size() == 0) return Tensor();
    return rows[buffer].flatten().narrow(0, 0, count * columns.size()).view({count, columns.size()});
  };
  const auto ffn_rows = [&](const char* buffer) {
    return part_of(buffer, 11 * kind.active_ffns(), shard.columns[arch.kind_index(1)]);
  };
  const auto shared_rows = [&](const char* buffer) { return part_of(buffer, 11, shard.shared[arch.kind_index(1)]); };
  const BlockBuffers buffers{.normed = rows["normed"],
                             .query = rows["query"],
                             .key = rows["key"],
                             .value = rows["value"],
                             .attention = rows["attention"].view({11, -1, kind.head_dim}),
                             .projected = rows["projected"],
                             .up = ffn_rows("up"),
                             .gate = ffn_rows("gate"),
                             .routed = rows["routed"],
                             .chosen = rows["chosen"],
                             .shares = rows["shares"],
                             .shared_gate = shared_rows("gate"),
                             .shared_up = shared_rows("up"),
                             .squares = rows["squares"],
                             .routed_output = rows["routed_output"]};
  const LayerCache cache{at::zeros({3, kind.kv_heads, kind.head_dim, 4}),
                         at::zeros({3, kind.kv_heads, 4, kind.head_dim})};
  const Tensor input = hidden.clone();
  const Tensor differentiable = forward(differentiable_ops(), tensors, input);
  EXPECT_TRUE(input.equal(hidden)) << "its input is kept for the backward pass";
  for (const Ops* ops : {&cpu_ops(), &generic_ops()}) {
    const c10::InferenceMode guard;
    const Tensor served = forward(*ops, tensors, hidden.clone(), cache, buffers);
    EXPECT_FALSE(served.equal(hidden));
    EXPECT_TRUE(at::allclose(served, differentiable, 2e-5, 2e-5))
        << "largest difference " << (served - differentiable).abs().max().item<float>();
  }
}

// Along a random direction in each tensor, in fp64.
TEST_P(BlockTest, GradientsAreDifferences) {
  at::set_num_threads(1);  // products this small only wait for each other
  std::map<std::string, Tensor> leaves;
  for (const auto& [role, tensor] : tensors) leaves.emplace(role, tensor.to(at::kDouble).requires_grad_());
  leaves.emplace("input", hidden.to(at::kDouble).requires_grad_());
  const Tensor weights_of_sum = at::randn({11, arch.hidden}, at::kDouble);
  const auto loss = [&](const std::map<std::string, Tensor>& at) {
    return (forward(differentiable_ops(), at, at.at("input")) * weights_of_sum).sum();
  };
  loss(leaves).backward();
  for (const auto& [role, leaf] : leaves) {
    const Tensor direction = at::randn(leaf.sizes(), at::kDouble);
    const double step = 1e-6;
    const auto moved = [&, role = role, leaf = leaf](double by) {
      std::map<std::string, Tensor> other;
      for (const auto& [name, tensor] : leaves) other.emplace(name, tensor.detach());
      other[role] = leaf.detach() + by * direction;
      return loss(other).item<double>();
    };
    const double numeric = (moved(step) - moved(-step)) / (2 * step);
    // None reaches what chooses without being weighed.
    const double analytic = leaf.grad().defined() ? (leaf.grad() * direction).sum().item<double>() : 0;
    EXPECT_EQ(leaf.grad().defined(), role != selection_bias_role) << role;
    EXPECT_NEAR(analytic, numeric, 1e-6 * std::max(1.0, std::abs(numeric))) << role;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BlockTest, ::testing::ValuesIn(block_cases),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace motley
