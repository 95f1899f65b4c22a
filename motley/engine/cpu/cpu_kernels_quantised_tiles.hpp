// Products of many tokens with GGUF's quantised weights by AMX. Included by the set that has it, in the middle of
// cpu_kernels_quantised.hpp.
//
// The unpacked bytes of 32 values of a panel, step by step, are a tile already: [8 steps][16 rows][4 values]. It meets
// the inputs of 16 tokens as they lie. The whole numbers are those of the other products, and so are the results.

constexpr std::int64_t fewest_tile_tokens = 6;  // of fewer, vectors are faster

// Tiles 0 and 1: sums of 16 tokens and of what remains; 2 and 3: their inputs; 4: weights.
template <class W>
void configure_tiles(std::int64_t rest) {
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t tokens = i == 0 ? tile_height : rest;
    config.set(i, tokens, 64);
    config.set(2 + i, tokens, 32 / W::scale_groups);
  }
  config.set(4, 8 / W::scale_groups, 64);
  config.load();
}

// sums[token][row] of the weights of some steps. `rest`: of the tokens that remain.
template <bool rest>
[[gnu::always_inline]] inline void tile_sums(const ByteVec* weights, const std::int8_t* inputs, std::int64_t stride,
                                             IntVec* sums) {
  asm volatile("" ::"m"(*reinterpret_cast<const ByteVec(*)[8]>(weights)));  // loaded by the next line
  _tile_loadd(4, weights, 64);
  if constexpr (rest) {
    _tile_zero(1);
    _tile_loadd(3, inputs, stride);
    _tile_dpbsud(1, 3, 4);
    _tile_stored(1, sums, 64);
  } else {
    _tile_zero(0);
    _tile_loadd(2, inputs, stride);
    _tile_dpbsud(0, 2, 4);
    _tile_stored(0, sums, 64);
  }
}

// What the tiles make of some steps of 32 values, until it is added up. None where there is no `input`.
struct TiledPart {
  alignas(64) ByteVec weights[8];
  alignas(64) IntVec sums[tile_height];
  RowScales scales;
  const InputBlock* input = nullptr;
  int part = 0;  // of the 32 values
};

// A panel times `tokens`: 16, or those that remain. While the tiles multiply a part, what the one before made is added
// up, and the next is unpacked: what was just stored takes long to be read by tiles, and theirs by vectors.
template <class W, bool rest>
void panel_tiles(const std::byte* panel, std::int64_t blocks, const InputBlock* input, std::int64_t input_stride,
                 std::int64_t tokens, Vec* result) {
  constexpr int groups = W::block_values / 32, steps = 8 / W::scale_groups;
  constexpr std::int64_t bytes = lanes * W::block_bytes;
  Vec total[tile_height] = {};
  TiledPart parts[2];
  TiledPart *now = parts, *before = parts + 1;
  const auto add_up = [&](const TiledPart& made) {
    if (made.input == nullptr) return;
    const auto add = [&](std::int64_t t) {
      add_sums<W>(total[t], made.sums[t], made.scales, made.input[t * input_stride], made.part);
    };
    if constexpr (rest)
      for (std::int64_t t = 0; t < tokens; ++t) add(t);
    else
#pragma GCC unroll 16
      for (std::int64_t t = 0; t < tile_height; ++t) add(t);
  };
  for (std::int64_t b = 0; b < blocks; ++b, panel += bytes) {
    const auto header = W::header(panel);
    for (int group = 0; group < groups; ++group, ++input) {
      fetch_ahead<W>(panel, group);
#pragma GCC unroll 2
      for (int part = 0; part < W::scale_groups; ++part) {
#pragma GCC unroll 8
        for (int step = 0; step < steps; ++step) now->weights[step] = W::values(panel, group, part * steps + step);
        now->scales = W::scales(header, panel, group, part);
        add_up(*before);
        tile_sums<rest>(now->weights, input->values + part * 4 * steps,
                        input_stride * static_cast<std::int64_t>(sizeof(InputBlock)), now->sums);
        now->input = input;
        now->part = part;
        std::swap(now, before);
      }
    }
  }
  add_up(*before);
  std::copy_n(total, tokens, result);
}
