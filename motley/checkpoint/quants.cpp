#include "motley/checkpoint/quants.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "motley/base/error.hpp"
#include "motley/checkpoint/quant_blocks.hpp"

namespace motley {
namespace {

// The search for the scales of the K types, which has no reference.

// A scale and an offset, real numbers before they are quantised themselves: x = scale * q - offset.
struct Line {
  float scale = 0, offset = 0;
};

// To the nearest number in [least, most], ties to even: the sum leaves no bits behind the point.
float rounded(float value, float least, float most) {
  constexpr float shift = 0x1.8p23F;
  return std::min(std::max(value, least), most) + shift - shift;
}

int nearest(float value, int least, int most) {
  return static_cast<int>(rounded(value, static_cast<float>(least), static_cast<float>(most)));
}

// Sums over a group go by lanes, so that compilers make vectors of them.
constexpr int lanes = 8;
float total(const float (&sums)[lanes]) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Squared error of the values on this line with the best q each.
float error_of(const float* values, int count, const Line& line, float least, float most) {
  const float inverse = line.scale > 0 || line.scale < 0 ? 1 / line.scale : 0;
  float sums[lanes] = {};
  for (int i = 0; i < count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) {
      const float value = values[i + lane];
      const float q = rounded((value + line.offset) * inverse, least, most);
      const float difference = line.scale * q - line.offset - value;
      sums[lane] += difference * difference;
    }
  return total(sums);
}

// The line of least squares through the values, given each one's q on `from`; with an offset that is not negative.
Line fitted(const float* values, int count, const Line& from, float most) {
  const float inverse = 1 / from.scale;
  float q_sums[lanes] = {}, qq_sums[lanes] = {}, x_sums[lanes] = {}, qx_sums[lanes] = {};
  for (int i = 0; i < count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) {
      const float value = values[i + lane];
      const float q = rounded((value + from.offset) * inverse, 0, most);
      q_sums[lane] += q;
      qq_sums[lane] += q * q;
      x_sums[lane] += value;
      qx_sums[lane] += q * value;
    }
  const float q_sum = total(q_sums), qq_sum = total(qq_sums), x_sum = total(x_sums), qx_sum = total(qx_sums);
  const auto n = static_cast<float>(count);
  const float determinant = n * qq_sum - q_sum * q_sum;
  Line line;
  if (determinant > 0) {
    line.scale = (n * qx_sum - q_sum * x_sum) / determinant;
    line.offset = (q_sum * qx_sum - qq_sum * x_sum) / determinant;
  }
  if (determinant <= 0 || line.offset < 0) line = {qq_sum > 0 ? qx_sum / qq_sum : 0, 0};
  return line;
}

// The best line found for a group: from the values' range, stretched and shrunk, each then fitted.
Line search_line(const float* values, int count, float most) {
  const auto [smallest, largest] = std::minmax_element(values, values + count);
  const float offset = std::max(0.0F, -*smallest), range = *largest + offset;
  if (!(range > 0)) return {0, offset};
  Line best{range / most, offset};
  float least_error = error_of(values, count, best, 0, most);
  for (int step = -12; step <= 8; ++step) {
    const Line from{range / (most - 0.1F * static_cast<float>(step)), offset};
    const Line line = fitted(values, count, from, most);
    const float error = line.scale > 0 ? error_of(values, count, line, 0, most) : least_error;
    if (error < least_error) {
      least_error = error;
      best = line;
    }
  }
  return best;
}

// The best scale for values = scale * q with q in [-32, 31], of either sign.
float search_scale(const float* values, int count) {
  float extreme = 0;
  for (int i = 0; i < count; ++i)
    if (std::abs(values[i]) > std::abs(extreme)) extreme = values[i];
  if (extreme == 0) return 0;
  float best = extreme / -32, least_error = std::numeric_limits<float>::infinity();
  for (int step = -9; step <= 9; ++step) {
    const float inverse = (-32 + 0.1F * static_cast<float>(step)) / extreme;
    float qq_sums[lanes] = {}, qx_sums[lanes] = {};
    for (int i = 0; i < count; i += lanes)
      for (int lane = 0; lane < lanes; ++lane) {
        const float q = rounded(values[i + lane] * inverse, -32, 31);
        qq_sums[lane] += q * q;
        qx_sums[lane] += q * values[i + lane];
      }
    const float qq_sum = total(qq_sums), qx_sum = total(qx_sums);
    const float scale = qq_sum > 0 ? qx_sum / qq_sum : 0;
    const float error = error_of(values, count, {scale, 0}, -32, 31);
    if (error < least_error) {
      least_error = error;
      best = scale;
    }
  }
  return best;
}

// Near `wanted`, within the range.
struct Range {
  int first, last;
};
Range around(float wanted, int least, int most) {
  const int middle = nearest(wanted, least, most);
  return {std::max(least, middle - 1), std::min(most, middle + 1)};
}

float over(float value, float unit) { return unit > 0 || unit < 0 ? value / unit : 0; }

// The pair of integers near `wanted` that leaves the smallest error.
GroupScale search_integers(const float* values, const Line& wanted, const Line& unit, float most) {
  const Range scales = around(over(wanted.scale, unit.scale), 0, 63);
  const Range offsets = around(over(wanted.offset, unit.offset), 0, 63);
  GroupScale best;
  float least_error = std::numeric_limits<float>::infinity();
  for (int scale = scales.first; scale <= scales.last; ++scale)
    for (int offset = offsets.first; offset <= offsets.last; ++offset) {
      const Line line{unit.scale * static_cast<float>(scale), unit.offset * static_cast<float>(offset)};
      const float error = error_of(values, 32, line, 0, most);
      if (error < least_error) {
        least_error = error;
        best = {scale, offset};
      }
    }
  return best;
}

void put_group_scale(std::uint8_t* scales, int group, const GroupScale& value) {
  const auto put = [](std::uint8_t& byte, int bits) { byte = static_cast<std::uint8_t>(byte | bits); };
  if (group < 4) {
    put(scales[group], value.scale);
    put(scales[group + 4], value.offset);
    return;
  }
  put(scales[group + 4], (value.scale & 15) | (value.offset & 15) << 4);
  put(scales[group - 4], value.scale >> 4 << 6);
  put(scales[group], value.offset >> 4 << 6);
}

// 256 values as numbers from 0 to `most`, whose bits above the fourth go to `high`.
void quantise_groups(const float* values, int most, std::uint16_t& scale, std::uint16_t& offset, std::uint8_t* scales,
                     std::uint8_t* low, std::uint8_t* high) {
  Line lines[8], largest;
  for (int group = 0; group < 8; ++group) {
    lines[group] = search_line(values + group * 32, 32, static_cast<float>(most));
    largest.scale = std::max(largest.scale, lines[group].scale);
    largest.offset = std::max(largest.offset, lines[group].offset);
  }
  scale = float_to_half(largest.scale / 63);
  offset = float_to_half(largest.offset / 63);
  const Line unit{half_to_float(scale), half_to_float(offset)};
  std::fill_n(scales, 12, std::uint8_t{0});
  std::fill_n(low, 128, std::uint8_t{0});
  if (high) std::fill_n(high, 32, std::uint8_t{0});
  for (int group = 0; group < 8; ++group) {
    const float* mine = values + group * 32;
    const GroupScale chosen = search_integers(mine, lines[group], unit, static_cast<float>(most));
    put_group_scale(scales, group, chosen);
    const Line line{unit.scale * static_cast<float>(chosen.scale), unit.offset * static_cast<float>(chosen.offset)};
    for (int i = 0; i < 32; ++i) {
      const int q = nearest(over(mine[i] + line.offset, line.scale), 0, most);
      std::uint8_t& nibbles = low[group / 2 * 32 + i];
      nibbles = static_cast<std::uint8_t>(nibbles | (q & 15) << (group % 2 * 4));
      if (high) high[i] = static_cast<std::uint8_t>(high[i] | (q >> 4) << group);
    }
  }
}

void quantise_six_bits(const float* values, BlockQ6K& block) {
  float scales[16], extreme = 0;
  for (int group = 0; group < 16; ++group) {
    scales[group] = search_scale(values + group * 16, 16);
    if (std::abs(scales[group]) > std::abs(extreme)) extreme = scales[group];
  }
  block = {};
  block.scale = float_to_half(extreme / -128);
  const float unit = half_to_float(block.scale);
  for (int group = 0; group < 16; ++group) {
    const float* mine = values + group * 16;
    const Range near = around(over(scales[group], unit), -128, 127);
    int best = 0;
    float least_error = std::numeric_limits<float>::infinity();
    for (int integer = near.first; integer <= near.last; ++integer) {
      const float error = error_of(mine, 16, {unit * static_cast<float>(integer), 0}, -32, 31);
      if (error < least_error) {
        least_error = error;
        best = integer;
      }
    }
    block.scales[group] = static_cast<std::int8_t>(best);
    for (int i = 0; i < 16; ++i) {
      const int q = nearest(over(mine[i], unit * static_cast<float>(best)), -32, 31) + 32;
      const SixBitPlace place = six_bit_place(group * 16 + i);
      block.low[place.low] = static_cast<std::uint8_t>(block.low[place.low] | (q & 15) << place.low_shift);
      block.high[place.high] = static_cast<std::uint8_t>(block.high[place.high] | (q >> 4) << place.high_shift);
    }
  }
}

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ4K) == 144 && sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210);

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

// ---- values to blocks ----

// Of the value that is largest in magnitude, the first where several are, with its sign.
float extreme_of(const float* values) {
  float found = 0, magnitude = 0;
  for (int i = 0; i < 32; ++i)
    if (std::abs(values[i]) > magnitude) {
      magnitude = std::abs(values[i]);
      found = values[i];
    }
  return found;
}

// Numbers from 0 to `most` into nibbles, and fifth bits where there is a place for them.
void pack(const int* q, std::uint8_t* low, std::uint8_t* high) {
  for (int i = 0; i < 16; ++i) low[i] = static_cast<std::uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
  if (!high) return;
  std::fill_n(high, 4, std::uint8_t{0});
  for (int i = 0; i < 32; ++i) high[i / 8] = static_cast<std::uint8_t>(high[i / 8] | (q[i] >> 4) << (i % 8));
}

// scale * (q - zero), with the extreme value at q = 0.
std::uint16_t quantise_symmetric(const float* values, int zero, int* q) {
  const float scale = extreme_of(values) / static_cast<float>(-zero), inverse = scale == 0 ? 0 : 1 / scale;
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
  const float scale = std::abs(extreme_of(values)) / 127, inverse = scale == 0 ? 0 : 1 / scale;
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
void quantise(const float* values, BlockQ4K& block) {
  quantise_groups(values, 15, block.scale, block.offset, block.scales, block.low, nullptr);
}
void quantise(const float* values, BlockQ5K& block) {
  quantise_groups(values, 31, block.scale, block.offset, block.scales, block.low, block.high);
}
void quantise(const float* values, BlockQ6K& block) { quantise_six_bits(values, block); }

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
