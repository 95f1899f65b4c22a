// Qwen3-Next: gated delta nets in three of four layers, experts, one of which all tokens pass by a gate.
#include "motley/model/families/delta_net.hpp"
#include "motley/model/families/families.hpp"

namespace motley {
namespace {

Architecture read_qwen3_next(const Config& config) {
  Architecture arch =
      read_gated(config, {.context = 32768, .kv_heads = 2, .head_dim = 256, .bos = {}, .eos = {}, .rotated = 0.25});
  LayerKind sparse = arch.kinds.front();
  sparse.ffn = config.size("moe_intermediate_size", max_ffn, 512);
  sparse.experts = read_experts(config, {"num_experts", "num_local_experts"}, 512, 10);
  sparse.experts.router.score =
      config.flag("norm_topk_prob", true) ? RouterScore::softmax_of_chosen : RouterScore::softmax;
  read_shared_expert(config, sparse.experts);
  set_sparse_layers(arch, sparse, read_dense_layers(config, arch.layers));
  set_delta_nets(config, arch);
  return arch;
}

constexpr auto qwen3_next_tensors =
    with_gguf_name(with_gguf_name(delta_net_tensors_with_experts, "delta.beta", {}), "delta.alpha", {});

constexpr std::array<PackedNames, 3> qwen3_next_packed = {{
    {.stored = "model.layers.N.linear_attn.in_proj_qkvz.weight",
     .parts = delta_in_parts,
     .rows = {&KeyHeadRows::keys, &KeyHeadRows::keys, &KeyHeadRows::values, &KeyHeadRows::values},
     .by_key_heads = true},
    delta_rates("model.layers.N.linear_attn.in_proj_ba.weight"),
    delta_convolution,
}};

constexpr auto qwen3_next_packed_in_gguf =
    joined(delta_packed_in_gguf, std::array{delta_rates("blk.N.ssm_ba.weight"), stacked_in_gguf});

constexpr auto qwen3_next_keys =
    joined(joined(expert_keys("num_experts", "moe_intermediate_size"), std::array{shared_expert_key}), delta_net_keys);

}  // namespace

constinit const Family qwen3_next_family = {
    .name = "qwen3_next",
    .read = read_qwen3_next,
    .tensors = qwen3_next_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "qwen3next",
                     .keys = qwen3_next_keys,
                     .attention_bias = "attention_bias",
                     .ffn_bias = {},
                     .rotates_part = true,
                     .packed = qwen3_next_packed_in_gguf,
                     .add_implied = add_implied_by_delta_nets,
                     .has_no_key_for = no_delta_net_key_for},
    .packed = qwen3_next_packed,
    .key_head_rows = key_head_rows_of_delta_net,
};

}  // namespace motley
