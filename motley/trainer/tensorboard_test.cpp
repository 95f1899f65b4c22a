#include "motley/trainer/tensorboard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

// Bit by bit, as RFC 3720 defines it, and masked as TFRecord does.
std::uint32_t masked(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0);
  }
  crc = ~crc;
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

template <class T>
T number_at(std::string_view bytes, std::size_t place) {
  T value{};
  std::memcpy(&value, bytes.substr(place, sizeof value).data(), sizeof value);
  return value;
}

// The events of all frames, whose lengths and checksums hold.
std::vector<std::string> events_of(std::string_view file) {
  std::vector<std::string> events;
  while (!file.empty()) {
    const auto size = number_at<std::uint64_t>(file, 0);
    EXPECT_EQ(number_at<std::uint32_t>(file, 8), masked(file.substr(0, 8)));
    const std::string_view event = file.substr(12, size);
    EXPECT_EQ(number_at<std::uint32_t>(file, 12 + size), masked(event));
    events.emplace_back(event);
    file.remove_prefix(16 + size);
  }
  return events;
}

class TensorBoard : public ::testing::Test {
 protected:
  TensorBoard() { fs::remove_all(folder_); }
  ~TensorBoard() override { fs::remove_all(folder_); }

  fs::path only_file() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 1U);
    return files.at(0);
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / "motley-tensorboard-test";
};

TEST_F(TensorBoard, FramesHoldEvents) {
  TensorBoardFile(folder_, 301).add(301, {{"loss", 0.5}, {"norm", -2}});
  EXPECT_THAT(only_file().filename().string(), testing::StartsWith("events.out.tfevents."));
  const std::vector<std::string> events = events_of(read_file(only_file()));
  ASSERT_EQ(events.size(), 3U);
  for (const std::string& event : events) {
    EXPECT_EQ(event[0], '\x09');  // field 1, 64 bits: wall_time
    EXPECT_GT(number_at<double>(event, 1), 1.7e9);
  }
  EXPECT_EQ(events[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  const std::string step = "\x10\xad\x02";                    // field 2, varint: 301 = 2 * 128 + 45
  EXPECT_EQ(events[1].substr(9), step + "\x3a\x02\x08\x01");  // field 7, session_log: field 1, status START
  const std::string loss("\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x3f", 13);
  const std::string norm("\x0a\x0b\x0a\x04norm\x15\x00\x00\x00\xc0", 13);
  EXPECT_EQ(events[2].substr(9), step + "\x2a\x1a" + loss + norm);
}

TEST_F(TensorBoard, LongNamesTakeLongLengths) {
  const std::string name(300, 'x');
  TensorBoardFile(folder_, 1).add(1, {{name, 1}});
  const std::vector<std::string> events = events_of(read_file(only_file()));
  EXPECT_THAT(events.at(2), testing::HasSubstr("\x0a\xac\x02" + name));
}

TEST_F(TensorBoard, AFolderThatCannotBeMadeIsNamed) {
  write_file(folder_, "a file");
  try {
    const TensorBoardFile file(folder_, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment);
    EXPECT_THAT(error.what(), testing::HasSubstr(folder_.string()));
  }
}

}  // namespace
}  // namespace motley
