#include "motley/engine/ops/int8_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "motley/base/error.hpp"
#include "motley/checkpoint/quant_blocks.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

constexpr float largest_code = 127;
constexpr std::uint16_t half_infinity = 0x7c00, half_nan = 0x7e00;

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to the nearest, ties to even
}

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// The smallest scale that no magnitude up to `largest` exceeds 127 times; NaN where there is none.
std::uint16_t scale_for(float largest) {
  const float wanted = largest / largest_code;
  if (!std::isfinite(wanted)) return half_nan;
  std::uint16_t scale = float_to_half(wanted);
  if (half_to_float(scale) < wanted) ++scale;  // of positive numbers the next has the next bits
  return scale < half_infinity ? scale : half_nan;
}

// Places of the values of the largest magnitude, those that are not finite first; of equals the first. Ascending.
class Exceptions {
 public:
  explicit Exceptions(std::span<const float> values)
      : most_(static_cast<std::size_t>(Int8Row{std::ssize(values)}.exceptions())) {
    std::array<float, Int8Row::most_exceptions> magnitudes{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float magnitude = std::isfinite(values[i]) ? std::abs(values[i]) : std::numeric_limits<float>::infinity();
      if (count_ == most_ && magnitude <= magnitudes[count_ - 1]) continue;
      std::size_t at = count_ < most_ ? count_++ : count_ - 1;
      for (; at > 0 && magnitudes[at - 1] < magnitude; --at) {
        magnitudes[at] = magnitudes[at - 1];
        places_[at] = places_[at - 1];
      }
      magnitudes[at] = magnitude;
      places_[at] = i;
    }
    std::sort(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(count_));
  }
  std::span<const std::size_t> places() const { return {places_.data(), count_}; }

 private:
  std::size_t most_, count_ = 0;
  std::array<std::size_t, Int8Row::most_exceptions> places_{};
};

void store(std::byte* at, std::uint16_t bits) { std::memcpy(at, &bits, sizeof bits); }

std::uint16_t load(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

// Where the parts of a row begin.
struct Layout {
  explicit Layout(std::size_t values)
      : row{static_cast<std::int64_t>(values)},
        scales(static_cast<std::size_t>(row.exceptions() * Int8Row::exception_bytes)),
        codes(scales + static_cast<std::size_t>(row.blocks() * Int8Row::scale_bytes)) {}
  Int8Row row;
  std::size_t scales, codes;
};

template <class Value>
std::span<Value> block_of(std::span<Value> values, std::int64_t block) {
  const auto first = static_cast<std::size_t>(block * Int8Row::block_values);
  return values.subspan(first, std::min<std::size_t>(Int8Row::block_values, values.size() - first));
}

void encode_block(std::span<const float> values, std::uint16_t scale, std::byte* codes) {
  const float step = half_to_float(scale);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float code = step > 0 ? std::nearbyint(values[i] / step) : 0;  // a NaN step leaves 0
    codes[i] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(code, -largest_code, largest_code)));
  }
}

}  // namespace

void encode_int8_row(std::span<const float> values, std::span<std::byte> row) {
  const Layout layout(values.size());
  MOTLEY_CHECK(std::ssize(row) == layout.row.bytes() && layout.row.values <= Int8Row::most_values);
  const Exceptions exceptions(values);
  std::byte* exception = row.data();
  for (const std::size_t place : exceptions.places()) {
    store(exception, static_cast<std::uint16_t>(place));
    store(exception + 2, to_bf16(values[place]));
    exception += Int8Row::exception_bytes;
  }
  std::array<float, Int8Row::block_values> rest{};
  auto next = exceptions.places().begin();
  for (std::int64_t block = 0; block < layout.row.blocks(); ++block) {
    const std::span<const float> of_row = block_of(values, block);
    const auto first = static_cast<std::size_t>(block * Int8Row::block_values);
    std::ranges::copy(of_row, rest.begin());
    for (; next != exceptions.places().end() && *next < first + of_row.size(); ++next) rest[*next - first] = 0;
    float largest = 0;
    for (std::size_t i = 0; i < of_row.size(); ++i)
      largest = std::isfinite(rest[i]) ? std::max(largest, std::abs(rest[i])) : std::numeric_limits<float>::infinity();
    const std::uint16_t scale = scale_for(largest);
    store(row.data() + layout.scales + static_cast<std::size_t>(block * Int8Row::scale_bytes), scale);
    encode_block(std::span<const float>(rest).first(of_row.size()), scale, row.data() + layout.codes + first);
  }
}

void decode_int8_row(std::span<const std::byte> row, std::span<float> values) {
  const Layout layout(values.size());
  MOTLEY_CHECK(std::ssize(row) == layout.row.bytes());
  for (std::int64_t block = 0; block < layout.row.blocks(); ++block) {
    const std::span<float> of_row = block_of(values, block);
    const float step =
        half_to_float(load(row.data() + layout.scales + static_cast<std::size_t>(block * Int8Row::scale_bytes)));
    const std::byte* codes = row.data() + layout.codes + static_cast<std::size_t>(block * Int8Row::block_values);
    for (std::size_t i = 0; i < of_row.size(); ++i)
      of_row[i] = step * static_cast<float>(static_cast<std::int8_t>(codes[i]));
  }
  std::int64_t before = -1;
  for (std::int64_t i = 0; i < layout.row.exceptions(); ++i) {
    const std::byte* exception = row.data() + i * Int8Row::exception_bytes;
    const std::int64_t place = load(exception);
    if (place <= before || place >= layout.row.values)
      throw Error(ErrorCode::peer, fmt::format("a row of {} activations has an exception at {} after one at {}",
                                               layout.row.values, place, before));
    values[static_cast<std::size_t>(place)] = from_bf16(load(exception + 2));
    before = place;
  }
}

}  // namespace motley
