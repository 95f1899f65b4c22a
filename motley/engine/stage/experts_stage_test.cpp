// A stage whose layers are mixtures of experts. Layouts and equality with `transformers` are tests/parity's.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <future>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/stage/kernels_on_host_test.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/engine/weights/load_weights.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

struct ExpertsCase {
  const char* name;
  const char* keys;
};
std::ostream& operator<<(std::ostream& out, const ExpertsCase& family) { return out << family.name; }

constexpr const char* experts_config = R"("hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 101, "max_position_embeddings": 64, "num_experts_per_tok": 2)";
const std::vector<ExpertsCase> experts_cases = {
    {"mixtral", R"("model_type": "mixtral", "num_local_experts": 8)"},
    {"qwen3_moe",
     R"("model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 40, "mlp_only_layers": [1])"},
    {"glm4_moe",
     R"("model_type": "glm4_moe", "n_routed_experts": 8, "moe_intermediate_size": 32, "n_shared_experts": 4, "use_qk_norm": true)"},
    {"minimax_m2", R"("model_type": "minimax_m2", "num_local_experts": 8, "head_dim": 32, "rotary_dim": 16)"},
    {"gpt_oss", R"("model_type": "gpt_oss", "num_local_experts": 8, "head_dim": 16, "sliding_window": 16)"},
};

class ExpertsStageTest : public ::testing::TestWithParam<ExpertsCase> {
 protected:
  ExpertsStageTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "experts-stage-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    const std::string config = fmt::format("{{{}, {}}}", experts_config, GetParam().keys);
    spec_.arch = read_architecture(parse_json(config, "config"), "config");
    spec_.layers = {0, 3};
    write_random_model(folder_, spec_.arch);
  }
  ~ExpertsStageTest() override { std::filesystem::remove_all(folder_); }

  static StepSequence rows(std::uint64_t id, std::int64_t position, std::int64_t count,
                           std::vector<std::int32_t> blocks) {
    StepSequence sequence{
        .sequence = id, .position = position, .count = count, .blocks = std::move(blocks), .sampling = Sampling{}};
    for (std::int64_t i = position; i < position + count; ++i)
      sequence.tokens.push_back(static_cast<std::int32_t>((static_cast<std::int64_t>(id) * 31 + i * 7) % 101));
    return sequence;
  }
  static at::Tensor logits_of(StageModel& model, const Step& step) {
    const c10::InferenceMode guard;
    const at::Tensor logits = model.logits(step, model.forward(step, {}));
    return logits.defined() ? logits.cpu().clone() : logits;
  }

  std::filesystem::path folder_;
  StageSpec spec_{.embedding = true,
                  .head = true,
                  .kv_tokens = 200,
                  .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 8}};
};

TEST_P(ExpertsStageTest, AllocatesWhatWasPredicted) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    spec_.weight_type = type;
    const Shard shard = make_shards(spec_.arch, 1).front();
    const StageModel::Allocated real = StageModel(spec_, folder_, nullptr, cpu_device()).allocated();
    const ModelPart part = whole_model(spec_.arch);
    EXPECT_EQ(real.weights, weight_bytes(spec_.arch, part, shard, type));
    EXPECT_EQ(real.activations, activation_bytes(spec_.arch, part, shard, type, spec_.limits));
  }
}

// To the bit: alone, and in a batch with others.
TEST_P(ExpertsStageTest, ARequestDoesNotDependOnItsCompany) {
  for (const DType type : {DType::fp32, DType::bf16, DType::q8_0}) {
    spec_.weight_type = type;
    StageModel alone(spec_, folder_, nullptr, cpu_device()), together(spec_, folder_, nullptr, cpu_device());
    const Step first{.step = 1, .sequences = {rows(1, 0, 20, {3, 1, 2})}},
        first_of_two{.step = 1, .sequences = {rows(2, 0, 17, {0, 6, 8}), rows(1, 0, 20, {5, 4, 7})}},
        next{.step = 2, .sequences = {rows(1, 20, 1, {3, 1, 2})}},
        next_of_two{.step = 2, .sequences = {rows(1, 20, 1, {5, 4, 7}), rows(2, 17, 1, {0, 6, 8})}};
    EXPECT_TRUE(logits_of(together, first_of_two)[1].equal(logits_of(alone, first)[0]));
    EXPECT_TRUE(logits_of(together, next_of_two)[0].equal(logits_of(alone, next)[0]));
  }
}

// Two of eight for each token in each layer that has experts, the same alone and in company; other steps tell none.
TEST_P(ExpertsStageTest, TellsTheExpertsThatAStepTook) {
  StageModel model(spec_, folder_, nullptr, cpu_device());
  const auto taken_by = [&](std::vector<StepSequence> sequences, Answer answer) {
    model.forward({.step = 1, .sequences = std::move(sequences), .answer = answer}, {});
    return model.experts_taken();
  };
  const std::vector<LayerExperts> alone = taken_by({rows(1, 0, 20, {3, 1, 2})}, Answer::experts);
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < 3; ++layer)
    if (spec_.arch.kind(layer).experts.count > 0) layers.push_back(layer);
  ASSERT_EQ(alone.size(), layers.size());
  const std::vector<LayerExperts> together = taken_by({rows(2, 0, 5, {4}), rows(1, 0, 20, {5, 6, 7})}, Answer::experts);
  ASSERT_EQ(together.size(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(alone[i].layer, layers[i]);
    const std::vector<std::int32_t>& experts = alone[i].experts;
    ASSERT_EQ(experts.size(), 20u * 2);
    for (std::size_t token = 0; token < 20; ++token) {
      EXPECT_NE(experts[2 * token], experts[2 * token + 1]);
      for (const std::int32_t expert : {experts[2 * token], experts[2 * token + 1]})
        EXPECT_TRUE(expert >= 0 && expert < 8);
    }
    const std::vector<std::int32_t>& of_both = together[i].experts;
    ASSERT_EQ(of_both.size(), 25u * 2);
    EXPECT_TRUE(std::equal(experts.begin(), experts.end(), of_both.begin() + 5 * 2));
  }
  EXPECT_TRUE(taken_by({rows(1, 0, 20, {3, 1, 2})}, Answer::tokens).empty());
}

TEST_P(ExpertsStageTest, SaysTheSameOnADeviceWithMemoryOfItsOwn) {
  StageModel here(spec_, folder_, nullptr, cpu_device()), apart(spec_, folder_, nullptr, apart_device());
  for (const Step& step : {Step{.step = 1, .sequences = {rows(1, 0, 20, {3, 1, 2}), rows(2, 0, 5, {4})}},
                           Step{.step = 2, .sequences = {rows(1, 20, 1, {3, 1, 2})}}}) {
    const at::Tensor expected = logits_of(here, step);
    EXPECT_LT((logits_of(apart, step) - expected).abs().max().item<double>(), 1e-5 * expected.std().item<double>());
  }
}

// A prompt, whose experts the host gathers, and steps of few rows, which choose on the device.
TEST_P(ExpertsStageTest, SaysTheSameByTheKernelsForGpus) {
  const KernelsOnHost device;
  for (const DType type : {DType::fp32, DType::q8_0}) {
    spec_.weight_type = type;
    StageModel here(spec_, folder_, nullptr, cpu_device()), there(spec_, folder_, nullptr, device);
    for (const Step& step : {Step{.step = 1, .sequences = {rows(1, 0, 20, {3, 1, 2}), rows(2, 0, 5, {4})}},
                             Step{.step = 2, .sequences = {rows(1, 20, 1, {3, 1, 2})}},
                             Step{.step = 3, .sequences = {rows(1, 21, 1, {3, 1, 2}), rows(2, 5, 1, {4})}}}) {
      const at::Tensor expected = logits_of(here, step);
      const double within = type == DType::fp32 ? 1e-5 : 0.1;  // inputs are rounded, and unlike for the prompt
      EXPECT_LT((logits_of(there, step) - expected).abs().max().item<double>(), within * expected.std().item<double>())
          << name_of(type) << " " << step.step;
    }
  }
}

// Blocks whose router would choose the experts that the model's own likes least.
class ContraryBlocks final : public BlockStore {
 public:
  ContraryBlocks(std::unique_ptr<BlockStore> from, const LayerRange& layers) : from_(std::move(from)) {
    for (std::int64_t layer = layers.first; layer < layers.end; ++layer) {
      blocks_.push_back(from_->block(layer));
      at::Tensor& router = blocks_.back().router.weight.values;
      if (router.defined()) router = -router;
    }
  }
  const BlockWeights& block(std::int64_t layer) override { return blocks_.at(static_cast<std::size_t>(layer)); }
  std::int64_t bytes() const override { return from_->bytes(); }

 private:
  std::unique_ptr<BlockStore> from_;
  std::vector<BlockWeights> blocks_;
};

// Ranks of unlike devices round the logits of a router unlike, and may not take unlike experts: here they would.
TEST_P(ExpertsStageTest, RanksTakeTheExpertsOfTheFirst) {
  const Step step{.step = 1, .sequences = {rows(1, 0, 20, {3, 1, 2}), rows(2, 0, 5, {4})}};
  StageModel whole(spec_, folder_, nullptr, cpu_device());
  const at::Tensor expected = logits_of(whole, step);
  spec_.degree = 2;
  spec_.shares = {0.7, 0.3};
  LinkedGroups groups("shm", 2);
  std::vector<std::future<at::Tensor>> ranks;
  for (const int rank : {0, 1})
    ranks.push_back(std::async(std::launch::async, [&, rank, spec = spec_]() mutable {
      const c10::InferenceMode guard;
      spec.rank = rank;
      const ComputeDevice& device = rank == 0 ? cpu_device() : apart_device();
      StageWeights weights = load_weights(spec, folder_, device);
      if (rank == 1) weights.blocks = std::make_unique<ContraryBlocks>(std::move(weights.blocks), spec.layers);
      StageModel part(spec, std::move(weights), groups[static_cast<std::size_t>(rank)].get(), device);
      return logits_of(part, step);
    }));
  EXPECT_LT((ranks[0].get() - expected).abs().max().item<double>(), 1e-5 * expected.std().item<double>());
  ranks[1].get();
}

struct ExpertsDivision {
  std::vector<double> shares;
  std::vector<std::int64_t> expert_shares;
};

// Shares of attention and of the shared expert, and whole experts: each rank reads its own, all add up to the whole.
TEST_P(ExpertsStageTest, RanksWithWholeExpertsSayTheSame) {
  const Step step{.step = 1, .sequences = {rows(1, 0, 20, {3, 1, 2}), rows(2, 0, 5, {4})}},
      next{.step = 2, .sequences = {rows(1, 20, 1, {3, 1, 2}), rows(2, 5, 1, {4})}};
  const KernelsOnHost kernels;
  const auto device_of = [&](int rank) -> const ComputeDevice& {  // these kernels run in one thread of the process
    return rank == 2 ? kernels : rank % 2 == 0 ? cpu_device() : apart_device();
  };
  for (const DType type : {DType::fp32, DType::q8_0}) {
    spec_.weight_type = type;
    spec_.degree = 1;
    spec_.shares = {};
    spec_.expert_shares = {};
    StageModel whole(spec_, folder_, nullptr, cpu_device());
    const at::Tensor expected = logits_of(whole, step), expected_next = logits_of(whole, next);
    for (const ExpertsDivision& division :
         {ExpertsDivision{{0.75, 0.25}, {6, 2}}, ExpertsDivision{{}, {2, 6}},
          ExpertsDivision{{0.5, 0.25, 0.25}, {5, 2, 1}}, ExpertsDivision{{}, {2, 1, 1, 1, 1, 1, 1}}}) {
      spec_.expert_shares = division.expert_shares;
      spec_.shares = division.shares;
      spec_.degree = static_cast<int>(division.expert_shares.size());
      LinkedGroups groups("shm", spec_.degree);
      std::vector<std::future<std::pair<at::Tensor, at::Tensor>>> ranks;
      for (int rank = 0; rank < spec_.degree; ++rank)
        ranks.push_back(std::async(std::launch::async, [&, rank, spec = spec_]() mutable {
          spec.rank = rank;
          StageModel part(spec, folder_, groups[static_cast<std::size_t>(rank)].get(), device_of(rank));
          const Shard shard = spec.shards().at(static_cast<std::size_t>(rank));
          EXPECT_EQ(part.allocated().weights, weight_bytes(spec.arch, whole_model(spec.arch), shard, type));
          const at::Tensor first = logits_of(part, step);
          return std::pair(first, logits_of(part, next));
        }));
      const auto [real, real_next] = ranks[0].get();
      for (std::size_t rank = 1; rank < ranks.size(); ++rank) ranks[rank].get();
      // Inputs of quantised matrices are rounded, and by other blocks where heads are divided.
      const double within = (type == DType::fp32 ? 1e-5 : 0.1) * expected.std().item<double>();
      EXPECT_LT((real - expected).abs().max().item<double>(), within) << name_of(type) << " " << spec_.degree;
      EXPECT_LT((real_next - expected_next).abs().max().item<double>(), within) << name_of(type) << " " << spec_.degree;
    }
  }
}

// What was held by columns is of no use to a rank of whole experts, and the other way round.
TEST_P(ExpertsStageTest, PartsOfUnlikeDivisionsAreToldApart) {
  spec_.degree = 2;
  spec_.rank = 1;
  StageSpec by_experts = spec_;
  by_experts.expert_shares = {5, 3};
  const WeightLoader other(by_experts, folder_, cpu_device());
  StageWeights columns = load_weights(spec_, folder_, cpu_device());
  std::int64_t kept = 0;
  for (const TensorSpec& tensor : own_tensors(by_experts, other.shard())) {
    const auto held = columns.held.find(tensor.name);
    if (held == columns.held.end() || !(held->second.slice == slice_of(spec_.arch, tensor, other.shard()))) continue;
    EXPECT_FALSE(tensor.expert >= 0 && tensor.is_matrix()) << tensor.name;
    kept += allocated_bytes(held->second.matrix.values);
  }
  EXPECT_GT(kept, 0);
  const StageWeights experts = load_weights(by_experts, folder_, cpu_device(), {}, columns.held);
  EXPECT_EQ(experts.loaded_bytes + kept,
            weight_bytes(spec_.arch, whole_model(spec_.arch), other.shard(), spec_.weight_type));
  for (const auto& [name, tensor] : experts.held)
    EXPECT_EQ(name.find("experts.0."), std::string::npos) << name << " is another rank's";
  const StageWeights again = load_weights(by_experts, folder_, cpu_device(), {}, experts.held);
  EXPECT_EQ(again.loaded_bytes, 0);
  by_experts.expert_shares = {4, 4};
  const StageWeights one_more = load_weights(by_experts, folder_, cpu_device(), {}, again.held);
  std::int64_t expected = 0;
  for (const TensorSpec& tensor : own_tensors(by_experts, by_experts.shards()[1]))
    if (tensor.expert == 4) expected += allocated_bytes(one_more.held.at(tensor.name).matrix.values);
  EXPECT_EQ(one_more.loaded_bytes, expected) << "the fifth expert is new";
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertsStageTest, ::testing::ValuesIn(experts_cases),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace motley
