// Included once per instruction set (cpu_kernels_*.cpp), inside a namespace of its own and under its `#pragma GCC
// target`. Vectors of 16 floats are the compiler's: one register with AVX-512, two with AVX2, four with SSE2.

constexpr std::int64_t lanes = 16;
typedef float Vec __attribute__((vector_size(64)));
typedef float UnalignedVec __attribute__((vector_size(64), aligned(4), may_alias));
typedef std::int32_t IntVec __attribute__((vector_size(64)));
typedef std::uint32_t BitVec __attribute__((vector_size(64)));
typedef std::uint16_t UnalignedHalves __attribute__((vector_size(32), aligned(2), may_alias));

[[gnu::always_inline]] inline Vec splat(float x) { return Vec{} + x; }
[[gnu::always_inline]] inline Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
[[gnu::always_inline]] inline Vec load(const Bf16* p) {
  const UnalignedHalves halves = *reinterpret_cast<const UnalignedHalves*>(p);
  return reinterpret_cast<Vec>(__builtin_convertvector(halves, BitVec) << 16);
}
[[gnu::always_inline]] inline void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
[[gnu::always_inline]] inline void store(Bf16* p, Vec v) {  // to the nearest, ties to even
  const BitVec bits = reinterpret_cast<BitVec>(v);
  const BitVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *reinterpret_cast<UnalignedHalves*>(p) = __builtin_convertvector(rounded, UnalignedHalves);
}
template <class T>
[[gnu::always_inline]] inline Vec load_part(const T* p, std::int64_t count) {
  T padded[lanes] = {};
  for (std::int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(padded);
}
template <class T>
[[gnu::always_inline]] inline void store_part(T* p, Vec v, std::int64_t count) {
  T padded[lanes];
  store(padded, v);
  for (std::int64_t i = 0; i < count; ++i) p[i] = padded[i];
}
// A vector of which only `count` elements exist: read with zeros for the rest, written without it.
template <class T>
[[gnu::always_inline]] inline Vec load_at(const T* p, std::int64_t count) {
  return count >= lanes ? load(p) : load_part(p, count);
}
template <class T>
[[gnu::always_inline]] inline void store_at(T* p, Vec v, std::int64_t count) {
  count >= lanes ? store(p, v) : store_part(p, v, count);
}
inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
inline void put(float* p, float x) { *p = x; }
inline void put(Bf16* p, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  p->bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

[[gnu::always_inline]] inline float sum(Vec v) {
  v += __builtin_shuffle(v, IntVec{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  v += __builtin_shuffle(v, IntVec{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  v += __builtin_shuffle(v, IntVec{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return v[0] + v[1];
}

// e^x to about one unit in the last place: 2^n * e^r with |r| <= ln(2)/2, e^r by a polynomial (Cephes' expf).
[[gnu::always_inline]] inline Vec exponential(Vec x) {
  x = x < splat(-87.0f) ? splat(-87.0f) : x;
  x = x > splat(88.0f) ? splat(88.0f) : x;
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  const Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const IntVec exponent = reinterpret_cast<IntVec>(shifted) - reinterpret_cast<IntVec>(magic);
  return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p) + (exponent << 23));
}

// ---- products ----

// How a dot product walks: `step` elements at a time into 16 fp32 sums.
template <class T>
struct Dot {
  static constexpr std::int64_t step = lanes;
  using Register = Vec;
  [[gnu::always_inline]] static Register read(const T* p) { return load(p); }
  [[gnu::always_inline]] static Vec add(Vec total, Register a, Register b) { return total + a * b; }
};
#ifdef MOTLEY_AVX512BF16
template <>
struct Dot<Bf16> {
  static constexpr std::int64_t step = 2 * lanes;
  using Register = __m512bh;
  [[gnu::always_inline]] static Register read(const Bf16* p) {
    return reinterpret_cast<Register>(_mm512_loadu_si512(p));
  }
  [[gnu::always_inline]] static Vec add(Vec total, Register a, Register b) {
    return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(total), a, b));
  }
};
#endif
template <class T>
inline typename Dot<T>::Register read_part(const T* p, std::int64_t count) {
  T padded[Dot<T>::step] = {};
  for (std::int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return Dot<T>::read(padded);
}

// R rows of the weight times C tokens.
template <int R, int C, class T, class Out>
inline void linear_tile(const LinearTask<T>& task, std::int64_t row, std::int64_t token) {
  using D = Dot<T>;
  const T* weight = task.weight + row * task.inputs;
  const T* input = task.input + token * task.input_stride;
  Vec total[R][C] = {};
  std::int64_t k = 0;
  for (; k + D::step <= task.inputs; k += D::step) {
    typename D::Register x[C];
    for (int c = 0; c < C; ++c) x[c] = D::read(input + c * task.input_stride + k);
    for (int r = 0; r < R; ++r) {
      const auto w = D::read(weight + r * task.inputs + k);
      if constexpr (C <= 4) __builtin_prefetch(weight + (R + r) * task.inputs + k, 0, 2);
      for (int c = 0; c < C; ++c) total[r][c] = D::add(total[r][c], w, x[c]);
    }
  }
  if (const std::int64_t rest = task.inputs - k; rest > 0)
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c)
        total[r][c] = D::add(total[r][c], read_part(weight + r * task.inputs + k, rest),
                             read_part(input + c * task.input_stride + k, rest));
  Out* output = static_cast<Out*>(task.output) + token * task.output_stride + row;
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      put(output + c * task.output_stride + r, sum(total[r][c]) + (task.bias ? to_float(task.bias[row + r]) : 0.0f));
}

// All tokens over R rows of the weight, which stay in the first-level cache meanwhile.
template <int R, class T, class Out>
inline void linear_rows(const LinearTask<T>& task, std::int64_t row) {
  std::int64_t token = 0;
  for (; token + 6 <= task.tokens; token += 6) linear_tile<R, 6, T, Out>(task, row, token);
  switch (task.tokens - token) {
    case 5: return linear_tile<R, 5, T, Out>(task, row, token);
    case 4: return linear_tile<R, 4, T, Out>(task, row, token);
    case 3: return linear_tile<R, 3, T, Out>(task, row, token);
    case 2: return linear_tile<R, 2, T, Out>(task, row, token);
    case 1: return linear_tile<R, 1, T, Out>(task, row, token);
    default: return;
  }
}

template <class T, class Out>
void linear(const LinearTask<T>& task, std::int64_t first, std::int64_t last) {
  std::int64_t row = first;
  if (task.tokens == 1)
    for (; row + 8 <= last; row += 8) linear_tile<8, 1, T, Out>(task, row, 0);
  for (; row + 4 <= last; row += 4) linear_rows<4, T, Out>(task, row);
  for (; row < last; ++row) linear_rows<1, T, Out>(task, row);
}

// ---- element by element ----

template <class T>
void norm(const NormTask<T>& task, std::int64_t first, std::int64_t last) {
  const std::int64_t n = task.columns;
  for (std::int64_t row = first; row < last; ++row) {
    const T* x = task.input + row * n;
    T* y = task.output + row * n;
    float mean = 0;
    if (task.kind == Norm::layer) {
      Vec total{};
      for (std::int64_t i = 0; i < n; i += lanes) total += load_at(x + i, n - i);
      mean = sum(total) / static_cast<float>(n);
    }
    Vec squares{};
    for (std::int64_t i = 0; i < n; i += lanes) {
      Vec d = load_at(x + i, n - i) - mean;
      if (n - i < lanes)  // padding is no part of the row
        for (std::int64_t lane = n - i; lane < lanes; ++lane) d[lane] = 0;
      squares += d * d;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + task.epsilon);
    for (std::int64_t i = 0; i < n; i += lanes) {
      Vec value = (load_at(x + i, n - i) - mean) * scale * load_at(task.weight + i, n - i);
      if (task.bias) value += load_at(task.bias + i, n - i);
      store_at(y + i, value, n - i);
    }
  }
}

template <class T>
void rotate(const RotaryTask<T>& task, std::int64_t first, std::int64_t last) {
  thread_local std::vector<float> waves;
  waves.resize(static_cast<std::size_t>(2 * task.pairs));
  float* cosine = waves.data();
  float* sine = cosine + task.pairs;
  for (std::int64_t token = first; token < last; ++token) {
    for (std::int64_t i = 0; i < task.pairs; ++i) {
      const float angle = static_cast<float>(task.positions[token]) * task.inverse_frequencies[i];
      cosine[i] = std::cos(angle) * task.amplitude;
      sine[i] = std::sin(angle) * task.amplitude;
    }
    for (std::int64_t head = 0; head < task.head_count; ++head) {
      T* a = task.heads + (token * task.head_count + head) * task.head_dim;
      T* b = a + task.pairs;
      for (std::int64_t i = 0; i < task.pairs; ++i) {
        const float x = to_float(a[i]), y = to_float(b[i]);
        put(a + i, x * cosine[i] - y * sine[i]);
        put(b + i, y * cosine[i] + x * sine[i]);
      }
    }
  }
}

[[gnu::always_inline]] inline Vec activation_of(Activation kind, Vec x) {
  switch (kind) {
    case Activation::silu: return x / (1.0f + exponential(-x));
    case Activation::gelu_tanh: {  // tanh(u) = 1 - 2 / (e^2u + 1)
      const Vec u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
      return x * (1.0f - 1.0f / (exponential(2.0f * u) + 1.0f));
    }
    case Activation::gelu: {
      for (int i = 0; i < lanes; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.7071067811865476f));
      return x;
    }
    case Activation::relu: return x > splat(0) ? x : splat(0);
  }
  return x;
}

template <class T>
void activate(Activation kind, T* values, const T* factors, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; i += lanes) {
    Vec value = activation_of(kind, load_at(values + i, last - i));
    if (factors) value *= load_at(factors + i, last - i);
    store_at(values + i, value, last - i);
  }
}

template <class T>
void add(T* total, const T* terms, const T* bias, std::int64_t columns, std::int64_t first, std::int64_t last) {
  if (!bias) {
    for (std::int64_t i = first; i < last; i += lanes)
      store_at(total + i, load_at(total + i, last - i) + load_at(terms + i, last - i), last - i);
    return;
  }
  for (std::int64_t i = first; i < last; ++i)
    put(total + i, to_float(total[i]) + (to_float(terms[i]) + to_float(bias[i % columns])));
}

// ---- attention ----

constexpr std::int64_t max_queries = 8;  // of one tile: rows x heads that share a KV head

// What a tile of queries carries while it walks over the keys (softmax with a running maximum). A partition of the keys
// begins at a fixed position, so that the order of all sums depends on positions alone.
struct Tile {
  std::int64_t count = 0;
  std::int64_t head_dim = 0;
  std::int64_t width = 0;           // tokens of a partition
  std::int64_t first[max_queries];  // keys that a query sees
  std::int64_t last[max_queries];
  float maximum[max_queries];
  float denominator[max_queries];
  float* query;   // [count][head_dim], scaled
  float* total;   // [count][head_dim padded to lanes]
  float* scores;  // [count][width]
  std::int64_t padded_dim() const { return (head_dim + lanes - 1) / lanes * lanes; }
};

// scores[q][at + j] = query[q] . keys[.][j] for the tokens j of one block, M queries at a time.
template <int M, class C>
inline void score_block(const Tile& tile, std::int64_t q, const C* keys, std::int64_t block_tokens, std::int64_t at) {
  const float* query = tile.query + q * tile.head_dim;
  float* scores = tile.scores + q * tile.width + at;
  for (std::int64_t j = 0; j < block_tokens; j += lanes) {
    const std::int64_t count = block_tokens - j;
    Vec total[M] = {};
    for (std::int64_t i = 0; i < tile.head_dim; ++i) {
      const Vec key = load_at(keys + i * block_tokens + j, count);
      for (int m = 0; m < M; ++m) total[m] += query[m * tile.head_dim + i] * key;
    }
    for (int m = 0; m < M; ++m) store_at(scores + m * tile.width + j, total[m], count);
  }
}

// total[q] += sum over the tokens j in [from, to) of one block of scores[q][at + j] * values[j].
template <int M, class C>
inline void weigh_block(Tile& tile, std::int64_t q, const C* values, std::int64_t from, std::int64_t to,
                        std::int64_t at) {
  const std::int64_t dim = tile.head_dim, padded = tile.padded_dim();
  const float* scores = tile.scores + q * tile.width + at;
  for (std::int64_t i = 0; i < dim; i += lanes) {
    Vec total[M];
    for (int m = 0; m < M; ++m) total[m] = load(tile.total + (q + m) * padded + i);
    for (std::int64_t j = from; j < to; ++j) {
      const Vec value = load_at(values + j * dim + i, dim - i);
      for (int m = 0; m < M; ++m) total[m] += scores[m * tile.width + j] * value;
    }
    for (int m = 0; m < M; ++m) store(tile.total + (q + m) * padded + i, total[m]);
  }
}

// Calls step.template operator()<M>(q) for groups of up to four of the tile's queries.
template <class Step>
inline void for_queries(std::int64_t count, const Step& step) {
  std::int64_t q = 0;
  for (; q + 4 <= count; q += 4) step.template operator()<4>(q);
  switch (count - q) {
    case 3: return step.template operator()<3>(q);
    case 2: return step.template operator()<2>(q);
    case 1: return step.template operator()<1>(q);
    default: return;
  }
}

// Turns a query's scores over the partition at [start, start + width) into weights, and rescales what was summed
// before.
inline void soften(Tile& tile, std::int64_t q, std::int64_t start) {
  float* scores = tile.scores + q * tile.width;
  const std::int64_t from = std::clamp(tile.first[q] - start, std::int64_t{0}, tile.width);
  const std::int64_t to = std::clamp(tile.last[q] - start, std::int64_t{0}, tile.width);
  for (std::int64_t j = 0; j < from; ++j) scores[j] = 0;
  for (std::int64_t j = std::max(from, to); j < tile.width; ++j) scores[j] = 0;
  if (from >= to) return;
  float maximum = tile.maximum[q];
  for (std::int64_t j = from; j < to; ++j) maximum = std::max(maximum, scores[j]);
  Vec weights{};
  for (std::int64_t j = from; j < to; j += lanes) {
    store_at(scores + j, exponential(load_at(scores + j, to - j) - maximum), to - j);
    weights += load_at(scores + j, to - j);
  }
  const float rescale = std::exp(tile.maximum[q] - maximum);  // 0 at the first partition
  tile.maximum[q] = maximum;
  tile.denominator[q] = tile.denominator[q] * rescale + sum(weights);
  float* total = tile.total + q * tile.padded_dim();
  for (std::int64_t i = 0; i < tile.padded_dim(); i += lanes) store(total + i, load(total + i) * rescale);
}

template <class T, class C>
inline void attend_tile(const AttentionTask<T, C>& task, std::int64_t kv_head, Tile& tile) {
  const std::int64_t low = *std::min_element(tile.first, tile.first + tile.count);
  const std::int64_t high = *std::max_element(tile.last, tile.last + tile.count);
  const std::int64_t block_elements = task.block_tokens * task.head_dim;
  const auto block_at = [&](std::int64_t token) {
    return (task.blocks[token / task.block_tokens] * task.kv_heads + kv_head) * block_elements;
  };
  for (std::int64_t start = low / tile.width * tile.width; start < high; start += tile.width) {
    const std::int64_t end = std::min(start + tile.width, high);
    for (std::int64_t token = start; token < end; token += task.block_tokens)
      for_queries(tile.count, [&]<int M>(std::int64_t q) {
        score_block<M>(tile, q, task.keys + block_at(token), task.block_tokens, token - start);
      });
    for (std::int64_t q = 0; q < tile.count; ++q) soften(tile, q, start);
    for (std::int64_t token = start; token < end; token += task.block_tokens) {
      const std::int64_t from = std::max(low - token, std::int64_t{0});
      const std::int64_t to = std::min(task.block_tokens, high - token);
      for_queries(tile.count, [&]<int M>(std::int64_t q) {
        weigh_block<M>(tile, q, task.values + block_at(token), from, to, token - start);
      });
    }
  }
}

template <class T, class C>
void attend(const AttentionTask<T, C>& task, std::int64_t kv_head, std::int64_t row_first, std::int64_t row_last) {
  const std::int64_t group = task.heads / task.kv_heads, dim = task.head_dim;
  Tile tile;
  tile.head_dim = dim;
  tile.width = task.block_tokens * std::max<std::int64_t>(1, 64 / task.block_tokens);
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<std::size_t>(max_queries * (dim + tile.padded_dim() + tile.width)));
  tile.query = scratch.data();
  tile.total = tile.query + max_queries * dim;
  tile.scores = tile.total + max_queries * tile.padded_dim();
  const std::int64_t queries = (row_last - row_first) * group;
  const auto offset_of = [&](std::int64_t query) {
    return ((row_first + query / group) * task.heads + kv_head * group + query % group) * dim;
  };
  for (std::int64_t begin = 0; begin < queries; begin += max_queries) {
    tile.count = std::min(max_queries, queries - begin);
    for (std::int64_t q = 0; q < tile.count; ++q) {
      const T* from = task.query + offset_of(begin + q);
      for (std::int64_t i = 0; i < dim; ++i) tile.query[q * dim + i] = to_float(from[i]) * task.scale;
      tile.last[q] = task.position + row_first + (begin + q) / group + 1;
      tile.first[q] = task.window > 0 ? std::max<std::int64_t>(0, tile.last[q] - task.window) : 0;
      tile.maximum[q] = -std::numeric_limits<float>::infinity();
      tile.denominator[q] = 0;
    }
    std::fill_n(tile.total, tile.count * tile.padded_dim(), 0.0f);
    attend_tile(task, kv_head, tile);
    for (std::int64_t q = 0; q < tile.count; ++q) {
      T* to = task.output + offset_of(begin + q);
      const float* total = tile.total + q * tile.padded_dim();
      for (std::int64_t i = 0; i < dim; ++i) put(to + i, total[i] / tile.denominator[q]);
    }
  }
}

template <class T>
const CpuKernels<T>& kernels() {
  static const CpuKernels<T> table{instructions, linear<T, T>, linear<T, float>, norm<T>,        rotate<T>,
                                   activate<T>,  add<T>,       attend<T, float>, attend<T, Bf16>};
  return table;
}
