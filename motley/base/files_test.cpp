#include "motley/base/files.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "motley/base/disk_calls_test.hpp"
#include "motley/base/error.hpp"
#include "motley/base/value.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::StartsWith;

// Files may not grow beyond a limit, as on a full disk.
TEST(Files, WhatCannotBeWrittenLeavesTheOldFile) {
  std::string folder = fs::temp_directory_path() / "motley-files-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto path = fs::path(folder) / "plan.json";
  replace_file(path, "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(replace_file(path, std::string(100000, 'x')), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "nothing half written stays";
  fs::remove_all(folder);
}

TEST(Files, APipeIsWrittenToAndNotReplaced) {
  std::string folder = fs::temp_directory_path() / "motley-files-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path path = fs::path(folder) / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  replace_file(path, "plan");
  std::array<char, 8> read{};
  EXPECT_EQ(::read(reader, read.data(), read.size()), 4);
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path));
  fs::remove_all(folder);
}

// A power loss between two of these calls leaves the old file or the new one.
TEST(Files, TheContentIsOnTheDiskBeforeItsName) {
  std::string folder = fs::temp_directory_path() / "motley-files-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path path = fs::path(folder) / "plan.json";
  DiskCalls::all().take();
  replace_file(path, "new");
  EXPECT_THAT(DiskCalls::all().take(), ElementsAre(StartsWith("sync plan.json."), "rename plan.json",
                                                   "sync " + fs::path(folder).filename().string()));
  fs::remove_all(folder);
}

TEST(Files, ASecretIsItsOwnersAlone) {
  std::string folder = fs::temp_directory_path() / "motley-files-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path path = fs::path(folder) / "secret";
  replace_file(path, "for all");
  replace_file(path, "for one", Readers::owner);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(read_file(path), "for one");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace motley
