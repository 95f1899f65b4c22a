// Products with few rows: a warp holds two rows of weights against all rows of the input, so that each weight is read
// once, at the memory's speed. Weights of quantised kinds meet inputs rounded to int8, of which each 32 share a scale.
#pragma once

#include <type_traits>

#include "motley/engine/cuda/device.cuh"
#include "motley/engine/cuda/kernels.hpp"
#include "motley/engine/cuda/rows.cuh"

namespace motley::cuda {

constexpr int product_threads = 128;
constexpr int product_warps = product_threads / 32;
constexpr int most_plain_rows = 8;       // beyond, tensor cores are faster than this
constexpr int most_quantised_rows = 16;  // alike
constexpr int group_values = 32;         // of a quantised row: what a lane takes at a time

// ---- which outputs a warp makes ----

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

__device__ inline void finish(const ProductTask& task, const Line (&lines)[2], int row, const float (&sums)[2]) {
  float values[2];
  for (int i = 0; i < 2; ++i) {
    const void* bias = task.bias[lines[i].matrix];
    values[i] = sums[i] + (bias != nullptr ? value_at(task.element, bias, lines[i].output) : 0.0f);
  }
  if (task.then == Then::gate)
    return put_at(task.out_element, task.out[0], row * task.out_stride[0] + lines[0].output,
                  activation(task.activation, values[0]) * values[1]);
  for (int i = 0; i < 2; ++i) {
    if (!lines[i].exists) continue;
    void* out = task.out[lines[i].matrix];
    const std::int64_t place = row * task.out_stride[lines[i].matrix] + lines[i].output;
    const float before = task.then == Then::add ? value_at(task.out_element, out, place) : 0.0f;
    put_at(task.out_element, out, place, before + values[i]);
  }
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
  host_grid::check_aligned(from, sizeof(uint4));
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

// ---- fp32 and bf16 ----

template <class T>
struct Sixteen;  // bytes of values
template <>
struct Sixteen<float> {
  static constexpr int count = 4;
  static __device__ void expand(const uint4& bits, float (&out)[4]) {
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
  static __device__ void expand(const uint4& bits, float (&out)[8]) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  static __device__ float one(Bf16 value) { return to_float(value); }
};

// `aligned`: rows of weights and inputs begin at multiples of 16 bytes.
template <class T, int rows, bool aligned>
__global__ void __launch_bounds__(product_threads) multiply_plain(const ProductTask task) {
  let_next_begin();
  using Values = Sixteen<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * product_warps + threadIdx.x / 32;
  Line lines[2];
  find_lines(task, pair, lines);
  if (!lines[0].exists) return;
  const std::int64_t inputs = task.matrix[0].inputs;
  const T* weights[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    weights[i] = static_cast<const T*>(task.matrix[lines[i].matrix].values) + lines[i].output * inputs;
  prefetch_rows(weights[0], weights[1], inputs * static_cast<std::int64_t>(sizeof(T)));
  wait_for_previous();
  const T* input = static_cast<const T*>(task.input);
  std::int64_t offsets[rows];
#pragma unroll
  for (int row = 0; row < rows; ++row) offsets[row] = (row < task.rows ? row : task.rows - 1) * task.input_stride;
  float sums[2][rows] = {};
  if constexpr (aligned) {
#pragma unroll 4
    for (std::int64_t k = lane * Values::count; k < inputs; k += 32 * Values::count) {
      float w[2][Values::count];
#pragma unroll
      for (int i = 0; i < 2; ++i) Values::expand(load_once(weights[i] + k), w[i]);
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        float x[Values::count];
        Values::expand(__ldg(reinterpret_cast<const uint4*>(input + offsets[row] + k)), x);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < Values::count; ++j) sums[i][row] += w[i][j] * x[j];
      }
    }
  } else {
    for (std::int64_t k = lane; k < inputs; k += 32)
      for (int row = 0; row < rows; ++row)
        for (int i = 0; i < 2; ++i) sums[i][row] += Values::one(weights[i][k]) * Values::one(input[offsets[row] + k]);
  }
  finish_all<rows>(task, lines, sums);
}

// ---- quantised kinds ----

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

// The fifth bits of four values, each at bit 4 of its byte.
__device__ inline unsigned fifth_bits(unsigned bits) {
  return ((bits & 1u) << 4) | ((bits & 2u) << 11) | ((bits & 4u) << 18) | ((bits & 8u) << 25);
}

__device__ inline void put_words(const uint4& from, unsigned* to) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
  to[3] = from.w;
}

// Of q4_k and q5_k: 16 bytes of a block, as BlockQ4K begins.
__device__ inline void scale_group(const uint4& head, int group, Group& out) {
  const int shift = 8 * (group % 4);
  const unsigned a = head.y >> shift & 0xffu, b = head.z >> shift & 0xffu, c = head.w >> shift & 0xffu;
  const unsigned scale = group < 4 ? a & 63u : (c & 15u) | (a >> 6) << 4;
  const unsigned offset = group < 4 ? b & 63u : c >> 4 | (b >> 6) << 4;
  out.scale[0] = out.scale[1] =
      to_float(__ushort_as_half(static_cast<unsigned short>(head.x & 0xffffu))) * static_cast<float>(scale);
  out.offset = to_float(__ushort_as_half(static_cast<unsigned short>(head.x >> 16))) * static_cast<float>(offset);
}

constexpr bool in_large_blocks(WeightKind kind) { return kind >= WeightKind::q4_k; }
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
    scale_group(load_near(at.plane<16>(kind == WeightKind::q5_k ? 160 : 128)), group, out);
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

template <WeightKind kind, int rows>
__global__ void __launch_bounds__(product_threads) multiply_quantised(const ProductTask task, std::int64_t padded) {
  let_next_begin();
  const RoundedInput input(task.scratch, task.rows, padded);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * product_warps + threadIdx.x / 32;
  Line lines[2];
  find_lines(task, pair, lines);
  if (!lines[0].exists) return;
  wait_for_previous();
  const std::int64_t groups = padded / group_values;
  float sums[2][rows] = {};
  for (std::int64_t number = lane; number < groups; number += 32) {
    Group weights[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) weights[i] = group_of<kind>(task.matrix[lines[i].matrix], lines[i].output, number);
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const std::int64_t at = row < task.rows ? row : task.rows - 1;
      const uint4* from = reinterpret_cast<const uint4*>(input.values + at * padded + number * group_values);
      unsigned x[8];
      put_words(__ldg(from), x);
      put_words(__ldg(from + 1), x + 4);
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
  finish_all<rows>(task, lines, sums);
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
#pragma unroll
  for (int j = 0; j < group_values; ++j) {
    const std::int64_t column = number * group_values + j - task.matrix.skipped;
    if (column < 0 || column >= task.matrix.inputs) continue;
    const auto q = static_cast<signed char>(group.q[j / 4] >> (8 * (j % 4)) & 0xffu);
    put_at(task.out_element, task.out, i * task.matrix.inputs + column,
           group.scale[j / 16] * static_cast<float>(q) - group.offset);
  }
}

// ---- launches ----

inline std::int64_t pairs_of(const ProductTask& task) {
  if (task.then == Then::gate) return task.matrix[0].outputs;
  std::int64_t lines = 0;
  for (int i = 0; i < task.matrices; ++i) lines += task.matrix[i].outputs;
  return (lines + 1) / 2;
}

inline std::int64_t padded_inputs(const Matrix& matrix) {
  return matrix.row_blocks * groups_of_block(matrix.kind) * group_values;
}

// Calls `run` with the smallest of 1, 2, 4, 8, ... that is not below `rows`, as a type.
template <int most, int tile = 1, class Run>
int with_row_tile(std::int64_t rows, const Run& run) {
  if constexpr (tile < most) {
    if (rows > tile) return with_row_tile<most, 2 * tile>(rows, run);
  }
  return run(std::integral_constant<int, tile>{});
}

template <class Run>
int with_quantised_kind(WeightKind kind, const Run& run) {
  switch (kind) {
    case WeightKind::q8_0: return run(std::integral_constant<WeightKind, WeightKind::q8_0>{});
    case WeightKind::q4_0: return run(std::integral_constant<WeightKind, WeightKind::q4_0>{});
    case WeightKind::q4_1: return run(std::integral_constant<WeightKind, WeightKind::q4_1>{});
    case WeightKind::q5_0: return run(std::integral_constant<WeightKind, WeightKind::q5_0>{});
    case WeightKind::q5_1: return run(std::integral_constant<WeightKind, WeightKind::q5_1>{});
    case WeightKind::q4_k: return run(std::integral_constant<WeightKind, WeightKind::q4_k>{});
    case WeightKind::q5_k: return run(std::integral_constant<WeightKind, WeightKind::q5_k>{});
    default: return run(std::integral_constant<WeightKind, WeightKind::q6_k>{});
  }
}

template <class T>
int product_of_plain(const ProductTask& task, void* stream) {
  const dim3 grid(blocks_for(pairs_of(task), product_warps));
  bool aligned = packs_fit<T>(task.matrix[0].inputs, task.input) && packs_fit<T>(task.input_stride);
  for (int i = 0; i < task.matrices; ++i)
    aligned = aligned && packs_fit<T>(task.matrix[i].inputs, task.matrix[i].values);
  return with_row_tile<most_plain_rows>(task.rows, [&](auto tile) {
    return aligned ? launch(multiply_plain<T, tile(), true>, grid, product_threads, 0, stream, task)
                   : launch(multiply_plain<T, tile(), false>, grid, product_threads, 0, stream, task);
  });
}

inline int product_of_quantised(const ProductTask& task, void* stream) {
  const std::int64_t padded = padded_inputs(task.matrix[0]);
  const dim3 of_input(blocks_for(padded / group_values, product_warps), static_cast<unsigned>(task.rows));
  if (const int error = launch(round_input, of_input, product_threads, 0, stream, task, padded)) return error;
  const dim3 grid(blocks_for(pairs_of(task), product_warps));
  return with_quantised_kind(task.matrix[0].kind, [&](auto kind) {
    return with_row_tile<most_quantised_rows>(task.rows, [&](auto tile) {
      return launch(multiply_quantised<kind(), tile()>, grid, product_threads, 0, stream, task, padded);
    });
  });
}

inline int product(const ProductTask& task, void* stream) {
  switch (task.matrix[0].kind) {
    case WeightKind::fp32: return product_of_plain<float>(task, stream);
    case WeightKind::bf16: return product_of_plain<Bf16>(task, stream);
    default: return product_of_quantised(task, stream);
  }
}

// Blocks of at most 256 values stick out on both sides.
inline std::int64_t product_scratch_bytes(std::int64_t rows, std::int64_t inputs) {
  const std::int64_t padded = (inputs + 511) / 256 * 256;
  return rows * (padded + padded / group_values * static_cast<std::int64_t>(sizeof(float2)));
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
