#include "motley/server/text_stream.hpp"

#include <algorithm>
#include <utility>

namespace motley {
namespace {

// Length of the longest end of `text` that a stop string begins with.
std::size_t possible_start(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const auto& stop : stops)
    for (std::size_t length = std::min(stop.size() - 1, text.size()); length > longest; --length)
      if (text.ends_with(std::string_view(stop).substr(0, length))) longest = length;
  return longest;
}

}  // namespace

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const auto& stop : stops_) first = std::min(first, held_.find(stop));
  stopped_ = first != std::string::npos;
  std::string out = held_.substr(0, stopped_ ? first : held_.size() - possible_start(held_, stops_));
  held_.erase(0, stopped_ ? held_.size() : out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace motley
