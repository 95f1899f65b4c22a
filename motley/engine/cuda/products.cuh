// Products with few rows, of weights of any kind: those of fp32, bf16 and fp16 here.
#pragma once

#include "motley/engine/cuda/product_lines.cuh"
#include "motley/engine/cuda/quantised_dots.cuh"
#include "motley/engine/cuda/quantised_panels.cuh"

namespace motley::cuda {

constexpr int most_plain_rows = 8;  // beyond, tensor cores are faster than this

template <class T>
struct Sixteen;  // bytes of values
template <>
struct Sixteen<float> {
  static constexpr int count = 4;
  static __device__ void expand(const uint4& bits, float* out) {
    out[0] = __uint_as_float(bits.x);
    out[1] = __uint_as_float(bits.y);
    out[2] = __uint_as_float(bits.z);
    out[3] = __uint_as_float(bits.w);
  }
  static __device__ float one(float value) { return value; }
};
template <>
struct Sixteen<Bf16> {
  static constexpr int count = 8;
  static __device__ void expand(const uint4& bits, float* out) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  static __device__ float one(Bf16 value) { return to_float(value); }
};
template <>
struct Sixteen<Fp16> {
  static constexpr int count = 8;
  static __device__ void expand(const uint4& bits, float* out) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out[i] = to_float(__ushort_as_half(static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2)) & 0xffffu)));
  }
  static __device__ float one(Fp16 value) { return to_float(value); }
};

// Weights of W and inputs of T. `aligned`: their rows begin at multiples of 16 bytes.
template <class W, class T, bool aligned>
struct PlainSums {
  template <class From, int rows>
  __device__ void add(const ProductTask& task, const Line (&lines)[2], const From& from, float (&sums)[2][rows]) const {
    using Values = Sixteen<W>;
    using Inputs = Sixteen<T>;
    const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
    const std::int64_t inputs = task.matrix[0].inputs;
    const T* const input = static_cast<const T*>(task.input);
    const W* weights[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) weights[i] = static_cast<const W*>(from.matrix(i).values) + lines[i].output * inputs;
    std::int64_t offsets[rows];
#pragma unroll
    for (int row = 0; row < rows; ++row) offsets[row] = from.row(row) * task.input_stride;
    if constexpr (aligned) {
#pragma unroll 4
      for (std::int64_t k = lane * Values::count; k < inputs; k += warp_lanes * Values::count) {
        float w[2][Values::count];
#pragma unroll
        for (int i = 0; i < 2; ++i) Values::expand(load_once(weights[i] + k), w[i]);
#pragma unroll
        for (int row = 0; row < rows; ++row) {
          float x[Values::count];
#pragma unroll
          for (int j = 0; j < Values::count; j += Inputs::count)
            Inputs::expand(__ldg(reinterpret_cast<const uint4*>(input + offsets[row] + k + j)), x + j);
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < Values::count; ++j) sums[i][row] += w[i][j] * x[j];
        }
      }
    } else {
      for (std::int64_t k = lane; k < inputs; k += warp_lanes)
        for (int row = 0; row < rows; ++row)
          for (int i = 0; i < 2; ++i) sums[i][row] += Values::one(weights[i][k]) * Inputs::one(input[offsets[row] + k]);
    }
  }
};

template <class W, class T, int rows, bool aligned>
__global__ void __launch_bounds__(product_threads) multiply_plain(const ProductTask task) {
  let_next_begin();
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * product_warps + threadIdx.x / warp_lanes;
  Line lines[2];
  find_lines(task, pair, lines);
  if (!lines[0].exists) return;
  const AllRows from{task, lines};
  const std::int64_t bytes = task.matrix[0].inputs * static_cast<std::int64_t>(sizeof(W));
  const auto row_of = [&](int i) { return static_cast<const char*>(from.matrix(i).values) + lines[i].output * bytes; };
  prefetch_rows(row_of(0), row_of(1), bytes);
  wait_for_previous();
  float sums[2][rows] = {};
  PlainSums<W, T, aligned>().add(task, lines, from, sums);
  finish_all<rows>(task, lines, sums);
}

template <class W, class T>
int product_of_plain(const ProductTask& task, void* stream) {
  const dim3 grid(blocks_for(pairs_of(task), product_warps));
  bool aligned = packs_fit<T>(task.matrix[0].inputs, task.input) && packs_fit<T>(task.input_stride);
  for (int i = 0; i < task.matrices; ++i)
    aligned = aligned && packs_fit<W>(task.matrix[i].inputs, task.matrix[i].values);
  return with_row_tile<most_plain_rows>(task.rows, [&](auto tile) {
    return aligned ? launch(multiply_plain<W, T, tile(), true>, grid, product_threads, 0, stream, task)
                   : launch(multiply_plain<W, T, tile(), false>, grid, product_threads, 0, stream, task);
  });
}

// For the products of a step of an 8 B model with one or two rows the dots take 0.76 to 0.94 times as long as the tiles
// on an H100, by the kind, with four rows 1.04 to 1.37 times; of a 1 B model 0.87 to 1.14 and 1.24 to 1.72 times.
constexpr int most_dot_rows = 2;

// Tensor cores multiply bytes in tiles of 16 x 8 x 32 from compute capability 8.0 on.
inline int product_of_quantised(const ProductTask& task, void* stream) {
  if (task.rows <= most_dot_rows || device_major() < 8) return product_by_dots(task, stream);
  return task.rows <= most_tile_rows ? product_by_tiles(task, stream) : product_by_panels(task, stream);
}

// Blocks of at most 256 values stick out on both sides; rows are in whole tiles or panels.
inline std::int64_t product_scratch_bytes(std::int64_t rows, std::int64_t inputs) {
  const std::int64_t at_once = rows <= most_tile_rows ? tile_rows : panel_rows;
  const std::int64_t padded = (inputs + 511) / 256 * 256, padded_rows = blocks_for(rows, at_once) * at_once;
  return padded_rows * (padded + padded / group_values * static_cast<std::int64_t>(sizeof(float2)));
}

inline int product(const ProductTask& task, void* stream) {
  switch (task.matrix[0].kind) {
    case WeightKind::fp32: return product_of_plain<float, float>(task, stream);
    case WeightKind::bf16: return product_of_plain<Bf16, Bf16>(task, stream);
    case WeightKind::fp16: return product_of_plain<Fp16, float>(task, stream);
    default: return product_of_quantised(task, stream);
  }
}

}  // namespace motley::cuda
