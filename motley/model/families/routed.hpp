// What families whose FFNs are experts in some layers or all have in common.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "motley/model/families/gated.hpp"

namespace motley {

inline constexpr std::string_view active_experts_key = "num_experts_per_tok";

// How many experts a layer has, under the first of these keys that config.json states, and how many of them a token
// takes.
Experts read_experts(const Config& config, std::initializer_list<std::string_view> count_keys, std::int64_t count,
                     std::int64_t active);
// Layers with a dense FFN: those of `mlp_only_layers`, and of every `decoder_sparse_step` all but the last.
std::vector<bool> read_dense_layers(const Config& config, std::int64_t layers);
// Refuses a `scoring_func` (`expert_gating_func` of a GGUF file) other than the sigmoid.
void require_sigmoid(const Config& config);
// Layers become of the sparse kind, but for the dense ones, which stay of the architecture's only kind.
void set_sparse_layers(Architecture& arch, const LayerKind& sparse, const std::vector<bool>& is_dense);

// The first kind of layer with experts.
const LayerKind& sparse_kind(const Architecture& arch);
std::int64_t leading_dense_layers(const Architecture& arch);
// Of the first layer without experts among those after `first`, as errors call it; empty: there is none.
std::string dense_layer_after(const Architecture& arch, std::int64_t first);

// Where GGUF files say how many experts there are, how many of them a token takes, and how many columns one has.
constexpr std::array<GgufKey, 2> expert_count_keys(std::string_view count_key) {
  return {{
      {"expert_count", count_key, [](const Architecture& arch) { return Value(sparse_kind(arch).experts.count); }},
      {"expert_used_count", active_experts_key,
       [](const Architecture& arch) { return Value(sparse_kind(arch).experts.active); }},
  }};
}
constexpr std::array<GgufKey, 3> expert_keys(std::string_view count_key, std::string_view columns_key) {
  return joined(expert_count_keys(count_key),
                std::array<GgufKey, 1>{{{"expert_feed_forward_length", columns_key,
                                         [](const Architecture& arch) { return Value(sparse_kind(arch).ffn); }}}});
}
// And that the router scores by the sigmoid.
inline constexpr int sigmoid_in_gguf = 2;
inline constexpr GgufKey sigmoid_key = {"expert_gating_func", "scoring_func",
                                        [](const Architecture&) { return Value(sigmoid_in_gguf); }};

// Hugging Face's `mlp` modules.
inline constexpr std::array<TensorNames, 4> mlp_expert_tensors = {{
    {"router", "model.layers.N.mlp.gate", "blk.N.ffn_gate_inp"},
    {"experts.E.gate", "model.layers.N.mlp.experts.E.gate_proj", "blk.N.ffn_gate_exps"},
    {"experts.E.up", "model.layers.N.mlp.experts.E.up_proj", "blk.N.ffn_up_exps"},
    {"experts.E.down", "model.layers.N.mlp.experts.E.down_proj", "blk.N.ffn_down_exps"},
}};
// Those of Mixtral's.
inline constexpr std::array<TensorNames, 4> block_sparse_tensors = {{
    {"router", "model.layers.N.block_sparse_moe.gate", "blk.N.ffn_gate_inp"},
    {"experts.E.gate", "model.layers.N.block_sparse_moe.experts.E.w1", "blk.N.ffn_gate_exps"},
    {"experts.E.up", "model.layers.N.block_sparse_moe.experts.E.w3", "blk.N.ffn_up_exps"},
    {"experts.E.down", "model.layers.N.block_sparse_moe.experts.E.w2", "blk.N.ffn_down_exps"},
}};

}  // namespace motley
