// The paged cache of keys and values: writing, attention of decode's rows, reading.
#pragma once

#include "motley/engine/cuda/device.cuh"

namespace motley::cuda {

constexpr int scale_values = 32;  // elements of an int8 cache that share a scale

// Element (token `offset` of `block`, kv_head, i) of the keys and of the values.
__device__ __forceinline__ std::int64_t key_at(const CacheView& cache, std::int64_t block, int kv_head, int i,
                                               int offset) {
  return ((block * cache.kv_heads + kv_head) * cache.head_dim + i) * cache.block_tokens + offset;
}
__device__ __forceinline__ std::int64_t value_at(const CacheView& cache, std::int64_t block, int kv_head, int i,
                                                 int offset) {
  return ((block * cache.kv_heads + kv_head) * cache.block_tokens + offset) * cache.head_dim + i;
}
// Of both scales.
__device__ __forceinline__ std::int64_t scale_at(const CacheView& cache, std::int64_t block, int kv_head, int i,
                                                 int offset) {
  return ((block * cache.kv_heads + kv_head) * (cache.head_dim / scale_values) + i / scale_values) *
             cache.block_tokens +
         offset;
}

struct Rounded {
  std::int8_t element;
  Fp16 scale;
};

// One of 32 values that the lanes of a warp hold: the bits that the CPU's kernels make.
__device__ __forceinline__ Rounded quantised(float x) {
  const float scale = warp_maximum(fabsf(x)) / 127;
  const float inverse = scale == 0 ? 0.0f : 1 / scale;
  const float below_half = 0x1.fffffep-2f;  // a half would bring the number before it to 1
  const float ratio = __fmul_rn(x, inverse);
  const float whole = truncf(ratio + copysignf(below_half, ratio));
  return {static_cast<std::int8_t>(fminf(fmaxf(whole, -127.0f), 127.0f)), from_float<Fp16>(scale)};
}

constexpr int write_threads = 256;

// One block per row. Of int8, heads are whole warps of elements.
template <class T, class C>
__global__ void __launch_bounds__(write_threads) write_kernel(WriteTask task) {
  let_next_begin();
  wait_for_previous();
  const CacheView& cache = task.cache;
  const std::int64_t row = blockIdx.x, position = task.at.positions[row];
  const int count = cache.kv_heads * cache.head_dim;
  const std::int64_t block = task.at.table[static_cast<std::int64_t>(task.at.row_sequences[row]) * task.at.table_width +
                                           position / cache.block_tokens];
  const int offset = static_cast<int>(position % cache.block_tokens);
  const T* key = static_cast<const T*>(task.key) + row * count;
  const T* value = static_cast<const T*>(task.value) + row * count;
  auto* keys = static_cast<C*>(cache.keys);
  auto* values = static_cast<C*>(cache.values);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += write_threads) {
    const int head = i / cache.head_dim, dim = i % cache.head_dim;
    if constexpr (sizeof(C) == 1) {
      const Rounded k = quantised(to_float(key[i])), v = quantised(to_float(value[i]));
      keys[key_at(cache, block, head, dim, offset)] = k.element;
      values[value_at(cache, block, head, dim, offset)] = v.element;
      if (dim % scale_values == 0) {
        const std::int64_t at = scale_at(cache, block, head, dim, offset);
        static_cast<Fp16*>(cache.key_scales)[at] = k.scale;
        static_cast<Fp16*>(cache.value_scales)[at] = v.scale;
      }
    } else {
      keys[key_at(cache, block, head, dim, offset)] = from_float<C>(to_float(key[i]));
      values[value_at(cache, block, head, dim, offset)] = from_float<C>(to_float(value[i]));
    }
  }
}

// Calls task.template operator()<C>() with the type of the cache's elements.
template <class Task>
int with_cache(const CacheView& cache, const Task& task) {
  return cache.element == Element::int8 ? task.template operator()<std::int8_t>() : with_element(cache.element, task);
}

inline int write(const WriteTask& task, void* stream) {
  return with_element(task.element, [&]<class T>() {
    return with_cache(task.cache, [&]<class C>() {
      return launch(write_kernel<T, C>, dim3(static_cast<unsigned>(task.at.rows)), dim3(write_threads), 0, stream,
                    task);
    });
  });
}

constexpr int attend_threads = 128;
constexpr int attend_warps = attend_threads / warp_lanes;
constexpr int chunk_tokens = 128;  // scored at a time: four by each lane
constexpr int most_heads = 8;      // of one block's tile

// The row's place and the keys that it sees.
struct Range {
  const std::int32_t* blocks;
  std::int64_t first, last;
};

__device__ __forceinline__ Range range_of(const AttendTask& task, std::int64_t row, int split) {
  const std::int64_t last = task.at.positions[row] + 1, tokens = task.cache.block_tokens;
  const std::int64_t first = task.window > 0 && last > task.window ? last - task.window : 0;
  const std::int64_t start = first / tokens * tokens;
  // Whole blocks to each split.
  const std::int64_t share = ((last - start + tokens - 1) / tokens + task.splits - 1) / task.splits * tokens;
  const std::int64_t begin = start + split * share, end = begin + share;
  Range range{task.at.table + static_cast<std::int64_t>(task.at.row_sequences[row]) * task.at.table_width,
              begin > first ? begin : first, end < last ? end : last};
  if (range.first >= range.last) range.first = range.last = 0;
  return range;
}

// Floats of shared memory of a tile of G heads: queries [head_dim][G]; parts of scores [warps][G][chunk], over which
// the sums of values go at last; of each head the maximum, the sum, the factor of what was summed before.
template <int G>
constexpr int part_floats = attend_warps * G * chunk_tokens > 2048 ? attend_warps* G* chunk_tokens : 2048;
template <int G>
std::size_t attend_shared_bytes(int head_dim) {
  return (static_cast<std::size_t>(head_dim) * G + part_floats<G> + 3 * most_heads) * sizeof(float) +
         chunk_tokens * sizeof(uint2);
}

template <int G>
__device__ __forceinline__ Pack<float, G> load_query(const float* from) {
  if constexpr (G <= 4) {
    return load_pack<G>(from);
  } else {
    Pack<float, G> q;
#pragma unroll
    for (int g = 0; g < G; g += 4) {
      const Pack<float, 4> part = load_pack<4>(from + g);
#pragma unroll
      for (int i = 0; i < 4; ++i) q.of[g + i] = part.of[i];
    }
    return q;
  }
}

// sums[g][j] += query [U][G] times U elements of the keys of four tokens, whose loads are under way together. `keys`
// are of each token, or where blocks are of whole fours, of the first.
template <int U, int G, int B, class C>
__device__ __forceinline__ void score_steps(float (&sums)[G][4], const float* query, C const* const (&keys)[4],
                                            std::int64_t from, int stride) {
  Pack<C, 4> k[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if constexpr (B > 1) {
      k[u] = load_pack<4>(keys[0] + from + u * stride);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) k[u].of[j] = keys[j][from + u * stride];
    }
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const Pack<float, G> q = load_query<G>(query + u * G);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float x = to_float(k[u].of[j]);
#pragma unroll
      for (int g = 0; g < G; ++g) sums[g][j] += q.of[g] * x;
    }
  }
}

// Blocks that a multiprocessor holds at once: as many as their registers allow without spilling.
template <class C, int G, int B>
constexpr int attend_blocks_of() {
  if (G < 4) return 4;
  const int of_four = B == 1 ? 2 : sizeof(C) == 2 ? 4 : 3;
  return G == 8 ? of_four - 1 : of_four;
}

// B: 16 tokens of a block, or any multiple of 4, or (1) any number. grid (rows, KV heads x tiles of their query heads,
// splits). Warps divide the head's elements between them to score a chunk's tokens, and the chunk's tokens to sum
// values.
template <class C, int G, int B>
__global__ void __launch_bounds__(attend_threads, attend_blocks_of<C, G, B>()) attend_kernel(AttendTask task) {
  let_next_begin();
  wait_for_previous();
  constexpr bool scaled = sizeof(C) == 1;
  constexpr int N = scaled ? 8 : 16 / static_cast<int>(sizeof(C));  // elements of a value's pack
  constexpr int steps = scaled || B < 16 ? 8 : 16;                  // elements of a key that are loaded together
  constexpr int loads = G > 4 ? 2 : 4;                              // tokens whose values are
  const CacheView& cache = task.cache;
  const int tokens = B == 16 ? B : cache.block_tokens;  // of a block
  const int dims = cache.head_dim, thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_lanes, warp = thread / warp_lanes;
  const int group = task.heads / cache.kv_heads, tiles = (group + G - 1) / G;
  const int kv_head = static_cast<int>(blockIdx.y) / tiles, tile = static_cast<int>(blockIdx.y) % tiles;
  const int heads_here = group - tile * G < G ? group - tile * G : G;
  const std::int64_t row = blockIdx.x;
  const std::int64_t first_head = row * task.heads + kv_head * group + tile * G;
  const int split = static_cast<int>(blockIdx.z);

  float* query = dynamic_shared<float>();
  float* parts = query + dims * G;
  float* maxima = parts + part_floats<G>;
  float* totals = maxima + most_heads;
  float* factors = totals + most_heads;
  // Of tokens: which it is of all blocks' and KV heads', and which of its block's.
  auto* places = reinterpret_cast<uint2*>(factors + most_heads);

  for (int i = thread; i < dims * G; i += attend_threads) {
    const int g = i % G;
    const std::int64_t at = (first_head + g) * dims + i / G;
    float x = 0;
    if (g < heads_here)
      x = task.element == Element::fp32 ? static_cast<const float*>(task.query)[at]
                                        : to_float(static_cast<const Bf16*>(task.query)[at]);
    query[i] = x * task.scale * 1.44269504f;  // weights are powers of two
  }
  if (thread < G) {
    // The sink counts in one of the splits.
    const bool sink = task.sinks != nullptr && split == 0 && thread < heads_here;
    const int head = kv_head * group + tile * G + thread;
    maxima[thread] = -INFINITY;
    if (sink)
      maxima[thread] =
          1.44269504f * (task.element == Element::fp32 ? static_cast<const float*>(task.sinks)[head]
                                                       : to_float(static_cast<const Bf16*>(task.sinks)[head]));
    totals[thread] = sink ? 1 : 0;
  }

  const Range range = range_of(task, row, split);
  const int packs = dims / N, groups = attend_threads / packs;
  const int own_group = thread / packs, own_dim = thread % packs * N;
  float sums[G][N] = {};

  const int share = dims / attend_warps, first_dim = warp * share;  // of scores
  const auto* keys = static_cast<const C*>(cache.keys);
  const auto* values = static_cast<const C*>(cache.values);
  [[maybe_unused]] const auto* key_scales = static_cast<const Fp16*>(cache.key_scales);
  [[maybe_unused]] const auto* value_scales = static_cast<const Fp16*>(cache.value_scales);
  [[maybe_unused]] const int groups_of_scales = dims / scale_values;

#pragma unroll 1  // here and below: unrolled by itself, the compiler fills all registers
  for (std::int64_t chunk = range.first / 4 * 4; chunk < range.last; chunk += chunk_tokens) {
    const int from = chunk < range.first ? static_cast<int>(range.first - chunk) : 0;
    const int to = range.last - chunk < chunk_tokens ? static_cast<int>(range.last - chunk) : chunk_tokens;
    if (thread < to) {
      const int token = static_cast<int>(chunk) + thread, offset = token % tokens;
      places[thread] =
          make_uint2(static_cast<unsigned>((range.blocks[token / tokens] * cache.kv_heads + kv_head) * tokens + offset),
                     static_cast<unsigned>(offset));
    }
    __syncthreads();

    float scores[G][4] = {};
    const int own = lane * 4;
    if (own < to && own + 4 > from) {
      const C* own_keys[4];
      [[maybe_unused]] const Fp16* own_scales[4];
#pragma unroll
      for (int j = 0; j < (B > 1 ? 1 : 4); ++j) {
        const uint2 place = places[own + j < to ? own + j : to - 1];
        own_keys[j] = keys + static_cast<std::int64_t>(place.x - place.y) * dims + place.y;
        if constexpr (scaled)
          own_scales[j] = key_scales + static_cast<std::int64_t>(place.x - place.y) * groups_of_scales + place.y;
      }
      if constexpr (scaled) {
#pragma unroll 1
        for (int i = first_dim; i < first_dim + share; i += steps) {
          float stretch[G][4] = {};
          Pack<Fp16, 4> scale;
          const int at = i / scale_values * tokens;
          if constexpr (B > 1) {
            scale = load_pack<4>(own_scales[0] + at);
          } else {
            for (int j = 0; j < 4; ++j) scale.of[j] = own_scales[j][at];
          }
          score_steps<steps, G, B>(stretch, query + i * G, own_keys, static_cast<std::int64_t>(i) * tokens, tokens);
#pragma unroll
          for (int g = 0; g < G; ++g)
#pragma unroll
            for (int j = 0; j < 4; ++j) scores[g][j] += stretch[g][j] * to_float(scale.of[j]);
        }
      } else {
        int i = first_dim;
#pragma unroll 1
        for (; i + steps <= first_dim + share; i += steps)
          score_steps<steps, G, B>(scores, query + i * G, own_keys, static_cast<std::int64_t>(i) * tokens, tokens);
#pragma unroll 1
        for (; i < first_dim + share; i += 2)
          score_steps<2, G, B>(scores, query + i * G, own_keys, static_cast<std::int64_t>(i) * tokens, tokens);
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g)
      store_pack<4>(parts + (warp * G + g) * chunk_tokens + own,
                    Pack<float, 4>{scores[g][0], scores[g][1], scores[g][2], scores[g][3]});
    __syncthreads();

    // A warp makes weights of a head's scores, where its own part was.
#pragma unroll 1
    for (int g = warp; g < G; g += attend_warps) {
      float x[4] = {};
#pragma unroll
      for (int part = 0; part < attend_warps; ++part) {
        const Pack<float, 4> more = load_pack<4>(parts + (part * G + g) * chunk_tokens + own);
        for (int j = 0; j < 4; ++j) x[j] += more.of[j];
      }
      float maximum = maxima[g];
      for (int j = 0; j < 4; ++j) {
        if (own + j < from || own + j >= to) x[j] = -INFINITY;
        maximum = fmaxf(maximum, x[j]);
      }
      maximum = warp_maximum(maximum);
      Pack<float, 4> weights;
      float sum = 0;
      for (int j = 0; j < 4; ++j) {
        weights.of[j] = exp2f(x[j] - maximum);
        sum += weights.of[j];
      }
      store_pack<4>(parts + g * chunk_tokens + own, weights);
      sum = warp_sum(sum);
      if (lane == 0) {
        const float factor = exp2f(maxima[g] - maximum);
        factors[g] = factor;
        maxima[g] = maximum;
        totals[g] = totals[g] * factor + sum;
      }
    }
    __syncthreads();

    if (own_group < groups) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const float factor = factors[g];
#pragma unroll
        for (int i = 0; i < N; ++i) sums[g][i] *= factor;
      }
#pragma unroll 1
      for (int j = from + own_group; j < to; j += loads * groups) {
        Pack<C, N> v[loads];
        [[maybe_unused]] float scale[loads];
#pragma unroll
        for (int u = 0; u < loads; ++u) {
          const int token = j + u * groups;
          if (token >= to) continue;
          const uint2 place = places[token];
          v[u] = load_pack<N>(values + static_cast<std::int64_t>(place.x) * dims + own_dim);
          if constexpr (scaled)
            scale[u] = to_float(value_scales[static_cast<std::int64_t>(place.x - place.y) * groups_of_scales +
                                             own_dim / scale_values * tokens + static_cast<int>(place.y)]);
        }
#pragma unroll
        for (int u = 0; u < loads; ++u) {
          const int token = j + u * groups;
          if (token >= to) continue;
          float x[N];
#pragma unroll
          for (int i = 0; i < N; ++i) x[i] = to_float(v[u].of[i]);
#pragma unroll
          for (int g = 0; g < G; ++g) {
            float weight = parts[g * chunk_tokens + token];
            if constexpr (scaled) weight *= scale[u];
#pragma unroll
            for (int i = 0; i < N; ++i) sums[g][i] += weight * x[i];
          }
        }
      }
    }
    __syncthreads();
  }

  // What the groups summed of each head, by turns in two places.
#pragma unroll
  for (int g = 0; g < G; ++g) {
    float* of_groups = parts + g % 2 * 1024;  // [groups][dims]
    if (own_group < groups)
#pragma unroll
      for (int i = 0; i < N; i += 4)
        store_pack<4>(of_groups + own_group * dims + own_dim + i,
                      Pack<float, 4>{sums[g][i], sums[g][i + 1], sums[g][i + 2], sums[g][i + 3]});
    __syncthreads();
    if (g >= heads_here) continue;
    const std::int64_t head = first_head + g;
#pragma unroll 1
    for (int i = thread; i < dims; i += attend_threads) {
      float sum = 0;
#pragma unroll 1
      for (int k = 0; k < groups; ++k) sum += of_groups[k * dims + i];
      if (task.splits > 1)
        task.partial[(head * task.splits + split) * (dims + 2) + i] = sum;
      else if (task.element == Element::fp32)
        static_cast<float*>(task.out)[head * dims + i] = sum / totals[g];
      else
        static_cast<Bf16*>(task.out)[head * dims + i] = from_float<Bf16>(sum / totals[g]);
    }
    if (task.splits > 1 && thread == 0) {
      float* own_partial = task.partial + (head * task.splits + split) * (dims + 2) + dims;
      own_partial[0] = maxima[g];
      own_partial[1] = totals[g];
    }
  }
}

constexpr int most_splits = warp_lanes;  // of a row

// grid (rows x heads): the splits' sums into one. A split without keys has a maximum of -infinity and sums of 0. Each
// warp finds out for itself what the splits weigh: lane s of split s.
template <class T>
__global__ void __launch_bounds__(attend_threads) combine_kernel(AttendTask task) {
  let_next_begin();
  wait_for_previous();
  const int dims = task.cache.head_dim, lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t stride = dims + 2;
  const float* partial = task.partial + static_cast<std::int64_t>(blockIdx.x) * task.splits * stride;
  const bool has_split = lane < task.splits;
  const float own_maximum = has_split ? partial[lane * stride + dims] : -INFINITY;
  const float factor = exp2f(own_maximum - warp_maximum(own_maximum));  // 0 where there are no keys
  const float total = warp_sum(has_split ? factor * partial[lane * stride + dims + 1] : 0.0f);
  for (int first = 0; first < dims; first += attend_threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < task.splits; ++s) {
      const float weight = __shfl_sync(whole_warp, factor, s);
      if (i < dims) sum += weight * partial[s * stride + i];
    }
    if (i < dims)
      static_cast<T*>(task.out)[static_cast<std::int64_t>(blockIdx.x) * dims + i] = from_float<T>(sum / total);
  }
}

inline int attend(const AttendTask& task, void* stream) {
  const int group = task.heads / task.cache.kv_heads;
  const auto run = [&]<class C, int G, int B>() {
    const dim3 grid(static_cast<unsigned>(task.at.rows),
                    static_cast<unsigned>(task.cache.kv_heads * ((group + G - 1) / G)),
                    static_cast<unsigned>(task.splits));
    return launch(attend_kernel<C, G, B>, grid, dim3(attend_threads), attend_shared_bytes<G>(task.cache.head_dim),
                  stream, task);
  };
  const int error = with_cache(task.cache, [&]<class C>() {
    const int tokens = task.cache.block_tokens;
    if (tokens != 16) return tokens % 4 == 0 ? run.template operator()<C, 4, 4>() : run.template operator()<C, 4, 1>();
    if (group == 1) return run.template operator()<C, 1, 16>();
    if (group == 2) return run.template operator()<C, 2, 16>();
    return group <= 4 ? run.template operator()<C, 4, 16>() : run.template operator()<C, 8, 16>();
  });
  if (error != 0 || task.splits == 1) return error;
  return with_element(task.element, [&]<class T>() {
    return launch(combine_kernel<T>, dim3(static_cast<unsigned>(task.at.rows * task.heads)), dim3(attend_threads), 0,
                  stream, task);
  });
}

constexpr int gather_tile = 32, gather_rows = 8;

// grid (tiles of tokens, tiles of elements, KV heads), block (32, 8): keys are turned over in shared memory, so that
// neighbouring threads read and write neighbouring elements.
template <class C>
__global__ void __launch_bounds__(gather_tile* gather_rows) gather_kernel(GatherTask task) {
  let_next_begin();
  wait_for_previous();
  __shared__ float tile[gather_tile][gather_tile + 1];  // [element][token], apart by one for the banks' sake
  const CacheView& cache = task.cache;
  const std::int64_t first_token = static_cast<std::int64_t>(blockIdx.x) * gather_tile;
  const int first_dim = static_cast<int>(blockIdx.y) * gather_tile, head = static_cast<int>(blockIdx.z);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  if (first_token + x < task.tokens) {
    const std::int64_t block = task.blocks[(first_token + x) / cache.block_tokens];
    const int offset = static_cast<int>((first_token + x) % cache.block_tokens);
    for (int i = y; i < gather_tile && first_dim + i < cache.head_dim; i += gather_rows) {
      float key = to_float(static_cast<const C*>(cache.keys)[key_at(cache, block, head, first_dim + i, offset)]);
      if constexpr (sizeof(C) == 1)
        key *=
            to_float(static_cast<const Fp16*>(cache.key_scales)[scale_at(cache, block, head, first_dim + i, offset)]);
      tile[i][x] = key;
    }
  }
  __syncthreads();
  if (first_dim + x >= cache.head_dim) return;
  for (int i = y; i < gather_tile && first_token + i < task.tokens; i += gather_rows) {
    const std::int64_t token = first_token + i, block = task.blocks[token / cache.block_tokens];
    const int offset = static_cast<int>(token % cache.block_tokens);
    float value = to_float(static_cast<const C*>(cache.values)[value_at(cache, block, head, first_dim + x, offset)]);
    if constexpr (sizeof(C) == 1)
      value *=
          to_float(static_cast<const Fp16*>(cache.value_scales)[scale_at(cache, block, head, first_dim + x, offset)]);
    const std::int64_t at = (token * cache.kv_heads + head) * cache.head_dim + first_dim + x;
    static_cast<Bf16*>(task.keys)[at] = from_float<Bf16>(tile[x][i]);
    static_cast<Bf16*>(task.values)[at] = from_float<Bf16>(value);
  }
}

inline int gather(const GatherTask& task, void* stream) {
  return with_cache(task.cache, [&]<class C>() {
    const dim3 grid(blocks_for(task.tokens, gather_tile), blocks_for(task.cache.head_dim, gather_tile),
                    static_cast<unsigned>(task.cache.kv_heads));
    return launch(gather_kernel<C>, grid, dim3(gather_tile, gather_rows), 0, stream, task);
  });
}

}  // namespace motley::cuda
