// Rows on their way to another stage, packed into 8 bits: the bytes of encode_int8_row()
// (motley/engine/ops/int8_rows.hpp says what a row is). Values stay bits wherever they are not divided, so that NaN
// keeps its own.
#pragma once

#include "motley/engine/cuda/device.cuh"

namespace motley::cuda {

// Fewer on the processor, where each is a fiber.
#ifdef __CUDACC__
constexpr int pack_threads = 256;
#else
constexpr int pack_threads = 64;
#endif
constexpr int pack_warps = pack_threads / warp_lanes;
constexpr unsigned infinity_bits = 0x7f800000U;

__device__ __forceinline__ unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned float_bits(Bf16 x) { return static_cast<unsigned>(__bfloat16_as_ushort(x)) << 16; }

// Infinity's for what is not finite.
__device__ __forceinline__ unsigned magnitude_bits(unsigned bits) {
  const unsigned magnitude = bits & 0x7fffffffU;
  return magnitude < infinity_bits ? magnitude : infinity_bits;
}

// Of the values of a row those with the highest are its exceptions: by magnitude, of equals the first. Never 0.
__device__ __forceinline__ std::uint64_t precedence(unsigned bits, int place) {
  return static_cast<std::uint64_t>(magnitude_bits(bits)) << 32 | ~static_cast<unsigned>(place);
}
__device__ __forceinline__ int place_of(std::uint64_t precedence) {
  return static_cast<int>(~static_cast<unsigned>(precedence));
}

__device__ __forceinline__ std::uint64_t larger_of(std::uint64_t a, std::uint64_t b) { return a < b ? b : a; }

// In every thread of the block. `parts` [pack_warps] is shared; another takes turns with it.
__device__ __forceinline__ std::uint64_t block_largest(std::uint64_t x, std::uint64_t* parts) {
  for (int mask = warp_lanes / 2; mask > 0; mask /= 2) x = larger_of(x, __shfl_xor_sync(whole_warp, x, mask));
  if (threadIdx.x % warp_lanes == 0) parts[threadIdx.x / warp_lanes] = x;
  __syncthreads();
  for (int warp = 0; warp < pack_warps; ++warp) x = larger_of(x, parts[warp]);
  return x;
}

// A row may begin anywhere.
__device__ __forceinline__ void store_short(unsigned char* to, unsigned bits) {
  to[0] = static_cast<unsigned char>(bits);
  to[1] = static_cast<unsigned char>(bits >> 8);
}

__device__ __forceinline__ unsigned bf16_of(unsigned bits) {
  if ((bits & 0x7fffffffU) > infinity_bits) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// The smallest fp16 that no magnitude up to `largest` exceeds 127 times; NaN where there is none.
__device__ __forceinline__ unsigned short scale_of(float largest) {
  constexpr unsigned short half_infinity = 0x7c00, half_nan = 0x7e00;
  const float wanted = largest / 127.0f;
  if (!(wanted < INFINITY)) return half_nan;
  unsigned short scale = __half_as_ushort(__float2half_rn(wanted));
  if (__half2float(__ushort_as_half(scale)) < wanted) ++scale;
  return scale < half_infinity ? scale : half_nan;
}

// One block of threads per row; then one warp for each of its blocks of values.
template <class T>
__global__ void __launch_bounds__(pack_threads) pack_int8_kernel(PackTask task, std::int64_t row_bytes) {
  let_next_begin();
  wait_for_previous();
  __shared__ std::uint64_t parts[2][pack_warps];
  const int columns = static_cast<int>(task.columns), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_lanes, exceptions = columns < packed_exceptions ? columns : packed_exceptions;
  const T* row = static_cast<const T*>(task.values) + blockIdx.x * task.columns;
  auto* packed = static_cast<unsigned char*>(task.packed) + blockIdx.x * row_bytes;

  std::uint64_t least = ~std::uint64_t{0};  // of the exceptions found so far
  int place = columns;                      // of the exception of this thread's number
  for (int i = 0; i < exceptions; ++i) {
    std::uint64_t next = 0;
    for (int at = thread; at < columns; at += pack_threads) {
      const std::uint64_t own = precedence(float_bits(row[at]), at);
      if (own < least) next = larger_of(next, own);
    }
    least = block_largest(next, parts[i % 2]);
    if (thread == i) place = place_of(least);
  }
  if (thread < warp_lanes) {
    int before = 0;
    for (int i = 0; i < exceptions; ++i) before += __shfl_sync(whole_warp, place, i) < place ? 1 : 0;
    if (thread < exceptions) {
      store_short(packed + 4 * before, static_cast<unsigned>(place));
      store_short(packed + 4 * before + 2, bf16_of(float_bits(row[place])));
    }
  }

  const int blocks = (columns + packed_block - 1) / packed_block;
  unsigned char* scales = packed + 4 * exceptions;
  unsigned char* codes = scales + 2 * blocks;
  for (int block = thread / warp_lanes; block < blocks; block += pack_warps) {
    constexpr int per_lane = packed_block / warp_lanes;
    float rest[per_lane], largest = 0;
    for (int i = 0; i < per_lane; ++i) {
      const int at = block * packed_block + i * warp_lanes + lane;
      const unsigned bits = at < columns ? float_bits(row[at]) : 0;
      const bool counts = at < columns && precedence(bits, at) < least;
      rest[i] = counts ? __uint_as_float(bits) : 0.0f;
      largest = fmaxf(largest, counts ? __uint_as_float(magnitude_bits(bits)) : 0.0f);
    }
    const unsigned short scale = scale_of(warp_maximum(largest));
    if (lane == 0) store_short(scales + 2 * block, scale);
    const float step = __half2float(__ushort_as_half(scale));
    for (int i = 0; i < per_lane; ++i) {
      const int at = block * packed_block + i * warp_lanes + lane;
      const float code = step > 0 ? fminf(fmaxf(rintf(rest[i] / step), -127.0f), 127.0f) : 0.0f;  // 0 of a NaN step
      if (at < columns) codes[at] = static_cast<unsigned char>(static_cast<signed char>(code));
    }
  }
}

inline int pack_int8(const PackTask& task, void* stream) {
  constexpr int invalid_value = 1;  // cudaErrorInvalidValue
  if (task.columns < 0 || task.columns > most_packed_columns) return invalid_value;
  const std::int64_t exceptions = task.columns < packed_exceptions ? task.columns : packed_exceptions;
  const std::int64_t row_bytes = 4 * exceptions + 2 * ((task.columns + packed_block - 1) / packed_block) + task.columns;
  return with_element(task.element, [&]<class T>() {
    return launch(pack_int8_kernel<T>, dim3(static_cast<unsigned>(task.rows)), dim3(pack_threads), 0, stream, task,
                  row_bytes);
  });
}

}  // namespace motley::cuda
