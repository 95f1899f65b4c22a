// Rows of hidden states in the host's memory, in the types that they are sent in.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <span>
#include <vector>

#include "motley/base/dtype.hpp"

namespace motley {

// `rows`: [T, H], contiguous, fp32. The packed ones: T times crossing_bytes(DType::int8, H).
void pack_int8(const at::Tensor& rows, std::vector<std::byte>& packed);
// `rows`: [T, H], contiguous, fp32 or bf16. By the calling thread alone: the others may compute a step. Throws a peer
// error for rows that are malformed.
void unpack_rows(std::span<const std::byte> sent, DType type, const at::Tensor& rows);

}  // namespace motley
