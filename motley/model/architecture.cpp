#include "motley/model/architecture.hpp"

#include <algorithm>

namespace motley {

const LayerKind& Architecture::kind_of_rotary(std::size_t rotary) const {
  const auto found = std::ranges::find(kinds, rotary, &LayerKind::rotary);
  return found != kinds.end() ? *found : kinds.front();
}

bool Architecture::has_experts() const {
  return std::ranges::any_of(kinds, [](const LayerKind& kind) { return kind.experts.count > 0; });
}

}  // namespace motley
