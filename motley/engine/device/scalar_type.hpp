// LibTorch's names of types.
#pragma once

#include <ATen/ATen.h>

#include "motley/base/dtype.hpp"

namespace motley {

// Of a type that tensors have. Throws an input error for the others.
at::ScalarType scalar_type(DType type);

}  // namespace motley
