// JSON that a stranger may send to make its reader slow or large, of about this many bytes. Keys of one hash are fewer:
// it takes long to find them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace motley {

struct HostileJson {
  std::string_view name;
  std::function<std::string(std::size_t bytes)> make;
};

// A list, or an object, of items that tell their number.
inline std::string joined(std::size_t bytes, char open, char close,
                          const std::function<std::string(std::size_t)>& item) {
  std::string text(1, open);
  for (std::size_t i = 0; text.size() + 16 < bytes; ++i) text += (i == 0 ? "" : ",") + item(i);
  return text + close;
}

inline std::string repeated_items(std::size_t bytes, const std::string& item) {
  return joined(bytes, '[', ']', [&](std::size_t) { return item; });
}

// Keys of 16 characters that libstdc++'s std::hash (MurmurHash64A with its fixed seed) maps to one value: the second
// half is solved for.
inline std::string colliding_keys(std::size_t bytes) {
  constexpr std::uint64_t m = 0xc6a4a7935bd1e995;
  std::uint64_t inverse = m;
  for (int i = 0; i < 6; ++i) inverse *= 2 - m * inverse;
  std::uint32_t draw = 0;
  std::string text = "{";
  while (text.size() + 32 < bytes) {
    draw += 0x9e3779b1;  // odd: no value comes twice
    std::uint64_t first = 0;
    for (int i = 0; i < 8; ++i) first = first << 8 | (static_cast<std::uint64_t>('A') + (draw >> 4 * i & 15));
    std::uint64_t mixed = first * m;
    mixed = (mixed ^ mixed >> 47) * m;
    std::uint64_t second = (((0xc70f6907 ^ 16 * m) ^ mixed) * m ^ 0x123456789abcdef1) * inverse;
    second = (second ^ second >> 47) * inverse;
    char key[16];
    std::memcpy(key, &first, 8);
    std::memcpy(key + 8, &second, 8);
    bool printable = true;
    for (const char c : key) printable = printable && c > ' ' && c < 0x7f && c != '"' && c != '\\';
    if (printable) text += fmt::format("{}\"{}\":0", text.size() > 1 ? "," : "", std::string_view(key, 16));
  }
  return text + "}";
}

inline const std::vector<HostileJson>& hostile_documents() {
  static const std::vector<HostileJson> kinds = {
      {"keys of one hash", [](std::size_t bytes) { return colliding_keys(bytes / 64); }},
      {"one long key", [](std::size_t bytes) { return "{\"" + std::string(bytes, 'k') + "\":0}"; }},
      {"one long key twice",
       [](std::size_t bytes) { return fmt::format("{{\"{0}\":0,\"{0}\":0}}", std::string(bytes / 2, 'k')); }},
      {"many keys",
       [](std::size_t bytes) { return joined(bytes, '{', '}', [](auto i) { return fmt::format("\"{:x}\":0", i); }); }},
      {"keys that differ at their end",
       [](std::size_t bytes) {
         const std::string start(1000, 'k');
         return joined(bytes, '{', '}', [&](auto i) { return fmt::format("\"{}{}\":0", start, i); });
       }},
      {"integers", [](std::size_t bytes) { return repeated_items(bytes, "0"); }},
      {"strings", [](std::size_t bytes) { return repeated_items(bytes, "\"a\""); }},
      {"empty lists", [](std::size_t bytes) { return repeated_items(bytes, "[]"); }},
      {"nested lists",
       [](std::size_t bytes) { return repeated_items(bytes, std::string(60, '[') + std::string(60, ']')); }},
      {"lists without an end", [](std::size_t bytes) { return std::string(bytes, '['); }},
      {"empty objects", [](std::size_t bytes) { return repeated_items(bytes, "{}"); }},
      {"small objects", [](std::size_t bytes) { return repeated_items(bytes, "{\"a\":0,\"b\":0}"); }},
      {"nested objects",
       [](std::size_t bytes) {
         std::string item = "0";
         for (int i = 0; i < 60; ++i) item = "{\"a\":" + item + "}";
         return repeated_items(bytes, item);
       }},
      {"messages", [](std::size_t bytes) { return repeated_items(bytes, R"({"role":"user","content":"a"})"); }},
      {"parts of one message",
       [](std::size_t bytes) {
         return "[{\"role\":\"user\",\"content\":" + repeated_items(bytes, R"({"type":"text","text":"a"})") + "}]";
       }},
      {"a long string", [](std::size_t bytes) { return "\"" + std::string(bytes, 'a') + "\""; }},
      {"escapes",
       [](std::size_t bytes) {
         std::string text = "\"";
         while (text.size() < bytes) text += "\\u00e4\\n";
         return text + "\"";
       }},
      {"a string without an end", [](std::size_t bytes) { return "\"" + std::string(bytes, 'a'); }},
      {"a long number", [](std::size_t bytes) { return std::string(bytes, '1'); }},
      {"long numbers",
       [](std::size_t bytes) { return repeated_items(bytes, "0." + std::string(1000, '1') + "e-300"); }},
      {"a long word", [](std::size_t bytes) { return std::string(bytes, 'x'); }},
  };
  return kinds;
}

}  // namespace motley
