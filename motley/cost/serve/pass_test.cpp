#include "motley/cost/serve/pass.hpp"

#include <gtest/gtest.h>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/flow.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/step_time.hpp"

namespace motley {
namespace {

// Two machines of one device each, the second with host memory and a disk behind it; no overheads.
Cluster pair_of(const std::string& vendor) {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "near"
devices = ["card"]
[[machine]]
name = "far"
devices = ["card"]
host_memory = "64 GiB"
disk = { capacity = "1 TB", read = "2 GB/s", write = "1 GB/s" }
host = { upload = "8 GB/s", bandwidth = "40 GB/s" }
[[device_type]]
name = "card"
vendor = ")" + vendor +
                    R"("
memory = "16 GiB"
memory_bandwidth = "400 GB/s"
flops = { fp16 = "50 TFLOP/s", fp32 = "1 TFLOP/s" }
efficiency = { compute = 0.5, bandwidth = 0.5 }
overhead = { layer = "0 s", step = "0 s" }
[network]
within_site = { latency = "100 us", bandwidth = "1 GB/s" }
)");
}

Offload offload_from(TierCounts weights, std::int64_t batches = 1) {
  return {.batches = batches, .weights = shares_of(weights)};
}

ServePlan streaming_pair(const std::string& vendor = "nvidia") {
  ServePlan plan;
  plan.model = llama_of(4096, 8, 32, 32, 11008, 32000);
  plan.cluster = pair_of(vendor);
  plan.workload = workload_of(128, 32);
  plan.step = {.max_tokens = 256, .max_sequences = 8, .block_tokens = 16};
  for (int i = 0; i < 2; ++i) {
    Stage stage;
    stage.id = i == 0 ? "a" : "b";
    stage.layers = {4 * i, 4 * i + 4};
    stage.devices = {i == 0 ? "near/0" : "far/0"};
    stage.embedding = i == 0;
    stage.head = i == 1;
    stage.kv_tokens = 16 * 160;
    stage.weight_type = stage.kv_type = DType::fp16;
    plan.stages.push_back(stage);
  }
  plan.routes = {{.id = "r0", .path = {{"a", {0, 4}}, {"b", {4, 8}}}, .batch = 8}};
  return plan;
}

// With all layers on the device an accelerator's stage costs what a resident one does.
TEST(Pass, AllOnTheDeviceIsAResidentStage) {
  ServePlan plan = streaming_pair();
  const ServeCost resident = price_serve(plan, {});
  plan.stages[1].offload = offload_from({4, 0, 0});
  const ServeCost same = price_serve(plan, {});
  expect_close(same.latency_s, resident.latency_s);
  expect_close(same.requests_per_s, resident.requests_per_s);
  expect_close(plan_flow(plan, {}).tokens_per_s, plan_flow(streaming_pair(), {}).tokens_per_s);
  const StepLoad load{.tokens = 40, .context = 100, .cached = 700, .logits = 8};
  const ServePlan all_resident = streaming_pair();
  const RouteChain chain{0, 0, 2};
  expect_close(StepTimes(plan, {}).stage(chain, 1).seconds(load),
               StepTimes(all_resident, {}).stage(chain, 1).seconds(load));
}

// Three of four layers away: each step uploads them, and those on disk are read first.
TEST(Pass, AStreamingStageTakesItsTransfers) {
  ServePlan plan = streaming_pair();
  const double layer_bytes = 2.0 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096);
  const RouteChain chain{0, 0, 2};
  const StepLoad decode{.tokens = 1, .context = 100, .cached = 100, .logits = 1};
  plan.stages[1].offload = offload_from({1, 3, 0});
  const StageTime from_host = StepTimes(plan, {}).stage(chain, 1);
  expect_close(from_host.seconds(decode), 3 * layer_bytes / 8e9);
  EXPECT_EQ(busiest(from_host.pass->resources(decode)), Resource::upload);
  plan.stages[1].offload = offload_from({1, 1, 2});
  const StageTime from_disk = StepTimes(plan, {}).stage(chain, 1);
  expect_close(from_disk.seconds(decode), 2 * layer_bytes / 2e9);
  EXPECT_EQ(busiest(from_disk.pass->resources(decode)), Resource::disk_read);
  // A step that computes for longer hides them.
  const StepLoad prompt{.tokens = 2e5, .context = 100, .cached = 100, .logits = 1};
  EXPECT_EQ(busiest(from_disk.pass->resources(prompt)), Resource::device);

  // In the plan's price: a lone request takes one prefill and 31 decodes, each with a pass.
  plan.routes[0].batch = 1;
  const double disk_s = 2 * layer_bytes / 2e9;
  const ServeCost cost = price_serve(plan, {});
  ServePlan free = plan;
  free.stages[1].offload = offload_from({4, 0, 0});
  const StageTime resident = StepTimes(free, {}).stage(chain, 1);
  const StepLoad chunk{.tokens = 128, .context = 64, .cached = 64, .logits = 1},
      token{.tokens = 1, .context = 144, .cached = 144, .logits = 1};
  expect_close(cost.latency_s - price_serve(free, {}).latency_s,
               32 * disk_s - resident.seconds(chunk) - 31 * resident.seconds(token));
  EXPECT_THROW(price_serve(plan, {.form = "hexgen"}), Error);
}

// Micro-batches share the reading of weights, where a plan of one stage has several.
TEST(Pass, MicroBatchesShareAPass) {
  ServePlan plan = streaming_pair();
  plan.stages.erase(plan.stages.begin());
  plan.stages[0].layers = {0, 8};
  plan.stages[0].embedding = true;
  plan.stages[0].kv_tokens = 64 * 160;
  plan.routes = {{.id = "r0", .path = {{"b", {0, 8}}}, .batch = 32}};
  plan.stages[0].offload = offload_from({1, 0, 7});
  const ServeCost one = price_serve(plan, {});
  plan.stages[0].offload = offload_from({1, 0, 7}, 4);
  const ServeCost four = price_serve(plan, {});
  EXPECT_GT(four.requests_per_s, 3 * one.requests_per_s);
  EXPECT_LE(four.requests_per_s, 4 * one.requests_per_s * (1 + 1e-9));
  // A step that one micro-batch holds is one.
  EXPECT_EQ(cut_step({.tokens = 100}, 4, 256).micro_batches, 1);
  EXPECT_EQ(cut_step({.tokens = 512}, 4, 256).micro_batches, 2);
  EXPECT_EQ(cut_step({.tokens = 4000}, 4, 256).micro_batches, 4);
}

// Devices of one machine that stream at once share its disk and its memory's bandwidth; each has its own link.
TEST(Pass, DevicesThatStreamShareTheMachinesTiers) {
  const MemoryTiers all = tiers_of(pair_of("nvidia"), 1), half = shared_among(all, 2);
  EXPECT_EQ(half.host_bytes, all.host_bytes / 2);
  EXPECT_EQ(half.disk->capacity_bytes, all.disk->capacity_bytes / 2);
  expect_close(half.disk->read_bytes_per_s, all.disk->read_bytes_per_s / 2);
  expect_close(half.host.bandwidth_bytes_per_s, all.host.bandwidth_bytes_per_s / 2);
  expect_close(half.host.upload_bytes_per_s, all.host.upload_bytes_per_s);
}

TEST(Pass, TheTreeIsThePrice) {
  for (const char* vendor : {"nvidia", "cpu"}) {
    ServePlan plan = streaming_pair(vendor);
    plan.stages[1].offload = offload_from({1, 2, 1});
    plan.stages[1].offload->kv = shares_of({1, 3, 0});
    plan.stages[1].offload->cpu_attention = true;
    const ServeCost cost = price_serve(plan, {});  // checks the tree by itself
    expect_close(cost.tree.value, cost.latency_s);
  }
}

}  // namespace
}  // namespace motley
