#include "motley/checkpoint/gguf_names.hpp"

#include <algorithm>
#include <cctype>

namespace motley {
namespace {

std::string with_mark(std::string_view pattern, char mark, std::string_view value) {
  std::string name(pattern);
  if (const std::size_t at = name.find(mark); at != std::string::npos) name.replace(at, 1, value);
  return name;
}

// A name in one of the formats, taken apart.
struct ParsedName {
  const TensorNames* names = nullptr;
  std::string layer = {}, expert = {};  // empty: the pattern has none
  std::string_view ending = {};
};

// Whether a name is of this pattern, with digits for its marks, which are put into `parsed`.
bool matches(std::string_view name, std::string_view pattern, ParsedName& parsed) {
  std::size_t at = 0;
  for (const char mark : pattern) {
    if (mark != layer_mark && mark != expert_mark) {
      if (at == name.size() || name[at++] != mark) return false;
      continue;
    }
    const std::size_t first = at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) != 0) ++at;
    if (at == first) return false;
    (mark == layer_mark ? parsed.layer : parsed.expert) = name.substr(first, at - first);
  }
  return at == name.size();
}

std::optional<ParsedName> parse(std::span<const TensorNames> names, std::string_view name,
                                std::string_view TensorNames::*format) {
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  const std::string_view stem = name.substr(0, dot), ending = name.substr(dot);
  if (stem.empty()) return {};
  const bool usual = ending == ".weight" || ending == ".bias";
  for (const TensorNames& known : names) {
    const bool whole = !known.gguf_ending.empty() && format == &TensorNames::hugging_face;
    if (!whole && !(known.gguf_ending.empty() ? usual : ending == known.gguf_ending)) continue;
    ParsedName parsed{.names = &known, .ending = ending};
    if (matches(whole ? name : stem, known.*format, parsed)) return parsed;
  }
  return {};
}

// Of a name in the other format.
std::string_view ending_of(const ParsedName& name, bool in_gguf) {
  if (name.names->gguf_ending.empty()) return name.ending;
  return in_gguf ? name.names->gguf_ending : std::string_view();
}

}  // namespace

std::string with_layer(std::string_view pattern, std::string_view layer) {
  return with_mark(pattern, layer_mark, layer);
}

std::string with_expert(std::string_view pattern, std::int64_t expert) {
  return with_mark(pattern, expert_mark, std::to_string(expert));
}

std::optional<std::string> layer_in(std::string_view pattern, std::string_view name) {
  ParsedName parsed;
  return matches(name, pattern, parsed) ? std::optional(parsed.layer) : std::nullopt;
}

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
