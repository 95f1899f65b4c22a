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

#ifdef __x86_64__
#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define MOTLEY_AVX512

namespace motley::avx512_kernels {
namespace {
constexpr std::string_view instructions = "avx512";
constexpr int vector_bytes = 64;
#include "motley/engine/cpu/cpu_kernels_body.hpp"
}  // namespace

const CpuKernels<float>& fp32() { return kernels<float>(); }
const CpuKernels<Bf16>& bf16() { return kernels<Bf16>(); }
}  // namespace motley::avx512_kernels
#endif
