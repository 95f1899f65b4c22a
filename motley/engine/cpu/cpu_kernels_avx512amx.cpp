#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "motley/checkpoint/quant_blocks.hpp"
#include "motley/engine/cpu/cpu_kernels_sets.hpp"
#include "motley/engine/cpu/weight_panels.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,amx-tile,amx-bf16,amx-int8,fma")
#define MOTLEY_AVX512
#define MOTLEY_VNNI
#define MOTLEY_AVX512BF16
#define MOTLEY_AMX

namespace motley::avx512amx_kernels {
namespace {
constexpr std::string_view instructions = "avx512amx";
constexpr int vector_bytes = 64;
#include "motley/engine/cpu/cpu_kernels_body.hpp"
}  // namespace

const CpuKernels<float>& fp32() { return kernels<float>(); }
const CpuKernels<Bf16>& bf16() { return kernels<Bf16>(); }
}  // namespace motley::avx512amx_kernels
#endif
