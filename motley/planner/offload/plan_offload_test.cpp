#include "motley/planner/offload/plan_offload.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cluster/host_reserve.hpp"
#include "motley/cost/offload/offload_cost.hpp"

namespace motley {
namespace {

struct Box {
  const char* device = "T4";
  const char* host = "208 GiB";
  const char* disk = "1.5 TB";
  const char* disk_rate = "2 GB/s";
};

Cluster cluster_of(const Box& box) {
  const std::string text = fmt::format(
      "format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"{}\"]\nhost_memory = \"{}\"\n"
      "disk = {{ capacity = \"{}\", read = \"{}\", write = \"1 GB/s\" }}\n"
      "[[device_type]]\nname = \"small\"\nvendor = \"cpu\"\nmemory = \"10 MiB\"\nmemory_bandwidth = \"10 GB/s\"\n"
      "flops = {{ fp32 = \"100 GFLOP/s\" }}\n",
      box.device, box.host, box.disk, box.disk_rate);
  return resolve(read<ClusterDescription>(parse_toml(text, "c"), "c"), "c");
}

Workload lengths(double prompt, double output) {
  Workload workload = default_workload();
  workload.classes[0].prompt_tokens.mean = prompt;
  workload.classes[0].output_tokens.mean = output;
  return workload;
}

Model named(const char* name) { return read_model(MOTLEY_SOURCE_DIR "/data/models/" + std::string(name)); }

void expect_sound(const OffloadPlan& plan) {
  for (const Violation& violation : verify(plan)) ADD_FAILURE() << violation.place << ": " << violation.what;
}

double planned(const Cluster& cluster, const Model& model, const Workload& workload,
               const OffloadOptions& options = {}) {
  const OffloadOutcome outcome = plan_offload(cluster, model, workload, options);
  EXPECT_TRUE(outcome.plan) << outcome.reason;
  if (!outcome.plan) return 0;
  expect_sound(*outcome.plan);
  EXPECT_NEAR(price_offload(*outcome.plan, options.cost).tokens_per_s, outcome.plan->predicted.tokens_per_s,
              1e-9 * outcome.plan->predicted.tokens_per_s);
  return outcome.plan->predicted.tokens_per_s;
}

bool leaves_the_reserve(const OffloadPlan& plan) {
  const ServePlan serve = serving_plan(plan);
  const TierMemory host = stage_memory(serve, serve.stages.front()).front().host;
  return host.total() <= host.limit - host_reserve_bytes(host.limit);
}

TEST(PlanOffload, ModelsOfAllSizesOnAT4) {
  for (const char* name : {"opt-6.7b", "opt-30b", "opt-175b", "llama-2-70b"}) {
    const OffloadOutcome outcome = plan_offload(cluster_of({}), named(name), lengths(512, 32), {});
    ASSERT_TRUE(outcome.plan) << outcome.reason;
    expect_sound(*outcome.plan);
    EXPECT_TRUE(leaves_the_reserve(*outcome.plan)) << name;
    EXPECT_EQ(outcome.plan->search.status, SearchStatus::optimal);
    EXPECT_LT(outcome.plan->search.elapsed_s, 5);
  }
}

// All placements and shapes of a small model, by the plan's own price and verify().
TEST(PlanOffload, IsAsGoodAsEveryPlanOfASmallModel) {
  for (const auto& [box, weights_only] : {std::pair{Box{"small", "2 MiB", "64 MB"}, false},
                                          {Box{"small", "16 MiB", "16 MB"}, false},
                                          {Box{"small", "16 MiB", "16 MB"}, true}}) {
    OffloadOptions options{.weights_only = weights_only, .max_batch = 4, .max_batches = 3};
    options.weight_type = options.kv_type = DType::fp32;
    const OffloadOutcome outcome = plan_offload(cluster_of(box), named("tales"), lengths(64, 32), options);
    ASSERT_TRUE(outcome.plan) << outcome.reason;
    const double found = outcome.plan->predicted.tokens_per_s;
    OffloadPlan plan = *outcome.plan;
    const std::int64_t layers = plan.model.arch.layers;
    std::vector<TierCounts> homes;
    for (std::int64_t device = 0; device <= layers; ++device)
      for (std::int64_t host = 0; device + host <= layers; ++host)
        homes.push_back({device, host, layers - device - host});
    plan.activations = {};
    plan.predicted.memory_bytes.clear();
    plan.cpu_attention = true;
    double best = 0;
    for (plan.batch = 1; plan.batch <= 4; ++plan.batch)
      for (plan.batches = 1; plan.batches <= 3; ++plan.batches) {
        const OffloadCost cost = offload_cost(plan, {});
        plan.kv_tokens = cost.kv_tokens(plan.batch * plan.batches, plan.block_tokens);
        for (const std::int64_t chunk : cost.chunks(plan.batch))
          for (const TierCounts& weights : homes)
            for (const TierCounts& kv : weights_only ? std::vector<TierCounts>{{layers, 0, 0}} : homes) {
              plan.prompt_chunk = chunk;
              plan.weights = shares_of(weights);
              plan.kv = shares_of(kv);
              const double price = price_offload(plan, {}).tokens_per_s;
              if (price > best && verify(plan).empty() && leaves_the_reserve(plan)) best = price;
            }
      }
    EXPECT_NEAR(found, best, 1e-9 * best);
  }
}

TEST(PlanOffload, MoreOfAnythingIsNeverWorse) {
  const Model model = named("opt-30b");
  const Workload workload = lengths(512, 32);
  const double before = planned(cluster_of({.host = "48 GiB"}), model, workload);
  EXPECT_GE(planned(cluster_of({.host = "64 GiB"}), model, workload), before);
  EXPECT_GE(planned(cluster_of({.host = "48 GiB", .disk_rate = "5 GB/s"}), model, workload), before);
  EXPECT_GE(planned(cluster_of({.device = "A5000", .host = "48 GiB"}), model, workload), before);
}

// On a processor, too, where keys and values in host memory take no longer.
TEST(PlanOffload, KeepsAllOnADeviceThatHoldsIt) {
  for (const char* device : {"T4", "small"}) {
    OffloadOptions options{.max_batch = 1, .max_batches = 1};
    options.weight_type = options.kv_type = DType::bf16;
    const OffloadOutcome outcome =
        plan_offload(cluster_of({.device = device}), named("tales"), lengths(20, 32), options);
    ASSERT_TRUE(outcome.plan) << outcome.reason;
    EXPECT_EQ(outcome.plan->weights.device, 1) << device;
    EXPECT_EQ(outcome.plan->kv.device, 1) << device;
    EXPECT_EQ(outcome.plan->activations.device, 1) << device;
  }
}

TEST(PlanOffload, LimitsAreKept) {
  const Cluster cluster = cluster_of({});
  const Model model = named("opt-30b");
  const OffloadOutcome free = plan_offload(cluster, model, lengths(512, 32), {});
  OffloadOptions options;
  options.most_latency_s = free.plan->predicted.latency_s / 2;
  const OffloadOutcome quick = plan_offload(cluster, model, lengths(512, 32), options);
  ASSERT_TRUE(quick.plan);
  EXPECT_LE(quick.plan->predicted.latency_s, *options.most_latency_s);
  EXPECT_LE(quick.plan->predicted.tokens_per_s, free.plan->predicted.tokens_per_s);
  OffloadOptions goal;
  goal.least_tokens_per_s = quick.plan->predicted.tokens_per_s;
  const OffloadOutcome least = plan_offload(cluster, model, lengths(512, 32), goal);
  ASSERT_TRUE(least.plan);
  EXPECT_GE(least.plan->predicted.tokens_per_s, *goal.least_tokens_per_s);
  EXPECT_LE(least.plan->predicted.latency_s, quick.plan->predicted.latency_s);
}

TEST(PlanOffload, QuantisedWeightsUnderABound) {
  const Cluster cluster = cluster_of({.host = "48 GiB"});
  OffloadOptions options;
  options.most_kl = 0.02;
  const OffloadOutcome outcome = plan_offload(cluster, named("llama-2-70b"), lengths(512, 128), options);
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  EXPECT_LE(*outcome.plan->predicted.kl, 0.02);
  EXPECT_TRUE(is_quantised(outcome.plan->weight_type));
  EXPECT_GT(outcome.plan->predicted.tokens_per_s, planned(cluster, named("llama-2-70b"), lengths(512, 128)));
}

// A bound below what 8 bits change in the weights leaves the keys and values.
TEST(PlanOffload, QuantisedKeysAndValuesUnderABound) {
  const Cluster cluster = cluster_of({.host = "48 GiB"});
  OffloadOptions options;
  options.most_kl = 0.001;
  const OffloadOutcome outcome = plan_offload(cluster, named("llama-2-7b"), lengths(512, 128), options);
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  expect_sound(*outcome.plan);
  EXPECT_EQ(outcome.plan->weight_type, DType::fp16);
  EXPECT_EQ(outcome.plan->kv_type, DType::q8_0);
  EXPECT_EQ(outcome.plan->predicted.kl, 0.0003);
  EXPECT_GT(outcome.plan->predicted.tokens_per_s, planned(cluster, named("llama-2-7b"), lengths(512, 128)));
  options.kv_type = DType::fp16;
  EXPECT_EQ(plan_offload(cluster, named("llama-2-7b"), lengths(512, 128), options).plan->predicted.kl, 0);
  options.kv_type = DType::q8_0;
  options.most_kl = 0.0002;
  EXPECT_THROW(plan_offload(cluster, named("llama-2-7b"), lengths(512, 128), options), Error);
}

// Fewer bytes of keys and values leave room for more sequences, and cross the tiers sooner.
TEST(PlanOffload, KeysAndValuesInEightBits) {
  for (const char* host : {"208 GiB", "8 GiB"}) {
    const Cluster cluster = cluster_of({.host = host});
    OffloadOptions wide, narrow;
    wide.kv_type = DType::fp32;
    narrow.kv_type = DType::q8_0;
    const Workload workload = lengths(512, 128);
    EXPECT_GT(planned(cluster, named("llama-2-7b"), workload, narrow),
              1.5 * planned(cluster, named("llama-2-7b"), workload, wide))
        << host;
    EXPECT_THROW(plan_offload(cluster, named("tales"), lengths(20, 32), narrow), Error);
  }
}

TEST(PlanOffload, WhatIsMissingIsNamed) {
  Cluster cluster = cluster_of({});
  cluster.description.machines[0].host_memory_bytes = 0;
  cluster.description.machines[0].disk.reset();
  const OffloadOutcome outcome = plan_offload(cluster, named("opt-30b"), lengths(512, 32), {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_NE(outcome.reason.find("neither `host_memory` nor `disk`"), std::string::npos) << outcome.reason;
  EXPECT_THROW(plan_offload(cluster, named("opt-30b"), lengths(512, 32), {.cost = {.form = "flexgen"}}), Error);
  EXPECT_THROW(plan_offload(cluster, named("opt-30b"), lengths(512, 32), {.cost = {.form = "hexgen"}}), Error);
}

TEST(PlanOffload, FlexgensForm) {
  const OffloadOutcome outcome =
      plan_offload(cluster_of({}), named("opt-30b"), lengths(512, 32), {.cost = {.form = "flexgen"}});
  ASSERT_TRUE(outcome.plan);
  EXPECT_GT(outcome.plan->predicted.tokens_per_s, 7.14);
  EXPECT_TRUE(verify(*outcome.plan).empty());
  EXPECT_THROW(serving_plan(*outcome.plan), Error);
}

// Sequences that are each at their own token need less room than a block that advances together: (2s + 2n) / (2s + n).
TEST(PlanOffload, TheDiagonalScheduleHoldsMoreSequences) {
  const Cluster cluster = cluster_of({});
  const Model model = named("opt-30b");
  const double prompt = 1, output = 32;
  const OffloadCost cost({}, cluster, model, 0, DType::fp16, DType::fp16, prompt, output);
  constexpr std::int64_t sequences = 100000;
  const double together = sequences * (prompt + output);
  const auto diagonal = static_cast<double>(cost.kv_tokens(sequences, 1));
  EXPECT_NEAR(together / diagonal, (2 * prompt + 2 * output) / (2 * prompt + output), 2 / output);
}

}  // namespace
}  // namespace motley
