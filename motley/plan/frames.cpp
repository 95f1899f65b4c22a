#include <algorithm>

#include "motley/plan/plan.hpp"

namespace motley {

std::int64_t largest_frame_bytes(const ServePlan& plan) {
  const Architecture& arch = plan.model.arch;
  const std::int64_t hidden = plan.step.max_tokens * arch.hidden;
  const std::int64_t logits = plan.step.max_sequences * arch.vocabulary;
  return std::max(hidden, logits) * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace motley
