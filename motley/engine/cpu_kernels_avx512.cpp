#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "motley/engine/cpu_kernels_sets.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")

namespace motley::avx512_kernels {
namespace {
constexpr std::string_view instructions = "avx512";
#include "motley/engine/cpu_kernels_body.hpp"
}  // namespace

const CpuKernels<float>& fp32() { return kernels<float>(); }
const CpuKernels<Bf16>& bf16() { return kernels<Bf16>(); }
}  // namespace motley::avx512_kernels
#endif
