#include "motley/checkpoint/gguf_names.hpp"

#include <algorithm>
#include <utility>

namespace motley {
namespace {

// A name in one of the formats, taken apart.
struct ParsedName {
  const TensorNames* names = nullptr;
  std::string layer;
  std::string_view ending;
};

std::optional<ParsedName> parse(std::span<const TensorNames> names, std::string_view name,
                                std::string_view TensorNames::*format) {
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  const std::string_view stem = name.substr(0, dot), ending = name.substr(dot);
  if (stem.empty()) return {};
  const bool usual = ending == ".weight" || ending == ".bias";
  for (const TensorNames& known : names) {
    const bool whole = !known.gguf_ending.empty() && format == &TensorNames::hugging_face;
    if (!whole && !(known.gguf_ending.empty() ? usual : ending == known.gguf_ending)) continue;
    if (auto layer = layer_in(known.*format, whole ? name : stem)) return ParsedName{&known, *std::move(layer), ending};
  }
  return {};
}

// Of a name in the other format.
std::string_view ending_of(const ParsedName& name, bool in_gguf) {
  if (name.names->gguf_ending.empty()) return name.ending;
  return in_gguf ? name.names->gguf_ending : std::string_view();
}

}  // namespace

std::string gguf_name(std::span<const TensorNames> names, std::string_view hugging_face) {
  const auto name = parse(names, hugging_face, &TensorNames::hugging_face);
  if (!name || name->names->gguf.empty()) return {};
  return with_layer(name->names->gguf, name->layer).append(ending_of(*name, true));
}

std::string hugging_face_name(std::span<const TensorNames> names, std::string_view gguf) {
  const auto name = parse(names, gguf, &TensorNames::gguf);
  return name ? with_layer(name->names->hugging_face, name->layer).append(ending_of(*name, false)) : std::string();
}

const TensorNames* names_of(std::span<const TensorNames> names, std::string_view gguf) {
  const auto name = parse(names, gguf, &TensorNames::gguf);
  return name ? name->names : nullptr;
}

bool has_paired_rows(std::span<const TensorNames> names, std::string_view gguf) {
  const TensorNames* known = names_of(names, gguf);
  return known != nullptr && known->paired_rows;
}

}  // namespace motley
