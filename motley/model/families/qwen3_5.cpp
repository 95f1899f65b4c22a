// Qwen3.5 and 3.6: gated delta nets in three of four layers; dense, or with experts, one of which all tokens pass by a
// gate.
#include "motley/model/families/delta_net.hpp"
#include "motley/model/families/families.hpp"

namespace motley {
namespace {

Architecture read_qwen3_5(const Config& config) {
  Architecture arch =
      read_gated(config, {.context = 32768, .kv_heads = 4, .head_dim = 256, .bos = {}, .eos = {}, .rotated = 0.25});
  set_delta_nets(config, arch);
  return arch;
}

Architecture read_qwen3_5_moe(const Config& config) {
  Architecture arch = read_gated(config, {.context = 32768,
                                          .kv_heads = 2,
                                          .head_dim = 256,
                                          .bos = {},
                                          .eos = {},
                                          .rotated = 0.25,
                                          .columns_key = "moe_intermediate_size"});
  Experts& experts = arch.kinds.front().experts;
  experts = read_experts(config, {"num_experts", "num_local_experts"}, 256, 8);
  read_shared_expert(config, experts);
  set_delta_nets(config, arch);
  return arch;
}

constexpr std::array qwen3_5_packed = {delta_rows("model.layers.N.linear_attn.in_proj_qkv.weight"), delta_convolution};
constexpr auto qwen3_5_moe_packed =
    joined(qwen3_5_packed, std::array{stacked_gates_and_ups("model.layers.N.mlp.experts.gate_up_proj"), stacked_downs});
constexpr auto qwen3_5_moe_packed_in_gguf = joined(delta_packed_in_gguf, std::array{stacked_in_gguf});

// Of positions in pictures; in a text they are alike.
constexpr GgufKey position_sections_key = {"rope.dimension_sections", "mrope_section", [](const Architecture&) {
                                             Value sections = Value::array();
                                             for (const std::int64_t pairs : {11, 11, 10, 0}) sections.push_back(pairs);
                                             return sections;
                                           }};
constexpr auto qwen3_5_keys = joined(delta_net_keys, std::array{position_sections_key});
constexpr auto qwen3_5_moe_keys =
    joined(joined(expert_keys("num_experts", "moe_intermediate_size"), std::array{shared_expert_key}), qwen3_5_keys);

constexpr GgufForm qwen3_5_form(std::string_view architecture, std::span<const GgufKey> keys,
                                std::span<const PackedNames> packed) {
  return {.architecture = architecture,
          .keys = keys,
          .attention_bias = "attention_bias",
          .ffn_bias = {},
          .rotates_part = true,
          .tiled_values = true,
          .packed = packed,
          .add_implied = add_implied_by_tiled_delta_nets,
          .has_no_key_for = no_delta_net_key_for};
}

}  // namespace

constinit const Family qwen3_5_family = {
    .name = "qwen3_5_text",
    .read = read_qwen3_5,
    .tensors = delta_net_tensors,
    .deviation = gated_deviation,
    .gguf = qwen3_5_form("qwen35", qwen3_5_keys, delta_packed_in_gguf),
    .packed = qwen3_5_packed,
    .key_head_rows = key_head_rows_of_delta_net,
};

constinit const Family qwen3_5_moe_family = {
    .name = "qwen3_5_moe_text",
    .read = read_qwen3_5_moe,
    .tensors = delta_net_tensors_with_experts,
    .deviation = gated_deviation,
    .gguf = qwen3_5_form("qwen35moe", qwen3_5_moe_keys, qwen3_5_moe_packed_in_gguf),
    .packed = qwen3_5_moe_packed,
    .key_head_rows = key_head_rows_of_delta_net,
};

}  // namespace motley
