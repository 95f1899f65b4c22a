#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "motley/engine/cpu_kernels_sets.hpp"

namespace motley::portable_kernels {
namespace {
constexpr std::string_view instructions = "portable";
#include "motley/engine/cpu_kernels_body.hpp"
}  // namespace

const CpuKernels<float>& fp32() { return kernels<float>(); }
const CpuKernels<Bf16>& bf16() { return kernels<Bf16>(); }
}  // namespace motley::portable_kernels
