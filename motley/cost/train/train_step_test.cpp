#include "motley/cost/train/train_step.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/train/train_price.hpp"

namespace motley {
namespace {

// Three machines of two cards; between m0 and m1 a link that is slower on the way back.
Cluster cards() {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "m"
count = 3
devices = ["card*2"]
[[device_type]]
name = "card"
memory = "80 GiB"
memory_bandwidth = "1 TB/s"
flops = { bf16 = "100 TFLOP/s" }
efficiency = { compute = 0.5, bandwidth = 0.8 }
reserve = "0 B"
[network]
within_machine = { latency = "1 us", bandwidth = "100 GB/s" }
within_site = { latency = "1 ms", bandwidth = "1 GB/s" }
[[link]]
between = ["m-0", "m-1"]
latency = "2 ms"
bandwidth_up = "4 GB/s"
bandwidth_down = "2 GB/s"
)");
}
constexpr double flop_per_s = 50e12, bytes_per_s = 0.8e12, up = 4e9, down = 2e9;

struct Job {
  Cluster cluster = cards();
  Model model = llama_of(1024, 4, 8, 8, 4096, 32000);
  Training training;
  Profile profile;
  std::int64_t length = 512;

  Job() {
    training.states = StateBytes{};
    training.sequence_length = length;
    training.global_batch = 12;
  }
  TrainStepCost cost() const {
    return {{.form = "motley", .settings = {{"motley.layer_overhead_s", 0}}}, cluster, model.arch, training, profile};
  }
  TrainProblemView view() const { return {cluster, model.arch, training, profile}; }
  // This many tokens compute for longer than they read weights. Norms and sums of the hidden size are on every rank;
  // rotated heads and FFN columns are divided.
  double products_s(double sequences) const { return sequences * 512 * block_flops(model.arch, 0, 0) / flop_per_s; }
  double attention_s(double sequences) const { return sequences * 512 * 4 * 1024 * 256 / flop_per_s; }
  double forward_s(double sequences, double tp = 1) const {
    const double elements = 10 * 1024 + (2 * 2 * 1024 + 3 * 4096) / tp;
    return (products_s(sequences) + attention_s(sequences)) / tp + sequences * 512 * 2 * elements / bytes_per_s;
  }
  double backward_s(double sequences, double tp = 1) const {
    const double elements = 12 * 1024 + (2 * 2 * 1024 + 5 * 4096) / tp;
    return (2 * products_s(sequences) + 2.5 * attention_s(sequences)) / tp +
           sequences * 512 * 2 * elements / bytes_per_s;
  }
  double gradient_bytes() const { return 2 * static_cast<double>(block_parameters(model.arch, 0)); }
};

LayerStrategy strategy_of(std::int64_t tp, std::int64_t dp, Sharding shard = Sharding::none) {
  return {.layers = {0, 4}, .tp = tp, .dp = dp, .shard = shard};
}

// ---- blocks ----

// t = 1024 tokens: products 2 x (4 x 1024^2 + 3 x 1024 x 4096) FLOP each, attention 4 x 1024 x 256, element-wise 26,624
// elements of 2 bytes and back 36,864.
TEST(TrainBlock, HasAShareOfThePeakForEachPart) {
  Job job;
  job.cluster.types.front().training = {.products = 0.8, .attention = 0.25, .elementwise = 0.4};
  LayerStrategy strategy = strategy_of(1, 1);
  BlockParts parts;
  BlockPass pass = job.cost().block({{0}, {}, 2}, strategy, &parts);
  const double products_s = 1024 * 33554432.0 / 80e12, attention_s = 1024 * 1048576.0 / 25e12;
  expect_close(parts.compute.products_s, 3 * products_s);
  expect_close(parts.compute.attention_s, 3.5 * attention_s);
  expect_close(parts.compute.elementwise_s, 1024 * 2 * (26624 + 36864) / 0.4e12);
  EXPECT_EQ(parts.compute.launches_s, 0);
  expect_close(parts.compute.sum(), pass.forward_s + pass.backward_s);
  strategy.recompute = true;
  pass = job.cost().block({{0}, {}, 2}, strategy, &parts);
  expect_close(parts.recompute.products_s, products_s);
  expect_close(parts.recompute.attention_s, attention_s);
  expect_close(parts.recompute.elementwise_s, 1024 * 2 * 26624 / 0.4e12);
  expect_close(parts.compute.sum() + parts.recompute.sum(), pass.forward_s + pass.backward_s);
}

TEST(TrainBlock, SharesThatAreNotGivenAreThoseOfServing) {
  Job job;
  job.cluster.types.front().efficiency.attention_compute = 0.25;
  BlockParts parts;
  job.cost().block({{0}, {}, 2}, strategy_of(1, 1), &parts);
  expect_close(parts.compute.products_s, 3 * job.products_s(2));
  expect_close(parts.compute.attention_s, 2 * 3.5 * job.attention_s(2));
  expect_close(parts.compute.elementwise_s, 1024 * 2 * (26624 + 36864) / bytes_per_s);
}

// PyTorch's FSDP: 740 us per layer and forward pass, twice that back, and 0.88 of what is gathered and reduced.
TEST(TrainBlock, TheExecutorAddsLaunchesAndExposesTransfers) {
  Job job;
  job.cluster.description.links.clear();
  job.cluster.description.network.within_site = LinkSpeed{.latency_s = 1e-6, .bandwidth_bytes_per_s = 1e15};
  job.training.executor = Executor::fsdp;
  const TrainStepCost cost({}, job.cluster, job.model.arch, job.training, job.profile);
  LayerStrategy strategy = strategy_of(1, 2, Sharding::zero3);
  BlockParts parts;
  BlockPass pass = cost.block({{0, 2}, {}, 2}, strategy, &parts);
  const double gather_s = 1e-6 + job.gradient_bytes() / 2 / 1e15;
  expect_close(parts.compute.launches_s, 3 * 740e-6);
  expect_close(pass.forward_s, job.forward_s(1) + 740e-6 + 0.88 * gather_s);
  expect_close(pass.backward_s, job.backward_s(1) + 2 * 740e-6 + 0.88 * 2 * gather_s);
  EXPECT_NEAR(parts.gather_s, 2 * 0.88 * gather_s, 1e-12);
  EXPECT_NEAR(parts.reduce_s, 0.88 * gather_s, 1e-12);
  strategy.recompute = true;
  cost.block({{0, 2}, {}, 2}, strategy, &parts);
  expect_close(parts.recompute.launches_s, 740e-6);

  const CostOptions options{.form = "motley",
                            .settings = {{"motley.layer_overhead_s", 1e-3}, {"motley.exposed_share", 0.5}}};
  const TrainStepCost set(options, job.cluster, job.model.arch, job.training, job.profile);
  pass = set.block({{0, 2}, {}, 2}, strategy_of(1, 2, Sharding::zero3), &parts);
  expect_close(pass.forward_s, job.forward_s(1) + 1e-3 + 0.5 * gather_s);
  EXPECT_THROW(check_train_settings({.form = "motley", .settings = {{"motley.exposed_share", 1.5}}}), Error);
}

TEST(TrainHead, LogitsAndTheirLoss) {
  const Job job;
  ComputeParts parts;
  const BlockPass pass = job.cost().head({{0}, {}, 2}, strategy_of(1, 1), &parts);
  const double products_s = 1024 * 2 * 1024 * 32000.0 / flop_per_s;
  expect_close(pass.forward_s, products_s + 1024 * 8 * 32000.0 / bytes_per_s);
  expect_close(pass.backward_s, 2 * products_s + 1024 * 12 * 32000.0 / bytes_per_s);
  expect_close(parts.products_s, 3 * products_s);
  expect_close(parts.elementwise_s, 1024 * 20 * 32000.0 / bytes_per_s);
}

// What bounds are made of: no launches, and no reading of weights, however short the sequence.
TEST(SequenceTime, IsWhatADeviceTakesAlone) {
  const Job job;
  const SequenceTime time = job.cost().sequence_time(3);
  expect_close(time.block_s, job.forward_s(1) + job.backward_s(1));
  const BlockPass head = job.cost().head({{3}, {}, 1}, strategy_of(1, 1));
  expect_close(time.head_s, head.forward_s + head.backward_s);
}

TEST(TrainBlock, RecomputationIsAForwardPassMore) {
  const Job job;
  const auto cost = job.cost();
  const StageWork work{{0}, {}, 2};
  LayerStrategy strategy = strategy_of(1, 1);
  expect_close(cost.block(work, strategy).forward_s, job.forward_s(2));
  expect_close(cost.block(work, strategy).backward_s, job.backward_s(2));
  strategy.recompute = true;
  BlockParts parts;
  expect_close(cost.block(work, strategy, &parts).backward_s, job.backward_s(2) + job.forward_s(2));
  expect_close(parts.recompute.sum(), job.forward_s(2));
  expect_close(parts.compute.sum(), job.forward_s(2) + job.backward_s(2));
}

TEST(TrainBlock, TensorParallelRanksAllReduceTwiceInEveryPass) {
  const Job job;
  const auto cost = job.cost();
  const StageWork work{{0, 1}, {}, 2};
  const double reduces_s = 2 * (1e-6 + 2 * 512 * 1024 * 2 / 100e9);
  LayerStrategy strategy = strategy_of(2, 1);
  BlockParts parts;
  BlockPass pass = cost.block(work, strategy, &parts);
  expect_close(pass.forward_s, job.forward_s(2, 2) + reduces_s);
  expect_close(pass.backward_s, job.backward_s(2, 2) + reduces_s);
  expect_close(parts.tensor_s, 2 * reduces_s);
  strategy.recompute = true;
  pass = cost.block(work, strategy, &parts);
  expect_close(pass.backward_s, job.backward_s(2, 2) + job.forward_s(2, 2) + 2 * reduces_s);
  expect_close(parts.tensor_s, 3 * reduces_s);
}

TEST(TrainBlock, DataParallelRanksTakeWholeSequences) {
  const Job job;
  const auto cost = job.cost();
  expect_close(cost.block({{0, 2}, {}, 3}, strategy_of(1, 2)).forward_s, job.forward_s(2));
  expect_close(cost.block({{0, 2}, {0.75, 0.25}, 4}, strategy_of(1, 2)).forward_s, job.forward_s(3));
  expect_close(cost.block({{0, 2}, {0.55, 0.45}, 100}, strategy_of(1, 2)).forward_s, job.forward_s(55));
}

// Around a ring of two each sends half: the slower way of the link counts. Its own messages wait for its latency. What
// is gathered is put into one piece and taken from it, 2 of half and 2 of all; gradients are as well, and added: 2 of
// all and 5 of half.
TEST(TrainBlock, ShardedStatesTravelBetweenTheBlocks) {
  const Job job;
  const auto cost = job.cost();
  const StageWork work{{0, 2}, {}, 2};
  const double half_s = job.gradient_bytes() / 2 / down, forward_s = job.forward_s(1), backward_s = job.backward_s(1);
  const auto pass = [&](Sharding shard, std::int64_t split = 1, bool recompute = false) {
    LayerStrategy strategy = strategy_of(1, 2, shard);
    strategy.split = split;
    strategy.recompute = recompute;
    return cost.block(work, strategy);
  };
  for (const Sharding shard : {Sharding::none, Sharding::zero1}) {
    expect_close(pass(shard).forward_s, forward_s);
    expect_close(pass(shard).backward_s, backward_s);
  }
  expect_close(pass(Sharding::zero2).forward_s, forward_s);
  const double once_s = job.gradient_bytes() / bytes_per_s;
  double gather_s = 2e-3 + half_s + 3 * once_s, reduce_s = 2e-3 + half_s + 4.5 * once_s;
  expect_close(pass(Sharding::zero2).backward_s, backward_s + reduce_s);
  expect_close(pass(Sharding::zero3).forward_s, forward_s + gather_s);
  expect_close(pass(Sharding::zero3).backward_s, backward_s + gather_s + reduce_s);
  expect_close(pass(Sharding::zero3, 1, true).backward_s, backward_s + forward_s + gather_s + reduce_s);
  // Four parts and the vectors, used where they arrive; recomputation gathers them once more.
  gather_s = 5 * 2e-3 + half_s + once_s;
  reduce_s = 5 * 2e-3 + half_s + 3.5 * once_s;
  expect_close(pass(Sharding::zero3, 4).forward_s, forward_s + gather_s);
  expect_close(pass(Sharding::zero3, 4).backward_s, backward_s + gather_s + reduce_s);
  expect_close(pass(Sharding::zero3, 4, true).backward_s, backward_s + forward_s + 2 * gather_s + reduce_s);
}

TEST(TrainBlock, TransfersBesideTheComputationMayTakeLonger) {
  const Job job;
  const CostOptions options{.form = "motley", .settings = {{"motley.exposed_share", 0}}};
  const TrainStepCost cost(options, job.cluster, job.model.arch, job.training, job.profile);
  const double half_s = job.gradient_bytes() / 2 / down;
  ASSERT_GT(half_s, 3 * job.forward_s(1));
  const BlockPass pass = cost.block({{0, 2}, {}, 2}, strategy_of(1, 2, Sharding::zero3));
  const double once_s = job.gradient_bytes() / bytes_per_s;
  expect_close(pass.forward_s, 2e-3 + half_s + 3 * once_s);
  expect_close(pass.backward_s, 2 * (2e-3 + half_s) + 7.5 * once_s);
}

TEST(TrainBlock, ThreeRanksSendTwoThirdsInTwoRounds) {
  const Job job;
  // m-2 is 1 ms and 1 GB/s away; the link between m-0 and m-1 has the greatest latency.
  const BlockPass pass = job.cost().block({{0, 2, 4}, {}, 3}, strategy_of(1, 3, Sharding::zero2));
  const double copies_s = (2 + 5 / 3.0) * job.gradient_bytes() / bytes_per_s;
  expect_close(pass.backward_s, job.backward_s(1) + 2 * 2e-3 + job.gradient_bytes() * 2 / 3 / 1e9 + copies_s);
}

// ---- what else a step has ----

TEST(TrainUpdate, TouchesAllStatesOfARanksPart) {
  const Job job;
  const auto cost = job.cost();
  // Weight, gradient, master and moments, each read and written.
  const double block_s = 2 * (2 + 2 + 4 + 8) * static_cast<double>(block_parameters(job.model.arch, 0)) / 0.8e12;
  expect_close(cost.update_s({{0}, {}, 1}, strategy_of(1, 1), 4), 4 * block_s);
  expect_close(cost.update_s({{0, 1}, {}, 1}, strategy_of(2, 1), 4), 2 * block_s);
  expect_close(cost.update_s({{0, 1}, {}, 2}, strategy_of(1, 2), 4), 4 * block_s);
  for (const Sharding shard : {Sharding::zero1, Sharding::zero2, Sharding::zero3})
    expect_close(cost.update_s({{0, 1}, {}, 2}, strategy_of(1, 2, shard), 4), 2 * block_s);
}

TEST(TrainHop, TakesTheDirectionOfItsLink) {
  const Job job;
  const auto cost = job.cost();
  const double bytes = 2 * 512 * 1024 * 2;
  const PipelineHop there = cost.hop({0}, {2}, 2), back = cost.hop({2}, {0}, 2);
  expect_close(there.busy_s, bytes / up);
  expect_close(back.busy_s, bytes / down);
  expect_close(there.latency_s, 2e-3 + usual_copies_s(bytes));
  EXPECT_NE(there.link, back.link) << "each way has a link of its own";
  EXPECT_EQ(cost.hop({1}, {3}, 2).link, there.link) << "which all pairs of the machines share";
  EXPECT_EQ(cost.hop({0}, {1}, 2).link, PipelineHop::own_link);
}

TEST(TrainStep, FlopsAreThreeForwardPasses) {
  const Job job;
  expect_close(job.cost().step_flops(),
               3 * (4 * block_flops(job.model.arch, 0, 256) + head_flops(job.model.arch)) * 512 * 12);
}

TEST(LinkLoads, MachinesShareALinkForEachDirection) {
  const Job job;
  const TrainLinks links(job.cluster, job.profile);
  LinkLoads loads(links);
  loads.add(0, 2, 4e9, 1);
  EXPECT_DOUBLE_EQ(loads.seconds(), 1);
  EXPECT_EQ(loads.busiest(), "m-0 to m-1");
  loads.add(3, 1, 1e9, 1);
  EXPECT_DOUBLE_EQ(loads.seconds(), 1) << "the other way";
  loads.add(1, 3, 4e9, 1);
  EXPECT_DOUBLE_EQ(loads.seconds(), 2);
  loads.add(0, 1, 300e9, 1);
  EXPECT_DOUBLE_EQ(loads.seconds(), 3);
  EXPECT_EQ(loads.busiest(), "m-0/0 to m-0/1");
  loads.add(1, 0, 100e9, 1);
  EXPECT_DOUBLE_EQ(loads.seconds(), 3) << "inside a machine every pair has its own";
}

TEST(LinkLoads, ARingGoesFromEachMemberToTheNext) {
  Job job;
  job.cluster.description.network.within_site->bandwidth_bytes_per_s = 8e9;
  const TrainLinks links(job.cluster, job.profile);
  LinkLoads forth(links), back(links);
  forth.add_ring({0, 2, 4}, 4e9, 1);
  EXPECT_DOUBLE_EQ(forth.seconds(), 1);
  EXPECT_EQ(forth.busiest(), "m-0 to m-1");
  back.add_ring({4, 2, 0}, 4e9, 1);
  EXPECT_DOUBLE_EQ(back.seconds(), 2);
  EXPECT_EQ(back.busiest(), "m-1 to m-0");
}

// ---- whole steps ----

TrainLayout layout_on(std::vector<std::vector<int>> replicas, LayerStrategy strategy, std::int64_t sequences) {
  TrainLayout layout{.replicas = {}, .sync = {.algorithm = SyncAlgorithm::ring}};
  for (auto& devices : replicas)
    layout.replicas.push_back(
        {.sequences = sequences,
         .micro_batches = 1,
         .stages = {{.layers = {0, 4}, .devices = std::move(devices), .shares = {}, .strategies = {strategy}}}});
  return layout;
}

double ends_parameters(const Architecture& arch) {
  double sum = 0;
  for (const auto& tensors : {embedding_tensors(arch), head_tensors(arch)})
    for (const auto& tensor : tensors) sum += static_cast<double>(tensor.elements());
  return sum;
}

// One replica has no other to add up with; its ranks gather what they have updated, one unit after the other, unless
// every pass gathers it, and copies it into one piece and out. FSDP gathers embedding and head once.
TEST(GradientExchangeOfShards, OfZero2AndTheEndsOfFsdp) {
  Job job;
  const auto seconds = [&](Sharding shard) {
    const auto exchange = gradient_exchange(job.cost(), job.view(), layout_on({{0, 2}}, strategy_of(1, 2, shard), 2));
    EXPECT_EQ(exchange.seconds, 0);
    return exchange.gather_s;
  };
  const double ends_bytes = 2 * ends_parameters(job.model.arch), all_bytes = ends_bytes + 4 * job.gradient_bytes();
  const double ends_s = ends_bytes / 2 / down + 2 * 2e-3;
  expect_close(seconds(Sharding::zero3), 0);
  expect_close(seconds(Sharding::zero2), all_bytes / 2 / down + 6 * 2e-3 + 2 * all_bytes / bytes_per_s);
  job.training.executor = Executor::fsdp;
  expect_close(seconds(Sharding::zero3), ends_s);
}

// zero1 adds up all gradients on every rank, and gathers as zero2 does.
TEST(GradientExchangeOfShards, Zero1AddsUpAllAndGathers) {
  const Job job;
  const auto exchange = [&](Sharding shard) {
    return gradient_exchange(job.cost(), job.view(), layout_on({{0, 2}}, strategy_of(1, 2, shard), 2));
  };
  expect_close(exchange(Sharding::zero1).seconds, exchange(Sharding::none).seconds);
  expect_close(exchange(Sharding::zero1).gather_s, exchange(Sharding::zero2).gather_s);
}

// Gathering begins when the states are there.
TEST(TrainStep, WhatIsGatheredAfterTheUpdateIsHiddenByNothing) {
  const Job job;
  TrainLayout layout = layout_on({{0, 2}}, strategy_of(1, 2, Sharding::none), 2);
  layout.sync.overlap = true;
  const TrainStepPrice whole = price_step(job.cost(), job.view(), layout);
  layout.replicas[0].stages[0].strategies[0].shard = Sharding::zero1;
  const TrainStepPrice sharded = price_step(job.cost(), job.view(), layout);
  expect_close(sharded.exchange_s, whole.exchange_s);
  expect_close(sharded.update_s, whole.update_s / 2 + sharded.exchange.gather_s);
  EXPECT_GT(sharded.exchange.gather_s, 0);
}

// ---- what a profile has ----

class Measured : public testing::Test {
 protected:
  void add(LayerPart part, std::int64_t tp, std::int64_t micro_batch, double forward_s, double backward_s,
           double update_s = 0) {
    job_.profile.layer_time.push_back({.device_type = "card",
                                       .tp = tp,
                                       .micro_batch = micro_batch,
                                       .sequence_length = 512,
                                       .part = part,
                                       .forward_s = forward_s,
                                       .backward_s = backward_s,
                                       .update_s = update_s});
  }
  double forward_s(std::int64_t sequences) const {
    return job_.cost().block({{0}, {}, sequences}, strategy_of(1, 1)).forward_s;
  }
  Job job_;
};

TEST_F(Measured, MicroBatchesBetweenTwoAreBetweenTheirTimes) {
  add(LayerPart::block, 1, 2, 3, 6);
  add(LayerPart::block, 1, 4, 5, 10);
  expect_close(forward_s(1), 1.5);
  expect_close(forward_s(2), 3);
  expect_close(forward_s(3), 4);
  expect_close(forward_s(8), 10);
}

TEST_F(Measured, ALargerPartIsBetweenAnEqualOneAndTheWhole) {
  add(LayerPart::block, 1, 1, 8, 16);
  add(LayerPart::block, 2, 1, 5, 10);
  const auto forward = [&](std::vector<double> shares) {
    return job_.cost().block({{0, 1}, std::move(shares), 1}, strategy_of(2, 1)).forward_s;
  };
  expect_close(forward({}), 5);
  expect_close(forward({0.75, 0.25}), 6.5);
}

TEST_F(Measured, ADegreeThatWasNotMeasuredIsASharePlusWhatRanksExchange) {
  add(LayerPart::block, 1, 1, 8, 16, 0.5);
  const StageWork work{{0, 1}, {}, 1};
  const double reduces_s = 2 * (1e-6 + 512 * 1024 * 2 / 100e9);
  BlockParts parts;
  const BlockPass pass = job_.cost().block(work, strategy_of(2, 1), &parts);
  expect_close(pass.forward_s, 8 / 2.0 + reduces_s);
  expect_close(pass.backward_s, 16 / 2.0 + reduces_s);
  expect_close(parts.tensor_s, 2 * reduces_s);
  expect_close(job_.cost().block({{0, 1}, {0.75, 0.25}, 1}, strategy_of(2, 1)).forward_s, 8 * 0.75 + reduces_s);
  expect_close(job_.cost().update_s(work, strategy_of(2, 1), 4), 4 * 0.5 / 2);
}

TEST_F(Measured, UpdatesOfAllPartsCount) {
  add(LayerPart::embedding, 1, 1, 0, 0, 0.5);
  add(LayerPart::block, 1, 1, 1, 2, 0.25);
  const auto cost = job_.cost();
  expect_close(cost.update_s({{0}, {}, 3}, strategy_of(1, 1), 4), 4 * 0.25);
  expect_close(cost.update_s({{0}, {}, 3}, strategy_of(1, 1), LayerPart::embedding), 0.5);
  expect_close(cost.update_s({{0, 1}, {}, 4}, strategy_of(1, 2, Sharding::zero1), 4), 2 * 0.25);
}

// Everybody sends a third to each of the two others, twice.
TEST(GradientExchangeDirect, SendsAPartToEveryPeerBothWays) {
  Job job;
  job.cluster.description.links.clear();
  TrainLayout layout = layout_on({{0}, {2}, {4}}, strategy_of(1, 1), 4);
  layout.sync.algorithm = SyncAlgorithm::direct;
  const double all_bytes = 4 * job.gradient_bytes() + 2 * ends_parameters(job.model.arch);
  const double seconds = gradient_exchange(job.cost(), job.view(), layout).seconds;
  expect_close(seconds, 2 * all_bytes / 3 / 1e9 + (4 + 2) * 2 * 1e-3);
}

// Two machines of two devices each: what crosses the link between them is half of what direct exchange sends.
TEST(GradientExchangeHierarchical, AddsUpInsideAMachineFirst) {
  Job job;
  job.cluster.description.links.clear();
  TrainLayout layout = layout_on({{0}, {1}, {2}, {3}}, strategy_of(1, 1), 4);
  const double all_bytes = 4 * job.gradient_bytes() + 2 * ends_parameters(job.model.arch);
  layout.sync.algorithm = SyncAlgorithm::direct;
  const double direct_s = gradient_exchange(job.cost(), job.view(), layout).seconds;
  expect_close(direct_s, 2 * 4 * all_bytes / 4 / 1e9 + (4 + 2) * 2 * 1e-3);
  layout.sync.algorithm = SyncAlgorithm::hierarchical;
  const double seconds = gradient_exchange(job.cost(), job.view(), layout).seconds;
  expect_close(seconds, 2 * 2 * all_bytes / 4 / 1e9 + (4 + 2) * 2 * (1e-6 + 1e-3));
}

TEST(TrainStep, TheExchangeHidesBehindTheShortestBackwardPassButForTheLastLayer) {
  Job job;
  TrainLayout layout = layout_on({{0}, {2}}, strategy_of(1, 1), 6);
  layout.replicas[0].sequences = 4;
  layout.replicas[1].sequences = 8;
  layout.sync.overlap = true;
  TrainStepPrice price = price_step(job.cost(), job.view(), layout);
  const double backward_s = price.loads[0].stages[0].backward_s;
  ASSERT_LT(backward_s, price.loads[1].stages[0].backward_s);
  ASSERT_GT(price.exchange.seconds, 2 * backward_s);
  expect_close(price.exchange_s, price.exchange.seconds - backward_s);
  expect_close(price.iteration_s, price.pipelines[1].makespan_s + price.exchange_s + price.update_s);

  layout.replicas[1].stages[0].devices = {
      1};  // at the same time as the other: what is exchanged is hidden, but for one layer of 5
  price = price_step(job.cost(), job.view(), layout);
  ASSERT_LT(price.exchange.seconds, backward_s);
  expect_close(price.exchange_s, price.exchange.seconds / 5);
  layout.sync.overlap = false;
  expect_close(price_step(job.cost(), job.view(), layout).exchange_s, price.exchange.seconds);
}

TEST(TrainStep, TheBoundKnowsAllButWhatPipelinesWaitFor) {
  const Job job;
  const auto cost = job.cost();
  TrainLayout layout = layout_on({{0}, {2}}, strategy_of(1, 1), 6);
  layout.replicas[1].micro_batches = 3;
  TrainStepPrice price = bound_step(cost, job.view(), layout);
  const TrainStepPrice whole = price_step(cost, job.view(), layout);
  expect_close(price.iteration_s, whole.iteration_s);  // of single stages nothing waits
  run_step(cost, layout, price);
  EXPECT_EQ(price.iteration_s, whole.iteration_s);
}

TEST(TrainStep, AStageComputesItsLargestMicroBatch) {
  const Job job;
  const auto cost = job.cost();
  TrainLayout layout = layout_on({{0}}, strategy_of(1, 1), 3);
  layout.replicas[0].micro_batches = 2;
  const PipelineStage stage = pipeline_stage(cost, layout.replicas[0], 0);
  const BlockPass head = cost.head({{0}, {}, 2}, strategy_of(1, 1));
  expect_close(stage.forward_s, 4 * job.forward_s(2) + head.forward_s);
  expect_close(stage.backward_s, 4 * job.backward_s(2) + head.backward_s);
}

}  // namespace
}  // namespace motley
