#include "motley/checkpoint/quants_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace motley {
namespace {

// A scale and an offset, real numbers before they are quantised themselves: x = scale * q - offset.
struct Line {
  float scale = 0, offset = 0;
};

int nearest(float value, int least, int most) { return std::clamp(static_cast<int>(std::lrint(value)), least, most); }

// Squared error of the values on this line with the best q each.
float error_of(const float* values, int count, const Line& line, int least, int most) {
  const float inverse = line.scale > 0 || line.scale < 0 ? 1 / line.scale : 0;
  float sum = 0;
  for (int i = 0; i < count; ++i) {
    const float q = std::clamp(std::nearbyint((values[i] + line.offset) * inverse), static_cast<float>(least),
                               static_cast<float>(most));
    const float difference = line.scale * q - line.offset - values[i];
    sum += difference * difference;
  }
  return sum;
}

// The line of least squares through the values, given each one's q on `from`; with an offset that is not negative.
Line fitted(const float* values, int count, const Line& from, int most) {
  const float inverse = 1 / from.scale;
  float q_sum = 0, qq_sum = 0, x_sum = 0, qx_sum = 0;
  for (int i = 0; i < count; ++i) {
    const float q = std::clamp(std::nearbyint((values[i] + from.offset) * inverse), 0.0F, static_cast<float>(most));
    q_sum += q;
    qq_sum += q * q;
    x_sum += values[i];
    qx_sum += q * values[i];
  }
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
Line search_line(const float* values, int count, int most) {
  const auto [smallest, largest] = std::minmax_element(values, values + count);
  const float offset = std::max(0.0F, -*smallest), range = *largest + offset;
  if (!(range > 0)) return {0, offset};
  Line best{range / static_cast<float>(most), offset};
  float least_error = error_of(values, count, best, 0, most);
  for (int step = -12; step <= 8; ++step) {
    const Line from{range / (static_cast<float>(most) - 0.1F * static_cast<float>(step)), offset};
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
    float qq_sum = 0, qx_sum = 0;
    for (int i = 0; i < count; ++i) {
      const float q = std::clamp(std::nearbyint(values[i] * inverse), -32.0F, 31.0F);
      qq_sum += q * q;
      qx_sum += q * values[i];
    }
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
GroupScale search_integers(const float* values, const Line& wanted, const Line& unit, int most) {
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

}  // namespace

void quantise_groups(const float* values, int most, std::uint16_t& scale, std::uint16_t& offset, std::uint8_t* scales,
                     std::uint8_t* low, std::uint8_t* high) {
  Line lines[8], largest;
  for (int group = 0; group < 8; ++group) {
    lines[group] = search_line(values + group * 32, 32, most);
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
    const GroupScale chosen = search_integers(mine, lines[group], unit, most);
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

}  // namespace motley
