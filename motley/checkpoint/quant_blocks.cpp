#include "motley/checkpoint/quant_blocks.hpp"

#include <bit>
#include <cmath>

namespace motley {

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16, magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;
  return sign ? -subnormal : subnormal;
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;
  const auto half = [&](std::uint32_t of) { return static_cast<std::uint16_t>(sign | of); };
  if (magnitude > 0x7f800000U) return half(0x7e00);
  if (magnitude >= 0x477ff000U) return half(0x7c00);  // 65520 and beyond
  if (magnitude < 0x38800000U)  // below 2^-14: a multiple of 2^-24, rounded to the nearest even by the addition
    return half(std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U);
  return half((magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

float exponent_scale(std::uint8_t exponent) { return std::ldexp(1.0F, exponent - 128); }

GroupScale group_scale(const std::uint8_t* scales, int group) {
  if (group < 4) return {scales[group] & 63, scales[group + 4] & 63};
  return {(scales[group + 4] & 15) | scales[group - 4] >> 6 << 4, scales[group + 4] >> 4 | scales[group] >> 6 << 4};
}

}  // namespace motley
