// Gemma 3: norms before and after attention and FFN, and two rotary rules, of layers with a window and of the others.
#include <cmath>

#include "motley/model/families/families.hpp"
#include "motley/model/families/gated.hpp"
#include "motley/model/model.hpp"

namespace motley {
namespace {

constexpr std::int64_t gemma3_period = 6;  // of layers: the last of each has no window
constexpr double full_theta = 1e6, window_theta = 1e4;

// The rule of the layers without a window first. Neither stretches the context, which was trained with both.
std::vector<Rotary> read_rules(const Config& config, const Architecture& arch) {
  const Limits range{.above = 1, .max = 1e15};
  const double full = config.number("rope_theta", range, full_theta),
               local = config.number("rope_local_base_freq", range, window_theta);
  const std::string_view scaling = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const Config by_type = config.has(scaling) ? config.table(scaling) : config;
  if (by_type.has("full_attention") || by_type.has("sliding_attention"))
    return {read_rotary_rule(by_type, "full_attention", arch.context, full),
            read_rotary_rule(by_type, "sliding_attention", arch.context, local)};
  return {read_rotary_rule(config, scaling, arch.context, full), Rotary{.theta = local}};
}

Architecture read_gemma3(const Config& config) {
  Architecture arch;
  arch.hidden = config.size("hidden_size", max_hidden);
  arch.layers = config.size("num_hidden_layers", max_layers);
  read_heads(config, arch, 4, 256, 8);
  arch.kinds.front().ffn = config.size("intermediate_size", max_ffn);
  arch.vocabulary = config.size("vocab_size", max_vocabulary, 262208);
  arch.context = config.size("max_position_embeddings", max_context, 131072);
  arch.norm = Norm::rms1p;
  arch.norm_epsilon = config.number("rms_norm_eps", {.above = 0, .max = 1}, 1e-6);
  arch.output_norms = true;
  arch.qk_norm = QkNorm::head;
  arch.activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh");
  arch.embedding_factor = std::sqrt(static_cast<double>(arch.hidden));
  arch.score_scale = 1 / std::sqrt(config.number("query_pre_attn_scalar", {.above = 0, .max = 1e6}, 256));
  arch.tied_embeddings = config.flag("tie_word_embeddings", true);
  arch.eos_tokens = read_eos(config, arch.vocabulary, 1);
  arch.bos_token = read_bos(config, arch.vocabulary, 2);
  arch.pad_token = read_pad(config, arch.vocabulary, 0);
  for (const char* key : {"attention_bias", "use_bidirectional_attention"})
    refuse_flag(config, key, "a Gemma 3 with such attention");
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    if (config.has(key)) unsupported(config.at(key), "a cap of logits", "only null is supported");
  arch.rotaries = read_rules(config, arch);
  read_alternate_windows(config, arch, 4096,
                         config.size("sliding_window_pattern", static_cast<double>(max_layers), gemma3_period));
  for (LayerKind& kind : arch.kinds) kind.rotary = kind.window > 0 ? 1 : 0;
  return arch;
}

// llama.cpp does not store what divides the scores: the size of a head, but in the model of 27 B.
double stored_scalar(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t head_dim) {
  constexpr std::int64_t layers_of_27b = 62;
  return static_cast<double>(layers == layers_of_27b ? hidden / heads : head_dim);
}

void add_implied_by_gemma3(Value& config) {
  const auto size = [&](const char* key) {
    const Value* value = config.find(key);
    return value != nullptr && value->is_integer() ? value->as_integer() : 1;
  };
  config.set("hidden_activation", "gelu_pytorch_tanh");
  config.set("query_pre_attn_scalar", stored_scalar(size("num_hidden_layers"), size("hidden_size"),
                                                    size("num_attention_heads"), size("head_dim")));
}

std::string no_gemma3_key_for(const Architecture& arch) {
  const double scalar = stored_scalar(arch.layers, arch.hidden, arch.heads, arch.kinds.front().head_dim);
  if (std::abs(arch.score_scale * std::sqrt(scalar) - 1) > 1e-6) return "its scale of the attention's scores";
  return arch.rotaries[1].scaling != RotaryScaling::none ? "a scaled rotary rule of layers with a window" : "";
}

constexpr std::array<GgufKey, 2> gemma3_keys = {{
    {"attention.sliding_window", "sliding_window",
     [](const Architecture& arch) { return value_or_null(widest_window(arch)); }},
    {"rope.freq_base_swa", "rope_local_base_freq",
     [](const Architecture& arch) { return Value(arch.rotaries[1].theta); }},
}};

constexpr std::array<std::string_view, 2> gemma3_end_texts = {"<eos>", "<end_of_turn>"};

constexpr std::array<TensorNames, 16> gemma3_tensors = {{
    {"embedding", "model.embed_tokens", "token_embd"},
    {"attention_norm", "model.layers.N.input_layernorm", "blk.N.attn_norm", false, {}, /*one_more=*/true},
    {"q", "model.layers.N.self_attn.q_proj", "blk.N.attn_q"},
    {"k", "model.layers.N.self_attn.k_proj", "blk.N.attn_k"},
    {"v", "model.layers.N.self_attn.v_proj", "blk.N.attn_v"},
    {"o", "model.layers.N.self_attn.o_proj", "blk.N.attn_output"},
    {"q_norm", "model.layers.N.self_attn.q_norm", "blk.N.attn_q_norm", false, {}, /*one_more=*/true},
    {"k_norm", "model.layers.N.self_attn.k_norm", "blk.N.attn_k_norm", false, {}, /*one_more=*/true},
    {"attention_output_norm",
     "model.layers.N.post_attention_layernorm",
     "blk.N.post_attention_norm",
     false,
     {},
     /*one_more=*/true},
    {"ffn_norm", "model.layers.N.pre_feedforward_layernorm", "blk.N.ffn_norm", false, {}, /*one_more=*/true},
    {"gate", "model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"},
    {"up", "model.layers.N.mlp.up_proj", "blk.N.ffn_up"},
    {"down", "model.layers.N.mlp.down_proj", "blk.N.ffn_down"},
    {"ffn_output_norm",
     "model.layers.N.post_feedforward_layernorm",
     "blk.N.post_ffw_norm",
     false,
     {},
     /*one_more=*/true},
    {"final_norm", "model.norm", "output_norm", false, {}, /*one_more=*/true},
    {"head", "lm_head", "output"},
}};

}  // namespace

constinit const Family gemma3_family = {
    .name = "gemma3_text",
    .read = read_gemma3,
    .tensors = gemma3_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "gemma3",
                     .keys = gemma3_keys,
                     .attention_bias = "attention_bias",
                     .ffn_bias = {},
                     .activation = Activation::gelu_tanh,
                     .full_period = gemma3_period,
                     .add_implied = add_implied_by_gemma3,
                     .has_no_key_for = no_gemma3_key_for},
    .end_texts = gemma3_end_texts,
};

}  // namespace motley
