// Text and documents that strangers send: what is read of them is bounded, and so is what is repeated of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace motley {

class Value;

constexpr std::size_t most_message_bytes = 1000;  // of a whole message, which may repeat what was sent

// The text as a message quotes it: what is longer is cut at a character, as in "kkkk... (4000000 bytes)".
std::string shortened(std::string_view text, std::size_t most_bytes = 80);

// The start of the character of UTF-8 in which this byte stands; the end of a text that is no longer than `place`.
std::size_t character_start(std::string_view text, std::size_t place);

// parse_json() of a document that may hold `max_values` values: a value takes 48 bytes of memory, and two bytes of text
// are enough for one.
Value parse_json_within(std::string_view text, std::string_view source, std::size_t max_values);

}  // namespace motley
