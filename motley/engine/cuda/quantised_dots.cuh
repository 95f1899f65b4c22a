// Products of quantised weights by sums of four bytes' products, for one and two rows (tokens), and for up to 16 where
// a device lacks the tensor cores that quantised_tiles.cuh takes: a warp holds two rows of weights against all rows of
// the input. Inputs are rounded to int8, of which each 32 share a scale.
#pragma once

#include "motley/engine/cuda/quantised_groups.cuh"

namespace motley::cuda {

// What the kernels read of the input: int8 [rows, padded], then for each group its scale and scale * sum of elements.
struct RoundedInput {
  signed char* values;
  float2* scales;
  std::int64_t padded;  // inputs with what is skipped, in whole blocks
  __host__ __device__ RoundedInput(void* scratch, std::int64_t rows, std::int64_t padded_inputs)
      : values(static_cast<signed char*>(scratch)),
        scales(reinterpret_cast<float2*>(static_cast<signed char*>(scratch) + rows * padded_inputs)),
        padded(padded_inputs) {}
};

// A warp for each group of each row.
__global__ void round_input(const ProductTask task, std::int64_t padded) {
  let_next_begin();
  wait_for_previous();
  const RoundedInput out(task.scratch, task.rows, padded);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * product_warps + threadIdx.x / 32;
  const std::int64_t row = blockIdx.y;
  if (group >= padded / group_values) return;
  const std::int64_t column = group * group_values + lane - task.matrix[0].skipped;
  const bool inside = column >= 0 && column < task.matrix[0].inputs;
  const float value = inside ? value_at(task.element, task.input, row * task.input_stride + column) : 0.0f;
  const float scale = warp_maximum(fabsf(value)) / 127;
  const int rounded = scale > 0 ? static_cast<int>(rintf(value / scale)) : 0;
  const float sum = warp_sum(static_cast<float>(rounded));
  out.values[row * padded + group * group_values + lane] = static_cast<signed char>(rounded);
  if (lane == 0) out.scales[row * (padded / group_values) + group] = make_float2(scale, scale * sum);
}

template <WeightKind kind>
struct QuantisedSums {
  std::int64_t padded;
  template <class From, int rows>
  __device__ void add(const ProductTask& task, const Line (&lines)[2], const From& from, float (&sums)[2][rows]) const {
    const RoundedInput input(task.scratch, task.rows, padded);
    const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
    const std::int64_t groups = padded / group_values;
    for (std::int64_t number = lane; number < groups; number += warp_lanes) {
      Group weights[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) weights[i] = group_of<kind>(from.matrix(i), lines[i].output, number);
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        const std::int64_t at = from.row(row);
        const uint4* values = reinterpret_cast<const uint4*>(input.values + at * padded + number * group_values);
        unsigned x[8];
        put_words(__ldg(values), x);
        put_words(__ldg(values + 1), x + 4);
        const float2 scale = input.scales[at * groups + number];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Group& w = weights[i];
          int halves[2] = {};
#pragma unroll
          for (int j = 0; j < 8; ++j)
            halves[j / 4] = __dp4a(static_cast<int>(w.q[j]), static_cast<int>(x[j]), halves[j / 4]);
          const float product = kind == WeightKind::q6_k ? w.scale[0] * static_cast<float>(halves[0]) +
                                                               w.scale[1] * static_cast<float>(halves[1])
                                                         : w.scale[0] * static_cast<float>(halves[0] + halves[1]);
          sums[i][row] += scale.x * product - scale.y * w.offset;
        }
      }
    }
  }
};

template <WeightKind kind, int rows>
__global__ void __launch_bounds__(product_threads) multiply_quantised(const ProductTask task, std::int64_t padded) {
  let_next_begin();
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * product_warps + threadIdx.x / warp_lanes;
  Line lines[2];
  find_lines(task, pair, lines);
  if (!lines[0].exists) return;
  wait_for_previous();
  float sums[2][rows] = {};
  QuantisedSums<kind>{padded}.add(task, lines, AllRows{task, lines}, sums);
  finish_all<rows>(task, lines, sums);
}

inline int round_rows(const ProductTask& task, std::int64_t padded, void* stream) {
  const dim3 grid(blocks_for(padded / group_values, product_warps), static_cast<unsigned>(task.rows));
  return launch(round_input, grid, product_threads, 0, stream, task, padded);
}

inline int product_by_dots(const ProductTask& task, void* stream) {
  const std::int64_t padded = padded_inputs(task.matrix[0]);
  if (const int error = round_rows(task, padded, stream)) return error;
  const dim3 grid(blocks_for(pairs_of(task), product_warps));
  return with_quantised_kind(task.matrix[0].kind, [&](auto kind) {
    return with_row_tile<most_tile_rows>(task.rows, [&](auto tile) {
      return launch(multiply_quantised<kind(), tile()>, grid, product_threads, 0, stream, task, padded);
    });
  });
}

}  // namespace motley::cuda
