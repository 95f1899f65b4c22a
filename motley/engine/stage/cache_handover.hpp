// Keys and values that change hands as a plan takes effect.
#pragma once

#include <cstdint>

#include "motley/engine/stage/stage_model.hpp"
#include "motley/workers/worker_group.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

// The part of worker `rank` in the moves, in their order; every worker that they name must do its own. What it receives
// counts from when its sender has had it; a sender that does not have a layer says so. Throws a peer error for moves
// that do not suit this worker, and GroupBroken. `device`: the model's.
void hand_over(const CacheHandover& handover, int rank, std::uint64_t epoch, WorkerGroup& workers, StageModel& model,
               const ComputeDevice& device);

}  // namespace motley
