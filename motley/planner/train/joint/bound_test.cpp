#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cost/train/train_step.hpp"
#include "motley/planner/train/joint/joint.hpp"

namespace motley {
namespace {

// A first type that is quick at products, and a second one with the faster memory.
Cluster cards(int first, int second) {
  ClusterDescription description;
  description.name = "cards";
  const auto add = [&](const char* name, double bandwidth_bytes_per_s, double flop_per_s, int count) {
    if (count == 0) return;
    DeviceType type;
    type.name = name;
    type.memory_bytes = std::int64_t{64} << 30;
    type.memory_bandwidth_bytes_per_s = bandwidth_bytes_per_s;
    type.flop_per_s = {{"bf16", flop_per_s}};
    type.efficiency = {.compute = 0.5, .bandwidth = 0.5};
    type.reserve_bytes = 0;
    description.device_types.push_back(type);
    MachineDescription machine;
    machine.name = name;
    machine.devices = {std::string(name) + "*" + std::to_string(count)};
    description.machines.push_back(machine);
  };
  add("products", 0.2e12, 80e12, first);
  add("memory", 2e12, 20e12, second);
  description.network.within_machine = description.network.within_site =
      LinkSpeed{.latency_s = 1e-6, .bandwidth_bytes_per_s = 1e11};
  return resolve(description, "cards");
}

struct Job {
  Model model = read_model(MOTLEY_SOURCE_DIR "/data/models/qwen3-0.6b");
  Workload workload;
  Job() {
    workload.training.emplace();
    workload.training->sequence_length = 512;
    workload.training->global_batch = 8;
  }
  double bound_s(const Cluster& cluster) const {
    const TrainOutcome outcome = plan_joint(cluster, model, workload, {.deadline_s = 600, .effort = 0.1});
    EXPECT_TRUE(outcome.plan) << outcome.reason;
    EXPECT_LE(*outcome.plan->search.bound, outcome.plan->predicted.iteration_s);
    return *outcome.plan->search.bound;
  }
  SequenceTime time(const Cluster& cluster, int device) const {
    return TrainStepCost({}, cluster, model.arch, *workload.training, {}).sequence_time(device);
  }
};

// 8 sequences through 28 blocks and the head.
TEST(Bound, LikeDevicesDivideTheWork) {
  const Job job;
  const SequenceTime time = job.time(cards(3, 0), 0);
  const double alone_s = 8 * (28 * time.block_s + time.head_s);
  EXPECT_NEAR(job.bound_s(cards(1, 0)), alone_s, 1e-9 * alone_s);
  EXPECT_NEAR(job.bound_s(cards(3, 0)), alone_s / 3, 1e-9 * alone_s);
}

// At the prices of either type, the other one earns at its better rate.
TEST(Bound, UnlikeDevicesDoWhatTheyDoBetter) {
  const Job job;
  const Cluster cluster = cards(2, 1);
  const SequenceTime a = job.time(cluster, 0), b = job.time(cluster, 2);
  const double blocks = b.block_s / a.block_s, heads = b.head_s / a.head_s;  // how much quicker the first type is
  ASSERT_GT(std::max(blocks, heads) / std::min(blocks, heads), 1.1);
  const double by_first_s = 8 * (28 * a.block_s + a.head_s) / (2 + 1 / std::min(blocks, heads));
  const double by_second_s = 8 * (28 * b.block_s + b.head_s) / (1 + 2 * std::max(blocks, heads));
  const double bound_s = job.bound_s(cluster);
  EXPECT_NEAR(bound_s, std::max(by_first_s, by_second_s), 1e-9 * bound_s);
}

}  // namespace
}  // namespace motley
