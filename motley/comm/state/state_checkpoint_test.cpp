#include "motley/comm/state/state_checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "motley/comm/state/state_model_test.hpp"

namespace motley {
namespace {

using namespace state_test;
using ::testing::HasSubstr;

class StateCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(::testing::TempDir()) / ("motley-state-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::filesystem::path folder;
};

TEST_F(StateCheckpoint, ComesBackAndServesJoiners) {
  const Members members(0);
  write_checkpoint(folder / "step-17", members.snapshot);
  write_checkpoint(folder / "step-17", members.snapshot);  // replaces
  EXPECT_FALSE(std::filesystem::exists(folder / "step-17.new"));
  auto opened = open_checkpoint(folder / "step-17", CheckpointVerify::contents);
  EXPECT_EQ(opened.manifest, members.snapshot.manifest);
  StateSource source(StateListener("127.0.0.1:0"), {.group = "g"});
  source.publish(std::move(opened));
  Model mine(9);
  EXPECT_TRUE(pull_into(mine, members, {peer_at("disk", source.address())}).complete);
  EXPECT_EQ(mine.items, members.model.items);
}

TEST_F(StateCheckpoint, NamesTheDamage) {
  const Members members(0);
  const auto at = folder / "c";
  write_checkpoint(at, members.snapshot);
  std::fstream(at / "0005.bin", std::ios::in | std::ios::out | std::ios::binary).seekp(chunk + 3).put('\x5A');
  EXPECT_EQ(open_checkpoint(at, CheckpointVerify::sizes).manifest, members.snapshot.manifest);
  EXPECT_THAT(message_of([&] { open_checkpoint(at, CheckpointVerify::contents); }),
              HasSubstr("0005.bin: bytes 4194304 to 8388608 are not those"));
  std::filesystem::resize_file(at / "0001.bin", 11);
  EXPECT_THAT(message_of([&] { open_checkpoint(at, CheckpointVerify::sizes); }),
              HasSubstr("0001.bin: has 11 bytes, and the manifest says 12"));
  std::ofstream(at / "manifest.json") << R"({"format": "motley.state/1", "chunk_bytes": 4194304, "epoch": 1, "step": 1,
    "items": [{"name": "a", "file": "../../etc/passwd", "bytes": 1, "sha256": []}]})";
  EXPECT_THAT(message_of([&] { open_checkpoint(at, CheckpointVerify::sizes); }),
              HasSubstr("the file of \"a\" should be 0000.bin"));
}

TEST_F(StateCheckpoint, BelievesNoManifest) {
  std::filesystem::create_directories(folder / "c");
  const auto refusal = [&](const std::string& head, const std::string& item) {
    std::ofstream(folder / "c" / "manifest.json")
        << R"({"format": "motley.state/1", )" + head + R"("items": [{)" + item + "}]}";
    const std::string text = message_of([&] { open_checkpoint(folder / "c", CheckpointVerify::sizes); });
    return text.substr(text.find(": ") + 2);
  };
  const std::string head = R"("chunk_bytes": 4194304, "epoch": 1, "step": 1, )";
  const std::string digest(64, 'a');
  const auto item = [](const std::string& bytes, const std::string& digests) {
    return R"("name": "a", "file": "0000.bin", "bytes": )" + bytes + R"(, "sha256": [)" + digests + "]";
  };
  EXPECT_THAT(refusal(head, item("1", '"' + digest + '"')), HasSubstr("cannot open: No such file"));
  EXPECT_EQ(refusal(R"("chunk_bytes": 5, "epoch": 1, "step": 1, )", item("0", "")),
            "not a manifest of format motley.state/1");
  EXPECT_EQ(refusal(R"("chunk_bytes": 4194304, "step": 1, )", item("0", "")),
            "\"epoch\" is missing or of a wrong type");
  EXPECT_EQ(refusal(R"("chunk_bytes": 4194304, "epoch": 1, "step": -1, )", item("0", "")), "\"step\" is negative");
  EXPECT_EQ(refusal(head, item("-1", "")), "\"bytes\" is negative");
  EXPECT_EQ(refusal(head, item("1.5", "")), "\"bytes\" is missing or of a wrong type");
  EXPECT_EQ(refusal(head, item("1", "7")), "a digest of \"a\" is not a string");
  for (const std::string& wrong : {digest + "a", std::string(63, 'a') + "A"})
    EXPECT_EQ(refusal(head, item("1", '"' + wrong + '"')), "a digest of \"a\": \"" + wrong + "\" is not a SHA-256");
}

TEST_F(StateCheckpoint, AFailedWriteLeavesTheOlderOne) {
  const Members members(0);
  write_checkpoint(folder / "c", members.snapshot);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto message = message_of([&] { write_checkpoint(folder / "c", take_snapshot({3, 18}, Model(2).read())); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(message, HasSubstr("0000.bin: cannot write: File too large"));
  EXPECT_EQ(open_checkpoint(folder / "c", CheckpointVerify::contents).manifest, members.snapshot.manifest);
  EXPECT_FALSE(std::filesystem::exists(folder / "c.new"));
}

}  // namespace
}  // namespace motley
