// Copies of other stages' layers in memory that a plan leaves free.
#pragma once

#include <cstdint>
#include <optional>

#include "motley/plan/serve_plan.hpp"

namespace motley {

// Every stage holds copies of the layers before and behind its own, alternately, as far as each of its devices has
// room, and then its host: after a loss its neighbours' layers are the ones that it is likely to get. In place of those
// that it had.
void fill_standby(ServePlan& plan);

// The most that a device of the plan holds so in its own memory; none where there are no standby weights.
std::optional<std::int64_t> standby_bytes_of(const ServePlan& plan);

}  // namespace motley
