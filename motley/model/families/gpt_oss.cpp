// gpt-oss: experts with biases and a clamped activation, sinks, and a window in every other layer.
#include "motley/model/families/families.hpp"
#include "motley/model/families/routed.hpp"
#include "motley/model/model.hpp"

namespace motley {
namespace {

constexpr std::int64_t gpt_oss_period = 2;  // of layers: the last of each has no window
constexpr double usual_limit = 7, usual_slope = 1.702;

Architecture read_gpt_oss(const Config& config) {
  Architecture arch = read_gated(config, {.context = 131072,
                                          .kv_heads = 8,
                                          .head_dim = 64,
                                          .bos = {},
                                          .eos = {},
                                          .rotary_theta = 150000,
                                          .norm_epsilon = 1e-5});
  if (!config.has("rope_scaling") && !config.has("rope_parameters")) {
    Rotary& rotary = arch.rotaries.front();
    rotary.scaling = RotaryScaling::yarn;
    rotary.factor = 32;
    rotary.attention_factor = yarn_amplitude(rotary.factor);
    rotary.original_context = 4096;
    rotary.whole_pairs = false;
  }
  arch.qkv_bias = arch.output_bias = config.flag("attention_bias", true);
  if (!config.flag("mlp_bias", true))
    unsupported(config.at("mlp_bias"), "this family without biases of its experts", "only true is supported");
  arch.ffn_bias = true;
  arch.sinks = true;
  const Limits positive{.above = 0, .max = 1e6};
  arch.activation = Activation(Activation::swiglu, config.number("swiglu_limit", positive, usual_limit),
                               config.number("swiglu_alpha", positive, usual_slope));
  Experts& experts = arch.kinds.front().experts;
  experts = read_experts(config, {"num_local_experts"}, 128, 4);
  experts.router.bias = true;
  read_alternate_windows(config, arch, 128, gpt_oss_period);
  return arch;
}

constexpr auto gpt_oss_keys =
    joined(expert_keys("num_local_experts", "intermediate_size"),
           std::array<GgufKey, 1>{{{"attention.sliding_window", "sliding_window",
                                    [](const Architecture& arch) { return value_or_null(widest_window(arch)); }}}});

// The end of a message is not one of an answer, which may have several.
constexpr std::array<std::string_view, 3> gpt_oss_end_texts = {"<|return|>", "<|call|>", "<|endoftext|>"};

constexpr auto gpt_oss_tensors =
    joined(with_gguf_name(gated_tensors_in_order, "ffn_norm", "blk.N.post_attention_norm"),
           std::array<TensorNames, 5>{{
               {"sinks", "model.layers.N.self_attn.sinks", "blk.N.attn_sinks", false, ".weight"},
               {"router", "model.layers.N.mlp.router", "blk.N.ffn_gate_inp"},
               {"experts.E.gate", "model.layers.N.mlp.experts.E.gate_proj", "blk.N.ffn_gate_exps"},
               {"experts.E.up", "model.layers.N.mlp.experts.E.up_proj", "blk.N.ffn_up_exps"},
               {"experts.E.down", "model.layers.N.mlp.experts.E.down_proj", "blk.N.ffn_down_exps"},
           }});

constexpr std::string_view gpt_oss_gate = "model.layers.N.mlp.experts.E.gate_proj.weight",
                           gpt_oss_up = "model.layers.N.mlp.experts.E.up_proj.weight",
                           gpt_oss_down = "model.layers.N.mlp.experts.E.down_proj.weight";
constexpr std::array<PackedNames, 8> gpt_oss_packed = {{
    {.stored = "model.layers.N.mlp.experts.gate_up_proj",
     .parts = {gpt_oss_gate, gpt_oss_up},
     .transposed = true,
     .by_turns = true},
    {.stored = "model.layers.N.mlp.experts.gate_up_proj_blocks",
     .parts = {gpt_oss_gate, gpt_oss_up},
     .by_turns = true,
     .mxfp4 = true},
    {.stored = "model.layers.N.mlp.experts.gate_up_proj_scales",
     .parts = {"model.layers.N.mlp.experts.E.gate_proj.weight_scales",
               "model.layers.N.mlp.experts.E.up_proj.weight_scales"},
     .by_turns = true},
    {.stored = "model.layers.N.mlp.experts.gate_up_proj_bias",
     .parts = {"model.layers.N.mlp.experts.E.gate_proj.bias", "model.layers.N.mlp.experts.E.up_proj.bias"},
     .by_turns = true},
    {.stored = "model.layers.N.mlp.experts.down_proj", .parts = {gpt_oss_down}, .transposed = true},
    {.stored = "model.layers.N.mlp.experts.down_proj_blocks", .parts = {gpt_oss_down}, .mxfp4 = true},
    {.stored = "model.layers.N.mlp.experts.down_proj_scales",
     .parts = {"model.layers.N.mlp.experts.E.down_proj.weight_scales"}},
    {.stored = "model.layers.N.mlp.experts.down_proj_bias", .parts = {"model.layers.N.mlp.experts.E.down_proj.bias"}},
}};

}  // namespace

constinit const Family gpt_oss_family = {
    .name = "gpt_oss",
    .read = read_gpt_oss,
    .tensors = gpt_oss_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "gpt-oss",
                     .keys = gpt_oss_keys,
                     .attention_bias = "attention_bias",
                     .ffn_bias = "mlp_bias",
                     .activation = Activation(Activation::swiglu, usual_limit, usual_slope),
                     .full_period = gpt_oss_period,
                     // llama.cpp's ramp ends at whole pairs, but the models were not trained so.
                     .whole_pairs = false},
    .packed = gpt_oss_packed,
    .quantised_experts = DType::mxfp4,
    .end_texts = gpt_oss_end_texts,
    .reasoning = Reasoning::harmony,
};

}  // namespace motley
