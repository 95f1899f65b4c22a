#include "motley/plan/offload_plan.hpp"

#include <gtest/gtest.h>

#include "motley/base/reference_test.hpp"

namespace motley {
namespace {

constexpr const char* desk = R"(format = "motley.cluster/1"
[[machine]]
name = "desk"
devices = ["small"]
host_memory = "64 MiB"
disk = { capacity = "1 GB", read = "1 GB/s", write = "0.5 GB/s" }
[[device_type]]
name = "small"
vendor = "cpu"
memory = "10 MiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "100 GFLOP/s" }
)";

OffloadPlan desk_plan() {
  OffloadPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.cluster = resolve(read<ClusterDescription>(parse_toml(desk, "c"), "c"), "c");
  plan.workload = default_workload();
  plan.device = "desk/0";
  plan.batch = 4;
  plan.batches = 2;
  plan.kv_tokens = 640;
  plan.prompt_chunk = 12;
  plan.weights = shares_of({plan.model.arch.layers - 6, 2, 4});
  plan.kv = shares_of({0, plan.model.arch.layers, 0});
  plan.activations = shares_of({1, 1, 0});
  plan.weight_type = plan.kv_type = DType::fp32;
  plan.cpu_attention = true;
  return plan;
}

std::vector<std::string> places(const std::vector<Violation>& violations) {
  std::vector<std::string> found;
  for (const Violation& violation : violations) found.push_back(violation.place + ": " + violation.what);
  return found;
}

TEST(OffloadPlan, IsWrittenAndReadBack) {
  const OffloadPlan plan = desk_plan();
  const OffloadPlan back = read_plan<OffloadPlan>(parse_json(to_json(write(plan)), "p"), "p");
  EXPECT_EQ(back, plan);
}

TEST(OffloadPlan, RunsAsAServingPlanOfOneStage) {
  const OffloadPlan plan = desk_plan();
  EXPECT_EQ(places(verify(plan)), std::vector<std::string>{});
  const ServePlan serve = serving_plan(plan);
  EXPECT_EQ(places(verify(serve)), std::vector<std::string>{});
  EXPECT_EQ(serve.step.max_tokens, 16);
  EXPECT_EQ(serve.routes[0].batch, 8);
  const DeviceMemory memory = stage_memory(serve, serve.stages[0])[0];
  EXPECT_GT(memory.host.kv, 0);
  EXPECT_EQ(memory.host.limit, std::int64_t{64} << 20);
  EXPECT_EQ(memory.disk.limit, 1000000000);
  EXPECT_EQ(read_plan<ServePlan>(parse_json(to_json(write(serve)), "p"), "p"), serve);
}

TEST(OffloadPlan, SharesThatAreNotWholeLayersDoNotRun) {
  OffloadPlan plan = desk_plan();
  plan.weights = {0.3, 0.7, 0};
  ASSERT_EQ(verify(plan).size(), 1u);
  EXPECT_EQ(verify(plan)[0].place, "weights");
  EXPECT_THROW(serving_plan(plan), Error);
  plan.search.cost = "flexgen";
  EXPECT_TRUE(verify(plan).empty());
  plan.kv = {0.5, 0.4, 0};
  EXPECT_EQ(places(verify(plan)), std::vector<std::string>{"kv: the shares sum to 0.9, not to 1"});
}

TEST(OffloadPlan, ATierThatTheMachineLacksIsNamed) {
  OffloadPlan plan = desk_plan();
  plan.cluster.description.machines[0].disk.reset();
  ASSERT_EQ(verify(plan).size(), 1u);
  EXPECT_NE(verify(plan)[0].what.find("its machine has no `disk`"), std::string::npos) << verify(plan)[0].what;
  plan = desk_plan();
  plan.cluster.description.machines[0].host_memory_bytes = 1 << 18;
  ASSERT_EQ(verify(plan).size(), 1u);
  EXPECT_NE(verify(plan)[0].what.find("more than the host has"), std::string::npos) << verify(plan)[0].what;
}

TEST(OffloadPlan, ReferenceIsCurrent) { expect_reference_is_current("plan-offload.md", schema<OffloadPlan>().doc()); }

}  // namespace
}  // namespace motley
