#include "motley/engine/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

namespace motley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

std::string file_of(const std::string& header, const std::string& data) {
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

const std::string small_header = R"({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                                     "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
                                     "__metadata__": {"format": "pt"}})";
const std::string small_data = bytes_of<float>({1, 2, 3, 4, 5, 6}) + bytes_of<std::uint16_t>({0x3f80, 0xc000});

TEST_F(SafetensorsTest, ReadsSlicesAndConverts) {
  write(file_of(small_header, small_data));
  const Checkpoint checkpoint(folder);
  const TensorSpec a{"a", "a", {2, 3}, Cut::replicated};
  at::Tensor whole = at::empty({2, 3}, at::kFloat);
  checkpoint.read(a, {{0, 2}, {0, 3}}, whole);
  EXPECT_TRUE(whole.equal(at::arange(1, 7, at::kFloat).view({2, 3})));
  at::Tensor row = at::empty({1, 3}, at::kBFloat16);
  checkpoint.read(a, {{1, 2}, {0, 3}}, row);
  EXPECT_TRUE(row.equal(at::arange(4, 7, at::kFloat).view({1, 3}).to(at::kBFloat16)));
  at::Tensor columns = at::empty({2, 2}, at::kFloat);
  checkpoint.read(a, {{0, 2}, {1, 3}}, columns);
  EXPECT_TRUE(columns.equal(at::tensor({2.f, 3.f, 5.f, 6.f}).view({2, 2})));
  at::Tensor vector = at::empty({2}, at::kFloat);
  checkpoint.read({"b", "b", {2}, Cut::replicated}, {{0, 2}, {0, 1}}, vector);
  EXPECT_TRUE(vector.equal(at::tensor({1.f, -2.f})));
}

TEST_F(SafetensorsTest, ConvertsHalves) {
  const at::Tensor values = at::randn({64}).to(at::kHalf);
  write(file_of(R"({"h": {"dtype": "F16", "shape": [64], "data_offsets": [0, 128]}})",
                {static_cast<const char*>(values.const_data_ptr()), 128}));
  at::Tensor out = at::empty({64}, at::kFloat);
  Checkpoint(folder).read({"h", "h", {64}, Cut::replicated}, {{0, 64}, {0, 1}}, out);
  EXPECT_TRUE(out.equal(values.to(at::kFloat)));
}

TEST_F(SafetensorsTest, FindsNamesWithAndWithoutTheBasePrefix) {
  write(file_of(R"({"model.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "decoder.y": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                bytes_of<float>({7, 8})));
  const Checkpoint checkpoint(folder);
  at::Tensor out = at::empty({1}, at::kFloat);
  checkpoint.read({"x", "x", {1}, Cut::replicated}, {{0, 1}, {0, 1}}, out);
  EXPECT_EQ(out.item<float>(), 7);
  checkpoint.read({"y", "model.decoder.y", {1}, Cut::replicated}, {{0, 1}, {0, 1}}, out);
  EXPECT_EQ(out.item<float>(), 8);
}

TEST_F(SafetensorsTest, FollowsTheIndex) {
  write(file_of(small_header, small_data), "one.safetensors");
  write(file_of(R"({"c": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", bytes_of<float>({9})),
        "two.safetensors");
  write(R"({"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})",
        "model.safetensors.index.json");
  at::Tensor out = at::empty({1}, at::kFloat);
  Checkpoint(folder).read({"c", "c", {1}, Cut::replicated}, {{0, 1}, {0, 1}}, out);
  EXPECT_EQ(out.item<float>(), 9);
  EXPECT_THAT(refusal([&] {
                Checkpoint(folder).read({"d", "d", {1}, Cut::replicated}, {{0, 1}, {0, 1}}, out);
              }),
              HasSubstr((folder / "model.safetensors.index.json").string() + " does not hold it"));
}

TEST_F(SafetensorsTest, RefusesAnIndexThatLies) {
  write(file_of(small_header, small_data), "one.safetensors");
  const auto index = [&](const std::string& map) {
    write(map, "model.safetensors.index.json");
    return refusal([&] { Checkpoint{folder}; });
  };
  EXPECT_THAT(index(R"({"weight_map": {"z": "one.safetensors"}})"), HasSubstr("does not hold it"));
  EXPECT_THAT(index(R"({"weight_map": {"a": "missing.safetensors"}})"), HasSubstr("cannot open"));
  EXPECT_THAT(index(R"({"metadata": {}})"), HasSubstr("`weight_map` is missing"));
  for (const char* outside : {"../one.safetensors", "/etc/passwd", "..", "", "sub/one.safetensors"})
    EXPECT_THAT(index(fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", outside)), HasSubstr("same folder")) << outside;
}

TEST_F(SafetensorsTest, RefusesAMissingTensorAndAnotherShape) {
  write(file_of(
      R"({"model.layers.0.self_attn.q_proj.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})",
      bytes_of<float>({1, 2, 3, 4, 5, 6})));
  const Checkpoint checkpoint(folder);
  at::Tensor out = at::empty({4}, at::kFloat);
  const auto reading = [&](const std::string& name, std::vector<std::int64_t> shape) {
    return refusal([&] { checkpoint.read({"q", name, shape, Cut::replicated}, {{0, 2}, {0, 2}}, out); });
  };
  EXPECT_THAT(
      reading("model.layers.0.self_attn.q_proj.weight", {2, 2}),
      AllOf(HasSubstr("config.json promises model.layers.0.self_attn.q_proj.weight 2x2"), HasSubstr("holds 2x3")));
  EXPECT_THAT(reading("model.layers.0.self_attn.k_proj.weight", {2, 2}),
              HasSubstr((folder / "model.safetensors").string() + " does not hold it"));
}

TEST_F(SafetensorsTest, RefusesTypesThatItCannotConvert) {
  write(file_of(R"({"i": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}})", std::string(8, '\0')));
  at::Tensor out = at::empty({1}, at::kFloat);
  EXPECT_THAT(refusal([&] {
                Checkpoint(folder).read({"i", "i", {1}, Cut::replicated}, {{0, 1}, {0, 1}}, out);
              }),
              HasSubstr("i is of type I64"));
}

struct Lie {
  const char* what;
  std::string file;
  const char* message;
};

TEST_F(SafetensorsTest, RefusesLies) {
  const std::string four(4, '\0');
  const auto one = [&](const std::string& entry) { return file_of(R"({"a": )" + entry + "}", four); };
  const std::vector<Lie> lies = {
      {"empty file", "", "too few"},
      {"shorter than the length", "abc", "too few"},
      {"length beyond the file", std::string("\xff\0\0\0\0\0\0\0{}", 10), "cannot be in a file"},
      {"length beyond 64 bits of sense", std::string(8, '\xff') + "{}", "cannot be in a file"},
      {"no JSON", file_of("no json here", four), "(header)"},
      {"a list", file_of("[1, 2]", four), "no JSON object"},
      {"an entry that is a number", one("3"), "`dtype` is missing"},
      {"no dtype", one(R"({"shape": [1], "data_offsets": [0, 4]})"), "`dtype` is missing"},
      {"no shape", one(R"({"dtype": "F32", "data_offsets": [0, 4]})"), "`shape` must be a list"},
      {"no offsets", one(R"({"dtype": "F32", "shape": [1]})"), "`data_offsets` must be a list"},
      {"negative size", one(R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})"), "non-negative"},
      {"fractional size", one(R"({"dtype": "F32", "shape": [0.5], "data_offsets": [0, 4]})"), "non-negative"},
      {"size as text", one(R"({"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]})"), "non-negative"},
      {"one offset", one(R"({"dtype": "F32", "shape": [1], "data_offsets": [4]})"), "[begin, end]"},
      {"backwards", one(R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]})"), "[begin, end]"},
      {"past the end", one(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})"), "bytes end at 8"},
      {"too many for the shape", one(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]})"), "take 8 bytes"},
      {"too few for the shape", one(R"({"dtype": "BF16", "shape": [1], "data_offsets": [0, 4]})"), "take 2 bytes"},
      {"shape overflows", one(R"({"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 4]})"),
       "impossibly large"},
      {"many dimensions", one(R"({"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 4]})"),
       "9 dimensions"},
      {"overlap",
       file_of(R"({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
                              "b": {"dtype": "BF16", "shape": [1], "data_offsets": [2, 4]}})",
               four),
       "overlap"},
      {"overlap of a byte",
       file_of(R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                              "b": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})",
               four),
       "overlap"},
      {"the same name twice",
       file_of(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                                          "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
               four),
       "a"},
  };
  for (const Lie& lie : lies) {
    const auto path = write(lie.file);
    const std::string message = refusal([&] { SafetensorsFile{path}; });
    EXPECT_THAT(message, AllOf(HasSubstr(lie.message), HasSubstr("model.safetensors"))) << lie.what;
  }
}

// One that is long enough is not read as JSON for minutes.
TEST_F(SafetensorsTest, RefusesAHeaderWithoutMeasure) {
  const auto path = write(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8));  // 100,000,001
  std::filesystem::resize_file(path, 8 + 100'000'001);
  EXPECT_THAT(refusal([&] { SafetensorsFile{path}; }), HasSubstr("a header of 100000001 bytes"));
}

TEST_F(SafetensorsTest, RefusesAFileCutOffAnywhere) {
  const std::string whole = file_of(small_header, small_data);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto path = write(whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile{path}, Error) << size;
  }
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  EXPECT_THAT(refusal([&] { Checkpoint{folder / "nowhere"}; }), HasSubstr("cannot open"));
  std::filesystem::create_directory(folder / "model.safetensors");
  EXPECT_THROW(Checkpoint{folder}, Error);
}

// Whatever is changed in the header, the reader accepts it or throws an input error, and what it accepts can be read.
TEST_F(SafetensorsTest, SurvivesDamage) {
  const std::string whole = file_of(small_header, small_data);
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string damaged = whole;
    for (int change = 0; change < 1 + trial % 4; ++change)
      damaged[random() % (8 + small_header.size())] = static_cast<char>(random());
    const auto path = write(damaged);
    try {
      const SafetensorsFile file(path);
      for (const auto& [name, tensor] : file.tensors()) {
        unsigned total = 0;
        for (const std::byte byte : tensor.bytes) total += static_cast<unsigned>(byte);
        ASSERT_LE(total, 255 * small_data.size());
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::input) << error.what();
    }
  }
}

}  // namespace
}  // namespace motley
