// GGUF's quantised types: how values lie in blocks. Scales are fp16, as their bits.
#pragma once

#include <cstdint>

namespace motley {

// Value i of a block of 32 has its low four bits in nibble i / 16 of low[i % 16], and a fifth in bit i of `high`.
struct BlockQ8_0 {
  std::uint16_t scale;
  std::int8_t values[32];
};
struct BlockQ4_0 {  // scale * (q - 8)
  std::uint16_t scale;
  std::uint8_t low[16];
};
struct BlockQ4_1 {  // scale * q + least
  std::uint16_t scale, least;
  std::uint8_t low[16];
};
struct BlockQ5_0 {  // scale * (q - 16)
  std::uint16_t scale;
  std::uint8_t high[4];
  std::uint8_t low[16];
};
struct BlockQ5_1 {  // scale * q + least
  std::uint16_t scale, least;
  std::uint8_t high[4];
  std::uint8_t low[16];
};
// 256 values in 8 groups of 32: scale * s * q - offset * m, where each group has its s and m of 6 bits in `scales`:
// groups 0 to 3 in the low bits of bytes 0 to 3 (s) and 4 to 7 (m); of groups 4 to 7 the low four bits in the nibbles
// of bytes 8 to 11, the upper two above those of groups 0 to 3. Groups 2 k and 2 k + 1 share the bytes low[32 k ...];
// bit g of high[i % 32] is the fifth bit of group g.
struct BlockQ4K {
  std::uint16_t scale, offset;
  std::uint8_t scales[12];
  std::uint8_t low[128];
};
struct BlockQ5K {
  std::uint16_t scale, offset;
  std::uint8_t scales[12];
  std::uint8_t high[32];
  std::uint8_t low[128];
};
// 256 values in 16 groups of 16: scale * s * (q - 32). Each half of 128 values has 64 bytes of low nibbles and 32 bytes
// of two upper bits.
struct BlockQ6K {
  std::uint8_t low[128];
  std::uint8_t high[64];
  std::int8_t scales[16];
  std::uint16_t scale;
};

float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);  // to the nearest, ties to even

// Of a group of q4_k and q5_k, 0 to 63 each.
struct GroupScale {
  int scale = 0, offset = 0;
};
GroupScale group_scale(const std::uint8_t* scales, int group);

// Where value i of a q6_k block has its bits.
struct SixBitPlace {
  int low, low_shift, high, high_shift;
};
constexpr SixBitPlace six_bit_place(int i) {
  const int half = i / 128, quarter = i % 128 / 32, j = i % 32;
  return {half * 64 + quarter % 2 * 32 + j, quarter / 2 * 4, half * 32 + j, quarter * 2};
}

}  // namespace motley
