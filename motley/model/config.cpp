#include "motley/model/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace motley {
namespace {

// ---- rotary embeddings ----

// The factor on cosines and sines.
double yarn_attention_factor(const Config& table, double factor) {
  if (table.has("attention_factor")) return table.number("attention_factor", {.above = 0, .max = 1e3});
  const double mscale = table.number("mscale", {.min = 0, .max = 1e3}, 0);
  const double all_dimensions = table.number("mscale_all_dim", {.min = 0, .max = 1e3}, 0);
  return mscale > 0 && all_dimensions > 0 ? yarn_amplitude(factor, mscale) / yarn_amplitude(factor, all_dimensions)
                                          : yarn_amplitude(factor);
}

RotaryScaling read_scaling(const Config& table) {
  const std::string_view key = table.has("rope_type") ? "rope_type" : "type";
  const std::string name = table.text(key, "default");
  if (name == "default") return RotaryScaling::none;
  if (name == "linear") return RotaryScaling::linear;
  if (name == "dynamic") return RotaryScaling::dynamic;
  if (name == "llama3") return RotaryScaling::llama3;
  if (name == "yarn") return RotaryScaling::yarn;
  unsupported(table.at(key), fmt::format("rotary scaling \"{}\"", name),
              "supported: default, linear, dynamic, llama3, yarn");
}

void read_frequencies(const Config& config, const Config& table, std::int64_t context, Rotary& rotary) {
  const Limits factor_range{.above = 0, .max = 1e6};
  rotary.original_context = context;
  if (rotary.scaling == RotaryScaling::llama3 || rotary.scaling == RotaryScaling::yarn) {
    const Config& holder = config.has("original_max_position_embeddings") ? config : table;
    rotary.original_context = holder.size("original_max_position_embeddings", max_context, context);
  }
  if (rotary.scaling == RotaryScaling::yarn && !table.has("factor"))
    rotary.factor = static_cast<double>(context) / static_cast<double>(rotary.original_context);
  else
    rotary.factor = table.number("factor", factor_range);
  if (rotary.scaling == RotaryScaling::llama3) {
    rotary.low_freq_factor = table.number("low_freq_factor", factor_range);
    rotary.high_freq_factor = table.number("high_freq_factor", factor_range);
    if (rotary.high_freq_factor <= rotary.low_freq_factor)
      table.at("high_freq_factor")
          .fail(fmt::format("{} must be above low_freq_factor ({})", rotary.high_freq_factor, rotary.low_freq_factor),
                "Llama 3 uses 4 and 1");
  }
  if (rotary.scaling == RotaryScaling::yarn) {
    rotary.beta_fast = table.number("beta_fast", factor_range, 32);
    rotary.beta_slow = table.number("beta_slow", factor_range, 1);
    if (rotary.beta_fast < rotary.beta_slow)
      table.at("beta_fast")
          .fail(fmt::format("{} must not be below beta_slow ({})", rotary.beta_fast, rotary.beta_slow),
                "the defaults are 32 and 1");
    rotary.attention_factor = yarn_attention_factor(table, rotary.factor);
    rotary.whole_pairs = table.flag("truncate", true);
  }
}

// The longest sequence of a model whose frequencies are stretched, as vLLM counts it.
std::int64_t stretched_context(const Config& table, const Rotary& rotary, std::int64_t context) {
  const bool stretches = rotary.scaling == RotaryScaling::linear || rotary.scaling == RotaryScaling::dynamic ||
                         rotary.scaling == RotaryScaling::yarn;
  if (!stretches) return context;
  constexpr double rounding = 1e-3;  // a factor may be a quotient of two contexts
  const double stretched = std::floor(rotary.factor * static_cast<double>(rotary.original_context) + rounding);
  if (stretched < 1 || stretched > max_context)
    table.at("factor").fail(fmt::format("{:g} times {} positions must be a context of 1 to {:.0f} tokens",
                                        rotary.factor, rotary.original_context, max_context),
                            "correct the scaling of the rotary embeddings");
  return static_cast<std::int64_t>(stretched);
}

// Of the table of rotary parameters.
std::string_view rotary_key(const Config& config) {
  return config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
}

// ---- tokens ----

std::int64_t read_token(const Reader& place, std::int64_t vocabulary) {
  return binding::read_integer(place, {.min = 0, .max = static_cast<double>(vocabulary - 1)});
}

}  // namespace

void Config::require(std::string_view key) const {
  if (!has(key))
    root_.fail(fmt::format("`{}` is missing", key),
               "take config.json from the model's own folder: it needs the whole shape");
}

void unsupported(const Reader& place, std::string_view what, std::string hint) {
  place.fail(fmt::format("{} is not supported", what), std::move(hint));
}

void refuse_flag(const Config& config, std::string_view key, std::string_view what) {
  if (config.flag(key, false)) unsupported(config.at(key), what, "only false is supported");
}

Activation read_activation(const Config& config, std::string_view key, const std::string& otherwise) {
  const std::string name = config.text(key, otherwise);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  unsupported(config.at(key), fmt::format("activation \"{}\"", name),
              "supported: silu, swish, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu");
}

Rotary read_rotary_rule(const Config& config, std::string_view key, std::int64_t context, double theta) {
  const Config table = config.has(key) ? config.table(key) : config;
  Rotary rotary;
  rotary.theta = (table.has("rope_theta") ? table : config).number("rope_theta", {.above = 1, .max = 1e15}, theta);
  if (!config.has(key)) return rotary;
  rotary.scaling = read_scaling(table);
  if (rotary.scaling != RotaryScaling::none) read_frequencies(config, table, context, rotary);
  return rotary;
}

Rotary read_rotary(const Config& config, std::int64_t& context, double theta) {
  const std::string_view key = rotary_key(config);
  const Config table = config.has(key) ? config.table(key) : config;
  if (table.has("full_attention") || table.has("sliding_attention"))
    unsupported(config.at(key), "a table of rotary parameters per layer type", "give one table for all layers");
  const Rotary rotary = read_rotary_rule(config, key, context, theta);
  context = stretched_context(table, rotary, context);
  return rotary;
}

double read_rotated_share(const Config& config, std::int64_t head_dim, std::optional<double> otherwise) {
  const std::string_view key = rotary_key(config), share_key = "partial_rotary_factor", size_key = "rotary_dim";
  const Config table = config.has(key) ? config.table(key) : config;
  const Config& holder = table.has(share_key) ? table : config;
  const Reader place = holder.has(share_key) ? holder.at(share_key) : config.at(size_key);
  const auto whole = static_cast<double>(head_dim);
  double share = otherwise.value_or(1);
  if (holder.has(share_key))
    share = holder.number(share_key, {.above = 0, .max = 1});
  else if (config.has(size_key))
    share = static_cast<double>(config.size(size_key, whole)) / whole;
  if (!otherwise && share != 1)
    unsupported(place, "partial rotary embedding", "only whole heads are supported for this family");
  const std::int64_t rotated = rotated_dimensions({.partial = share}, head_dim);
  if (rotated < 2 || rotated % 2 != 0)
    place.fail(fmt::format("{} of the {} dimensions of a head cannot be rotated in pairs", rotated, head_dim),
               "correct the part that is rotated, or `head_dim`");
  return share;
}

void read_heads(const Config& config, Architecture& arch, std::optional<std::int64_t> kv_heads,
                std::optional<std::int64_t> head_dim, std::optional<std::int64_t> heads) {
  arch.heads =
      heads ? config.size("num_attention_heads", max_heads, *heads) : config.size("num_attention_heads", max_heads);
  const bool kv_null = config.states("num_key_value_heads") && !config.has("num_key_value_heads");
  LayerKind& kind = arch.kinds.front();
  kind.kv_heads = config.size("num_key_value_heads", max_heads, kv_null ? arch.heads : kv_heads.value_or(arch.heads));
  if (arch.heads % kind.kv_heads != 0)
    config.at("num_key_value_heads")
        .fail(fmt::format("{} query heads must be a multiple of {} key/value heads", arch.heads, kind.kv_heads),
              "correct num_attention_heads or num_key_value_heads");
  if (!config.has("head_dim") && !head_dim && arch.hidden % arch.heads != 0)
    config.at("num_attention_heads")
        .fail(fmt::format("hidden_size {} must be a multiple of {} heads", arch.hidden, arch.heads),
              "correct hidden_size, or give `head_dim`");
  kind.head_dim =
      config.size("head_dim", max_head_dim, head_dim.value_or(std::max<std::int64_t>(1, arch.hidden / arch.heads)));
  if (kind.head_dim % 2 != 0 && arch.position == PositionKind::rotary)
    config.at("head_dim")
        .fail(fmt::format("the head size must be even for rotary embeddings, found {}", kind.head_dim),
              "correct `head_dim`, by default hidden_size / num_attention_heads");
}

std::vector<bool> read_layers_of(const Config& config, std::string_view key, std::int64_t layers,
                                 const std::vector<std::string>& words, std::string_view wanted,
                                 std::string_view otherwise) {
  const Reader place = config.at(key);
  if (!place.value().is_array()) place.expected("a list");
  const auto& list = place.value().as_array();
  if (std::ssize(list) != layers)
    place.fail(fmt::format("{} entries for {} layers", list.size(), layers),
               fmt::format("give one per layer, or remove `{}` to use {}", key, otherwise));
  std::vector<bool> layers_of;
  for (std::size_t i = 0; i < list.size(); ++i)
    layers_of.push_back(binding::read_choice(place.item(i, list[i]), words) == wanted);
  return layers_of;
}

std::int64_t read_window(const Config& config, std::int64_t otherwise) {
  if (config.states("sliding_window") && !config.has("sliding_window")) return 0;
  return config.size("sliding_window", max_context, otherwise);
}

namespace {

// Windows of the layers that `layer_types` names, or where it is absent, that `otherwise` is true of.
template <class Otherwise>
void divide_windows(const Config& config, Architecture& arch, std::int64_t window, const Otherwise& otherwise) {
  std::vector<bool> sliding(static_cast<std::size_t>(arch.layers), false);
  if (config.has("layer_types")) {
    const Reader place = config.at("layer_types");
    sliding = read_layers_of(config, "layer_types", arch.layers, {"full_attention", "sliding_attention"},
                             "sliding_attention", "the family's pattern");
    if (window == 0 && std::find(sliding.begin(), sliding.end(), true) != sliding.end())
      place.fail("a layer has sliding attention, but the window is missing",
                 "set `sliding_window`, and `use_sliding_window` where the family has it");
  } else if (window > 0) {
    for (std::size_t i = 0; i < sliding.size(); ++i) sliding[i] = otherwise(static_cast<std::int64_t>(i));
  }
  const auto count = std::count(sliding.begin(), sliding.end(), true);
  if (count == 0) return;
  arch.kinds.front().window = window;
  if (count == arch.layers) return;
  LayerKind full = arch.kinds.front();
  full.window = 0;
  arch.kinds.push_back(full);
  for (const bool slides : sliding) arch.kind_of_layer.push_back(slides ? 0 : 1);
}

}  // namespace

void read_windows(const Config& config, Architecture& arch) {
  const std::int64_t window = config.flag("use_sliding_window", false) ? read_window(config, 4096) : 0;
  const double from = config.number("max_window_layers", {.min = 0, .max = max_layers}, 28);
  divide_windows(config, arch, window, [&](std::int64_t layer) { return static_cast<double>(layer) >= from; });
}

void read_alternate_windows(const Config& config, Architecture& arch, std::int64_t otherwise, std::int64_t period) {
  divide_windows(config, arch, read_window(config, otherwise),
                 [&](std::int64_t layer) { return (layer + 1) % period != 0; });
}

void set_layers(Architecture& arch, const std::vector<LayerKind>& kinds) {
  arch.kinds.clear();
  arch.kind_of_layer.clear();
  for (const LayerKind& kind : kinds) {
    const auto known = std::ranges::find(arch.kinds, kind);
    arch.kind_of_layer.push_back(static_cast<std::uint16_t>(known - arch.kinds.begin()));
    if (known == arch.kinds.end()) arch.kinds.push_back(kind);
  }
  if (arch.kinds.size() == 1) arch.kind_of_layer.clear();
}

std::vector<std::int64_t> read_eos(const Config& config, std::int64_t vocabulary,
                                   std::optional<std::int64_t> otherwise) {
  if (config.has("eos_token_id")) return read_eos_tokens(config.at("eos_token_id"), vocabulary);
  if (config.states("eos_token_id") || !otherwise || *otherwise >= vocabulary) return {};
  return {*otherwise};
}

std::optional<std::int64_t> read_bos(const Config& config, std::int64_t vocabulary,
                                     std::optional<std::int64_t> otherwise) {
  if (config.has("bos_token_id")) return read_token(config.at("bos_token_id"), vocabulary);
  if (config.states("bos_token_id") || !otherwise || *otherwise >= vocabulary) return {};
  return otherwise;
}

std::optional<std::int64_t> read_pad(const Config& config, std::int64_t vocabulary,
                                     std::optional<std::int64_t> otherwise) {
  std::optional<std::int64_t> token = config.states("pad_token_id") ? std::nullopt : otherwise;
  if (const Value& stated = config.at("pad_token_id").value(); stated.is_integer()) token = stated.as_integer();
  if (token && *token < 0) *token += vocabulary;
  return token && *token >= 0 && *token < vocabulary ? token : std::nullopt;
}

std::vector<std::int64_t> read_eos_tokens(const Reader& place, std::int64_t vocabulary) {
  if (!place.value().is_array()) return {read_token(place, vocabulary)};
  std::vector<std::int64_t> tokens;
  std::size_t index = 0;
  for (const Value& item : place.value().as_array())
    tokens.push_back(read_token(place.item(index++, item), vocabulary));
  return tokens;
}

}  // namespace motley
