#include "motley/checkpoint/digest.hpp"

#include <array>

#include "motley/base/value.hpp"
#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/checkpoint/safetensors_test.hpp"

namespace motley {
namespace {

class DigestTest : public SafetensorsTest {
 protected:
  std::string gguf(const std::string& file, const std::string& name, std::int64_t rows, std::byte content) {
    GgufWriter writer;
    writer.set_text("general.name", name);
    writer.add_tensor("matrix", "Q8_0", {rows, 32});
    writer.write(folder / file, [&](std::int64_t, const GgufWriter::Sink& sink) {
      sink(std::vector<std::byte>(static_cast<std::size_t>(34 * rows), content));
    });
    return digest_of(open_gguf(folder / file));
  }
  std::string of_folder(const std::string& config = "{}") {
    write(config, "config.json");
    return folder_digest(folder / "config.json");
  }
};

TEST_F(DigestTest, IsSha256InHexadecimals) {
  EXPECT_TRUE(is_digest(gguf("a.gguf", "a", 2, std::byte{1})));
  EXPECT_TRUE(is_digest("sha256:" + std::string(64, '0')));
  for (const std::string& text :
       {std::string(), std::string("sha256:"), "sha256:" + std::string(63, '0'), "sha256:" + std::string(65, '0'),
        "sha256:" + std::string(63, '0') + "G", "sha512:" + std::string(64, '0'), std::string(71, '0')})
    EXPECT_FALSE(is_digest(text)) << text;
}

TEST_F(DigestTest, OfAGgufFileIsThatOfItsHeader) {
  const std::string digest = gguf("a.gguf", "a", 2, std::byte{1});
  EXPECT_EQ(gguf("b.gguf", "a", 2, std::byte{9}), digest) << "the weights are not read";
  EXPECT_NE(gguf("c.gguf", "b", 2, std::byte{1}), digest);
  EXPECT_NE(gguf("d.gguf", "a", 3, std::byte{1}), digest);
}

TEST_F(DigestTest, CountsEveryPart) {
  const auto parts = [&](const std::string& second) {
    for (std::uint32_t part = 0; part < 2; ++part) {
      GgufWriter writer;
      writer.set_u32("split.no", part);
      writer.set_u32("split.count", 2);
      writer.add_tensor(part == 0 ? "first" : second, "F32", {1});
      writer.write(folder / ("m-0000" + std::to_string(part + 1) + "-of-00002.gguf"),
                   [](std::int64_t, const GgufWriter::Sink& sink) { sink(std::array<std::byte, 4>{}); });
    }
    return digest_of(open_gguf(folder / "m-00001-of-00002.gguf"));
  };
  EXPECT_NE(parts("second"), parts("others"));
}

TEST_F(DigestTest, OfAFolderIsThatOfConfigAndHeaders) {
  write(file_of(small_header, small_data));
  const std::string digest = of_folder();
  EXPECT_TRUE(is_digest(digest));
  EXPECT_EQ(of_folder(), digest);
  EXPECT_NE(of_folder("{} "), digest);
  write(file_of(small_header, std::string(small_data.size(), 'x')));
  EXPECT_EQ(of_folder(), digest) << "the weights are not read";
  write(file_of(small_header + " ", small_data));
  EXPECT_NE(of_folder(), digest);
}

TEST_F(DigestTest, OfAFolderWithoutWholeWeightsIsEmpty) {
  EXPECT_EQ(of_folder(), "") << "no weights";
  write("version https://git-lfs.github.com/spec/v1\n");
  EXPECT_EQ(of_folder(), "") << "a pointer to them";
  write(file_of(small_header, small_data.substr(0, 20)));
  EXPECT_EQ(of_folder(), "") << "cut off";
}

TEST_F(DigestTest, OfAFolderWithAnIndexNeedsAllItsFiles) {
  write(R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})",
        "model.safetensors.index.json");
  write(file_of(small_header, small_data), "one.safetensors");
  EXPECT_EQ(of_folder(), "");
  write(file_of(small_header, small_data), "two.safetensors");
  const std::string digest = of_folder();
  EXPECT_TRUE(is_digest(digest));
  write(file_of(small_header + " ", small_data), "two.safetensors");
  EXPECT_NE(of_folder(), digest);
  write(R"({"weight_map": {}})", "model.safetensors.index.json");
  EXPECT_EQ(of_folder(), "");
  write("{", "model.safetensors.index.json");
  EXPECT_EQ(of_folder(), "");
}

}  // namespace
}  // namespace motley
