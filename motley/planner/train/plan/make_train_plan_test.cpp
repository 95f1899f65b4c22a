#include "motley/planner/train/plan/make_train_plan.hpp"

#include <gtest/gtest.h>

#include <set>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/planner/train/plan_train.hpp"

namespace motley {
namespace {

Cluster three_machines() {
  std::string toml = "format = \"motley.cluster/1\"\n";
  for (const char* name : {"a", "b", "c"})
    toml += "[[machine]]\nname = \"" + std::string(name) + "\"\ndevices = [\"A100\"]\n";
  return cluster_of(toml +
                    "[network]\nwithin_machine = { latency = \"5 us\", bandwidth = \"24 GB/s\" }\n"
                    "within_site = { latency = \"100 us\", bandwidth = \"1.25 GB/s\" }\n");
}

Workload short_job() {
  Workload workload;
  workload.training.emplace();
  workload.training->sequence_length = 512;
  workload.training->global_batch = 4;
  workload.training->micro_batch = 1;
  return workload;
}

TEST(TrainPlanWriter, EveryPlannerRecordsTheSameOfItsSearch) {
  const Cluster cluster = three_machines();
  const Model model = llama_of(1024, 4, 8, 8, 4096, 1000);
  for (const auto& form : train_forms()) {
    const TrainOutcome outcome =
        plan_train(cluster, model, short_job(),
                   {.cost = {.form = form}, .stages = 1, .replicas = 2, .deadline_s = 600, .seed = 7});
    ASSERT_TRUE(outcome.plan) << form << ": " << outcome.reason;
    const SearchRecord& search = outcome.plan->search;
    EXPECT_EQ(search.planner.substr(0, 6), "train/") << form;
    EXPECT_EQ(search.objective, "step") << form;
    EXPECT_EQ(search.cost, form);
    EXPECT_EQ(search.seed, 7) << form;
    ASSERT_TRUE(search.bound && search.gap) << form;
    EXPECT_NEAR(*search.gap, std::max(0.0, 1 - *search.bound / outcome.plan->predicted.iteration_s), 1e-12) << form;
    // Each device has its memory or a reason to be idle.
    std::set<std::string> accounted;
    for (const auto& [device, memory] : outcome.plan->predicted.memory_bytes) accounted.insert(device);
    for (const auto& unused : outcome.plan->unused) {
      EXPECT_FALSE(unused.reason.empty()) << form;
      EXPECT_TRUE(accounted.insert(unused.device).second) << form;
    }
    EXPECT_EQ(accounted.size(), cluster.devices.size()) << form;
  }
}

// A search proves nothing of the devices that it leaves idle, so the plan does not claim it.
TEST(TrainPlanWriter, WritesALayoutAsItIs) {
  const Cluster cluster = three_machines();
  TrainLayout layout{
      .replicas = {{.sequences = 4,
                    .micro_batches = 2,
                    .stages = {tensor_parallel_stage({0, 3}, {2}, true), tensor_parallel_stage({3, 4}, {0}, false)}}},
      .schedule = PipelineSchedule::gpipe,
      .sync = {.algorithm = SyncAlgorithm::direct}};
  TrainOptions options{.seed = 3};
  options.profile.layer_time = {{.device_type = "A100", .tp = 2, .forward_s = 1, .backward_s = 2}};
  const TrainPlan plan = make_train_plan(cluster, llama_of(1024, 4, 8, 8, 4096, 1000), short_job(), options, layout);
  EXPECT_EQ(plan.profile, options.profile);
  EXPECT_EQ(plan.schedule, layout.schedule);
  EXPECT_EQ(plan.sync, layout.sync);
  EXPECT_EQ(plan.search.seed, 3);
  ASSERT_EQ(plan.unused.size(), 1u);
  EXPECT_EQ(plan.unused[0].device, "b/0");
  EXPECT_EQ(plan.unused[0].reason, "no faster plan was found with it");
  const TrainLayout read = layout_of(plan);
  ASSERT_EQ(read.replicas.size(), 1u);
  EXPECT_EQ(read.replicas[0].sequences, 4);
  EXPECT_EQ(read.replicas[0].micro_batches, 2);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(read.replicas[0].stages[s].devices, layout.replicas[0].stages[s].devices);
    EXPECT_EQ(read.replicas[0].stages[s].layers, layout.replicas[0].stages[s].layers);
    EXPECT_EQ(read.replicas[0].stages[s].strategies, layout.replicas[0].stages[s].strategies);
  }
}

}  // namespace
}  // namespace motley
