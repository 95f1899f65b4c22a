// Keys and values that workers hand over where a plan moves layers between workers that stay.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

// In `after`, the layers that a worker lacks and another one has from `before`, with the same heads of it. Of plans
// with one route each; and of its stages only those behind the last one that lacks a layer that no worker can hand
// over: the tokens are computed again up to there. A worker that hands over is in both plans, and not among `lost`.
std::vector<CacheMove> cache_moves(const ServePlan& before, const ServePlan& after, const std::set<std::string>& lost);

// How long it takes on the busiest link.
double seconds_of(const CacheHandover& handover, const ServePlan& after);

}  // namespace motley
