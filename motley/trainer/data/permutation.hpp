// The order of an epoch's records: a permutation that is computed, not stored.
#pragma once

#include <cstdint>

namespace motley {

// Which of `count` records comes at `place`, both from 0: a bijection of [0, count) under a key made of seed and epoch.
// A Feistel network over as many bits as count - 1 has; what leaves the range goes through it again. The values are
// part of the format of checkpoints, whose position in the data is a number of places.
std::int64_t permuted(std::int64_t place, std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

}  // namespace motley
