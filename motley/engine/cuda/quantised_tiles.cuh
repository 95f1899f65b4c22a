// Products of quantised weights by tensor cores, from compute capability 8.0 on, for more rows (tokens) than
// quantised_dots.cuh is for, and fewer than quantised_panels.cuh. A block makes 16 outputs of all rows, its warps each
// of chunks of 256 inputs, whose weights come into shared memory ahead of their use. Weights and inputs rounded to int8
// meet in tiles of 16 outputs x 8 rows x 32 inputs, just the values that share a scale.
#pragma once

#include <algorithm>

#include "motley/engine/cuda/quantised_stages.cuh"

namespace motley::cuda {

constexpr int tile_rows = 8;
constexpr int most_tile_warps = 16;
constexpr int most_stages = 2;  // chunks of a warp that are on their way

// ---- inputs ----

// Inputs rounded to int8, [groups, rows, 32] in the lanes' order, and of each group of a row its scale and scale * sum
// of the integers: [groups, rows]. Rows in whole tiles: those beyond the task's are read as they are, and their
// products not stored. Of more rows, panels of `rows` follow one another.
template <int rows>
struct TileInput {
  signed char* values;
  float2* scales;
  __device__ TileInput panel(std::int64_t number, int chunks) const { return chunk(number * chunks); }
  __device__ TileInput chunk(std::int64_t number) const {
    return {values + number * chunk_values * rows, scales + number * chunk_groups * rows};
  }
  __device__ signed char* values_of(int group, int row) const { return values + (group * rows + row) * group_values; }
  __device__ float2* scales_of(int group, int row) const { return scales + group * rows + row; }
};

// Eight inputs of a row from `column` on, zeros for those outside.
template <class T>
__device__ inline void load_eight(const ProductTask& task, int row, std::int64_t column, float (&out)[8]) {
  constexpr int in_pack = 16 / sizeof(T);
  const std::int64_t inputs = task.matrix[0].inputs;
  const T* const from = static_cast<const T*>(task.input) + row * task.input_stride + column;
  if (column >= 0 && column + 8 <= inputs && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < 8; i += in_pack) {
      const auto pack = load_pack<in_pack>(from + i);
#pragma unroll
      for (int j = 0; j < in_pack; ++j) out[i + j] = to_float(pack.of[j]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = column + i >= 0 && column + i < inputs ? to_float(from[i]) : 0.0f;
}

// Added to a number below 2^22, this leaves it as an integer in the lowest bits; an integer sum that starts from these
// bits is the float of both.
constexpr float rounding = 12582912;
constexpr int rounding_bits = 0x4b400000;

__device__ inline unsigned round_four(const float* values, float inverse) {
  unsigned word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= (__float_as_uint(fmaf(values[i], inverse, rounding)) & 0xffu) << (8 * i);
  return word;
}

// A warp for each chunk of each row, four lanes for a group.
template <bool by_halves, int rows>
__global__ void __launch_bounds__(product_threads)
    round_chunks(const ProductTask task, TileInput<rows> out, int chunks) {
  let_next_begin();
  wait_for_previous();
  constexpr float least = 1e-37f;  // scales whose inverse is finite
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, group = lane / 4, number = lane % 4;
  const int of_all = static_cast<int>(blockIdx.y), row = of_all % rows;
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * product_warps + threadIdx.x / warp_lanes;
  if (chunk >= chunks) return;
  const TileInput<rows> to = out.panel(of_all / rows, chunks).chunk(chunk);
  const std::int64_t column = chunk * chunk_values + 8 * lane - task.matrix[0].skipped;
  float values[8];
  if (task.element == Element::bf16)
    load_eight<Bf16>(task, of_all, column, values);
  else
    load_eight<float>(task, of_all, column, values);
  float largest = 0;
#pragma unroll
  for (const float value : values) largest = fmaxf(largest, fabsf(value));
  for (int mask = 1; mask < 4; mask *= 2) largest = fmaxf(largest, __shfl_xor_sync(whole_warp, largest, mask));
  const float scale = largest / 127, inverse = scale > least ? 1 / scale : 0.0f;
  const unsigned words[2] = {round_four(values, inverse), round_four(values + 4, inverse)};
  constexpr int ones = 0x01010101;
  int sum = __dp4a(static_cast<int>(words[0]), ones, __dp4a(static_cast<int>(words[1]), ones, 0));
  for (int mask = 1; mask < 4; mask *= 2) sum += __shfl_xor_sync(whole_warp, sum, mask);
  signed char* const there = to.values_of(group, row);
  if constexpr (by_halves) {
    signed char* const half = there + number % 2 * 16 + number / 2 * 4;
    *reinterpret_cast<unsigned*>(half) = words[0];
    *reinterpret_cast<unsigned*>(half + 8) = words[1];
  } else {
    *reinterpret_cast<uint2*>(there + 8 * number) = make_uint2(words[0], words[1]);
  }
  if (number == 0) *to.scales_of(group, row) = make_float2(scale, scale * static_cast<float>(sum));
}

// ---- products ----

// d [16, 8] += a [16, k] * b [k, 8] of signed bytes, as lanes hold them for mma.sync (host_grid.hpp says how).
__device__ inline void multiply_tile(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef __CUDACC__
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(MOTLEY_KERNELS_ON_HOST)
  host_grid::multiply_tiles<32>(d, a, b);
#endif
}
__device__ inline void multiply_tile(int (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
#ifdef __CUDACC__
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#elif defined(MOTLEY_KERNELS_ON_HOST)
  host_grid::multiply_tiles<16>(d, a, b);
#endif
}

template <int words>
__device__ inline void float_products(const unsigned (&a)[2 * words], const unsigned (&b)[words], float (&out)[4]) {
  int sums[4] = {rounding_bits, rounding_bits, rounding_bits, rounding_bits};
  multiply_tile(sums, a, b);
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = __int_as_float(sums[i]) - rounding;
}

// A lane's part of the weights of a group: of rows lane / 4 and lane / 4 + 8.
struct TileWeights {
  uint2 bytes[2];
  float2 factors[2];
};

// sums += of eight rows of the input, of which the lane has byte pairs of one and scales of two.
template <WeightKind kind>
__device__ inline void add_group(const TileWeights& w, const uint2& x, const float4& x_scales, float (&sums)[4]) {
  const float scales[2] = {x_scales.x, x_scales.z}, scaled_sums[2] = {x_scales.y, x_scales.w};
  if constexpr (kind == WeightKind::q6_k) {
    float first[4], second[4];
    float_products<1>({w.bytes[0].x, w.bytes[1].x}, {x.x}, first);
    float_products<1>({w.bytes[0].y, w.bytes[1].y}, {x.y}, second);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[i] += scales[i % 2] * (w.factors[i / 2].x * first[i] + w.factors[i / 2].y * second[i]);
  } else {
    float products[4];
    float_products<2>({w.bytes[0].x, w.bytes[1].x, w.bytes[0].y, w.bytes[1].y}, {x.x, x.y}, products);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += w.factors[i / 2].x * scales[i % 2] * products[i];
      if constexpr (has_offsets(kind)) sums[i] -= w.factors[i / 2].y * scaled_sums[i % 2];
    }
  }
}

template <WeightKind kind, int row_tiles>
__device__ inline void add_chunk(const unsigned char* stage, const float2* factors,
                                 const TileInput<row_tiles * tile_rows>& input, int groups,
                                 float (&sums)[row_tiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, line = lane / 4, number = lane % 4;
#pragma unroll 2
  for (int group = 0; group < (in_large_blocks(kind) ? chunk_groups : groups); ++group) {
    TileWeights w;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = line + i * tile_rows;
      w.bytes[i] = bytes_of<kind>(stage, row, group, number);
      w.factors[i] = factors[group * tile_outputs + row];
    }
#pragma unroll
    for (int tile = 0; tile < row_tiles; ++tile) {
      const auto* x = input.values_of(group, tile * tile_rows + line) + 8 * number;
      const auto* scales = input.scales_of(group, tile * tile_rows + 2 * number);
      add_group<kind>(w, *reinterpret_cast<const uint2*>(x), *reinterpret_cast<const float4*>(scales), sums[tile]);
    }
  }
}

// A warp has stages of the shared memory, then a chunk's factors, whose place its sums [rows, 16] take.
constexpr int factor_bytes = chunk_groups * tile_outputs * static_cast<int>(sizeof(float2));

// A line of a tile in one row, whose first sum is `partial`: those of other warps follow, `step` floats apart. Of a
// gate the line let through goes with the other.
__device__ inline void finish_line(const ProductTask& task, const TileRows& rows, int line, int row,
                                   const float* partial, int step, int warps) {
  const bool gate = task.then == Then::gate;
  const std::int64_t output = rows.first + line;
  if (output > rows.last || (gate && line >= tile_outputs / 2)) return;
  float sum = 0, let = 0;
#pragma unroll 4
  for (int warp = 0; warp < warps; ++warp) {
    sum += partial[warp * step];
    if (gate) let += partial[warp * step + tile_outputs / 2];
  }
  if (gate)
    finish_gated(task, output, row, sum, let);
  else
    finish_one(task, rows.matrix, output, row, sum);
}

template <WeightKind kind, int row_tiles>
__global__ void __launch_bounds__(most_tile_warps* warp_lanes, 2)
    multiply_by_tiles(const ProductTask task, TileInput<row_tiles * tile_rows> input, int stages) {
#ifndef MOTLEY_WITHOUT_TILES
  static_assert(row_tiles * tile_rows * tile_outputs * sizeof(float) <= factor_bytes);
  let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int warps = static_cast<int>(blockDim.x) / warp_lanes;
  const int warp_bytes = stages * Stage<kind>::bytes + factor_bytes;
  unsigned char* const own = dynamic_shared<unsigned char>() + warp * warp_bytes;
  auto* const factors = reinterpret_cast<float2*>(own + stages * Stage<kind>::bytes);
  __shared__ TileRows rows;
  if (threadIdx.x < tile_outputs) find_row(task, blockIdx.x, static_cast<int>(threadIdx.x), rows);
  __syncthreads();
  const int groups = static_cast<int>(rows.in_row) * groups_of_block(kind);
  for (int i = 0; i < stages; ++i) {
    stage_chunk<kind>(own + i * Stage<kind>::bytes, rows, warp + i * warps);
    end_copies();
  }
  wait_for_previous();
  float sums[row_tiles][4] = {};
  int stage = 0;
  for (int chunk = warp; chunk * chunk_groups < groups; chunk += warps) {
    if (stages == 1)
      wait_for_copies<0>();
    else
      wait_for_copies<most_stages - 1>();
    __syncwarp();
    find_factors<kind>(own + stage * Stage<kind>::bytes, factors);
    __syncwarp();
    const int left = groups - chunk * chunk_groups;
    add_chunk<kind, row_tiles>(own + stage * Stage<kind>::bytes, factors, input.chunk(chunk),
                               left < chunk_groups ? left : chunk_groups, sums);
    __syncwarp();
    stage_chunk<kind>(own + stage * Stage<kind>::bytes, rows, chunk + stages * warps);
    end_copies();
    stage = stage + 1 < stages ? stage + 1 : 0;
  }
  auto* const partial = reinterpret_cast<float*>(factors);
#pragma unroll
  for (int i = 0; i < row_tiles * 4; ++i) {
    const int row = i / 4 * tile_rows + lane % 4 * 2 + i % 2, line = lane / 4 + i % 4 / 2 * (tile_outputs / 2);
    partial[row * tile_outputs + line] = sums[i / 4][i % 4];
  }
  __syncthreads();
  const auto* const all_sums =
      reinterpret_cast<const float*>(dynamic_shared<unsigned char>() + stages * Stage<kind>::bytes);
  for (int i = static_cast<int>(threadIdx.x); i < tile_outputs * task.rows; i += static_cast<int>(blockDim.x))
    finish_line(task, rows, i % tile_outputs, i / tile_outputs, all_sums + i,
                warp_bytes / static_cast<int>(sizeof(float)), warps);
#endif
}

// ---- launches ----

inline std::int64_t tiles_of(const ProductTask& task) {
  if (task.then == Then::gate) return blocks_for(task.matrix[0].outputs, tile_outputs / 2);
  std::int64_t tiles = 0;
  for (int i = 0; i < task.matrices; ++i) tiles += blocks_for(task.matrix[i].outputs, tile_outputs);
  return tiles;
}

// How many warps a block has, and chunks on their way for each.
struct TileShape {
  int warps, stages;
  std::size_t shared_bytes;
};

// With few blocks each has more warps, to have as many bytes on their way.
inline TileShape tile_shape(std::int64_t tiles, int chunks, std::size_t stage_bytes) {
  constexpr std::int64_t many_tiles = 512;
  for (int most_warps = tiles < many_tiles ? most_tile_warps : most_tile_warps / 2;; most_warps /= 2) {
    const int of_warp = (chunks + most_warps - 1) / most_warps, warps = (chunks + of_warp - 1) / of_warp;
    for (int stages = std::min(of_warp, most_stages); stages > 0; --stages) {
      const std::size_t bytes =
          static_cast<std::size_t>(warps) * (static_cast<std::size_t>(stages) * stage_bytes + factor_bytes);
      if (bytes <= most_shared_bytes()) return {warps, stages, bytes};
    }
  }
}

template <WeightKind kind>
int chunks_of(const ProductTask& task) {
  return static_cast<int>(blocks_for(task.matrix[0].row_blocks, blocks_of_chunk(kind)));
}

// In the scratch.
template <int rows>
TileInput<rows> input_of(const ProductTask& task, int chunks) {
  auto* const values = static_cast<signed char*>(task.scratch);
  const std::int64_t panels = blocks_for(task.rows, rows), value_bytes = panels * chunks * chunk_values * rows;
  return {values, reinterpret_cast<float2*>(values + value_bytes)};
}

template <WeightKind kind, int rows>
int round_all(const ProductTask& task, const TileInput<rows>& input, int chunks, void* stream) {
  const dim3 grid(blocks_for(chunks, product_warps), static_cast<unsigned>(task.rows));
  return launch(round_chunks<halved(kind), rows>, grid, product_threads, 0, stream, task, input, chunks);
}

template <WeightKind kind, int row_tiles>
int launch_tiles(const ProductTask& task, void* stream) {
  constexpr int rows = row_tiles * tile_rows;
  const int chunks = chunks_of<kind>(task);
  const TileInput<rows> input = input_of<rows>(task, chunks);
  if (const int error = round_all<kind>(task, input, chunks, stream)) return error;
  const std::int64_t tiles = tiles_of(task);
  const TileShape shape = tile_shape(tiles, chunks, Stage<kind>::bytes);
  return launch(multiply_by_tiles<kind, row_tiles>, dim3(static_cast<unsigned>(tiles)),
                static_cast<unsigned>(shape.warps * warp_lanes), shape.shared_bytes, stream, task, input, shape.stages);
}

inline int product_by_tiles(const ProductTask& task, void* stream) {
  return with_quantised_kind(task.matrix[0].kind, [&](auto kind) {
    return task.rows <= tile_rows ? launch_tiles<kind(), 1>(task, stream) : launch_tiles<kind(), 2>(task, stream);
  });
}

}  // namespace motley::cuda
