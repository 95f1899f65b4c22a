// Groups of 32 values of quantised weights, and kernels that make floats of them.
#pragma once

#include <type_traits>

#include "motley/engine/cuda/device.cuh"
#include "motley/engine/cuda/kernels.hpp"
#include "motley/engine/cuda/product_lines.cuh"

namespace motley::cuda {

// Rows (tokens) of a product. Up to the first, a warp holds sums for all of them; beyond the second, weights are
// expanded for LibTorch's product. The second is a guess: it was not measured on any card.
constexpr int most_tile_rows = 16;
constexpr int most_quantised_rows = 512;
constexpr int group_values = 32;  // share a scale, of weights and of inputs

// 32 values of a row: scale[i / 16] * q[i] - offset, where byte i of `q` is signed.
struct Group {
  unsigned q[8];
  float scale[2];
  float offset;
};

// Bytes of the planes that come before: quants, high bits, ...
struct Places {
  const unsigned char* planes;
  std::int64_t blocks;  // of all rows
  std::int64_t block;   // this one
  template <int bytes>
  __device__ const unsigned char* plane(std::int64_t before) const {
    return planes + blocks * before + block * bytes;
  }
};

__device__ inline float half_at(const unsigned char* from) { return to_float(*reinterpret_cast<const Fp16*>(from)); }

// The fifth bits of four values, each at bit 4 of its byte: no two products of bits meet.
__device__ inline unsigned fifth_bits(unsigned bits) { return (bits & 15u) * 0x02040810u & 0x10101010u; }

__device__ inline void put_words(const uint4& from, unsigned* to) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
  to[3] = from.w;
}

// Scale and offset of a group of q4_k and q5_k, from 16 bytes of a block as BlockQ4K begins.
__device__ inline float2 factors_of(const uint4& head, int group) {
  const int shift = 8 * (group % 4);
  const unsigned a = head.y >> shift & 0xffu, b = head.z >> shift & 0xffu, c = head.w >> shift & 0xffu;
  const unsigned scale = group < 4 ? a & 63u : (c & 15u) | (a >> 6) << 4;
  const unsigned offset = group < 4 ? b & 63u : c >> 4 | (b >> 6) << 4;
  return make_float2(
      to_float(__ushort_as_half(static_cast<unsigned short>(head.x & 0xffffu))) * static_cast<float>(scale),
      to_float(__ushort_as_half(static_cast<unsigned short>(head.x >> 16))) * static_cast<float>(offset));
}

// ---- four bits that name a code ----

constexpr bool has_codes(WeightKind kind) {
  return kind == WeightKind::mxfp4 || kind == WeightKind::iq4_nl || kind == WeightKind::iq4_xs;
}

// The sixteen codes of a kind (motley/checkpoint/quant_blocks.hpp), four to a word.
struct CodeWords {
  unsigned of[4];
};
constexpr CodeWords codes_of_kind(WeightKind kind) {
  return kind == WeightKind::mxfp4 ? CodeWords{{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}}
                                   : CodeWords{{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
}

// The codes of four values of four bits each, the first in the lowest.
template <WeightKind kind>
__device__ inline unsigned four_codes(unsigned q) {
  constexpr CodeWords words = codes_of_kind(kind);
  const unsigned low = __byte_perm(words.of[0], words.of[1], q & 0x7777u),
                 high = __byte_perm(words.of[2], words.of[3], q & 0x7777u);
  return __byte_perm(low, high, 0x3210u | (q & 0x8888u) >> 1);  // of each value one of the two
}

// Of the low and of the high four bits of each byte.
template <WeightKind kind>
__device__ inline uint2 codes_of(unsigned bytes) {
  const unsigned first = four_codes<kind>(bytes & 0xffffu), second = four_codes<kind>(bytes >> 16);
  return make_uint2(__byte_perm(first, second, 0x6420u), __byte_perm(first, second, 0x7531u));
}

// As exponent_scale() of quant_blocks.hpp.
__device__ inline float exponent_scale(unsigned exponent) {
  return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

// Scale of a group of iq4_xs, from 8 bytes of a block as BlockIQ4XS begins.
__device__ inline float code_scale(const uint2& head, int group) {
  const unsigned low = head.y >> (4 * group) & 15u, high = head.x >> (16 + 2 * group) & 3u;
  return to_float(__ushort_as_half(static_cast<unsigned short>(head.x & 0xffffu))) *
         static_cast<float>(static_cast<int>(low | high << 4) - 32);
}

constexpr bool in_large_blocks(WeightKind kind) { return kind >= WeightKind::q4_k; }
constexpr bool has_offsets(WeightKind kind) {
  return kind == WeightKind::q4_1 || kind == WeightKind::q5_1 || kind == WeightKind::q4_k || kind == WeightKind::q5_k;
}
constexpr int groups_of_block(WeightKind kind) { return in_large_blocks(kind) ? 8 : 1; }

template <WeightKind kind>
__device__ inline Group group_of(const Matrix& matrix, std::int64_t row, std::int64_t number) {
  constexpr int in_block = groups_of_block(kind);
  const Places at{static_cast<const unsigned char*>(matrix.values), matrix.outputs * matrix.row_blocks,
                  row * matrix.row_blocks + number / in_block};
  const int group = static_cast<int>(number % in_block);
  Group out;
  if constexpr (kind == WeightKind::q8_0) {
    const unsigned char* values = at.plane<32>(0);
    put_words(load_near(values), out.q);
    put_words(load_near(values + 16), out.q + 4);
    out.scale[0] = out.scale[1] = half_at(at.plane<2>(32));
    out.offset = 0;
  } else if constexpr (has_codes(kind)) {
    constexpr int block_quants = 16 * in_block;
    unsigned both[4];
    put_words(load_near(at.plane<block_quants>(0) + 16 * group), both);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 codes = codes_of<kind>(both[i]);
      out.q[i] = codes.x;
      out.q[i + 4] = codes.y;
    }
    if constexpr (kind == WeightKind::mxfp4)
      out.scale[0] = exponent_scale(*at.plane<1>(block_quants));
    else if constexpr (kind == WeightKind::iq4_nl)
      out.scale[0] = half_at(at.plane<2>(block_quants));
    else
      out.scale[0] = code_scale(*reinterpret_cast<const uint2*>(at.plane<8>(block_quants)), group);
    out.scale[1] = out.scale[0];
    out.offset = 0;
  } else if constexpr (!in_large_blocks(kind)) {
    unsigned low[4];
    put_words(load_near(at.plane<16>(0)), low);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.q[i] = low[i] & 0x0f0f0f0fu;
      out.q[i + 4] = low[i] >> 4 & 0x0f0f0f0fu;
    }
    constexpr bool five = kind == WeightKind::q5_0 || kind == WeightKind::q5_1;
    if constexpr (five) {
      const unsigned high = *reinterpret_cast<const unsigned*>(at.plane<4>(16));
#pragma unroll
      for (int i = 0; i < 8; ++i) out.q[i] |= fifth_bits(high >> (4 * i));
    }
    constexpr int before = five ? 20 : 16;
    if constexpr (kind == WeightKind::q4_0 || kind == WeightKind::q5_0) {
      out.scale[0] = out.scale[1] = half_at(at.plane<2>(before));
      out.offset = out.scale[0] * (five ? 16.0f : 8.0f);
    } else {
      const unsigned char* both = at.plane<4>(before);
      out.scale[0] = out.scale[1] = half_at(both);
      out.offset = -half_at(both + 2);
    }
  } else if constexpr (kind == WeightKind::q4_k || kind == WeightKind::q5_k) {
    const unsigned char* low = at.plane<128>(0) + group / 2 * 32;
    put_words(load_near(low), out.q);
    put_words(load_near(low + 16), out.q + 4);
#pragma unroll
    for (unsigned& word : out.q) word = word >> (group % 2 * 4) & 0x0f0f0f0fu;
    if constexpr (kind == WeightKind::q5_k) {
      unsigned high[8];
      const unsigned char* from = at.plane<32>(128);
      put_words(load_near(from), high);
      put_words(load_near(from + 16), high + 4);
#pragma unroll
      for (int i = 0; i < 8; ++i) out.q[i] |= (high[i] >> group & 0x01010101u) << 4;
    }
    const float2 factors = factors_of(load_near(at.plane<16>(kind == WeightKind::q5_k ? 160 : 128)), group);
    out.scale[0] = out.scale[1] = factors.x;
    out.offset = factors.y;
  } else {  // q6_k
    const int half = group / 4, quarter = group % 4;
    const unsigned char* low = at.plane<128>(0) + half * 64 + quarter % 2 * 32;
    const unsigned char* from = at.plane<64>(128) + half * 32;
    unsigned high[8];
    put_words(load_near(low), out.q);
    put_words(load_near(low + 16), out.q + 4);
    put_words(load_near(from), high);
    put_words(load_near(from + 16), high + 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned value = (out.q[i] >> (quarter / 2 * 4) & 0x0f0f0f0fu) | (high[i] >> (2 * quarter) & 0x03030303u)
                                                                                 << 4;
      out.q[i] = ((value | 0x80808080u) - 0x20202020u) ^ 0x80808080u;  // minus 32, byte by byte
    }
    const unsigned char* scales = at.plane<16>(192) + 2 * group;
    const float scale = half_at(at.plane<2>(208));
    for (int i = 0; i < 2; ++i) out.scale[i] = scale * static_cast<float>(static_cast<signed char>(scales[i]));
    out.offset = 0;
  }
  return out;
}

inline std::int64_t padded_inputs(const Matrix& matrix) {
  return matrix.row_blocks * groups_of_block(matrix.kind) * group_values;
}

template <class Run>
int with_quantised_kind(WeightKind kind, const Run& run) {
  switch (kind) {
    case WeightKind::q8_0: return run(std::integral_constant<WeightKind, WeightKind::q8_0>{});
    case WeightKind::q4_0: return run(std::integral_constant<WeightKind, WeightKind::q4_0>{});
    case WeightKind::q4_1: return run(std::integral_constant<WeightKind, WeightKind::q4_1>{});
    case WeightKind::q5_0: return run(std::integral_constant<WeightKind, WeightKind::q5_0>{});
    case WeightKind::q5_1: return run(std::integral_constant<WeightKind, WeightKind::q5_1>{});
    case WeightKind::mxfp4: return run(std::integral_constant<WeightKind, WeightKind::mxfp4>{});
    case WeightKind::iq4_nl: return run(std::integral_constant<WeightKind, WeightKind::iq4_nl>{});
    case WeightKind::q4_k: return run(std::integral_constant<WeightKind, WeightKind::q4_k>{});
    case WeightKind::q5_k: return run(std::integral_constant<WeightKind, WeightKind::q5_k>{});
    case WeightKind::iq4_xs: return run(std::integral_constant<WeightKind, WeightKind::iq4_xs>{});
    default: return run(std::integral_constant<WeightKind, WeightKind::q6_k>{});
  }
}

// ---- values ----

// Into row i from `column` on, as far as there are such columns.
template <class T>
__device__ inline void put_group(const ExpandTask& task, const Group& group, std::int64_t i, std::int64_t column) {
  constexpr int in_pack = 16 / sizeof(T);
  const std::int64_t inputs = task.matrix.inputs;
  T* const to = static_cast<T*>(task.out) + i * inputs + column;
  const bool whole = column >= 0 && column + group_values <= inputs && reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
#pragma unroll
  for (int first = 0; first < group_values; first += in_pack) {
    Pack<T, in_pack> pack;
#pragma unroll
    for (int k = 0; k < in_pack; ++k) {
      const int j = first + k;
      const auto q = static_cast<signed char>(group.q[j / 4] >> (8 * (j % 4)) & 0xffu);
      pack.of[k] = from_float<T>(group.scale[j / 16] * static_cast<float>(q) - group.offset);
    }
    if (whole) {
      store_pack(to + first, pack);
      continue;
    }
#pragma unroll
    for (int k = 0; k < in_pack; ++k)
      if (column + first + k >= 0 && column + first + k < inputs) to[first + k] = pack.of[k];
  }
}

// A thread for each group of each row that is wanted.
template <WeightKind kind>
__global__ void expand_kernel(const ExpandTask task, std::int64_t groups) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= task.count * groups) return;
  const std::int64_t i = place / groups, number = place % groups;
  const std::int64_t row = task.rows == nullptr ? i : task.rows[i] - task.first;
  const bool inside = row >= 0 && row < task.matrix.outputs;
  Group group{};
  if (inside) group = group_of<kind>(task.matrix, row, number);
  const std::int64_t column = number * group_values - task.matrix.skipped;
  if (task.out_element == Element::bf16)
    put_group<Bf16>(task, group, i, column);
  else
    put_group<float>(task, group, i, column);
}

inline int expand(const ExpandTask& task, void* stream) {
  constexpr int threads = 128;
  const std::int64_t groups = padded_inputs(task.matrix) / group_values;
  const dim3 grid(blocks_for(task.count * groups, threads));
  return with_quantised_kind(task.matrix.kind, [&](auto kind) {
    return launch(expand_kernel<kind()>, grid, threads, 0, stream, task, groups);
  });
}

}  // namespace motley::cuda
