// What collectives compute on: element types, reductions, and the loops that apply them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace motley {

enum class CollectiveElement : std::uint8_t { fp32, fp64, fp16, bf16, int8, uint8, int16, int32, int64 };
constexpr int collective_elements = 9;

// The mean is the sum, divided once at the end; of integers it is rounded towards zero.
enum class CollectiveReduction : std::uint8_t { sum, max, min, mean };
constexpr int collective_reductions = 4;

std::int64_t element_bytes(CollectiveElement element);
std::string_view name(CollectiveElement element);
std::string_view name(CollectiveReduction reduction);

// into[i] = into[i] (+) term[i]; both hold whole elements, equally many, and do not overlap. 16-bit floats are added in
// fp32 and rounded to nearest even. Sums of integers wrap. Element by element, so that the result does not depend on
// how the vector is cut or on the processor's vector width.
void reduce_into(CollectiveElement element, CollectiveReduction reduction, std::span<std::byte> into,
                 std::span<const std::byte> term);

// into[i] = terms[0][i] (+) terms[1][i] (+) ..., in this order; 16-bit floats are rounded once. `into` may be one of
// the terms. Two terms or more.
void reduce_terms(CollectiveElement element, CollectiveReduction reduction, std::span<std::byte> into,
                  std::span<const std::byte* const> terms);

// values[i] /= count.
void divide_by(CollectiveElement element, std::span<std::byte> values, int count);

}  // namespace motley
