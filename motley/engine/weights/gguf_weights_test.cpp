// Weights in GGUF's blocks: from a file, made at load, and cut between ranks.
#include <gmock/gmock.h>

#include "motley/base/quantised_types_test.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/weights/gguf_file_test.hpp"
#include "motley/engine/weights/read_weights.hpp"
#include "motley/engine/weights/weights.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

using GgufWeightsTest = GgufFileTest;

at::Tensor logits_of(const StageSpec& spec, const std::filesystem::path& model) {
  StageModel stage(spec, model, nullptr, cpu_device());
  StepSequence sequence{.sequence = 1, .position = 0, .count = 24, .blocks = {0, 1}, .sampling = Sampling{}};
  for (std::int32_t i = 0; i < 24; ++i) sequence.tokens.push_back(100 + i * 37 % 1900);
  const Step step{.step = 1, .sequences = {sequence}};
  return stage.logits(step, stage.forward(step, {})).clone();
}

WeightMatrix matrix_of(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, DType type) {
  const Span columns = whole_blocks(type, slice.columns);
  WeightMatrix matrix{.values = at::empty({slice.rows.size(), motley::bytes_of(type, columns.size())}, at::kByte),
                      .type = type,
                      .inputs = slice.columns.size(),
                      .skipped = slice.columns.first - columns.first};
  read_blocks(checkpoint, tensor, slice, type, matrix.values);
  return matrix;
}

Slice all_of(const TensorSpec& tensor) { return {{0, tensor.shape[0]}, {0, tensor.shape[1]}}; }

TEST_F(GgufWeightsTest, AnFp32FileIsTheFolder) {
  const at::Tensor expected = logits_of(whole(tales_folder, DType::fp32), tales_folder);
  EXPECT_TRUE(logits_of(whole(file_of(DType::fp32), DType::fp32), file_of(DType::fp32)).equal(expected));
  // fp16 holds each value of the tales model's bf16.
  EXPECT_LT(
      (logits_of(whole(file_of(DType::fp16), DType::file), file_of(DType::fp16)) - expected).abs().max().item<float>(),
      1e-3F);
}

// Blocks that are made at load are those of the file that is made beforehand, and stand for the same values.
TEST_F(GgufWeightsTest, BlocksMadeAtLoadAreThoseOfTheFile) {
  const Architecture arch = read_model(tales_folder).arch;
  const Checkpoint plain(tales_folder);
  for (const DType asked : quantised_types) {
    const Checkpoint file(file_of(asked), tensor_naming);
    for (const TensorSpec& tensor : block_tensors(arch, 5)) {
      if (tensor.shape.size() != 2) continue;
      const DType type = fitting(asked, tensor.shape[1]);
      const WeightMatrix made = matrix_of(plain, tensor, all_of(tensor), type);
      EXPECT_TRUE(made.values.equal(matrix_of(file, tensor, all_of(tensor), type).values))
          << name_of(asked) << " " << tensor.name;
      at::Tensor values = at::empty(tensor.shape, at::kFloat);
      read_tensor(file, tensor, all_of(tensor), values);
      EXPECT_TRUE(dequantised(made, at::kFloat).equal(values)) << name_of(asked) << " " << tensor.name;
    }
  }
}

// The columns of uneven ranks sum to the whole product, though their boundaries run through blocks.
TEST_F(GgufWeightsTest, RanksShareBlocks) {
  const Architecture arch = read_model(tales_folder).arch;
  for (const DType asked : quantised_types) {
    const Checkpoint file(file_of(asked), tensor_naming);
    const std::vector<Shard> shards = make_shards(arch, 3, {0.5, 0.2, 0.3});
    for (const TensorSpec& tensor : block_tensors(arch, 2)) {
      if (tensor.cut != TensorCut::heads_in && tensor.cut != TensorCut::ffn_in) continue;
      const DType type = fitting(asked, tensor.shape[1]);
      at::manual_seed(1);
      const at::Tensor input = at::randn({3, tensor.shape[1]});
      at::Tensor expected = at::zeros({3, tensor.shape[0]}), sum = at::zeros_like(expected);
      generic_ops().linear(expected, input, matrix_of(file, tensor, all_of(tensor), type), {});
      std::int64_t skipped = 0;
      for (const Shard& shard : shards) {
        const Slice slice = slice_of(arch, tensor, shard);
        const WeightMatrix part = matrix_of(file, tensor, slice, type);
        EXPECT_EQ(part.values.nbytes(), held_bytes(slice, type));
        skipped += part.skipped;
        at::Tensor terms = at::zeros_like(expected);
        generic_ops().linear(terms, input.narrow(1, slice.columns.first, slice.columns.size()), part, {});
        sum += terms;
      }
      EXPECT_GT(skipped, 0) << "no boundary runs through a block: " << name_of(type) << " " << tensor.name;
      EXPECT_LT((sum - expected).abs().max().item<float>(), 1e-5F) << name_of(type) << " " << tensor.name;
    }
  }
}

TEST_F(GgufWeightsTest, LookUpsAndProductsAreOfTheValues) {
  const Architecture arch = read_model(tales_folder).arch;
  const TensorSpec table = embedding_tensors(arch).front();
  const at::Tensor tokens = at::tensor({5, 700, 2047}, at::kLong);
  for (const DType asked : quantised_types) {
    const DType type = fitting(asked, table.shape[1]);
    WeightMatrix matrix = matrix_of(Checkpoint(file_of(asked), tensor_naming), table, all_of(table), type);
    const at::Tensor values = dequantised(matrix, at::kFloat);
    cpu_ops().prepare(matrix);
    at::Tensor out = at::zeros({3, 192}), product = at::zeros({3, 2048});
    cpu_ops().embedding(out, tokens, matrix, {0, 1000});
    EXPECT_TRUE(out.narrow(0, 0, 2).equal(values.index_select(0, tokens.narrow(0, 0, 2)))) << name_of(type);
    EXPECT_TRUE(out[2].equal(at::zeros({192}))) << "a token of another rank";
    const at::Tensor input = at::randn({3, 192});
    cpu_ops().linear(product, input, matrix, {});
    const at::Tensor expected = at::linear(input, values);
    EXPECT_LT((product - expected).norm().item<float>(), 0.02F * expected.norm().item<float>()) << name_of(type);
  }
}

TEST_F(GgufWeightsTest, RanksAllocateWhatIsPredicted) {
  for (const auto& [model, weights] : {std::pair(tales_folder, DType::q4_0),
                                       {tales_folder, DType::q6_k},
                                       {tales_folder, DType::iq4_xs},
                                       {file_of(DType::q4_k), DType::file},
                                       {file_of(DType::mxfp4), DType::file},
                                       {file_of(DType::fp16), DType::file},
                                       {file_of(DType::q4_1), DType::bf16}})
    for (int degree = 1; degree <= 3; ++degree) {
      StageSpec spec = whole(model, weights);
      spec.layers = {3, 6};
      spec.degree = degree;
      spec.shares = degree == 3 ? std::vector<double>{0.5, 0.2, 0.3} : std::vector<double>{};
      const std::vector<Shard> shards = make_shards(spec.arch, degree, spec.shares, weights);
      for (spec.rank = 0; spec.rank < degree; ++spec.rank) {
        double fraction = 0;
        WeightLoader loader(spec, model, cpu_device(), [&](double done) { fraction = done; });
        for (std::int64_t layer = 3; layer < 6; ++layer) loader.block(layer);
        loader.ends();
        const ModelPart part{{3, 6}, true, true};
        EXPECT_EQ(loader.bytes(), weight_bytes(spec.arch, part, shards[static_cast<std::size_t>(spec.rank)], weights));
        EXPECT_DOUBLE_EQ(fraction, 1);
      }
    }
}

TEST_F(GgufWeightsTest, HalvesStayHalves) {
  const StageSpec spec = whole(file_of(DType::fp16), DType::file);
  const Architecture& arch = spec.arch;
  WeightLoader loader(spec, file_of(DType::fp16), cpu_device());
  const WeightMatrix table = loader.ends().embedding;
  ASSERT_EQ(table.values.scalar_type(), at::kHalf);
  const at::Tensor values = table.values.to(at::kFloat), tokens = at::tensor({5, 700, 2047}, at::kLong),
                   input = at::randn({7, arch.hidden});
  for (const Ops* ops : {&cpu_ops(), &generic_ops()}) {
    at::Tensor rows = at::zeros({3, arch.hidden}), product = at::zeros({7, arch.vocabulary});
    ops->embedding(rows, tokens, table, {0, 1000});
    EXPECT_TRUE(rows.narrow(0, 0, 2).equal(values.index_select(0, tokens.narrow(0, 0, 2))));
    EXPECT_TRUE(rows[2].equal(at::zeros({arch.hidden}))) << "a token of another rank";
    ops->linear(product, input, table, {});
    EXPECT_TRUE(at::allclose(product, at::linear(input, values), 1e-5, 1e-5));
  }
}

TEST_F(GgufWeightsTest, WeightsOfAllTypesSayTheSame) {
  const at::Tensor expected = logits_of(whole(tales_folder, DType::fp32), tales_folder);
  const auto distance = [&](const at::Tensor& logits) {
    return ((logits - expected).norm() / expected.norm()).item<float>();
  };
  for (const DType type : quantised_types) {
    const at::Tensor from_file = logits_of(whole(file_of(type), DType::file), file_of(type));
    EXPECT_TRUE(from_file.equal(logits_of(whole(tales_folder, type), tales_folder))) << name_of(type);
    EXPECT_LT(distance(from_file), type == DType::q8_0 || type == DType::q6_k ? 0.03F : 0.25F) << name_of(type);
  }
}

TEST_F(GgufWeightsTest, APlanForAnotherFileIsRefused) {
  const StageSpec spec = whole(file_of(DType::q4_k), DType::file);
  try {
    StageModel(spec, file_of(DType::q8_0), nullptr, cpu_device());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_THAT(error.what(), HasSubstr("as q8_0, and the plan counts with q"));
  }
}

}  // namespace
}  // namespace motley
