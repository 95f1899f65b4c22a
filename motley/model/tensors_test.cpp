// Names, shapes and counts against what `transformers` says (tests/reference/ holds the scripts that recorded it).
#include <gtest/gtest.h>

#include <map>

#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

const std::filesystem::path recorded = std::filesystem::path(MOTLEY_SOURCE_DIR) / "tests/data";

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

TEST(Tensors, NamesAndShapesAreThoseOfTheCheckpoint) {
  const Value records = read_document(recorded / "checkpoint_tensors.json");
  ASSERT_GE(records.as_array().size(), 10u);
  for (const Value& record : records.as_array()) {
    SCOPED_TRACE(record.find("name")->as_string());
    const Architecture arch = read_architecture(*record.find("config"), "config.json");
    Shapes ours;
    for (const TensorSpec& tensor : stored_tensors(arch))
      EXPECT_TRUE(ours.emplace(tensor.name, tensor.shape).second) << tensor.name << " stands twice";
    Shapes theirs;
    for (const auto& [name, shape] : record.find("tensors")->as_object())
      for (const Value& size : shape.as_array()) theirs[name].push_back(size.as_integer());
    EXPECT_EQ(ours, theirs);
  }
}

TEST(Tensors, ParametersAreThoseOfTransformers) {
  const Value records = read_document(recorded / "parameter_counts.json");
  ASSERT_GE(records.as_array().size(), 25u);
  for (const Value& record : records.as_array()) {
    const std::string name = record.find("name")->as_string();
    const Value* config = record.find("config");
    const Architecture arch = config ? read_architecture(*config, name) : read_model(name).arch;
    EXPECT_EQ(total_parameters(arch), record.find("parameters")->as_integer()) << name;
    const Value* active = record.find("active");
    EXPECT_TRUE(active == nullptr || active_parameters(arch) == active->as_integer()) << name;
  }
}

TEST(Tensors, RolesOfABlock) {
  Architecture arch = read_model("qwen3-0.6b").arch;
  std::vector<std::string> roles;
  for (const TensorSpec& tensor : block_tensors(arch, 0)) roles.push_back(tensor.role);
  EXPECT_EQ(roles, (std::vector<std::string>{"attention_norm.weight", "q.weight", "k.weight", "v.weight", "o.weight",
                                             "q_norm.weight", "k_norm.weight", "ffn_norm.weight", "gate.weight",
                                             "up.weight", "down.weight"}));
  EXPECT_EQ(head_tensors(arch).back().name, "model.embed_tokens.weight");  // tied
}

TEST(Tensors, BiasesOfColumnCutMatricesAreWhole) {
  std::map<std::string, TensorCut> cuts;
  for (const TensorSpec& tensor : block_tensors(read_model("opt-125m").arch, 0)) cuts[tensor.role] = tensor.cut;
  EXPECT_EQ(cuts.at("o.weight"), TensorCut::heads_in);
  EXPECT_EQ(cuts.at("o.bias"), TensorCut::replicated);
  EXPECT_EQ(cuts.at("down.weight"), TensorCut::ffn_in);
  EXPECT_EQ(cuts.at("down.bias"), TensorCut::replicated);
  EXPECT_EQ(cuts.at("q.bias"), TensorCut::heads);
  EXPECT_EQ(cuts.at("k.bias"), TensorCut::kv_heads);
  EXPECT_EQ(cuts.at("v.bias"), TensorCut::kv_heads);
  EXPECT_EQ(cuts.at("up.bias"), TensorCut::ffn);
  EXPECT_EQ(cuts.at("ffn_norm.bias"), TensorCut::replicated);
}

TEST(Counts, Llama2_70B) {
  const Architecture arch = read_model("llama-2-70b").arch;
  EXPECT_EQ(block_parameters(arch, 0) - 2 * arch.hidden, 855'638'016);  // without norms
  EXPECT_EQ(kv_bytes_per_token(arch, 0, DType::fp16), 4096);            // 2 x 8 heads x 128 x 2 bytes, per layer
  EXPECT_EQ(kv_bytes_per_token(arch, 0, DType::fp32), 8192);
  EXPECT_EQ(kv_bytes_per_token(arch, 0, DType::int4), 1152);  // 32 blocks of 64 values
  EXPECT_DOUBLE_EQ(block_flops(arch, 0, 0), 2.0 * 855'638'016);
  EXPECT_DOUBLE_EQ(block_flops(arch, 0, 1000) - block_flops(arch, 0, 0), 4.0 * 8192 * 1000);
  EXPECT_DOUBLE_EQ(head_flops(arch), 2.0 * 32000 * 8192);
}

TEST(Counts, AWindowBoundsAttention) {
  Architecture arch = read_model("mistral-7b").arch;
  EXPECT_EQ(arch.kinds.front().window, 4096);
  EXPECT_DOUBLE_EQ(block_flops(arch, 0, 4096), block_flops(arch, 0, 10000));
  EXPECT_LT(block_flops(arch, 0, 4000), block_flops(arch, 0, 4096));
  arch.kinds.push_back(arch.kinds.front());
  arch.kinds.back().window = 0;
  arch.kind_of_layer.assign(static_cast<std::size_t>(arch.layers), 0);
  arch.kind_of_layer[0] = 1;
  EXPECT_LT(block_flops(arch, 0, 4096), block_flops(arch, 0, 10000));
  EXPECT_DOUBLE_EQ(block_flops(arch, 1, 4096), block_flops(arch, 1, 10000));
  EXPECT_DOUBLE_EQ(blocks_flops(arch, 1e4), block_flops(arch, 0, 1e4) + 31 * block_flops(arch, 1, 1e4));
}

TEST(Counts, AKindThatNoLayerIsOfAddsNothing) {
  const Architecture arch = read_model("mistral-7b").arch;
  Architecture more = arch;
  more.kinds.push_back(arch.kinds.front());
  more.kinds.back().ffn *= 2;
  const Shard whole = make_shards(more, 1).front();
  const ModelPart all = whole_model(arch);
  EXPECT_EQ(total_parameters(more), total_parameters(arch));
  EXPECT_DOUBLE_EQ(blocks_flops(more, 100), blocks_flops(arch, 100));
  EXPECT_EQ(weight_bytes(more, all, whole, DType::bf16),
            weight_bytes(arch, all, make_shards(arch, 1).front(), DType::bf16));
}

// Mixtral 8x7B: 46.703 billion parameters, of which a token passes 12.880.
TEST(Counts, OfExpertsATokenPassesSome) {
  const Architecture arch = read_model("mixtral-8x7b").arch;
  EXPECT_EQ(total_parameters(arch), 46'702'792'704);
  EXPECT_EQ(active_parameters(arch), 12'879'925'248);
  EXPECT_EQ(total_parameters(arch), parameters_of(part_tensors(arch, whole_model(arch))));
  const double attention = 2.0 * 4096 * (2 * 4096 + 2 * 1024), router = 2.0 * 8 * 4096;
  EXPECT_DOUBLE_EQ(block_flops(arch, 0, 0), attention + router + 2 * 3 * 2.0 * 4096 * 14336);
}

// 62.8 and 75.4 MiB of a sequence, and the keys and values of 10 and 12 layers.
TEST(Counts, OfDeltaNetsASequenceKeepsStates) {
  const auto of_sequence = [](const Architecture& arch, const Shard& shard) {
    return sum_over_layers(arch, {0, arch.layers}, [&](std::int64_t layer) { return state_bytes(arch, layer, shard); });
  };
  const Architecture arch = read_model("qwen3.5-35b-a3b").arch, next = read_model("qwen3-next-80b-a3b").arch;
  const std::int64_t layer = 4 * (32 * 128 * 128 + 8192 * 3);
  EXPECT_EQ(of_sequence(arch, make_shards(arch, 1).front()), 30 * layer);
  EXPECT_EQ(of_sequence(next, make_shards(next, 1).front()), 36 * layer);
  std::int64_t divided = 0;
  for (const Shard& shard : make_shards(arch, 3, {0.5, 0.3, 0.2})) divided += of_sequence(arch, shard);
  EXPECT_EQ(divided, 30 * layer);
  EXPECT_DOUBLE_EQ(block_flops(arch, 0, 1e4), block_flops(arch, 0, 0));
  EXPECT_DOUBLE_EQ(delta_flops(arch.kind(0).delta), 8.0 * 32 * 128 * 128);
}

TEST(Counts, BytesOf) {
  EXPECT_EQ(bytes_of(DType::fp32, 3), 12);
  EXPECT_EQ(bytes_of(DType::bf16, 3), 6);
  EXPECT_EQ(bytes_of(DType::fp16, 3), 6);
  EXPECT_EQ(bytes_of(DType::int8, 3), 3);
  EXPECT_EQ(name_of(DType::bf16), "bf16");
}

}  // namespace
}  // namespace motley
