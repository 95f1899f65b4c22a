#include "motley/engine/stage/packed_rows.hpp"

#include <algorithm>
#include <cstring>

#include "motley/base/error.hpp"
#include "motley/engine/ops/int8_rows.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

void read_row(std::span<const std::byte> sent, DType type, std::span<float> values) {
  if (type == DType::int8) return decode_int8_row(sent, values);
  if (type == DType::fp32) {
    std::memcpy(values.data(), sent.data(), sent.size());
    return;
  }
  MOTLEY_CHECK(type == DType::bf16);
  std::copy_n(reinterpret_cast<const c10::BFloat16*>(sent.data()), values.size(), values.begin());
}

}  // namespace

void pack_int8(const at::Tensor& rows, std::vector<std::byte>& packed) {
  const auto count = static_cast<std::size_t>(rows.size(0)), hidden = static_cast<std::size_t>(rows.size(1)),
             bytes = static_cast<std::size_t>(crossing_bytes(DType::int8, rows.size(1)));
  packed.resize(count * bytes);
  const float* from = rows.const_data_ptr<float>();
  for (std::size_t row = 0; row < count; ++row)
    encode_int8_row({from + row * hidden, hidden}, std::span(packed).subspan(row * bytes, bytes));
}

void unpack_rows(std::span<const std::byte> sent, DType type, const at::Tensor& rows) {
  const auto count = static_cast<std::size_t>(rows.size(0)), hidden = static_cast<std::size_t>(rows.size(1)),
             bytes = static_cast<std::size_t>(crossing_bytes(type, rows.size(1)));
  MOTLEY_CHECK(sent.size() == count * bytes);
  std::vector<float> values(hidden);
  for (std::size_t row = 0; row < count; ++row) {
    read_row(sent.subspan(row * bytes, bytes), type, values);
    if (rows.scalar_type() == at::kFloat)
      std::ranges::copy(values, rows.mutable_data_ptr<float>() + row * hidden);
    else
      std::ranges::copy(values, rows.mutable_data_ptr<c10::BFloat16>() + row * hidden);
  }
}

}  // namespace motley
