// Products with weights of bf16 by AMX, whose registers are tiles of 16 rows of 64 bytes. Included by the set that has
// it, after cpu_kernels_vectors.hpp.
//
// 32 inputs of the 16 rows of a panel (weight_panels.hpp) are a tile. It meets 16 tokens, whose inputs are interleaved
// in pairs: [inputs / 32][16 pairs][tokens][2]. A sum of a row and a token adds up 32 inputs at a time in an order that
// the processor fixes, whatever the tiles' sizes: so a token's result is the same in any batch.

// Rows and bytes of a row, tile by tile.
class TileConfig {
 public:
  void set(int tile, std::int64_t rows, std::int64_t bytes) {  // of no rows or bytes: not in use
    rows_[tile] = static_cast<std::uint8_t>(bytes > 0 ? rows : 0);
    row_bytes_[tile] = static_cast<std::uint16_t>(rows > 0 ? bytes : 0);
  }
  void load() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }

 private:
  std::uint8_t palette_ = 1, reserved_[15] = {};
  std::uint16_t row_bytes_[16] = {};
  std::uint8_t rows_[16] = {};
};

constexpr std::int64_t tile_height = 16, tile_width = 16, tile_inputs = 32;

inline std::int64_t tiles_of(std::int64_t inputs) { return (inputs + tile_inputs - 1) / tile_inputs; }

inline std::int64_t tiled_bytes(std::int64_t inputs) {
  return tiles_of(inputs) * tile_inputs * static_cast<std::int64_t>(sizeof(Bf16));
}

// vectors[i][j] becomes vectors[j][i].
[[gnu::always_inline]] inline void transpose(__m512i (&v)[16]) {
  __m512i a[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      v[i + 2 * half] = _mm512_unpacklo_epi64(a[i + half], a[i + half + 2]);
      v[i + 2 * half + 1] = _mm512_unpackhi_epi64(a[i + half], a[i + half + 2]);
    }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88),
                  odd_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88),
                  odd_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    a[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    a[i + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    a[i + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    a[i + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = a[i];
}

inline __mmask16 first_lanes(std::int64_t count) { return static_cast<__mmask16>((1U << count) - 1); }

inline void interleave(const Bf16* input, std::int64_t stride, std::int64_t tokens, std::int64_t inputs, std::int64_t,
                       std::byte* prepared) {
  const __mmask16 columns = first_lanes(tokens);
  for (std::int64_t k = 0; k < inputs; k += tile_inputs) {
    const auto values = static_cast<__mmask32>((std::uint64_t{1} << std::min(tile_inputs, inputs - k)) - 1);
    __m512i pairs[16];
    for (std::int64_t t = 0; t < tile_width; ++t)
      pairs[t] = t < tokens ? _mm512_maskz_loadu_epi16(values, input + t * stride + k) : _mm512_setzero_si512();
    transpose(pairs);
    for (std::int64_t pair = 0; pair < tile_inputs / 2; ++pair, prepared += tokens * 4)
      _mm512_mask_storeu_epi32(prepared, columns, pairs[pair]);
  }
}

// The sizes of tiles: `rows` of two panels and of their sums, `columns` of two groups of tokens. Sums are tiles 0 to 3,
// weights 4 and 5, tokens 6 and 7.
struct TileSizes {
  std::int64_t rows[2], columns[2];
  bool operator==(const TileSizes&) const = default;
  TileConfig config() const {
    TileConfig config;
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) config.set(2 * i + j, rows[i], 4 * columns[j]);
      config.set(4 + i, rows[i], 64);
      config.set(6 + i, tile_inputs / 2, 4 * columns[i]);
    }
    return config;
  }
};

// `steps` tiles of inputs. `last`: of each panel, the tile of weights whose rows end inside of it; null: none does.
inline void add_tiles(const Bf16* const (&panels)[2], const Bf16* const (&last)[2], std::int64_t steps,
                      const std::byte* const (&tokens)[2], const TileSizes& sizes) {
  const bool rows = sizes.rows[1] > 0, columns = sizes.columns[1] > 0;
  const std::int64_t a_stride = 4 * sizes.columns[0], b_stride = 4 * sizes.columns[1];
  _tile_zero(0);
  if (columns) _tile_zero(1);
  if (rows) _tile_zero(2);
  if (rows && columns) _tile_zero(3);
  for (std::int64_t step = 0; step < steps; ++step) {
    const bool padded = last[0] != nullptr && step + 1 == steps;
    _tile_loadd(4, padded ? last[0] : panels[0] + step * sizes.rows[0] * tile_inputs, 64);
    _tile_loadd(6, tokens[0] + step * 16 * a_stride, a_stride);
    _tile_dpbf16ps(0, 4, 6);
    if (columns) {
      _tile_loadd(7, tokens[1] + step * 16 * b_stride, b_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (rows) {
      _tile_loadd(5, padded ? last[1] : panels[1] + step * sizes.rows[1] * tile_inputs, 64);
      _tile_dpbf16ps(2, 5, 6);
      if (columns) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// Writes the sums of a tile: [rows][columns], of tokens whose outputs begin at `output`.
template <class Out>
inline void put_tile(const float* sums, std::int64_t rows, std::int64_t columns, const Bf16* bias, Out* output,
                     std::int64_t output_stride) {
  __m512i v[16];
  for (std::int64_t r = 0; r < 16; ++r)
    v[r] = r < rows ? _mm512_load_si512(sums + r * tile_width) : _mm512_setzero_si512();
  transpose(v);
  const Vec added = bias ? load_at(bias, rows) : Vec{};
  for (std::int64_t t = 0; t < columns; ++t)
    store_at(output + t * output_stride, reinterpret_cast<Vec>(v[t]) + added, rows);
}

// Rows [first, last) times all tokens.
template <class Out>
void multiply_tiles(const LinearTask<Bf16>& task, std::int64_t first, std::int64_t last) {
  const std::int64_t steps = tiles_of(task.inputs), rest = task.inputs % tile_inputs;
  const auto* weights = reinterpret_cast<const Bf16*>(task.weight);
  alignas(64) float sums[4][tile_height * tile_width];
  alignas(64) Bf16 padded[2][tile_height * tile_inputs] = {};
  TileSizes configured{};
  for (std::int64_t row = first; row < last; row += 2 * tile_height) {
    const std::int64_t rows = std::min(2 * tile_height, last - row);
    const std::int64_t panel_rows[2] = {std::min(rows, tile_height), std::max<std::int64_t>(rows - tile_height, 0)};
    const Bf16* const panels[2] = {weights + row * task.inputs, weights + (row + tile_height) * task.inputs};
    for (int i = 0; i < 2; ++i)
      for (std::int64_t r = 0; rest > 0 && r < panel_rows[i]; ++r)
        std::copy_n(panels[i] + (task.inputs - rest) * panel_rows[i] + r * rest, rest, padded[i] + r * tile_inputs);
    const Bf16* const tails[2] = {rest > 0 ? padded[0] : nullptr, padded[1]};
    for (std::int64_t token = 0; token < task.tokens; token += 2 * tile_width) {
      const std::int64_t tokens = std::min(2 * tile_width, task.tokens - token);
      const TileSizes sizes{{panel_rows[0], panel_rows[1]},
                            {std::min(tokens, tile_width), std::max<std::int64_t>(tokens - tile_width, 0)}};
      if (sizes != configured) (configured = sizes).config().load();
      const std::byte* input = task.input + token * task.input_bytes;
      asm volatile("" ::: "memory");  // the compiler does not see what tiles are loaded from
      add_tiles(panels, tails, steps, {input, input + tile_width * task.input_bytes}, sizes);
      const bool two_rows = sizes.rows[1] > 0, two_columns = sizes.columns[1] > 0;
      _tile_stored(0, sums[0], 4 * tile_width);
      if (two_columns) _tile_stored(1, sums[1], 4 * tile_width);
      if (two_rows) _tile_stored(2, sums[2], 4 * tile_width);
      if (two_rows && two_columns) _tile_stored(3, sums[3], 4 * tile_width);
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
          if (sizes.rows[i] > 0 && sizes.columns[j] > 0)
            put_tile(
                sums[2 * i + j], sizes.rows[i], sizes.columns[j],
                task.bias ? task.bias + row + i * tile_height : nullptr,
                static_cast<Out*>(task.output) + (token + j * tile_width) * task.output_stride + row + i * tile_height,
                task.output_stride);
    }
  }
  _tile_release();
}

inline constexpr Product<Bf16> tiled_product{
    tiled_bytes, interleave,      tile_width,     multiply_tiles<Bf16>,      multiply_tiles<float>,
    tile_height, 2 * tile_height, 2 * tile_width, "bf16 x bf16, `tdpbf16ps`"};
