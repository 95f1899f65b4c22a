#include "motley/checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "motley/checkpoint/quants.hpp"
#include "motley/checkpoint/safetensors_test.hpp"
#include "motley/checkpoint/stored_rows.hpp"

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

// Rows of a matrix or values of a vector.
std::vector<float> values_of(const Checkpoint& checkpoint, const std::string& name,
                             const std::vector<std::int64_t>& shape) {
  const StoredRows rows(checkpoint, name, shape);
  std::vector<float> values(static_cast<std::size_t>(shape.front() * rows.width()));
  for (std::int64_t row = 0; row < shape.front(); ++row)
    rows.values(row, 0, rows.width(), values.data() + row * rows.width());
  return values;
}

constexpr std::array<PackedNames, 4> packed_names = {{
    {"layers.N.experts.gate_up", {"layers.N.experts.E.gate.weight", "layers.N.experts.E.up.weight"}, true, true},
    {"layers.N.experts.gate_up_bias", {"layers.N.experts.E.gate.bias", "layers.N.experts.E.up.bias"}, false, true},
    {"layers.N.experts.down", {"layers.N.experts.E.down.weight"}, true},
    {"layers.N.stacked", {"layers.N.E.gate.weight", "layers.N.E.up.weight"}},
}};

// Two experts with a gate and an up of two rows of three, numbered by their places in the file.
TEST_F(SafetensorsTest, FindsTensorsInsideOthers) {
  const auto numbers = [](int count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), 0.0F);
    return bytes_of(values);
  };
  write("{}", "config.json");
  write(file_of(R"({"layers.7.experts.gate_up": {"dtype": "F32", "shape": [2, 3, 4], "data_offsets": [0, 96]},
                    "layers.7.experts.gate_up_bias": {"dtype": "F32", "shape": [2, 4], "data_offsets": [96, 128]},
                    "layers.7.experts.down": {"dtype": "F32", "shape": [2, 2, 3], "data_offsets": [128, 176]},
                    "layers.7.stacked": {"dtype": "F32", "shape": [2, 4, 3], "data_offsets": [176, 272]}})",
                numbers(24) + numbers(8) + numbers(12) + numbers(24)));
  const Checkpoint checkpoint(folder, [](const Value&) { return TensorNaming{.packed = packed_names}; });
  const auto expect = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                          const std::vector<float>& values) {
    EXPECT_EQ(values_of(checkpoint, name, shape), values) << name;
  };
  expect("layers.7.experts.0.gate.weight", {2, 3}, {0, 4, 8, 2, 6, 10});
  expect("layers.7.experts.1.up.weight", {2, 3}, {13, 17, 21, 15, 19, 23});
  expect("layers.7.experts.1.gate.bias", {2}, {4, 6});
  expect("layers.7.experts.0.up.bias", {2}, {1, 3});
  expect("layers.7.experts.1.down.weight", {3, 2}, {6, 9, 7, 10, 8, 11});
  expect("layers.7.0.up.weight", {2, 3}, {6, 7, 8, 9, 10, 11});
  expect("layers.7.1.gate.weight", {2, 3}, {12, 13, 14, 15, 16, 17});
  EXPECT_EQ(checkpoint.names().size(), 14u);
  EXPECT_EQ(floats(checkpoint.find("layers.7.1.gate.weight")), (std::vector<float>{12, 13, 14, 15, 16, 17}));

  const auto place = packed_place(packed_names, "layers.7.experts.1.up.weight", {2, 3}, 2);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->name, "layers.7.experts.gate_up");
  EXPECT_EQ(place->shape, (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_FALSE(packed_place(packed_names, "layers.7.norm.weight", {2}, 2));
}

constexpr auto of_keys = &KeyHeadRows::keys, of_values = &KeyHeadRows::values, one_each = &KeyHeadRows::value_heads;
constexpr std::array<PackedNames, 3> names_of_heads = {{
    {.stored = "layers.N.qkvz",
     .parts = {"layers.N.q", "layers.N.k", "layers.N.v", "layers.N.z"},
     .rows = {of_keys, of_keys, of_values, of_values},
     .by_key_heads = true},
    {.stored = "layers.N.ba",
     .parts = {"layers.N.b", "layers.N.a"},
     .rows = {one_each, one_each},
     .by_key_heads = true},
    {.stored = "layers.N.conv",
     .parts = {"layers.N.conv_q", "layers.N.conv_k", "layers.N.conv_v"},
     .rows = {of_keys, of_keys, of_values},
     .channels = true},
}};

// Two key heads of one row each, each with two value heads of one row; every number is its row's.
TEST_F(SafetensorsTest, FindsWhatDeltaNetsHeadsAreMadeOf) {
  const KeyHeadRows heads{.key_heads = 2, .keys = 1, .values = 2, .value_heads = 2};
  std::vector<float> values;
  for (int row = 0; row < 12 + 8; ++row) values.insert(values.end(), 2, static_cast<float>(row % 12));
  for (int row = 0; row < 8; ++row) values.insert(values.end(), 3, static_cast<float>(row));
  write("{}", "config.json");
  write(file_of(R"({"layers.0.qkvz": {"dtype": "F32", "shape": [12, 2], "data_offsets": [0, 96]},
                    "layers.0.ba": {"dtype": "F32", "shape": [8, 2], "data_offsets": [96, 160]},
                    "layers.0.conv": {"dtype": "F32", "shape": [8, 1, 3], "data_offsets": [160, 256]}})",
                bytes_of(values)));
  static const KeyHeadRows* named;
  named = &heads;
  const auto naming = [](const Value&) { return TensorNaming{.packed = names_of_heads, .heads = *named}; };
  const Checkpoint checkpoint(folder, naming);
  const auto rows_of = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    const StoredRows stored(checkpoint, "layers.0." + name, {rows, columns});
    std::vector<float> first(static_cast<std::size_t>(rows)), row(static_cast<std::size_t>(columns));
    for (std::int64_t i = 0; i < rows; ++i) {
      stored.values(i, 0, columns, row.data());
      first[static_cast<std::size_t>(i)] = row.back();
    }
    return first;
  };
  EXPECT_EQ(rows_of("q", 2, 2), (std::vector<float>{0, 6}));
  EXPECT_EQ(rows_of("k", 2, 2), (std::vector<float>{1, 7}));
  EXPECT_EQ(rows_of("v", 4, 2), (std::vector<float>{2, 3, 8, 9}));
  EXPECT_EQ(rows_of("z", 4, 2), (std::vector<float>{4, 5, 10, 11}));
  EXPECT_EQ(rows_of("b", 4, 2), (std::vector<float>{0, 1, 4, 5}));
  EXPECT_EQ(rows_of("a", 4, 2), (std::vector<float>{2, 3, 6, 7}));
  EXPECT_EQ(rows_of("conv_k", 2, 3), (std::vector<float>{2, 3}));
  EXPECT_EQ(rows_of("conv_v", 4, 3), (std::vector<float>{4, 5, 6, 7}));
  const auto place = packed_place(names_of_heads, "layers.0.conv_v", {4, 3}, 0, heads);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->shape, (std::vector<std::int64_t>{8, 1, 3}));
  const KeyHeadRows three{.key_heads = 3, .keys = 1, .values = 2, .value_heads = 2};
  named = &three;
  EXPECT_THAT(refusal([&] { Checkpoint(folder, naming); }), HasSubstr("a delta net of 3 key heads"));
}

constexpr std::array<PackedNames, 2> names_of_blocks = {{
    {.stored = "layers.N.gate_up_blocks",
     .parts = {"layers.N.E.gate.weight", "layers.N.E.up.weight"},
     .by_turns = true,
     .mxfp4 = true},
    {.stored = "layers.N.gate_up_scales",
     .parts = {"layers.N.E.gate.weight_scales", "layers.N.E.up.weight_scales"},
     .by_turns = true},
}};

// Two experts, whose gates and ups have two rows of two blocks.
TEST_F(SafetensorsTest, FindsBlocksWhoseExponentsAreApart) {
  std::string blocks, scales;
  std::mt19937 random(3);
  for (int i = 0; i < 2 * 4 * 2 * 16; ++i) blocks += static_cast<char>(random() & 0xff);
  for (int i = 0; i < 2 * 4 * 2; ++i) scales += static_cast<char>(120 + random() % 16);
  const auto write_model = [&](const char* of_scales) {
    write("{}", "config.json");
    write(file_of(
        fmt::format(R"({{"layers.0.gate_up_blocks": {{"dtype": "U8", "shape": [2, 4, 2, 16], "data_offsets": [0, 256]}},
                                  "layers.0.gate_up_scales": {{"dtype": "U8", "shape": {}, "data_offsets": [256, 272]}}}})",
                    of_scales),
        blocks + scales));
    return Checkpoint(folder, [](const Value&) { return TensorNaming{.packed = names_of_blocks}; });
  };
  const Checkpoint checkpoint = write_model("[2, 4, 2]");
  EXPECT_EQ(checkpoint.names().size(), 4u);
  constexpr std::array<float, 8> values = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::size_t expert = 0; expert < 2; ++expert)
    for (std::size_t part = 0; part < 2; ++part) {
      const std::string name = fmt::format("layers.0.{}.{}.weight", expert, part == 0 ? "gate" : "up");
      std::vector<float> expected;
      for (std::size_t row = 0; row < 2; ++row)
        for (std::size_t i = 0; i < 64; ++i) {
          const std::size_t block = ((expert * 4 + 2 * row + part) * 2) + i / 32;
          const auto byte = static_cast<unsigned char>(blocks[block * 16 + i % 32 / 2]);
          const unsigned half = i % 2 == 0 ? byte & 15U : byte >> 4;
          const int exponent = static_cast<unsigned char>(scales[block]) - 127;
          expected.push_back(std::ldexp(half < 8 ? values[half] : -values[half - 8], exponent));
        }
      EXPECT_EQ(values_of(checkpoint, name, {2, 64}), expected) << name;
      const StoredRows rows(checkpoint, name, {2, 64});
      std::array<std::byte, 17> block;  // the second of the second row
      rows.copy(1, 32, 64, block.data());
      std::array<float, 32> of_block;
      dequantise_row(DType::mxfp4, block.data(), 32, of_block.data());
      EXPECT_TRUE(std::equal(of_block.begin(), of_block.end(), expected.end() - 32)) << name;
    }
  EXPECT_THAT(refusal([&] {
                values_of(write_model("[2, 2, 4]"), "layers.0.0.up.weight", {2, 64});
              }),
              HasSubstr("needs exponents of layers.0.0.up.weight 2x2"));
}

TEST_F(SafetensorsTest, RefusesTensorsThatCannotHoldOthers) {
  write("{}", "config.json");
  for (const char* shape : {"[2, 3, 3]", "[18]", "[0, 3, 4]", "[1, 1, 1, 18]"}) {
    const std::string bytes(std::string_view(shape) == "[0, 3, 4]" ? 0 : 72, '\0');
    write(file_of(
        fmt::format(R"({{"layers.0.experts.gate_up": {{"dtype": "F32", "shape": {}, "data_offsets": [0, {}]}}}})",
                    shape, bytes.size()),
        bytes));
    EXPECT_THAT(refusal([&] { Checkpoint(folder, [](const Value&) { return TensorNaming{.packed = packed_names}; }); }),
                HasSubstr("layers.0.experts.gate_up"))
        << shape;
  }
}

TEST_F(SafetensorsTest, FindsTheLanguageModelOfALargerOne) {
  write(file_of(R"({"language_model.model.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "model.language_model.y": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
                    "vision_tower.z": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}})",
                bytes_of<float>({7, 8, 9})));
  const Checkpoint checkpoint(folder);
  EXPECT_EQ(floats(checkpoint.find("model.x")), std::vector<float>{7});
  EXPECT_EQ(floats(checkpoint.find("model.y")), std::vector<float>{8});
  EXPECT_EQ(floats(checkpoint.find("vision_tower.z")), std::vector<float>{9});
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
