// Bodies that a stranger may send: what reading them costs in allocations and in processor time.
#include "motley/base/foreign.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/base/cost_test.hpp"
#include "motley/base/error.hpp"
#include "motley/base/hostile_json_test.hpp"

namespace motley {
namespace {

TEST(Foreign, QuotesAreCutAtACharacter) {
  EXPECT_EQ(shortened("short"), "short");
  EXPECT_EQ(shortened("abcdef", 3), "abc... (6 bytes)");
  EXPECT_EQ(shortened("a\u00fcb", 2), "a... (4 bytes)");
  EXPECT_EQ(shortened(std::string(80, 'k')), std::string(80, 'k'));
}

TEST(Foreign, ADocumentHoldsSoManyValuesAndNoMore) {
  EXPECT_NO_THROW(parse_json_within("[1,2,{\"a\":3}]", "x", 5));
  try {
    parse_json_within("[1,\n2,{\"a\":3}]", "x", 4);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "x:2: the document must not hold more than 4 values");
  }
}

// What is quoted of a document is short, wherever it stands.
TEST(Foreign, NothingIsQuotedAtLength) {
  const std::string huge(1 << 20, 'k');
  for (const std::string& text : {"{\"" + huge + "\":1,\"" + huge + "\":2}", "[" + huge + "]", "\"" + huge,
                                  "[1" + std::string(1 << 20, '0') + "]"}) {
    try {
      parse_json(text, "x");
      ADD_FAILURE() << text.substr(0, 20);
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 300U) << text.substr(0, 20);
    }
  }
  EXPECT_EQ(closest(huge, {huge + "k", "a"}), "") << "names are short";
}

// Work is counted in processor time: between these sizes it grows 16 times where it is linear, 256 times where it is
// quadratic. Caches may make a factor of their own.
TEST(Foreign, ReadingCostsWhatTheBytesDo) {
  constexpr std::size_t most_values = std::size_t{1} << 20, few_bytes = std::size_t{1} << 19, bytes = 16 * few_bytes;
  for (const HostileJson& kind : hostile_documents()) {
    SCOPED_TRACE(kind.name);
    const auto cost = [&](std::size_t size) {
      const std::string text = kind.make(size);
      return cost_of([&] {
        try {
          parse_json_within(text, "body", most_values);
        } catch (const Error&) {
        }
      });
    };
    const Cost small = cost(few_bytes), large = cost(bytes);
    EXPECT_LT(large.peak_bytes, std::size_t{192} << 20);
    EXPECT_LT(large.total_bytes, 24 * small.total_bytes);
    const double most_s = 80 * small.processor_s + 0.05;
    EXPECT_LT(least_processor_s(large, most_s, [&] { return cost(bytes); }), most_s);
    if (std::getenv("MOTLEY_SHOW_COSTS") != nullptr)
      fmt::print("{:32} {:4} MB at once, {:4} MB in all, {:.3f} s, {:.1f} x\n", kind.name, large.peak_bytes >> 20,
                 large.total_bytes >> 20, large.processor_s, large.processor_s / small.processor_s);
  }
}

}  // namespace
}  // namespace motley
