#include "motley/model/families/routed.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"

namespace motley {

Experts read_experts(const Config& config, std::initializer_list<std::string_view> count_keys, std::int64_t count,
                     std::int64_t active) {
  const auto stated = std::ranges::find_if(count_keys, [&](std::string_view key) { return config.has(key); });
  Experts experts;
  experts.count = stated != count_keys.end() ? config.size(*stated, max_experts) : count;
  for (const std::string_view key : count_keys)
    if (config.has(key) && config.size(key, max_experts) != experts.count)
      config.at(key).fail(
          fmt::format("{} experts, and `{}` says {}", config.size(key, max_experts), *stated, experts.count),
          "keep one of the two keys");
  experts.active = config.size(active_experts_key, max_experts, active);
  if (experts.active > experts.count)
    config.at(active_experts_key)
        .fail(fmt::format("a token cannot take {} of {} experts", experts.active, experts.count),
              fmt::format("correct `{}` or `{}`", active_experts_key, *count_keys.begin()));
  return experts;
}

std::vector<bool> read_dense_layers(const Config& config, std::int64_t layers) {
  const std::int64_t step = config.size("decoder_sparse_step", max_layers, 1);
  std::vector<bool> is_dense;
  for (std::int64_t layer = 0; layer < layers; ++layer) is_dense.push_back((layer + 1) % step != 0);
  if (!config.has("mlp_only_layers")) return is_dense;
  const Reader place = config.at("mlp_only_layers");
  if (!place.value().is_array()) place.expected("a list");
  const auto& listed = place.value().as_array();
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const Limits range{.min = 0, .max = static_cast<double>(layers - 1)};
    is_dense[static_cast<std::size_t>(binding::read_integer(place.item(i, listed[i]), range))] = true;
  }
  return is_dense;
}

void require_sigmoid(const Config& config) {
  const std::string_view key = sigmoid_key.config;
  if (!config.has(key)) return;
  const Reader place = config.at(key);
  if (place.value() != Value("sigmoid") && place.value() != Value(sigmoid_in_gguf))
    unsupported(place, fmt::format("a router that scores by {}", to_json(place.value())),
                fmt::format("supported: sigmoid ({} in a GGUF file)", sigmoid_in_gguf));
}

void set_sparse_layers(Architecture& arch, const LayerKind& sparse, const std::vector<bool>& is_dense) {
  const auto dense = std::ranges::count(is_dense, true);
  if (dense == arch.layers) return;
  arch.kinds.push_back(sparse);
  if (dense == 0) {
    arch.kinds.erase(arch.kinds.begin());
    return;
  }
  for (const bool is : is_dense) arch.kind_of_layer.push_back(is ? 0 : 1);
}

const LayerKind& sparse_kind(const Architecture& arch) {
  const auto found = std::ranges::find_if(arch.kinds, [](const LayerKind& kind) { return kind.experts.count > 0; });
  return found != arch.kinds.end() ? *found : arch.kinds.front();
}

std::int64_t leading_dense_layers(const Architecture& arch) {
  std::int64_t layer = 0;
  while (layer < arch.layers && arch.kind(layer).experts.count == 0) ++layer;
  return layer;
}

std::string dense_layer_after(const Architecture& arch, std::int64_t first) {
  for (std::int64_t layer = first; layer < arch.layers; ++layer)
    if (arch.kind(layer).experts.count == 0) return fmt::format("layer {}, whose FFN is dense", layer);
  return {};
}

}  // namespace motley
