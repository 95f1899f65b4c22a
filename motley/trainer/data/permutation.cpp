#include "motley/trainer/data/permutation.hpp"

#include <array>
#include <bit>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/random.hpp"

namespace motley {
namespace {

constexpr std::uint32_t rounds = 8;  // even: halves of unlike widths are back in their places at the end

constexpr std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }
constexpr std::uint64_t mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

}  // namespace

std::int64_t permuted(std::int64_t place, std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
  MOTLEY_CHECK(place >= 0 && place < count);
  const auto limit = static_cast<std::uint64_t>(count);
  const auto bits = static_cast<int>(std::bit_width(limit - 1));
  const auto key_words = philox4x32({low(epoch), high(epoch), 0, 0}, {low(seed), high(seed)});
  const std::array<std::uint32_t, 2> key = {key_words[0], key_words[1]};
  auto value = static_cast<std::uint64_t>(place);
  do {
    int right_bits = bits / 2, left_bits = bits - right_bits;
    std::uint64_t left = value >> right_bits, right = value & mask(right_bits);
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const auto words = philox4x32({low(right), high(right), round, 1}, key);
      left ^= (std::uint64_t{words[1]} << 32 | words[0]) & mask(left_bits);
      std::swap(left, right);
      std::swap(left_bits, right_bits);
    }
    value = left << right_bits | right;
  } while (value >= limit);
  return static_cast<std::int64_t>(value);
}

}  // namespace motley
