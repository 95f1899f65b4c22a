// Random numbers without state: a function of (seed, index), so that what is computed again comes out again.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>

namespace motley {

// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): ten rounds of a bijection of
// the counter under the key. Statistically sound for any pattern of counters.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = multiplier0 * counter[0], product1 = multiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += weyl0;
    key[1] += weyl1;
  }
  return counter;
}

// Uniform in [0, 1), 53 random bits.
constexpr double uniform_at(std::uint64_t seed, std::uint64_t index) {
  const auto words = philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// Numbers in a row. The streams of one seed do not meet within 2^40 numbers; `first` of them are skipped.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream, std::uint64_t first = 0)
      : seed_(seed), index_((stream << 40) + first) {}
  double uniform() { return uniform_at(seed_, index_++); }
  bool chance(double probability) { return uniform() < probability; }
  // In [0, count); count > 0.
  template <std::integral Count>
  Count below(Count count) {
    return std::min(static_cast<Count>(uniform() * static_cast<double>(count)), static_cast<Count>(count - 1));
  }

 private:
  std::uint64_t seed_, index_;
};

}  // namespace motley
