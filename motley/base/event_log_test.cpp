#include "motley/base/event_log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace motley {
namespace {

TEST(EventLog, ShowsAllAndKeepsTheNewestThatIsNoProgress) {
  std::vector<std::string> shown;
  EventLog log([&](const Event& event) { shown.push_back(event.what + ": " + event.detail); });
  log("digests", "50 %");
  for (std::size_t i = 0; i <= EventLog::most_kept; ++i) log("joined", std::to_string(i));
  EXPECT_EQ(shown.size(), EventLog::most_kept + 2);
  EXPECT_EQ(shown.front(), "digests: 50 %");
  const auto kept = log.newest();
  ASSERT_EQ(kept.size(), EventLog::most_kept);
  EXPECT_EQ(kept.front().detail, "1");
  EXPECT_GE(kept.back().elapsed_s, kept.front().elapsed_s);
}

TEST(EventLog, WithoutAnybodyWhoLooksItIsKeptAllTheSame) {
  EventLog log;
  log("joined", "box");
  ASSERT_EQ(log.newest().size(), 1u);
  EXPECT_EQ(log.newest().front().what, "joined");
}

}  // namespace
}  // namespace motley
