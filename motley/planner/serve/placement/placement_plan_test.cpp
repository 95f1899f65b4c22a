#include "motley/planner/serve/placement/placement_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cost/serve/flow.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

const std::string examples = MOTLEY_SOURCE_DIR "/examples/";

ServeOutcome plan_published(const std::string& cluster, ServeOptions options) {
  options.objective = Objective::flow;
  options.front = Front::skip;
  options.profile = read_profile(examples + "helix/profile.json");
  return plan_serve(read_cluster(examples + "helix/" + cluster), read_model("llama-2-70b"),
                    read_workload(examples + "helix/workload.toml"), options);
}

TEST(PlanForFlow, ThePublishedInstanceIsSolvedToTheBound) {
  const ServeOutcome outcome = plan_published("cluster.toml", {});
  ASSERT_TRUE(outcome.plan);
  const ServePlan& plan = *outcome.plan;
  EXPECT_TRUE(verify(plan).empty());
  const PlanFlow flow = plan_flow(plan, {});
  EXPECT_NEAR(flow.most_tokens_per_s, 2045.6, 1e-3);
  EXPECT_NEAR(flow.tokens_per_s, 2045.6, 1e-3);
  // Of 750 + 240 - 1 tokens that pass the layers, 240 come out.
  EXPECT_NEAR(plan.predicted.tokens_per_s, 2045.6 * 240 / 989, 1e-3);
  EXPECT_NEAR(plan.predicted.requests_per_s, 2045.6 / 989, 1e-6);
  EXPECT_EQ(plan.search.status, SearchStatus::optimal);
  EXPECT_NEAR(*plan.search.gap, 0, 1e-9);
  EXPECT_EQ(plan.profile, read_profile(examples + "helix/profile.json"));
}

// Slow links between sites: only several of them side by side let more through, so routes part and meet again.
void expect_shared_stages(Handover handover) {
  const Cluster cluster = read_cluster(examples + "helix/three-sites.toml");
  const Model model = read_model("llama-2-70b");
  const Workload workload = read_workload(examples + "helix/workload.toml");
  const ServeOptions options{
      .objective = Objective::flow, .profile = read_profile(examples + "helix/profile.json"), .handover = handover};
  const ServeProblem problem{cluster, model, workload, options, DType::fp16, DType::fp16, Instant::max()};
  const std::optional<ServePlan> plan = plan_placement(problem, placement_groups(problem), 3);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(verify(*plan).empty());
  EXPECT_GT(plan->routes.size(), 1u);
  EXPECT_LE(plan->routes.size(), 100u);
  const auto uses = [&](const Stage& stage) {
    return std::count_if(plan->routes.begin(), plan->routes.end(), [&](const Route& route) {
      return std::any_of(route.path.begin(), route.path.end(), [&](const Hop& hop) { return hop.stage == stage.id; });
    });
  };
  EXPECT_TRUE(std::any_of(plan->stages.begin(), plan->stages.end(), [&](const Stage& s) { return uses(s) > 1; }));
  const PlanFlow flow = plan_flow(*plan, {});
  EXPECT_GT(flow.tokens_per_s, 1.5 * 12.5e6 / 16384);
  EXPECT_LE(flow.tokens_per_s, flow.most_tokens_per_s * (1 + 1e-9));
  EXPECT_NEAR(plan->predicted.tokens_per_s, flow.output_tokens_per_s, 1e-9);
  EXPECT_LE(plan->predicted.tokens_per_s, *plan->search.bound);
}

TEST(PlanForFlow, ThreeSitesShareStagesBetweenRoutes) { expect_shared_stages(Handover::exact); }
TEST(PlanForFlow, PartialRangesVerify) { expect_shared_stages(Handover::partial); }

TEST(PlanForFlow, ADeadlineCutsTheSearchWithAPlan) {
  const ServeOutcome outcome = plan_published("three-sites.toml", {.deadline_s = 0.3});
  ASSERT_TRUE(outcome.plan);
  EXPECT_TRUE(verify(*outcome.plan).empty());
}

// Groups of one machine are nodes; nothing is lost against plans of replicas.
TEST(PlanForFlow, IsNoWorseThanReplicas) {
  const Cluster cluster = read_cluster(examples + "clusters/motivating-box.toml");
  const Model model = read_model("llama-2-70b");
  ServeOptions options{.objective = Objective::throughput, .deadline_s = 3, .front = Front::skip};
  const ServeOutcome replicas = plan_serve(cluster, model, default_workload(), options);
  options.objective = Objective::flow;
  const ServeOutcome flow = plan_serve(cluster, model, default_workload(), options);
  ASSERT_TRUE(replicas.plan && flow.plan);
  EXPECT_GE(flow.plan->predicted.tokens_per_s, plan_flow(*replicas.plan, {}).output_tokens_per_s * (1 - 1e-9));
  EXPECT_TRUE(verify(*flow.plan).empty());
}

TEST(PlanForFlow, LeavesOutWhatItIsToldTo) {
  const ServeOutcome outcome = plan_published("cluster.toml", {.deadline_s = 0.5, .excluded = {"t-3/0"}});
  ASSERT_TRUE(outcome.plan);
  ASSERT_FALSE(outcome.plan->unused.empty());
  EXPECT_EQ(outcome.plan->unused[0], (UnusedDevice{"t-3/0", "excluded by --without"}));
  EXPECT_LT(plan_flow(*outcome.plan, {}).tokens_per_s, 2045.6);
  EXPECT_GT(plan_flow(*outcome.plan, {}).tokens_per_s, 1754);
}

// A machine with four devices of which the profile knows pairs only.
TEST(PlacementGroups, FollowTheProfilesDegrees) {
  const Cluster cluster = read_cluster(examples + "clusters/mixed-cloud.toml");
  const Model model = read_model("llama-2-70b");
  const Workload workload = default_workload();
  ServeOptions options{.objective = Objective::flow};
  options.profile.layer_rate = {{"A100-40", 2, {400, 200, 100}}};
  const ServeProblem problem{cluster, model, workload, options, DType::fp16, DType::fp16, Instant::max()};
  for (const auto& built : placement_groups(problem))
    for (std::size_t i = 0; i < built.groups.size(); ++i) {
      const auto& devices = built.groups[i].devices;
      if (cluster.type_of(devices.front()).name != "A100-40") continue;
      EXPECT_EQ(devices.size(), 2u);
      EXPECT_EQ(built.problem.nodes[i].tokens_per_s, (std::vector<double>{400, 200, 100}));
    }
}

}  // namespace
}  // namespace motley
