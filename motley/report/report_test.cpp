#include <gtest/gtest.h>

#include "motley/report/plan_report.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

TEST(Table, AlignsByCharactersNotBytes) {
  Table table({{"name"}, {"size", Align::right}});
  table.add({"µs", "5"});
  table.add({"seconds", "10"});
  EXPECT_EQ(table.render(""), "name     size\nµs          5\nseconds    10\n");
}

TEST(Table, NoTitlesNoTitleLine) {
  Table table({{""}, {""}});
  table.add({"a", ""});
  EXPECT_EQ(table.render("> "), "> a\n");
}

TEST(CompactDevices, JoinsConsecutiveSlots) {
  EXPECT_EQ(compact_devices({"box/0", "box/1", "box/2"}), "box/0-2");
  EXPECT_EQ(compact_devices({"box/0", "box/2", "lab/3", "lab/4"}), "box/0, box/2, lab/3-4");
  EXPECT_EQ(compact_devices({"odd"}), "odd");
}

}  // namespace
}  // namespace motley
