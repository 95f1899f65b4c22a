#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "motley/cli/command.hpp"

namespace motley::cli {
namespace {

struct Renamed {
  std::vector<std::string> before, now;
};

// tests/server/test_renamed.py reads this table and runs each line.
const std::vector<Renamed> renamed_commands = {
    {{"status"}, {"deployment", "status"}}, {{"plan", "apply"}, {"deployment", "apply"}},
    {{"drain"}, {"deployment", "drain"}},   {{"link"}, {"deployment", "invite"}},
    {{"coordinate"}, {"group", "serve"}},   {{"bench", "comm"}, {"group", "bench"}},
};

}  // namespace

std::vector<std::string> renamed(std::vector<std::string> words) {
  const auto found = std::ranges::find_if(renamed_commands, [&](const Renamed& command) {
    return std::ranges::mismatch(command.before, words).in1 == command.before.end();
  });
  if (found == renamed_commands.end()) return words;
  fmt::print(stderr, "`motley {}` is called `motley {}` now\n", fmt::join(found->before, " "),
             fmt::join(found->now, " "));
  words.erase(words.begin(), words.begin() + std::ssize(found->before));
  words.insert(words.begin(), found->now.begin(), found->now.end());
  return words;
}

}  // namespace motley::cli
