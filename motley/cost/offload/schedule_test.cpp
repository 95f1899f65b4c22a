#include "motley/cost/offload/schedule_test.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "motley/cost/offload/offload_cost.hpp"

namespace motley {
namespace {

// Three layers, two micro-batches, two passes, each thing one second: weights of the first layer at 1, of the second at
// 2; its buffer is filled again when both micro-batches have passed, at 3, and so on.
TEST(OffloadSchedule, EventsByHand) {
  const std::vector<ScheduledLayer> layers(3, {.weight_read = 1, .compute = 1});
  const ScheduleResult result = run_schedule(layers, 2, 2);
  EXPECT_EQ(result.weight_loads, 6);
  EXPECT_EQ(result.most_weight_buffers, 2);
  EXPECT_EQ(result.first_pass_s, 1 + 3 * 2);
  EXPECT_EQ(result.total_s, 1 + 6 * 2);
  // With one micro-batch the disk binds: each layer waits for its weights.
  EXPECT_EQ(run_schedule(layers, 1, 2).total_s, 7);
}

// Reads of keys and values wait for the store of the same micro-batch in the pass before.
TEST(OffloadSchedule, KeysAreStoredBeforeTheyAreLoaded) {
  const std::vector<ScheduledLayer> layers(1, {.kv_read = 1, .compute = 1, .kv_download = 3, .kv_write = 4});
  EXPECT_EQ(run_schedule(layers, 1, 1).total_s, 2);
  EXPECT_EQ(run_schedule(layers, 1, 2).total_s, 2 + 3 + 4 + 2);
}

TEST(OffloadSchedule, TheHostAttendsOneMicroBatchWhileTheDeviceComputesAnother) {
  const std::vector<ScheduledLayer> layers(8, {.compute = 2, .host_attention = 2});
  EXPECT_EQ(run_schedule(layers, 1, 3).pass_s, 8 * 4);
  EXPECT_EQ(run_schedule(layers, 2, 3).pass_s, 8 * (4 + 4 / 2));
  EXPECT_EQ(run_schedule(layers, 4, 3).pass_s, 8 * (8 + 8 / 4));
}

// One sequence alone: of eight passes one reads its prompt and the others decode. A device that computes a prompt
// longer than it reads the weights takes longer than for eight passes with an eighth of the prompt each.
TEST(OffloadCost, APassCarriesAWholePromptOrNone) {
  const Cluster cluster = resolve(read<ClusterDescription>(parse_toml(R"(format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["small"]
[[device_type]]
name = "small"
vendor = "cpu"
memory = "1 GiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "100 GFLOP/s" }
overhead = { layer = "0 s", step = "0 s" }
)",
                                                                      "c"),
                                                           "c"),
                                  "c");
  const Model model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  const double prompt = 128, output = 8;
  const OffloadCost cost({}, cluster, model, 0, DType::fp32, DType::fp32, prompt, output);
  const TensorGroup group = make_group(cluster, model.arch, {0}, {}, DType::fp32, DType::fp32, {});
  const StepCost step({}, cluster, model.arch);
  const auto seconds = [&](const StepLoad& load) {
    return static_cast<double>(model.arch.layers) * step.block_s(group, 0, load) +
           step.ends_s(group, {true, true}, load);
  };
  const double context = prompt + output / 2, half = prompt / 2;
  const double request_s = seconds({prompt, half, half, 1}) + (output - 1) * seconds({1, context, context, 1});
  const PassShape shape{.batch = 1, .batches = 1, .prompt_chunk = 128};
  const std::int64_t layers = model.arch.layers;
  const OffloadPrice price = cost.price(shape, cost.seconds(shape), {{layers, 0, 0}, {layers, 0, 0}, {1, 0, 0}});
  EXPECT_EQ(price.binding, Resource::device);
  EXPECT_NEAR(price.tokens_per_s, output / request_s, 1e-9 * output / request_s);
  EXPECT_NEAR(price.latency_s, request_s, 1e-9 * request_s);
}

class OffloadForm : public testing::Test {
 protected:
  const Cluster cluster = resolve(read<ClusterDescription>(parse_toml(R"(format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["T4"]
host_memory = "208 GiB"
disk = { capacity = "1.5 TB", read = "2 GB/s", write = "1 GB/s" }
)",
                                                                      "c"),
                                                           "c"),
                                  "c");
  const Model model = read_model(MOTLEY_SOURCE_DIR "/data/models/opt-30b");
  const OffloadCost cost{{}, cluster, model, 0, DType::fp16, DType::fp16, 512, 32};

  // Runs the schedule of a placement, with seconds of the closed form per layer.
  double scheduled_pass_s(const PassShape& shape, const PlacedCounts& counts) const {
    const PassSeconds pass = cost.seconds(shape);
    const auto of = [](const ResourceSeconds& seconds, Resource resource) {
      return seconds[static_cast<std::size_t>(resource)];
    };
    const std::vector<Tier> weights = spread(counts.weights), kv = spread(counts.kv);
    const auto layers = static_cast<double>(weights.size()), batches = static_cast<double>(shape.batches);
    std::vector<ScheduledLayer> scheduled;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const ResourceSeconds& w = pass.weights[static_cast<std::size_t>(weights[i])];
      const ResourceSeconds& c = pass.kv[static_cast<std::size_t>(kv[i])];
      scheduled.push_back(
          {.weight_read = of(w, Resource::disk_read),
           .weight_upload = of(w, Resource::upload),
           .kv_read = of(c, Resource::disk_read) / batches,
           .kv_upload = shape.cpu_attention ? 0 : of(c, Resource::upload) / batches,
           .compute = (of(pass.fixed, Resource::device) / layers + of(c, Resource::device)) / batches,
           .host_attention =
               shape.cpu_attention
                   ? (of(c, Resource::processors) + of(c, Resource::upload) + of(c, Resource::download)) / batches
                   : 0,
           .kv_download = shape.cpu_attention ? 0 : of(c, Resource::download) / batches,
           .kv_write = of(c, Resource::disk_write) / batches});
    }
    return run_schedule(scheduled, shape.batches, 12, true).pass_s;
  }
};

TEST_F(OffloadForm, IsWhatTheScheduleTakes) {
  const std::int64_t layers = model.arch.layers;
  double worst = 0, sum = 0;
  int cases = 0;
  for (const bool cpu_attention : {false, true})
    for (const std::int64_t batches : {1, 2, 4, 8})
      for (const std::int64_t batch : {8, 48})
        for (const TierCounts& weights :
             {TierCounts{layers, 0, 0}, TierCounts{layers / 2, layers / 2, 0}, TierCounts{8, 30, layers - 38},
              TierCounts{8, 0, layers - 8}, TierCounts{0, layers, 0}})
          for (const TierCounts& kv : {TierCounts{layers, 0, 0}, TierCounts{layers / 2, layers / 2, 0},
                                       TierCounts{0, layers, 0}, TierCounts{12, 30, layers - 42}}) {
            const PassShape shape{batch, batches, cost.chunks(batch).front(), cpu_attention};
            const PlacedCounts counts{weights, kv, {batches, 0, 0}};
            const double closed_s = cost.price(shape, cost.seconds(shape), counts).pass_s;
            const double error = scheduled_pass_s(shape, counts) / closed_s - 1;
            EXPECT_GT(error, -0.06);
            worst = std::max(worst, error);
            sum += std::abs(error);
            ++cases;
          }
  EXPECT_LT(sum / cases, 0.03);
  EXPECT_LT(worst, 0.35);
}

}  // namespace
}  // namespace motley
