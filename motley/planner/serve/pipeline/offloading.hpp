// Stages of one device that uses its host's memory and disk: how many layers such a stage can hold, and where.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/planner/serve/pipeline/serve_problem.hpp"

namespace motley {

// What a device may use of its machine's host memory, less a reserve, and disk: each device of the machine has an equal
// part. None where the machine has neither, or the problem knows no stages that offload.
std::optional<MemoryTiers> offload_tiers(const ServeProblem& problem, int device);

// Numbers of layers that are tried for such a stage: all, of models with few layers.
std::vector<std::int64_t> offload_sizes(std::int64_t layers);
constexpr std::int64_t most_offload_sizes = 32;

// The quickest placement of a stage's layers (`kinds`: how many of each) by `form`, which is asked for every one that
// may be best. Weights are on the device as far as they fit, then in host memory, then on disk; a processor, for which
// a copy costs more of its memory's bandwidth than a read from disk, may leave them on disk. Keys and values are all on
// the device, or all in host memory. None where it does not fit, or where it fits the device.
std::optional<StreamedStage> place_offloaded(const ServeForm& form, const Architecture& arch, const TensorGroup& group,
                                             StageEnds ends, const LayerCounts& kinds, const CacheRoom& caches,
                                             std::int64_t block_tokens, const MemoryTiers& tiers);

// As a plan says it.
Offload offload_of(const StreamedStage& stage);

}  // namespace motley
