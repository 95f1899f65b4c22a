#include "motley/base/dtype.hpp"

#include <array>

#include "motley/base/rounding.hpp"

namespace motley {
namespace {

using enum DType;

// Those from q8_0 on are GGUF's, whose blocks llama.cpp's ggml-common.h defines. int4: 64 values with two fp16.
constexpr std::array<DTypeRow, 18> dtype_rows = {{
    // type, name, config.json, file, values and bytes of a block, computed in, rated in, rated, support of weights,
    // values, and keys and values
    {fp32, "fp32", "float32", "F32", 1, 4, fp32, fp32, true, Support::served, Support::served, Support::served},
    {bf16, "bf16", "bfloat16", "BF16", 1, 2, bf16, bf16, true, Support::served, Support::served, Support::served},
    {fp16, "fp16", "float16", "F16", 1, 2, fp16, fp16, true, Support::planned, Support::planned, Support::planned},
    {fp8, "fp8", "", "", 1, 1, bf16, bf16, true, Support::rated, Support::rated, Support::rated},
    {int8, "int8", "", "", 1, 1, bf16, bf16, true, Support::priced, Support::priced, Support::priced},
    {int4, "int4", "", "", 64, 36, bf16, bf16, false, Support::priced, Support::priced, Support::priced},
    {q8_0, "q8_0", "", "Q8_0", 32, 34, fp32, bf16, false, Support::served, Support::rated, Support::served},
    {q4_0, "q4_0", "", "Q4_0", 32, 18, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {q4_1, "q4_1", "", "Q4_1", 32, 20, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {q5_0, "q5_0", "", "Q5_0", 32, 22, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {q5_1, "q5_1", "", "Q5_1", 32, 24, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {q4_k, "q4_k", "", "Q4_K", 256, 144, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {q5_k, "q5_k", "", "Q5_K", 256, 176, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {q6_k, "q6_k", "", "Q6_K", 256, 210, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {mxfp4, "mxfp4", "", "MXFP4", 32, 17, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {iq4_nl, "iq4_nl", "", "IQ4_NL", 32, 18, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {iq4_xs, "iq4_xs", "", "IQ4_XS", 256, 136, fp32, bf16, false, Support::served, Support::rated, Support::rated},
    {file, "file", "", "", 1, 0, fp32, bf16, false, Support::served, Support::rated, Support::rated},
}};

}  // namespace

std::span<const DTypeRow> dtypes() { return dtype_rows; }

const DTypeRow& dtype_row(DType type) {
  const DTypeRow& row = dtype_rows.at(static_cast<std::size_t>(type));
  MOTLEY_CHECK(row.type == type);
  return row;
}

const DTypeRow* find_dtype(std::string_view name) {
  for (const DTypeRow& row : dtype_rows)
    if (row.name == name) return &row;
  return nullptr;
}

std::vector<DType> dtypes_with(Support support, Use use) {
  std::vector<DType> found;
  for (const DTypeRow& row : dtype_rows)
    if (row.support(use) >= support) found.push_back(row.type);
  return found;
}

std::string names_with(Support support, Use use) {
  const std::vector<DType> types = dtypes_with(support, use);
  std::string names;
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (i > 0) names += i + 1 < types.size() ? ", " : " or ";
    names += dtype_row(types[i]).name;
  }
  return names;
}

DType fitting(DType type, std::int64_t row) {
  if (row % dtype_row(type).block_values == 0) return type;
  switch (type) {
    case q4_k: return fitting(q5_0, row);
    case q5_k: return fitting(q5_1, row);
    case q6_k: return fitting(q8_0, row);
    case iq4_xs: return fitting(iq4_nl, row);
    default: return fp16;
  }
}

std::int64_t bytes_of(DType type, std::int64_t count) {
  const DTypeRow& row = dtype_row(type);
  MOTLEY_CHECK(row.block_bytes > 0);
  return ceil_div(count, row.block_values) * row.block_bytes;
}

EnumNames<DType> names_of(Bound<DType>) {
  return [] {
    std::vector<EnumName<DType>> list;
    for (const DType type : dtypes_with(Support::priced, Use::weights)) list.push_back({type, dtype_row(type).name});
    return list;
  }();
}

}  // namespace motley
