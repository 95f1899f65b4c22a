#include "motley/convert/gguf_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/model/families/families.hpp"

namespace motley {
namespace {

// llama.cpp's number for files whose matrices are of this type.
std::uint32_t file_type(DType type) {
  switch (type) {
    case DType::fp32: return 0;
    case DType::fp16: return 1;
    case DType::q4_0: return 2;
    case DType::q4_1: return 3;
    case DType::q8_0: return 7;
    case DType::q5_0: return 8;
    case DType::q5_1: return 9;
    case DType::q4_k: return 14;
    case DType::q5_k: return 16;
    case DType::q6_k: return 18;
    case DType::iq4_nl: return 25;
    case DType::iq4_xs: return 30;
    case DType::bf16: return 32;
    case DType::mxfp4: return 38;
    default: MOTLEY_CHECK(false);
  }
}

[[noreturn]] void no_key_for(const Model& model, const std::string& what) {
  throw input_error(fmt::format("{}: {} cannot be written to a GGUF file", model.name, what),
                    "serve the folder itself; --weight-type quantises it as it is loaded");
}

void write_rotary(const Model& model, const GgufForm& form, const std::string& prefix, GgufWriter& writer) {
  const Rotary& rotary = model.arch.rotaries.front();
  writer.set_f32(prefix + "rope.freq_base", static_cast<float>(rotary.theta));
  if (rotary.scaling == RotaryScaling::dynamic) no_key_for(model, "dynamic rotary scaling");
  if (rotary.scaling != RotaryScaling::linear && rotary.scaling != RotaryScaling::yarn) return;
  const bool yarn = rotary.scaling == RotaryScaling::yarn;
  writer.set_text(prefix + "rope.scaling.type", yarn ? "yarn" : "linear");
  writer.set_f32(prefix + "rope.scaling.factor", static_cast<float>(rotary.factor));
  if (!yarn) return;
  if (rotary.whole_pairs != form.whole_pairs)
    no_key_for(model, rotary.whole_pairs ? "YaRN with truncation" : "YaRN without truncation");
  writer.set_u32(prefix + "rope.scaling.original_context_length", static_cast<std::uint32_t>(rotary.original_context));
  writer.set_f32(prefix + "rope.scaling.yarn_beta_fast", static_cast<float>(rotary.beta_fast));
  writer.set_f32(prefix + "rope.scaling.yarn_beta_slow", static_cast<float>(rotary.beta_slow));
  const double usual = yarn_amplitude(rotary.factor);
  if (std::abs(rotary.attention_factor - usual) > 1e-9)
    writer.set_f32(prefix + "rope.scaling.attn_factor", static_cast<float>(rotary.attention_factor / usual));
}

// Whether all layers but each `period`-th have the window; of 0, all or none.
bool has_windows_of(const Architecture& arch, std::int64_t period) {
  const std::int64_t window = widest_window(arch);
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    if (arch.kind(layer).window != (period > 0 && (layer + 1) % period == 0 ? 0 : window)) return false;
  return true;
}

// Of integers, or of flags.
void set_list(std::string_view key, const Value& list, GgufWriter& writer) {
  if (!list.as_array().empty() && list.as_array().front().is_bool()) {
    std::vector<bool> flags;
    for (const Value& item : list.as_array()) flags.push_back(item.as_bool());
    return writer.set_bools(key, flags);
  }
  std::vector<std::int32_t> values;
  for (const Value& item : list.as_array()) values.push_back(static_cast<std::int32_t>(item.as_integer()));
  writer.set_i32s(key, values);
}

}  // namespace

void write_architecture(const Model& model, DType type, GgufWriter& writer) {
  const Architecture& arch = model.arch;
  const auto& form = family_of(arch).gguf;
  if (!form) no_key_for(model, "the family " + arch.family);
  if (arch.activation != form->activation) no_key_for(model, "its activation");
  if (form->has_no_key_for != nullptr)
    if (const std::string what = form->has_no_key_for(arch); !what.empty()) no_key_for(model, what);
  const bool windowed = std::ranges::count(form->keys, "attention.sliding_window", &GgufKey::gguf) > 0;
  if (!windowed && widest_window(arch) > 0) no_key_for(model, "a sliding window of this family");
  if (!form->windows_by_layer && !has_windows_of(arch, form->full_period))
    no_key_for(model, "windows of other layers than this family's");
  const std::string architecture(form->architecture), prefix = architecture + ".";
  const auto size = [&](std::string_view key, std::int64_t value) {
    writer.set_u32(fmt::format("{}{}", prefix, key), static_cast<std::uint32_t>(value));
  };
  const auto usual_size = [&](std::string_view key, std::int64_t value) {
    if (!form->has_key(key)) size(key, value);
  };
  writer.set_text("general.architecture", architecture);
  writer.set_text("general.type", "model");
  writer.set_text("general.name", model.name);
  writer.set_u32("general.file_type", file_type(type));
  writer.set_u32("general.quantization_version", 2);
  size("block_count", arch.layers);
  // What linear scaling stretches is the context before.
  size("context_length",
       arch.rotaries.front().scaling == RotaryScaling::linear ? arch.rotaries.front().original_context : arch.context);
  size("embedding_length", arch.hidden);
  const auto dense = std::ranges::find(arch.kinds, 0, [](const LayerKind& kind) { return kind.experts.count; });
  usual_size("feed_forward_length", (dense != arch.kinds.end() ? *dense : arch.kinds.front()).ffn);
  size("attention.head_count", arch.heads);
  const LayerKind& kind = arch.kinds.front();
  usual_size("attention.head_count_kv", kind.kv_heads);
  usual_size("attention.key_length", kind.head_dim);
  usual_size("attention.value_length", kind.head_dim);
  usual_size("rope.dimension_count", rotated_dimensions(arch.rotaries.front(), kind.head_dim));
  size("vocab_size", arch.vocabulary);
  writer.set_f32(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(arch.norm_epsilon));
  for (const GgufKey& key : form->keys) {
    const Value value = key.value(arch);
    if (value.is_integer())
      size(key.gguf, value.as_integer());
    else if (value.is_bool())
      writer.set_bool(fmt::format("{}{}", prefix, key.gguf), value.as_bool());
    else if (value.is_array())
      set_list(fmt::format("{}{}", prefix, key.gguf), value, writer);
    else if (value.is_number())
      writer.set_f32(fmt::format("{}{}", prefix, key.gguf), static_cast<float>(value.as_number()));
  }
  write_rotary(model, *form, prefix, writer);
}

std::vector<float> frequency_factors(const Architecture& arch) {
  constexpr float never_turns = 1e30F;
  const Rotary& rotary = arch.rotaries.front();
  const std::int64_t dimensions = rotated_dimensions(rotary, arch.kind_of_rotary(0).head_dim);
  std::vector<float> factors;
  if (rotary.scaling == RotaryScaling::llama3) {
    for (const double divisor : llama3_divisors(rotary, dimensions)) factors.push_back(static_cast<float>(divisor));
  } else if (rotary.turning < 1) {
    factors.assign(static_cast<std::size_t>(turning_pairs(rotary, dimensions)), 1);
    factors.resize(static_cast<std::size_t>(dimensions / 2), never_turns);
  }
  return factors;
}

}  // namespace motley
