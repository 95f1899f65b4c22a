// Products with weights of fp32, bf16 and fp16. Included once per instruction set, after cpu_kernels_vectors.hpp.
//
// A dot product walks along the inputs, `lanes` of them at a time into as many sums, which are added up at the end of
// each stretch of `stretch_inputs`. So a token's result is the same in tiles of any shape.

constexpr std::int64_t stretch_inputs = 1024;

// The instruction that the compiler makes of `total + w * x`.
#if defined(MOTLEY_AVX2) || defined(MOTLEY_AVX512)
constexpr std::string_view fp32_product = "fp32 x fp32, `vfmadd`";
#else
constexpr std::string_view fp32_product = "fp32 x fp32";
#endif

// How weights of type W and activations meet. `Input`: of prepared inputs. A step takes `parts` vectors of inputs.
template <class W>
struct Dot {
  static constexpr std::string_view arithmetic = fp32_product;
  using Activation = float;
  using Input = float;
  using Register = Vec;
  static constexpr std::int64_t step = lanes;
  static constexpr int parts = 1;
  [[gnu::always_inline]] static Register weight(const W* p, int) { return load(p); }
  [[gnu::always_inline]] static Register input(const Input* p) { return load(p); }
  [[gnu::always_inline]] static Vec add(Vec total, Register w, Register x) { return total + w * x; }
  static void prepare(const float* from, std::int64_t count, Input* to) { std::copy_n(from, count, to); }
};
#ifdef MOTLEY_AVX512BF16
template <>
struct Dot<Bf16> {
  static constexpr std::string_view arithmetic = "bf16 x bf16, `vdpbf16ps`";
  using Activation = Bf16;
  using Input = Bf16;
  using Register = __m512bh;
  static constexpr std::int64_t step = 2 * lanes;
  static constexpr int parts = 1;
  [[gnu::always_inline]] static Register weight(const Bf16* p, int) {
    return reinterpret_cast<Register>(_mm512_loadu_si512(p));
  }
  [[gnu::always_inline]] static Register input(const Input* p) { return weight(p, 0); }
  [[gnu::always_inline]] static Vec add(Vec total, Register w, Register x) {
    return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(total), w, x));
  }
  static void prepare(const Bf16* from, std::int64_t count, Input* to) { std::copy_n(from, count, to); }
};
#else
// A vector of pairs of weights becomes those at even places and those at odd ones, by one operation each. Inputs are
// converted once for all rows, and lie in the same order.
template <>
struct Dot<Bf16> {
  static constexpr std::string_view arithmetic = fp32_product;
  using Activation = Bf16;
  using Input = float;
  using Register = Vec;
  static constexpr std::int64_t step = 2 * lanes;
  static constexpr int parts = 2;
  [[gnu::always_inline]] static Register weight(const Bf16* p, int part) {
    const BitVec pairs = *reinterpret_cast<const UnalignedBits*>(p);
    return reinterpret_cast<Vec>(part == 0 ? pairs << 16 : pairs & 0xffff0000U);
  }
  [[gnu::always_inline]] static Register input(const Input* p) { return load(p); }
  [[gnu::always_inline]] static Vec add(Vec total, Register w, Register x) { return total + w * x; }
  static void prepare(const Bf16* from, std::int64_t count, Input* to) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t inside = i % step;
      to[i - inside + inside % 2 * lanes + inside / 2] = to_float(from[i]);
    }
  }
};
#endif

template <class W>
using ActivationOf = typename Dot<W>::Activation;
template <class W>
using InputOf = typename Dot<W>::Input;

template <class W>
std::int64_t padded_inputs(std::int64_t inputs) {
  return (inputs + Dot<W>::step - 1) / Dot<W>::step * Dot<W>::step;
}
// An odd number of cache lines, so that tokens side by side do not fall into the same sets of a cache.
template <class W>
std::int64_t prepared_bytes(std::int64_t inputs) {
  constexpr std::int64_t line = 64;
  const std::int64_t bytes = padded_inputs<W>(inputs) * static_cast<std::int64_t>(sizeof(InputOf<W>));
  return ((bytes + line - 1) / line | 1) * line;
}
template <class W>
void prepare_input(const ActivationOf<W>* input, std::int64_t, std::int64_t, std::int64_t inputs, std::int64_t,
                   std::byte* prepared) {
  auto* to = reinterpret_cast<InputOf<W>*>(prepared);
  std::fill(to + inputs / Dot<W>::step * Dot<W>::step, to + padded_inputs<W>(inputs), InputOf<W>{});
  Dot<W>::prepare(input, inputs, to);
}

// Where a tile's sums go: sums[token * stride + row], which `fresh` ones start.
struct Sums {
  float* first;
  std::int64_t stride;
  bool fresh;
};

// R rows of the weight times C tokens, over inputs [0, count) of the stretch that `weight` and `input` point to.
// `ahead`: A rows that will be met later and are fetched meanwhile.
template <int R, int C, int A, class W>
inline void product_tile(const W* weight, std::int64_t weight_stride, const InputOf<W>* input,
                         std::int64_t input_stride, std::int64_t count, const W* ahead, const Sums& sums) {
  using D = Dot<W>;
  Vec total[R][C] = {};
  std::int64_t k = 0;
  const auto add_step = [&](const auto& weight_at) {
#pragma GCC unroll 2
    for (int part = 0; part < D::parts; ++part) {
      typename D::Register x[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) x[c] = D::input(input + c * input_stride + k + part * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto w = weight_at(r, part);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) total[r][c] = D::add(total[r][c], w, x[c]);
      }
    }
  };
  for (; k + D::step <= count; k += D::step) {
    if constexpr (A > 0)
#pragma GCC unroll 8
      for (int r = 0; r < A; ++r) __builtin_prefetch(ahead + r * weight_stride + k, 0, 2);
    add_step([&](int r, int part) { return D::weight(weight + r * weight_stride + k, part); });
  }
  if (const std::int64_t rest = count - k; rest > 0) {
    W padded[R][D::step] = {};
    for (int r = 0; r < R; ++r) std::copy_n(weight + r * weight_stride + k, rest, padded[r]);
    add_step([&](int r, int part) { return D::weight(padded[r], part); });
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float& to = sums.first[c * sums.stride + r];
      to = sums.fresh ? sum(total[r][c]) : to + sum(total[r][c]);
    }
}

// Tokens of a tile, and rows for that many tokens: their sums, the tokens' inputs and a weight fit the registers.
// Measured on AVX2: 3 x 3 reaches 1.3 times the products of 4 x 3, whose registers are one short, and of 2 x 6.
constexpr int tile_tokens = vector_bytes == 64 ? 4 : 3;
constexpr int tile_rows(int tokens) { return tokens == 1 ? 8 : vector_bytes == 64 || tokens == 2 ? 4 : 3; }

// What is fetched while a block of rows meets its tokens, tile by tile: each tile of tokens fetches a share of it, so
// that memory is never idle and no line is asked for twice.
template <class W>
struct Ahead {
  const W* first;      // of as many rows as the block has
  std::int64_t tiles;  // of tokens
  std::int64_t tile;   // which is next
};

// A block of rows times C tokens, over one stretch of inputs.
template <int C, class W>
inline void product_rows(const LinearTask<ActivationOf<W>>& task, std::int64_t row, std::int64_t last,
                         std::int64_t token, std::int64_t k, const Ahead<W>& ahead, Sums sums) {
  using Input = InputOf<W>;
  constexpr int R = tile_rows(C);
  const auto input_stride = task.input_bytes / static_cast<std::int64_t>(sizeof(Input));
  const Input* input = reinterpret_cast<const Input*>(task.input + token * task.input_bytes) + k;
  const W* weight = reinterpret_cast<const W*>(task.weight) + k;
  const std::int64_t count = std::min(stretch_inputs, task.inputs - k);
  // One token runs 1.03 to 1.17 times as fast without (AVX2, Zen 3), and 1.12 to 1.27 times in vectors of 16 bytes.
  constexpr bool fetches = C > 1 || vector_bytes == 64;
  const std::int64_t share = (R + ahead.tiles - 1) / ahead.tiles, fetched = ahead.tile * share;
  const auto tile = fetched >= R || !fetches ? product_tile<R, C, 0, W>
                    : share == 1             ? product_tile<R, C, 1, W>
                    : share == 2             ? product_tile<R, C, 2, W>
                                             : product_tile<R, C, R, W>;
  const W* next = ahead.first + fetched * task.inputs;
  for (; row + R <= last; row += R, sums.first += R, next += R * task.inputs)
    tile(weight + row * task.inputs, task.inputs, input, input_stride, count, next, sums);
  for (; row < last; ++row, ++sums.first)
    product_tile<1, C, 0, W>(weight + row * task.inputs, task.inputs, input, input_stride, count, nullptr, sums);
}

// Rows [first, last) times all tokens. While a stretch of the inputs of a tile's tokens is in the first-level cache, it
// meets a block of rows, which is in the second.
template <class W, class Out>
void multiply(const LinearTask<ActivationOf<W>>& task, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t block_rows = 48;  // a multiple of what tiles have
  const std::int64_t rows = task.tokens > tile_tokens ? block_rows : tile_rows(static_cast<int>(task.tokens));
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<std::size_t>(task.tokens * block_rows));
  for (std::int64_t row = first; row < last; row += rows) {
    const std::int64_t end = std::min(row + rows, last);
    for (std::int64_t k = 0; k == 0 || k < task.inputs; k += stretch_inputs) {
      // Of few tokens the same place of the next rows: theirs is another page, which the processor would not foresee.
      const bool here = task.tokens > tile_tokens && k + stretch_inputs < task.inputs;
      const std::int64_t then = here ? k + stretch_inputs : task.tokens > tile_tokens ? 0 : k;
      Ahead<W> ahead{reinterpret_cast<const W*>(task.weight) + (here ? row : row + rows) * task.inputs + then,
                     (task.tokens + tile_tokens - 1) / tile_tokens, 0};
      for (std::int64_t token = 0, tile = 0; token < task.tokens; token += tile, ++ahead.tile) {
        const std::int64_t rest = task.tokens - token, tiles = (rest + tile_tokens - 1) / tile_tokens;
        tile = (rest + tiles - 1) / tiles;
        const Sums sums{scratch.data() + token * block_rows, block_rows, k == 0};
        switch (tile) {
          case 1: product_rows<1>(task, row, end, token, k, ahead, sums); break;
          case 2: product_rows<2>(task, row, end, token, k, ahead, sums); break;
          case 3: product_rows<3>(task, row, end, token, k, ahead, sums); break;
          default: product_rows<4>(task, row, end, token, k, ahead, sums); break;
        }
      }
    }
    Out* output = static_cast<Out*>(task.output);
    for (std::int64_t token = 0; token < task.tokens; ++token)
      for (std::int64_t r = row; r < end; ++r)
        put(output + token * task.output_stride + r, scratch[static_cast<std::size_t>(token * block_rows + r - row)] +
                                                         (task.bias ? to_float(task.bias[r]) : 0.0f));
  }
}
