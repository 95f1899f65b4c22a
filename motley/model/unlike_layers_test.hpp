// For tests: models of unlike layers.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "motley/model/model.hpp"

namespace motley {

// Mixtral's shape with others between its layers. Kinds: 0 dense, 1 of experts, 2 dense with a window; those that no
// layer is of are left out.
inline Architecture with_unlike_layers(Architecture arch, std::vector<std::uint16_t> kind_of_layer) {
  arch.family = "mixtral";
  const LayerKind dense = arch.kinds.front();
  LayerKind experts = dense, windowed = dense;
  experts.ffn = dense.ffn / 4;
  experts.experts = {.count = 8, .active = 2};
  windowed.window = 32;
  arch.kinds = {dense, experts, windowed};
  for (std::uint16_t kind = 3; kind-- > 0;) {
    if (std::ranges::find(kind_of_layer, kind) != kind_of_layer.end()) continue;
    arch.kinds.erase(arch.kinds.begin() + kind);
    for (std::uint16_t& of_layer : kind_of_layer) of_layer = static_cast<std::uint16_t>(of_layer - (of_layer > kind));
  }
  arch.kind_of_layer = std::move(kind_of_layer);
  return arch;
}

}  // namespace motley
