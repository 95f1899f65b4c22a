#include "motley/checkpoint/name_patterns.hpp"

#include <cctype>
#include <utility>

namespace motley {
namespace {

std::string with_mark(std::string_view pattern, char mark, std::string_view value) {
  std::string name(pattern);
  if (const std::size_t at = name.find(mark); at != std::string::npos) name.replace(at, 1, value);
  return name;
}

}  // namespace

std::string with_layer(std::string_view pattern, std::string_view layer) {
  return with_mark(pattern, layer_mark, layer);
}

std::string with_expert(std::string_view pattern, std::int64_t expert) {
  return with_mark(pattern, expert_mark, std::to_string(expert));
}

std::optional<std::string> layer_in(std::string_view pattern, std::string_view name) {
  std::string layer;
  std::size_t at = 0;
  for (const char mark : pattern) {
    if (mark != layer_mark && mark != expert_mark) {
      if (at == name.size() || name[at++] != mark) return std::nullopt;
      continue;
    }
    const std::size_t first = at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) != 0) ++at;
    if (at == first) return std::nullopt;
    if (mark == layer_mark) layer = name.substr(first, at - first);
  }
  return at == name.size() ? std::optional(std::move(layer)) : std::nullopt;
}

}  // namespace motley
