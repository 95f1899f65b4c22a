#include "motley/planner/offload/plan_changed.hpp"

#include <gmock/gmock.h>

#include "motley/base/error.hpp"
#include "motley/cost/form/cases_test.hpp"
#include "motley/planner/offload/plan_offload.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

OffloadPlan plan_on(const std::string& machine) {
  const Cluster cluster = motley::cluster_of(
      "format = \"motley.cluster/1\"\n[[machine]]\nname = \"desk\"\ndevices = [\"RTX "
      "4090\"]\n" +
      machine);
  return plan_offload(cluster, llama_of(4096, 16, 32, 32, 11008, 32000), workload_of(128, 32), {}).plan.value();
}

std::string complaint_of(const OffloadPlan& plan, const std::string& change) {
  try {
    plan_changed(plan, {change}, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(OffloadChanged, NothingChangedIsTheSamePlan) {
  const OffloadPlan plan = plan_on("host_memory = \"64 GiB\"\n");
  EXPECT_EQ(plan_changed(plan, {}, {}).plan->predicted.tokens_per_s, plan.predicted.tokens_per_s);
}

TEST(OffloadChanged, LessMemoryOfTheHostIsNeverBetter) {
  const OffloadPlan plan = plan_on("host_memory = \"64 GiB\"\n");
  const OffloadOutcome less = plan_changed(plan, {"host_memory=32 GiB"}, {});
  ASSERT_TRUE(less.plan);
  EXPECT_LE(less.plan->predicted.tokens_per_s, plan.predicted.tokens_per_s);
  EXPECT_EQ(less.plan->cluster.description.machines.at(0).host_memory_bytes, std::int64_t{32} << 30);
}

TEST(OffloadChanged, AFigureThatTheMachineDoesNotHaveIsRefused) {
  const OffloadPlan plan = plan_on("host_memory = \"64 GiB\"\n");
  EXPECT_THAT(complaint_of(plan, "speed=3"), HasSubstr("needs a figure of its machine, found \"speed=3\""));
  EXPECT_THAT(complaint_of(plan, "host_memory"), HasSubstr("needs a figure of its machine"));
  EXPECT_THAT(complaint_of(plan, "host_memory=32"), HasSubstr("must be a size above 0 B, found \"32\""));
  EXPECT_THAT(complaint_of(plan, "disk.read=5 GB/s"), HasSubstr("machine \"desk\" has no disk"));
}

}  // namespace
}  // namespace motley
