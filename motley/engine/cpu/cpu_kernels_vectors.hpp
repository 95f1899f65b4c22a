// Vectors of one instruction set. Included once per set (cpu_kernels_*.cpp), inside a namespace of its own, under its
// `#pragma GCC target` and after `vector_bytes`, the width of its registers.

constexpr std::int64_t lanes = vector_bytes / 4;
typedef float Vec __attribute__((vector_size(vector_bytes)));
typedef float UnalignedVec __attribute__((vector_size(vector_bytes), aligned(4), may_alias));
typedef std::int32_t IntVec __attribute__((vector_size(vector_bytes)));
typedef std::uint32_t BitVec __attribute__((vector_size(vector_bytes)));
typedef std::uint32_t UnalignedBits __attribute__((vector_size(vector_bytes), aligned(1), may_alias));
typedef std::uint16_t UnalignedHalves __attribute__((vector_size(vector_bytes / 2), aligned(1), may_alias));
typedef std::uint8_t UnalignedBytes __attribute__((vector_size(vector_bytes / 4), aligned(1), may_alias));
typedef std::int8_t UnalignedSignedBytes __attribute__((vector_size(vector_bytes / 4), aligned(1), may_alias));

[[gnu::always_inline]] inline Vec splat(float x) { return Vec{} + x; }
[[gnu::always_inline]] inline Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
[[gnu::always_inline]] inline Vec load(const Bf16* p) {
  const UnalignedHalves halves = *reinterpret_cast<const UnalignedHalves*>(p);
  return reinterpret_cast<Vec>(__builtin_convertvector(halves, BitVec) << 16);
}
[[gnu::always_inline]] inline Vec load(const Fp16* p) {
#if defined(MOTLEY_AVX512)
  return reinterpret_cast<Vec>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(MOTLEY_AVX2)
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  // Exponent and mantissa move to their places in an fp32; the factor of 2^112 sets the exponent right, of subnormals
  // too.
  const BitVec bits = __builtin_convertvector(*reinterpret_cast<const UnalignedHalves*>(p), BitVec);
  const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7fff) << 13) * 0x1p112f;
  return reinterpret_cast<Vec>(reinterpret_cast<BitVec>(magnitude) | (bits & 0x8000) << 16);
#endif
}

// GCC 12 extracts each of the bytes that __builtin_convertvector should widen; without it, one token meets Q4_K weights
// at twice the speed, Q5_K and Q6_K at 1.4 times (AVX2).
[[gnu::always_inline]] inline IntVec load_integers(const std::uint8_t* p) {
#if defined(MOTLEY_AVX512)
  const auto whole = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(MOTLEY_AVX2)
  const auto whole = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  const auto whole = __builtin_convertvector(*reinterpret_cast<const UnalignedBytes*>(p), IntVec);
#endif
  return reinterpret_cast<IntVec>(whole);
}
[[gnu::always_inline]] inline Vec load(const std::uint8_t* p) { return __builtin_convertvector(load_integers(p), Vec); }
[[gnu::always_inline]] inline Vec load(const std::int8_t* p) {
#if defined(MOTLEY_AVX512)
  const auto whole = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(MOTLEY_AVX2)
  const auto whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  const auto whole = __builtin_convertvector(*reinterpret_cast<const UnalignedSignedBytes*>(p), IntVec);
#endif
  return __builtin_convertvector(reinterpret_cast<IntVec>(whole), Vec);
}
[[gnu::always_inline]] inline void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
[[gnu::always_inline]] inline void store(Bf16* p, Vec v) {  // to the nearest, ties to even
  const BitVec bits = reinterpret_cast<BitVec>(v);
  const BitVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *reinterpret_cast<UnalignedHalves*>(p) = __builtin_convertvector(rounded, UnalignedHalves);
}
template <class T>
[[gnu::always_inline]] inline Vec load_part(const T* p, std::int64_t count) {
  T padded[lanes] = {};
  for (std::int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(padded);
}
template <class T>
[[gnu::always_inline]] inline void store_part(T* p, Vec v, std::int64_t count) {
  T padded[lanes];
  store(padded, v);
  for (std::int64_t i = 0; i < count; ++i) p[i] = padded[i];
}
// A vector of which only `count` elements exist: read with zeros for the rest, written without it.
template <class T>
[[gnu::always_inline]] inline Vec load_at(const T* p, std::int64_t count) {
  return count >= lanes ? load(p) : load_part(p, count);
}
template <class T>
[[gnu::always_inline]] inline void store_at(T* p, Vec v, std::int64_t count) {
  count >= lanes ? store(p, v) : store_part(p, v, count);
}
inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
inline void put(float* p, float x) { *p = x; }
inline void put(Bf16* p, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  p->bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// What an operation of two makes of all of a vector's elements, halves first.
typedef float Vec4 __attribute__((vector_size(16)));
typedef float Vec8 __attribute__((vector_size(32)));
typedef float Vec16 __attribute__((vector_size(64)));
template <class Step>
[[gnu::always_inline]] inline float reduce(Vec4 v, const Step& step) {
  v = step(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  v = step(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
  return v[0];
}
template <class Step>
[[gnu::always_inline]] inline float reduce(Vec8 v, const Step& step) {
  return reduce(step(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7)), step);
}
template <class Step>
[[gnu::always_inline]] inline float reduce(Vec16 v, const Step& step) {
  return reduce(step(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                step);
}
[[gnu::always_inline]] inline float sum(Vec v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}
[[gnu::always_inline]] inline float largest(Vec v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
}

// Whole numbers of a vector that fit a byte each.
[[gnu::always_inline]] inline void store_bytes(std::int8_t* p, IntVec v) {
#if defined(MOTLEY_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v)));
#elif defined(MOTLEY_AVX2)
  const auto all = reinterpret_cast<__m256i>(v);
  const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(shorts, shorts));
#else
  for (int i = 0; i < lanes; ++i) p[i] = static_cast<std::int8_t>(v[i]);
#endif
}

// e^x to about one unit in the last place: 2^n * e^r with |r| <= ln(2)/2, e^r by a polynomial (Cephes' expf).
[[gnu::always_inline]] inline Vec exponential(Vec x) {
  x = x < splat(-87.0f) ? splat(-87.0f) : x;
  x = x > splat(88.0f) ? splat(88.0f) : x;
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  const Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const IntVec exponent = reinterpret_cast<IntVec>(shifted) - reinterpret_cast<IntVec>(magic);
  return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p) + (exponent << 23));
}
