#include "motley/model/warnings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace motley {

std::vector<std::string> model_warnings(const Model& model) {
  constexpr std::size_t most_named = 4;
  const auto& unread = model.unread;
  if (unread.empty()) return {};
  const std::size_t named = std::min(unread.size(), most_named);
  return {fmt::format("{}: {} tensor{} in its files that the model does not use: {}{}", model.name, unread.size(),
                      unread.size() == 1 ? "" : "s", fmt::join(unread.begin(), unread.begin() + named, ", "),
                      unread.size() > named ? ", ..." : "")};
}

}  // namespace motley
