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

// A panel times `tokens`: 16, or those that remain. While the tiles multiply a group, what the one before made is added
// up, and the next is unpacked: what was just stored takes long to be read by tiles, and theirs by vectors.
template <class W, bool rest>
void panel_tiles(const std::byte* panel, std::int64_t blocks, const InputBlock* input, std::int64_t input_stride,
                 std::int64_t tokens, Vec* result) {
  constexpr int groups = W::block_values / 32, steps = 8 / W::scale_groups;
  constexpr std::int64_t bytes = lanes * W::block_bytes, ahead = 2048;
  Vec total[tile_height] = {};
  alignas(64) ByteVec weights[2][8];
  alignas(64) IntVec sums[2][tile_height];
  RowScales scales[2];
  int now = 0;
  const InputBlock* summed = nullptr;  // whose sums are still to be added up
  int summed_part = 0;
  const auto add_up = [&](const InputBlock* inputs, int part, int which) {
    const RowScales& rows = scales[which];
    const auto add = [&](std::int64_t t) {
      const InputBlock& x = inputs[t * input_stride];
      total[t] += __builtin_convertvector(sums[which][t], Vec) * (rows.scale * x.scale);
      if constexpr (W::has_offset) total[t] += rows.offset * (W::scale_groups == 1 ? x.sum : x.half_sums[part]);
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
      for (std::int64_t i = bytes * group / groups; i < bytes * (group + 1) / groups; i += 64)
        __builtin_prefetch(panel + ahead + i);
#pragma GCC unroll 2
      for (int part = 0; part < W::scale_groups; ++part) {
#pragma GCC unroll 8
        for (int step = 0; step < steps; ++step) weights[now][step] = W::values(panel, group, part * steps + step);
        scales[now] = W::scales(header, panel, group, part);
        if (summed) add_up(summed, summed_part, now ^ 1);
        tile_sums<rest>(weights[now], input->values + part * 4 * steps,
                        input_stride * static_cast<std::int64_t>(sizeof(InputBlock)), sums[now]);
        summed = input;
        summed_part = part;
        now ^= 1;
      }
    }
  }
  if (summed) add_up(summed, summed_part, now ^ 1);
  std::copy_n(total, tokens, result);
}
