#include "motley/checkpoint/packed_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/checkpoint/name_patterns.hpp"
#include "motley/checkpoint/safetensors.hpp"

namespace motley {
namespace {

std::int64_t parts_of(const PackedNames& packed) { return packed.parts[1].empty() ? 1 : 2; }

bool is_of_experts(const PackedNames& packed) { return packed.parts[0].find(expert_mark) != std::string_view::npos; }

}  // namespace

std::vector<TensorInside> tensors_inside(std::span<const PackedNames> names, const std::filesystem::path& file,
                                         const std::string& stored, const StoredTensor& tensor) {
  std::optional<std::string> layer;
  const auto known = std::ranges::find_if(names, [&](const PackedNames& one) {
    layer = layer_in(one.stored, stored);
    return layer.has_value();
  });
  const auto value_bytes = safetensors_element_bytes(tensor.type);
  if (known == names.end() || !value_bytes) return {};
  const bool of_experts = is_of_experts(*known);
  const std::int64_t parts = parts_of(*known);
  std::vector<std::int64_t> shape = tensor.shape;  // of a part
  const std::int64_t experts = of_experts && !shape.empty() ? shape.front() : 1;
  if (of_experts && !shape.empty()) shape.erase(shape.begin());
  constexpr std::int64_t bytes_of_block = 16, values_of_byte = 2;
  const bool blocks = known->mxfp4 && shape.size() == 3 && shape.back() == bytes_of_block;
  if (blocks) {  // columns are bytes
    shape.pop_back();
    shape.back() *= bytes_of_block;
  }
  const bool matrix = shape.size() == 2, transposed = matrix && known->transposed;
  if (transposed) std::swap(shape[0], shape[1]);
  if (shape.empty() || shape.size() > 2 || experts < 1 || experts > most_experts_in_tensor || shape.front() < 1 ||
      shape.back() < 1 || shape.front() % parts != 0 || blocks != known->mxfp4)
    throw input_error(fmt::format("{}: {} {} cannot be {} of {}{} each", file.string(), stored,
                                  shape_text(tensor.shape), transposed ? "transposed matrices" : "tensors",
                                  of_experts ? "experts, " : "", parts == 2 ? "a gate and an up" : "one"),
                      "download the model again");
  shape.front() /= parts;
  const std::int64_t outputs = shape.front(), inputs = matrix ? shape.back() : 1;
  const std::int64_t values = parts * outputs * inputs;  // of an expert
  // Values from an output of the whole to the next, from one of a part to the next, and from an input to the next.
  const std::int64_t apart = transposed ? 1 : inputs;
  const std::int64_t row_step = apart * (known->by_turns ? parts : 1), column_step = transposed ? parts * outputs : 1;
  const std::int64_t extent = (outputs - 1) * row_step + (inputs - 1) * column_step + 1;  // of a part
  std::vector<TensorInside> all;
  for (std::int64_t expert = 0; expert < experts; ++expert)
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t first = expert * values + apart * part * (known->by_turns ? 1 : outputs);
      TensorInside& one = all.emplace_back();
      one.name = with_expert(with_layer(known->parts[static_cast<std::size_t>(part)], *layer), expert);
      one.tensor = {.type = tensor.type,
                    .shape = shape,
                    .bytes = tensor.bytes.subspan(static_cast<std::size_t>(first) * *value_bytes,
                                                  static_cast<std::size_t>(extent) * *value_bytes),
                    .offset = tensor.offset + static_cast<std::uint64_t>(first) * *value_bytes,
                    .row_step = row_step == inputs && column_step == 1 ? 0 : row_step,
                    .column_step = column_step};
      if (!blocks) continue;
      one.tensor.type = "MXFP4";
      one.tensor.shape.back() *= values_of_byte;
      one.tensor.row_step *= values_of_byte;
      one.tensor.scales_apart = true;
    }
  return all;
}

std::optional<PackedPlace> packed_place(std::span<const PackedNames> names, const std::string& name,
                                        const std::vector<std::int64_t>& shape, std::int64_t experts) {
  for (const PackedNames& packed : names)
    for (const std::string_view part : packed.parts) {
      const auto layer = part.empty() ? std::nullopt : layer_in(part, name);
      if (!layer) continue;
      PackedPlace place{with_layer(packed.stored, *layer), shape};
      place.shape.front() *= parts_of(packed);
      if (packed.transposed && shape.size() == 2) std::swap(place.shape[0], place.shape[1]);
      if (is_of_experts(packed)) place.shape.insert(place.shape.begin(), experts);
      return place;
    }
  return {};
}

}  // namespace motley
