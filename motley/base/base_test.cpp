#include <gtest/gtest.h>

#include "motley/base/binding.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/base/value.hpp"
#include "motley/base/version.hpp"

namespace motley {
namespace {

struct Leg {
  double latency_s = 0;
  bool operator==(const Leg&) const = default;
};
struct Trip {
  std::string name;
  std::vector<Leg> legs;
  std::int64_t seats = 1;
  std::int64_t luggage_bytes = 0;
  bool operator==(const Trip&) const = default;
};

}  // namespace

Schema<Leg> schema_of(Bound<Leg>) {
  return Schema<Leg>("leg", "One leg.")
      .quantity("latency", &Leg::latency_s, Dimension::seconds, "One way.", {.required = true, .min = 0});
}
Schema<Trip> schema_of(Bound<Trip>) {
  return Schema<Trip>("trip", "A trip.")
      .format("motley.trip/1")
      .field("name", &Trip::name, "Its name.", {.required = true})
      .field("legs", &Trip::legs, "In order.")
      .field("seats", &Trip::seats, "How many.", {.min = 1, .max = 9})
      .quantity("luggage", &Trip::luggage_bytes, Dimension::bytes, "Room.");
}

namespace {

std::string error_of(std::string_view toml) {
  try {
    read<Trip>(parse_toml(toml, "trip.toml"), "trip.toml");
  } catch (const Error& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no error";
}

// toml++ holds such a place for unreachable; the sanitizers would say so.
TEST(Toml, LettersOutsideAsciiAreNoWhiteSpace) {
  for (const char* text : {"a = 51\u035b", "a = 1\u00e9", "\u00e9 = 1", "a \u00e9= 1"})
    EXPECT_THROW(parse_toml(text, "x.toml"), Error) << text;
}

TEST(Binding, ReadsAndWritesBack) {
  const auto trip = read<Trip>(parse_toml(R"(format = "motley.trip/1"
name = "north"
luggage = "24 GiB"
[[legs]]
latency = "5 us"
)",
                                          "trip.toml"),
                               "trip.toml");
  EXPECT_EQ(trip.name, "north");
  EXPECT_EQ(trip.luggage_bytes, 24LL << 30);
  EXPECT_DOUBLE_EQ(trip.legs.at(0).latency_s, 5e-6);
  EXPECT_EQ(to_json(write(trip)),
            R"({"format":"motley.trip/1","name":"north","legs":[{"latency":"5 us"}],"luggage":"24 GiB"})");
  EXPECT_EQ(read<Trip>(parse_json(to_json(write(trip)), "x"), "x"), trip);
}

TEST(Binding, ErrorsNamePlaceCauseAndHint) {
  EXPECT_EQ(error_of("format = \"motley.trip/1\"\nname = \"a\"\nseets = 3"),
            "trip.toml:3: seets: unknown key | did you mean `seats`? (a newer version than " + program_version() +
                " may have written it)");
  EXPECT_EQ(error_of("format = \"motley.trip/1\"\nname = \"a\"\nseats = 12"),
            "trip.toml:3: seats: 12 is out of range | accepted: at least 1, at most 9");
  EXPECT_EQ(error_of("format = \"motley.trip/1\"\nname = \"a\"\nluggage = 12").substr(0, 50),
            "trip.toml:3: luggage: a number needs its unit | wr");
  EXPECT_EQ(
      error_of("format = \"motley.trip/2\"\nname = \"a\""),
      "trip.toml:1: format: version \"motley.trip/2\" is not supported | give a file with format = \"motley.trip/1\"");
  EXPECT_EQ(error_of("format = \"motley.trip/1\"\nname = \"a\"\n[[legs]]\nlatency = \"5 GB\"").substr(0, 60),
            "trip.toml:4: legs[0].latency: \"5 GB\" has a wrong unit, \"GB\" ");
}

TEST(Value, JsonErrorsNameTheLine) {
  try {
    parse_json("{\n \"a\": 1,\n \"a\": 2}", "x.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "x.json:3: key \"a\" appears twice");
  }
  EXPECT_EQ(parse_json("{\n\"a\": [1,\n 2]}", "x").find("a")->as_array()[1].position.line, 3);
  EXPECT_THROW(parse_json("{\"a\": \"\xff\"}", "x"), Error);
  EXPECT_THROW(parse_json(std::string(200, '['), "x"), Error);
  EXPECT_THROW(parse_json("{} x", "x"), Error);
}

TEST(Units, RoundTripExactly) {
  EXPECT_DOUBLE_EQ(parse_quantity("10 Gbit/s", Dimension::bytes_per_s), 1.25e9);
  EXPECT_DOUBLE_EQ(parse_quantity("2.40 $/h", Dimension::usd_per_hour), 2.4);
  EXPECT_EQ(format_quantity(1.25e9, Dimension::bytes_per_s), "1.25 GB/s");
  for (const double value : {1.0, 5e-6, 0.04, 1.0 / 3, 12e-3, 7e-11, 0.0, 123456.789})
    EXPECT_EQ(parse_quantity(format_quantity(value, Dimension::seconds), Dimension::seconds), value);
  EXPECT_THROW(parse_quantity("5", Dimension::seconds), Error);
  EXPECT_THROW(parse_quantity("5 GB", Dimension::seconds), Error);
}

TEST(FreeMemory, IsWhatTheKernelTells) {
  EXPECT_GT(free_memory_bytes(), 0);
  EXPECT_LT(free_memory_bytes(), std::int64_t{1} << 50);
}

}  // namespace
}  // namespace motley
