#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "motley/engine/cpu_kernels_sets.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#pragma GCC target("avx2,fma")

namespace motley::avx2_kernels {
namespace {
constexpr std::string_view instructions = "avx2";
#include "motley/engine/cpu_kernels_body.hpp"
}  // namespace

const CpuKernels<float>& fp32() { return kernels<float>(); }
const CpuKernels<Bf16>& bf16() { return kernels<Bf16>(); }
}  // namespace motley::avx2_kernels
#endif
