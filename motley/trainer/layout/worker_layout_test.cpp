#include "motley/trainer/layout/worker_layout.hpp"
#include "motley/model/part_tensors.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "motley/plan/gradient_sync.hpp"
#include "motley/plan/worker_part.hpp"
#include "motley/trainer/layout/state_files.hpp"

namespace motley {
namespace {

Architecture small_architecture() {
  return read_architecture(parse_json(R"({"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 6,
      "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "vocab_size": 53,
      "max_position_embeddings": 64, "tie_word_embeddings": true})",
                                      "config"),
                           "config");
}

constexpr std::int64_t length = 5;

// Replicas of unlike depths, with strategies at random.
TrainPlan random_plan() {
  TrainPlan plan;
  plan.model.arch = small_architecture();
  Training training;
  training.sequence_length = length;
  training.global_batch = 12;
  plan.workload.training = training;
  int device = 0;
  const int replicas = *rc::gen::inRange(1, 4);
  std::int64_t left = training.global_batch;
  for (int r = 0; r < replicas; ++r) {
    TrainReplica& replica = plan.replicas.emplace_back();
    const std::int64_t sequences =
        r + 1 == replicas ? left : *rc::gen::inRange<std::int64_t>(1, left - (replicas - r - 1) + 1);
    left -= sequences;
    replica.share = static_cast<double>(sequences) / 12;
    replica.micro_batches = *rc::gen::inRange<std::int64_t>(1, sequences + 1);
    for (std::int64_t first = 0; first < 6;) {
      TrainStage& stage = replica.stages.emplace_back();
      stage.layers = {first, *rc::gen::inRange<std::int64_t>(first + 1, 7)};
      const auto devices = *rc::gen::element<std::int64_t>(1, 2, 4);
      for (std::int64_t i = 0; i < devices; ++i) stage.devices.push_back("box/" + std::to_string(device++));
      while (first < stage.layers.end) {
        LayerStrategy strategy;
        strategy.layers = {first, *rc::gen::inRange<std::int64_t>(first + 1, stage.layers.end + 1)};
        strategy.tp = *rc::gen::inRange<std::int64_t>(0, 2) == 0 ? devices : std::max<std::int64_t>(1, devices / 2);
        strategy.dp = devices / strategy.tp;
        if (strategy.dp > 1)
          strategy.shard = *rc::gen::element(Sharding::none, Sharding::zero1, Sharding::zero2, Sharding::zero3);
        first = strategy.layers.end;
        stage.strategies.push_back(strategy);
      }
    }
  }
  return plan;
}

// Its devices are on machines of two sites.
TrainPlan on_machines(TrainPlan plan) {
  constexpr const char* toml =
      "format = \"motley.cluster/1\"\nname = \"sites\"\n"
      "[[machine]]\nname = \"left\"\nsite = \"a\"\ncount = 16\ndevices = [\"toy*4\"]\n"
      "[[machine]]\nname = \"right\"\nsite = \"b\"\ncount = 16\ndevices = [\"toy*4\"]\n"
      "[[link]]\nbetween = [\"a\", \"b\"]\nlatency = \"9 ms\"\nbandwidth = \"1 Gbit/s\"\n"
      "[[device_type]]\nname = \"toy\"\nvendor = \"cpu\"\nmemory = \"64 MiB\"\n"
      "memory_bandwidth = \"8 GB/s\"\nflops = { fp32 = \"40 GFLOP/s\" }\nreserve = \"0 B\"\n";
  plan.cluster = resolve(read<ClusterDescription>(parse_toml(toml, "sites.toml"), "sites.toml"), "sites.toml");
  for (TrainReplica& replica : plan.replicas)
    for (TrainStage& stage : replica.stages)
      for (std::string& device : stage.devices) {
        const int number = std::stoi(device.substr(4));
        device = fmt::format("{}-{}/{}", number % 8 < 4 ? "left" : "right", number / 8, number % 4);
      }
  return plan;
}

TEST(TrainLayout, IsTheSameFromTheWorkersPart) {
  EXPECT_TRUE(rc::check([] {
    TrainPlan plan = on_machines(random_plan());
    plan.sync.algorithm = *rc::gen::element(SyncAlgorithm::ring, SyncAlgorithm::direct, SyncAlgorithm::hierarchical);
    const TrainPlan part = part_of(plan);
    RC_ASSERT(part.cluster.description.links.empty());
    RC_ASSERT(part.model == plan.model);
    RC_ASSERT(part.workload == plan.workload);
    RC_ASSERT(part.replicas == plan.replicas);
    RC_ASSERT(train_devices(part) == train_devices(plan));
    RC_ASSERT(train_groups(part) == train_groups(plan));
    RC_ASSERT(crossing_pairs(part) == crossing_pairs(plan));
    for (const TrainGroup& group : train_groups(plan)) {
      std::vector<int> in_part, in_plan;
      for (const int worker : group.workers) {
        const std::string device = train_devices(plan).at(static_cast<std::size_t>(worker));
        in_part.push_back(part.cluster.find_device(device));
        in_plan.push_back(plan.cluster.find_device(device));
      }
      RC_ASSERT(sync_group(part.cluster, part.sync.algorithm, in_part) ==
                sync_group(plan.cluster, plan.sync.algorithm, in_plan));
    }
  }));
}

TEST(TrainLayout, EveryRowCrossesOnceToEachGroupThatNeedsIt) {
  EXPECT_TRUE(rc::check([] {
    const TrainPlan plan = random_plan();
    for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
      const auto strategies = strategies_of(plan, r);
      for (std::size_t s = 0; s + 1 < strategies.size(); ++s)
        for (const bool back : {false, true}) {
          const StrategyRanks &from = strategies[back ? s + 1 : s], &to = strategies[back ? s : s + 1];
          const std::int64_t sequences = micro_batch_sequences(training_of(plan.workload), plan.replicas[r]);
          const auto sent = data_bounds(from, sequences), received = data_bounds(to, sequences);
          std::map<std::pair<std::int64_t, std::int64_t>, int> seen;  // group and row
          for (const RowRegion& region : crossing(from, to, sequences, length)) {
            RC_ASSERT(std::ssize(region.parts) == to.strategy->tp);
            std::int64_t next = region.rows.first;
            for (std::size_t k = 0; k < region.parts.size(); ++k) {
              const RowTransfer& part = region.parts[k];
              RC_ASSERT(part.rows.first == next);
              next = part.rows.end;
              RC_ASSERT(part.to == to.worker(region.dp, static_cast<std::int64_t>(k)));
              const auto dp = static_cast<std::size_t>((part.from - from.first_worker) / from.strategy->tp);
              RC_ASSERT(sent[dp] * length <= part.rows.first && part.rows.end <= sent[dp + 1] * length);
              for (std::int64_t row = part.rows.first; row < part.rows.end; ++row) ++seen[{region.dp, row}];
            }
            RC_ASSERT(next == region.rows.end);
          }
          for (std::int64_t d = 0; d < to.strategy->dp; ++d)
            for (std::int64_t row = 0; row < sequences * length; ++row) {
              const auto at = static_cast<std::size_t>(d);
              const bool own = received[at] * length <= row && row < received[at + 1] * length;
              RC_ASSERT((seen[{d, row}]) == (own ? 1 : 0));
            }
        }
    }
  }));
}

// All workers that meet are connected, and they name their groups alike.
TEST(TrainLayout, WorkersThatMeetAreConnected) {
  EXPECT_TRUE(rc::check([] {
    const TrainPlan plan = random_plan();
    const auto groups = train_groups(plan);
    RC_ASSERT((std::set<TrainGroup>(groups.begin(), groups.end()).size()) == groups.size());
    const auto connected = [&](GroupKind kind, const std::vector<int>& workers) {
      return workers.size() < 2 || std::ranges::find(groups, TrainGroup{kind, workers}) != groups.end();
    };
    const auto pairs = crossing_pairs(plan);
    for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
      const auto strategies = strategies_of(plan, r);
      const auto bounds =
          micro_batch_bounds(replica_bounds(plan)[r + 1] - replica_bounds(plan)[r], plan.replicas[r].micro_batches);
      for (const StrategyRanks& ranks : strategies)
        for (std::int64_t d = 0; d < ranks.strategy->dp; ++d)
          RC_ASSERT(connected(GroupKind::tensor, ranks.tensor_group(d)));
      for (std::size_t s = 0; s + 1 < strategies.size(); ++s)
        for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
          for (const auto& region : crossing(strategies[s], strategies[s + 1], bounds[i + 1] - bounds[i], length))
            for (const RowTransfer& part : region.parts)
              if (part.from != part.to && part.rows.size() > 0 && !stays(strategies[s], strategies[s + 1]))
                RC_ASSERT(std::ranges::find(pairs, std::pair(part.from, part.to)) != pairs.end());
    }
    for (const GradientBucket& bucket : gradient_buckets(plan, 1024))
      RC_ASSERT(connected(GroupKind::gradients, bucket.workers));
  }));
}

TEST(TrainLayout, SharesOfTheBatchAreWholeSequences) {
  TrainStage stage{.layers = {0, 1}, .devices = {"a", "b", "c"}, .shares = {0.5, 0.25, 0.25}, .strategies = {}};
  stage.strategies = {{.layers = {0, 1}, .dp = 3}};
  const StrategyRanks ranks{&stage, &stage.strategies.front(), 0};
  EXPECT_EQ(data_bounds(ranks, 8), (std::vector<std::int64_t>{0, 4, 6, 8}));
  EXPECT_EQ(data_bounds(ranks, 3), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(data_bounds(ranks, 1), (std::vector<std::int64_t>{0, 0, 0, 1}));
  stage.shares = {};
  EXPECT_EQ(data_bounds(ranks, 4), (std::vector<std::int64_t>{0, 1, 2, 4}));
}

TEST(GradientBuckets, HoldEveryPartOnceInTheOrderOfBackwardPasses) {
  EXPECT_TRUE(rc::check([] {
    const TrainPlan plan = random_plan();
    const auto parts = gradient_slices(plan);
    const std::int64_t most = *rc::gen::inRange<std::int64_t>(1, 100000);
    std::size_t count = 0;
    std::int64_t elements = 0, before = plan.model.arch.layers;
    for (const GradientBucket& bucket : gradient_buckets(plan, most)) {
      RC_ASSERT(bucket.layer <= before);
      before = bucket.layer;
      RC_ASSERT(bucket.parts.size() == 1 || bucket.elements * 4 <= most);
      count += bucket.parts.size();
      elements += bucket.elements;
    }
    RC_ASSERT(count == parts.size());
    std::int64_t whole = 0;
    for (const TensorSpec& tensor : part_tensors(plan.model.arch, whole_model(plan.model.arch)))
      whole += tensor.elements();
    RC_ASSERT(elements == whole);
  }));
}

// Who writes a checkpoint: every element of every tensor once.
TEST(StateSlices, CoverEveryTensorOnce) {
  EXPECT_TRUE(rc::check([] {
    const TrainPlan plan = random_plan();
    std::map<std::string, std::int64_t> elements;
    for (const StateSlice& part : state_slices(plan)) elements[part.tensor.name] += part.slice.elements();
    for (const TensorSpec& tensor : part_tensors(plan.model.arch, whole_model(plan.model.arch)))
      RC_ASSERT(elements[tensor.name] == tensor.elements());
  }));
}

TEST(StateFiles, PlacesAreThoseOfTheFiles) {
  Training training;
  training.sequence_length = length;
  const Architecture arch = small_architecture();
  for (const auto& [optimizer, momentum, precision, kinds] :
       {std::tuple("adamw", 0.0, DType::bf16, 4), std::tuple("adamw", 0.0, DType::fp32, 3),
        std::tuple("sgd", 0.9, DType::fp32, 2), std::tuple("sgd", 0.0, DType::fp32, 1)}) {
    training.optimizer = optimizer;
    training.momentum = momentum;
    training.precision = precision;
    const StateFiles files = state_files(arch, training);
    EXPECT_EQ(std::ssize(files.places), kinds * std::ssize(part_tensors(arch, whole_model(arch))));
    for (const auto& [name, place] : files.places)
      EXPECT_EQ(files.files.at(place.file).entries.at(place.entry).name, name);
    EXPECT_EQ(files.files.front().name, "model-00001-of-00001.safetensors");
    EXPECT_EQ(files.files.size(), kinds > 1 ? 2U : 1U);
  }
}

}  // namespace
}  // namespace motley
