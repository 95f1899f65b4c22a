#include "motley/planner/train/joint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>

#include "motley/cost/train_price.hpp"
#include "motley/planner/train/deployment.hpp"
#include "motley/planner/train/polish.hpp"

namespace motley {
namespace {

Model tiny_model(std::int64_t layers) {
  Model model{.name = "tiny",
              .config = Value::object({{"model_type", "llama"},
                                       {"num_hidden_layers", layers},
                                       {"hidden_size", 1024},
                                       {"intermediate_size", 4096},
                                       {"num_attention_heads", 8},
                                       {"num_key_value_heads", 8},
                                       {"vocab_size", 1000},
                                       {"max_position_embeddings", 2048},
                                       {"hidden_act", "silu"},
                                       {"rms_norm_eps", 1e-5},
                                       {"tie_word_embeddings", false},
                                       {"torch_dtype", "bfloat16"}}),
              .arch = {}};
  model.arch = read_architecture(model.config, "tiny");
  return model;
}

struct Kind {
  int count = 1;
  double memory_bytes = 1e9;
  double flop_per_s = 1e13;
};
Cluster cluster_of(const std::vector<Kind>& kinds, double bandwidth_bytes_per_s) {
  ClusterDescription description;
  description.name = "tiny";
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    DeviceType type;
    type.name = fmt::format("type{}", i);
    type.memory_bytes = static_cast<std::int64_t>(kinds[i].memory_bytes);
    type.memory_bandwidth_bytes_per_s = 1e12;
    type.flop_per_s = {{"bf16", kinds[i].flop_per_s}};
    type.efficiency = {.compute = 0.5, .bandwidth = 0.8};
    type.reserve_bytes = 0;
    description.device_types.push_back(type);
    MachineDescription machine;
    machine.name = fmt::format("m{}", i);
    machine.devices = {fmt::format("type{}*{}", i, kinds[i].count)};
    description.machines.push_back(machine);
  }
  description.network.within_machine =
      LinkSpeed{.latency_s = 1e-6, .bandwidth_bytes_per_s = 10 * bandwidth_bytes_per_s};
  description.network.within_site = LinkSpeed{.latency_s = 1e-5, .bandwidth_bytes_per_s = bandwidth_bytes_per_s};
  return resolve(description, "tiny");
}

Workload job(std::int64_t sequences) {
  Workload workload;
  workload.training.emplace();
  workload.training->sequence_length = 512;
  workload.training->global_batch = sequences;
  return workload;
}

double planned_s(const Cluster& cluster, const Model& model, const Workload& workload, int threads = 2) {
  const TrainOutcome outcome = plan_joint(cluster, model, workload, {.deadline_s = 600, .threads = threads});
  return outcome.plan ? outcome.plan->predicted.iteration_s : std::numeric_limits<double>::infinity();
}

// ---- every plan there is ----

class Everything {
 public:
  Everything(const Cluster& cluster, const Model& model, const Workload& workload)
      : cluster_(cluster),
        model_(model),
        training_(*workload.training),
        cost_({}, cluster, model.arch, training_, profile_),
        problem_{cluster, model, training_, profile_, cost_} {}

  double best_s() {
    place(0);
    return best_s_;
  }

 private:
  // Each device goes to a stage that exists, to a new one anywhere, to a new replica, or nowhere.
  void place(std::size_t device) {
    if (device == cluster_.devices.size()) return divide();
    const int number = static_cast<int>(device);
    place(device + 1);
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
      for (std::size_t s = 0; s < replicas_[r].size(); ++s) {
        if (cluster_.devices[static_cast<std::size_t>(replicas_[r][s].front())].type != cluster_.devices[device].type)
          continue;
        replicas_[r][s].push_back(number);
        place(device + 1);
        replicas_[r][s].pop_back();
      }
      for (std::size_t s = 0; s <= replicas_[r].size(); ++s) {
        replicas_[r].insert(replicas_[r].begin() + static_cast<std::ptrdiff_t>(s), {number});
        place(device + 1);
        replicas_[r].erase(replicas_[r].begin() + static_cast<std::ptrdiff_t>(s));
      }
    }
    replicas_.push_back({{number}});
    place(device + 1);
    replicas_.pop_back();
  }

  void divide() {
    if (replicas_.empty()) return;
    TrainLayout layout{.replicas = {}, .sync = {.overlap = true}};
    for (const auto& groups : replicas_) {
      ReplicaLayout replica;
      for (const auto& devices : groups) replica.stages.push_back({.layers = {}, .devices = devices, .strategies = {}});
      layout.replicas.push_back(replica);
    }
    cut(layout, 0, 0);
  }
  // All divisions of layers, of all replicas.
  void cut(TrainLayout& layout, std::size_t r, std::size_t s) {
    if (r == layout.replicas.size()) return batch(layout, 0, training_.global_batch);
    auto& stages = layout.replicas[r].stages;
    const std::int64_t first = s == 0 ? 0 : stages[s - 1].layers.last;
    if (s + 1 == stages.size()) {
      stages[s].layers = {first, model_.arch.layers};
      if (first < model_.arch.layers) cut(layout, r + 1, 0);
      return;
    }
    for (std::int64_t last = first + 1; last < model_.arch.layers; ++last) {
      stages[s].layers = {first, last};
      cut(layout, r, s + 1);
    }
  }
  // All ways to deal out the batch, in all numbers of micro-batches.
  void batch(TrainLayout& layout, std::size_t r, std::int64_t left) {
    if (r == layout.replicas.size()) {
      if (left == 0) strategies(layout, 0, 0);
      return;
    }
    const bool last = r + 1 == layout.replicas.size();
    for (std::int64_t own = last ? left : 1; own <= left && own > 0; ++own)
      for (std::int64_t count = 1; count <= own; ++count) {
        layout.replicas[r].sequences = own;
        layout.replicas[r].micro_batches = count;
        batch(layout, r + 1, left - own);
      }
  }
  void strategies(TrainLayout& layout, std::size_t r, std::size_t s) {
    if (r == layout.replicas.size()) {
      if (!fits_memory(problem_, layout)) return;
      for (const SyncAlgorithm algorithm : {SyncAlgorithm::ring, SyncAlgorithm::direct}) {
        layout.sync.algorithm = algorithm;
        best_s_ = std::min(best_s_, price_step(cost_, problem_.view(), layout).iteration_s);
      }
      return;
    }
    auto& stages = layout.replicas[r].stages;
    if (s == stages.size()) return strategies(layout, r + 1, 0);
    const ReplicaLayout& replica = layout.replicas[r];
    const std::int64_t micro_batch = (replica.sequences + replica.micro_batches - 1) / replica.micro_batches;
    for (LayerStrategy strategy : stage_strategies(problem_, stages[s].devices, micro_batch)) {
      strategy.layers = stages[s].layers;
      stages[s].strategies = {strategy};
      strategies(layout, r, s + 1);
    }
  }

  const Cluster& cluster_;
  const Model& model_;
  const Training& training_;
  const Profile profile_;
  const TrainStepCost cost_;
  const TrainProblem problem_;
  std::vector<PipelineGroups> replicas_;
  double best_s_ = std::numeric_limits<double>::infinity();
};

TEST(Joint, IsAsGoodAsEveryPlanThereIs) {
  struct Case {
    std::vector<Kind> kinds;
    double bandwidth;
    std::int64_t layers, sequences;
  };
  const Case cases[] = {
      {{{1, 1e9, 1e13}, {1, 1e9, 3e13}}, 1e9, 4, 4},
      {{{2, 4e8, 1e13}, {1, 1e9, 3e13}}, 1e9, 4, 4},
      {{{2, 1e9, 1e13}, {1, 1e9, 1e13}}, 1e8, 3, 3},
      {{{1, 8e8, 1e13}, {2, 6e8, 2e13}}, 1e10, 5, 4},
      {{{3, 7e8, 1e13}}, 1e9, 5, 4},
      {{{2, 1e9, 1e13}, {2, 5e8, 2e13}}, 1e9, 3, 3},
      {{{1, 9e8, 5e12}, {1, 2e9, 5e13}}, 1e7, 6, 4},
      {{{3, 2e9, 1e13}}, 1e8, 3, 4},
      {{{2, 2e9, 1e13}, {1, 2e9, 4e13}}, 1e8, 6, 5},
      {{{1, 5e9, 1e13}, {1, 5e9, 1.1e13}}, 1e10, 6, 6},
      {{{3, 6e8, 1e13}, {2, 6e8, 2e13}}, 1e9, 2, 2},
  };
  for (const Case& one : cases) {
    const Cluster cluster = cluster_of(one.kinds, one.bandwidth);
    const Model model = tiny_model(one.layers);
    const Workload workload = job(one.sequences);
    const double best_s = Everything(cluster, model, workload).best_s();
    const double found_s = planned_s(cluster, model, workload);
    EXPECT_LE(found_s, best_s * (1 + 1e-9));
  }
}

// ---- properties ----

const std::vector<Kind> kMixed = {{2, 1e9, 1e13}, {2, 6e8, 3e13}};

TEST(Joint, NothingThatIsBetterMakesItWorse) {
  const Model model = tiny_model(6);
  const Workload workload = job(8);
  const double base_s = planned_s(cluster_of(kMixed, 1e9), model, workload);
  EXPECT_LE(planned_s(cluster_of(kMixed, 3e9), model, workload), base_s * (1 + 1e-9));
  EXPECT_LE(planned_s(cluster_of({{2, 2e9, 1e13}, {2, 6e8, 3e13}}, 1e9), model, workload), base_s * (1 + 1e-9));
  EXPECT_LE(planned_s(cluster_of({{2, 1e9, 1e13}, {3, 6e8, 3e13}}, 1e9), model, workload), base_s * (1 + 1e-9));
  EXPECT_LE(planned_s(cluster_of({{2, 1e9, 2e13}, {2, 6e8, 3e13}}, 1e9), model, workload), base_s * (1 + 1e-9));
}

// Without constants, all speeds times x divide the time by x.
TEST(Joint, TimeScalesWithAllSpeeds) {
  const Model model = tiny_model(6);
  const Workload workload = job(8);
  const auto scaled = [&](double x) {
    ClusterDescription description = cluster_of(kMixed, 1e9).description;
    for (auto& type : description.device_types) {
      type.memory_bandwidth_bytes_per_s *= x;
      for (auto& [name, rate] : type.flop_per_s) rate *= x;
      type.overhead = Overhead{};
    }
    for (auto* link : {&description.network.within_machine, &description.network.within_site}) {
      (*link)->bandwidth_bytes_per_s *= x;
      (*link)->latency_s /= x;
    }
    return planned_s(resolve(description, "tiny"), model, workload);
  };
  const double once_s = scaled(1);
  EXPECT_NEAR(scaled(4), once_s / 4, 1e-9 * once_s);
}

TEST(Joint, NamesOfIdenticalMachinesDoNotMatter) {
  const Model model = tiny_model(6);
  const Workload workload = job(8);
  const double ab_s = planned_s(cluster_of({{2, 1e9, 1e13}, {2, 6e8, 3e13}, {2, 1e9, 1e13}}, 1e9), model, workload);
  const double ba_s = planned_s(cluster_of({{2, 1e9, 1e13}, {2, 1e9, 1e13}, {2, 6e8, 3e13}}, 1e9), model, workload);
  EXPECT_NEAR(ab_s, ba_s, 0.01 * ab_s);
}

TEST(Joint, ThePlanDoesNotDependOnThreads) {
  const Cluster cluster = cluster_of({{4, 1e9, 1e13}, {4, 6e8, 3e13}}, 1e9);
  const Model model = tiny_model(8);
  std::vector<std::string> plans;
  for (const int threads : {1, 8}) {
    const TrainOutcome outcome = plan_joint(cluster, model, job(16), {.deadline_s = 600, .threads = threads});
    ASSERT_TRUE(outcome.plan);
    TrainPlan plan = *outcome.plan;
    plan.search.elapsed_s = 0;
    plans.push_back(to_json(write_train_plan(plan)));
  }
  EXPECT_EQ(plans[0], plans[1]);
}

TEST(Joint, WhatFitsNowhereIsSaid) {
  const TrainOutcome outcome = plan_joint(cluster_of({{1, 1e8, 1e13}}, 1e9), tiny_model(6), job(8), {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_NE(outcome.reason.find("tiny"), std::string::npos);
}

}  // namespace
}  // namespace motley
