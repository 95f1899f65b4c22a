#include "motley/engine/device/scalar_type.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

at::ScalarType scalar_type(DType type) {
  switch (type) {
    case DType::fp32: return at::kFloat;
    case DType::bf16: return at::kBFloat16;
    case DType::fp16: return at::kHalf;
    default: throw input_error(fmt::format("tensors of {} are not supported", name_of(type)), "use fp32, bf16 or fp16");
  }
}

}  // namespace motley
