// What an error says to do next: the name that was meant, and the hint in one line with its error.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace motley {

// did you mean "box/1"? With the closest() of `candidates`, or `otherwise` when none is close. What is typed as it
// stands (a key, an option, a column) has a backtick as its quote.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates, std::string otherwise = {},
                         char quote = '"');

// Text and hint of an error, for where there is only one line: "no address to listen at (`listen` is HOST:PORT)".
std::string with_hint(const std::exception& error);

}  // namespace motley
