#include "motley/model/gguf_config.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <functional>

#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/model/model.hpp"

namespace motley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GgufConfigTest : public ::testing::Test {
 protected:
  GgufConfigTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gguf-config-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  ~GgufConfigTest() override { std::filesystem::remove_all(folder); }

  // A file of one block whose metadata is complete but for what `edit` does; tensors hold zeros.
  struct File {
    std::string architecture = "llama";
    std::map<std::string, std::uint32_t> sizes = {
        {"block_count", 1},          {"embedding_length", 64},       {"feed_forward_length", 96},
        {"attention.head_count", 4}, {"attention.head_count_kv", 2}, {"context_length", 128}};
    std::map<std::string, std::string> types = {};  // of matrices; else Q8_0
    bool tied = true, query_bias = false, output_bias = false;
    std::map<std::string, std::int64_t> vectors = {};  // further tensors
    std::function<void(GgufWriter&)> more = [](GgufWriter&) {};
  };
  Model read(const File& file) {
    GgufWriter writer;
    writer.set_text("general.architecture", file.architecture);
    for (const auto& [key, value] : file.sizes) writer.set_u32(file.architecture + "." + key, value);
    writer.set_f32(file.architecture + ".attention.layer_norm_rms_epsilon", 1e-5F);
    writer.set_u32("tokenizer.ggml.eos_token_id", 2);
    file.more(writer);
    std::vector<std::size_t> bytes;
    const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
      const auto stated = file.types.find(name);
      const std::string type = shape.size() < 2 ? "F32" : stated == file.types.end() ? "Q8_0" : stated->second;
      writer.add_tensor(name, type, shape);
      const auto values = static_cast<std::size_t>(shape.size() < 2 ? shape[0] : shape[0] * shape[1]);
      bytes.push_back(values / find_gguf_type(type)->block_values * find_gguf_type(type)->block_bytes);
    };
    add("token_embd.weight", {300, 64});
    add("output_norm.weight", {64});
    if (!file.tied) add("output.weight", {300, 64});
    for (const char* norm : {"attn_norm", "ffn_norm"}) add(std::string("blk.0.") + norm + ".weight", {64});
    add("blk.0.attn_q.weight", {64, 64});
    add("blk.0.attn_k.weight", {32, 64});
    add("blk.0.attn_v.weight", {32, 64});
    add("blk.0.attn_output.weight", {64, 64});
    add("blk.0.ffn_gate.weight", {96, 64});
    add("blk.0.ffn_up.weight", {96, 64});
    add("blk.0.ffn_down.weight", {64, 96});
    if (file.query_bias) add("blk.0.attn_q.bias", {64});
    if (file.output_bias) add("blk.0.attn_output.bias", {64});
    for (const auto& [name, size] : file.vectors) add(name, {size});
    const auto path = folder / "m.gguf";
    writer.write(path, [&](std::int64_t tensor, const GgufWriter::Sink& sink) {
      sink(std::vector<std::byte>(bytes[static_cast<std::size_t>(tensor)]));
    });
    return read_model(path);
  }
  std::string refused(const File& file) {
    try {
      read(file);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path folder;
};

TEST_F(GgufConfigTest, ReadsAModel) {
  const Model model = read({});
  const Architecture& arch = model.arch;
  EXPECT_EQ(model.name, "m");
  EXPECT_EQ(arch.family, "llama");
  EXPECT_EQ(arch.layers, 1);
  EXPECT_EQ(arch.hidden, 64);
  EXPECT_EQ(arch.heads, 4);
  EXPECT_EQ(arch.kinds.front().kv_heads, 2);
  EXPECT_EQ(arch.kinds.front().head_dim, 16);
  EXPECT_EQ(arch.kinds.front().ffn, 96);
  EXPECT_EQ(arch.vocabulary, 300);
  EXPECT_EQ(arch.context, 128);
  EXPECT_EQ(arch.norm_epsilon, 1e-5);
  EXPECT_TRUE(arch.tied_embeddings);
  EXPECT_EQ(arch.eos_tokens, std::vector<std::int64_t>{2});
  EXPECT_EQ(arch.bos_token, std::nullopt);
  EXPECT_EQ(arch.checkpoint_type, DType::file);
  EXPECT_EQ(arch.tensor_types.at("model.layers.0.mlp.down_proj.weight"), DType::q8_0);
  EXPECT_EQ(arch.tensor_types.size(), 8U) << "matrices alone";
}

TEST_F(GgufConfigTest, AModelSurvivesItsPlan) {
  const Model model = read({.types = {{"blk.0.ffn_down.weight", "Q4_1"}}});
  EXPECT_EQ(motley::read<Model>(write(model), "plan"), model);
}

TEST_F(GgufConfigTest, FamiliesAreWhatTheirTensorsSay) {
  EXPECT_FALSE(read({.tied = false}).arch.tied_embeddings);
  EXPECT_TRUE(read({.architecture = "qwen2", .query_bias = true}).arch.qkv_bias);
  EXPECT_FALSE(read({.architecture = "qwen2", .query_bias = true}).arch.output_bias);
  EXPECT_TRUE(read({.query_bias = true, .output_bias = true}).arch.output_bias);
  const Architecture windowed =
      read({.more = [](GgufWriter& writer) { writer.set_u32("llama.attention.sliding_window", 32); }}).arch;
  EXPECT_EQ(windowed.family, "mistral");
  EXPECT_EQ(windowed.kinds.front().window, 32);
}

TEST_F(GgufConfigTest, EndsOfATurnEndASequence) {
  const Model model = read({.more = [](GgufWriter& writer) {
    std::vector<std::string> texts(300, "x");
    std::vector<std::int32_t> types(300, 1);
    texts[7] = texts[8] = "<|im_end|>";
    types[7] = 3;  // the other one is text
    writer.set_texts("tokenizer.ggml.tokens", texts);
    writer.set_i32s("tokenizer.ggml.token_type", types);
  }});
  EXPECT_EQ(model.arch.eos_tokens, (std::vector<std::int64_t>{2, 7}));
}

TEST_F(GgufConfigTest, AScalingStretchesTheContext) {
  const auto scaled = [&](const char* kind, std::uint32_t original) {
    return read({.more =
                     [&](GgufWriter& writer) {
                       writer.set_text("llama.rope.scaling.type", kind);
                       writer.set_f32("llama.rope.scaling.factor", 4);
                       if (original > 0) writer.set_u32("llama.rope.scaling.original_context_length", original);
                     }})
        .arch.context;
  };
  EXPECT_EQ(scaled("none", 0), 128);
  EXPECT_EQ(scaled("linear", 0), 512);
  EXPECT_EQ(scaled("yarn", 100), 400);
  EXPECT_EQ(scaled("yarn", 0), 512);
}

TEST_F(GgufConfigTest, OneTypeOfFloatsIsThatOfTheWeights) {
  std::map<std::string, std::string> all;
  for (const char* name : {"token_embd", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output",
                           "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"})
    all[std::string(name) + ".weight"] = "BF16";
  const Architecture arch = read({.types = all}).arch;
  EXPECT_EQ(arch.checkpoint_type, DType::bf16);
  EXPECT_TRUE(arch.tensor_types.empty());
  all["token_embd.weight"] = "F16";
  EXPECT_EQ(read({.types = all}).arch.checkpoint_type, DType::file);
}

TEST_F(GgufConfigTest, NamesWhatItCannotExpress) {
  const std::string path = (folder / "m.gguf").string();
  File file;
  file.sizes.erase("feed_forward_length");
  EXPECT_THAT(refused(file), AllOf(HasSubstr(path), HasSubstr("\"llama.feed_forward_length\" is missing")));
  EXPECT_THAT(refused({.architecture = "qwen2moe"}), HasSubstr("the architecture \"qwen2moe\" is not supported"));
  EXPECT_THAT(refused({.query_bias = true}), HasSubstr("biases of some"));
  EXPECT_THAT(refused({.architecture = "qwen2"}), HasSubstr("biases of some"));
  EXPECT_THAT(refused({.types = {{"blk.0.ffn_up.weight", "Q8_1"}}}), HasSubstr("ffn_up.weight is of type Q8_1"));
  const auto with = [&](const std::string& key, std::uint32_t value) {
    return refused({.more = [&](GgufWriter& writer) { writer.set_u32(key, value); }});
  };
  EXPECT_THAT(
      refused({.architecture = "qwen3", .more = [](GgufWriter& writer) { writer.set_u32("qwen3.expert_count", 8); }}),
      AllOf(HasSubstr("qwen3.expert_count"), HasSubstr("experts")));
  EXPECT_THAT(with("llama.rope.dimension_count", 8), HasSubstr("part of each head"));
  EXPECT_THAT(with("llama.attention.value_length", 8), HasSubstr("values of another length"));
  EXPECT_THAT(refused({.more = [](GgufWriter& writer) { writer.set_text("llama.rope.scaling.type", "longrope"); }}),
              HasSubstr("rotary scaling \"longrope\""));
  for (const std::int64_t frequencies : {0, 8})
    EXPECT_THAT(refused({.vectors = {{"rope_freqs.weight", frequencies}}}),
                HasSubstr("rope_freqs.weight follows neither"));
  File uneven;
  uneven.sizes.erase("attention.head_count_kv");
  uneven.more = [](GgufWriter& writer) { writer.set_i32s("llama.attention.head_count_kv", {2}); };
  EXPECT_THAT(refused(uneven), HasSubstr("a value per layer"));
  File wrong;
  wrong.sizes["attention.head_count"] = 3;
  EXPECT_THAT(refused(wrong), HasSubstr("3 query heads"));
}

// Its first layer is dense, and the second predicts further tokens.
TEST_F(GgufConfigTest, PredictionLayersAreLeftOut) {
  File file{.architecture = "glm4moe"};
  file.sizes["block_count"] = 2;
  file.more = [](GgufWriter& writer) {
    for (const auto& [key, value] : std::map<std::string, std::uint32_t>{{"nextn_predict_layers", 1},
                                                                         {"leading_dense_block_count", 1},
                                                                         {"rope.dimension_count", 8},
                                                                         {"expert_count", 16},
                                                                         {"expert_used_count", 4}})
      writer.set_u32("glm4moe." + key, value);
  };
  const Model model = read(file);
  EXPECT_EQ(model.arch.layers, 1);
  EXPECT_EQ(model.arch.kinds.front().experts.count, 0);
  EXPECT_EQ(rotated_dimensions(model.arch.rotaries.front(), model.arch.kinds.front().head_dim), 8);
  file.sizes["block_count"] = 1;
  EXPECT_THAT(refused(file), HasSubstr("glm4moe.nextn_predict_layers: 1 is out of range"));
}

TEST_F(GgufConfigTest, OtherScoresOfRoutersAreRefused) {
  EXPECT_THAT(refused({.architecture = "minimax-m2",
                       .more = [](GgufWriter& writer) { writer.set_u32("minimax-m2.expert_gating_func", 1); }}),
              HasSubstr("a router that scores by 1 is not supported"));
}

TEST_F(GgufConfigTest, TypesOfAPlanAreThoseOfAllMatrices) {
  const Model model = read({});
  const auto reading = [&](const std::function<void(Value&)>& edit) -> std::string {
    Value written = write(model);
    Value types = *written.find("tensor_types");
    edit(types);
    written.set("tensor_types", types);
    try {
      motley::read<Model>(written, "plan");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(reading([](Value&) {}), "accepted");
  EXPECT_THAT(reading([](Value& types) { types.as_object().pop_back(); }), HasSubstr("is missing"));
  EXPECT_THAT(reading([](Value& types) { types.as_object().back().second = Value("int8"); }), HasSubstr("cannot be"));
  EXPECT_THAT(reading([](Value& types) { types.as_object().back().second = Value("file"); }), HasSubstr("cannot be"));
}

}  // namespace
}  // namespace motley
