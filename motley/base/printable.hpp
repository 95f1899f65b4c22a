// Text from elsewhere (a network, a file) as it may be shown on a terminal or stand in a log: what a terminal would
// obey is written out. Where text is printed, it goes through here; JSON and pages escape by themselves.
#pragma once

#include <string>
#include <string_view>

namespace motley {

// Control characters (C0, C1 and DEL), the characters that turn the direction of text, Unicode's line separators, and
// bytes that are not UTF-8 become "\x1b" or "\u202e". One line stays one line.
std::string printable(std::string_view text);

// The same for text of several lines: "\n" and "\t" stay.
std::string printable_lines(std::string_view text);

}  // namespace motley
