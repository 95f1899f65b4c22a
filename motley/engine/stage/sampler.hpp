// What becomes of a row of logits.
#pragma once

#include <cstdint>
#include <span>

#include "motley/workers/worker_messages.hpp"

namespace motley {

// Chooses tokens; deterministic for (seed, position), whatever the batch. `logits` is one row, fp32, on the CPU.
SampledToken sample(std::span<const float> logits, const Sampling& sampling, std::uint64_t sequence,
                    std::int64_t position);

// The log-probability of one token, and the most likely others.
TokenScore score(std::span<const float> logits, std::int32_t token, std::int32_t top);

}  // namespace motley
