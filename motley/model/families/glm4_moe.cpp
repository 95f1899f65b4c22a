// GLM-4.5 to 4.7: the first layers have a dense FFN, the others experts, one of which all tokens pass; half of each
// head is rotated.
#include "motley/model/families/families.hpp"
#include "motley/model/families/routed.hpp"

namespace motley {
namespace {

std::vector<bool> read_leading_dense_layers(const Config& config, std::int64_t layers) {
  const double most = static_cast<double>(layers);
  std::vector<bool> is_dense(static_cast<std::size_t>(layers), false);
  const auto dense = config.has("first_k_dense_replace")
                         ? binding::read_integer(config.at("first_k_dense_replace"), {.min = 0, .max = most})
                         : std::int64_t{1};
  std::fill_n(is_dense.begin(), dense, true);
  if (config.has("mlp_layer_types"))
    return read_layers_of(config, "mlp_layer_types", layers, {"dense", "sparse"}, "dense", "`first_k_dense_replace`");
  return is_dense;
}

Architecture read_glm4_moe(const Config& config) {
  Architecture arch = read_gated(
      config,
      {.context = 131072, .kv_heads = 8, .head_dim = {}, .bos = {}, .eos = {}, .norm_epsilon = 1e-5, .rotated = 0.5});
  arch.qkv_bias = config.flag("attention_bias", false);
  if (config.flag("use_qk_norm", false)) arch.qk_norm = QkNorm::head;
  require_sigmoid(config);
  if (config.size("n_group", max_experts, 1) != 1)
    unsupported(config.at("n_group"), "a choice among groups of experts", "only 1 group is supported");
  LayerKind sparse = arch.kinds.front();
  sparse.ffn = config.size("moe_intermediate_size", max_ffn, 1408);
  sparse.experts = read_experts(config, {"n_routed_experts", "num_local_experts"}, 128, 8);
  sparse.experts.router = {.score = RouterScore::sigmoid,
                           .selection_bias = true,
                           .normalise = config.flag("norm_topk_prob", true),
                           .epsilon = 1e-20,
                           .factor = config.number("routed_scaling_factor", {.above = 0, .max = 1e3}, 1)};
  const auto shared = static_cast<std::int64_t>(config.number("n_shared_experts", {.min = 0, .max = max_experts}, 1));
  sparse.experts.shared_ffn = shared * sparse.ffn;
  set_sparse_layers(arch, sparse, read_leading_dense_layers(config, arch.layers));
  return arch;
}

constexpr auto glm4_moe_keys = joined(
    expert_keys("n_routed_experts", "moe_intermediate_size"),
    std::array<GgufKey, 5>{{
        {"expert_shared_count", "n_shared_experts",
         [](const Architecture& arch) { return Value(sparse_kind(arch).experts.shared_ffn / sparse_kind(arch).ffn); }},
        {"leading_dense_block_count", "first_k_dense_replace",
         [](const Architecture& arch) { return Value(leading_dense_layers(arch)); }},
        sigmoid_key,
        {"expert_weights_scale", "routed_scaling_factor",
         [](const Architecture& arch) { return Value(sparse_kind(arch).experts.router.factor); }},
        {"expert_weights_norm", "norm_topk_prob",
         [](const Architecture& arch) { return Value(sparse_kind(arch).experts.router.normalise); }},
    }});

std::string glm4_moe_without_key(const Architecture& arch) {
  const std::string dense = dense_layer_after(arch, leading_dense_layers(arch));
  return dense.empty() ? dense : dense + " after layers of experts (`mlp_layer_types`),";
}

constexpr std::array<std::string_view, 3> glm4_end_texts = {"<|user|>", "<|observation|>", "<|endoftext|>"};

constexpr auto glm4_moe_tensors =
    joined(with_gguf_name(joined(gated_tensors_in_order, mlp_expert_tensors), "ffn_norm", "blk.N.post_attention_norm"),
           std::array<TensorNames, 4>{{
               {"router.selection_bias", "model.layers.N.mlp.gate.e_score_correction_bias", "blk.N.exp_probs_b", false,
                ".bias"},
               {"shared.gate", "model.layers.N.mlp.shared_experts.gate_proj", "blk.N.ffn_gate_shexp"},
               {"shared.up", "model.layers.N.mlp.shared_experts.up_proj", "blk.N.ffn_up_shexp"},
               {"shared.down", "model.layers.N.mlp.shared_experts.down_proj", "blk.N.ffn_down_shexp"},
           }});

}  // namespace

constinit const Family glm4_moe_family = {
    .name = "glm4_moe",
    .read = read_glm4_moe,
    .tensors = glm4_moe_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "glm4moe",
                     .keys = glm4_moe_keys,
                     .attention_bias = "attention_bias",
                     .ffn_bias = {},
                     .rotates_part = true,
                     .output_bias = false,
                     .qk_norm = "use_qk_norm",
                     .has_no_key_for = glm4_moe_without_key},
    .end_texts = glm4_end_texts,
};

}  // namespace motley
