#include "motley/server/text_stream.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace motley {
namespace {

TEST(StopMatcher, FindsStopsAcrossBorders) {
  StopMatcher matcher({"END", "\n\n"});
  EXPECT_EQ(matcher.push("one E"), "one ");
  EXPECT_EQ(matcher.push("N"), "");
  EXPECT_EQ(matcher.push("ough\n"), "ENough");
  EXPECT_EQ(matcher.push("two\nEN"), "\ntwo\n");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.push("D of it"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, TheFirstInTheTextWins) {
  StopMatcher matcher({"cd", "bcde"});
  EXPECT_EQ(matcher.push("abcdef"), "a");
}

TEST(StopMatcher, GivesBackWhatCameToNothing) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a sto"), "a ");
  EXPECT_EQ(matcher.finish(), "sto");
}

// However the text is cut, the same comes out: everything before the stop string that is complete first.
RC_GTEST_PROP(StopMatcher, BordersDoNotMatter, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b'));
  const auto text = *rc::gen::scale(3, letters);
  auto stops = *rc::gen::container<std::vector<std::string>>(
      rc::gen::suchThat(rc::gen::scale(0.1, letters), [](const std::string& s) { return !s.empty(); }));
  StopMatcher matcher(stops);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto length = *rc::gen::inRange<std::size_t>(1, text.size() - at + 1);
    const std::string piece = matcher.push(std::string_view(text).substr(at, length));
    out += piece;
    at += length;
  }
  out += matcher.finish();
  const bool holds_stop =
      std::ranges::any_of(stops, [&](const auto& stop) { return text.find(stop) != std::string::npos; });
  RC_ASSERT(matcher.stopped() == holds_stop);
  if (!holds_stop) RC_ASSERT(out == text);
  RC_ASSERT(text.starts_with(out));
  for (const auto& stop : stops) RC_ASSERT(out.find(stop) == std::string::npos);
}

}  // namespace
}  // namespace motley
