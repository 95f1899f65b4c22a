#include "motley/base/limited_log.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace motley {
namespace {

TEST(LimitedLog, WhatOthersCauseIsCountedBeyondAFewLines) {
  std::vector<std::string> lines;
  LimitedLog log([&](const std::string& line) { lines.push_back(line); });
  const Instant start = Clock::now();
  for (int i = 0; i < 10'000; ++i) log(fmt::format("refused peer=\"{}\"", i), start);
  EXPECT_EQ(lines.size(), LimitedLog::most_at_once);
  log("joined a b", start);  // of another kind
  EXPECT_EQ(lines.back(), "joined a b");
  lines.clear();
  log.tell_left_out(start);
  EXPECT_THAT(lines, testing::IsEmpty());
  for (int i = 1; i < 3; ++i) log.tell_left_out(start + std::chrono::seconds(i));
  EXPECT_THAT(lines, testing::ElementsAre("refused more=9950"));
}

}  // namespace
}  // namespace motley
