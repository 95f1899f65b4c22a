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

struct BlockMxfp4 {  // exponent_scale(exponent) * fp4_codes[q]
  std::uint8_t exponent;
  std::uint8_t low[16];
};
struct BlockIQ4NL {  // scale * iq4_codes[q]
  std::uint16_t scale;
  std::uint8_t low[16];
};
// 256 values in 8 groups of 32: scale * (s - 32) * iq4_codes[q]. Group g has the low four bits of its s in nibble g of
// `low_scales`, the upper two at bit 2 g of `high_scales`, and the bytes low[16 g ...], as a block of 32 has them.
struct BlockIQ4XS {
  std::uint16_t scale, high_scales;
  std::uint8_t low_scales[4];
  std::uint8_t low[128];
};

// What four bits stand for: twice the numbers of FP4 (one sign, two bits of exponent, one of mantissa), and numbers
// that lie closer together around zero, as weights do.
inline constexpr std::int8_t fp4_codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr std::int8_t iq4_codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);     // to the nearest, ties to even
float exponent_scale(std::uint8_t exponent);  // 2^(exponent - 128): subnormal of 0 and 1

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
