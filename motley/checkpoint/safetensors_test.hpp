// A folder of safetensors files that a test writes byte by byte.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "motley/base/error.hpp"

namespace motley {

// A folder that vanishes with the test.
class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "safetensors-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(folder); }

  std::filesystem::path write(const std::string& bytes, const std::string& name = "model.safetensors") {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return folder / name;
  }

  std::filesystem::path folder;
};

inline std::string file_of(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return length + header + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The message of the input error that `action` throws.
template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_FALSE(error.hint().empty());
    return error.what();
  }
  return "accepted";
}

inline const std::string small_header = R"({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                                     "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
                                     "__metadata__": {"format": "pt"}})";
inline const std::string small_data = bytes_of<float>({1, 2, 3, 4, 5, 6}) + bytes_of<std::uint16_t>({0x3f80, 0xc000});

}  // namespace motley
