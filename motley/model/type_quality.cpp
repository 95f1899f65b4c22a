#include "motley/model/weight_quality.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "motley/base/binding.hpp"

namespace motley {

std::string_view weight_types_json();

namespace {

struct TypeQuality {
  DType type = DType::q8_0;
  double perplexity = 0;
  double kl = 0;
  bool operator==(const TypeQuality&) const = default;
};
struct QualityTable {
  std::string model, source;
  double unquantised_perplexity = 0;
  std::vector<TypeQuality> types;
  bool operator==(const QualityTable&) const = default;
};

}  // namespace

template <>
const Schema<TypeQuality>& schema<TypeQuality>() {
  using Q = TypeQuality;
  static const auto table =
      Schema<Q>("weight type", "What a type of weights changes.")
          .field("type", &Q::type, "A quantised type.", {.required = true})
          .field("perplexity", &Q::perplexity, "Of the model in this type.", {.required = true, .above = 0})
          .field("kl", &Q::kl, "Mean divergence to the unquantised model.", {.required = true, .above = 0});
  return table;
}
template <>
const Schema<QualityTable>& schema<QualityTable>() {
  using Q = QualityTable;
  static const auto table = Schema<Q>("weight types", "Published quality of quantised weights.")
                                .format("motley.weight_types/1")
                                .field("model", &Q::model, "The model that was measured.", {.required = true})
                                .field("source", &Q::source, "Where, and what.", {.required = true})
                                .field("unquantised_perplexity", &Q::unquantised_perplexity,
                                       "Of the unquantised model.", {.required = true, .above = 0})
                                .field("types", &Q::types, "From the best on.", {.required = true});
  return table;
}

namespace {

const std::vector<TypeQuality>& qualities() {
  static const auto table =
      read<QualityTable>(parse_json(weight_types_json(), "data/weight_types.json"), "data/weight_types.json");
  return table.types;
}

bool fits_rows(const Architecture& arch, DType type) {
  const std::int64_t block = dtype_row(type).block_values;
  return std::ranges::all_of(block_tensors(arch, 0), [&](const TensorSpec& tensor) {
    return tensor.shape.size() != 2 || tensor.shape[1] % block == 0;
  });
}

}  // namespace

std::optional<double> weight_kl(DType type) {
  if (dtype_row(type).block_values == 1 && dtype_row(type).bits_per_value() >= 16) return 0;
  for (const TypeQuality& quality : qualities())
    if (quality.type == type) return quality.kl;
  return std::nullopt;
}

std::vector<DType> weight_type_choices(const Architecture& arch) {
  std::vector<DType> choices = {arch.checkpoint_type};
  double fewest_bits = dtype_row(arch.checkpoint_type).bits_per_value();
  for (const TypeQuality& quality : qualities()) {
    const double bits = dtype_row(quality.type).bits_per_value();
    if (bits >= fewest_bits || !supports(quality.type, Support::planned, Use::weights) ||
        !fits_rows(arch, quality.type))
      continue;
    choices.push_back(quality.type);
    fewest_bits = bits;
  }
  return choices;
}

}  // namespace motley
