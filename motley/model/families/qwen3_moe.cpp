// Qwen3-MoE: Qwen3 whose FFNs are experts, but for the layers that it lists.
#include "motley/model/families/families.hpp"
#include "motley/model/families/routed.hpp"

namespace motley {
namespace {

Architecture read_qwen3_moe(const Config& config) {
  Architecture arch = read_gated(config, {.context = 32768, .kv_heads = 4, .head_dim = {}, .bos = {}, .eos = {}});
  arch.qk_norm = QkNorm::head;
  arch.qkv_bias = arch.output_bias = config.flag("attention_bias", false);
  LayerKind& dense = arch.kinds.front();
  if (config.flag("use_sliding_window", false)) dense.window = read_window(config, 4096);
  LayerKind sparse = dense;
  sparse.ffn = config.size("moe_intermediate_size", max_ffn, 768);
  sparse.experts = read_experts(config, {"num_experts", "num_local_experts"}, 128, 8);
  // Of all experts' softmax, divided by the sum over the chosen: the softmax of these.
  sparse.experts.router.score =
      config.flag("norm_topk_prob", false) ? RouterScore::softmax_of_chosen : RouterScore::softmax;
  set_sparse_layers(arch, sparse, read_dense_layers(config, arch.layers));
  return arch;
}

constexpr auto qwen3_moe_keys = expert_keys("num_experts", "moe_intermediate_size");

void add_normalisation(Value& config) { config.set("norm_topk_prob", true); }

std::string qwen3_moe_without_key(const Architecture& arch) {
  if (const std::string dense = dense_layer_after(arch, 0); !dense.empty())
    return dense + " (`mlp_only_layers`, `decoder_sparse_step`),";
  if (sparse_kind(arch).experts.router.score == RouterScore::softmax)
    return "a router whose shares are not normalised (`norm_topk_prob`)";
  return {};
}

constexpr auto qwen3_moe_tensors = joined(gated_tensors_in_order, mlp_expert_tensors);

}  // namespace

constinit const Family qwen3_moe_family = {
    .name = "qwen3_moe",
    .read = read_qwen3_moe,
    .tensors = qwen3_moe_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "qwen3moe",
                     .keys = qwen3_moe_keys,
                     .attention_bias = "attention_bias",
                     .ffn_bias = {},
                     .add_implied = add_normalisation,
                     .has_no_key_for = qwen3_moe_without_key},
};

}  // namespace motley
