#include "motley/base/value.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "motley/base/error.hpp"

namespace motley {
namespace {

std::string complaint(std::string_view json) {
  try {
    parse_json(json, "x");
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Value, AnIntegerIsANumberToo) {
  EXPECT_EQ(Value(std::int64_t{3}).as_number(), 3.0);
  EXPECT_THROW(Value(3.0).as_integer(), Error);
  EXPECT_EQ(Value(std::int64_t{3}), Value(3.0));
}

TEST(Value, IntegersAreEqualToTheLastBit) {
  constexpr std::int64_t even = std::int64_t{1} << 53;  // as a double, the next one is the same
  EXPECT_EQ(Value(even), Value(even));
  EXPECT_FALSE(Value(even) == Value(even + 1));
}

TEST(Value, SettingAKeyAgainReplacesItsValue) {
  Value table = Value::object({{"a", std::int64_t{1}}, {"b", std::int64_t{2}}});
  table.set("a", std::int64_t{3});
  EXPECT_EQ(to_json(table), R"({"a":3,"b":2})");
}

TEST(Value, WhatNoIntegerHoldsIsANumber) {
  EXPECT_EQ(parse_json("9223372036854775807", "x").as_integer(), 9223372036854775807);
  const Value above = parse_json("18446744073709551615", "x");
  EXPECT_FALSE(above.is_integer());
  EXPECT_EQ(above.as_number(), 18446744073709551615.0);
}

TEST(Value, JsonMayBeNestedSoDeepAndNoDeeper) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(64), "x"));
  EXPECT_EQ(complaint(nested(65)), "x:1: nesting must not be deeper than 64 levels");
}

TEST(Value, TomlMayBeNestedSoDeepAndNoDeeper) {
  const auto refusal = [](int depth) {
    std::string key = "a";
    for (int i = 1; i < depth; ++i) key += ".a";
    for (const std::string& text : {key + " = 1", "[" + key + "]"}) try {
        parse_toml("x = 1\n" + text, "x");
      } catch (const Error& error) {
        return std::string(error.what());
      }
    return std::string("none");
  };
  EXPECT_EQ(refusal(60), "none");
  EXPECT_EQ(refusal(70), "x:2: nesting must not be deeper than 64 levels");
  EXPECT_EQ(refusal(1000000), "x:2: a key must not have more than 10000 parts") << "a stack has no room for that many";
}

TEST(Value, ErrorsInJsonNameTheLineOfTheirCharacter) {
  EXPECT_EQ(complaint(""), "x: is empty");
  EXPECT_EQ(complaint("{\n\"a\": ?}").substr(0, 4), "x:2:");
  EXPECT_EQ(complaint("[\"a\nb\"]").substr(0, 4), "x:1:") << "the line's end stands on the line";
}

TEST(Value, TomlHoldsTruthAndNoDates) {
  const Value document = parse_toml("yes = true\nno = false", "x");
  EXPECT_TRUE(document.find("yes")->is_bool() && document.find("yes")->as_bool());
  EXPECT_FALSE(document.find("no")->as_bool());
  for (const char* date : {"1979-05-27", "07:32:00", "1979-05-27T07:32:00Z"}) {
    try {
      parse_toml(std::string("a = 1\nb = ") + date, "x");
      ADD_FAILURE() << date;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "x:2: dates and times are not supported");
    }
  }
}

TEST(Files, WhatCannotBeReadIsNamedWithWhatWasMeant) {
  std::string folder = std::filesystem::temp_directory_path() / "motley-value-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto refusal = [](const std::filesystem::path& path) {
    try {
      read_file(path);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return std::string("none");
  };
  const auto at = std::filesystem::path(folder);
  write_file(at / "cluster.toml", "");
  EXPECT_EQ(refusal(folder), folder + ": is a folder, not a file | give a file in this folder");
  EXPECT_EQ(refusal(at / "clutser.toml"),
            folder + "/clutser.toml: cannot be read (No such file or directory) | did you mean `" + folder +
                "/cluster.toml`?");
  EXPECT_EQ(refusal(at / "x"), folder + "/x: cannot be read (No such file or directory) | looked for in " + folder);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace motley
