// What all products share: which lines of weights a warp multiplies, and where their sums go.
#pragma once

#include <type_traits>

#include "motley/engine/cuda/device.cuh"
#include "motley/engine/cuda/kernels.hpp"
#include "motley/engine/cuda/rows.cuh"

namespace motley::cuda {

constexpr int product_threads = 128;
constexpr int product_warps = product_threads / 32;

// A row of weights, and the output that it makes.
struct Line {
  int matrix = 0;
  std::int64_t output = 0;
  bool exists = false;
};

// The two lines of a warp: neighbours, or of a gate and what it lets through.
__device__ inline void find_lines(const ProductTask& task, std::int64_t pair, Line (&lines)[2]) {
  if (task.then == Then::gate) {
    for (int i = 0; i < 2; ++i) lines[i] = {i, pair, pair < task.matrix[0].outputs};
    return;
  }
  for (int i = 0; i < 2; ++i) {
    std::int64_t output = 2 * pair + i;
    int matrix = 0;
    while (matrix < task.matrices && output >= task.matrix[matrix].outputs) output -= task.matrix[matrix++].outputs;
    lines[i] = {matrix, output, matrix < task.matrices};
  }
  if (!lines[1].exists) lines[1] = {lines[0].matrix, lines[0].output, false};  // computed, and not stored
}

// What a warp multiplies: the matrices of its two lines, and rows of the input. Here all rows; those beyond the last
// are the last, and their products not stored.
struct AllRows {
  const ProductTask& task;
  const Line (&lines)[2];
  __device__ const Matrix& matrix(int i) const { return task.matrix[lines[i].matrix]; }
  __device__ std::int64_t row(int i) const { return i < task.rows ? i : task.rows - 1; }
};

__device__ inline float value_at(Element element, const void* values, std::int64_t i) {
  return element == Element::bf16 ? to_float(static_cast<const Bf16*>(values)[i])
                                  : static_cast<const float*>(values)[i];
}

__device__ inline void put_at(Element element, void* values, std::int64_t i, float value) {
  if (element == Element::bf16)
    static_cast<Bf16*>(values)[i] = from_float<Bf16>(value);
  else
    static_cast<float*>(values)[i] = value;
}

__device__ inline float with_bias(const ProductTask& task, int matrix, std::int64_t output, float sum) {
  const void* bias = task.bias[matrix];
  return sum + (bias != nullptr ? value_at(task.element, bias, output) : 0.0f);
}

__device__ inline void finish_gated(const ProductTask& task, std::int64_t output, int row, float gate, float let) {
  put_at(task.out_element, task.out[0], row * task.out_stride[0] + output,
         activation(task.activation, with_bias(task, 0, output, gate)) *
             factor_of(task.activation, with_bias(task, 1, output, let)));
}

__device__ inline void finish_one(const ProductTask& task, int matrix, std::int64_t output, int row, float sum) {
  void* out = task.out[matrix];
  const std::int64_t place = row * task.out_stride[matrix] + output;
  const float before = task.then == Then::add ? value_at(task.out_element, out, place) : 0.0f;
  put_at(task.out_element, out, place, before + with_bias(task, matrix, output, sum));
}

__device__ inline void finish(const ProductTask& task, const Line (&lines)[2], int row, const float (&sums)[2]) {
  if (task.then == Then::gate) return finish_gated(task, lines[0].output, row, sums[0], sums[1]);
  for (int i = 0; i < 2; ++i)
    if (lines[i].exists) finish_one(task, lines[i].matrix, lines[i].output, row, sums[i]);
}

template <int rows>
__device__ void finish_all(const ProductTask& task, const Line (&lines)[2], float (&sums)[2][rows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    float of_row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) of_row[i] = warp_sum(sums[i][row]);
    if (lane == row && row < task.rows) finish(task, lines, row, of_row);
  }
}

// Weights are read once: they should not push inputs out of the cache.
__device__ inline uint4 load_once(const void* from) {
#ifdef __CUDACC__
  return __ldcs(static_cast<const uint4*>(from));
#else
#ifdef MOTLEY_KERNELS_ON_HOST
  host_grid::check_aligned(from, sizeof(uint4));
#endif
  return *static_cast<const uint4*>(from);
#endif
}

// Of a block, whose other bytes lie in the same sectors of memory and are wanted at once or by other lanes.
__device__ inline uint4 load_near(const void* from) {
#ifdef __CUDACC__
  return __ldg(static_cast<const uint4*>(from));
#else
  return load_once(from);
#endif
}

// The first of what a warp will read of its two rows, while the input is still being made.
__device__ inline void prefetch_rows(const void* one, const void* other, std::int64_t bytes) {
  constexpr int line = 128, lines = 8;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, number = lane % lines;
  if (lane < 2 * lines && number * line < bytes)
    prefetch(static_cast<const char*>(lane < lines ? one : other) + number * line);
}

inline std::int64_t pairs_of(const ProductTask& task) {
  if (task.then == Then::gate) return task.matrix[0].outputs;
  std::int64_t lines = 0;
  for (int i = 0; i < task.matrices; ++i) lines += task.matrix[i].outputs;
  return (lines + 1) / 2;
}

// Calls `run` with the smallest of 1, 2, 4, 8, ... that is not below `rows`, as a type.
template <int most, int tile = 1, class Run>
int with_row_tile(std::int64_t rows, const Run& run) {
  if constexpr (tile < most) {
    if (rows > tile) return with_row_tile<most, 2 * tile>(rows, run);
  }
  return run(std::integral_constant<int, tile>{});
}

}  // namespace motley::cuda
