#include "motley/hub/named_model.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(HubName, IsOwnerAndNameWithAFileOrWithout) {
  EXPECT_EQ(parse_hub_name("Qwen/Qwen2.5-0.5B"), (HubName{"Qwen/Qwen2.5-0.5B", ""}));
  EXPECT_EQ(parse_hub_name("a/b"), (HubName{"a/b", ""}));
  EXPECT_EQ(parse_hub_name("own/my_model-GGUF:q4_k_m.gguf"), (HubName{"own/my_model-GGUF", "q4_k_m.gguf"}));
  EXPECT_EQ(parse_hub_name("own/tales:parts/tales-00001-of-00003.gguf"),
            (HubName{"own/tales", "parts/tales-00001-of-00003.gguf"}));
  EXPECT_EQ(parse_hub_name("0wner/9b"), (HubName{"0wner/9b", ""}));
  // It may be a folder here as well: which it is, is for the file system to say.
  EXPECT_EQ(parse_hub_name("models/tales"), (HubName{"models/tales", ""}));
}

TEST(HubName, IsNothingElse) {
  for (const char* text : {"",
                           "tales",
                           "llama-2-70b",
                           "/own/tales",
                           "own/tales/",
                           "./tales",
                           "../tales",
                           "own/../tales",
                           "own//tales",
                           "a/b/c",
                           "own/.hidden",
                           "-own/tales",
                           "own/ta les",
                           "own/tales\n",
                           "own/t\xc3\xa4les",
                           "https://hub/own/tales",
                           "own/tales@main",
                           "own/tales:",
                           "own/tales:q4_k",
                           "own/tales:config.json",
                           "own/tales:.gguf/",
                           "own/tales:/q4.gguf",
                           "own/tales:../q4.gguf",
                           "own/tales:a/../q4.gguf",
                           "own/tales:a.gguf:b.gguf",
                           "own/tales@main:a.gguf"})
    EXPECT_EQ(parse_hub_name(text), std::nullopt) << '"' << text << '"';
}

// A path with a mistake in it is not looked for on the hub.
TEST(HubName, IsNotAFileOfAKnownKind) {
  for (const char* text : {"models/tales.gguf", "models/config.json", "models/Tales.GGUF", "models/model.safetensors",
                           "examples/cluster.toml"})
    EXPECT_EQ(parse_hub_name(text), std::nullopt) << text;
  EXPECT_EQ(parse_hub_name("own/tales.gguf.v2"), (HubName{"own/tales.gguf.v2", ""}));
}

TEST(HubName, HasLengthsThatTheHubHas) {
  const std::string longest(96, 'a');
  EXPECT_EQ(parse_hub_name(longest + "/" + longest), (HubName{longest + "/" + longest, ""}));
  EXPECT_EQ(parse_hub_name(longest + "a/" + longest), std::nullopt);
  EXPECT_EQ(parse_hub_name(longest + "/" + longest + "a"), std::nullopt);
  EXPECT_TRUE(parse_hub_name("own/tales:" + std::string(251, 'a') + ".gguf").has_value());
  EXPECT_EQ(parse_hub_name("own/tales:" + std::string(252, 'a') + ".gguf"), std::nullopt);
  EXPECT_EQ(parse_hub_name("own/tales:" + std::string(100000, 'a') + ".gguf"), std::nullopt);
}

TEST(PlannedRevision, IsThatOfThePlansOwnName) {
  Model planned;
  planned.source = "own/tales";
  planned.revision = "0123abc";
  EXPECT_EQ(planned_revision(planned, "own/tales"), "0123abc");
  EXPECT_EQ(planned_revision(planned, "own/others"), "");
  EXPECT_EQ(planned_revision(planned, "data/models/tales"), "");
  EXPECT_EQ(planned_revision({}, "own/tales"), "");
}

}  // namespace
}  // namespace motley
