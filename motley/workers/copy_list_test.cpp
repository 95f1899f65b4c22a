// Measured copies, from programs that stand in for the worker: an honest one and others.
#include "motley/workers/copy_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace motley {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

CopyList two_devices() {
  const CopyRates alone{24e9, 25e9, 11e-6}, at_once{20e9, 21e9, 11e-6};
  return {.devices = {{.device = "cuda:0", .alone = alone, .at_once = at_once, .free_bytes = 7},
                      {.device = "cuda:1", .alone = alone, .at_once = at_once}},
          .links = {{"cuda:0", "cuda:1", {.latency_s = 9e-6, .bandwidth_bytes_per_s = 22e9}},
                    {"cuda:1", "cuda:0", {.latency_s = 8e-6, .bandwidth_bytes_per_s = 23e9}}}};
}

class CopyListTest : public ::testing::Test {
 protected:
  CopyListTest() {
    std::string name = fs::temp_directory_path() / "motley-copy-list-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~CopyListTest() override { fs::remove_all(folder_); }
  CopyList list(const std::string& script, double within_s = 20) const {
    std::ofstream(folder_ / "worker") << "#!/bin/sh\n" << script << "\n";
    fs::permissions(folder_ / "worker", fs::perms::owner_all);
    return list_copies(folder_ / "worker", {"cuda:0", "cuda:1"}, {{"CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2"}}, within_s);
  }
  CopyList listed(const CopyList& answer) const {
    std::ofstream(folder_ / "answer") << to_json(write(answer));
    return list("[ \"$* $CUDA_VISIBLE_DEVICES\" = \"--copies cuda:0 cuda:1 GPU-1,GPU-2\" ] && cat " +
                (folder_ / "answer").string());
  }
  template <class List>
  static std::string refusal(const List& list) {
    try {
      list();
      return "listed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment);
      EXPECT_THAT(error.hint(), HasSubstr("run the command by hand"));
      return error.what();
    }
  }

  fs::path folder_;
};

TEST_F(CopyListTest, IsWhatTheProgramWrites) { EXPECT_EQ(listed(two_devices()), two_devices()); }

TEST_F(CopyListTest, WhatNoDeviceDoesIsRefused) {
  const auto refused = [&](auto change) {
    CopyList answer = two_devices();
    change(answer);
    return refusal([&] { listed(answer); });
  };
  const std::string other = "not what was asked for";
  EXPECT_THAT(refused([](CopyList& list) { list.devices.pop_back(); }), HasSubstr(other));
  EXPECT_THAT(refused([](CopyList& list) { list.links.pop_back(); }), HasSubstr(other));
  EXPECT_THAT(refused([](CopyList& list) { list.devices[1].device = "cuda:7"; }), HasSubstr(other));
  EXPECT_THAT(refused([](CopyList& list) { list.devices[0].at_once.upload_bytes_per_s = 1e30; }), HasSubstr(other));
  EXPECT_THAT(refused([](CopyList& list) { list.devices[0].alone.latency_s = 0; }), HasSubstr(other));
  EXPECT_THAT(refused([](CopyList& list) { list.links[0].speed.bandwidth_bytes_per_s = 1e30; }), HasSubstr(other));
  EXPECT_THAT(refusal([&] { list("echo '[]'"); }), HasSubstr("cannot be read"));
  EXPECT_THAT(refusal([&] { list("exit 3"); }), HasSubstr("ended with exit code 3"));
  EXPECT_THAT(refusal([&] { list("sleep 20", 0.2); }), HasSubstr("which measures copies, has not ended"));
}

}  // namespace
}  // namespace motley
