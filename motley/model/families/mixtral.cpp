// Mixtral: Mistral whose FFNs are experts. llama.cpp writes it as a llama that has some.
#include "motley/model/families/families.hpp"
#include "motley/model/families/gated.hpp"

namespace motley {
namespace {

Architecture read_mixtral(const Config& config) {
  Architecture arch = read_gated(config, {.context = 131072,
                                          .kv_heads = 8,
                                          .head_dim = {},
                                          .bos = 1,
                                          .eos = 2,
                                          .rotary_theta = 1e6,
                                          .norm_epsilon = 1e-5});
  if (config.flag("attention_bias", false))
    unsupported(config.at("attention_bias"), "a bias of this family's attention", "only false is supported");
  LayerKind& kind = arch.kinds.front();
  kind.window = config.has("sliding_window") ? config.size("sliding_window", max_context) : 0;
  kind.experts.count = config.size("num_local_experts", max_experts, 8);
  kind.experts.active = config.size("num_experts_per_tok", static_cast<double>(kind.experts.count), 2);
  return arch;
}

constexpr std::array<GgufKey, 2> mixtral_keys = {{
    {"expert_count", "num_local_experts",
     [](const Architecture& arch) { return Value(arch.kinds.front().experts.count); }},
    {"expert_used_count", "num_experts_per_tok",
     [](const Architecture& arch) { return Value(arch.kinds.front().experts.active); }},
}};

constexpr auto mixtral_tensors =
    with_tensors(gated_tensors_in_pairs,
                 std::array<TensorNames, 4>{{
                     {"router", "model.layers.N.block_sparse_moe.gate", "blk.N.ffn_gate_inp"},
                     {"experts.E.gate", "model.layers.N.block_sparse_moe.experts.E.w1", "blk.N.ffn_gate_exps"},
                     {"experts.E.up", "model.layers.N.block_sparse_moe.experts.E.w3", "blk.N.ffn_up_exps"},
                     {"experts.E.down", "model.layers.N.block_sparse_moe.experts.E.w2", "blk.N.ffn_down_exps"},
                 }});

}  // namespace

constinit const Family mixtral_family = {
    .name = "mixtral",
    .read = read_mixtral,
    .tensors = mixtral_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "llama", .keys = mixtral_keys, .attention_bias = "attention_bias", .ffn_bias = {}},
};

}  // namespace motley
