#include "motley/convert/initial_weights.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <map>

#include "motley/base/error.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/stored_rows.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;

class InitialWeightsTest : public ::testing::Test {
 protected:
  InitialWeightsTest() {
    std::string pattern = (fs::temp_directory_path() / "initial-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  ~InitialWeightsTest() override { fs::remove_all(folder); }

  fs::path made(const InitialOptions& options, const Model& model = read_model("tales")) {
    const fs::path to = folder / std::to_string(count++);
    write_initial_model(model, fs::path(MOTLEY_SOURCE_DIR) / "data/models/tales", to, options);
    return to;
  }

  fs::path folder;
  int count = 0;
};

std::vector<float> values_at(const fs::path& model, const std::string& name, const std::vector<std::int64_t>& shape) {
  const Checkpoint checkpoint(model);
  const StoredRows rows(checkpoint, name, shape);
  std::vector<float> values(static_cast<std::size_t>(shape[0] * rows.width()));
  for (std::int64_t row = 0; row < shape[0]; ++row)
    rows.values(row, 0, rows.width(), values.data() + row * rows.width());
  return values;
}

double moment(const std::vector<float>& values, int power) {
  double sum = 0;
  for (const float value : values) sum += std::pow(value, power);
  return sum / static_cast<double>(values.size());
}

TEST_F(InitialWeightsTest, IsAModelOfThatShape) {
  const Model tales = read_model("tales");
  const fs::path path = made({.type = DType::fp32});
  const Model model = read_model(path);
  EXPECT_EQ(model.arch.checkpoint_type, DType::fp32);
  Architecture arch = model.arch;
  arch.checkpoint_type = tales.arch.checkpoint_type;
  EXPECT_EQ(arch, tales.arch);
  EXPECT_FALSE(model.digest.empty());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_TRUE(fs::exists(path / name)) << name;
  std::size_t bytes = 0;
  const SafetensorsFile file(path / "model.safetensors");
  for (const auto& [name, tensor] : file.tensors()) bytes += tensor.bytes.size();
  EXPECT_EQ(static_cast<std::int64_t>(bytes), 4 * total_parameters(arch));
  EXPECT_EQ(read_model(made({.type = DType::bf16})).arch.checkpoint_type, DType::bf16);
}

TEST_F(InitialWeightsTest, ValuesAreDistributedAsSaid) {
  const fs::path path = made({});
  const auto matrix = values_at(path, "model.layers.3.mlp.down_proj.weight", {192, 512});
  EXPECT_NEAR(moment(matrix, 1), 0, 3e-4);
  EXPECT_NEAR(std::sqrt(moment(matrix, 2)), 0.02, 2e-4);
  EXPECT_NEAR(moment(matrix, 4) / std::pow(0.02, 4), 3, 0.1);  // as of a normal distribution
  EXPECT_THAT(values_at(path, "model.layers.0.input_layernorm.weight", {192}), Each(1.0F));
  EXPECT_NE(values_at(path, "model.layers.3.mlp.up_proj.weight", {512, 192}),
            values_at(path, "model.layers.4.mlp.up_proj.weight", {512, 192}));
  // The padding token's row, 5, and no other.
  const auto embedding = values_at(path, "model.embed_tokens.weight", {2048, 192});
  for (std::size_t row = 0; row < 2048; ++row)
    EXPECT_EQ(
        std::all_of(embedding.begin() + static_cast<std::ptrdiff_t>(row * 192),
                    embedding.begin() + static_cast<std::ptrdiff_t>(row * 192 + 192), [](float v) { return v == 0; }),
        row == 5);
}

TEST_F(InitialWeightsTest, TheConfigurationNamesTheDeviation) {
  Model model = read_model("tales");
  model.config.set("initializer_range", 0.5);
  const auto matrix = values_at(made({}, model), "model.layers.3.mlp.down_proj.weight", {192, 512});
  EXPECT_NEAR(std::sqrt(moment(matrix, 2)), 0.5, 5e-3);
}

TEST_F(InitialWeightsTest, OptHasBiasesAndItsOwnNames) {
  Model model = read_model("opt-125m");
  for (const auto& [key, value] : std::map<std::string, int>{{"num_hidden_layers", 1},
                                                             {"num_attention_heads", 4},
                                                             {"hidden_size", 64},
                                                             {"word_embed_proj_dim", 64},
                                                             {"ffn_dim", 64},
                                                             {"vocab_size", 99}})
    model.config.set(key, value);
  model.arch = read_architecture(model.config, "test");
  const fs::path path = made({}, model);
  EXPECT_EQ(read_model(path).arch.family, "opt");
  EXPECT_THAT(values_at(path, "model.decoder.layers.0.fc1.bias", {64}), Each(0.0F));
  EXPECT_THAT(values_at(path, "model.decoder.layers.0.self_attn_layer_norm.weight", {64}), Each(1.0F));
}

TEST_F(InitialWeightsTest, FactorsOfGemma4Are1) {
  Model model = read_model("gemma-4-26b-a4b");
  for (const auto& [key, value] : std::map<std::string, int>{{"num_hidden_layers", 1},
                                                             {"hidden_size", 64},
                                                             {"head_dim", 16},
                                                             {"global_head_dim", 16},
                                                             {"intermediate_size", 64},
                                                             {"moe_intermediate_size", 32},
                                                             {"num_experts", 10},
                                                             {"vocab_size", 199}})
    model.config.set(key, value);
  model.arch = read_architecture(model.config, "test");
  const fs::path path = made({}, model);
  for (const auto& [name, size] : std::map<std::string, std::int64_t>{{"layer_scalar", 1},
                                                                      {"router.scale", 64},
                                                                      {"router.per_expert_scale", 10},
                                                                      {"post_feedforward_layernorm_1.weight", 64}})
    EXPECT_THAT(values_at(path, "model.layers.0." + name, {size}), Each(1.0F)) << name;
}

TEST_F(InitialWeightsTest, TheSeedAloneDecides) {
  const auto weights = [&](const InitialOptions& options) { return read_file(made(options) / "model.safetensors"); };
  const std::string first = weights({.seed = 3, .type = DType::bf16});
  EXPECT_EQ(weights({.seed = 3, .type = DType::bf16, .threads = 5}), first);
  EXPECT_NE(weights({.seed = 4, .type = DType::bf16}), first);
  EXPECT_NE(weights({.seed = (std::uint64_t{1} << 32) + 3, .type = DType::bf16}), first);
}

TEST_F(InitialWeightsTest, IsWholeOrNotThere) {
  const Model model = read_model("tales");
  fs::create_directory(folder / "there");
  try {
    write_initial_model(model, {}, folder / "there", {});
    ADD_FAILURE() << "written over";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_THAT(error.what(), HasSubstr("there exists already"));
  }
  EXPECT_THROW(write_initial_model(model, {}, folder / "nowhere/model", {}), Error);
  InitialOptions broken;
  broken.progress = [](double) { throw Error(ErrorCode::interrupted, "enough"); };
  EXPECT_THROW(write_initial_model(model, {}, folder / "new", broken), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

}  // namespace
}  // namespace motley
