#include "motley/model/families/delta_net.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/model/families/families.hpp"

namespace motley {
namespace {

constexpr std::int64_t usual_interval = 4;
constexpr double max_width = 64;  // of a convolution, in tokens

const DeltaNet& delta_net_of(const Architecture& arch) {
  const auto found = std::ranges::find_if(arch.kinds, [](const LayerKind& kind) { return bool(kind.delta); });
  return (found != arch.kinds.end() ? *found : arch.kinds.front()).delta;
}

std::vector<bool> layers_with_delta_nets(const Config& config, std::int64_t layers) {
  if (config.has("layer_types"))
    return read_layers_of(config, "layer_types", layers, {"linear_attention", "full_attention"}, "linear_attention",
                          "`full_attention_interval`");
  const std::int64_t interval = config.size("full_attention_interval", max_layers + 1, usual_interval);
  std::vector<bool> is_delta;
  for (std::int64_t layer = 0; layer < layers; ++layer) is_delta.push_back((layer + 1) % interval != 0);
  return is_delta;
}

KeyHeadRows rows_of(const DeltaNet& delta) {
  Architecture arch;
  arch.kinds.front().delta = delta;
  return key_head_rows(arch);
}

}  // namespace

DeltaNet read_delta_net(const Config& config) {
  DeltaNet delta{.key_heads = config.size("linear_num_key_heads", max_heads, 16),
                 .value_heads = config.size("linear_num_value_heads", max_heads, 32),
                 .key_dim = config.size("linear_key_head_dim", max_head_dim, 128),
                 .value_dim = config.size("linear_value_head_dim", max_head_dim, 128),
                 .width = config.size("linear_conv_kernel_dim", max_width, 4),
                 .tiled = config.flag("linear_value_heads_tiled", false)};
  if (delta.value_heads % delta.key_heads != 0)
    config.at("linear_num_value_heads")
        .fail(fmt::format("{} value heads cannot be divided among {} key heads", delta.value_heads, delta.key_heads),
              "correct `linear_num_value_heads` or `linear_num_key_heads`");
  return delta;
}

void set_delta_nets(const Config& config, Architecture& arch) {
  arch.norm = Norm::rms1p;
  arch.qk_norm = QkNorm::head;
  arch.output_gate = true;
  arch.qkv_bias = arch.output_bias = config.flag("attention_bias", false);
  const DeltaNet delta = read_delta_net(config);
  const std::vector<bool> is_delta = layers_with_delta_nets(config, arch.layers);
  std::vector<LayerKind> kinds;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) {
    kinds.push_back(arch.kind(layer));
    if (is_delta[static_cast<std::size_t>(layer)]) kinds.back().delta = delta;
  }
  set_layers(arch, kinds);
}

void read_shared_expert(const Config& config, Experts& experts) {
  experts.shared_ffn = config.size("shared_expert_intermediate_size", max_ffn, 512);
  experts.shared_gate = true;
}

KeyHeadRows key_head_rows_of_delta_net(const Value& description) {
  const Value* architecture = description.find("general.architecture");
  if (architecture == nullptr) return rows_of(read_delta_net(Config(Reader(description, "config.json"))));
  const auto size = [&](std::string_view key) {
    const Value* value = description.find(fmt::format("{}.ssm.{}", architecture->as_string(), key));
    return value != nullptr && value->is_integer() ? std::max<std::int64_t>(value->as_integer(), 1) : 1;
  };
  const std::int64_t value_heads = size("time_step_rank");
  return rows_of({.key_heads = size("group_count"),
                  .value_heads = value_heads,
                  .key_dim = size("state_size"),
                  .value_dim = size("inner_size") / value_heads});
}

std::int64_t full_attention_interval(const Architecture& arch) {
  std::int64_t interval = 1;
  while (interval <= arch.layers && arch.kind(interval - 1).delta) ++interval;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    if (bool(arch.kind(layer).delta) != ((layer + 1) % interval != 0)) return 0;
  return interval;
}

Value delta_size(const Architecture& arch, std::int64_t DeltaNet::*size) {
  const DeltaNet& delta = delta_net_of(arch);
  return value_or_null(delta.*size);
}

void add_implied_by_delta_nets(Value& config) {
  const auto size = [&](const char* key) {
    const Value* value = config.find(key);
    return value != nullptr && value->is_integer() ? value->as_integer() : 0;
  };
  if (const std::int64_t heads = size("linear_num_value_heads"); heads > 0)
    config.set("linear_value_head_dim", size("linear_values") / heads);
  config.set("norm_topk_prob", true);
  const Value* recurrent = config.find("recurrent_layers");
  if (recurrent == nullptr || !recurrent->is_array()) return;
  Value types = Value::array();
  for (std::int64_t layer = 0; layer < std::min(size("num_hidden_layers"), std::ssize(recurrent->as_array())); ++layer)
    types.push_back(recurrent->as_array()[static_cast<std::size_t>(layer)] == Value(true) ? "linear_attention"
                                                                                          : "full_attention");
  config.set("layer_types", types);
}

void add_implied_by_tiled_delta_nets(Value& config) {
  add_implied_by_delta_nets(config);
  config.set("linear_value_heads_tiled", true);
}

std::string no_delta_net_key_for(const Architecture& arch) {
  if (const std::string dense = dense_layer_after(arch, 0); !dense.empty() && sparse_kind(arch).experts.count > 0)
    return dense + " (`mlp_only_layers`, `decoder_sparse_step`),";
  const DeltaNet& delta = delta_net_of(arch);
  if (!delta) return "a model of this family without delta nets";
  if (delta.key_dim != delta.value_dim)
    return fmt::format("a delta net with keys of {} and values of {}", delta.key_dim, delta.value_dim);
  if (full_attention_interval(arch) == 0) return "delta nets in other layers than all but each n-th";
  return sparse_kind(arch).experts.router.score == RouterScore::softmax
             ? "a router whose shares are not normalised (`norm_topk_prob`)"
             : "";
}

}  // namespace motley
