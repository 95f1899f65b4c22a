#include "motley/model/crossing_types.hpp"

#include <fmt/format.h>

namespace motley {

std::int64_t crossing_bytes(DType type, std::int64_t hidden) {
  return type == DType::int8 ? Int8Row{hidden}.bytes() : bytes_of(type, hidden);
}

void check_activation_type(const Architecture& arch, DType type) {
  if (type != DType::int8 && !supports(type, Support::served, Use::values))
    throw input_error(fmt::format("activations cannot be sent in {}", name_of(type)),
                      "set `activation_type` (`--crossing-type`) to fp32, bf16 or int8");
  if (type == DType::int8 && arch.hidden > Int8Row::most_values)
    throw input_error(fmt::format("activations in int8 have at most {} values per token, and the model's have {}",
                                  Int8Row::most_values, arch.hidden),
                      "set `activation_type` (`--crossing-type`) to fp32 or bf16");
}

}  // namespace motley
