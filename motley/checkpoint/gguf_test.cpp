#include "motley/checkpoint/gguf.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <functional>
#include <random>

#include "motley/base/value.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/gguf_names.hpp"
#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/checkpoint/safetensors_test.hpp"

namespace motley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GgufTest : public SafetensorsTest {
 protected:
  // A file with a value of each kind, and two tensors.
  std::filesystem::path small(const std::string& name = "model.gguf") {
    GgufWriter writer;
    writer.set_text("general.architecture", "llama");
    writer.set_u32("llama.block_count", 2);
    writer.set_f32("llama.rope.freq_base", 0.5F);
    writer.set_bool("tokenizer.ggml.add_bos_token", true);
    writer.set_texts("tokenizer.ggml.tokens", {"a", "", "bc"});
    writer.set_i32s("tokenizer.ggml.token_type", {1, -1});
    writer.set_f32s("tokenizer.ggml.scores", {0.25F});
    writer.add_tensor("norm", "F32", {3});
    writer.add_tensor("matrix", "Q8_0", {2, 32});
    writer.write(folder / name, [](std::int64_t tensor, const GgufWriter::Sink& sink) {
      constexpr std::array<float, 3> norm = {1, 2, 3};
      if (tensor == 0)
        sink(std::as_bytes(std::span(norm)));
      else
        sink(std::vector<std::byte>(68, std::byte{7}));
    });
    return folder / name;
  }

  std::string bytes_of_small() { return read_file(small()); }

  // The refusal of a file that is the small one but for `change`.
  std::string refused(const std::function<void(std::string&)>& change) {
    std::string bytes = bytes_of_small();
    change(bytes);
    const auto path = write(bytes, "changed.gguf");
    return refusal([&] { GgufFile{path}; });
  }
};

template <class T>
void put_at(std::string& bytes, std::size_t position, T value) {
  std::memcpy(bytes.data() + position, &value, sizeof(value));
}

// Where the value of a key begins: behind its name and type.
std::size_t value_of(const std::string& bytes, const std::string& key) { return bytes.find(key) + key.size() + 4; }

TEST_F(GgufTest, ReadsWhatWasWritten) {
  const GgufFile file(small());
  const Value& metadata = file.metadata();
  EXPECT_EQ(*metadata.find("general.architecture"), Value("llama"));
  EXPECT_EQ(*metadata.find("llama.block_count"), Value(2));
  EXPECT_EQ(*metadata.find("llama.rope.freq_base"), Value(0.5));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.add_bos_token"), Value(true));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.tokens"), Value::array({"a", "", "bc"}));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.token_type"), Value::array({1, -1}));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.scores"), Value::array({0.25}));
  const StoredTensor& matrix = file.tensors().at("matrix");
  EXPECT_EQ(matrix.type, "Q8_0");
  EXPECT_EQ(matrix.shape, (std::vector<std::int64_t>{2, 32}));
  EXPECT_EQ(matrix.bytes.size(), 68U);
  EXPECT_EQ(matrix.bytes[67], std::byte{7});
  float third = 0;
  std::memcpy(&third, file.tensors().at("norm").bytes.data() + 8, sizeof(third));
  EXPECT_EQ(third, 3);
}

TEST_F(GgufTest, AWriteThatStopsLeavesNoFile) {
  GgufWriter writer;
  writer.add_tensor("norm", "F32", {3});
  const auto stop = [](std::int64_t, const GgufWriter::Sink&) { throw input_error("stop", "go on"); };
  EXPECT_THROW(writer.write(folder / "half.gguf", stop), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(GgufTest, NamesFilePlaceAndCause) {
  const std::string path = (folder / "changed.gguf").string();
  EXPECT_THAT(refused([](std::string& b) { b[0] = 'g'; }), HasSubstr("does not begin with \"GGUF\""));
  EXPECT_THAT(refused([](std::string& b) { b.clear(); }), AllOf(HasSubstr(path), HasSubstr("\"GGUF\"")));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, 4, 1U); }), HasSubstr("version 1"));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, 4, 3U << 24); }), HasSubstr("big-endian"));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, 8, ~0ULL); }), HasSubstr("do not fit"));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, 16, ~0ULL >> 8); }), HasSubstr("do not fit"));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, 24, ~0ULL); }),
              AllOf(HasSubstr("key 1 of 7"), HasSubstr("a string of 18446744073709551615 bytes")));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, value_of(b, "llama.block_count") - 4, 13U); }),
              AllOf(HasSubstr("key \"llama.block_count\""), HasSubstr("13 is not a type")));
  EXPECT_THAT(refused([](std::string& b) { b[value_of(b, "tokenizer.ggml.add_bos_token")] = 2; }),
              HasSubstr("must be 0 or 1, found 2"));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, value_of(b, "tokenizer.ggml.scores") + 4, ~0ULL); }),
              AllOf(HasSubstr("tokenizer.ggml.scores"), HasSubstr("an array of")));
  EXPECT_THAT(refused([](std::string& b) { put_at(b, value_of(b, "tokenizer.ggml.scores"), 9U); }),
              HasSubstr("arrays of arrays"));
  const auto record = [](const std::string& b) { return b.find("matrix") + 6; };  // dimensions, sizes, type, offset
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b), 5U); }),
              AllOf(HasSubstr("tensor \"matrix\""), HasSubstr("found 5")));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 4, 33ULL); }), HasSubstr("not whole blocks"));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 12, ~0ULL >> 2); }), HasSubstr("too many elements"));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 12, ~0ULL); }), HasSubstr("too large"));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 12, 4ULL); }), HasSubstr("reach beyond"));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 20, 77U); }), HasSubstr("type 77 is unknown"));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 24, 33ULL); }), HasSubstr("not a multiple"));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 24, 0ULL); }), HasSubstr("overlap"));
  EXPECT_THAT(refused([&](std::string& b) { put_at(b, record(b) + 24, ~0ULL << 5); }), HasSubstr("reach beyond"));
}

TEST_F(GgufTest, RefusesNamesThatAreGivenTwice) {
  GgufWriter keys, tensors;
  keys.set_u32("a", 1);
  keys.set_u32("a", 2);
  keys.write(folder / "keys.gguf", {});
  EXPECT_THAT(refusal([&] { GgufFile{folder / "keys.gguf"}; }), HasSubstr("key \"a\": the key is given twice"));
  tensors.add_tensor("t", "F32", {1});
  tensors.add_tensor("t", "F32", {1});
  tensors.write(folder / "tensors.gguf",
                [](std::int64_t, const GgufWriter::Sink& sink) { sink(std::vector<std::byte>(4)); });
  EXPECT_THAT(refusal([&] { GgufFile{folder / "tensors.gguf"}; }), HasSubstr("tensor \"t\": the name is given twice"));
}

// Each value of an array takes 48 bytes of memory, and may be one of the file.
TEST_F(GgufTest, ArraysAreBounded) {
  GgufWriter writer;
  writer.set_i32s("few", {1, 2});
  writer.set_i32s("more", std::vector<std::int32_t>((1 << 22) - 1));
  writer.write(folder / "a.gguf", {});
  EXPECT_THAT(refusal([&] { GgufFile{folder / "a.gguf"}; }),
              HasSubstr("key \"more\": an array of 4194303 values: at most 4194304 are read of all arrays"));
  std::string bytes = bytes_of_small() + std::string(1 << 20, '\0');
  put_at<std::uint64_t>(bytes, 16, (1 << 16) + 1);
  const auto path = write(bytes, "keys.gguf");
  EXPECT_THAT(refusal([&] { GgufFile{path}; }), HasSubstr("found 2 and 65537"));
}

TEST_F(GgufTest, RefusesAnAlignmentThatIsNone) {
  for (const std::uint32_t alignment : {0U, 24U, 1U << 21}) {
    GgufWriter writer;
    writer.set_u32("general.alignment", alignment);
    writer.write(folder / "a.gguf", {});
    EXPECT_THAT(refusal([&] { GgufFile{folder / "a.gguf"}; }), HasSubstr("power of two")) << alignment;
  }
}

TEST_F(GgufTest, RefusesAFileCutOffAnywhere) {
  const std::string whole = bytes_of_small();
  const std::size_t data_end = whole.size() - 28;  // the last tensor's padding may be missing
  for (std::size_t size = 0; size < data_end; ++size) {
    const auto path = write(whole.substr(0, size), "cut.gguf");
    EXPECT_THROW(GgufFile{path}, Error) << size;
  }
  const auto path = write(whole.substr(0, data_end), "cut.gguf");
  EXPECT_NO_THROW(GgufFile{path});
}

// Whatever is changed, the reader accepts it or throws an input error, and what it accepts can be read.
TEST_F(GgufTest, SurvivesDamage) {
  const std::string whole = bytes_of_small();
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    std::string damaged = whole;
    for (int change = 0; change < 1 + trial % 4; ++change)
      damaged[random() % whole.size()] = static_cast<char>(random());
    const auto path = write(damaged, "damaged.gguf");
    try {
      const GgufFile file(path);
      unsigned total = 0;
      for (const auto& [name, tensor] : file.tensors())
        for (const std::byte byte : tensor.bytes) total += static_cast<unsigned>(byte);
      ASSERT_LE(total, 255 * whole.size());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::input) << error.what();
    }
  }
}

class SplitGgufTest : public GgufTest {
 protected:
  void part(const std::string& name, std::uint32_t number, std::uint32_t count, const std::string& tensor) {
    GgufWriter writer;
    writer.set_u32("split.no", number);
    writer.set_u32("split.count", count);
    writer.set_u32("split.tensors.count", 2);
    writer.add_tensor(tensor, "F32", {1});
    writer.write(folder / name, [](std::int64_t, const GgufWriter::Sink& sink) { sink(std::vector<std::byte>(4)); });
  }
  std::string refused_from(const std::string& name) {
    return refusal([&] { open_gguf(folder / name); });
  }
};

TEST_F(SplitGgufTest, FindsAllParts) {
  part("m-00001-of-00002.gguf", 0, 2, "a");
  part("m-00002-of-00002.gguf", 1, 2, "b");
  const auto parts = open_gguf(folder / "m-00001-of-00002.gguf");
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(parts[0]->tensors().contains("a"));
  EXPECT_TRUE(parts[1]->tensors().contains("b"));
}

TEST_F(SplitGgufTest, RefusesPartsThatDoNotBelongTogether) {
  part("m-00001-of-00002.gguf", 0, 2, "a");
  EXPECT_THAT(refused_from("m-00001-of-00002.gguf"), HasSubstr("m-00002-of-00002.gguf"));
  part("m-00002-of-00002.gguf", 0, 2, "b");
  EXPECT_THAT(refused_from("m-00001-of-00002.gguf"), HasSubstr("is not part 2 of 2"));
  EXPECT_THAT(refused_from("m-00002-of-00002.gguf"), HasSubstr("not the first"));
  part("renamed.gguf", 0, 2, "a");
  EXPECT_THAT(refused_from("renamed.gguf"), HasSubstr("not the first by its name"));
}

constexpr std::array<TensorNames, 6> some_names = {{
    {"embedding", "model.embed_tokens", "token_embd"},
    {"q", "model.layers.N.self_attn.q_proj", "blk.N.attn_q", true},
    {"k", "model.layers.N.self_attn.k_proj", "blk.N.attn_k", true},
    {"down", "model.layers.N.mlp.down_proj", "blk.N.ffn_down"},
    {"final_norm", "model.norm", "output_norm"},
    {"head", "lm_head", "output"},
}};

// A checkpoint of a GGUF file has Hugging Face's names, and says where rows of queries and keys lie in pairs.
TEST_F(GgufTest, ACheckpointTranslatesNames) {
  const auto write_model = [&](std::uint32_t head_rows) {
    GgufWriter writer;
    writer.set_u32("head_rows", head_rows);
    for (const char* name : {"token_embd.weight", "output.weight", "blk.11.attn_q.weight", "blk.11.attn_k.weight",
                             "blk.11.ffn_down.weight", "rope_freqs.weight"})
      writer.add_tensor(name, "F32", {8, 1});
    writer.write(folder / "m.gguf",
                 [](std::int64_t, const GgufWriter::Sink& sink) { sink(std::vector<std::byte>(32)); });
    return Checkpoint(folder / "m.gguf", [](const Value& metadata) {
      return TensorNaming{some_names, metadata.find("head_rows")->as_integer()};
    });
  };
  const Checkpoint model = write_model(4);
  EXPECT_EQ(model.find("model.layers.11.self_attn.q_proj.weight").interleaved, 4);
  EXPECT_EQ(model.find("model.layers.11.self_attn.k_proj.weight").interleaved, 4);
  EXPECT_EQ(model.find("model.layers.11.mlp.down_proj.weight").interleaved, 0);
  EXPECT_EQ(model.find("lm_head.weight").tensor.type, "F32");
  EXPECT_EQ(model.find("model.embed_tokens.weight").file, folder / "m.gguf");
  EXPECT_THAT(refusal([&] { model.find("model.norm.weight"); }),
              HasSubstr("m.gguf: the tensor output_norm.weight is missing"));
  for (const std::uint32_t no_head : {0u, 1u, 3u, 16u})
    EXPECT_EQ(write_model(no_head).find("model.layers.11.self_attn.q_proj.weight").interleaved, 0) << no_head;

  const Checkpoint unnamed(folder / "m.gguf");
  EXPECT_TRUE(unnamed.names().empty());
  EXPECT_EQ(unnamed.files().size(), 1u);
}

TEST(GgufNames, GoBothWays) {
  for (const char* name : {"token_embd.weight", "output_norm.weight", "output.weight", "blk.0.attn_q.bias",
                           "blk.31.attn_k.weight", "blk.7.ffn_down.weight"})
    EXPECT_EQ(gguf_name(some_names, hugging_face_name(some_names, name)), name);
  for (const char* other : {"rope_freqs.weight", "blk..attn_q.weight", "blk.x.attn_q.weight", "blk.1", "blk.1.weight",
                            "token_embd", "output.scale", ""})
    EXPECT_EQ(hugging_face_name(some_names, other), "") << other;
  constexpr std::array<TensorNames, 1> of_folders = {{{"up", "model.decoder.layers.N.fc1", {}}}};
  EXPECT_EQ(gguf_name(of_folders, "model.decoder.layers.3.fc1.bias"), "");
  EXPECT_EQ(hugging_face_name(of_folders, ".bias"), "");
}

TEST(GgufNames, SayWhoseRowsLieInPairs) {
  EXPECT_TRUE(has_paired_rows(some_names, "blk.3.attn_q.weight"));
  EXPECT_TRUE(has_paired_rows(some_names, "blk.3.attn_k.bias"));
  EXPECT_FALSE(has_paired_rows(some_names, "blk.3.ffn_down.weight"));
  EXPECT_FALSE(has_paired_rows(some_names, "attn_q.weight"));
}

}  // namespace
}  // namespace motley
