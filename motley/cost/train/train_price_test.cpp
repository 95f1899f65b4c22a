#include "motley/cost/train/train_price.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "motley/plan/gradients.hpp"

namespace motley {
namespace {

// Machines of this many equal devices.
Cluster machines_of(const std::vector<int>& sizes) {
  ClusterDescription description;
  description.name = "pieces";
  DeviceType type;
  type.name = "card";
  type.memory_bytes = std::int64_t{16} << 30;
  type.memory_bandwidth_bytes_per_s = 1e12;
  type.flop_per_s = {{"bf16", 1e14}};
  type.efficiency = {.compute = 0.5, .bandwidth = 0.8};
  type.reserve_bytes = 0;
  description.device_types.push_back(type);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    MachineDescription machine;
    machine.name = fmt::format("m{}", i);
    machine.devices = {fmt::format("card*{}", sizes[i])};
    description.machines.push_back(machine);
  }
  description.network.within_machine = LinkSpeed{.latency_s = 1e-6, .bandwidth_bytes_per_s = 1e11};
  description.network.within_site = LinkSpeed{.latency_s = 1e-3, .bandwidth_bytes_per_s = 1e9};
  return resolve(description, "pieces");
}

PlacedStage stage_of(std::vector<int> devices, LayerStrategy strategy, LayerRange layers) {
  strategy.layers = layers;
  return {.layers = layers, .devices = std::move(devices), .shares = {}, .strategies = {strategy}};
}

// Degrees 2 and 3 cut at 1/3, 1/2 and 2/3: four pieces, and the middle devices hold two of them.
TEST(GradientPieces, CommonRefinementOfTwoAndThree) {
  const Cluster cluster = machines_of({2, 3});
  const Model model = read_model(MOTLEY_SOURCE_DIR "/data/models/qwen3-0.6b");
  const std::int64_t layers = model.arch.layers;
  const TrainLayout layout{
      .replicas =
          {{.sequences = 1, .micro_batches = 1, .stages = {stage_of({0, 1}, {.layers = {}, .tp = 2}, {0, layers})}},
           {.sequences = 1, .micro_batches = 1, .stages = {stage_of({2, 3, 4}, {.layers = {}, .tp = 3}, {0, layers})}}},
      .sync = {.algorithm = SyncAlgorithm::ring}};
  const auto pieces = gradient_pieces(layout, 0);
  ASSERT_EQ(pieces.size(), 4u);
  const std::vector<std::vector<int>> members = {{0, 2}, {0, 3}, {1, 3}, {1, 4}};
  const double cuts[] = {0, 1.0 / 3, 0.5, 2.0 / 3, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(pieces[i].from, cuts[i], 1e-12);
    EXPECT_NEAR(pieces[i].to, cuts[i + 1], 1e-12);
    EXPECT_EQ(pieces[i].members, members[i]);
  }

  // By hand: around a ring of two every byte goes once each way; devices with two pieces wait for 2 messages of each,
  // of every block and both ends.
  Training training;
  training.states = StateBytes{};
  training.sequence_length = 512;
  training.global_batch = 2;
  const Profile profile;
  const TrainStepCost cost({}, cluster, model.arch, training, profile);
  double parameters = static_cast<double>(layers) * static_cast<double>(block_parameters(model.arch, 0));
  for (const auto& tensors : {embedding_tensors(model.arch), head_tensors(model.arch)})
    for (const auto& tensor : tensors) parameters += static_cast<double>(tensor.elements());
  const double gradient_bytes = state_bytes(training).gradient;
  const GradientExchange exchange = gradient_exchange(cost, {cluster, model.arch, training, profile}, layout);
  EXPECT_NEAR(exchange.seconds, gradient_bytes * parameters / 1e9 + static_cast<double>(layers + 2) * 2 * 2 * 1e-3,
              1e-9);
}

// Gradients after the exchange are those of one device with the whole batch: replicas of degrees 1, 2 and 4 that took
// 3, 5 and 8 sequences, data parallelism inside the last, with and without sharded gradients.
TEST(GradientPieces, EveryDeviceEndsWithTheSumOverTheBatch) {
  constexpr std::size_t elements = 24, sequences = 16;
  std::mt19937 random(3);
  std::vector<std::vector<double>> of_sequence(sequences, std::vector<double>(elements));
  for (auto& gradient : of_sequence)
    for (double& value : gradient) value = std::uniform_real_distribution<double>(-1, 1)(random);
  for (const Sharding shard : {Sharding::none, Sharding::zero2}) {
    const TrainLayout layout{
        .replicas = {{.sequences = 3, .micro_batches = 1, .stages = {stage_of({0}, {.layers = {}, .tp = 1}, {0, 1})}},
                     {.sequences = 5,
                      .micro_batches = 1,
                      .stages = {stage_of({1, 2}, {.layers = {}, .tp = 2}, {0, 1})}},
                     {.sequences = 8,
                      .micro_batches = 1,
                      .stages = {stage_of({3, 4, 5, 6, 7, 8, 9, 10}, {.layers = {}, .tp = 4, .dp = 2, .shard = shard},
                                          {0, 1})}}},
        .sync = {}};
    // What each device holds before: the elements of its part, summed over its own sequences; sharded, what the stage
    // has summed already.
    std::vector<std::vector<double>> held(11, std::vector<double>(elements, 0));
    std::vector<std::pair<double, double>> part(11);
    const auto hold = [&](std::size_t device, double from, double to, std::size_t first, std::size_t last) {
      part[device] = {from, to};
      for (auto e = static_cast<std::size_t>(from * elements); e < static_cast<std::size_t>(to * elements); ++e)
        for (std::size_t s = first; s < last; ++s) held[device][e] += of_sequence[s][e];
    };
    hold(0, 0, 1, 0, 3);
    hold(1, 0, 0.5, 3, 8);
    hold(2, 0.5, 1, 3, 8);
    for (std::size_t rank = 0; rank < 8; ++rank) {
      const std::size_t k = rank % 4, d = rank / 4;
      const double from = static_cast<double>(k) / 4;
      if (shard == Sharding::none)
        hold(3 + rank, from, from + 0.25, 8 + 4 * d, 12 + 4 * d);
      else
        hold(3 + rank, from + static_cast<double>(d) / 8, from + static_cast<double>(d + 1) / 8, 8, 16);
    }
    std::vector<std::vector<int>> times(11, std::vector<int>(elements, 0));
    for (const GradientPiece& piece : gradient_pieces(layout, 0))
      for (auto e = static_cast<std::size_t>(piece.from * elements + 0.5);
           e < static_cast<std::size_t>(piece.to * elements + 0.5); ++e) {
        double sum = 0, whole = 0;
        for (const int member : piece.members) sum += held[static_cast<std::size_t>(member)][e];
        for (const auto& gradient : of_sequence) whole += gradient[e];
        EXPECT_NEAR(sum, whole, 1e-12);
        for (const int member : piece.members) ++times[static_cast<std::size_t>(member)][e];
      }
    for (std::size_t device = 0; device < 11; ++device)
      for (std::size_t e = 0; e < elements; ++e) {
        const double at = (static_cast<double>(e) + 0.5) / elements;
        EXPECT_EQ(times[device][e], part[device].first < at && at < part[device].second ? 1 : 0);
      }
  }
}

// What is priced in fractions of a block is what the plan's tensors are cut into.
TEST(GradientPieces, AreThePartsOfEveryTensor) {
  TrainPlan plan;
  plan.cluster = machines_of({1, 2, 4});
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/qwen3-0.6b");
  Training training;
  training.states = StateBytes{};
  training.sequence_length = 512;
  training.global_batch = 16;
  plan.workload.training = training;
  const LayerRange all{0, plan.model.arch.layers};
  const std::vector<std::vector<std::string>> groups = {{"m0/0"}, {"m1/0", "m1/1"}, {"m2/0", "m2/1", "m2/2", "m2/3"}};
  const double shares[] = {3.0 / 16, 5.0 / 16, 0.5};
  for (std::size_t i = 0; i < 3; ++i)
    plan.replicas.push_back(
        {.share = shares[i],
         .stages = {{.layers = all,
                     .devices = groups[i],
                     .strategies = {{.layers = all, .tp = static_cast<std::int64_t>(groups[i].size())}}}}});
  ASSERT_TRUE(verify(plan).empty());
  const auto pieces = gradient_pieces(layout_of(plan), 0);
  std::map<std::string, std::size_t> seen;  // parts, by tensor
  for (const GradientSlice& part : gradient_slices(plan)) {
    if (part.tensor.cut == TensorCut::replicated || part.tensor.name.find("layers.0.") == std::string::npos) continue;
    std::vector<int> members;
    for (const GradientHolder& holder : part.holders) members.push_back(plan.cluster.find_device(holder.device));
    const std::size_t number = seen[part.tensor.name]++;
    ASSERT_LT(number, pieces.size());
    EXPECT_EQ(members, pieces[number].members) << part.tensor.name;
    EXPECT_NEAR(static_cast<double>(part.slice.elements()),
                (pieces[number].to - pieces[number].from) * static_cast<double>(part.tensor.elements()), 1e-6);
  }
  EXPECT_EQ(seen.size(), 7u);  // q, k, v, o, gate, up, down
  for (const auto& [name, parts] : seen) EXPECT_EQ(parts, pieces.size()) << name;
}

}  // namespace
}  // namespace motley
