#include "motley/base/hints.hpp"

#include <fmt/format.h>

#include <utility>

#include "motley/base/binding.hpp"

namespace motley {

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates, std::string otherwise,
                         char quote) {
  const std::string best = closest(word, candidates);
  return best.empty() ? std::move(otherwise) : fmt::format("did you mean {0}{1}{0}?", quote, best);
}

std::string with_hint(const std::exception& error) {
  const auto* told = dynamic_cast<const Error*>(&error);
  if (told == nullptr || told->hint().empty()) return error.what();
  return fmt::format("{} ({})", error.what(), told->hint());
}

}  // namespace motley
