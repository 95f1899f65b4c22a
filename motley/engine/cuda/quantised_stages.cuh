// How quantised weights come into shared memory ahead of their use, and what tensor cores take of them there: a chunk
// is 256 inputs of 16 outputs.
#pragma once

#include "motley/engine/cuda/quantised_groups.cuh"

namespace motley::cuda {

constexpr int tile_outputs = 16;
constexpr int chunk_groups = 8, chunk_values = chunk_groups * group_values;

// Of a plane: bytes of a block, those of a block in the planes before it, and in a stage between two rows, such that
// lanes that read at once want different banks.
struct StagedPlane {
  int before, bytes, stride;
};
struct StagedPlanes {
  StagedPlane quants, high, scales, last;
  constexpr int bytes() const { return tile_outputs * (quants.stride + high.stride + scales.stride + last.stride); }
};

constexpr StagedPlanes staged_planes(WeightKind kind) {
  switch (kind) {
    case WeightKind::q8_0: return {{0, 32, 288}, {}, {32, 2, 16}, {}};
    case WeightKind::q4_0: return {{0, 16, 144}, {}, {16, 2, 16}, {}};
    case WeightKind::q4_1: return {{0, 16, 144}, {}, {16, 4, 32}, {}};
    case WeightKind::q5_0: return {{0, 16, 144}, {16, 4, 48}, {20, 2, 16}, {}};
    case WeightKind::q5_1: return {{0, 16, 144}, {16, 4, 48}, {20, 4, 32}, {}};
    case WeightKind::mxfp4: return {{0, 16, 144}, {}, {16, 1, 8}, {}};
    case WeightKind::iq4_nl: return {{0, 16, 144}, {}, {16, 2, 16}, {}};
    case WeightKind::q4_k: return {{0, 128, 160}, {}, {128, 16, 16}, {}};
    case WeightKind::q5_k: return {{0, 128, 160}, {128, 32, 32}, {160, 16, 16}, {}};
    case WeightKind::iq4_xs: return {{0, 128, 144}, {}, {128, 8, 8}, {}};
    default: return {{0, 128, 144}, {128, 64, 80}, {192, 16, 16}, {208, 2, 2}};  // q6_k
  }
}

// 16 rows of weights, in shared memory: neighbours, or eight of a gate and eight of what it lets
// through. Rows beyond a matrix's end are its last, computed and not stored.
struct TileRows {
  const unsigned char* planes[tile_outputs];  // each row's matrix
  std::int64_t block[tile_outputs];           // each row's first
  std::int64_t blocks, in_row;                // of a matrix, of a row
  std::int64_t first, last;                   // outputs
  int matrix;

  __device__ const unsigned char* at(int row, const StagedPlane& plane, std::int64_t number) const {
    return planes[row] + blocks * plane.before + (block[row] + number) * plane.bytes;
  }
};

// A thread for each row of a tile. Tiles beyond the last are of the last matrix, beyond its end.
__device__ inline void find_row(const ProductTask& task, unsigned tile, int row, TileRows& rows) {
  const bool gate = task.then == Then::gate;
  int matrix = gate ? row / (tile_outputs / 2) : 0;
  while (!gate && matrix + 1 < task.matrices) {
    const auto tiles = static_cast<unsigned>((task.matrix[matrix].outputs + tile_outputs - 1) / tile_outputs);
    if (tile < tiles) break;
    tile -= tiles;
    ++matrix;
  }
  const Matrix& of = task.matrix[matrix];
  const std::int64_t first = static_cast<std::int64_t>(tile) * (gate ? tile_outputs / 2 : tile_outputs);
  const std::int64_t output = first + (gate ? row % (tile_outputs / 2) : row), last = of.outputs - 1;
  rows.planes[row] = static_cast<const unsigned char*>(of.values);
  rows.block[row] = (output < last ? output : last) * of.row_blocks;
  if (row == 0) {
    rows.blocks = of.outputs * of.row_blocks;
    rows.in_row = of.row_blocks;
    rows.first = first;
    rows.last = last;
    rows.matrix = matrix;
  }
}

constexpr int blocks_of_chunk(WeightKind kind) { return chunk_groups / groups_of_block(kind); }

template <WeightKind kind, StagedPlane StagedPlanes::*which, int unit>
__device__ inline void stage_units(unsigned char* to, const TileRows& rows, std::int64_t block, int blocks) {
  constexpr StagedPlane plane = staged_planes(kind).*which;
  constexpr int units = plane.bytes * blocks_of_chunk(kind) / unit;  // of a row
  constexpr int all_units = tile_outputs * units, steps = (all_units + warp_lanes - 1) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
#pragma unroll 2
  for (int step = 0; step < steps; ++step) {
    const int i = step * warp_lanes + lane, row = i / units, offset = i % units * unit;
    if (all_units % warp_lanes != 0 && i >= all_units) break;
    if (!in_large_blocks(kind) && offset >= blocks * plane.bytes) continue;
    unsigned char* const there = to + row * plane.stride + offset;
    const unsigned char* const from = rows.at(row, plane, block) + offset;
    if constexpr (unit == 1)
      *there = *from;
    else if constexpr (unit == 2)
      *reinterpret_cast<unsigned short*>(there) = *reinterpret_cast<const unsigned short*>(from);
    else
      copy_later<unit>(there, from);
  }
}

// Rows of small blocks begin wherever the blocks before them end.
template <WeightKind kind, StagedPlane StagedPlanes::*which>
__device__ inline void stage_plane(unsigned char* to, const TileRows& rows, std::int64_t block, int blocks) {
  constexpr int bytes = (staged_planes(kind).*which).bytes, whole = bytes * chunk_groups < 16 ? 8 : 16,
                smallest = bytes < 2 ? bytes : 2;
  if constexpr (bytes == 0) {
    return;
  } else if constexpr (bytes % 16 == 0) {
    stage_units<kind, which, 16>(to, rows, block, blocks);
  } else if constexpr (in_large_blocks(kind)) {
    stage_units<kind, which, bytes>(to, rows, block, blocks);
  } else if (rows.in_row % chunk_groups == 0) {
    stage_units<kind, which, whole>(to, rows, block, blocks);
  } else if (rows.in_row * bytes % 4 == 0) {
    stage_units<kind, which, 4>(to, rows, block, blocks);
  } else {
    stage_units<kind, which, smallest>(to, rows, block, blocks);
  }
}

// Where a stage holds its planes.
template <WeightKind kind>
struct Stage {
  static constexpr StagedPlanes planes = staged_planes(kind);
  static constexpr int high = tile_outputs * planes.quants.stride;
  static constexpr int scales = high + tile_outputs * planes.high.stride;
  static constexpr int last = scales + tile_outputs * planes.scales.stride;
  static constexpr int bytes = last + tile_outputs * planes.last.stride;
};

// Asks for a chunk's weights, if there is such a chunk.
template <WeightKind kind>
__device__ inline void stage_chunk(unsigned char* stage, const TileRows& rows, int chunk) {
  using At = Stage<kind>;
  const std::int64_t block = static_cast<std::int64_t>(chunk) * blocks_of_chunk(kind);
  if (block < rows.in_row) {
    const std::int64_t left = rows.in_row - block;
    const int blocks = left < blocks_of_chunk(kind) ? static_cast<int>(left) : blocks_of_chunk(kind);
    stage_plane<kind, &StagedPlanes::quants>(stage, rows, block, blocks);
    stage_plane<kind, &StagedPlanes::high>(stage + At::high, rows, block, blocks);
    stage_plane<kind, &StagedPlanes::scales>(stage + At::scales, rows, block, blocks);
    stage_plane<kind, &StagedPlanes::last>(stage + At::last, rows, block, blocks);
  }
}

__device__ inline unsigned word_at(const unsigned char* from) { return *reinterpret_cast<const unsigned*>(from); }
__device__ inline uint2 two_words_at(const unsigned char* from) { return *reinterpret_cast<const uint2*>(from); }

// A row's values of a group are factors.x * integers - factors.y, with integers as bytes_of() makes them; of q6_k
// factors.x is the first half's and factors.y the second's.
template <WeightKind kind>
__device__ inline void find_factors(const unsigned char* stage, float2* factors) {
  using At = Stage<kind>;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, row = lane % tile_outputs;
  const unsigned char* const scales = stage + At::scales + row * At::planes.scales.stride;
  [[maybe_unused]] uint4 head{};
  if constexpr (kind == WeightKind::q4_k || kind == WeightKind::q5_k) head = *reinterpret_cast<const uint4*>(scales);
#pragma unroll
  for (int group = lane / tile_outputs; group < chunk_groups; group += warp_lanes / tile_outputs) {
    float2& of = factors[group * tile_outputs + row];
    if constexpr (kind == WeightKind::q4_k || kind == WeightKind::q5_k) {
      of = factors_of(head, group);
    } else if constexpr (kind == WeightKind::q6_k) {
      const float scale = half_at(stage + At::last + row * At::planes.last.stride) / 4;
      const auto* halves = reinterpret_cast<const signed char*>(scales) + 2 * group;
      of = make_float2(scale * static_cast<float>(halves[0]), scale * static_cast<float>(halves[1]));
    } else if constexpr (kind == WeightKind::mxfp4) {
      of = make_float2(exponent_scale(scales[group]), 0);
    } else if constexpr (kind == WeightKind::iq4_xs) {
      of = make_float2(code_scale(two_words_at(scales), group), 0);
    } else if constexpr (kind == WeightKind::q4_1 || kind == WeightKind::q5_1) {
      of = make_float2(half_at(scales + 4 * group), -half_at(scales + 4 * group + 2));
    } else {
      constexpr float step = kind == WeightKind::q4_0 ? 16 : kind == WeightKind::q5_0 ? 8 : 1;
      of = make_float2(half_at(scales + 2 * group) / step, 0);
    }
  }
}

// Whether a lane's eight values of a group are four of its first half and four of its second, from 4 * number on each,
// and not those from 8 * number on.
constexpr bool halved(WeightKind kind) {
  return kind != WeightKind::q8_0 && kind != WeightKind::q4_k && kind != WeightKind::q5_k;
}

// The eight bytes of lane `number` of four, signed. Of q4_0, q5_0 and q6_k, whose integers are less by half their
// range, they are in the highest bits, where to turn the highest subtracts that.
template <WeightKind kind>
__device__ inline uint2 bytes_of(const unsigned char* stage, int row, int group, int number) {
  using At = Stage<kind>;
  constexpr unsigned turn = 0x80808080u;
  const unsigned char* const quants = stage + row * At::planes.quants.stride;
  [[maybe_unused]] const unsigned char* const high = stage + At::high + row * At::planes.high.stride;
  if constexpr (kind == WeightKind::q8_0) {
    return two_words_at(quants + 32 * group + 8 * number);
  } else if constexpr (has_codes(kind)) {
    return codes_of<kind>(word_at(quants + 16 * group + 4 * number));
  } else if constexpr (kind == WeightKind::q4_0) {
    const unsigned both = word_at(quants + 16 * group + 4 * number);
    return make_uint2((both << 4 & 0xf0f0f0f0u) ^ turn, (both & 0xf0f0f0f0u) ^ turn);
  } else if constexpr (kind == WeightKind::q4_1) {
    const unsigned both = word_at(quants + 16 * group + 4 * number);
    return make_uint2(both & 0x0f0f0f0fu, both >> 4 & 0x0f0f0f0fu);
  } else if constexpr (kind == WeightKind::q5_0 || kind == WeightKind::q5_1) {
    const unsigned both = word_at(quants + 16 * group + 4 * number), fifths = word_at(high + 4 * group) >> (4 * number);
    const uint2 q =
        make_uint2((both & 0x0f0f0f0fu) | fifth_bits(fifths), (both >> 4 & 0x0f0f0f0fu) | fifth_bits(fifths >> 16));
    return kind == WeightKind::q5_1 ? q : make_uint2((q.x << 3) ^ turn, (q.y << 3) ^ turn);
  } else if constexpr (kind == WeightKind::q4_k || kind == WeightKind::q5_k) {
    const uint2 both = two_words_at(quants + group / 2 * 32 + 8 * number);
    const int shift = group % 2 * 4;
    uint2 q = make_uint2(both.x >> shift & 0x0f0f0f0fu, both.y >> shift & 0x0f0f0f0fu);
    if constexpr (kind == WeightKind::q5_k) {
      const uint2 fifths = two_words_at(high + 8 * number);
      q.x |= (fifths.x >> group & 0x01010101u) << 4;
      q.y |= (fifths.y >> group & 0x01010101u) << 4;
    }
    return q;
  } else {  // q6_k
    const int half = group / 4, quarter = group % 4;
    unsigned words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned low = word_at(quants + half * 64 + quarter % 2 * 32 + 16 * i + 4 * number);
      const unsigned top = word_at(high + half * 32 + 16 * i + 4 * number);
      words[i] =
          (((quarter < 2 ? low << 2 : low >> 2) & 0x3c3c3c3cu) | (top << (6 - 2 * quarter) & 0xc0c0c0c0u)) ^ turn;
    }
    return make_uint2(words[0], words[1]);
  }
}

}  // namespace motley::cuda
