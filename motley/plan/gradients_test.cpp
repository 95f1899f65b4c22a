#include "motley/plan/gradients.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

// One replica of one stage: tensor-parallel ranks 0 and 1 of data-parallel rank 0, then those of rank 1.
TrainPlan two_by_two(Sharding shard) {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/qwen3-0.6b");
  plan.cluster = resolve(read<ClusterDescription>(parse_toml(R"(format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["A100*4"]
)",
                                                             "c"),
                                                  "c"),
                         "c");
  const LayerRange all{0, plan.model.arch.layers};
  plan.replicas = {{.share = 1,
                    .micro_batches = 1,
                    .stages = {{.layers = all,
                                .devices = {"box/0", "box/1", "box/2", "box/3"},
                                .strategies = {{.layers = all, .tp = 2, .dp = 2, .shard = shard}}}}}};
  return plan;
}

struct Part {
  Span span;  // of rows
  std::vector<std::pair<std::string, double>> holders;
  bool operator==(const Part&) const = default;
};

std::vector<Part> parts_of(const TrainPlan& plan, const std::string& name) {
  std::vector<Part> parts;
  for (const GradientSlice& part : gradient_slices(plan)) {
    if (part.tensor.name != name) continue;
    Part& own = parts.emplace_back(Part{part.slice.rows, {}});
    for (const GradientHolder& holder : part.holders) own.holders.emplace_back(holder.device, holder.weight);
  }
  return parts;
}

TEST(GradientParts, OfACutMatrixAreThoseOfItsRanks) {
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const TrainPlan sharded = two_by_two(Sharding::zero2);
  const std::int64_t rows = sharded.model.arch.heads * sharded.model.arch.kinds.front().head_dim, quarter = rows / 4;
  EXPECT_EQ(parts_of(sharded, name), (std::vector<Part>{{{0, quarter}, {{"box/0", 1}}},
                                                        {{quarter, 2 * quarter}, {{"box/2", 1}}},
                                                        {{2 * quarter, 3 * quarter}, {{"box/1", 1}}},
                                                        {{3 * quarter, rows}, {{"box/3", 1}}}}));
  EXPECT_EQ(parts_of(two_by_two(Sharding::zero1), name),
            (std::vector<Part>{{{0, rows / 2}, {{"box/0", 1}, {"box/2", 1}}},
                               {{rows / 2, rows}, {{"box/1", 1}, {"box/3", 1}}}}));
}

// Tensor-parallel ranks each have all of a norm's gradient; of the norms inside attention each has its own heads'.
TEST(GradientParts, OfNormsCountOnceOrByHeads) {
  const TrainPlan plan = two_by_two(Sharding::none);
  const std::int64_t hidden = plan.model.arch.hidden, head = plan.model.arch.kinds.front().head_dim;
  EXPECT_EQ(parts_of(plan, "model.layers.0.input_layernorm.weight"),
            (std::vector<Part>{{{0, hidden}, {{"box/0", 0.5}, {"box/1", 0.5}, {"box/2", 0.5}, {"box/3", 0.5}}}}));
  EXPECT_EQ(parts_of(plan, "model.layers.0.self_attn.q_norm.weight"),
            (std::vector<Part>{{{0, head}, {{"box/0", 1}, {"box/1", 1}, {"box/2", 1}, {"box/3", 1}}}}));
}

TEST(GradientParts, OfATiedTableAreHeldOnce) {
  const TrainPlan plan = two_by_two(Sharding::none);
  ASSERT_TRUE(plan.model.arch.tied_embeddings);
  const auto parts = parts_of(plan, "model.embed_tokens.weight");
  ASSERT_EQ(parts.size(), 2u);
  for (const Part& part : parts) EXPECT_EQ(part.holders.size(), 2u);
}

}  // namespace
}  // namespace motley
