// MiniMax-M2: experts in every layer, norms over all heads of queries and of keys, a part of each head rotated.
#include "motley/model/families/families.hpp"
#include "motley/model/families/routed.hpp"

namespace motley {
namespace {

Architecture read_minimax_m2(const Config& config) {
  Architecture arch = read_gated(config, {.context = 196608,
                                          .kv_heads = 8,
                                          .head_dim = 128,
                                          .bos = 200034,
                                          .eos = 200020,
                                          .rotary_theta = 5e6,
                                          .rotated = 1});
  refuse_flag(config, "attention_bias", "a bias of this family's attention");
  arch.qk_norm = QkNorm::whole;
  require_sigmoid(config);
  LayerKind& kind = arch.kinds.front();
  kind.experts = read_experts(config, {"num_local_experts", "num_experts"}, 256, 8);
  kind.experts.router = {.score = RouterScore::sigmoid, .selection_bias = true, .normalise = true};
  return arch;
}

constexpr auto minimax_m2_keys = joined(expert_keys("num_local_experts", "intermediate_size"), std::array{sigmoid_key});

constexpr auto minimax_m2_tensors = joined(
    joined(gated_tensors_in_order, block_sparse_tensors),
    std::array<TensorNames, 1>{{{"router.selection_bias", "model.layers.N.block_sparse_moe.e_score_correction_bias",
                                 "blk.N.exp_probs_b", false, ".bias"}}});

}  // namespace

constinit const Family minimax_m2_family = {
    .name = "minimax_m2",
    .read = read_minimax_m2,
    .tensors = minimax_m2_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "minimax-m2",
                     .keys = minimax_m2_keys,
                     .attention_bias = "attention_bias",
                     .ffn_bias = {},
                     .rotates_part = true,
                     .output_bias = false},
};

}  // namespace motley
