#include "motley/checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "motley/checkpoint/safetensors_test.hpp"

namespace motley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The floats of a stored tensor.
std::vector<float> floats(const Checkpoint::Found& found) {
  std::vector<float> values(found.tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), found.tensor.bytes.data(), found.tensor.bytes.size());
  return values;
}

TEST_F(SafetensorsTest, FindsTensorsAsRangesOfBytes) {
  write(file_of(small_header, small_data));
  const Checkpoint checkpoint(folder);
  const Checkpoint::Found a = checkpoint.find("a");
  EXPECT_EQ(a.file, folder / "model.safetensors");
  EXPECT_EQ(a.tensor.type, "F32");
  EXPECT_EQ(a.tensor.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(floats(a), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST_F(SafetensorsTest, FindsNamesWithAndWithoutTheBasePrefix) {
  write(file_of(R"({"model.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "decoder.y": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                bytes_of<float>({7, 8})));
  const Checkpoint checkpoint(folder);
  EXPECT_EQ(floats(checkpoint.find("x")), std::vector<float>{7});
  EXPECT_EQ(floats(checkpoint.find("model.decoder.y")), std::vector<float>{8});
}

TEST_F(SafetensorsTest, FollowsTheIndex) {
  write(file_of(small_header, small_data), "one.safetensors");
  write(file_of(R"({"c": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", bytes_of<float>({9})),
        "two.safetensors");
  write(R"({"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})",
        "model.safetensors.index.json");
  const Checkpoint checkpoint(folder);
  EXPECT_EQ(floats(checkpoint.find("c")), std::vector<float>{9});
  EXPECT_EQ(checkpoint.find("c").file, folder / "two.safetensors");
  EXPECT_THAT(refusal([&] { checkpoint.find("d"); }),
              HasSubstr((folder / "model.safetensors.index.json").string() + " does not contain"));
}

TEST_F(SafetensorsTest, AMissingTensorNamesTheFileAndTheNearestName) {
  write(file_of(R"({"q_proj.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", std::string(4, '\0')));
  try {
    Checkpoint(folder).find("k_proj.weight");
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr((folder / "model.safetensors").string() + " does not contain"));
    EXPECT_THAT(error.hint(), HasSubstr("the file contains q_proj.weight"));
  }
}

TEST_F(SafetensorsTest, RefusesAnIndexThatLies) {
  write(file_of(small_header, small_data), "one.safetensors");
  const auto index = [&](const std::string& map) {
    write(map, "model.safetensors.index.json");
    return refusal([&] { Checkpoint{folder}; });
  };
  EXPECT_THAT(index(R"({"weight_map": {"z": "one.safetensors"}})"), HasSubstr("does not contain"));
  EXPECT_THAT(index(R"({"weight_map": {"a": "missing.safetensors"}})"), HasSubstr("cannot open"));
  EXPECT_THAT(index(R"({"metadata": {}})"), HasSubstr("`weight_map` is missing"));
  for (const char* outside : {"../one.safetensors", "/etc/passwd", "..", "", "sub/one.safetensors"})
    EXPECT_THAT(index(fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", outside)), HasSubstr("same folder")) << outside;
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
      {"empty file", "", "a safetensors file must have at least 8 bytes, found 0"},
      {"shorter than the length", "abc", "a safetensors file must have at least 8 bytes, found 3"},
      {"length beyond the file", std::string("\xff\0\0\0\0\0\0\0{}", 10), "is longer than the file"},
      {"length beyond 64 bits of sense", std::string(8, '\xff') + "{}", "is longer than the file"},
      {"no JSON", file_of("no json here", four), "(header)"},
      {"a list", file_of("[1, 2]", four), "the header must be a JSON object"},
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
       "has too many elements"},
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
  EXPECT_THAT(refusal([&] { SafetensorsFile{path}; }),
              HasSubstr("the header of 100000001 bytes is longer than the file"));
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
