// Gemma 4: heads of two sizes, by whether a layer has a window; values that are keys in layers without one; experts
// next to a dense FFN, each with norms of its own.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/model/families/families.hpp"
#include "motley/model/families/routed.hpp"
#include "motley/model/model.hpp"

namespace motley {
namespace {

constexpr std::int64_t gemma4_period = 6;  // of layers: the last of each has no window
constexpr double gemma4_turning = 0.25;    // of a head's pairs, in layers without a window

void refuse_more(const Config& config) {
  const auto refuse_size = [&](std::string_view key, std::int64_t otherwise, std::string_view what) {
    const bool null = config.states(key) && !config.has(key);
    const double size = null ? 0 : config.number(key, {.min = 0, .max = 1e9}, static_cast<double>(otherwise));
    if (size > 0)
      unsupported(config.at(key), fmt::format("a Gemma 4 with {}", what),
                  fmt::format("use a model whose `{}` is 0, as those of 26B and 31B", key));
  };
  refuse_size("hidden_size_per_layer_input", 256, "embeddings of its own for each layer");
  refuse_size("num_kv_shared_layers", 0, "layers that share keys and values");
  refuse_flag(config, "use_double_wide_mlp", "a Gemma 4 with FFNs of two widths");
  refuse_flag(config, "attention_bias", "a Gemma 4 with such attention");
  if (config.text("use_bidirectional_attention", "vision") != "vision")
    unsupported(config.at("use_bidirectional_attention"), "attention to later tokens", "only \"vision\" and null are");
}

// The last layer has none.
std::vector<bool> read_sliding_layers(const Config& config, std::int64_t layers) {
  std::vector<bool> sliding;
  if (config.has("layer_types"))
    sliding = read_layers_of(config, "layer_types", layers, {"full_attention", "sliding_attention"},
                             "sliding_attention", "the family's pattern");
  else
    for (std::int64_t layer = 0; layer < layers; ++layer) sliding.push_back((layer + 1) % gemma4_period != 0);
  sliding.back() = false;
  return sliding;
}

// The rule of the layers without a window first.
std::vector<Rotary> read_rules(const Config& config) {
  const Limits range{.above = 1, .max = 1e15};
  const auto rule = [&](std::string_view key, double theta, double turning) {
    const Config all = config.has("rope_parameters") ? config.table("rope_parameters") : config;
    if (!all.has(key)) return Rotary{.theta = theta, .turning = turning};
    const Config table = all.table(key);
    const std::string type = table.text("rope_type", "default");
    if (type != "default" && type != "proportional")
      unsupported(table.at("rope_type"), fmt::format("rotary scaling \"{}\"", type),
                  "supported for this family: default, proportional");
    Rotary read{.theta = table.number("rope_theta", range, theta)};
    if (type == "default") return read;
    read.turning = table.number("partial_rotary_factor", {.above = 0, .max = 1}, 1);
    read.factor = table.number("factor", {.above = 0, .max = 1e6}, 1);
    if (read.factor != 1) read.scaling = RotaryScaling::linear;
    return read;
  };
  return {rule("full_attention", 1e6, gemma4_turning), rule("sliding_attention", 1e4, 1)};
}

// What a layer without a window has in place of `head_dim` and `num_key_value_heads`, by either way in which folders
// say so.
void set_full_heads(const Config& config, const Architecture& arch, const std::vector<bool>& sliding, LayerKind& full) {
  if (!config.has("per_layer_config")) {
    full.head_dim = config.size("global_head_dim", max_head_dim, 512);
    if (full.keys_are_values)
      full.kv_heads = config.size("num_global_key_value_heads", max_heads, arch.kinds.front().kv_heads);
  } else {
    const Config by_layer = config.table("per_layer_config");
    std::optional<std::pair<std::int64_t, std::int64_t>> heads;
    for (std::int64_t layer = 0; layer < arch.layers; ++layer) {
      const std::string key = std::to_string(layer);
      std::pair found(arch.kinds.front().head_dim, arch.kinds.front().kv_heads);
      if (by_layer.has(key)) {
        const Config own = by_layer.table(key);
        found = {own.size("head_dim", max_head_dim, found.first),
                 own.size("num_key_value_heads", max_heads, found.second)};
      }
      const bool slides = sliding[static_cast<std::size_t>(layer)];
      if (!slides && !heads) heads = found;
      if (found != (slides ? std::pair(arch.kinds.front().head_dim, arch.kinds.front().kv_heads) : *heads))
        unsupported(by_layer.at(key), fmt::format("layer {} with other heads than those of its type", layer),
                    "give all layers of a type the same heads");
    }
    std::tie(full.head_dim, full.kv_heads) = *heads;
  }
  if (full.head_dim % 2 != 0 || arch.heads % full.kv_heads != 0)
    config.at("num_attention_heads")
        .fail(fmt::format("{} query heads with {} key/value heads of {} in layers without a window", arch.heads,
                          full.kv_heads, full.head_dim),
              "correct `global_head_dim` or `num_global_key_value_heads`");
}

void read_both_ffns(const Config& config, LayerKind& kind) {
  if (!config.flag("enable_moe_block", false)) return;
  const std::int64_t dense = kind.ffn;
  kind.ffn = config.size("moe_intermediate_size", max_ffn);
  kind.experts.count = config.size("num_experts", max_experts);
  kind.experts.active = config.size("top_k_experts", max_experts);
  if (kind.experts.active > kind.experts.count)
    config.at("top_k_experts")
        .fail(fmt::format("a token cannot take {} of {} experts", kind.experts.active, kind.experts.count),
              "correct `top_k_experts` or `num_experts`");
  kind.experts.router.expert_factors = true;
  kind.experts.shared_ffn = dense;
  kind.experts.own_norms = true;
}

// A GGUF file says these sizes apart.
void check_sizes(const Config& config) {
  for (const auto& [key, same] :
       {std::pair("value_dim", "head_dim"), std::pair("rotary_dim", "head_dim"),
        std::pair("global_value_dim", "global_head_dim"), std::pair("global_rotary_dim", "global_head_dim")})
    if (config.has(key) && config.has(same) && config.at(key).value() != config.at(same).value())
      unsupported(config.at(key), fmt::format("a {} other than `{}`", key, same), "use a model where both are alike");
}

Architecture read_gemma4(const Config& config) {
  refuse_more(config);
  check_sizes(config);
  Architecture arch;
  arch.hidden = config.size("hidden_size", max_hidden);
  arch.layers = config.size("num_hidden_layers", max_layers);
  read_heads(config, arch, 4, 256, 8);
  LayerKind& kind = arch.kinds.front();
  kind.ffn = config.size("intermediate_size", max_ffn);
  read_both_ffns(config, kind);
  arch.vocabulary = config.size("vocab_size", max_vocabulary, 262144);
  arch.context = config.size("max_position_embeddings", max_context, 131072);
  arch.norm_epsilon = config.number("rms_norm_eps", {.above = 0, .max = 1}, 1e-6);
  arch.output_norms = true;
  arch.qk_norm = QkNorm::head;
  arch.value_norm = true;
  arch.layer_factors = true;
  arch.score_scale = 1;
  arch.activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh");
  arch.embedding_factor = std::sqrt(static_cast<double>(arch.hidden));
  arch.logit_cap = config.number("final_logit_softcapping", {.min = 0, .max = 1e6}, 0);
  arch.tied_embeddings = config.flag("tie_word_embeddings", true);
  arch.eos_tokens = read_eos(config, arch.vocabulary, 1);
  arch.bos_token = read_bos(config, arch.vocabulary, 2);
  arch.pad_token = read_pad(config, arch.vocabulary, 0);
  arch.rotaries = read_rules(config);

  const std::vector<bool> is_sliding = read_sliding_layers(config, arch.layers);
  LayerKind full = kind, sliding = kind;
  full.keys_are_values = config.flag("attention_k_eq_v", false);
  set_full_heads(config, arch, is_sliding, full);
  sliding.window = read_window(config, 512);
  sliding.rotary = 1;
  std::vector<LayerKind> of_layers;
  for (const bool slides : is_sliding) of_layers.push_back(slides ? sliding : full);
  set_layers(arch, of_layers);
  return arch;
}

Value of_each_layer(const Architecture& arch, Value (*value)(const LayerKind& kind)) {
  Value list = Value::array();
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) list.push_back(value(arch.kind(layer)));
  return list;
}

// What config.json states follows from a file's lists: which layers have a window, and how many key/value heads each
// has. There are experts where it counts any.
void add_implied_by_gemma4(Value& config) {
  config.set("hidden_activation", "gelu_pytorch_tanh");
  config.set("enable_moe_block", config.find("num_experts") != nullptr);
  const Value* sliding = config.find("sliding_layers");
  Value types = Value::array();
  const auto slides = [&](std::size_t layer) {
    const Value& of = sliding->as_array()[layer];
    return of == Value(true) || of == Value(1);
  };
  if (sliding != nullptr && sliding->is_array()) {
    for (std::size_t layer = 0; layer < sliding->as_array().size(); ++layer)
      types.push_back(slides(layer) ? "sliding_attention" : "full_attention");
    config.set("layer_types", types);
  }
  if (const Value* kv_heads = config.find("kv_heads_of_layers"); kv_heads != nullptr && kv_heads->is_array()) {
    for (std::size_t layer = 0; layer < std::min(kv_heads->as_array().size(), types.as_array().size()); ++layer)
      config.set(slides(layer) ? "num_key_value_heads" : "num_global_key_value_heads", kv_heads->as_array()[layer]);
  } else if (kv_heads != nullptr) {
    config.set("num_key_value_heads", *kv_heads);
  }
  const auto theta = [&](const char* key) { return config.find(key) ? *config.find(key) : Value(1e4); };
  Value full = config.find("rope_scaling") ? *config.find("rope_scaling") : Value::object({{"rope_type", "default"}});
  full.set("rope_theta", theta("rope_theta"));
  config.set("rope_parameters",
             Value::object({{"full_attention", full},
                            {"sliding_attention", Value::object({{"rope_type", "default"},
                                                                 {"rope_theta", theta("rope_local_base_freq")}})}}));
}

std::string no_gemma4_key_for(const Architecture& arch) {
  for (const Rotary& rotary : arch.rotaries)
    if (rotary.scaling != RotaryScaling::none) return "a scaled rotary rule";
  if (arch.rotaries[1].turning != 1) return "heads of which a part turns, in layers with a window,";
  return "";
}

constexpr auto gemma4_keys = std::to_array<GgufKey>({
    {"attention.sliding_window", "sliding_window",
     [](const Architecture& arch) { return Value(std::max<std::int64_t>(1, widest_window(arch))); }},
    {"attention.sliding_window_pattern", "sliding_layers",
     [](const Architecture& arch) {
       return of_each_layer(arch, [](const LayerKind& kind) { return Value(kind.window > 0); });
     }},
    {"attention.head_count_kv", "kv_heads_of_layers",
     [](const Architecture& arch) {
       return of_each_layer(arch, [](const LayerKind& kind) { return Value(kind.kv_heads); });
     }},
    {"attention.key_length", "global_head_dim",
     [](const Architecture& arch) { return Value(arch.kind_of_rotary(0).head_dim); }},
    {"attention.value_length", "global_value_dim",
     [](const Architecture& arch) { return Value(arch.kind_of_rotary(0).head_dim); }},
    {"rope.dimension_count", "global_rotary_dim",
     [](const Architecture& arch) { return Value(arch.kind_of_rotary(0).head_dim); }},
    {"attention.key_length_swa", "head_dim",
     [](const Architecture& arch) { return Value(arch.kind_of_rotary(1).head_dim); }},
    {"attention.value_length_swa", "value_dim",
     [](const Architecture& arch) { return Value(arch.kind_of_rotary(1).head_dim); }},
    {"rope.dimension_count_swa", "rotary_dim",
     [](const Architecture& arch) { return Value(arch.kind_of_rotary(1).head_dim); }},
    {"rope.freq_base_swa", "rope_local_base_freq",
     [](const Architecture& arch) { return Value(arch.rotaries[1].theta); }},
    {"attention.shared_kv_layers", "num_kv_shared_layers", [](const Architecture&) { return Value(0); }},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", [](const Architecture&) { return Value(0); }},
    {"final_logit_softcapping", "final_logit_softcapping",
     [](const Architecture& arch) { return arch.logit_cap > 0 ? Value(arch.logit_cap) : Value(); }},
    {"feed_forward_length", "intermediate_size",
     [](const Architecture& arch) {
       const LayerKind& kind = arch.kinds.front();
       return Value(kind.experts.count > 0 ? kind.experts.shared_ffn : kind.ffn);
     }},
    {"expert_count", "num_experts",
     [](const Architecture& arch) { return value_or_null(arch.kinds.front().experts.count); }},
    {"expert_used_count", "top_k_experts",
     [](const Architecture& arch) { return value_or_null(arch.kinds.front().experts.active); }},
    {"expert_feed_forward_length", "moe_intermediate_size",
     [](const Architecture& arch) {
       return arch.kinds.front().experts.count > 0 ? Value(arch.kinds.front().ffn) : Value();
     }},
});

constexpr std::array<std::string_view, 7> gemma4_visible_tokens = {
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", R"(<|"|>)"};

constexpr std::array<std::string_view, 3> gemma4_end_texts = {"<eos>", "<turn|>", "<|tool_response>"};

constexpr auto gemma4_tensors = std::to_array<TensorNames>({
    {"embedding", "model.embed_tokens", "token_embd"},
    {"attention_norm", "model.layers.N.input_layernorm", "blk.N.attn_norm"},
    {"q", "model.layers.N.self_attn.q_proj", "blk.N.attn_q"},
    {"k", "model.layers.N.self_attn.k_proj", "blk.N.attn_k"},
    {"v", "model.layers.N.self_attn.v_proj", "blk.N.attn_v"},
    {"o", "model.layers.N.self_attn.o_proj", "blk.N.attn_output"},
    {"q_norm", "model.layers.N.self_attn.q_norm", "blk.N.attn_q_norm"},
    {"k_norm", "model.layers.N.self_attn.k_norm", "blk.N.attn_k_norm"},
    {"attention_output_norm", "model.layers.N.post_attention_layernorm", "blk.N.post_attention_norm"},
    {"ffn_norm", "model.layers.N.pre_feedforward_layernorm", "blk.N.ffn_norm"},
    {"gate", "model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"},
    {"up", "model.layers.N.mlp.up_proj", "blk.N.ffn_up"},
    {"down", "model.layers.N.mlp.down_proj", "blk.N.ffn_down"},
    {"shared_output_norm", "model.layers.N.post_feedforward_layernorm_1", "blk.N.post_ffw_norm_1"},
    {"router", "model.layers.N.router.proj", "blk.N.ffn_gate_inp"},
    {"router.norm", "model.layers.N.router.scale", "blk.N.ffn_gate_inp", false, ".scale"},
    {expert_factors_role, "model.layers.N.router.per_expert_scale", "blk.N.ffn_down_exps", false, ".scale"},
    {"routed_norm", "model.layers.N.pre_feedforward_layernorm_2", "blk.N.pre_ffw_norm_2"},
    {"experts.E.gate", "model.layers.N.experts.E.gate_proj", "blk.N.ffn_gate_exps"},
    {"experts.E.up", "model.layers.N.experts.E.up_proj", "blk.N.ffn_up_exps"},
    {"experts.E.down", "model.layers.N.experts.E.down_proj", "blk.N.ffn_down_exps"},
    {"routed_output_norm", "model.layers.N.post_feedforward_layernorm_2", "blk.N.post_ffw_norm_2"},
    {"ffn_output_norm", "model.layers.N.post_feedforward_layernorm", "blk.N.post_ffw_norm"},
    {layer_factor_role, "model.layers.N.layer_scalar", "blk.N.layer_output_scale", false, ".weight"},
    {"final_norm", "model.norm", "output_norm"},
    {"head", "lm_head", "output"},
});

constexpr PackedNames gates_and_ups(std::string_view stored, bool also_apart) {
  return {.stored = stored,
          .parts = {"model.layers.N.experts.E.gate_proj.weight", "model.layers.N.experts.E.up_proj.weight"},
          .also_apart = also_apart};
}
constexpr std::array gemma4_packed = {
    gates_and_ups("model.layers.N.experts.gate_up_proj", false),
    PackedNames{.stored = "model.layers.N.experts.down_proj", .parts = {"model.layers.N.experts.E.down_proj.weight"}}};
constexpr std::array gemma4_packed_in_gguf = {gates_and_ups("blk.N.ffn_gate_up_exps.weight", true)};

}  // namespace

constinit const Family gemma4_family = {
    .name = "gemma4_text",
    .read = read_gemma4,
    .tensors = gemma4_tensors,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "gemma4",
                     .keys = gemma4_keys,
                     .attention_bias = "attention_bias",
                     .ffn_bias = {},
                     .activation = Activation::gelu_tanh,
                     .windows_by_layer = true,
                     .keys_as_values = "attention_k_eq_v",
                     .packed = gemma4_packed_in_gguf,
                     .add_implied = add_implied_by_gemma4,
                     .has_no_key_for = no_gemma4_key_for,
                     .pieces_kind = "gemma4",
                     .visible_tokens = gemma4_visible_tokens},
    .packed = gemma4_packed,
    .end_texts = gemma4_end_texts,
    .reasoning = Reasoning::channels,
};

}  // namespace motley
