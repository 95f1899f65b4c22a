#include "motley/model/gguf_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "motley/base/binding.hpp"
#include "motley/base/error.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/rotary.hpp"

namespace motley {
namespace {

// The keys of the metadata under the architecture's name, and the tensors.
class Metadata {
 public:
  explicit Metadata(const std::vector<std::unique_ptr<GgufFile>>& parts)
      : parts_(parts), root_(parts.front()->metadata(), parts.front()->path().string()) {
    architecture_ = binding::read_string(required("general.architecture"));
  }

  const std::string& architecture() const { return architecture_; }

  const Value* find(const std::string& key) const { return root_.value().find(key); }
  Reader at(const std::string& key) const {
    const Value* value = find(key);
    return value ? root_.member(key, *value) : root_;
  }
  Reader required(const std::string& key) const {
    if (!find(key))
      root_.fail(fmt::format("the key \"{}\" is missing", key), "the file is not a language model, or damaged");
    return at(key);
  }
  std::string own(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }

  // A tensor of any part; null where the model has none of this name.
  const StoredTensor* tensor(const std::string& name) const {
    for (const auto& part : parts_)
      if (const auto found = part->tensors().find(name); found != part->tensors().end()) return &found->second;
    return nullptr;
  }

 private:
  const std::vector<std::unique_ptr<GgufFile>>& parts_;
  Reader root_;
  std::string architecture_;
};

// Numbers that have the same meaning on both sides: read_architecture() checks their ranges.
struct SameKey {
  std::string_view gguf, config;
  bool required;
};
constexpr std::array<SameKey, 9> same_keys = {{
    {"block_count", "num_hidden_layers", true},
    {"embedding_length", "hidden_size", true},
    {"feed_forward_length", "intermediate_size", true},
    {"attention.head_count", "num_attention_heads", true},
    {"attention.head_count_kv", "num_key_value_heads", false},
    {"attention.key_length", "head_dim", false},
    {"context_length", "max_position_embeddings", true},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true},
    {"rope.freq_base", "rope_theta", false},
}};

constexpr float never_turns = 1e9F;                        // of rope_freqs.weight
constexpr std::int64_t control_token = 3, user_token = 4;  // of tokenizer.ggml.token_type

// As people write it: 1e-05, where the nearest fp32 number to that is 9.99999974737875e-06.
Value shortest(const Value& number) {
  if (!number.is_number() || number.is_integer()) return number;
  const std::string text = fmt::format("{}", static_cast<float>(number.as_number()));
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void copy_numbers(const Metadata& metadata, const GgufForm& form, Value& config) {
  for (const SameKey& key : same_keys) {
    if (form.has_key(key.gguf)) continue;
    const std::string name = metadata.own(key.gguf);
    // Of an expert's columns these have a key of their own.
    const bool needless =
        key.gguf == "feed_forward_length" && metadata.find(metadata.own("expert_feed_forward_length"));
    if ((!key.required || needless) && !metadata.find(name)) continue;
    const Reader place = metadata.required(name);
    if (place.value().is_array())
      place.fail("a value per layer is not supported", "use a model whose layers are alike");
    if (!place.value().is_number()) place.expected("a number");
    config.set(key.config, shortest(place.value()));
  }
  // Absent, both are as many as there are query heads.
  if (!config.find("num_key_value_heads")) config.set("num_key_value_heads", *config.find("num_attention_heads"));
}

// Heads are of the size that the rotary embedding says, but for forms that rotate a part, and values as long as keys.
void check_heads(const Metadata& metadata, const GgufForm& form, Value& config) {
  if (form.has_key("attention.key_length")) return;
  const std::string rotated = metadata.own("rope.dimension_count"), values = metadata.own("attention.value_length");
  const Value* head_dim = config.find("head_dim");
  const std::int64_t hidden = binding::read_integer(metadata.at(metadata.own("embedding_length")), {.min = 1});
  const std::int64_t heads = binding::read_integer(metadata.at(metadata.own("attention.head_count")), {.min = 1});
  const Value size = head_dim ? *head_dim : Value(hidden / heads);
  if (!head_dim) config.set("head_dim", size);
  if (form.rotates_part && metadata.find(rotated))
    config.set("rotary_dim", *metadata.find(rotated));
  else if (metadata.find(rotated) && *metadata.find(rotated) != size)
    metadata.at(rotated).fail("rotating a part of each head is not supported", "use a model that rotates whole heads");
  if (metadata.find(values) && *metadata.find(values) != size)
    metadata.at(values).fail("values of another length than keys are not supported",
                             "use a model where both are alike");
}

// Layers after the model's own, which predict further tokens, are counted with them.
void leave_out_prediction_layers(const Metadata& metadata, Value& config) {
  const std::string key = metadata.own("nextn_predict_layers");
  if (!metadata.find(key)) return;
  const std::int64_t all = binding::read_integer(metadata.at(metadata.own("block_count")), {.min = 1});
  config.set("num_hidden_layers",
             all - binding::read_integer(metadata.at(key), {.min = 0, .max = static_cast<double>(all - 1)}));
}

void refuse_unknown(const Metadata& metadata, const GgufForm& form) {
  const auto none = [&](std::string_view key, std::string_view what) {
    const std::string name = metadata.own(key);
    if (const Value* value = metadata.find(name);
        value && !form.has_key(key) && value->is_number() && value->as_number() != 0)
      metadata.at(name).fail(fmt::format("{} are not supported for this architecture", what), "use another model");
  };
  none("expert_count", "experts");
  none("attention.max_alibi_bias", "position biases");
  none("attention.clamp_kqv", "clamped keys and values");
  none("logit_scale", "scaled logits");
  none("attn_logit_softcapping", "capped scores");
  none("final_logit_softcapping", "capped logits");
}

// ---- rotary embeddings ----

// rope_freqs.weight holds a divisor per frequency, which llama.cpp's converter made from Llama 3's rule; the rule's
// parameters are found again among those in use.
Value read_frequency_factors(const Metadata& metadata, const StoredTensor& tensor, double theta) {
  std::vector<float> factors(tensor.bytes.size() / sizeof(float));
  if (tensor.type == "F32") std::ranges::copy(tensor.bytes, std::as_writable_bytes(std::span(factors)).begin());
  const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-4 * b; };
  // Pairs that do not turn have a divisor that no angle survives.
  const auto still = std::ranges::find_if(factors, [](float factor) { return factor >= never_turns; });
  if (still != factors.end() && still != factors.begin() &&
      std::all_of(factors.begin(), still, [](float factor) { return factor == 1; }) &&
      std::all_of(still, factors.end(), [](float factor) { return factor >= never_turns; }))
    return Value::object({{"rope_type", "proportional"},
                          {"partial_rotary_factor",
                           static_cast<double>(still - factors.begin()) / static_cast<double>(factors.size())}});
  if (tensor.type == "F32" && !factors.empty()) {
    Rotary rule{.theta = theta, .low_freq_factor = 1, .high_freq_factor = 4};
    rule.factor = std::round(*std::max_element(factors.begin(), factors.end()));
    for (rule.original_context = 256; rule.original_context <= 1 << 20; rule.original_context *= 2)
      if (std::ranges::equal(factors, llama3_divisors(rule, 2 * std::ssize(factors)), close))
        return Value::object({{"rope_type", "llama3"},
                              {"factor", rule.factor},
                              {"low_freq_factor", rule.low_freq_factor},
                              {"high_freq_factor", rule.high_freq_factor},
                              {"original_max_position_embeddings", rule.original_context}});
  }
  metadata.required("general.architecture")
      .fail("the tensor rope_freqs.weight follows neither Llama 3's rule nor Gemma 4's, which alone are supported",
            "use the model's folder with config.json and safetensors");
}

void read_scaling(const Metadata& metadata, const GgufForm& form, Value& config) {
  const std::string kind_key = metadata.own("rope.scaling.type"), factor_key = metadata.own("rope.scaling.factor");
  const Value* theta = config.find("rope_theta");
  if (const StoredTensor* factors = metadata.tensor("rope_freqs.weight"))
    return void(
        config.set("rope_scaling", read_frequency_factors(metadata, *factors, theta ? theta->as_number() : 1e4)));
  const std::string kind = metadata.find(kind_key) ? binding::read_string(metadata.at(kind_key)) : "none";
  if (kind == "none") return;
  if (kind != "linear" && kind != "yarn")
    metadata.at(kind_key).fail(fmt::format("rotary scaling \"{}\" is not supported", kind), "supported: linear, yarn");
  Value scaling = Value::object({{"rope_type", kind}, {"factor", metadata.required(factor_key).value()}});
  const auto copy = [&](std::string_view from, std::string_view to) {
    if (const Value* value = metadata.find(metadata.own(from))) scaling.set(to, *value);
  };
  if (kind == "yarn" && !form.whole_pairs) scaling.set("truncate", false);
  copy("rope.scaling.original_context_length", "original_max_position_embeddings");
  copy("rope.scaling.yarn_beta_fast", "beta_fast");
  copy("rope.scaling.yarn_beta_slow", "beta_slow");
  const std::string attention = metadata.own("rope.scaling.attn_factor");
  if (metadata.find(attention)) {  // on top of YaRN's own
    const double factor = binding::read_number(metadata.at(factor_key), {.above = 0});
    const double times = binding::read_number(metadata.at(attention), {.above = 0});
    scaling.set("attention_factor", times * yarn_amplitude(factor));
  }
  config.set("rope_scaling", scaling);
}

// ---- tokens ----

void read_tokens(const Metadata& metadata, const Family& family, Value& config) {
  std::vector<std::int64_t> ends;
  const auto add = [&](std::int64_t token) {
    if (std::find(ends.begin(), ends.end(), token) == ends.end()) ends.push_back(token);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (metadata.find(key)) add(binding::read_integer(metadata.at(key), {.min = 0}));
  const Value* texts = metadata.find("tokenizer.ggml.tokens");
  const Value* kinds = metadata.find("tokenizer.ggml.token_type");
  if (texts && kinds && texts->is_array() && kinds->is_array())
    for (std::size_t i = 0; i < std::min(texts->as_array().size(), kinds->as_array().size()); ++i) {
      const Value& text = texts->as_array()[i];
      // `<|tool_response>` of Gemma 4 is one that its converter lets be seen.
      const Value& kind = kinds->as_array()[i];
      if ((kind == Value(control_token) || kind == Value(user_token)) && text.is_string() &&
          std::ranges::find(family.end_texts, text.as_string()) != family.end_texts.end())
        add(static_cast<std::int64_t>(i));
    }
  Value list = Value::array();
  for (const std::int64_t token : ends) list.push_back(token);
  config.set("eos_token_id", ends.size() == 1 ? Value(ends.front()) : ends.empty() ? Value() : list);
  const Value* bos = metadata.find("tokenizer.ggml.bos_token_id");
  config.set("bos_token_id", bos ? *bos : Value());
  if (const Value* pad = metadata.find("tokenizer.ggml.padding_token_id")) config.set("pad_token_id", *pad);
}

// ---- tensors ----

// Whether a layer has a product for keys and none for values.
bool lacks_values(const Metadata& metadata, const Family& family) {
  const Limits range{.min = 1, .max = max_layers};
  const std::int64_t layers = binding::read_integer(metadata.required(metadata.own("block_count")), range);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto has = [&](std::string_view role) {
      return metadata.tensor(with_layer(names_of_role(family, role).gguf, std::to_string(layer)) + ".weight") !=
             nullptr;
    };
    if (has("k") && !has("v")) return true;
  }
  return false;
}

void read_tensors(const Metadata& metadata, const Family& family, Value& config) {
  const GgufForm& form = *family.gguf;
  const auto name_of_role = [&](std::string_view role, std::string_view ending) {
    return with_layer(names_of_role(family, role).gguf, "0").append(ending);
  };
  const std::string table = name_of_role("embedding", ".weight");
  const StoredTensor* embedding = metadata.tensor(table);
  if (!embedding || embedding->shape.size() != 2)
    metadata.required("general.architecture")
        .fail(fmt::format("the tensor {} is missing", table), "the file is not a whole model");
  config.set("vocab_size", embedding->shape.front());
  config.set("tie_word_embeddings", metadata.tensor(name_of_role("head", ".weight")) == nullptr);
  const auto has_bias = [&](std::string_view role) { return metadata.tensor(name_of_role(role, ".bias")) != nullptr; };
  const bool has_experts = std::ranges::count(family.tensors, "experts.E.up", &TensorNames::role) > 0;
  const bool query = has_bias("q"), output = has_bias("o"),
             ffn = has_bias("up") || (has_experts && has_bias("experts.E.up"));
  const auto mismatch = [&](const char* what) {
    metadata.required("general.architecture").fail(what, "use the model's folder with config.json and safetensors");
  };
  if (form.attention_bias.empty() ? !query || output : form.output_bias ? query != output : output)
    mismatch("biases of some of the attention's products are not supported");
  if (ffn && form.ffn_bias.empty()) mismatch("biases of the FFN are not supported for this architecture");
  if (!form.attention_bias.empty()) config.set(form.attention_bias, query);
  if (!form.ffn_bias.empty()) config.set(form.ffn_bias, ffn);
  if (!form.keys_as_values.empty()) config.set(form.keys_as_values, lacks_values(metadata, family));
  if (!form.qk_norm.empty()) config.set(form.qk_norm, metadata.tensor(name_of_role("q_norm", ".weight")) != nullptr);
}

const Family& gguf_family_of(const Metadata& metadata, const Value& keys) {
  if (const Family* family = gguf_family(keys)) return *family;
  std::vector<std::string> known;
  for (const Family* family : families())
    if (family->gguf && std::ranges::find(known, family->gguf->architecture) == known.end())
      known.emplace_back(family->gguf->architecture);
  const std::string& architecture = metadata.architecture();
  metadata.at("general.architecture")
      .fail(fmt::format("the architecture \"{}\" is not supported", architecture),
            did_you_mean(architecture, known, fmt::format("supported: {}", fmt::join(known, ", "))));
}

}  // namespace

Value gguf_config(const std::vector<std::unique_ptr<GgufFile>>& parts) {
  const Metadata metadata(parts);
  const Family& family = gguf_family_of(metadata, parts.front()->metadata());
  refuse_unknown(metadata, *family.gguf);
  Value config = Value::object({{"model_type", std::string(family.name)}});
  copy_numbers(metadata, *family.gguf, config);
  check_heads(metadata, *family.gguf, config);
  for (const GgufKey& key : family.gguf->keys)
    if (const Value* value = metadata.find(metadata.own(key.gguf))) config.set(key.config, shortest(*value));
  leave_out_prediction_layers(metadata, config);
  config.set("hidden_act", "silu");
  read_scaling(metadata, *family.gguf, config);
  read_tensors(metadata, family, config);
  read_tokens(metadata, family, config);
  if (family.gguf->add_implied != nullptr) family.gguf->add_implied(config);
  return config;
}

std::map<std::string, DType> gguf_tensor_types(const std::vector<std::unique_ptr<GgufFile>>& parts) {
  const TensorNaming naming = tensor_naming(parts.front()->metadata());
  const std::span<const TensorNames> names = naming.names;
  std::map<std::string, DType> types;
  for (const auto& part : parts)
    for (const auto& [stored, tensor] : part->tensors()) {
      for (const std::string& name : names_inside(naming.packed, stored))
        types.emplace(name, stored_type({part->path(), tensor}, stored));
      if (const TensorNames* known = names_of(names, stored);
          known != nullptr && stored.ends_with(".weight") && tensor.shape.size() >= 2 && known->role != "router")
        types.emplace(hugging_face_name(names, stored), stored_type({part->path(), tensor}, stored));
    }
  return types;
}

}  // namespace motley
