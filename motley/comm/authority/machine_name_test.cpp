#include "motley/comm/authority/machine_name.hpp"

#include <gmock/gmock.h>

namespace motley {
namespace {

using ::testing::HasSubstr;

TEST(MachineName, OneRuleForAll) {
  for (const std::string name : {"box", "node-1", "node1", "Attic_2", "7", "a.b", "x-", "defaults"})
    EXPECT_EQ(machine_name_objection(name), "") << name;
  EXPECT_EQ(machine_name_objection(std::string(63, 'x')), "");
  for (const std::string name : {"", "box#1", "büro", "lab:3", "box/0", "a b", "a,b", "a*2", "-box", ".", "_x", "a\nb"})
    EXPECT_THAT(machine_name_objection(name), HasSubstr("1 to 63 letters, digits, `-`, `_` and `.`")) << name;
  EXPECT_THAT(machine_name_objection(std::string(100'000, 'x')), ::testing::SizeIs(::testing::Lt(300)));
  EXPECT_THAT(machine_name_objection("a\x1b"), ::testing::Not(HasSubstr("\x1b")));
  for (const std::string name : {"default", "Default", "coordinator", "COORDINATOR"})
    EXPECT_THAT(machine_name_objection(name), HasSubstr("the name is reserved")) << name;
}

TEST(MachineName, CaseTellsNoTwoMachinesApart) {
  EXPECT_EQ(folded_machine_name("Alpha-1"), folded_machine_name("aLPHA-1"));
  EXPECT_NE(folded_machine_name("node-1"), folded_machine_name("node1"));
}

TEST(MachineName, AHostsNameIsMadeToFit) {
  EXPECT_EQ(machine_name_of_host("box.example.org"), "box");
  EXPECT_EQ(machine_name_of_host("Anna's-Büro"), "Anna-s-B--ro");
  EXPECT_EQ(machine_name_of_host("_gateway"), "gateway");
  EXPECT_EQ(machine_name_of_host(""), "machine");
  EXPECT_EQ(machine_name_of_host("..."), "machine");
  EXPECT_EQ(machine_name_of_host("東京"), "machine");
  EXPECT_EQ(machine_name_of_host("Default"), "Default-1");
  for (const std::string& host : {std::string(255, 'h'), std::string(255, '-'), std::string("\xff\n\x1b")})
    EXPECT_EQ(machine_name_objection(machine_name_of_host(host)), "") << host;
}

}  // namespace
}  // namespace motley
