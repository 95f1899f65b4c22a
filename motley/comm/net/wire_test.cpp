#include "motley/comm/net/wire.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace motley {
namespace {

enum class Colour : std::uint8_t { red, green, last = green };
struct Pair {
  std::uint16_t low = 0, high = 0;
  std::string_view contradiction() const { return low > high ? "low above high" : ""; }
  bool operator==(const Pair&) const = default;
};
struct Everything {
  std::uint32_t number = 0;
  Colour colour = Colour::red;
  std::string text;
  BoundedText<3> name;
  BoundedList<std::int32_t, 2> numbers = {};
  BoundedList<Pair, 2> pairs = {};
  BoundedList<std::string, 2, 3> names = {};
  BoundedMap<std::int32_t, float, 2> table = {};
  std::optional<Pair> pair = {};
  std::variant<Pair, std::monostate> either = {};
  std::array<std::byte, 2> bytes = {};
  bool operator==(const Everything&) const = default;
};
static_assert(field_count<Pair>() == 2 && field_count<Everything>() == 11);

// A member without a bound does not compile.
static_assert(!std::is_invocable_v<WireWriter&, const std::vector<int>&>);
static_assert(!std::is_invocable_v<WireWriter&, const std::map<int, int>&>);
static_assert(!std::is_invocable_v<WireReader&, std::vector<int>&>);
static_assert(!std::is_invocable_v<WireReader&, std::byte*&>);

constexpr WireProtocol wire_test{.max_bytes = 1 << 20};

Everything sample() {
  return {.number = 1,
          .colour = Colour::green,
          .text = "text",
          .name = "abc",
          .numbers = {1, -1},
          .pairs = {{1, 2}, {3, 4}},
          .names = {"a", "bcd"},
          .table = {{1, 0.5F}, {2, 1}},
          .pair = Pair{5, 6},
          .either = Pair{7, 8},
          .bytes = {std::byte{9}, std::byte{10}}};
}

std::string cause_of(const auto& call) {
  try {
    call();
    return "none";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(Wire, CarriesEveryKindOfField) {
  EXPECT_EQ(decode_message<Everything>(wire_test, encode_message(wire_test, sample())), sample());
  EXPECT_EQ(encode_message(wire_test, Pair{1, 2}), std::string("\1\0\2\0", 4));
}

TEST(Wire, HoldsBothSidesToTheBounds) {
  const auto written = [](auto change) {
    Everything message = sample();
    change(message);
    return cause_of([&] { encode_message(wire_test, message); });
  };
  EXPECT_EQ(written([](Everything& m) { m.name = "abcd"; }),
            "a message would carry a list or text of 4 elements, more than 3");
  EXPECT_EQ(written([](Everything& m) { m.text.resize(max_text_bytes + 1); }),
            "a message would carry a list or text of 65537 elements, more than 65536");
  EXPECT_EQ(written([](Everything& m) {
              m.numbers = {1, 2, 3};
            }),
            "a message would carry a list or text of 3 elements, more than 2");
  EXPECT_EQ(written([](Everything& m) { m.names = {"abcd"}; }),
            "a message would carry a list or text of 4 elements, more than 3");
  EXPECT_EQ(cause_of([] { decode_message<BoundedText<3>>(wire_test, std::string("\4\0\0\0abcd", 8)); }),
            "malformed message: a length of 4, more than 3 at byte 4 of 8");
  EXPECT_EQ(cause_of([] { decode_message<BoundedList<std::int64_t, 4>>(wire_test, std::string("\4\0\0\0abcd", 8)); }),
            "malformed message: 32 more bytes expected at byte 4 of 8");
}

TEST(Wire, BelievesNoValueThatNamesNothing) {
  EXPECT_EQ(cause_of([] { decode_message<Colour>(wire_test, "\2"); }),
            "malformed message: a number that names nothing at byte 1 of 1");
  EXPECT_EQ(cause_of([] { decode_message<Pair>(wire_test, std::string("\2\0\1\0", 4)); }),
            "malformed message: low above high at byte 4 of 4");
}

}  // namespace
}  // namespace motley
