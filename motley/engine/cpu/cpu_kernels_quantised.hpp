// Products with GGUF's quantised weights. Included once per instruction set, after cpu_kernels_vectors.hpp.
//
// Inputs are quantised to 8 bits by blocks of 32 with a scale each. A lane of a vector is a row of a panel
// (weight_panels.hpp): four products at a time are summed in it as whole numbers, and at the end of each block, in
// fp32, what they make is added to the row's result. So a result depends on neither batch nor threads.

typedef std::uint8_t ByteVec __attribute__((vector_size(vector_bytes)));
typedef std::uint8_t UnalignedByteVec __attribute__((vector_size(vector_bytes), aligned(1), may_alias));
typedef std::int8_t SignedByteVec __attribute__((vector_size(vector_bytes)));
typedef std::int16_t ShortVec __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t UnsignedShortVec __attribute__((vector_size(vector_bytes)));

// 32 inputs: values[i] * scale. `sum` is that of all, `half_sums` those of each 16.
struct InputBlock {
  std::int8_t values[32];
  float scale, sum, half_sums[2];
};

// Four inputs, for all rows.
[[gnu::always_inline]] inline SignedByteVec four_inputs(const std::int8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, sizeof four);
  return reinterpret_cast<SignedByteVec>(IntVec{} + four);
}
[[gnu::always_inline]] inline ByteVec load_bytes(const std::byte* p) {
  return *reinterpret_cast<const UnalignedByteVec*>(p);
}
// fp16 of all rows.
[[gnu::always_inline]] inline Vec load_halves(const std::byte* p) { return load(reinterpret_cast<const Fp16*>(p)); }
[[gnu::always_inline]] inline ByteVec shifted(ByteVec v, int bits) {  // across the borders of bytes: to be masked
  return reinterpret_cast<ByteVec>(reinterpret_cast<UnsignedShortVec>(v) >> static_cast<std::uint16_t>(bits));
}

// Sums of products u x of bytes: of pairs in 16 bits, which hold a few, or right away of four in 32 bits.
#if defined(MOTLEY_VNNI)
#if defined(MOTLEY_AMX)
constexpr std::string_view byte_product = "int8 x int8, `tdpbsud`; of few tokens `vpdpbusd`";
#else
constexpr std::string_view byte_product = "int8 x int8, `vpdpbusd`";
#endif
using Products = IntVec;
[[gnu::always_inline]] inline Products add_products(Products total, ByteVec u, SignedByteVec x) {
  return reinterpret_cast<IntVec>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total), reinterpret_cast<__m512i>(u),
                                                      reinterpret_cast<__m512i>(x)));
}
[[gnu::always_inline]] inline IntVec sums_of_four(Products products) { return products; }
#else
#if defined(MOTLEY_AVX2) || defined(MOTLEY_AVX512)
constexpr std::string_view byte_product = "int8 x int8, `vpmaddubsw`";
#else
constexpr std::string_view byte_product = "int8 x int8";
#endif
using Products = ShortVec;
// The empty instruction takes the sum: GCC 12 would compute all terms of several sums first, which do not fit the
// registers, and add them up afterwards.
[[gnu::always_inline]] inline Products add_products(Products total, ByteVec u, SignedByteVec x) {
#if defined(MOTLEY_AVX512)
  total += reinterpret_cast<ShortVec>(_mm512_maddubs_epi16(reinterpret_cast<__m512i>(u), reinterpret_cast<__m512i>(x)));
  asm("" : "+v"(total));
  return total;
#elif defined(MOTLEY_AVX2)
  total += reinterpret_cast<ShortVec>(_mm256_maddubs_epi16(reinterpret_cast<__m256i>(u), reinterpret_cast<__m256i>(x)));
  asm("" : "+x"(total));
  return total;
#else
  const ShortVec us = reinterpret_cast<ShortVec>(u), xs = reinterpret_cast<ShortVec>(x);
  return total + (us & 0xff) * ((xs << 8) >> 8) + reinterpret_cast<ShortVec>(shifted(u, 8)) * (xs >> 8);
#endif
}
[[gnu::always_inline]] inline IntVec sums_of_four(Products products) {
#if defined(MOTLEY_AVX512)
  return reinterpret_cast<IntVec>(_mm512_madd_epi16(reinterpret_cast<__m512i>(products), _mm512_set1_epi16(1)));
#elif defined(MOTLEY_AVX2)
  return reinterpret_cast<IntVec>(_mm256_madd_epi16(reinterpret_cast<__m256i>(products), _mm256_set1_epi16(1)));
#else
  const IntVec pairs = reinterpret_cast<IntVec>(products);
  return ((pairs << 16) >> 16) + (pairs >> 16);
#endif
}
#endif

#include "motley/engine/cpu/cpu_kernels_block_types.hpp"

// ---- products ----

template <int block_values>
std::int64_t block_count(std::int64_t inputs) {
  return (inputs + block_values - 1) / block_values;
}
template <int block_values>
std::int64_t quantised_bytes(std::int64_t inputs) {
  return block_count<block_values>(inputs) * (block_values / 32) * static_cast<std::int64_t>(sizeof(InputBlock));
}

inline void quantise_block(const float* values, InputBlock& block) {
  Vec most{};
  for (std::int64_t i = 0; i < 32; i += lanes) {
    const Vec v = load(values + i), size = v < 0 ? -v : v;
    most = size > most ? size : most;
  }
  const float size = largest(most), scale = size / 127, inverse = size > 0 ? 127 / size : 0;
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  float sums[2] = {};
  for (std::int64_t i = 0; i < 32; i += lanes) {
    const Vec shifted = load(values + i) * inverse + magic;
    store_bytes(block.values + i, reinterpret_cast<IntVec>(shifted) - reinterpret_cast<IntVec>(magic));
    sums[i / 16] += sum(shifted - magic);
  }
  block.scale = scale;
  block.sum = scale * (sums[0] + sums[1]);
  for (int half = 0; half < 2; ++half) block.half_sums[half] = scale * sums[half];
}

// For all types of weights whose blocks are so long.
template <int block_values>
void quantise_input(const float* input, std::int64_t, std::int64_t, std::int64_t inputs, std::int64_t skipped,
                    std::byte* prepared) {
  auto* blocks = reinterpret_cast<InputBlock*>(prepared);
  const std::int64_t end = block_count<block_values>(skipped + inputs) * block_values;
  for (std::int64_t at = 0; at < end; at += 32) {
    const std::int64_t first = at - skipped;  // of the inputs
    if (first >= 0 && first + 32 <= inputs) {
      quantise_block(input + first, blocks[at / 32]);
      continue;
    }
    float padded[32] = {};
    for (std::int64_t i = std::max<std::int64_t>(0, -first); i < 32 && first + i < inputs; ++i)
      padded[i] = input[first + i];
    quantise_block(padded, blocks[at / 32]);
  }
}

// What is needed soon of a panel, while one group of a block is computed with.
template <class W>
[[gnu::always_inline]] inline void fetch_ahead(const std::byte* panel, int group) {
  constexpr std::int64_t groups = W::block_values / 32, bytes = lanes * W::block_bytes, ahead = 2048;
  for (std::int64_t i = bytes * group / groups; i < bytes * (group + 1) / groups; i += 64)
    __builtin_prefetch(panel + ahead + i);
}

// Adds what the whole-numbered sums of a part of a group make to a token's results.
template <class W>
[[gnu::always_inline]] inline void add_sums(Vec& total, IntVec sums, const RowScales& rows, const InputBlock& x,
                                            int part) {
  total += __builtin_convertvector(sums, Vec) * (rows.scale * x.scale);
  if constexpr (W::has_offset) total += rows.offset * (W::scale_groups == 1 ? x.sum : x.half_sums[part]);
}

constexpr std::int64_t panel_tokens = 4;  // that a panel meets at a time, at most

// A panel times C tokens.
template <class W, int C>
inline void panel_tile(const std::byte* panel, std::int64_t blocks, const InputBlock* input, std::int64_t input_stride,
                       Vec* result) {
  constexpr int groups = W::block_values / 32;
  constexpr std::int64_t bytes = lanes * W::block_bytes;
  Vec total[C] = {};
  for (std::int64_t b = 0; b < blocks; ++b, panel += bytes) {
    const auto header = W::header(panel);
    for (int group = 0; group < groups; ++group, ++input) {
      fetch_ahead<W>(panel, group);
#pragma GCC unroll 2
      for (int part = 0; part < W::scale_groups; ++part) {
        constexpr int steps = 8 / W::scale_groups;
        constexpr int summed_steps = std::is_same_v<Products, IntVec> ? steps : W::summed_steps;
        IntVec sums[C] = {};
#pragma GCC unroll 8
        for (int first = part * steps; first < (part + 1) * steps; first += summed_steps) {
          Products products[C] = {};
#pragma GCC unroll 8
          for (int step = first; step < first + summed_steps; ++step) {
            const ByteVec values = W::values(panel, group, step);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
              products[c] = W::add(products[c], values, four_inputs(input[c * input_stride].values + 4 * step));
          }
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) sums[c] += sums_of_four(products[c]);
        }
        const RowScales rows = W::scales(header, panel, group, part);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) add_sums<W>(total[c], sums[c], rows, input[c * input_stride], part);
      }
    }
  }
  for (int c = 0; c < C; ++c) result[c] = total[c];
}

#ifdef MOTLEY_AMX
#include "motley/engine/cpu/cpu_kernels_quantised_tiles.hpp"
constexpr std::int64_t most_together = tile_height;
#else
constexpr std::int64_t most_together = panel_tokens;
#endif

template <class W>
void multiply_quantised(const LinearTask<float>& task, std::int64_t first, std::int64_t last) {
  const std::int64_t blocks = block_count<W::block_values>(task.inputs), row_bytes = blocks * W::block_bytes;
  const std::int64_t input_stride = task.input_bytes / static_cast<std::int64_t>(sizeof(InputBlock));
  thread_local std::vector<std::byte> padded, rows;
#ifdef MOTLEY_AMX
  if (task.tokens >= fewest_tile_tokens) configure_tiles<W>(task.tokens % tile_height);
#endif
  for (std::int64_t row = first; row < last; row += lanes) {
    const std::byte* panel = task.weight + row * row_bytes;
    const std::int64_t count = std::min(lanes, task.outputs - row);
    if (count < lanes) {  // as if it had rows of zeros, too
      rows.assign(static_cast<std::size_t>(lanes * row_bytes), std::byte{});
      padded.resize(rows.size());
      unlay_panel(W::type, panel, count, row_bytes, rows.data());
      lay_panel(W::type, rows.data(), lanes, row_bytes, padded.data());
      panel = padded.data();
    }
    const Vec bias = task.bias ? load_at(task.bias + row, count) : Vec{};
    for (std::int64_t token = 0, tile = 0; token < task.tokens; token += tile) {
      const std::int64_t rest = task.tokens - token, tiles = (rest + panel_tokens - 1) / panel_tokens;
      const auto* input = reinterpret_cast<const InputBlock*>(task.input + token * task.input_bytes);
      Vec result[most_together];
#ifdef MOTLEY_AMX
      if (rest >= fewest_tile_tokens) {
        tile = std::min(rest, tile_height);
        (rest < tile_height ? panel_tiles<W, true> : panel_tiles<W, false>)(panel, blocks, input, input_stride, tile,
                                                                            result);
      } else
#endif
      {
        tile = (rest + tiles - 1) / tiles;
        switch (tile) {
          case 1: panel_tile<W, 1>(panel, blocks, input, input_stride, result); break;
          case 2: panel_tile<W, 2>(panel, blocks, input, input_stride, result); break;
          case 3: panel_tile<W, 3>(panel, blocks, input, input_stride, result); break;
          default: panel_tile<W, 4>(panel, blocks, input, input_stride, result); break;
        }
      }
      for (std::int64_t c = 0; c < tile; ++c)
        store_at(static_cast<float*>(task.output) + (token + c) * task.output_stride + row, result[c] + bias, count);
    }
  }
#ifdef MOTLEY_AMX
  if (task.tokens >= fewest_tile_tokens) _tile_release();
#endif
}

template <class W>
inline constexpr Product<float> quantised_product{quantised_bytes<W::block_values>,
                                                  quantise_input<W::block_values>,
                                                  1,
                                                  multiply_quantised<W>,
                                                  multiply_quantised<W>,
                                                  lanes,
                                                  lanes,
                                                  most_together,
                                                  byte_product};

inline const Product<float>* quantised_product_of(DType type) {
  switch (type) {
    case DType::q8_0: return &quantised_product<EightBits>;
    case DType::q4_0: return &quantised_product<FourBits>;
    case DType::q4_1: return &quantised_product<FourBitsOffset>;
    case DType::q5_0: return &quantised_product<FiveBits>;
    case DType::q5_1: return &quantised_product<FiveBitsOffset>;
    case DType::q4_k: return &quantised_product<FourBitGroups>;
    case DType::q5_k: return &quantised_product<FiveBitGroups>;
    case DType::q6_k: return &quantised_product<SixBitGroups>;
    case DType::mxfp4: return &quantised_product<Fp4Codes>;
    case DType::iq4_nl: return &quantised_product<FourBitCodes>;
    case DType::iq4_xs: return &quantised_product<FourBitCodeGroups>;
    default: return nullptr;
  }
}
