#include "motley/convert/quantise.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/checkpoint/safetensors_writer.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/convert/gguf_keys.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path tales = MOTLEY_SOURCE_DIR "/data/models/tales";

class QuantiseTest : public ::testing::Test {
 protected:
  QuantiseTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quantise-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  ~QuantiseTest() override { std::filesystem::remove_all(folder); }

  std::filesystem::path made(DType type, const std::filesystem::path& from = tales) {
    const auto path = folder / (std::string(name_of(type)) + ".gguf");
    quantise_model(from, path, {.type = type, .threads = 2});
    return path;
  }
  // A copy of the tales model's folder, to be changed.
  std::filesystem::path copy() {
    const auto path = folder / "copy";
    std::filesystem::copy(tales, path);
    return path;
  }
  static void change(const std::filesystem::path& file, const std::function<void(Value&)>& edit) {
    Value document = read_document(file);
    edit(document);
    std::ofstream(file) << to_json(document);
  }

  std::filesystem::path folder;
};

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    return error.what();
  }
  return "accepted";
}

std::vector<float> values_of(const Checkpoint& checkpoint, const TensorSpec& tensor) {
  const StoredRows rows(checkpoint, tensor.name, tensor.shape);
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row)
    rows.values(row, 0, rows.width(), values.data() + row * rows.width());
  return values;
}

// What the folder says, but for the types.
TEST_F(QuantiseTest, TheFileDescribesTheSameModel) {
  const Architecture arch = read_model(tales).arch;
  Architecture made_arch = read_model(made(DType::q4_k)).arch;
  EXPECT_EQ(made_arch.checkpoint_type, DType::file);
  // Rows of 192 are not whole blocks of 256, those of 512 are.
  EXPECT_EQ(made_arch.tensor_types.at("model.layers.3.self_attn.q_proj.weight"), DType::q5_0);
  EXPECT_EQ(made_arch.tensor_types.at("model.layers.3.mlp.down_proj.weight"), DType::q4_k);
  set_tensor_types(made_arch, {});
  made_arch.checkpoint_type = arch.checkpoint_type;
  EXPECT_EQ(made_arch, arch);
  EXPECT_EQ(read_model(made(DType::bf16)).arch, arch);
}

// With its queries and keys in another order, and in Hugging Face's again when read.
TEST_F(QuantiseTest, Fp32IsTheSameModel) {
  const Architecture arch = read_model(tales).arch;
  const Checkpoint before(tales), after(made(DType::fp32), tensor_naming);
  for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
    const auto found = after.find(tensor.name);
    const bool rotated = tensor.role == "q.weight" || tensor.role == "k.weight";
    EXPECT_EQ(found.interleaved, rotated ? 24 : 0) << tensor.name;
    EXPECT_EQ(values_of(before, tensor), values_of(after, tensor)) << tensor.name;
  }
  // The second row of a head in the file is the one that the first is rotated with.
  const TensorSpec query = block_tensors(arch, 0)[1];
  const std::vector<float> rows = values_of(before, query);
  float second = 0;
  std::memcpy(&second, after.find(query.name).tensor.bytes.data() + 192 * sizeof(float), sizeof(second));
  EXPECT_EQ(query.role, "q.weight");
  EXPECT_EQ(second, rows[12 * 192]);
}

TEST_F(QuantiseTest, TypesAreAsAskedAndNormsFp32) {
  const auto file = open_gguf(made(DType::q8_0));
  const Value& metadata = file.front()->metadata();
  EXPECT_EQ(file.front()->tensors().at("blk.0.attn_q.weight").type, "Q8_0");
  EXPECT_EQ(file.front()->tensors().at("token_embd.weight").type, "Q8_0");
  EXPECT_EQ(file.front()->tensors().at("blk.7.ffn_norm.weight").type, "F32");
  EXPECT_FALSE(file.front()->tensors().contains("output.weight")) << "tied";
  EXPECT_EQ(*metadata.find("general.architecture"), Value("llama"));
  EXPECT_EQ(*metadata.find("general.file_type"), Value(7));
  EXPECT_EQ(*metadata.find("llama.attention.head_count_kv"), Value(4));
  EXPECT_EQ(*metadata.find("llama.rope.dimension_count"), Value(24));
}

TEST_F(QuantiseTest, AFileBecomesAnother) {
  const auto eight = made(DType::q8_0);
  const auto again = folder / "again.gguf";
  quantise_model(eight, again, {.type = DType::q8_0, .threads = 1});
  EXPECT_EQ(read_file(eight).size(), read_file(again).size());
  const GgufFile a(eight), b(again);
  for (const auto& [name, tensor] : a.tensors())
    EXPECT_EQ(std::memcmp(tensor.bytes.data(), b.tensors().at(name).bytes.data(), tensor.bytes.size()), 0) << name;
  for (const auto& [key, value] : a.metadata().as_object()) EXPECT_EQ(value, *b.metadata().find(key)) << key;
}

TEST_F(QuantiseTest, TheTokenizerIsTold) {
  const GgufFile file(made(DType::fp16));
  const Value& metadata = file.metadata();
  EXPECT_EQ(*metadata.find("tokenizer.ggml.model"), Value("gpt2"));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.pre"), Value("gpt-2"));
  const auto& tokens = metadata.find("tokenizer.ggml.tokens")->as_array();
  const auto& types = metadata.find("tokenizer.ggml.token_type")->as_array();
  ASSERT_EQ(tokens.size(), 2048U);
  ASSERT_EQ(types.size(), 2048U);
  EXPECT_EQ(tokens[1], Value("<|end|>"));
  EXPECT_EQ(types[1], Value(3));
  EXPECT_EQ(types[100], Value(1));
  EXPECT_EQ(metadata.find("tokenizer.ggml.merges")->as_array().front(), Value("\u0120 a"));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.bos_token_id"), Value(0));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.eos_token_id"), Value(1));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.padding_token_id"), Value(5));
  EXPECT_EQ(*metadata.find("tokenizer.ggml.add_bos_token"), Value(false));
  EXPECT_THAT(metadata.find("tokenizer.chat_template")->as_string(), HasSubstr("add_generation_prompt"));
}

TEST_F(QuantiseTest, AModelWithoutTokenizerSaysSo) {
  const auto model = copy();
  std::filesystem::remove(model / "tokenizer.json");
  EXPECT_EQ(*GgufFile(made(DType::fp16, model)).metadata().find("tokenizer.ggml.model"), Value("no_vocab"));
}

TEST_F(QuantiseTest, RulesForSplittingAreRecognised) {
  const auto model = copy();
  const auto rule = [&](const std::string& pre_tokenizer) {
    change(model / "tokenizer.json",
           [&](Value& tokenizer) { tokenizer.set("pre_tokenizer", parse_json(pre_tokenizer, "pre")); });
    return GgufFile(made(DType::q4_0, model)).metadata().find("tokenizer.ggml.pre")->as_string();
  };
  EXPECT_EQ(rule(R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
                     {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]})"),
            "smollm");
  const std::string split = R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
    "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}NUMBER| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
  const auto with = [&](const std::string& number) {
    std::string text = split;
    return text.replace(text.find("NUMBER"), 6, number);
  };
  EXPECT_EQ(rule(with("{1,3}")), "llama-bpe");
  EXPECT_EQ(rule(with("")), "qwen2");
  EXPECT_THAT(refusal_of([&] { rule(with("{1,4}")); }), HasSubstr("tokenizer.json: its rule for splitting"));
  EXPECT_THAT(refusal_of([&] { rule(R"({"type": "Whitespace"})"); }), HasSubstr("none that is known by name"));
}

// As released tokenizers of Gemma are, but for the size.
constexpr const char* pieces = R"({
  "added_tokens": [{"id": 0, "content": "<pad>", "special": true}, {"id": 1, "content": "<bos>", "special": true},
                   {"id": 2, "content": "<turn|>", "special": true}, {"id": 3, "content": "<|channel>", "special": true},
                   {"id": 4, "content": "<|\"|>", "special": true}],
  "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
  "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
  "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [["\n", "\n"], ["\u2581", "a"]],
            "vocab": {"<pad>": 0, "<bos>": 1, "<turn|>": 2, "<|channel>": 3, "<|\"|>": 4, "<unk>": 5, "<0x41>": 6, "\u2581": 7,
                      "a": 8, "\n": 9, "\u2581a": 10, "\n\n": 11}}})";

class PiecesTest : public QuantiseTest {
 protected:
  Value metadata(const std::string& family) {
    std::ofstream(folder / "tokenizer.json") << pieces;
    std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token": "<bos>", "add_bos_token": false})";
    Model model;
    model.config = Value::object({});
    model.arch.family = family;
    model.arch.vocabulary = 14;
    GgufWriter writer;
    write_tokenizer(folder, model, writer);
    writer.write(folder / "tokenizer.gguf", {});
    return GgufFile(folder / "tokenizer.gguf").metadata();
  }
};

TEST_F(PiecesTest, OfGemma4HaveTheirMergesAndMarksThatAreText) {
  const Value keys = metadata("gemma4_text");
  EXPECT_EQ(*keys.find("tokenizer.ggml.model"), Value("gemma4"));
  EXPECT_EQ(keys.find("tokenizer.ggml.pre"), nullptr);
  EXPECT_EQ(keys.find("tokenizer.ggml.scores"), nullptr);
  EXPECT_EQ(*keys.find("tokenizer.ggml.merges"), Value::array({"\n \n", "\u2581 a"}));
  EXPECT_EQ(keys.find("tokenizer.ggml.tokens")->as_array()[10], Value("\u2581a"));
  EXPECT_EQ(*keys.find("tokenizer.ggml.token_type"), Value::array({3, 3, 3, 4, 4, 2, 6, 1, 1, 1, 1, 1, 5, 5}));
  EXPECT_EQ(*keys.find("tokenizer.ggml.bos_token_id"), Value(1));
  EXPECT_EQ(*keys.find("tokenizer.ggml.add_bos_token"), Value(true)) << "whatever the folder says";
  EXPECT_EQ(*keys.find("tokenizer.ggml.add_space_prefix"), Value(false));
}

TEST_F(PiecesTest, OfOthersHaveScores) {
  const Value keys = metadata("gemma3_text");
  EXPECT_EQ(*keys.find("tokenizer.ggml.model"), Value("llama"));
  EXPECT_EQ(*keys.find("tokenizer.ggml.pre"), Value("default"));
  EXPECT_EQ(keys.find("tokenizer.ggml.merges"), nullptr);
  EXPECT_EQ(keys.find("tokenizer.ggml.scores")->as_array()[11], Value(-1.0));
  EXPECT_EQ(keys.find("tokenizer.ggml.token_type")->as_array()[3], Value(3));
  EXPECT_EQ(*keys.find("tokenizer.ggml.add_bos_token"), Value(false));
}

TEST_F(QuantiseTest, ScaledFrequenciesComeBack) {
  const auto model = copy();
  change(model / "config.json", [](Value& config) {
    config.set("max_position_embeddings", 131072);
    config.set("rope_theta", 500000.0);
    config.set("rope_scaling", parse_json(R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                              "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})",
                                          "scaling"));
  });
  EXPECT_EQ(read_model(made(DType::bf16, model)).arch, read_model(model).arch);
  change(model / "config.json", [](Value& config) {
    config.set("rope_scaling", parse_json(R"({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5,
                                              "original_max_position_embeddings": 32768})",
                                          "scaling"));
  });
  const Rotary before = read_model(model).arch.rotaries.front(),
               after = read_model(made(DType::bf16, model)).arch.rotaries.front();
  EXPECT_EQ(after.scaling, RotaryScaling::yarn);
  EXPECT_EQ(after.original_context, before.original_context);
  EXPECT_NEAR(after.attention_factor, before.attention_factor, 1e-6);
  change(model / "config.json", [](Value& config) {
    config.set("rope_scaling", parse_json(R"({"type": "linear", "factor": 2.0})", "scaling"));
  });
  EXPECT_EQ(read_model(made(DType::bf16, model)).arch, read_model(model).arch);
  EXPECT_EQ(read_model(model).arch.context, 2 * 131072) << "stretched once";
}

// As a merged adapter saves it: config.json says that the head is tied.
TEST_F(QuantiseTest, AHeadOfItsOwnIsKept) {
  const auto model = copy();
  const std::string name = "lm_head.weight";
  {
    const Checkpoint checkpoint(tales);
    const StoredTensor& table = checkpoint.find("model.embed_tokens.weight").tensor;
    std::vector<std::byte> head(table.bytes.begin(), table.bytes.end());
    head[7] ^= std::byte{0x10};
    const SafetensorsLayout layout = safetensors_layout({{name, table.type, table.shape}});
    SafetensorsWriter::create(model / "head.safetensors", layout);
    SafetensorsWriter(model / "head.safetensors", layout).write(0, 0, head);
    Value map = Value::object({{name, "head.safetensors"}});
    for (const std::string& other : checkpoint.names()) map.set(other, "model.safetensors");
    write_file(model / "model.safetensors.index.json", to_json(Value::object({{"weight_map", map}})));
  }
  EXPECT_FALSE(read_model(model).arch.tied_embeddings);
  const auto made_file = made(DType::bf16, model);
  const GgufFile file(made_file);
  ASSERT_TRUE(file.tensors().contains("output.weight"));
  EXPECT_FALSE(
      std::ranges::equal(file.tensors().at("output.weight").bytes, file.tensors().at("token_embd.weight").bytes));
  EXPECT_FALSE(read_model(made_file).arch.tied_embeddings);
}

TEST_F(QuantiseTest, RefusesWhatHasNoWords) {
  const auto model = copy();
  change(model / "config.json", [](Value& config) { config.set("hidden_act", "gelu"); });
  EXPECT_THAT(refusal_of([&] { made(DType::q4_0, model); }), HasSubstr("activation cannot be written"));
  EXPECT_THAT(refusal_of([&] { made(DType::q4_0, MOTLEY_SOURCE_DIR "/data/models/opt-125m"); }),
              HasSubstr("the family opt"));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "copy"));
  EXPECT_FALSE(std::filesystem::exists(folder / "q4_0.gguf"));
}

}  // namespace
}  // namespace motley
