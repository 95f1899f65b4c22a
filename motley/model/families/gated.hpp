// What Llama, Mistral and Qwen have in common: RMS norms, rotary positions, a gated FFN.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "motley/model/families/family.hpp"

namespace motley {

struct GatedDefaults {
  std::int64_t context = 0;
  std::optional<std::int64_t> kv_heads;  // none: as many as query heads
  std::optional<std::int64_t> head_dim;  // none: hidden / heads
  std::optional<std::int64_t> bos, eos;
  double rotary_theta = 10000, norm_epsilon = 1e-6;
  std::optional<double> rotated = {};  // share of each head; none: whole heads alone
  std::string_view columns_key = "intermediate_size";
};
Architecture read_gated(const Config& config, const GatedDefaults& defaults);

// `paired_rows`: of queries and keys, as llama.cpp's converter writes the llama architecture.
constexpr std::array<TensorNames, 14> gated_tensors(bool paired_rows) {
  return {{
      {"embedding", "model.embed_tokens", "token_embd"},
      {"attention_norm", "model.layers.N.input_layernorm", "blk.N.attn_norm"},
      {"q", "model.layers.N.self_attn.q_proj", "blk.N.attn_q", paired_rows},
      {"k", "model.layers.N.self_attn.k_proj", "blk.N.attn_k", paired_rows},
      {"v", "model.layers.N.self_attn.v_proj", "blk.N.attn_v"},
      {"o", "model.layers.N.self_attn.o_proj", "blk.N.attn_output"},
      {"q_norm", "model.layers.N.self_attn.q_norm", "blk.N.attn_q_norm"},
      {"k_norm", "model.layers.N.self_attn.k_norm", "blk.N.attn_k_norm"},
      {"ffn_norm", "model.layers.N.post_attention_layernorm", "blk.N.ffn_norm"},
      {"gate", "model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"},
      {"up", "model.layers.N.mlp.up_proj", "blk.N.ffn_up"},
      {"down", "model.layers.N.mlp.down_proj", "blk.N.ffn_down"},
      {"final_norm", "model.norm", "output_norm"},
      {"head", "lm_head", "output"},
  }};
}
// The same, but for one's name in GGUF files.
template <std::size_t Size>
constexpr std::array<TensorNames, Size> with_gguf_name(std::array<TensorNames, Size> tensors, std::string_view role,
                                                       std::string_view gguf) {
  std::ranges::find(tensors, role, &TensorNames::role)->gguf = gguf;
  return tensors;
}
// What a family has of its own after what it shares: tensors, or keys.
template <class T, std::size_t Shared, std::size_t Own>
constexpr std::array<T, Shared + Own> joined(const std::array<T, Shared>& shared, const std::array<T, Own>& own) {
  std::array<T, Shared + Own> all{};
  std::ranges::copy(own, std::ranges::copy(shared, all.begin()).out);
  return all;
}

inline constexpr auto gated_tensors_in_order = gated_tensors(false), gated_tensors_in_pairs = gated_tensors(true);

constexpr std::string_view gated_deviation = "initializer_range";

}  // namespace motley
