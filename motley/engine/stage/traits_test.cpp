// What sets a family apart counts: leaving one trait out changes a block by far more than tests/parity allows.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/collectives.hpp"
#include "motley/engine/stage/block.hpp"

namespace motley {
namespace {

using at::Tensor;

constexpr double far_beyond_parity = 0.02;  // of the deviation of what the block adds; parity allows 1e-4
constexpr std::int64_t trait_tokens = 40;

constexpr const char* qwen3_moe_traits =
    R"("model_type": "qwen3_moe", "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": true)";
constexpr const char* glm4_moe_traits =
    R"("model_type": "glm4_moe", "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "attention_bias": true,
       "routed_scaling_factor": 1.5, "use_qk_norm": true)";
constexpr const char* minimax_m2_traits =
    R"("model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16, "rotary_dim": 8)";

constexpr const char* gpt_oss_traits =
    R"("model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3, "swiglu_limit": 1.5,
       "layer_types": ["sliding_attention", "sliding_attention"], "sliding_window": 8,
       "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000, "factor": 4, "truncate": false,
                           "original_max_position_embeddings": 64})";
constexpr const char* gemma3_traits =
    R"("model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 48, "sliding_window": 8)";

constexpr const char* gemma4_traits =
    R"("model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32, "attention_k_eq_v": true, "num_global_key_value_heads": 1,
       "enable_moe_block": true, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24, "hidden_size_per_layer_input": 0,
       "layer_types": ["sliding_attention", "full_attention"])";

constexpr const char* qwen3_5_moe_traits =
    R"("model_type": "qwen3_5_moe_text", "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3,
       "shared_expert_intermediate_size": 24, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
       "linear_key_head_dim": 16, "linear_value_head_dim": 16,
       "layer_types": ["full_attention", "linear_attention"])";
constexpr const char* qwen3_5_attention_traits =
    R"("model_type": "qwen3_5_text", "head_dim": 16, "layer_types": ["linear_attention", "full_attention"])";

struct Trait {
  const char* name;
  const char* family;  // keys of config.json
  void (*leave_out)(Architecture& arch, LayerKind& kind) = nullptr;
  const char* as_ones = nullptr;  // instead: a tensor, whose values are 1
};
std::ostream& operator<<(std::ostream& out, const Trait& trait) { return out << trait.name; }

const std::vector<Trait> traits = {
    {"norms_of_heads", qwen3_moe_traits, [](Architecture& arch, LayerKind&) { arch.qk_norm = QkNorm::none; }},
    {"normalised_shares", qwen3_moe_traits,
     [](Architecture&, LayerKind& kind) { kind.experts.router.score = RouterScore::softmax; }},
    {"another_expert", qwen3_moe_traits, [](Architecture&, LayerKind& kind) { --kind.experts.active; }},
    {"shared_expert", glm4_moe_traits, [](Architecture&, LayerKind& kind) { kind.experts.shared_ffn = 0; }},
    {"selection_bias", glm4_moe_traits,
     [](Architecture&, LayerKind& kind) { kind.experts.router.selection_bias = false; }},
    {"sigmoid", glm4_moe_traits,
     [](Architecture&, LayerKind& kind) { kind.experts.router.score = RouterScore::softmax; }},
    {"normalised_scores", glm4_moe_traits,
     [](Architecture&, LayerKind& kind) { kind.experts.router.normalise = false; }},
    {"factor_of_shares", glm4_moe_traits, [](Architecture&, LayerKind& kind) { kind.experts.router.factor = 1; }},
    {"half_of_heads_rotated", glm4_moe_traits,
     [](Architecture& arch, LayerKind&) { arch.rotaries.front().partial = 1; }},
    {"biases", glm4_moe_traits, [](Architecture& arch, LayerKind&) { arch.qkv_bias = false; }},
    {"norms_over_all_heads", minimax_m2_traits, [](Architecture& arch, LayerKind&) { arch.qk_norm = QkNorm::none; }},
    {"selection_bias_of_minimax", minimax_m2_traits,
     [](Architecture&, LayerKind& kind) { kind.experts.router.selection_bias = false; }},
    {"part_of_heads_rotated", minimax_m2_traits,
     [](Architecture& arch, LayerKind&) { arch.rotaries.front().partial = 1; }},
    {"sinks", gpt_oss_traits, [](Architecture& arch, LayerKind&) { arch.sinks = false; }},
    {"window", gpt_oss_traits, [](Architecture&, LayerKind& kind) { kind.window = 0; }},
    {"biases_of_attention", gpt_oss_traits, [](Architecture& arch, LayerKind&) { arch.qkv_bias = false; }},
    {"bias_of_the_output", gpt_oss_traits, [](Architecture& arch, LayerKind&) { arch.output_bias = false; }},
    {"biases_of_experts", gpt_oss_traits, [](Architecture& arch, LayerKind&) { arch.ffn_bias = false; }},
    {"bias_of_the_router", gpt_oss_traits, [](Architecture&, LayerKind& kind) { kind.experts.router.bias = false; }},
    {"activation", gpt_oss_traits, [](Architecture& arch, LayerKind&) { arch.activation = Activation::silu; }},
    {"clamp", gpt_oss_traits, [](Architecture& arch, LayerKind&) { arch.activation.limit = 1e6; }},
    {"slope", gpt_oss_traits, [](Architecture& arch, LayerKind&) { arch.activation.slope = 1; }},
    {"yarn", gpt_oss_traits,
     [](Architecture& arch, LayerKind&) { arch.rotaries.front().scaling = RotaryScaling::none; }},
    {"amplitude_of_yarn", gpt_oss_traits,
     [](Architecture& arch, LayerKind&) { arch.rotaries.front().attention_factor = 1; }},
    {"ramp_between_pairs", gpt_oss_traits,
     [](Architecture& arch, LayerKind&) { arch.rotaries.front().whole_pairs = true; }},
    {"one_more_than_norms", gemma3_traits, [](Architecture& arch, LayerKind&) { arch.norm = Norm::rms; }},
    {"norms_of_outputs", gemma3_traits, [](Architecture& arch, LayerKind&) { arch.output_norms = false; }},
    {"norms_of_gemma_heads", gemma3_traits, [](Architecture& arch, LayerKind&) { arch.qk_norm = QkNorm::none; }},
    {"scale_of_scores", gemma3_traits, [](Architecture& arch, LayerKind&) { arch.score_scale = 0; }},
    {"gelu", gemma3_traits, [](Architecture& arch, LayerKind&) { arch.activation = Activation::silu; }},
    {"window_of_gemma", gemma3_traits, [](Architecture&, LayerKind& kind) { kind.window = 0; }},
    {"second_rotary_rule", gemma3_traits, [](Architecture&, LayerKind& kind) { kind.rotary = 0; }},
    {"norm_of_values", gemma4_traits, [](Architecture& arch, LayerKind&) { arch.value_norm = false; }},
    {"keys_as_values", gemma4_traits, [](Architecture&, LayerKind& kind) { kind.keys_are_values = false; }},
    {"pairs_that_turn", gemma4_traits, [](Architecture& arch, LayerKind&) { arch.rotaries.front().turning = 1; }},
    {"scores_as_they_are", gemma4_traits, [](Architecture& arch, LayerKind&) { arch.score_scale = 0; }},
    {"factors_of_experts", gemma4_traits,
     [](Architecture&, LayerKind& kind) { kind.experts.router.expert_factors = false; }},
    {"factor_of_the_layer", gemma4_traits, [](Architecture& arch, LayerKind&) { arch.layer_factors = false; }},
    {.name = "scale_of_the_router", .family = gemma4_traits, .as_ones = "router.norm"},
    {.name = "norm_before_experts", .family = gemma4_traits, .as_ones = "routed_norm.weight"},
    {.name = "norm_behind_experts", .family = gemma4_traits, .as_ones = "routed_output_norm.weight"},
    {.name = "norm_behind_the_ffn", .family = gemma4_traits, .as_ones = "shared_output_norm.weight"},
    {"gate_of_the_shared_expert", qwen3_5_moe_traits,
     [](Architecture&, LayerKind& kind) { kind.experts.shared_gate = false; }},
    {"one_more_than_norms_of_qwen", qwen3_5_moe_traits, [](Architecture& arch, LayerKind&) { arch.norm = Norm::rms; }},
    {"order_of_value_heads", qwen3_5_moe_traits, [](Architecture&, LayerKind& kind) { kind.delta.tiled = true; }},
    {"quarter_of_heads_rotated", qwen3_5_attention_traits,
     [](Architecture& arch, LayerKind&) { arch.rotaries.front().partial = 1; }},
    {"norms_of_qwen_heads", qwen3_5_attention_traits,
     [](Architecture& arch, LayerKind&) { arch.qk_norm = QkNorm::none; }},
};

class TraitTest : public ::testing::TestWithParam<Trait> {
 protected:
  static constexpr std::int64_t layer = 1;

  TraitTest()
      : arch_(read_architecture(
            parse_json(
                fmt::format(
                    R"({{"hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
                                        "num_key_value_heads": 2, "vocab_size": 53, {}}})",
                    GetParam().family),
                "config"),
            "config")) {
    at::manual_seed(7);
    for (const TensorSpec& tensor : with_each_expert(block_tensors(arch_, layer))) {
      const bool norm = tensor.role.find("norm.weight") != std::string::npos;
      const bool factor = tensor.role == "router.norm" || tensor.role == expert_factors_role;
      values_.emplace(tensor.role, norm || factor ? at::randn(tensor.shape) * 0.3 + 1 : at::randn(tensor.shape) * 0.2);
    }
    hidden_ = at::randn({trait_tokens, arch_.hidden});
  }

  // What the block adds, by the tensors that this architecture has.
  Tensor added_by(const Architecture& arch, const char* as_ones = nullptr) const {
    Collectives alone(nullptr, cpu_device());
    const Tensor positions = at::arange(trait_tokens);
    const std::vector<SequenceRows> sequences = {{0, trait_tokens, 0, {}}};
    const std::vector<RotaryFrequencies> frequencies = rotary_frequencies(arch, arch.context);
    std::map<std::string, WeightMatrix> held;
    for (const TensorSpec& tensor : with_each_expert(block_tensors(arch, layer))) {
      const bool new_values = tensor.role == "v.weight" && !values_.contains(tensor.role);  // of what has none
      const bool ones = new_values || (as_ones != nullptr && tensor.role == as_ones);
      held.emplace(tensor.role, WeightMatrix{.values = ones ? at::ones(tensor.shape) : values_.at(tensor.role)});
    }
    Tensor output = hidden_;
    run_block({arch, differentiable_ops(), alone, frequencies, positions, sequences}, block_of(held, 0), layer, {}, {},
              output);
    return output - hidden_;
  }

  Architecture arch_;
  std::map<std::string, Tensor> values_;
  Tensor hidden_;
};

TEST_P(TraitTest, ChangesTheBlock) {
  const Tensor whole = added_by(arch_);
  Architecture without = arch_;
  if (GetParam().leave_out != nullptr) {
    GetParam().leave_out(without, without.kinds[without.kind_index(layer)]);
    EXPECT_NE(without, arch_);
  }
  EXPECT_GT((added_by(without, GetParam().as_ones) - whole).abs().max().item<double>(),
            far_beyond_parity * whole.std().item<double>());
}

INSTANTIATE_TEST_SUITE_P(Families, TraitTest, ::testing::ValuesIn(traits),
                         [](const auto& trait) { return std::string(trait.param.name); });

}  // namespace
}  // namespace motley
