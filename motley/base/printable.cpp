#include "motley/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace motley {
namespace {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: it is not UTF-8
};

// The shortest form alone counts, as in Unicode's table 3-7.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return {};
  char32_t code = byte(0) & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool longer_than_needed = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (longer_than_needed || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

bool is_obeyed(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c ||  // Arabic letter mark
         (code >= 0x200e && code <= 0x200f) ||                              // marks of direction
         (code >= 0x2028 && code <= 0x202e) ||                              // separators, embeddings, overrides
         (code >= 0x2066 && code <= 0x2069);                                // isolates
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    if (bytes == 0 || (code < 0x80 && is_obeyed(code) && kept.find(text.front()) == std::string_view::npos))
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    else if (code >= 0x80 && is_obeyed(code))
      shown += fmt::format("\\u{:04x}", static_cast<unsigned>(code));
    else
      shown += text.substr(0, bytes);
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, {}); }
std::string printable_lines(std::string_view text) { return escaped(text, "\n\t"); }

}  // namespace motley
