// The kernels' instruction sets, each compiled in a file of its own.
#pragma once

#include "motley/engine/cpu/cpu_kernels.hpp"

namespace motley {
namespace portable_kernels {
const CpuKernels<float>& fp32();
const CpuKernels<Bf16>& bf16();
}  // namespace portable_kernels
namespace avx2_kernels {
const CpuKernels<float>& fp32();
const CpuKernels<Bf16>& bf16();
}  // namespace avx2_kernels
namespace avx512_kernels {
const CpuKernels<float>& fp32();
const CpuKernels<Bf16>& bf16();
}  // namespace avx512_kernels
namespace avx512vnni_kernels {
const CpuKernels<float>& fp32();
const CpuKernels<Bf16>& bf16();
}  // namespace avx512vnni_kernels
namespace avx512bf16_kernels {
const CpuKernels<float>& fp32();
const CpuKernels<Bf16>& bf16();
}  // namespace avx512bf16_kernels
namespace avx512amx_kernels {
const CpuKernels<float>& fp32();
const CpuKernels<Bf16>& bf16();
}  // namespace avx512amx_kernels
}  // namespace motley
