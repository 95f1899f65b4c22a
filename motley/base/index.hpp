// Ranks, nodes and ports are ints, of which a negative one says "none"; containers count in std::size_t.
#pragma once

#include <cstddef>

namespace motley {

inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace motley
