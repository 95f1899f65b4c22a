#include "motley/plan/train_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "motley/base/reference_test.hpp"
#include "motley/model/training.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

Training job(std::int64_t sequence_length, std::int64_t global_batch) {
  Training training;
  training.sequence_length = sequence_length;
  training.global_batch = global_batch;
  return training;
}

// opt-125m (12 layers, hidden 768, 12 heads) on a machine of two and two of one: a replica of two stages, the first
// tensor parallel, and a replica of one data-parallel stage.
TrainPlan train_example() {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/opt-125m");
  const auto cluster = read<ClusterDescription>(parse_toml(R"(format = "motley.cluster/1"
    name = "three machines"
    [[machine]]
    name = "box"
    devices = ["RTX 3090*3"]
    [[machine]]
    name = "lab"
    count = 2
    devices = ["RTX 4090"])",
                                                           "cluster"),
                                                "cluster");
  plan.cluster = resolve(cluster, "cluster");
  plan.workload.training = job(1024, 12);
  plan.replicas = {
      {.share = 0.75,
       .micro_batches = 5,
       .stages = {{.layers = {0, 8},
                   .devices = {"box/0", "box/1"},
                   .strategies = {{.layers = {0, 3}, .tp = 2}, {.layers = {3, 8}, .tp = 2, .recompute = true}}},
                  {.layers = {8, 12}, .devices = {"lab-0/0"}, .strategies = {{.layers = {8, 12}}}}}},
      {.share = 0.25,
       .micro_batches = 1,
       .stages = {{.layers = {0, 12},
                   .devices = {"lab-1/0", "box/2"},
                   .shares = {0.6, 0.4},
                   .strategies = {{.layers = {0, 12}, .dp = 2, .shard = Sharding::zero3, .split = 2}}}}}};
  return plan;
}

TEST(TrainPlan, WhatItWritesItReads) {
  TrainPlan plan = train_example();
  plan.schedule = PipelineSchedule::zb_h1;
  plan.sync = {.algorithm = SyncAlgorithm::direct, .overlap = true};
  plan.predicted = {.iteration_s = 2,
                    .tokens_per_s = 6144,
                    .mfu = 0.25,
                    .iteration_s_range = FigureRange{1.5, 3},
                    .memory_bytes = {{"box/0", {1, 2, 3, 4, 5, 6}}}};
  plan.search.planner = "hand";
  const Value document = parse_json(to_json(write(plan)), "plan");
  EXPECT_EQ(*document.find("kind"), Value("train"));
  EXPECT_TRUE(read_plan<TrainPlan>(document, "plan") == plan);
}

TEST(TrainPlan, OtherKindsAreRefused) {
  Value document = write(train_example());
  document.set("kind", "serve");
  EXPECT_THAT([&] { read_plan<TrainPlan>(document, "plan.json"); },
              testing::Throws<Error>(testing::Property(&Error::hint, HasSubstr("motley plan train"))));
  document.set("kind", "train");
  document.set("workload", write(default_workload()));
  EXPECT_THROW(read_plan<TrainPlan>(document, "plan.json"), Error);
}

TEST(TrainPlan, SequencesAndMicroBatches) {
  const TrainPlan plan = train_example();
  const Training& training = *plan.workload.training;
  EXPECT_EQ(replica_sequences(training, plan.replicas[0]), 9);
  EXPECT_EQ(micro_batch_sequences(training, plan.replicas[0]), 2);  // 2 2 2 2 1
  EXPECT_EQ(micro_batches_in_flight(PipelineSchedule::gpipe, 0, 2, 5), 5);
  EXPECT_EQ(micro_batches_in_flight(PipelineSchedule::one_forward_one_backward, 0, 2, 5), 2);
  EXPECT_EQ(micro_batches_in_flight(PipelineSchedule::one_forward_one_backward, 1, 2, 5), 1);
  EXPECT_EQ(micro_batches_in_flight(PipelineSchedule::one_forward_one_backward, 0, 8, 5), 5);
  EXPECT_EQ(micro_batches_waiting(PipelineSchedule::one_forward_one_backward, 2, 3, 5), 0);
  EXPECT_EQ(micro_batches_in_flight(PipelineSchedule::zb_h1, 2, 3, 5), 1);
  EXPECT_EQ(micro_batches_waiting(PipelineSchedule::zb_h1, 2, 3, 5), 2);
  EXPECT_EQ(micro_batches_waiting(PipelineSchedule::zb_h1, 2, 3, 2), 1);
  EXPECT_EQ(micro_batches_waiting(PipelineSchedule::zb_h1, 0, 3, 5), 0);
}

// Counted by hand: opt-125m has 7,087,872 parameters in a block.
TEST(TrainPlan, MemoryIsCounted) {
  const Architecture arch = read_model(MOTLEY_SOURCE_DIR "/data/models/opt-125m").arch;
  ASSERT_EQ(block_parameters(arch, 0), 7087872);
  const Training training = job(1024, 8);
  const std::vector<LayerStrategy> plain = {{.layers = {0, 2}}};
  const StageFootprint middle{.sequences = 3, .in_flight = 4};
  const TrainMemory memory = train_memory(arch, training, middle, plain).at(0);
  EXPECT_EQ(memory.weights, 2 * 2 * 7087872);
  EXPECT_EQ(memory.gradients, 2 * 4 * 7087872);
  EXPECT_EQ(memory.optimizer, 2 * 12 * 7087872);
  // Per token: 4 x 768 of inputs and sums, 4 x 768 of attention, 2 x 3072 of the FFN; 2 bytes each. A block's backward
  // pass works with 3 x 768 and 2 x 3072 more, and with its gradients in 2 bytes.
  const std::int64_t stored = (8 * 768 + 2 * 3072) * 2, backward = (3 * 768 + 2 * 3072) * 2;
  EXPECT_EQ(memory.activations, 2 * 4 * 3 * 1024 * stored + 3 * 1024 * backward + 2 * 7087872);

  // What gradients of weights wait for takes a hidden size more; those of a layer that is recomputed do not wait.
  const StageFootprint lagging{.sequences = 3, .in_flight = 4, .waiting = 2};
  const TrainMemory waits = train_memory(arch, training, lagging, plain).at(0);
  EXPECT_EQ(waits.activations - memory.activations, 2 * 2 * 3 * 1024 * (stored + 768 * 2));
  const std::vector<LayerStrategy> again = {{.layers = {0, 2}, .recompute = true}};
  EXPECT_EQ(train_memory(arch, training, lagging, again), train_memory(arch, training, middle, again));

  // Recomputed: inputs alone, and one layer brought back.
  const TrainMemory recomputed = train_memory(arch, training, middle, again).at(0);
  EXPECT_EQ(recomputed.activations, 2 * 4 * 3 * 1024 * 768 * 2 + 3 * 1024 * (stored + backward) + 2 * 7087872);

  // Divided among two ranks: each has 2 of 3 sequences; a layer's weights are gathered in 2 parts,
  // of which one is there with its gradient.
  const auto sharded =
      train_memory(arch, training, middle, {{.layers = {0, 2}, .dp = 2, .shard = Sharding::zero3, .split = 2}});
  ASSERT_EQ(sharded.size(), 2u);
  EXPECT_EQ(sharded[1].weights, 2 * 7087872);
  EXPECT_EQ(sharded[1].optimizer, 12 * 7087872);
  EXPECT_EQ(sharded[1].activations, 2 * 4 * 2 * 1024 * stored + 2 * 1024 * backward + (2 + 4) / 2 * 7087872);
  // Or at once, and dropped before the ranks divide gradients, which are there twice.
  const auto gathered = train_memory(arch, training, middle, {{.layers = {0, 2}, .dp = 2, .shard = Sharding::zero3}});
  EXPECT_EQ(gathered[1].activations,
            2 * 4 * 2 * 1024 * stored + std::max<std::int64_t>(2 * 1024 * backward + (2 + 2) * 7087872, 8 * 7087872));
  const auto states = train_memory(arch, training, middle, {{.layers = {0, 2}, .dp = 2, .shard = Sharding::zero1}});
  EXPECT_EQ(states[0].gradients, 2 * 4 * 7087872);
  EXPECT_EQ(states[0].optimizer, 12 * 7087872);
  const auto reduced = train_memory(arch, training, middle, {{.layers = {0, 2}, .dp = 2, .shard = Sharding::zero2}});
  EXPECT_EQ(reduced[0].weights, 2 * 2 * 7087872);
  EXPECT_EQ(reduced[0].gradients, 4 * 7087872);
  EXPECT_EQ(reduced[0].optimizer, 12 * 7087872);

  // 55 and 45 of 100 sequences; 0.55 of 100 is a little more than 55.
  const auto uneven =
      train_memory(arch, training, {.sequences = 100, .in_flight = 1}, {{.layers = {0, 2}, .dp = 2}}, {0.55, 0.45});
  EXPECT_EQ(uneven[0].activations, 55 * 1024 * (2 * stored + backward) + 2 * 7087872);
  EXPECT_EQ(uneven[1].activations, 45 * 1024 * (2 * stored + backward) + 2 * 7087872);

  // Three ranks are alike but for the vocabulary: 6284 grains of 8 rows.
  const StageFootprint first{.embedding = true, .sequences = 1, .in_flight = 1};
  const auto thirds = train_memory(arch, training, first, {{.layers = {0, 2}, .tp = 3}});
  EXPECT_EQ(thirds[0].weights, thirds[1].weights);
  EXPECT_EQ(thirds[1].weights - thirds[2].weights, 2 * 8 * 768);

  // Ends: a tied table counts once where one stage holds both. Logits are fp32, with their products' 2 bytes; with
  // them are norms in fp32, and the gradient of the head in 2 bytes.
  const StageFootprint whole{.embedding = true, .head = true, .sequences = 1, .in_flight = 1};
  const TrainMemory ends = train_memory(arch, training, whole, {{.layers = {0, 12}, .recompute = true}}).at(0);
  EXPECT_EQ(ends.weights, 2 * total_parameters(arch));
  const std::int64_t head = arch.vocabulary * 768 + 2 * 768;
  EXPECT_EQ(ends.activations, 12 * 1024 * 768 * 2 + 1024 * (6 * arch.vocabulary + 20 * 768) + 2 * head);
}

TEST(TrainPlan, StatesFollowPrecisionAndOptimizer) {
  Training training = job(1, 1);
  EXPECT_EQ(state_bytes(training), (StateBytes{2, 4, 4, 8}));
  training.executor = Executor::fsdp;
  EXPECT_EQ(state_bytes(training), (StateBytes{2, 2, 4, 8}));
  training.optimizer = "sgd";
  EXPECT_EQ(state_bytes(training), (StateBytes{2, 2, 4, 0}));
  training.momentum = 0.9;
  EXPECT_EQ(state_bytes(training), (StateBytes{2, 2, 4, 4}));
  training.momentum = 0;
  training.precision = DType::fp32;
  EXPECT_EQ(state_bytes(training), (StateBytes{4, 4, 0, 0}));
  training.states = StateBytes{2, 2, 0, 4};
  EXPECT_EQ(state_bytes(training), (StateBytes{2, 2, 0, 4}));
}

TEST(TrainPlan, TheExampleIsSound) {
  TrainPlan plan = train_example();
  EXPECT_TRUE(verify(plan).empty());
  plan.predicted.memory_bytes["box/1"] = stage_memory(plan, plan.replicas[0], 0)[1];
  EXPECT_TRUE(verify(plan).empty());
}

TEST(TrainPlan, MemoryFitsToTheByte) {
  TrainPlan plan = train_example();
  const TrainMemory memory = stage_memory(plan, plan.replicas[1], 0)[0];  // lab-1/0, which needs more than lab-0/0
  DeviceType& type = plan.cluster.types[plan.cluster.devices[plan.cluster.find_device("lab-1/0")].type];
  ASSERT_GT(memory.total(), stage_memory(plan, plan.replicas[0], 1)[0].total());
  type.memory_bytes = memory.total();
  EXPECT_TRUE(verify(plan).empty());
  type.memory_bytes -= 1;
  EXPECT_EQ(verify(plan).size(), 1u);
}

TEST(TrainPlan, EveryDecisionIsChecked) {
  const auto broken = [](const std::function<void(TrainPlan&)>& change) {
    TrainPlan plan = train_example();
    change(plan);
    std::string all;
    for (const auto& violation : verify(plan)) all += violation.place + ": " + violation.what + "\n";
    return all;
  };
  const auto stage = [](TrainPlan& p, std::size_t r, std::size_t s) -> TrainStage& { return p.replicas[r].stages[s]; };
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas.clear(); }), HasSubstr("the plan has no replica"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas[0].stages.clear(); }), HasSubstr("no stage"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas[0].stages.pop_back(); }),
              HasSubstr("the last stage ends at layer 8, but the model has 12 layers"));
  EXPECT_THAT(broken([&](TrainPlan& p) {
                stage(p, 0, 1).layers = {7, 12};
              }),
              HasSubstr("the stage holds [7, 12), but layer 8 is next"));
  EXPECT_THAT(broken([&](TrainPlan& p) { stage(p, 0, 0).strategies.pop_back(); }), HasSubstr("they end at layer 3"));
  EXPECT_THAT(broken([&](TrainPlan& p) {
                stage(p, 0, 0).strategies[1].layers = {4, 8};
              }),
              HasSubstr("but layer 3 is next"));
  EXPECT_THAT(broken([&](TrainPlan& p) { stage(p, 0, 0).strategies[0].tp = 1; }),
              HasSubstr("not the number of devices, 2"));
  EXPECT_THAT(broken([&](TrainPlan& p) { stage(p, 0, 0).strategies.clear(); }),
              HasSubstr("the stage has no strategies"));
  EXPECT_THAT(broken([&](TrainPlan& p) { stage(p, 0, 1).devices = {"box/2"}; }),
              HasSubstr("already works in replicas[0]"));
  EXPECT_THAT(broken([&](TrainPlan& p) { stage(p, 0, 1).devices = {"lab/0"}; }), HasSubstr("no device \"lab/0\""));
  EXPECT_THAT(broken([&](TrainPlan& p) {
                stage(p, 1, 0).shares = {0.6, 0.6};
              }),
              HasSubstr("they must be above 0 and sum to 1, found 1.2"));
  EXPECT_THAT(broken([&](TrainPlan& p) { stage(p, 1, 0).shares = {1}; }), HasSubstr("1 shares for 2 devices"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas[0].share = 0.7; }), HasSubstr("not a whole number"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas[0].share = 0; }),
              HasSubstr("0 of 12 sequences is not a whole number"));
  EXPECT_THAT(broken([&](TrainPlan& p) {
                stage(p, 0, 0).strategies.insert(stage(p, 0, 0).strategies.begin() + 1, {.layers = {3, 3}, .tp = 2});
              }),
              HasSubstr("the strategy covers [3, 3), but layer 3 is next"));
  EXPECT_THAT(broken([&](TrainPlan& p) {
                p.replicas.pop_back();
                p.replicas[0].share = 1;
                stage(p, 0, 0).devices = {"box/0", "box/1", "box/2", "lab-1/0"};
                stage(p, 0, 0).strategies = {{.layers = {0, 8}, .tp = 2, .dp = 2}};
                stage(p, 0, 0).shares = {0.25, 0.25, 0.25, 0.25};
              }),
              HasSubstr("both tensor and data parallelism"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas[0].share = 0.5; }), HasSubstr("sum to 0.75"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas[1].micro_batches = 4; }),
              HasSubstr("4 micro-batches for 3 sequences"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.replicas[1].micro_batches = 3; }),
              HasSubstr("dp 2 is more than the 1 sequences of a micro-batch"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.unused = {{"box/0", "slow"}}; }), HasSubstr("works in replicas[0]"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.workload.training->sequence_length = 4096; }), HasSubstr("2048 positions"));
  EXPECT_THAT(broken([&](TrainPlan& p) { stage(p, 0, 1).strategies[0].split = 2; }),
              HasSubstr("`split` needs shard = zero3, which gathers weights"));
  EXPECT_THAT(broken([](TrainPlan& p) { p.predicted.memory_bytes["box/1"] = {}; }), HasSubstr("memory_bytes.box/1"));
  EXPECT_THAT(broken([](TrainPlan& p) {
                p.workload.training->global_batch = 1200;
                p.replicas[0].micro_batches = 2;
              }),
              HasSubstr("the device has 24"));
}

TEST(TrainPlan, ReferenceIsCurrent) { expect_reference_is_current("plan-train.md", schema<TrainPlan>().doc()); }

}  // namespace
}  // namespace motley
