#include "motley/base/binding.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace motley {
namespace {

struct Parcel {
  double weight = 1;
  std::int64_t stamps = 1;
  double delay_s = 0;
};

}  // namespace

Schema<Parcel> schema_of(Bound<Parcel>) {
  return Schema<Parcel>("parcel", "A parcel.")
      .field("weight", &Parcel::weight, "Heavy.", {.above = 0})
      .field("stamps", &Parcel::stamps, "How many.", {.min = 1, .max = 9})
      .quantity("delay", &Parcel::delay_s, Dimension::seconds, "Late.", {.min = 0, .max = 5});
}

namespace {

std::string read_of(std::string_view toml) {
  try {
    read<Parcel>(parse_toml(toml, "p"), "p");
  } catch (const Error& error) {
    return error.what();
  }
  return "read";
}

TEST(Binding, EndsOfARangeBelongToItWhereItSaysSo) {
  EXPECT_EQ(read_of("stamps = 1"), "read");
  EXPECT_EQ(read_of("stamps = 9"), "read");
  EXPECT_EQ(read_of("stamps = 0"), "p:1: stamps: 0 is out of range");
  EXPECT_EQ(read_of("stamps = 10"), "p:1: stamps: 10 is out of range");
  EXPECT_EQ(read_of("weight = 1e-300"), "read");
  EXPECT_EQ(read_of("weight = 0"), "p:1: weight: 0 is out of range");
  EXPECT_EQ(read_of("delay = \"0 s\""), "read");
  EXPECT_EQ(read_of("delay = \"5 s\""), "read");
  EXPECT_EQ(read_of("delay = \"-1 ns\""), "p:1: delay: -1 ns is out of range");
  EXPECT_EQ(read_of("delay = \"6 s\""), "p:1: delay: 6 s is out of range");
}

TEST(Binding, NumbersAreFinite) {
  EXPECT_EQ(read_of("weight = inf"), "p:1: weight: must be finite");
  EXPECT_EQ(read_of("weight = nan"), "p:1: weight: must be finite");
}

TEST(Closest, CountsTwoLettersInEachOthersPlaceAsOneMistake) {
  EXPECT_EQ(closest("abdc", {"abcd"}), "abcd");
  EXPECT_EQ(closest("ABCD", {"abcd"}), "abcd");
  EXPECT_EQ(closest("dbca", {"abcd"}), "");
}

TEST(Closest, OfEquallyNearNamesTheFirst) {
  EXPECT_EQ(closest("cat", {"bat", "car", "hat"}), "bat");
  EXPECT_EQ(closest("cat", {"bats", "car", "hat"}), "car");
}

}  // namespace
}  // namespace motley
