#include "motley/checkpoint/gguf_names.hpp"

#include <algorithm>
#include <cctype>
#include <optional>

namespace motley {
namespace {

constexpr char layer_mark = 'N';

// A name in one of the formats, taken apart.
struct ParsedName {
  const TensorNames* names;
  std::string_view layer, ending;
};

// The layer in a name of this pattern; empty where the pattern has none.
std::optional<std::string_view> layer_in(std::string_view name, std::string_view pattern) {
  const std::size_t mark = pattern.find(layer_mark);
  if (mark == std::string_view::npos) return name == pattern ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view before = pattern.substr(0, mark), after = pattern.substr(mark + 1);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) return {};
  const std::string_view layer = name.substr(mark, name.size() - before.size() - after.size());
  const bool digits = std::ranges::all_of(layer, [](unsigned char c) { return std::isdigit(c) != 0; });
  return digits ? std::optional(layer) : std::nullopt;
}

std::optional<ParsedName> parse(std::span<const TensorNames> names, std::string_view name,
                                std::string_view TensorNames::*format) {
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  const std::string_view stem = name.substr(0, dot), ending = name.substr(dot);
  if (stem.empty() || (ending != ".weight" && ending != ".bias")) return {};
  for (const TensorNames& known : names)
    if (const auto layer = layer_in(stem, known.*format)) return ParsedName{&known, *layer, ending};
  return {};
}

}  // namespace

std::string with_layer(std::string_view pattern, std::string_view layer) {
  std::string name(pattern);
  if (const std::size_t mark = name.find(layer_mark); mark != std::string::npos) name.replace(mark, 1, layer);
  return name;
}

std::string gguf_name(std::span<const TensorNames> names, std::string_view hugging_face) {
  const auto name = parse(names, hugging_face, &TensorNames::hugging_face);
  if (!name || name->names->gguf.empty()) return {};
  return with_layer(name->names->gguf, name->layer).append(name->ending);
}

std::string hugging_face_name(std::span<const TensorNames> names, std::string_view gguf) {
  const auto name = parse(names, gguf, &TensorNames::gguf);
  return name ? with_layer(name->names->hugging_face, name->layer).append(name->ending) : std::string();
}

bool has_paired_rows(std::span<const TensorNames> names, std::string_view gguf) {
  const auto name = parse(names, gguf, &TensorNames::gguf);
  return name && name->names->paired_rows;
}

}  // namespace motley
