// Mixtral: Mistral whose FFNs are experts. llama.cpp writes it as a llama that has some.
#include "motley/model/families/families.hpp"
#include "motley/model/families/routed.hpp"

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
  refuse_flag(config, "attention_bias", "a bias of this family's attention");
  LayerKind& kind = arch.kinds.front();
  kind.window = config.has("sliding_window") ? config.size("sliding_window", max_context) : 0;
  kind.experts = read_experts(config, {"num_local_experts"}, 8, 2);
  return arch;
}

constexpr auto mixtral_keys = expert_count_keys("num_local_experts");

constexpr auto mixtral_tensors = joined(gated_tensors_in_pairs, block_sparse_tensors);

}  // namespace

constinit const Family mixtral_family = {
    .name = "mixtral",
    .read = read_mixtral,
    .tensors = mixtral_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "llama", .keys = mixtral_keys, .attention_bias = "attention_bias", .ffn_bias = {}},
};

}  // namespace motley
