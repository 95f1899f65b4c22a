#include "motley/planner/train/joint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(Joint, Try) {
  const Cluster cluster = read_cluster("/tmp/mix.toml");
  const Model model = read_model("llama-2-13b");
  const Workload workload = read_workload("/tmp/train.toml");
  const TrainOutcome outcome = plan_joint(cluster, model, workload, {.deadline_s = 20, .threads = 2});
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  const TrainPlan& plan = *outcome.plan;
  fmt::print("{} s {} tokens/s mfu {} evaluated {} in {} s unused {} gap {}\n", plan.predicted.iteration_s,
             plan.predicted.tokens_per_s, plan.predicted.mfu, plan.search.evaluated, plan.search.elapsed_s,
             plan.unused.size(), *plan.search.gap);
  for (const auto& r : plan.replicas) {
    fmt::print("share {} mb {}\n", r.share, r.micro_batches);
    for (const auto& s : r.stages) {
      fmt::print("  [{},{}) {} x{}:", s.layers.first, s.layers.last, s.devices.front(), s.devices.size());
      for (const auto& t : s.strategies)
        fmt::print(" {}-{} tp{} dp{} z{} {}", t.layers.first, t.layers.last, t.tp, t.dp, (int)t.shard,
                   t.recompute ? "re" : "");
      fmt::print("\n");
    }
  }
  fmt::print("{}\n", to_json(explain_json(price_train(plan, {}).tree)));
}

}  // namespace
}  // namespace motley
