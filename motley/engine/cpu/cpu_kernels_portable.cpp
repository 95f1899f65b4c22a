#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "motley/checkpoint/quant_blocks.hpp"
#include "motley/engine/cpu/cpu_kernels_sets.hpp"
#include "motley/engine/cpu/weight_panels.hpp"

namespace motley::portable_kernels {
namespace {
constexpr std::string_view instructions = "portable";
constexpr int vector_bytes = 16;
#include "motley/engine/cpu/cpu_kernels_body.hpp"
}  // namespace

const CpuKernels<float>& fp32() { return kernels<float>(); }
const CpuKernels<Bf16>& bf16() { return kernels<Bf16>(); }
}  // namespace motley::portable_kernels
