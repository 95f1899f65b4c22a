#include "motley/checkpoint/gguf_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace motley {
namespace {

struct Names {
  std::string_view gguf, hugging_face;
};

constexpr std::array<Names, 3> outer = {{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};

constexpr std::array<Names, 11> of_a_block = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

constexpr std::string_view gguf_block = "blk.", hugging_face_block = "model.layers.";

// From one side's name to the other's.
std::string translated(std::string_view name, std::string_view Names::*from, std::string_view Names::*to,
                       std::string_view block_from, std::string_view block_to) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view ending = name.substr(dot);
  std::string_view stem = name.substr(0, dot);
  if (ending != ".weight" && ending != ".bias") return {};
  if (!stem.starts_with(block_from)) {
    for (const Names& names : outer)
      if (names.*from == stem) return fmt::format("{}{}", names.*to, ending);
    return {};
  }
  stem.remove_prefix(block_from.size());
  const std::size_t digits = std::min(stem.find('.'), stem.size());
  const std::string_view layer = stem.substr(0, digits);
  if (layer.empty() || digits == stem.size() ||
      !std::all_of(layer.begin(), layer.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    return {};
  for (const Names& names : of_a_block)
    if (names.*from == stem.substr(digits + 1)) return fmt::format("{}{}.{}{}", block_to, layer, names.*to, ending);
  return {};
}

}  // namespace

std::string gguf_name(std::string_view hugging_face) {
  return translated(hugging_face, &Names::hugging_face, &Names::gguf, hugging_face_block, gguf_block);
}

std::string hugging_face_name(std::string_view gguf) {
  return translated(gguf, &Names::gguf, &Names::hugging_face, gguf_block, hugging_face_block);
}

}  // namespace motley
