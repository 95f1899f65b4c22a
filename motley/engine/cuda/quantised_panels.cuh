// Products of quantised weights by tensor cores for more rows (tokens) than quantised_tiles.cuh is for. A block makes a
// panel: 16, 32 or 64 outputs of up to 64 rows. Its eight warps walk along the inputs together, chunk by chunk, each
// with one or two tiles of outputs and all rows; those of the same outputs divide a chunk's groups among themselves. So
// weights come from memory once and are unpacked once, in registers, for all rows of the panel; a chunk's inputs lie in
// shared memory, too, while the next one is on its way. Sums run in an order that the matrix's shape fixes: a row's
// products do not depend on the other rows, nor on how many there are.
#pragma once

#include "motley/engine/cuda/quantised_tiles.cuh"

namespace motley::cuda {

constexpr int panel_rows = 64;
constexpr int panel_warps = chunk_groups, panel_threads = panel_warps * warp_lanes;  // a warp stages a group's inputs
constexpr int most_panel_tiles = 4;
constexpr int staged_values_bytes = chunk_values * panel_rows;
constexpr int staged_input_bytes = staged_values_bytes + chunk_groups * panel_rows * static_cast<int>(sizeof(float2));

// Of a panel's, so that an input that a warp reads meets two of them.
constexpr int tiles_of_warp(int tiles) { return tiles < 2 ? 1 : 2; }

// A warp's sums are [rows, outputs] with some floats between rows, so that lanes that store at once want different
// banks.
constexpr int sum_stride(int warp_tiles) { return warp_tiles * tile_outputs + 4; }
constexpr int sum_floats(int warp_tiles) { return panel_rows * sum_stride(warp_tiles); }

// Where a block's shared memory holds what: stages of weights and inputs, then factors; in their place the warps' sums,
// when all chunks are done; last the rows of weights. Of small panels, which take less time for a chunk, two chunks are
// on their way.
struct PanelLayout {
  int stages, stage_bytes, factors, rows, bytes;
};
template <WeightKind kind, int tiles>
__host__ __device__ constexpr PanelLayout panel_layout() {
  const int stages = tiles < most_panel_tiles ? 3 : 2, stage_bytes = tiles * Stage<kind>::bytes + staged_input_bytes;
  const int multiplied = stages * stage_bytes + tiles * factor_bytes;
  const int summed = panel_warps * sum_floats(tiles_of_warp(tiles)) * static_cast<int>(sizeof(float));
  const int rows = multiplied > summed ? multiplied : summed;
  return {stages, stage_bytes, stages * stage_bytes, rows, rows + tiles * static_cast<int>(sizeof(TileRows))};
}

__device__ inline TileInput<panel_rows> staged_input(unsigned char* at) {
  return {reinterpret_cast<signed char*>(at), reinterpret_cast<float2*>(at + staged_values_bytes)};
}

// Asks for a group's inputs of the first rows.
__device__ inline void stage_inputs(const TileInput<panel_rows>& to, const TileInput<panel_rows>& from, int group,
                                    int rows) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  for (int i = lane; i < rows * group_values / 16; i += warp_lanes)
    copy_later<16>(to.values_of(group, 0) + 16 * i, from.values_of(group, 0) + 16 * i);
  for (int i = lane; i < rows / 2; i += warp_lanes)
    copy_later<16>(to.scales_of(group, 2 * i), from.scales_of(group, 2 * i));
}

// sums += of every `step`-th group of a chunk from `first` on.
template <WeightKind kind, int warp_tiles>
__device__ inline void add_groups(const unsigned char* weights, const float2* factors,
                                  const TileInput<panel_rows>& input, int first, int step, int groups, int rows,
                                  float (&sums)[warp_tiles][panel_rows / tile_rows][4]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, line = lane / 4, number = lane % 4;
#pragma unroll 1
  for (int group = first; group < groups; group += step) {
    TileWeights w[warp_tiles];
#pragma unroll
    for (int i = 0; i < 2 * warp_tiles; ++i) {
      const int row = line + i % 2 * tile_rows;
      w[i / 2].bytes[i % 2] = bytes_of<kind>(weights + i / 2 * Stage<kind>::bytes, row, group, number);
      w[i / 2].factors[i % 2] = factors[(i / 2 * chunk_groups + group) * tile_outputs + row];
    }
#pragma unroll
    for (int tile = 0; tile < panel_rows / tile_rows; ++tile) {
      if (tile * tile_rows >= rows) break;
      const auto x = *reinterpret_cast<const uint2*>(input.values_of(group, tile * tile_rows + line) + 8 * number);
      const auto scales = *reinterpret_cast<const float4*>(input.scales_of(group, tile * tile_rows + 2 * number));
#pragma unroll
      for (int i = 0; i < warp_tiles; ++i) add_group<kind>(w[i], x, scales, sums[i][tile]);
    }
  }
}

template <WeightKind kind, int tiles>
__global__ void __launch_bounds__(panel_threads, 2)
    multiply_by_panels(const ProductTask task, TileInput<panel_rows> input, int chunks) {
#ifndef MOTLEY_WITHOUT_TILES
  let_next_begin();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  constexpr int warp_tiles = tiles_of_warp(tiles), sets = tiles / warp_tiles, parts = panel_warps / sets;
  const int set = warp % sets, part = warp / sets;  // the warp's, of tiles and of each chunk
  constexpr PanelLayout at = panel_layout<kind, tiles>();
  unsigned char* const shared = dynamic_shared<unsigned char>();
  auto* const factors = reinterpret_cast<float2*>(shared + at.factors);
  auto* const rows = reinterpret_cast<TileRows*>(shared + at.rows);
  if (thread < tiles * tile_outputs) {
    const int tile = thread / tile_outputs;
    find_row(task, blockIdx.y * static_cast<unsigned>(tiles) + static_cast<unsigned>(tile), thread % tile_outputs,
             rows[tile]);
  }
  __syncthreads();
  const int first_row = static_cast<int>(blockIdx.x) * panel_rows;
  const int left_rows = static_cast<int>(task.rows) - first_row;
  const int own_rows = left_rows < panel_rows ? left_rows : panel_rows;
  const int computed_rows = (own_rows + tile_rows - 1) / tile_rows * tile_rows;
  const int groups = static_cast<int>(rows[0].in_row) * groups_of_block(kind);
  const auto stage_weights = [&](unsigned char* stage, int chunk) {
    if (warp < tiles) stage_chunk<kind>(stage + warp * Stage<kind>::bytes, rows[warp], chunk);
  };
  const auto stage_rows = [&](unsigned char* stage, int chunk) {
    if (chunk < chunks)
      stage_inputs(staged_input(stage + tiles * Stage<kind>::bytes), input.panel(blockIdx.x, chunks).chunk(chunk), warp,
                   computed_rows);
    end_copies();
  };
  for (int chunk = 0; chunk < at.stages - 1; ++chunk) stage_weights(shared + chunk * at.stage_bytes, chunk);
  wait_for_previous();
  for (int chunk = 0; chunk < at.stages - 1; ++chunk) stage_rows(shared + chunk * at.stage_bytes, chunk);
  unsigned char *stage = shared, *before = shared + (at.stages - 1) * at.stage_bytes;
  float sums[warp_tiles][panel_rows / tile_rows][4] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies<at.stages - 2>();
    __syncthreads();  // all have their part of this chunk, and are done with the one before
    stage_weights(before, chunk + at.stages - 1);
    stage_rows(before, chunk + at.stages - 1);
    if (warp < tiles)
      find_factors<kind>(stage + warp * Stage<kind>::bytes, factors + warp * chunk_groups * tile_outputs);
    __syncthreads();
    const int left = groups - chunk * chunk_groups, first_tile = set * warp_tiles;
    add_groups<kind, warp_tiles>(stage + first_tile * Stage<kind>::bytes,
                                 factors + first_tile * chunk_groups * tile_outputs,
                                 staged_input(stage + tiles * Stage<kind>::bytes), part, parts,
                                 left < chunk_groups ? left : chunk_groups, computed_rows, sums);
    before = stage;
    stage = stage + at.stage_bytes < shared + at.factors ? stage + at.stage_bytes : shared;
  }
  __syncthreads();
  constexpr int stride = sum_stride(warp_tiles), floats = sum_floats(warp_tiles);
  auto* const all_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < warp_tiles * panel_rows / 2; ++i) {
    const int tile = i / 4 % (panel_rows / tile_rows), of_warp = i / 4 / (panel_rows / tile_rows);
    const int row = tile * tile_rows + lane % 4 * 2 + i % 2, line = lane / 4 + i % 4 / 2 * (tile_outputs / 2);
    all_sums[warp * floats + row * stride + of_warp * tile_outputs + line] = sums[of_warp][tile][i % 4];
  }
  __syncthreads();
  constexpr int outputs = tiles * tile_outputs;
  for (int i = thread; i < outputs * own_rows; i += panel_threads) {
    const int row = i / outputs, tile = i % outputs / tile_outputs, line = i % tile_outputs;
    const float* const partial =
        all_sums + tile / warp_tiles * floats + row * stride + tile % warp_tiles * tile_outputs + line;
    finish_line(task, rows[tile], line, first_row + row, partial, sets * floats, parts);
  }
#endif
}

// ---- launches ----

template <WeightKind kind, int tiles>
int launch_panels(const ProductTask& task, void* stream) {
  constexpr int bytes = panel_layout<kind, tiles>().bytes, least_shared_bytes = 98 << 10;  // of devices from 8.0 on
  static_assert(bytes <= least_shared_bytes);
  const int chunks = chunks_of<kind>(task);
  const TileInput<panel_rows> input = input_of<panel_rows>(task, chunks);
  if (const int error = round_all<kind>(task, input, chunks, stream)) return error;
  // Blocks of the same outputs follow one another, so that weights are read from memory once.
  const dim3 grid(blocks_for(task.rows, panel_rows), blocks_for(tiles_of(task), tiles));
  return launch(multiply_by_panels<kind, tiles>, grid, panel_threads, bytes, stream, task, input, chunks);
}

// Of 1, 2 or 4 tiles each.
inline int product_by_panels_of(const ProductTask& task, int tiles, void* stream) {
  return with_quantised_kind(task.matrix[0].kind, [&](auto kind) {
    return with_row_tile<most_panel_tiles>(
        tiles, [&](auto of_panel) { return launch_panels<kind(), of_panel()>(task, stream); });
  });
}

// The more outputs a panel has, the less often inputs are read; but there should be a block for each multiprocessor of
// a large GPU. Not measured on any card.
inline int product_by_panels(const ProductTask& task, void* stream) {
  constexpr std::int64_t enough_panels = 128;
  int tiles = most_panel_tiles;
  while (tiles > 1 && tiles_of(task) < enough_panels * tiles) tiles /= 2;
  return product_by_panels_of(task, tiles, stream);
}

}  // namespace motley::cuda
