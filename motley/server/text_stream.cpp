#include "motley/server/text_stream.hpp"

#include <algorithm>
#include <utility>

namespace motley {

std::size_t possible_start(std::string_view text, std::string_view whole) {
  std::size_t length = std::min(whole.size() - 1, text.size());
  while (!text.ends_with(whole.substr(0, length))) --length;
  return length;
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const auto& stop : stops_) first = std::min(first, held_.find(stop));
  stopped_ = first != std::string::npos;
  std::size_t kept = 0;
  for (const auto& stop : stops_) kept = std::max(kept, possible_start(held_, stop));
  std::string out = held_.substr(0, stopped_ ? first : held_.size() - kept);
  held_.erase(0, stopped_ ? held_.size() : out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace motley
