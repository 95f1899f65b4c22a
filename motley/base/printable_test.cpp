#include "motley/base/printable.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(Printable, WhatATerminalObeysIsWrittenOut) {
  EXPECT_EQ(printable("\x1b]0;owned\x07\x1b[2J\x1b[31mcpu\n[ 0.00s] forged\r\t\x7f"),
            "\\x1b]0;owned\\x07\\x1b[2J\\x1b[31mcpu\\x0a[ 0.00s] forged\\x0d\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\u0085\u009b31m"), "\\u0085\\u009b31m") << "C1 in UTF-8";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m")
      << "C1 in Latin-1";
  EXPECT_EQ(printable("a\u202egpj.exe\u2066\u200f\u061c\u2028b\u2029"),
            "a\\u202egpj.exe\\u2066\\u200f\\u061c\\u2028b\\u2029");
}

TEST(Printable, EverythingElseStays) {
  const std::string text = "Büro 東京 🐻 \"AMD EPYC\" \\x1b \u00a0\u200b\u2027\u202f\u206a";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable_lines("a\n\tb\r\x1b"), "a\n\tb\\x0d\\x1b");
}

TEST(Printable, BytesThatAreNotUtf8AreWrittenOut) {
  EXPECT_EQ(printable("\xc3"), "\\xc3") << "cut off";
  EXPECT_EQ(printable("\xe6\x9d"), "\\xe6\\x9d");
  EXPECT_EQ(printable("\xc0\x9b\xc1\xbf"), "\\xc0\\x9b\\xc1\\xbf") << "longer than needed";
  EXPECT_EQ(printable("\xe0\x82\x9b"), "\\xe0\\x82\\x9b") << "longer than needed, of C1";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("\xff\x80z"), "\\xff\\x80z");
}

}  // namespace
}  // namespace motley
