// Stop strings: matched on text, wherever the tokens' borders fall.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace motley {

// Length of the longest end of `text` that `whole` begins with, short of all of it.
std::size_t possible_start(std::string_view text, std::string_view whole);

class StopMatcher {
 public:
  // Empty strings are not allowed.
  explicit StopMatcher(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  // Takes the next piece and gives out what surely comes before any stop string; holds back what may be the start of
  // one. Once one is found, what precedes it is given out and all else is dropped.
  std::string push(std::string_view text);
  // What is still held back: no stop string came of it.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace motley
