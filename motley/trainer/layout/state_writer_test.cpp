#include "motley/trainer/layout/state_writer.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "motley/checkpoint/safetensors.hpp"
#include "motley/checkpoint/stored_tensor.hpp"

namespace motley {
namespace {

class StateWriting : public ::testing::Test {
 protected:
  StateWriting() {
    std::filesystem::create_directories(folder);
    files.files = {{"model.safetensors", {{"matrix", "F32", {3, 4}}, {"vector", "F32", {5}}}}};
    files.places = {{"matrix", {0, 0}}, {"vector", {0, 1}}};
    SafetensorsWriter::create(folder / "model.safetensors", safetensors_layout(files.files[0].entries));
  }
  ~StateWriting() override { std::filesystem::remove_all(folder); }

  void refuses(const std::string& name, const Slice& slice, std::size_t elements) const {
    const std::vector<float> values(elements, 7);
    try {
      StateWriter(folder, files).write(name, slice, std::as_bytes(std::span(values)));
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer) << error.what();
    }
  }

  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("state_writing-" + std::to_string(::getpid()));
  StateFiles files;
};

TEST_F(StateWriting, SlicesComeToTheirPlaces) {
  const std::array<float, 4> square = {1, 2, 3, 4};
  const std::array<float, 2> ends = {5, 6};
  const StateWriter writer(folder, files);
  writer.write("matrix", {{1, 3}, {2, 4}}, std::as_bytes(std::span(square)));
  writer.write("vector", {{3, 5}, {0, 1}}, std::as_bytes(std::span(ends)));
  writer.write("vector", {{2, 2}, {0, 1}}, {});
  writer.sync();
  const SafetensorsFile file(folder / "model.safetensors");
  std::array<float, 12> matrix{};
  std::memcpy(matrix.data(), file.tensors().at("matrix").bytes.data(), sizeof matrix);
  EXPECT_EQ(matrix, (std::array<float, 12>{0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4}));
  std::array<float, 5> vector{};
  std::memcpy(vector.data(), file.tensors().at("vector").bytes.data(), sizeof vector);
  EXPECT_EQ(vector, (std::array<float, 5>{0, 0, 0, 5, 6}));
}

TEST(StateBlocks, HoldEveryRowOnceAndNoMoreBytesThanAsked) {
  const std::array<std::byte, 7 * 8> bytes{};
  const auto blocks = [&](const Slice& slice, std::size_t size, std::size_t most_bytes) {
    std::vector<std::pair<Slice, std::size_t>> found;
    for_each_block(slice, std::span(bytes).first(size), most_bytes,
                   [&](const Slice& block, std::span<const std::byte> of) {
                     EXPECT_EQ(of.data(), bytes.data() + (block.rows.first - slice.rows.first) * 8);
                     found.emplace_back(block, of.size());
                   });
    return found;
  };
  using Blocks = std::vector<std::pair<Slice, std::size_t>>;
  const Span columns{2, 4};
  EXPECT_EQ(blocks({{3, 10}, columns}, 56, 31),
            (Blocks{{{{3, 6}, columns}, 24}, {{{6, 9}, columns}, 24}, {{{9, 10}, columns}, 8}}));
  EXPECT_EQ(blocks({{3, 5}, columns}, 16, 5), (Blocks{{{{3, 4}, columns}, 8}, {{{4, 5}, columns}, 8}}));
  EXPECT_EQ(blocks({{3, 3}, columns}, 0, 8), Blocks{});
}

TEST_F(StateWriting, WhatIsNotTheRunsIsRefused) {
  refuses("another", {{0, 1}, {0, 1}}, 1);
  refuses("matrix", {{0, 4}, {0, 4}}, 16);
  refuses("matrix", {{0, 1}, {3, 5}}, 2);
  refuses("matrix", {{-1, 1}, {0, 4}}, 8);
  refuses("matrix", {{2, 1}, {0, 4}}, 4);
  refuses("matrix", {{0, 1}, {0, 4}}, 3);
  refuses("vector", {{0, 6}, {0, 1}}, 6);
}

}  // namespace
}  // namespace motley
