#include "motley/checkpoint/quants.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "motley/base/error.hpp"
#include "motley/checkpoint/quant_search.hpp"

namespace motley {
namespace {

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ4K) == 144 && sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210);
static_assert(sizeof(BlockMxfp4) == 17 && sizeof(BlockIQ4NL) == 18 && sizeof(BlockIQ4XS) == 136);

// ---- blocks to values ----

int low_of(const std::uint8_t* low, int i) { return low[i % 16] >> (i / 16 * 4) & 15; }
int high_of(const std::uint8_t* high, int i) { return high[i / 8] >> (i % 8) & 1; }

void dequantise(const BlockQ8_0& block, float* out) {
  const float scale = half_to_float(block.scale);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(block.values[i]) * scale;
}

void dequantise(const BlockQ4_0& block, float* out) {
  const float scale = half_to_float(block.scale);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(low_of(block.low, i) - 8);
}

void dequantise(const BlockQ4_1& block, float* out) {
  const float scale = half_to_float(block.scale), least = half_to_float(block.least);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(low_of(block.low, i)) + least;
}

void dequantise(const BlockQ5_0& block, float* out) {
  const float scale = half_to_float(block.scale);
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>((low_of(block.low, i) | high_of(block.high, i) << 4) - 16);
}

void dequantise(const BlockQ5_1& block, float* out) {
  const float scale = half_to_float(block.scale), least = half_to_float(block.least);
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(low_of(block.low, i) | high_of(block.high, i) << 4) + least;
}

// q4_k, and q5_k where `high` is given.
void dequantise_groups(std::uint16_t scale_bits, std::uint16_t offset_bits, const std::uint8_t* scales,
                       const std::uint8_t* low, const std::uint8_t* high, float* out) {
  const float scale = half_to_float(scale_bits), offset = half_to_float(offset_bits);
  for (int group = 0; group < 8; ++group) {
    const GroupScale packed = group_scale(scales, group);
    const float d = scale * static_cast<float>(packed.scale), m = offset * static_cast<float>(packed.offset);
    for (int i = 0; i < 32; ++i) {
      int q = low[group / 2 * 32 + i] >> (group % 2 * 4) & 15;
      if (high) q |= (high[i] >> group & 1) << 4;
      out[group * 32 + i] = d * static_cast<float>(q) - m;
    }
  }
}

void dequantise(const BlockQ4K& block, float* out) {
  dequantise_groups(block.scale, block.offset, block.scales, block.low, nullptr, out);
}
void dequantise(const BlockQ5K& block, float* out) {
  dequantise_groups(block.scale, block.offset, block.scales, block.low, block.high, out);
}

void dequantise(const BlockQ6K& block, float* out) {
  const float scale = half_to_float(block.scale);
  for (int i = 0; i < 256; ++i) {
    const SixBitPlace place = six_bit_place(i);
    const int q = (block.low[place.low] >> place.low_shift & 15) | (block.high[place.high] >> place.high_shift & 3)
                                                                       << 4;
    out[i] = scale * static_cast<float>(block.scales[i / 16]) * static_cast<float>(q - 32);
  }
}

void dequantise(const BlockMxfp4& block, float* out) {
  const float scale = exponent_scale(block.exponent);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(fp4_codes[low_of(block.low, i)]);
}

// 32 values of iq4_nl or iq4_xs.
void dequantise_codes(float scale, const std::uint8_t* low, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(iq4_codes[low_of(low, i)]);
}

void dequantise(const BlockIQ4NL& block, float* out) { dequantise_codes(half_to_float(block.scale), block.low, out); }

void dequantise(const BlockIQ4XS& block, float* out) {
  const float scale = half_to_float(block.scale);
  for (int group = 0; group < 8; ++group) {
    const int low = block.low_scales[group / 2] >> (group % 2 * 4) & 15, high = block.high_scales >> (2 * group) & 3;
    dequantise_codes(scale * static_cast<float>((low | high << 4) - 32), block.low + 16 * group, out + 32 * group);
  }
}

// ---- values to blocks ----

// Numbers from 0 to `most` into nibbles, and fifth bits where there is a place for them.
void pack(const int* q, std::uint8_t* low, std::uint8_t* high) {
  for (int i = 0; i < 16; ++i) low[i] = static_cast<std::uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
  if (!high) return;
  std::fill_n(high, 4, std::uint8_t{0});
  for (int i = 0; i < 32; ++i) high[i / 8] = static_cast<std::uint8_t>(high[i / 8] | (q[i] >> 4) << (i % 8));
}

// scale * (q - zero), with the extreme value at q = 0.
std::uint16_t quantise_symmetric(const float* values, int zero, int* q) {
  const float scale = extreme_of(values, 32) / static_cast<float>(-zero), inverse = scale == 0 ? 0 : 1 / scale;
  for (int i = 0; i < 32; ++i)
    q[i] = std::clamp(static_cast<int>(values[i] * inverse + (static_cast<float>(zero) + 0.5F)), 0, 2 * zero - 1);
  return float_to_half(scale);
}

// scale * q + least.
std::uint16_t quantise_from_least(const float* values, int most, int* q, std::uint16_t& least_bits) {
  const auto [least, largest] = std::minmax_element(values, values + 32);
  const float scale = (*largest - *least) / static_cast<float>(most), inverse = scale == 0 ? 0 : 1 / scale;
  for (int i = 0; i < 32; ++i) q[i] = std::clamp(static_cast<int>((values[i] - *least) * inverse + 0.5F), 0, most);
  least_bits = float_to_half(*least);
  return float_to_half(scale);
}

void quantise(const float* values, BlockQ8_0& block) {
  const float scale = std::abs(extreme_of(values, 32)) / 127, inverse = scale == 0 ? 0 : 1 / scale;
  block.scale = float_to_half(scale);
  for (int i = 0; i < 32; ++i)
    block.values[i] = static_cast<std::int8_t>(std::clamp(std::round(values[i] * inverse), -127.0F, 127.0F));
}

void quantise(const float* values, BlockQ4_0& block) {
  int q[32];
  block.scale = quantise_symmetric(values, 8, q);
  pack(q, block.low, nullptr);
}
void quantise(const float* values, BlockQ4_1& block) {
  int q[32];
  block.scale = quantise_from_least(values, 15, q, block.least);
  pack(q, block.low, nullptr);
}
void quantise(const float* values, BlockQ5_0& block) {
  int q[32];
  block.scale = quantise_symmetric(values, 16, q);
  pack(q, block.low, block.high);
}
void quantise(const float* values, BlockQ5_1& block) {
  int q[32];
  block.scale = quantise_from_least(values, 31, q, block.least);
  pack(q, block.low, block.high);
}
// As llama.cpp: the scale is that of the power of two below the largest magnitude, whatever is then cut off.
void quantise(const float* values, BlockMxfp4& block) {
  const float largest = std::abs(extreme_of(values, 32));
  block.exponent = static_cast<std::uint8_t>(largest > 0 ? std::max(0, std::ilogb(largest) - 2 + 127) : 0);
  const float scale = exponent_scale(block.exponent);
  int q[32];
  for (int i = 0; i < 32; ++i) {
    const auto distance = [&](std::int8_t code) { return std::abs(scale * static_cast<float>(code) - values[i]); };
    q[i] = static_cast<int>(std::ranges::min_element(fp4_codes, {}, distance) - std::begin(fp4_codes));
  }
  pack(q, block.low, nullptr);
}

std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Calls step(Block{}) with the block of the type.
template <class Step>
void with_block(DType type, const Step& step) {
  switch (type) {
    case DType::q8_0: return step(BlockQ8_0{});
    case DType::q4_0: return step(BlockQ4_0{});
    case DType::q4_1: return step(BlockQ4_1{});
    case DType::q5_0: return step(BlockQ5_0{});
    case DType::q5_1: return step(BlockQ5_1{});
    case DType::q4_k: return step(BlockQ4K{});
    case DType::q5_k: return step(BlockQ5K{});
    case DType::q6_k: return step(BlockQ6K{});
    case DType::mxfp4: return step(BlockMxfp4{});
    case DType::iq4_nl: return step(BlockIQ4NL{});
    case DType::iq4_xs: return step(BlockIQ4XS{});
    default: MOTLEY_CHECK(false);
  }
}

}  // namespace

void dequantise_row(DType type, const std::byte* row, std::int64_t values, float* out) {
  if (type == DType::fp32) {
    std::memcpy(out, row, static_cast<std::size_t>(values) * sizeof(float));
    return;
  }
  if (type == DType::bf16 || type == DType::fp16) {
    for (std::int64_t i = 0; i < values; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, row + 2 * i, 2);
      out[i] = type == DType::fp16 ? half_to_float(bits) : std::bit_cast<float>(std::uint32_t{bits} << 16);
    }
    return;
  }
  with_block(type, [&]<class Block>(Block block) {
    const std::int64_t width = dtype_row(type).block_values;
    float rest[256];
    for (std::int64_t first = 0; first < values; first += width, row += sizeof(Block)) {
      std::memcpy(&block, row, sizeof(Block));
      if (values - first >= width) {
        dequantise(block, out + first);
      } else {
        dequantise(block, rest);
        std::copy_n(rest, values - first, out + first);
      }
    }
  });
}

void quantise_row(DType type, const float* values, std::int64_t count, std::byte* row) {
  if (type == DType::fp32) {
    std::memcpy(row, values, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  if (type == DType::bf16 || type == DType::fp16) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint16_t bits = type == DType::fp16 ? float_to_half(values[i]) : float_to_bf16(values[i]);
      std::memcpy(row + 2 * i, &bits, 2);
    }
    return;
  }
  with_block(type, [&]<class Block>(Block block) {
    const std::int64_t width = dtype_row(type).block_values;
    MOTLEY_CHECK(count % width == 0);
    for (std::int64_t first = 0; first < count; first += width, row += sizeof(Block)) {
      quantise(values + first, block);
      std::memcpy(row, &block, sizeof(Block));
    }
  });
}

}  // namespace motley
