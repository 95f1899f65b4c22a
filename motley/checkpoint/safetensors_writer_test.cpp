#include "motley/checkpoint/safetensors_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"
#include "motley/checkpoint/safetensors.hpp"
#include "motley/checkpoint/safetensors_test.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const std::vector<SafetensorsEntry> mixed = {
    {"half", "BF16", {3}}, {"whole \"quoted\"", "F32", {2, 2}}, {"byte", "U8", {1}}, {"none", "F32", {0, 5}}};

TEST_F(SafetensorsTest, WrittenInSlicesByTwoIsReadAsItWas) {
  const fs::path path = folder / "model.safetensors";
  const SafetensorsLayout layout = safetensors_layout(mixed);
  SafetensorsWriter::create(path, layout);
  const std::vector<float> whole = {1, 2, 3, 4};
  const std::vector<std::uint16_t> half = {5, 6, 7};
  const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
  {
    const SafetensorsWriter one(path, layout), other(path, safetensors_layout(mixed));
    other.write(1, 8, bytes(whole).subspan(8));
    one.write(0, 0, bytes(half));
    one.write(1, 0, bytes(whole).first(8));
    one.sync();
  }
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), mixed.size());
  for (const SafetensorsEntry& entry : mixed) {
    EXPECT_EQ(file.tensors().at(entry.name).type, entry.type);
    EXPECT_EQ(file.tensors().at(entry.name).shape, entry.shape);
  }
  EXPECT_TRUE(std::ranges::equal(file.tensors().at(mixed[1].name).bytes, bytes(whole)));
  EXPECT_TRUE(std::ranges::equal(file.tensors().at("half").bytes, bytes(half)));
  EXPECT_EQ(file.tensors().at("byte").bytes[0], std::byte{0});
}

// Other readers ask for it: every byte after the header belongs to a tensor.
TEST(SafetensorsLayout, HasNoGapsAndAlignsEveryTensor) {
  const SafetensorsLayout layout = safetensors_layout(mixed);
  EXPECT_EQ(layout.header.size() % 8, 0U);
  EXPECT_EQ(layout.offsets[1], layout.header.size());
  EXPECT_EQ(layout.offsets[3], layout.offsets[1] + 16);
  EXPECT_EQ(layout.offsets[0], layout.offsets[3]);
  EXPECT_EQ(layout.offsets[2], layout.offsets[0] + 6);
  EXPECT_EQ(layout.file_bytes, layout.offsets[2] + 1);
  EXPECT_THAT(layout.header, HasSubstr(R"("__metadata__":{"format":"pt"})"));
}

TEST_F(SafetensorsTest, ADiskThatIsTooSmallLeavesNoFile) {
  // A limit of the size of files, as a full disk gives it.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const fs::path path = folder / "model.safetensors";
  const SafetensorsLayout layout = safetensors_layout({{"large", "F32", {1 << 20}}});
  EXPECT_THROW(SafetensorsWriter::create(path, layout), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_THROW(SafetensorsWriter(path, layout), Error);
}

TEST_F(SafetensorsTest, NeverWritesBeyondATensor) {
  const fs::path path = folder / "model.safetensors";
  const SafetensorsLayout layout = safetensors_layout(mixed);
  SafetensorsWriter::create(path, layout);
  const std::vector<std::byte> bytes(8);
  EXPECT_THROW(SafetensorsWriter(path, layout).write(0, 0, bytes), Error);
  EXPECT_THROW(SafetensorsWriter(path, layout).write(0, 8, {}), Error);
}

}  // namespace
}  // namespace motley
