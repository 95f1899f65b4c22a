// How each quantised type lies in a panel (weight_panels.hpp). Included once per instruction set, in the middle of
// cpu_kernels_quantised.hpp.

// Scale and offset of the rows: a weight is scale * q + offset.
struct RowScales {
  Vec scale, offset;
};

struct NoHeader {};  // of a block

// What most types have. `summed_steps`: of four products each, whose sums of pairs fit 16 bits.
struct Unsigned {
  static NoHeader header(const std::byte*) { return {}; }
  static constexpr bool has_offset = true;
  static constexpr int scale_groups = 1;  // in 32 values
  [[gnu::always_inline]] static Products add(Products total, ByteVec q, SignedByteVec x) {
    return add_products(total, q, x);
  }
};

// The low four bits of value 4 step + i of each row: see BlockQ4_0.
[[gnu::always_inline]] inline ByteVec low_bits(const std::byte* low, int step) {
  const ByteVec both = load_bytes(low + step % 4 * vector_bytes);
  return (step < 4 ? both : shifted(both, 4)) & 15;
}
// The fifth bits, at their place.
[[gnu::always_inline]] inline ByteVec fifth_bits(ByteVec high, int step) {
  return (step <= 4 ? reinterpret_cast<ByteVec>(reinterpret_cast<UnsignedShortVec>(high)
                                                << static_cast<std::uint16_t>(4 - step))
                    : shifted(high, step - 4)) &
         16;
}

struct FourBits : Unsigned {
  static constexpr DType type = DType::q4_0;
  static constexpr int block_values = 32, block_bytes = 18, summed_steps = 8;
  static RowScales scales(NoHeader, const std::byte* block, int, int) {
    const Vec scale = load_halves(block);
    return {scale, scale * -8.0f};
  }
  static ByteVec values(const std::byte* block, int, int step) { return low_bits(block + 2 * lanes, step); }
};
struct FourBitsOffset : Unsigned {
  static constexpr DType type = DType::q4_1;
  static constexpr int block_values = 32, block_bytes = 20, summed_steps = 8;
  static RowScales scales(NoHeader, const std::byte* block, int, int) {
    return {load_halves(block), load_halves(block + 2 * lanes)};
  }
  static ByteVec values(const std::byte* block, int, int step) { return low_bits(block + 4 * lanes, step); }
};
struct FiveBits : Unsigned {
  static constexpr DType type = DType::q5_0;
  static constexpr int block_values = 32, block_bytes = 22, summed_steps = 4;
  static RowScales scales(NoHeader, const std::byte* block, int, int) {
    const Vec scale = load_halves(block);
    return {scale, scale * -16.0f};
  }
  static ByteVec values(const std::byte* block, int, int step) {
    return low_bits(block + 6 * lanes, step) | fifth_bits(load_bytes(block + 2 * lanes), step);
  }
};
struct FiveBitsOffset : Unsigned {
  static constexpr DType type = DType::q5_1;
  static constexpr int block_values = 32, block_bytes = 24, summed_steps = 4;
  static RowScales scales(NoHeader, const std::byte* block, int, int) {
    return {load_halves(block), load_halves(block + 2 * lanes)};
  }
  static ByteVec values(const std::byte* block, int, int step) {
    return low_bits(block + 8 * lanes, step) | fifth_bits(load_bytes(block + 4 * lanes), step);
  }
};

// Weights with a sign, of any eight bits.
struct Signed {
  static NoHeader header(const std::byte*) { return {}; }
  static constexpr int summed_steps = 1, scale_groups = 1;
#if defined(MOTLEY_VNNI)
  static constexpr bool has_offset = true;  // 128 more than the weight has no sign
  static constexpr std::uint8_t added = 128;
  [[gnu::always_inline]] static Products add(Products total, ByteVec q, SignedByteVec x) {
    return add_products(total, q, x);
  }
#else
  static constexpr bool has_offset = false;
  static constexpr std::uint8_t added = 0;
  // The weight's sign goes to the input: |q| * (x with q's sign).
  [[gnu::always_inline]] static Products add(Products total, ByteVec q, SignedByteVec x) {
#if defined(MOTLEY_AVX2)
    const auto signed_q = reinterpret_cast<__m256i>(q);
    return add_products(total, reinterpret_cast<ByteVec>(_mm256_abs_epi8(signed_q)),
                        reinterpret_cast<SignedByteVec>(_mm256_sign_epi8(reinterpret_cast<__m256i>(x), signed_q)));
#elif defined(MOTLEY_AVX512)
    const auto signed_q = reinterpret_cast<__m512i>(q), signed_x = reinterpret_cast<__m512i>(x);
    return add_products(total, reinterpret_cast<ByteVec>(_mm512_abs_epi8(signed_q)),
                        reinterpret_cast<SignedByteVec>(_mm512_mask_sub_epi8(signed_x, _mm512_movepi8_mask(signed_q),
                                                                             _mm512_setzero_si512(), signed_x)));
#else
    const SignedByteVec sign = reinterpret_cast<SignedByteVec>(q) < 0;
    return add_products(total, (q ^ reinterpret_cast<ByteVec>(sign)) - reinterpret_cast<ByteVec>(sign),
                        (x ^ sign) - sign);
#endif
  }
#endif
  [[gnu::always_inline]] static RowScales scaled_by(Vec scale) { return {scale, scale * -static_cast<float>(added)}; }
};

struct EightBits : Signed {
  static constexpr DType type = DType::q8_0;
  static constexpr int block_values = 32, block_bytes = 34;
  static RowScales scales(NoHeader, const std::byte* block, int, int) { return scaled_by(load_halves(block)); }
  static ByteVec values(const std::byte* block, int, int step) {
    return load_bytes(block + 2 * lanes + step * vector_bytes) ^ added;
  }
};

// Groups 2 k and 2 k + 1 of 32 values share bytes: see BlockQ4K.
[[gnu::always_inline]] inline ByteVec group_low_bits(const std::byte* low, int group, int step) {
  return shifted(load_bytes(low + (group / 2 * 8 + step) * vector_bytes), group % 2 * 4) & 15;
}
// Scale and offset of a block, and the factors of its groups, which are unpacked for four groups at a time.
struct GroupScales {
  [[gnu::always_inline]] explicit GroupScales(const std::byte* block) {
    const std::byte* packed = block + 4 * lanes;
    const ByteVec a = load_bytes(packed), b = load_bytes(packed + vector_bytes),
                  c = load_bytes(packed + 2 * vector_bytes);
    const ByteVec four[] = {a & 63, (c & 15) | (shifted(a, 2) & 48), b & 63,
                            (shifted(c, 4) & 15) | (shifted(b, 2) & 48)};
    std::memcpy(factors, four, sizeof four);
  }
  [[gnu::always_inline]] RowScales of(const std::byte* block, int group) const {
    return {load_halves(block) * load(factors + group * lanes),
            -load_halves(block + 2 * lanes) * load(factors + (8 + group) * lanes)};
  }

 private:
  alignas(64) std::uint8_t factors[16 * lanes];
};

struct FourBitGroups : Unsigned {
  static constexpr DType type = DType::q4_k;
  static constexpr int block_values = 256, block_bytes = 144, summed_steps = 8;
  static GroupScales header(const std::byte* block) { return GroupScales(block); }
  static RowScales scales(const GroupScales& header, const std::byte* block, int group, int) {
    return header.of(block, group);
  }
  static ByteVec values(const std::byte* block, int group, int step) {
    return group_low_bits(block + 16 * lanes, group, step);
  }
};
struct FiveBitGroups : Unsigned {
  static constexpr DType type = DType::q5_k;
  static constexpr int block_values = 256, block_bytes = 176, summed_steps = 4;
  static GroupScales header(const std::byte* block) { return GroupScales(block); }
  static RowScales scales(const GroupScales& header, const std::byte* block, int group, int) {
    return header.of(block, group);
  }
  static ByteVec values(const std::byte* block, int group, int step) {
    const ByteVec high = load_bytes(block + 16 * lanes + step * vector_bytes);
    return group_low_bits(block + 48 * lanes, group, step) | (shifted(high, group) & 1) << 4;
  }
};
struct SixBitGroups : Unsigned {
  static constexpr DType type = DType::q6_k;
  static constexpr int block_values = 256, block_bytes = 210, summed_steps = 2, scale_groups = 2;
  static RowScales scales(NoHeader, const std::byte* block, int group, int half) {
    const auto* factors = reinterpret_cast<const std::int8_t*>(block + (192 + 2 * group + half) * lanes);
    const Vec scale = load_halves(block + 208 * lanes) * load(factors);
    return {scale, scale * -32.0f};
  }
  static ByteVec values(const std::byte* block, int group, int step) {
    const int half = group / 4, quarter = group % 4;
    const ByteVec low = load_bytes(block + (half * 16 + quarter % 2 * 8 + step) * vector_bytes);
    const ByteVec high = load_bytes(block + 128 * lanes + (half * 8 + step) * vector_bytes);
    return (shifted(low, quarter / 2 * 4) & 15) | (shifted(high, quarter * 2) & 3) << 4;
  }
};

// ---- four bits that name a code ----

struct CodeTable {
  alignas(16) std::uint8_t codes[16];
};
constexpr CodeTable codes_plus(int added, const std::int8_t (&codes)[16]) {
  CodeTable table{};
  for (int i = 0; i < 16; ++i) table.codes[i] = static_cast<std::uint8_t>(codes[i] + added);
  return table;
}
// The code of each byte, of 0 to 15.
[[gnu::always_inline]] inline ByteVec codes_of(const CodeTable& table, ByteVec q) {
#if defined(MOTLEY_AVX512)
  const __m512i codes = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table.codes)));
  return reinterpret_cast<ByteVec>(_mm512_shuffle_epi8(codes, reinterpret_cast<__m512i>(q)));
#elif defined(MOTLEY_AVX2)
  const __m256i codes = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table.codes)));
  return reinterpret_cast<ByteVec>(_mm256_shuffle_epi8(codes, reinterpret_cast<__m256i>(q)));
#else
  for (int i = 0; i < vector_bytes; ++i) q[i] = table.codes[q[i]];
  return q;
#endif
}

struct Fp4Codes : Unsigned {
  static constexpr DType type = DType::mxfp4;
  static constexpr int block_values = 32, block_bytes = 17, summed_steps = 4;
  static constexpr int added = 12;  // the codes have no sign then
  static constexpr CodeTable table = codes_plus(added, fp4_codes);
  // As exponent_scale(): those of 0 and 1 are subnormal.
  static RowScales scales(NoHeader, const std::byte* block, int, int) {
    const BitVec exponent = reinterpret_cast<BitVec>(load_integers(reinterpret_cast<const std::uint8_t*>(block)));
    const BitVec subnormal = (BitVec{} + 0x00200000U) << exponent, normal = (exponent - 1) << 23;
    const Vec scale = reinterpret_cast<Vec>(exponent < 2 ? subnormal : normal);
    return {scale, scale * -static_cast<float>(added)};
  }
  static ByteVec values(const std::byte* block, int, int step) {
    return codes_of(table, low_bits(block + lanes, step));
  }
};

struct FourBitCodes : Signed {
  static constexpr DType type = DType::iq4_nl;
  static constexpr int block_values = 32, block_bytes = 18;
  static constexpr CodeTable table = codes_plus(added, iq4_codes);
  static RowScales scales(NoHeader, const std::byte* block, int, int) { return scaled_by(load_halves(block)); }
  static ByteVec values(const std::byte* block, int, int step) {
    return codes_of(table, low_bits(block + 2 * lanes, step));
  }
};

struct FourBitCodeGroups : Signed {
  static constexpr DType type = DType::iq4_xs;
  static constexpr int block_values = 256, block_bytes = 136;
  static RowScales scales(NoHeader, const std::byte* block, int group, int) {
    const BitVec high =
        __builtin_convertvector(*reinterpret_cast<const UnalignedHalves*>(block + 2 * lanes), BitVec) >> (2 * group);
    const BitVec low = *reinterpret_cast<const UnalignedBits*>(block + 4 * lanes) >> (4 * group);
    const IntVec factor = reinterpret_cast<IntVec>((low & 15) | (high & 3) << 4) - 32;
    return scaled_by(load_halves(block) * __builtin_convertvector(factor, Vec));
  }
  static ByteVec values(const std::byte* block, int group, int step) {
    return codes_of(FourBitCodes::table, low_bits(block + (8 + 16 * group) * lanes, step));
  }
};
