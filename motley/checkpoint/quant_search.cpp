#include "motley/checkpoint/quant_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace motley {
namespace {

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
  const float extreme = extreme_of(values, count);
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

// ---- codes ----

// Where the nearest code changes: they ascend.
constexpr std::array<float, 15> code_borders = [] {
  std::array<float, 15> borders{};
  for (std::size_t i = 0; i < borders.size(); ++i)
    borders.at(i) = static_cast<float>(iq4_codes[i] + iq4_codes[i + 1]) / 2;
  return borders;
}();

int nearest_code(float value) {
  int q = 0;
  for (const float border : code_borders) q += value > border ? 1 : 0;
  return q;
}

// Without a look-up, of which compilers make no vectors.
float rounded_to_code(float value) {
  float code = iq4_codes[0];
  for (std::size_t i = 0; i < code_borders.size(); ++i)
    code += value > code_borders[i] ? static_cast<float>(iq4_codes[i + 1] - iq4_codes[i]) : 0;
  return code;
}

// The best scale for 32 values = scale * code, of either sign: each step gives the values codes, for which least
// squares give a scale.
float search_code_scale(const float* values) {
  const float extreme = extreme_of(values, 32);
  float best = 0, most = 0;  // of the squares that the codes account for
  if (extreme == 0) return best;
  for (const float end : {iq4_codes[0], iq4_codes[15]})
    for (int step = -8; step <= 8; ++step) {
      const float inverse = end * (1 + 0.02F * static_cast<float>(step)) / extreme;
      float qq_sums[lanes] = {}, qx_sums[lanes] = {};
      for (int i = 0; i < 32; i += lanes)
        for (int lane = 0; lane < lanes; ++lane) {
          const float q = rounded_to_code(values[i + lane] * inverse);
          qq_sums[lane] += q * q;
          qx_sums[lane] += q * values[i + lane];
        }
      const float qq_sum = total(qq_sums), qx_sum = total(qx_sums);
      if (qx_sum * qx_sum > most * qq_sum) {
        most = qx_sum * qx_sum / qq_sum;
        best = qx_sum / qq_sum;
      }
    }
  return best;
}

float code_error(const float* values, float scale) {
  const float inverse = over(1, scale);
  float sums[lanes] = {};
  for (int i = 0; i < 32; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) {
      const float difference = scale * rounded_to_code(values[i + lane] * inverse) - values[i + lane];
      sums[lane] += difference * difference;
    }
  return total(sums);
}

void put_codes(const float* values, float scale, std::uint8_t* low) {
  for (int i = 0; i < 16; ++i)
    low[i] = static_cast<std::uint8_t>(nearest_code(over(values[i], scale)) | nearest_code(over(values[i + 16], scale))
                                                                                  << 4);
}

}  // namespace

float extreme_of(const float* values, int count) {
  float found = 0;
  for (int i = 0; i < count; ++i)
    if (std::abs(values[i]) > std::abs(found)) found = values[i];
  return found;
}

void quantise(const float* values, BlockQ4K& block) {
  quantise_groups(values, 15, block.scale, block.offset, block.scales, block.low, nullptr);
}
void quantise(const float* values, BlockQ5K& block) {
  quantise_groups(values, 31, block.scale, block.offset, block.scales, block.low, block.high);
}

void quantise(const float* values, BlockQ6K& block) {
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

void quantise(const float* values, BlockIQ4NL& block) {
  block.scale = float_to_half(search_code_scale(values));
  put_codes(values, half_to_float(block.scale), block.low);
}

void quantise(const float* values, BlockIQ4XS& block) {
  float scales[8];
  for (int group = 0; group < 8; ++group) scales[group] = search_code_scale(values + 32 * group);
  block = {};
  block.scale = float_to_half(extreme_of(scales, 8) / -32);
  const float unit = half_to_float(block.scale);
  for (int group = 0; group < 8; ++group) {
    const float* mine = values + 32 * group;
    const Range near = around(over(scales[group], unit), -32, 31);
    int best = 0;
    float least_error = std::numeric_limits<float>::infinity();
    for (int integer = near.first; integer <= near.last; ++integer) {
      const float error = code_error(mine, unit * static_cast<float>(integer));
      if (error < least_error) {
        least_error = error;
        best = integer;
      }
    }
    const int stored = best + 32;
    block.low_scales[group / 2] =
        static_cast<std::uint8_t>(block.low_scales[group / 2] | (stored & 15) << (group % 2 * 4));
    block.high_scales = static_cast<std::uint16_t>(block.high_scales | (stored >> 4) << (2 * group));
    put_codes(mine, unit * static_cast<float>(best), block.low + 16 * group);
  }
}

}  // namespace motley
