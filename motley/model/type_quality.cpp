#include "motley/model/type_quality.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "motley/base/binding.hpp"

namespace motley {

std::string_view type_quality_json();

namespace {

struct TypeQuality {
  DType type = DType::q8_0;
  double perplexity = 0;
  double kl = 0;
  bool operator==(const TypeQuality&) const = default;
};
struct MeasuredTypes {
  std::string model, source;
  double unquantised_perplexity = 0;
  std::vector<TypeQuality> types;
  bool operator==(const MeasuredTypes&) const = default;
};
struct QualityTable {
  MeasuredTypes weights, keys_and_values;
  bool operator==(const QualityTable&) const = default;
};

}  // namespace

Schema<TypeQuality> schema_of(Bound<TypeQuality>) {
  using Q = TypeQuality;
  return Schema<Q>("type", "What a type changes.")
      .field("type", &Q::type, "A quantised type.", {.required = true})
      .field("perplexity", &Q::perplexity, "Of the model in this type.", {.required = true, .above = 0})
      .field("kl", &Q::kl, "Mean divergence to the unquantised model.", {.required = true, .above = 0});
}
Schema<MeasuredTypes> schema_of(Bound<MeasuredTypes>) {
  using M = MeasuredTypes;
  return Schema<M>("measured types", "Types of one model's tensors.")
      .field("model", &M::model, "The model that was measured.", {.required = true})
      .field("source", &M::source, "Where, and what.", {.required = true})
      .field("unquantised_perplexity", &M::unquantised_perplexity, "Of the unquantised model.",
             {.required = true, .above = 0})
      .field("types", &M::types, "From the best on.", {.required = true});
}
Schema<QualityTable> schema_of(Bound<QualityTable>) {
  using Q = QualityTable;
  return Schema<Q>("type quality", "What quantised types change.")
      .format("motley.type_quality/1")
      .field("weights", &Q::weights, "Every layer's weights.", {.required = true})
      .field("keys_and_values", &Q::keys_and_values, "Every layer's keys and values.", {.required = true});
}

namespace {

const QualityTable& measured() {
  static const auto table =
      read<QualityTable>(parse_json(type_quality_json(), "data/type_quality.json"), "data/type_quality.json");
  return table;
}

std::optional<double> kl_in(const MeasuredTypes& table, DType type) {
  if (dtype_row(type).block_values == 1 && dtype_row(type).bits_per_value() >= 16) return 0;
  for (const TypeQuality& quality : table.types)
    if (quality.type == type) return quality.kl;
  return std::nullopt;
}

bool fits_rows(const Architecture& arch, DType type) {
  const std::int64_t block = dtype_row(type).block_values;
  const auto fits = [&](const TensorSpec& tensor) {
    return !tensor.may_be_quantised() || tensor.shape[1] % block == 0;
  };
  return std::ranges::all_of(layer_of_kinds(arch),
                             [&](std::int64_t layer) { return std::ranges::all_of(block_tensors(arch, layer), fits); });
}

}  // namespace

std::optional<double> weight_kl(DType type) { return kl_in(measured().weights, type); }
std::optional<double> kv_kl(DType type) { return kl_in(measured().keys_and_values, type); }

std::vector<DType> weight_type_choices(const Architecture& arch) {
  std::vector<DType> choices = {arch.checkpoint_type};
  double fewest_bits = dtype_row(arch.checkpoint_type).bits_per_value();
  for (const TypeQuality& quality : measured().weights.types) {
    const double bits = dtype_row(quality.type).bits_per_value();
    if (bits >= fewest_bits || !supports(quality.type, Support::planned, Use::weights) ||
        !fits_rows(arch, quality.type))
      continue;
    choices.push_back(quality.type);
    fewest_bits = bits;
  }
  return choices;
}

std::vector<DType> kv_type_choices(const Architecture& arch) {
  std::vector<DType> choices = {dtype_row(arch.checkpoint_type).computed_in};
  for (const TypeQuality& quality : measured().keys_and_values.types)
    if (supports(quality.type, Support::planned, Use::kv) &&
        std::ranges::all_of(arch.kinds, [&](const LayerKind& kind) {
          return kind.head_dim % dtype_row(quality.type).block_values == 0;
        }))
      choices.push_back(quality.type);
  return choices;
}

}  // namespace motley
