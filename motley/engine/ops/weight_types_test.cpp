// docs/reference/weight-types.md: what each type of weights runs on, as the kernels, the readers and the table of types
// say it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "motley/base/reference_test.hpp"
#include "motley/checkpoint/gguf.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

using Cells = std::vector<std::string>;

std::string table(const std::vector<Cells>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const std::string& cell : rows[i]) text += "| " + cell + " ";
    text += "|\n";
    if (i > 0) continue;
    for (std::size_t column = 0; column < rows[i].size(); ++column) text += "|---";
    text += "|\n";
  }
  return text;
}

std::vector<DType> listed_types() {
  std::vector<DType> types = dtypes_with(Support::priced, Use::weights);
  std::erase(types, DType::file);
  return types;
}

// As a file has it, or as plans ask for it: of fp16 the former alone.
bool is_multiplied(DType type) { return type == DType::fp16 || supports(type, Support::served, Use::weights); }

// ---- products ----

// Calls ask(product or null) with the set's product for weights of a type, whatever activations it takes.
template <class Ask>
auto ask_product(std::size_t set, DType type, const Ask& ask) {
  if (type == DType::bf16) return ask(compiled_cpu_kernels<Bf16>()[set]->product(type));
  return ask(compiled_cpu_kernels<float>()[set]->product(type));
}

std::string arithmetic_of(std::size_t set, DType type) {
  return ask_product(set, type, [](const auto* product) { return std::string(product ? product->arithmetic : "-"); });
}

std::string tile_of(std::size_t set, DType type) {
  return ask_product(set, type, [](const auto* product) {
    return std::to_string(product->tile_rows) + " x " + std::to_string(product->tile_tokens);
  });
}

// What the product of `generic_ops()`, which serves on CUDA, multiplies: a matrix whose values are known shows it.
std::string generic_product(DType type) {
  if (!is_multiplied(type)) return "-";
  constexpr std::int64_t rows = 3, inputs = 256;
  const DType computed_in = type == DType::fp16 ? DType::fp32 : dtype_row(type).computed_in;
  const at::ScalarType computed = scalar_type(computed_in);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(rows * inputs);
  for (float& value : values) value = normal(random);
  at::Tensor expected = at::from_blob(values.data(), {rows, inputs}, at::kFloat).to(computed);
  WeightMatrix weight{.values = expected, .type = type};
  if (type == DType::fp16) {
    weight.values = expected.to(at::kHalf);
    expected = weight.values.to(computed);
  }
  if (is_quantised(type)) {
    weight.values = at::empty({rows, bytes_of(type, inputs)}, at::kByte);
    weight.inputs = inputs;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::span<std::byte> blocks = bytes_of(weight.values[row]);
      quantise_row(type, values.data() + row * inputs, inputs, blocks.data());
      dequantise_row(type, blocks.data(), inputs, expected[row].mutable_data_ptr<float>());
    }
  }
  const at::Tensor unit = at::eye(inputs, at::TensorOptions(computed)).slice(0, 0, inputs, 17).contiguous();
  at::Tensor out = at::empty({unit.size(0), rows}, unit.options());
  generic_ops().linear(out, unit, weight, {});
  EXPECT_TRUE(out.equal(expected.t().slice(0, 0, inputs, 17))) << dtype_row(type).name;
  const std::string name(name_of(computed_in));
  return is_quantised(type) ? name + " made of the blocks" : computed_in != type ? name + " made of the values" : name;
}

// ---- files ----

std::string in_gguf(DType type) {
  if (!find_gguf_type(dtype_row(type).file_name)) return "-";
  Architecture arch;
  arch.tensor_types.emplace("matrix", type);
  TensorSpec matrix;
  matrix.name = "matrix";
  matrix.shape = {1, 256};
  const DType held = held_type(arch, matrix, DType::file);
  return held == type || supports(type, Support::served, Use::weights) ? "read"
                                                                       : "read as " + std::string(name_of(held));
}

std::string support_of(DType type) {
  if (supports(type, Support::served, Use::weights)) return "served";
  return supports(type, Support::planned, Use::weights) ? "planned" : "counted";
}

std::string weight_types_markdown() {
  const auto sets = compiled_cpu_kernels<float>();
  std::vector<Cells> types = {{"type", "bits", "support", "GGUF file"}};
  for (const CpuKernels<float>* set : sets) types[0].push_back("`" + std::string(set->instructions) + "`");
  types[0].push_back("CUDA");
  for (const DType type : listed_types()) {
    const DTypeRow& row = dtype_row(type);
    Cells cells = {"`" + std::string(row.name) + "`", fmt::format("{:.4g}", row.bits_per_value()), support_of(type),
                   in_gguf(type)};
    for (std::size_t set = 0; set < sets.size(); ++set) cells.push_back(arithmetic_of(set, type));
    cells.push_back(generic_product(type));
    types.push_back(cells);
  }
  std::vector<Cells> tiles = {{"kernels", "fp32", "bf16", "quantised", "rows of a panel"}};
  for (std::size_t set = 0; set < sets.size(); ++set)
    tiles.push_back({"`" + std::string(sets[set]->instructions) + "`", tile_of(set, DType::fp32),
                     tile_of(set, DType::bf16), tile_of(set, DType::q8_0),
                     std::to_string(sets[set]->product(DType::q8_0)->panel)});
  return "\n" + table(types) + "\nRows of weights x tokens of a tile:\n\n" + table(tiles) + "\n";
}

TEST(WeightTypes, EachThatIsMultipliedHasAProductInEverySet) {
  for (const DType type : listed_types())
    for (std::size_t set = 0; set < compiled_cpu_kernels<float>().size(); ++set)
      EXPECT_EQ(arithmetic_of(set, type) != "-", is_multiplied(type))
          << dtype_row(type).name << ", " << compiled_cpu_kernels<float>()[set]->instructions;
}

TEST(WeightTypes, QuantisedTilesAreAlike) {
  for (std::size_t set = 0; set < compiled_cpu_kernels<float>().size(); ++set)
    for (const DType type : listed_types())
      if (is_quantised(type)) {
        EXPECT_EQ(tile_of(set, type), tile_of(set, DType::q8_0));
        EXPECT_EQ(compiled_cpu_kernels<float>()[set]->product(type)->panel,
                  compiled_cpu_kernels<float>()[set]->product(DType::q8_0)->panel);
      }
}

TEST(WeightTypes, ReferenceIsCurrent) {
#ifndef __x86_64__
  GTEST_SKIP() << "the page lists the kernels of x86-64";
#endif
  expect_text_is_current("weight-types.md", weight_types_markdown());
}

}  // namespace
}  // namespace motley
