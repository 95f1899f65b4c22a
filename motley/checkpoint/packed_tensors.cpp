#include "motley/checkpoint/packed_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "motley/base/dtype.hpp"
#include "motley/base/error.hpp"
#include "motley/checkpoint/name_patterns.hpp"
#include "motley/checkpoint/safetensors.hpp"

namespace motley {
namespace {

bool is_of_experts(const PackedNames& packed) { return packed.parts[0].find(expert_mark) != std::string_view::npos; }

// Rows of the parts in each of a number of groups.
struct Division {
  std::int64_t groups = 1;
  std::vector<std::int64_t> rows = {};
  std::int64_t rows_of_group() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
};

std::int64_t parts_of(const PackedNames& packed) {
  return std::ranges::count_if(packed.parts, [](std::string_view part) { return !part.empty(); });
}

// Of a tensor with this number of rows; empty: they cannot be divided so.
Division division_of(const PackedNames& packed, const KeyHeadRows& heads, std::int64_t rows) {
  const std::int64_t parts = parts_of(packed);
  if (packed.rows[0] == nullptr) {
    if (rows % parts != 0) return {};
    const std::int64_t groups = packed.by_turns ? rows / parts : 1;
    return {groups, std::vector<std::int64_t>(static_cast<std::size_t>(parts), rows / parts / groups)};
  }
  Division division{packed.by_key_heads ? heads.key_heads : 1, {}};
  for (std::size_t part = 0; part < static_cast<std::size_t>(parts); ++part)
    division.rows.push_back(heads.*packed.rows[part] * (packed.by_key_heads ? 1 : heads.key_heads));
  return division.groups * division.rows_of_group() == rows ? division : Division{};
}

// Bytes of a number of values in a file's type, which are whole blocks; nothing: it is not known.
std::optional<std::int64_t> stored_bytes(const std::string& type, std::int64_t values) {
  if (const auto bytes = safetensors_element_bytes(type)) return values * static_cast<std::int64_t>(*bytes);
  for (const DTypeRow& row : dtypes())
    if (row.file_name == type && !row.file_name.empty() && values % row.block_values == 0)
      return bytes_of(row.type, values);
  return {};
}

const PackedNames* packed_under(std::span<const PackedNames> names, const std::string& stored, std::string& layer) {
  for (const PackedNames& one : names)
    if (auto found = layer_in(one.stored, stored)) {
      layer = *std::move(found);
      return &one;
    }
  return nullptr;
}

}  // namespace

std::vector<std::string> names_inside(std::span<const PackedNames> names, const std::string& stored) {
  std::string layer;
  std::vector<std::string> inside;
  if (const PackedNames* known = packed_under(names, stored, layer))
    for (const std::string_view part : known->parts)
      if (!part.empty()) inside.push_back(with_layer(part, layer));
  return inside;
}

std::vector<TensorInside> tensors_inside(std::span<const PackedNames> names, const KeyHeadRows& heads,
                                         const std::filesystem::path& file, const std::string& stored,
                                         const StoredTensor& tensor) {
  std::string layer;
  const PackedNames* const known = packed_under(names, stored, layer);
  if (known == nullptr) return {};
  const bool of_experts = is_of_experts(*known);
  std::vector<std::int64_t> shape = tensor.shape;  // of a part
  const std::int64_t experts = of_experts && !shape.empty() ? shape.front() : 1;
  if (of_experts && !shape.empty()) shape.erase(shape.begin());
  if (known->channels && shape.size() == 3 && shape[1] == 1) shape.erase(shape.begin() + 1);
  constexpr std::int64_t bytes_of_block = 16, values_of_byte = 2;
  const bool blocks = known->mxfp4 && shape.size() == 3 && shape.back() == bytes_of_block;
  if (blocks) {  // columns are bytes
    shape.pop_back();
    shape.back() *= bytes_of_block;
  }
  const bool matrix = shape.size() == 2, transposed = matrix && known->transposed;
  if (transposed) std::swap(shape[0], shape[1]);
  const bool fits = (shape.size() == 1 || matrix) && experts >= 1 && experts <= most_experts_in_tensor &&
                    shape.front() >= 1 && shape.back() >= 1 && blocks == known->mxfp4;
  const Division division = fits ? division_of(*known, heads, shape.front()) : Division{};
  const std::int64_t inputs = matrix ? shape.back() : 1;
  if (division.rows.empty() || !stored_bytes(tensor.type, transposed ? 1 : inputs))
    throw input_error(
        fmt::format("{}: {} {} of {} cannot be {} of {}{}", file.string(), stored, shape_text(tensor.shape),
                    tensor.type, transposed ? "transposed matrices" : "tensors", of_experts ? "experts, " : "",
                    parts_of(*known) == 1       ? "one each"
                    : known->rows[0] != nullptr ? fmt::format("a delta net of {} key heads", heads.key_heads)
                                                : "a gate and an up each"),
        "download the model again");
  const std::int64_t group = division.rows_of_group(), all_rows = division.groups * group;
  const auto bytes = [&](std::int64_t values) {
    return static_cast<std::size_t>(stored_bytes(tensor.type, values).value());
  };
  // Values from a row of the whole to the next, and from an input to the next.
  const std::int64_t apart = transposed ? 1 : inputs, column_step = transposed ? all_rows : 1;
  std::vector<TensorInside> all;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    std::int64_t before = 0;  // rows of the parts before, in a group
    for (std::size_t part = 0; part < division.rows.size(); ++part) {
      const std::int64_t run = division.rows[part], rows = run * division.groups;
      const bool by_turns = run == 1 && division.groups > 1;
      const std::int64_t row_step = apart * (by_turns ? group : 1), last = (division.groups - 1) * group + run - 1;
      const std::int64_t first = expert * all_rows * inputs + apart * before;
      const std::int64_t extent = last * apart + (transposed ? (inputs - 1) * column_step + 1 : inputs);
      TensorInside& one = all.emplace_back();
      one.name = with_expert(with_layer(known->parts[part], layer), expert);
      shape.front() = rows;
      one.tensor = {.type = tensor.type,
                    .shape = shape,
                    .bytes = tensor.bytes.subspan(bytes(first), bytes(extent)),
                    .offset = tensor.offset + bytes(first),
                    .row_step = row_step == inputs && column_step == 1 ? 0 : row_step,
                    .column_step = column_step};
      if (run > 1 && division.groups > 1) {
        one.tensor.run = run;
        one.tensor.run_step = group;
      }
      before += run;
      if (!blocks) continue;
      one.tensor.type = "MXFP4";
      one.tensor.shape.back() *= values_of_byte;
      one.tensor.row_step *= values_of_byte;
      one.tensor.scales_apart = true;
    }
  }
  return all;
}

std::optional<PackedPlace> packed_place(std::span<const PackedNames> names, const std::string& name,
                                        const std::vector<std::int64_t>& shape, std::int64_t experts,
                                        const KeyHeadRows& heads) {
  for (const PackedNames& packed : names)
    for (const std::string_view part : packed.parts) {
      const auto layer = part.empty() || packed.also_apart ? std::nullopt : layer_in(part, name);
      if (!layer) continue;
      PackedPlace place{with_layer(packed.stored, *layer), shape, &packed};
      if (packed.rows[0] == nullptr) {
        place.shape.front() *= parts_of(packed);
      } else {
        place.shape.front() = 0;
        for (std::int64_t i = 0; i < parts_of(packed); ++i)
          place.shape.front() += heads.key_heads * heads.*packed.rows[static_cast<std::size_t>(i)];
      }
      if (packed.channels) place.shape.insert(place.shape.begin() + 1, 1);
      if (packed.transposed && shape.size() == 2) std::swap(place.shape[0], place.shape[1]);
      if (is_of_experts(packed)) place.shape.insert(place.shape.begin(), experts);
      return place;
    }
  return {};
}

}  // namespace motley
