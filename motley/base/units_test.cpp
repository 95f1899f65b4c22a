#include "motley/base/units.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "motley/base/error.hpp"

namespace motley {
namespace {

TEST(Units, EveryUnitIsWorthWhatItSays) {
  for (const auto& [text, dimension, value] : {std::tuple("3 B", Dimension::bytes, 3.0),
                                               {"3 kB", Dimension::bytes, 3e3},
                                               {"3 MB", Dimension::bytes, 3e6},
                                               {"3 GB", Dimension::bytes, 3e9},
                                               {"3 TB", Dimension::bytes, 3e12},
                                               {"3 KiB", Dimension::bytes, 3072.0},
                                               {"3 MiB", Dimension::bytes, 3145728.0},
                                               {"3 GiB", Dimension::bytes, 3221225472.0},
                                               {"3 TiB", Dimension::bytes, 3298534883328.0},
                                               {"3 kB/s", Dimension::bytes_per_s, 3e3},
                                               {"3 TB/s", Dimension::bytes_per_s, 3e12},
                                               {"3 KiB/s", Dimension::bytes_per_s, 3072.0},
                                               {"3 MiB/s", Dimension::bytes_per_s, 3145728.0},
                                               {"3 GiB/s", Dimension::bytes_per_s, 3221225472.0},
                                               {"8 bit/s", Dimension::bytes_per_s, 1.0},
                                               {"8 kbit/s", Dimension::bytes_per_s, 1e3},
                                               {"8 Mbit/s", Dimension::bytes_per_s, 1e6},
                                               {"8 Gbit/s", Dimension::bytes_per_s, 1e9},
                                               {"8 Tbit/s", Dimension::bytes_per_s, 1e12},
                                               {"3 ms", Dimension::seconds, 3e-3},
                                               {"3 us", Dimension::seconds, 3e-6},
                                               {"3 \u00b5s", Dimension::seconds, 3e-6},
                                               {"3 ns", Dimension::seconds, 3e-9},
                                               {"3 min", Dimension::seconds, 180.0},
                                               {"3 h", Dimension::seconds, 10800.0},
                                               {"3 d", Dimension::seconds, 259200.0},
                                               {"3 MFLOP/s", Dimension::flop_per_s, 3e6},
                                               {"3 GFLOP/s", Dimension::flop_per_s, 3e9},
                                               {"3 TFLOP/s", Dimension::flop_per_s, 3e12},
                                               {"3 PFLOP/s", Dimension::flop_per_s, 3e15},
                                               {"3 USD/h", Dimension::usd_per_hour, 3.0},
                                               {"3 s/GB", Dimension::seconds_per_byte, 3e-9},
                                               {"3 /min", Dimension::per_s, 0.05},
                                               {"3.6 /h", Dimension::per_s, 1e-3}})
    EXPECT_DOUBLE_EQ(parse_quantity(text, dimension), value) << text;
}

TEST(Units, WhatIsWrittenIsReadBackToTheLastBit) {
  for (int i = 1; i < 2000; ++i)
    for (const double scale : {1e-9, 1e-6, 1e-3, 0.1, 1.0, 1e3}) {
      const double value = i * scale;
      EXPECT_EQ(parse_quantity(format_quantity(value, Dimension::seconds), Dimension::seconds), value);
      EXPECT_EQ(parse_quantity(format_quantity(value, Dimension::bytes_per_s), Dimension::bytes_per_s), value);
    }
}

TEST(Units, OnlyFiniteNumbersAreQuantities) {
  for (const char* text : {"inf s", "-inf s", "nan s", "s", "", "1e999 s"})
    EXPECT_THROW(parse_quantity(text, Dimension::seconds), Error) << text;
}

TEST(Units, PeopleReadThreeDigits) {
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(10 * 1024), "10.0 KiB");
  EXPECT_EQ(human_bytes(100 * 1024), "100 KiB");
  EXPECT_EQ(human_bytes(0), "0.00 B");
  EXPECT_EQ(human_rate(1e9), "1.00 GB/s");
  EXPECT_EQ(human_seconds(1e-3), "1.00 ms");
  EXPECT_EQ(human_seconds(-0.25), "-250 ms");
  EXPECT_EQ(human_count(68.98e9), "69.0 B");
  EXPECT_EQ(human_count(7), "7.00");
}

}  // namespace
}  // namespace motley
