#include "motley/engine/spill/stream_copy.hpp"

#include <algorithm>
#include <cstdint>

#include "motley/base/error.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace motley {

void stream_copy(std::span<std::byte> to, std::span<const std::byte> from) {
  MOTLEY_CHECK(from.size() <= to.size());
  std::size_t done = 0;
#ifdef __SSE2__
  constexpr std::size_t vector = sizeof(__m128i), line = 4 * vector;
  if (reinterpret_cast<std::uintptr_t>(to.data()) % vector == 0) {
    for (; done + line <= from.size(); done += line) {
      const auto* read = reinterpret_cast<const __m128i*>(from.data() + done);
      auto* written = reinterpret_cast<__m128i*>(to.data() + done);
      const __m128i first = _mm_loadu_si128(read), second = _mm_loadu_si128(read + 1);
      const __m128i third = _mm_loadu_si128(read + 2), fourth = _mm_loadu_si128(read + 3);
      _mm_stream_si128(written, first);
      _mm_stream_si128(written + 1, second);
      _mm_stream_si128(written + 2, third);
      _mm_stream_si128(written + 3, fourth);
    }
    _mm_sfence();  // such writes are not ordered with others
  }
#endif
  std::ranges::copy(from.subspan(done), to.subspan(done).begin());
}

}  // namespace motley
