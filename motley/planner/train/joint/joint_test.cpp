#include "motley/planner/train/joint/joint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "motley/cost/train/train_price.hpp"
#include "motley/model/unlike_layers_test.hpp"
#include "motley/planner/train/joint/candidate.hpp"
#include "motley/planner/train/joint/polish.hpp"

namespace motley {
namespace {

Model tiny_model(std::int64_t layers) {
  Model model;
  model.name = "tiny";
  model.config = Value::object({{"model_type", "llama"},
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
                                {"torch_dtype", "bfloat16"}});
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
  workload.training->states = StateBytes{};
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
    const std::int64_t first = s == 0 ? 0 : stages[s - 1].layers.end;
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
      for (const auto schedule : {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zb_h1}) {
        layout.schedule = schedule;
        if (!fits_memory(problem_, layout)) return;
        for (const SyncAlgorithm algorithm :
             {SyncAlgorithm::ring, SyncAlgorithm::direct, SyncAlgorithm::hierarchical}) {
          layout.sync.algorithm = algorithm;
          best_s_ = std::min(best_s_, price_step(cost_, problem_.view(), layout).iteration_s);
        }
      }
      return;
    }
    auto& stages = layout.replicas[r].stages;
    if (s == stages.size()) return strategies(layout, r + 1, 0);
    const ReplicaLayout& replica = layout.replicas[r];
    const std::int64_t micro_batch = (replica.sequences + replica.micro_batches - 1) / replica.micro_batches;
    for (LayerStrategy strategy : stage_strategies(problem_, stages[s].devices, micro_batch)) {
      strategy.layers = stages[s].layers;
      stages[s].shares = work_shares(problem_, stages[s].devices, strategy, micro_batch);
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

// Mixtral's shape with dense layers between.
TEST(Joint, IsAsGoodAsEveryPlanThereIsForUnlikeLayers) {
  struct Case {
    std::vector<Kind> kinds;
    double bandwidth;
    std::vector<std::uint16_t> layers;
    std::int64_t sequences;
  };
  const Case cases[] = {
      {{{1, 2e9, 1e13}, {1, 2e9, 3e13}}, 1e9, {0, 1, 0, 1}, 4},
      {{{1, 1.2e9, 1e13}, {1, 2e9, 3e13}}, 1e9, {1, 0, 1, 0, 0}, 3},
      {{{2, 1.2e9, 1e13}, {1, 2e9, 2e13}}, 1e9, {0, 0, 1}, 3},
      {{{1, 1e9, 1e13}, {1, 1.5e9, 1e13}, {1, 2e9, 4e13}}, 1e8, {1, 0, 2, 1}, 3},
      {{{3, 1.2e9, 1e13}}, 1e9, {1, 0, 0, 0}, 3},
  };
  for (const Case& one : cases) {
    const Cluster cluster = cluster_of(one.kinds, one.bandwidth);
    Model model = tiny_model(std::ssize(one.layers));
    model.arch = with_unlike_layers(model.arch, one.layers);
    const Workload workload = job(one.sequences);
    const double best_s = Everything(cluster, model, workload).best_s();
    EXPECT_LE(planned_s(cluster, model, workload), best_s * (1 + 1e-9));
    EXPECT_LT(best_s, std::numeric_limits<double>::infinity());
  }
}

// A pipeline over three machines: with room for micro-batches whose gradients wait, or just without.
TEST(Joint, GradientsOfWeightsWaitWhereThatPaysAndMemoryAllows) {
  const Model model = tiny_model(6);
  Workload workload = job(6);
  const auto planned = [&](double bytes, Executor executor = Executor::motley) {
    const Cluster cluster = cluster_of({{1, bytes, 1e13}, {1, bytes, 1e13}, {1, bytes, 1e13}}, 1e9);
    workload.training->executor = executor;
    const TrainOutcome outcome = plan_joint(cluster, model, workload, {.stages = 3, .replicas = 1, .deadline_s = 600});
    return outcome.plan.value();
  };
  const TrainPlan waits = planned(4e9);
  EXPECT_EQ(waits.schedule, PipelineSchedule::zb_h1);
  TrainPlan other = waits;
  other.schedule = PipelineSchedule::one_forward_one_backward;
  EXPECT_LT(waits.predicted.iteration_s, price_step(other, {}).iteration_s);

  std::int64_t most = 0;
  for (std::size_t s = 0; s < 3; ++s) most = std::max(most, stage_memory(other, other.replicas[0], s).at(0).total());
  const TrainPlan tight = planned(static_cast<double>(most));
  EXPECT_EQ(tight.schedule, PipelineSchedule::one_forward_one_backward);
  EXPECT_GT(tight.predicted.iteration_s, waits.predicted.iteration_s);

  EXPECT_EQ(planned(4e9, Executor::fsdp).schedule, PipelineSchedule::one_forward_one_backward);
}

// ---- properties ----

// A cluster of two to four devices of two types, and a job for it; nothing fits where memory was drawn too small.
struct Draw {
  std::vector<Kind> kinds;
  double bandwidth = 1e9;
  std::int64_t layers = 4, sequences = 4;

  explicit Draw(std::mt19937& random) {
    const auto between = [&](double low, double high) {
      return low * std::pow(high / low, std::uniform_real_distribution<double>(0, 1)(random));
    };
    for (int kind = 0; kind < 2; ++kind)
      kinds.push_back({1 + static_cast<int>(random() % 2), between(3e8, 2e9), between(5e12, 5e13)});
    bandwidth = between(1e7, 1e10);
    layers = 2 + static_cast<std::int64_t>(random() % 5);
    sequences = 2 + static_cast<std::int64_t>(random() % 6);
  }
  double planned() const { return planned_s(cluster_of(kinds, bandwidth), tiny_model(layers), job(sequences)); }
};

void expect_no_worse(const Draw& better, double base_s, const char* what, int round) {
  if (std::isinf(base_s)) return;
  EXPECT_LE(better.planned(), base_s * (1 + 1e-9)) << what << ", cluster " << round;
}

TEST(Joint, NothingThatIsBetterMakesItWorse) {
  std::mt19937 random(7);
  int planned = 0;
  for (int round = 0; round < 12; ++round) {
    const Draw base(random);
    const double base_s = base.planned();
    planned += std::isfinite(base_s) ? 1 : 0;
    Draw better = base;
    better.bandwidth *= 3;
    expect_no_worse(better, base_s, "bandwidth", round);
    better = base;
    better.kinds[0].memory_bytes *= 1.7;
    expect_no_worse(better, base_s, "memory", round);
    better = base;
    better.kinds[1].flop_per_s *= 2;
    expect_no_worse(better, base_s, "speed", round);
    better = base;
    ++better.kinds[1].count;
    expect_no_worse(better, base_s, "a device", round);
  }
  EXPECT_GE(planned, 6);
}

// Without constants, all speeds times x divide the time by x.
TEST(Joint, TimeScalesWithAllSpeeds) {
  std::mt19937 random(8);
  for (int round = 0; round < 8; ++round) {
    const Draw drawn(random);
    const auto scaled = [&](double x) {
      ClusterDescription description = cluster_of(drawn.kinds, drawn.bandwidth).description;
      for (auto& type : description.device_types) {
        type.memory_bandwidth_bytes_per_s *= x;
        for (auto& [name, rate] : type.flop_per_s) rate *= x;
        type.overhead = Overhead{};
        type.copies = {12e9 * x, 12e9 * x, 10e-6 / x};
      }
      for (auto* link : {&description.network.within_machine, &description.network.within_site}) {
        (*link)->bandwidth_bytes_per_s *= x;
        (*link)->latency_s /= x;
      }
      return planned_s(resolve(description, "tiny"), tiny_model(drawn.layers), job(drawn.sequences));
    };
    const double once_s = scaled(1);
    if (std::isinf(once_s)) continue;
    EXPECT_NEAR(scaled(4), once_s / 4, 1e-9 * once_s);
  }
}

TEST(Joint, NamesOfIdenticalMachinesDoNotMatter) {
  std::mt19937 random(9);
  for (int round = 0; round < 8; ++round) {
    Draw drawn(random);
    drawn.kinds = {drawn.kinds[0], drawn.kinds[0], drawn.kinds[1]};
    drawn.kinds[0].count = drawn.kinds[1].count = 1;
    const double first_s = drawn.planned();
    std::swap(drawn.kinds[1], drawn.kinds[2]);
    const double second_s = drawn.planned();
    if (std::isinf(first_s)) continue;
    EXPECT_NEAR(first_s, second_s, 1e-6 * first_s) << round;
  }
}

TEST(Joint, ThePlanDoesNotDependOnThreads) {
  std::mt19937 random(10);
  std::vector<std::pair<Cluster, std::int64_t>> clusters = {{cluster_of({{4, 1e9, 1e13}, {4, 6e8, 3e13}}, 1e9), 8}};
  for (int round = 0; round < 3; ++round) {
    const Draw drawn(random);
    clusters.emplace_back(cluster_of(drawn.kinds, drawn.bandwidth), drawn.layers);
  }
  for (const auto& [cluster, layers] : clusters) {
    std::vector<std::string> plans;
    for (const int threads : {1, 8}) {
      const TrainOutcome outcome =
          plan_joint(cluster, tiny_model(layers), job(16), {.deadline_s = 600, .threads = threads});
      if (!outcome.plan) continue;
      TrainPlan plan = *outcome.plan;
      plan.search.elapsed_s = 0;
      plans.push_back(to_json(write(plan)));
    }
    if (plans.empty()) continue;
    EXPECT_EQ(plans.at(0), plans.at(1));
  }
}

// ---- what else a plan may do ----

// Two machines of one card each, a link between them that is as quick as one inside: all data parallel over both.
TEST(Joint, AStageMayStandOnSeveralMachinesOfUnlikeCards) {
  const Cluster cluster = cluster_of({{1, 1.6e9, 1e13}, {1, 1.6e9, 3e13}}, 1e12);
  const Model model = tiny_model(6);
  const Workload workload = job(8);
  const TrainOutcome outcome = plan_joint(cluster, model, workload, {.stages = 1, .replicas = 1, .deadline_s = 600});
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  const TrainStage& stage = outcome.plan->replicas.at(0).stages.at(0);
  ASSERT_EQ(stage.devices.size(), 2u);
  // The quick card takes more of the work, in whole sequences or heads.
  ASSERT_EQ(stage.shares.size(), 2u);
  EXPECT_GE(stage.shares[1], 0.7);
  EXPECT_TRUE(verify(*outcome.plan).empty());
}

// A layer that is gathered in parts takes less room at once, and more messages. Where its rank copies fast, parts are
// for where the whole one does not fit.
TEST(Joint, OperatorsAreSplitWhereTheGatheredLayerDoesNotFit) {
  const Model model = tiny_model(2);
  const Workload workload = job(2);
  const Training& training = *workload.training;
  const Profile profile;
  const auto strategy = [](std::int64_t split) {
    return LayerStrategy{
        .layers = {0, 2}, .tp = 1, .dp = 2, .shard = Sharding::zero3, .recompute = true, .split = split};
  };
  const auto needs = [&](std::int64_t split) {
    const auto ranks = train_memory(model.arch, training, {.sequences = 2, .in_flight = 1}, {strategy(split)});
    return static_cast<double>(std::max(ranks[0].total(), ranks[1].total()));
  };
  ASSERT_LT(needs(4), needs(1));
  const auto chosen = [&](double memory_bytes) {
    Cluster cluster = cluster_of({{2, memory_bytes, 1e13}}, 1e7);  // too slow to gather while computing
    cluster.types.front().memory_bandwidth_bytes_per_s = 1e14;
    const TrainStepCost cost({}, cluster, model.arch, training, profile);
    EXPECT_GT(cost.block({{0, 1}, {}, 2}, strategy(4)).forward_s, cost.block({{0, 1}, {}, 2}, strategy(1)).forward_s);
    const TrainProblem problem{cluster, model, training, profile, cost};
    const StagePlace place{.ends = {false, false}, .sequences = 2, .in_flight = 1, .micro_batches = 1};
    GroupOptions options = group_options(problem, {0, 1}, place.ends, place.sequences);
    std::erase_if(options.options, [](const BlockOption& option) {
      return option.strategy.shard != Sharding::zero3 || !option.strategy.recompute;
    });
    const StrategyTable table(options, place, LayerLine(model.arch));
    return table.most_layers() == 2 ? table.choice(0, 2).strategies.front().split : 0;
  };
  constexpr double rounding = 2e6;  // what the planner leaves free
  EXPECT_EQ(chosen(needs(1) + rounding), 1);
  EXPECT_EQ(chosen((needs(1) + needs(4)) / 2 + rounding), 4);
  EXPECT_EQ(chosen(needs(4) / 2), 0);
}

TEST(Joint, MemoryHasAPriceWhereItBinds) {
  const Model model = tiny_model(6);
  const Workload workload = job(8);
  const auto most = [&](double memory_bytes) {
    const TrainOutcome outcome = plan_joint(cluster_of({{2, memory_bytes, 1e13}}, 1e9), model, workload,
                                            {.stages = 2, .replicas = 1, .deadline_s = 600});
    if (!outcome.plan) return -1.0;
    double price = 0;
    for (const auto& replica : memory_prices_s_per_byte(*outcome.plan, {}))
      for (const double stage : replica) price = std::max(price, stage);
    return price;
  };
  EXPECT_EQ(most(8e9), 0);
  double tight = 0;
  for (const double memory_bytes : {1e9, 9e8, 8e8, 7e8, 6e8, 5e8}) tight = std::max(tight, most(memory_bytes));
  EXPECT_GT(tight, 0);
}

TEST(Joint, WhatFitsNowhereIsSaid) {
  const TrainOutcome outcome = plan_joint(cluster_of({{1, 1e8, 1e13}}, 1e9), tiny_model(6), job(8), {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_NE(outcome.reason.find("tiny"), std::string::npos);
}

TEST(Joint, AShapeThatIsAskedForIsKept) {
  const Cluster cluster = cluster_of({{4, 2e9, 1e13}}, 1e9);
  for (const auto& [stages, replicas] : {std::pair{2, 2}, std::pair{1, 4}, std::pair{4, 1}, std::pair{1, 2}}) {
    const TrainOutcome outcome =
        plan_joint(cluster, tiny_model(4), job(8), {.stages = stages, .replicas = replicas, .deadline_s = 600});
    ASSERT_TRUE(outcome.plan) << outcome.reason;
    EXPECT_EQ(std::ssize(outcome.plan->replicas), replicas);
    for (const auto& replica : outcome.plan->replicas) EXPECT_EQ(std::ssize(replica.stages), stages);
    const auto& search = outcome.plan->search;
    EXPECT_LE(*search.bound, outcome.plan->predicted.iteration_s);
    EXPECT_NEAR(*search.gap, 1 - *search.bound / outcome.plan->predicted.iteration_s, 1e-12);
  }
  const TrainOutcome many = plan_joint(cluster, tiny_model(4), job(8), {.replicas = 3, .deadline_s = 600});
  ASSERT_TRUE(many.plan) << many.reason;
  EXPECT_EQ(many.plan->replicas.size(), 3u);
}

// ---- tables of strategies ----

bool holds(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place,
           const StageChoice& choice, double spare_bytes) {
  const auto memory = train_memory(problem.model.arch, problem.training,
                                   {.embedding = place.ends.first,
                                    .head = place.ends.last,
                                    .sequences = place.sequences,
                                    .in_flight = place.in_flight},
                                   choice.strategies, choice.shares);
  for (std::size_t rank = 0; rank < memory.size(); ++rank)
    if (static_cast<double>(memory[rank].total()) + spare_bytes >
        static_cast<double>(problem.cluster.type_of(devices[rank]).memory_bytes))
      return false;
  return true;
}

// What a table offers fits on every device, wherever the stage stands; and no single strategy that fits is quicker.
TEST(StrategyTableTest, WhatItOffersFitsAndIsNoSlowerThanOneStrategy) {
  const Model model = tiny_model(6);
  const Workload workload = job(8);
  const Profile profile;
  int tight = 0, mixed = 0;
  for (const double memory_bytes : {3e8, 4e8, 5e8, 7e8, 1e9, 2e9})
    for (const bool alike : {true, false}) {
      const Cluster cluster = alike ? cluster_of({{2, memory_bytes, 1e13}}, 1e9)
                                    : cluster_of({{1, memory_bytes, 1e13}, {1, 1.5 * memory_bytes, 3e13}}, 1e9);
      const TrainStepCost cost({}, cluster, model.arch, *workload.training, profile);
      const TrainProblem problem{cluster, model, *workload.training, profile, cost};
      const std::vector<int> devices = {0, 1};
      for (const bool first : {true, false})
        for (const bool last : {true, false})
          for (const std::int64_t in_flight : {1, 3}) {
            const StagePlace place{.ends = {first, last}, .sequences = 2, .in_flight = in_flight, .micro_batches = 4};
            const GroupOptions group = group_options(problem, devices, place.ends, place.sequences);
            const StrategyTable table(group, place, LayerLine(model.arch));
            tight += table.most_layers() < 6 ? 1 : 0;
            for (std::int64_t n = 1; n <= table.most_layers(); ++n) {
              const StageChoice choice = table.choice(0, n);
              EXPECT_TRUE(holds(problem, devices, place, choice, 0)) << memory_bytes << first << last << n;
              EXPECT_EQ(choice.strategies.back().layers.end, n);
              mixed += choice.strategies.size() > 1 ? 1 : 0;
            }
            for (const BlockOption& option : group.options)
              for (std::int64_t n = 1; n <= 6; ++n) {
                StageChoice one{{option.strategy}, option.shares};
                one.strategies[0].layers = {0, n};
                // The planner leaves a little free, and adds up what weighs most on unlike ranks.
                if (!holds(problem, devices, place, one, 12e6)) continue;
                ASSERT_LE(n, table.most_layers());
                const double seconds = static_cast<double>(n) * option.blocks[0].step_s(place) + option.end_s;
                EXPECT_LE(table.seconds(0, n), seconds * (1 + 1e-9));
              }
          }
    }
  EXPECT_GT(tight, 5);
  EXPECT_GT(mixed, 5);
}

TEST(StrategyTableTest, TheHeadTakesItsTime) {
  const Model model = tiny_model(4);
  const Workload workload = job(8);
  const Profile profile;
  const Cluster cluster = cluster_of({{1, 2e10, 1e13}}, 1e9);
  const TrainStepCost cost({}, cluster, model.arch, *workload.training, profile);
  const TrainProblem problem{cluster, model, *workload.training, profile, cost};
  const auto seconds = [&](bool last) {
    const StagePlace place{.ends = {false, last}, .sequences = 2, .in_flight = 1, .micro_batches = 4};
    const LayerLine line(model.arch);
    return StrategyTable(group_options(problem, {0}, place.ends, place.sequences), place, line).seconds(0, 3);
  };
  const BlockPass head = cost.head({{0}, {}, 2}, LayerStrategy{.layers = {0, 3}});
  EXPECT_GT(head.forward_s, 0);
  EXPECT_NEAR(seconds(true) - seconds(false), head.forward_s + head.backward_s, 1e-12);
}

}  // namespace
}  // namespace motley
