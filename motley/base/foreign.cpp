#include "motley/base/foreign.hpp"

#include <fmt/format.h>

namespace motley {

std::size_t character_start(std::string_view text, std::size_t place) {
  if (place >= text.size()) return text.size();
  while (place > 0 && (text[place] & 0xc0) == 0x80) --place;
  return place;
}

std::string shortened(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  return fmt::format("{}... ({} bytes)", text.substr(0, character_start(text, most_bytes)), text.size());
}

}  // namespace motley
