// CUDA's language by clang for AMD's devices, as far as the kernels use it: without ROCm, so that they compile where
// there is none. That is all that was ever done with it: compiled, never run (docs/gpu.md). What is missing to run them
// is a library of the device's mathematical functions, and a host's part of kernels.cu by HIP's calls.
//
// Kernels count with warps of 32 lanes. Where a wave has 64, each half of one is a warp: exchanges stay in a half.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#define INFINITY __builtin_inff()
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __align__(bytes) alignas(bytes)

namespace motley::cuda::hip {
struct Extent {
  unsigned x = 1, y = 1, z = 1;
  constexpr __host__ __device__ Extent(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
}  // namespace motley::cuda::hip
using dim3 = motley::cuda::hip::Extent;

// clang-format off
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(2) __nv_bfloat16 { std::uint16_t bits; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
struct alignas(2) __half { std::uint16_t bits; };
struct alignas(4) __half2 { __half x, y; };
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
// clang-format on

namespace motley::cuda::hip {

constexpr int lanes = 32;

// What CUDA has as variables.
__device__ inline dim3 thread_index() {
  return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
__device__ inline dim3 block_index() {
  return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
__device__ inline dim3 block_size() {
  return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
          __builtin_amdgcn_workgroup_size_z()};
}
__device__ inline dim3 grid_size() {
  return {__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
          __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
          __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()};
}

// Of the wave.
__device__ inline int own_lane() { return __builtin_amdgcn_mbcnt_hi(~0U, __builtin_amdgcn_mbcnt_lo(~0U, 0U)); }

// The value of another lane of the wave.
template <class T>
__device__ T exchange(T value, int from) {
  static_assert(sizeof(T) % sizeof(int) == 0);
  int words[sizeof(T) / sizeof(int)];
  __builtin_memcpy(words, &value, sizeof(T));
  for (int& word : words) word = __builtin_amdgcn_ds_bpermute(from * 4, word);
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}

}  // namespace motley::cuda::hip

#define threadIdx (::motley::cuda::hip::thread_index())
#define blockIdx (::motley::cuda::hip::block_index())
#define blockDim (::motley::cuda::hip::block_size())
#define gridDim (::motley::cuda::hip::grid_size())

__device__ inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ inline void __syncwarp(unsigned = ~0U) {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

template <class T>
__device__ T __shfl_sync(unsigned, T value, int lane, int width = ::motley::cuda::hip::lanes) {
  const int own = ::motley::cuda::hip::own_lane();
  return ::motley::cuda::hip::exchange(value, own / width * width + lane % width);
}
template <class T>
__device__ T __shfl_xor_sync(unsigned, T value, int mask, int width = ::motley::cuda::hip::lanes) {
  const int own = ::motley::cuda::hip::own_lane(), other = own ^ mask;
  return ::motley::cuda::hip::exchange(value, other / width == own / width ? other : own);
}
template <class T>
__device__ T __shfl_down_sync(unsigned, T value, int by, int width = ::motley::cuda::hip::lanes) {
  const int own = ::motley::cuda::hip::own_lane(), other = own + by;
  return ::motley::cuda::hip::exchange(value, other / width == own / width ? other : own);
}
template <class T>
__device__ T __shfl_up_sync(unsigned, T value, int by, int width = ::motley::cuda::hip::lanes) {
  const int own = ::motley::cuda::hip::own_lane(), other = own - by;
  return ::motley::cuda::hip::exchange(value, other >= 0 && other / width == own / width ? other : own);
}
__device__ inline unsigned __ballot_sync(unsigned, bool yes) {
  constexpr int not_equal = 33;  // of LLVM's comparisons of whole numbers
  const std::uint64_t of_wave = __builtin_amdgcn_uicmp(yes ? 1U : 0U, 0U, not_equal);
  return static_cast<unsigned>(of_wave >> (::motley::cuda::hip::own_lane() & ::motley::cuda::hip::lanes));
}

__device__ inline void* memcpy(void* to, const void* from, std::size_t bytes) {
  return __builtin_memcpy(to, from, bytes);
}
template <class T>
__device__ T __ldg(const T* p) {
  return *p;
}

constexpr int __ffs(int x) { return __builtin_ffs(x); }
constexpr int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }

__device__ inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i)
    sum += static_cast<std::int8_t>(static_cast<unsigned>(a) >> 8 * i) *
           static_cast<std::int8_t>(static_cast<unsigned>(b) >> 8 * i);
  return sum;
}
__device__ inline int __dp4a(unsigned a, int b, int sum) {
  for (int i = 0; i < 4; ++i)
    sum += static_cast<std::uint8_t>(a >> 8 * i) * static_cast<std::int8_t>(static_cast<unsigned>(b) >> 8 * i);
  return sum;
}
// The selector of the device's own instruction counts bytes of the second operand first.
__device__ inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned bytes =
      (selector & 0xfU) | (selector & 0xf0U) << 4 | (selector & 0xf00U) << 8 | (selector & 0xf000U) << 12;
  return __builtin_amdgcn_perm(y, x, bytes & 0x07070707U);
}

// Of the device's library, which is not there to link.
__device__ float tanhf(float x);
__device__ float erff(float x);
__device__ void sincosf(float x, float* sine, float* cosine);

__device__ inline float expf(float x) { return __builtin_expf(x); }
__device__ inline float __expf(float x) { return __builtin_expf(x); }
__device__ inline float exp2f(float x) { return __builtin_exp2f(x); }
__device__ inline float rsqrtf(float x) { return __builtin_amdgcn_rsqf(x); }
__device__ inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
__device__ inline float fminf(float x, float y) { return __builtin_fminf(x, y); }
__device__ inline float fabsf(float x) { return __builtin_fabsf(x); }
__device__ inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
__device__ inline float truncf(float x) { return __builtin_truncf(x); }
__device__ inline float rintf(float x) { return __builtin_rintf(x); }
__device__ inline float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
__device__ inline float __fmul_rn(float x, float y) { return x * y; }
__device__ inline float __fdividef(float x, float y) { return x / y; }
constexpr float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
constexpr int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
constexpr float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
constexpr unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }

constexpr float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
constexpr __nv_bfloat16 __float2bfloat16_rn(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
constexpr __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
constexpr __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16(x), __float2bfloat16(y)}; }
constexpr float2 __bfloat1622float2(__nv_bfloat162 x) { return {__bfloat162float(x.x), __bfloat162float(x.y)}; }
constexpr __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return {x}; }
constexpr unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
__device__ inline float __half2float(__half x) { return static_cast<float>(__builtin_bit_cast(_Float16, x.bits)); }
__device__ inline __half __float2half_rn(float x) {
  return {__builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x))};
}
__device__ inline __half __float2half(float x) { return __float2half_rn(x); }
__device__ inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
__device__ inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
constexpr __half __ushort_as_half(unsigned short x) { return {x}; }
constexpr unsigned short __half_as_ushort(__half x) { return x.bits; }

// HIP's own, for launch().
extern "C" int hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                               void* stream);
