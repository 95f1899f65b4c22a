#include "motley/comm/transport/collective_element.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "motley/base/error.hpp"

// Every loop is inlined into one function per instruction set, and the compiler makes vectors of it there.
#define MOTLEY_INLINE [[gnu::always_inline]] inline

namespace motley {
namespace {

struct Half {
  std::uint16_t bits;
};
struct BrainFloat {
  std::uint16_t bits;
};

// ---- 16-bit floats; exact, and alike on every processor ----

MOTLEY_INLINE float widen(BrainFloat value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

// To nearest, ties to even; NaN stays NaN.
MOTLEY_INLINE BrainFloat narrow(float value, BrainFloat) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<std::uint16_t>(value != value ? (bits >> 16) | 0x40 : rounded)};
}

MOTLEY_INLINE float widen(Half value) {
  const std::uint32_t sign = std::uint32_t{value.bits} >> 15 << 31;
  const std::uint32_t rest = value.bits & 0x7fffU;
  if (rest >= 0x7c00) {  // infinity; NaN, quieted
    const std::uint32_t quiet = rest > 0x7c00 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (rest & 0x3ffU) << 13);
  }
  // The exponent is moved by a multiplication, which gets subnormals right too.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

MOTLEY_INLINE Half narrow(float value, Half) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t rest = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (rest > 0x7f800000U) {
    half = 0x7e00U | (rest >> 13 & 0x3ffU);
  } else if (rest >= 0x477ff000U) {  // rounds to 65536 or more
    half = 0x7c00U;
  } else if (rest >= 0x38800000U) {  // normal
    half = (rest - 0x38000000U + 0xfffU + (rest >> 13 & 1U)) >> 13;
  } else {  // subnormal: adding 0.5 leaves the mantissa of the result, rounded, in the lowest bits
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest) + 0.5f) - 0x3f000000U;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

// ---- operators ----

struct Add {
  template <class T>
  MOTLEY_INLINE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class T>
  MOTLEY_INLINE static T apply(T a, T b) {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  MOTLEY_INLINE static T apply(T a, T b) {
    return b < a ? b : a;
  }
};

template <class T>
constexpr bool is_short_float = std::is_same_v<T, Half> || std::is_same_v<T, BrainFloat>;

// How a row of 16-bit floats is widened and narrowed; the processor's own instructions where there are some.
struct PortableRows {
  template <class T>
  MOTLEY_INLINE static void widen_row(const T* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = widen(from[i]);
  }
  template <class T>
  MOTLEY_INLINE static void narrow_row(const float* from, T* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = narrow(from[i], T{});
  }
};

#ifdef __x86_64__
struct F16cRows : PortableRows {
  using PortableRows::narrow_row;
  using PortableRows::widen_row;
  [[gnu::target("avx,f16c"), gnu::noinline]] static void widen_row(const Half* from, float* to, std::size_t count) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    for (; i < count; ++i) to[i] = widen(from[i]);
  }
  [[gnu::target("avx,f16c"), gnu::noinline]] static void narrow_row(const float* from, Half* to, std::size_t count) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; ++i) to[i] = narrow(from[i], Half{});
  }
};
#endif

// ---- loops ----

constexpr std::size_t row_elements = 1024;  // worked on at once: three rows stay in the first-level cache

template <class Op, class T>
MOTLEY_INLINE void combine(T* __restrict into, const T* __restrict term, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] = Op::apply(into[i], term[i]);
}

template <class Op, class Rows, class T>
MOTLEY_INLINE void reduce_pair(std::byte* into_bytes, const std::byte* term_bytes, std::size_t count) {
  auto* into = reinterpret_cast<T*>(into_bytes);
  const auto* term = reinterpret_cast<const T*>(term_bytes);
  if constexpr (is_short_float<T>) {
    alignas(64) float a[row_elements];
    alignas(64) float b[row_elements];
    for (std::size_t done = 0; done < count; done += row_elements) {
      const std::size_t row = std::min(row_elements, count - done);
      Rows::widen_row(into + done, a, row);
      Rows::widen_row(term + done, b, row);
      combine<Op>(a, b, row);
      Rows::narrow_row(a, into + done, row);
    }
  } else {
    combine<Op>(into, term, count);
  }
}

template <class Op, class Rows, class T>
MOTLEY_INLINE void reduce_list(std::byte* into, const std::byte* const* terms, std::size_t term_count,
                               std::size_t count) {
  using Sum = std::conditional_t<is_short_float<T>, float, T>;
  alignas(64) Sum sum[row_elements];
  alignas(64) Sum next[row_elements];
  for (std::size_t done = 0; done < count; done += row_elements) {
    const std::size_t row = std::min(row_elements, count - done);
    for (std::size_t t = 0; t < term_count; ++t) {
      const auto* term = reinterpret_cast<const T*>(terms[t]) + done;
      if constexpr (is_short_float<T>) {
        Rows::widen_row(term, t == 0 ? sum : next, row);
        if (t > 0) combine<Op>(sum, next, row);
      } else if (t == 0) {
        std::memcpy(sum, term, row * sizeof(T));
      } else {
        combine<Op>(sum, term, row);
      }
    }
    auto* out = reinterpret_cast<T*>(into) + done;
    if constexpr (is_short_float<T>)
      Rows::narrow_row(sum, out, row);
    else
      std::memcpy(out, sum, row * sizeof(T));
  }
}

// ---- one function per type, operator and instruction set ----

struct Work {
  std::byte* into;
  const std::byte* const* terms;  // one: added to `into`; more: `into` becomes their sum
  std::size_t term_count;
  std::size_t bytes;
};

template <class Op, class Rows, class T>
MOTLEY_INLINE void work_on(const Work& work) {
  const std::size_t count = work.bytes / sizeof(T);
  if (work.term_count == 1)
    reduce_pair<Op, Rows, T>(work.into, work.terms[0], count);
  else
    reduce_list<Op, Rows, T>(work.into, work.terms, work.term_count, count);
}

template <class Rows, class T>
MOTLEY_INLINE void choose_operator(CollectiveReduction reduction, const Work& work) {
  switch (reduction) {
    case CollectiveReduction::sum:
    case CollectiveReduction::mean: return work_on<Add, Rows, T>(work);
    case CollectiveReduction::max: return work_on<Max, Rows, T>(work);
    case CollectiveReduction::min: return work_on<Min, Rows, T>(work);
  }
}

template <class Rows>
MOTLEY_INLINE void choose_type(CollectiveElement element, CollectiveReduction reduction, const Work& work) {
  switch (element) {
    case CollectiveElement::fp32: return choose_operator<Rows, float>(reduction, work);
    case CollectiveElement::fp64: return choose_operator<Rows, double>(reduction, work);
    case CollectiveElement::fp16: return choose_operator<Rows, Half>(reduction, work);
    case CollectiveElement::bf16: return choose_operator<Rows, BrainFloat>(reduction, work);
    case CollectiveElement::int8: return choose_operator<Rows, std::int8_t>(reduction, work);
    case CollectiveElement::uint8: return choose_operator<Rows, std::uint8_t>(reduction, work);
    case CollectiveElement::int16: return choose_operator<Rows, std::int16_t>(reduction, work);
    case CollectiveElement::int32: return choose_operator<Rows, std::int32_t>(reduction, work);
    case CollectiveElement::int64: return choose_operator<Rows, std::int64_t>(reduction, work);
  }
}

using Loop = void (*)(CollectiveElement, CollectiveReduction, const Work&);

void portable(CollectiveElement element, CollectiveReduction reduction, const Work& work) {
  choose_type<PortableRows>(element, reduction, work);
}

#ifdef __x86_64__
[[gnu::target("avx2,f16c")]] void with_avx2(CollectiveElement element, CollectiveReduction reduction,
                                            const Work& work) {
  choose_type<F16cRows>(element, reduction, work);
}

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prefer-vector-width=512")]] void with_avx512(
    CollectiveElement element, CollectiveReduction reduction, const Work& work) {
  choose_type<F16cRows>(element, reduction, work);
}
#endif

Loop choose_loop() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return with_avx512;
  if (__builtin_cpu_supports("avx2")) return with_avx2;  // a processor with that has the half-precision conversions too
#endif
  return portable;
}

void apply(CollectiveElement element, CollectiveReduction reduction, const Work& work) {
  static const Loop loop = choose_loop();
  loop(element, reduction, work);
}

template <class T>
void divide(std::span<std::byte> bytes, int count) {
  auto* values = reinterpret_cast<T*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    if constexpr (is_short_float<T>)
      values[i] = narrow(widen(values[i]) / static_cast<float>(count), T{});
    else if constexpr (std::is_floating_point_v<T>)
      values[i] /= static_cast<T>(count);
    else
      values[i] = static_cast<T>(values[i] / static_cast<std::int64_t>(count));
  }
}

}  // namespace

std::int64_t element_bytes(CollectiveElement element) {
  constexpr std::array<std::int64_t, collective_elements> bytes{4, 8, 2, 2, 1, 1, 2, 4, 8};
  return bytes[static_cast<std::size_t>(element)];
}

std::string_view name(CollectiveElement element) {
  constexpr std::array<std::string_view, collective_elements> names{"fp32",  "fp64",  "fp16",  "bf16", "int8",
                                                                    "uint8", "int16", "int32", "int64"};
  return names[static_cast<std::size_t>(element)];
}

std::string_view name(CollectiveReduction reduction) {
  constexpr std::array<std::string_view, collective_reductions> names{"sum", "max", "min", "mean"};
  return names[static_cast<std::size_t>(reduction)];
}

void reduce_into(CollectiveElement element, CollectiveReduction reduction, std::span<std::byte> into,
                 std::span<const std::byte> term) {
  const std::byte* terms[]{term.data()};
  apply(element, reduction, {into.data(), terms, 1, into.size()});
}

void reduce_terms(CollectiveElement element, CollectiveReduction reduction, std::span<std::byte> into,
                  std::span<const std::byte* const> terms) {
  MOTLEY_CHECK(terms.size() >= 2);
  apply(element, reduction, {into.data(), terms.data(), terms.size(), into.size()});
}

void divide_by(CollectiveElement element, std::span<std::byte> values, int count) {
  switch (element) {
    case CollectiveElement::fp32: return divide<float>(values, count);
    case CollectiveElement::fp64: return divide<double>(values, count);
    case CollectiveElement::fp16: return divide<Half>(values, count);
    case CollectiveElement::bf16: return divide<BrainFloat>(values, count);
    case CollectiveElement::int8: return divide<std::int8_t>(values, count);
    case CollectiveElement::uint8: return divide<std::uint8_t>(values, count);
    case CollectiveElement::int16: return divide<std::int16_t>(values, count);
    case CollectiveElement::int32: return divide<std::int32_t>(values, count);
    case CollectiveElement::int64: return divide<std::int64_t>(values, count);
  }
}

}  // namespace motley
