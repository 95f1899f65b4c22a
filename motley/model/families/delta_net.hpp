// What families with gated delta nets have in common: Qwen3-Next, Qwen3.5 and Qwen3.6.
#pragma once

#include <string>
#include <vector>

#include "motley/model/families/routed.hpp"

namespace motley {

// Sizes of heads and of the convolution, of layers that have one.
DeltaNet read_delta_net(const Config& config);
// Layers become of the kinds that they are of where those that `layer_types` names have a delta net: else all but each
// `full_attention_interval`-th. In such families attention has norms of heads and an output gate.
void set_delta_nets(const Config& config, Architecture& arch);
// The expert that all tokens pass, with a gate.
void read_shared_expert(const Config& config, Experts& experts);

// Of config.json, or of a GGUF file's metadata.
KeyHeadRows key_head_rows_of_delta_net(const Value& description);

// Each layer of this number has attention, and no other; 0: there is no such number.
std::int64_t full_attention_interval(const Architecture& arch);

// What GGUF files say of delta nets, and what config.json says of the same.
Value delta_size(const Architecture& arch, std::int64_t DeltaNet::*size);
inline constexpr GgufKey shared_expert_key = {
    "expert_shared_feed_forward_length", "shared_expert_intermediate_size",
    [](const Architecture& arch) { return Value(sparse_kind(arch).experts.shared_ffn); }};
inline constexpr std::array<GgufKey, 7> delta_net_keys = {{
    {"ssm.conv_kernel", "linear_conv_kernel_dim",
     [](const Architecture& arch) { return delta_size(arch, &DeltaNet::width); }},
    {"ssm.state_size", "linear_key_head_dim",
     [](const Architecture& arch) { return delta_size(arch, &DeltaNet::key_dim); }},
    {"ssm.group_count", "linear_num_key_heads",
     [](const Architecture& arch) { return delta_size(arch, &DeltaNet::key_heads); }},
    {"ssm.time_step_rank", "linear_num_value_heads",
     [](const Architecture& arch) { return delta_size(arch, &DeltaNet::value_heads); }},
    {"ssm.inner_size", "linear_values",
     [](const Architecture& arch) {
       return Value(delta_size(arch, &DeltaNet::value_heads).as_integer() *
                    delta_size(arch, &DeltaNet::value_dim).as_integer());
     }},
    {"full_attention_interval", "full_attention_interval",
     [](const Architecture& arch) { return Value(full_attention_interval(arch)); }},
    {"attention.recurrent_layers", "recurrent_layers", [](const Architecture&) { return Value(); }},
}};
// What config.json says in place of `linear_values` and `recurrent_layers`, and that heads are tiled.
void add_implied_by_delta_nets(Value& config);
void add_implied_by_tiled_delta_nets(Value& config);
// Values of other sizes than keys, or other layers than an interval says.
std::string no_delta_net_key_for(const Architecture& arch);

inline constexpr std::array<TensorNames, 27> delta_net_tensors = {{
    {"embedding", "model.embed_tokens", "token_embd"},
    {"attention_norm", "model.layers.N.input_layernorm", "blk.N.attn_norm", false, {}, /*one_more=*/true},
    {"q", "model.layers.N.self_attn.q_proj", "blk.N.attn_q"},
    {"k", "model.layers.N.self_attn.k_proj", "blk.N.attn_k"},
    {"v", "model.layers.N.self_attn.v_proj", "blk.N.attn_v"},
    {"o", "model.layers.N.self_attn.o_proj", "blk.N.attn_output"},
    {"q_norm", "model.layers.N.self_attn.q_norm", "blk.N.attn_q_norm", false, {}, /*one_more=*/true},
    {"k_norm", "model.layers.N.self_attn.k_norm", "blk.N.attn_k_norm", false, {}, /*one_more=*/true},
    {"delta.q", "model.layers.N.linear_attn.in_proj_q", {}},
    {"delta.k", "model.layers.N.linear_attn.in_proj_k", {}},
    {"delta.v", "model.layers.N.linear_attn.in_proj_v", {}},
    {"delta.z", "model.layers.N.linear_attn.in_proj_z", "blk.N.attn_gate"},
    {"delta.beta", "model.layers.N.linear_attn.in_proj_b", "blk.N.ssm_beta"},
    {"delta.alpha", "model.layers.N.linear_attn.in_proj_a", "blk.N.ssm_alpha"},
    {"delta.convolve_q", "model.layers.N.linear_attn.conv1d_q", {}},
    {"delta.convolve_k", "model.layers.N.linear_attn.conv1d_k", {}},
    {"delta.convolve_v", "model.layers.N.linear_attn.conv1d_v", {}},
    {"delta.decay", "model.layers.N.linear_attn.A_log", "blk.N", false, ".ssm_a", false, /*minus_exp=*/true},
    {"delta.step", "model.layers.N.linear_attn.dt_bias", "blk.N.ssm_dt", false, ".bias"},
    {"delta.norm", "model.layers.N.linear_attn.norm", "blk.N.ssm_norm"},
    {"delta.out", "model.layers.N.linear_attn.out_proj", "blk.N.ssm_out"},
    {"ffn_norm", "model.layers.N.post_attention_layernorm", "blk.N.post_attention_norm", false, {}, /*one_more=*/true},
    {"gate", "model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"},
    {"up", "model.layers.N.mlp.up_proj", "blk.N.ffn_up"},
    {"down", "model.layers.N.mlp.down_proj", "blk.N.ffn_down"},
    {"final_norm", "model.norm", "output_norm", false, {}, /*one_more=*/true},
    {"head", "lm_head", "output"},
}};
inline constexpr auto delta_net_tensors_with_experts =
    joined(joined(delta_net_tensors, mlp_expert_tensors),
           std::array<TensorNames, 4>{{
               {"shared.gate", "model.layers.N.mlp.shared_expert.gate_proj", "blk.N.ffn_gate_shexp"},
               {"shared.up", "model.layers.N.mlp.shared_expert.up_proj", "blk.N.ffn_up_shexp"},
               {"shared.down", "model.layers.N.mlp.shared_expert.down_proj", "blk.N.ffn_down_shexp"},
               {"shared.share", "model.layers.N.mlp.shared_expert_gate", "blk.N.ffn_gate_inp_shexp"},
           }});

inline constexpr std::array<std::string_view, 4> delta_in_parts = {
    "model.layers.N.linear_attn.in_proj_q.weight", "model.layers.N.linear_attn.in_proj_k.weight",
    "model.layers.N.linear_attn.in_proj_v.weight", "model.layers.N.linear_attn.in_proj_z.weight"};
inline constexpr PackedNames delta_convolution = {
    .stored = "model.layers.N.linear_attn.conv1d.weight",
    .parts = {"model.layers.N.linear_attn.conv1d_q.weight", "model.layers.N.linear_attn.conv1d_k.weight",
              "model.layers.N.linear_attn.conv1d_v.weight"},
    .rows = {&KeyHeadRows::keys, &KeyHeadRows::keys, &KeyHeadRows::values},
    .channels = true};
constexpr PackedNames delta_rows(std::string_view stored) {
  return {.stored = stored,
          .parts = {delta_in_parts[0], delta_in_parts[1], delta_in_parts[2]},
          .rows = {&KeyHeadRows::keys, &KeyHeadRows::keys, &KeyHeadRows::values}};
}
constexpr PackedNames delta_rates(std::string_view stored) {
  return {.stored = stored,
          .parts = {"model.layers.N.linear_attn.in_proj_b.weight", "model.layers.N.linear_attn.in_proj_a.weight"},
          .rows = {&KeyHeadRows::value_heads, &KeyHeadRows::value_heads},
          .by_key_heads = true};
}
// Of experts as released folders, or some GGUF files, have them.
constexpr PackedNames stacked_gates_and_ups(std::string_view stored) {
  return {.stored = stored,
          .parts = {"model.layers.N.mlp.experts.E.gate_proj.weight", "model.layers.N.mlp.experts.E.up_proj.weight"},
          .also_apart = true};
}
inline constexpr PackedNames stacked_downs = {.stored = "model.layers.N.mlp.experts.down_proj",
                                              .parts = {"model.layers.N.mlp.experts.E.down_proj.weight"},
                                              .also_apart = true};
// Of GGUF files.
inline constexpr std::array<PackedNames, 2> delta_packed_in_gguf = {{
    delta_rows("blk.N.attn_qkv.weight"),
    {.stored = "blk.N.ssm_conv1d.weight", .parts = delta_convolution.parts, .rows = delta_convolution.rows},
}};
inline constexpr PackedNames stacked_in_gguf = stacked_gates_and_ups("blk.N.ffn_gate_up_exps.weight");

}  // namespace motley
