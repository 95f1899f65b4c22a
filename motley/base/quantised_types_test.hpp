// For tests: GGUF's quantised types, all that the table has.
#pragma once

#include <vector>

#include "motley/base/dtype.hpp"

namespace motley {

inline const std::vector<DType> quantised_types = [] {
  std::vector<DType> types = dtypes_with(Support::served, Use::weights);
  std::erase_if(types, [](DType type) { return !is_quantised(type); });
  return types;
}();

}  // namespace motley
