#include "motley/planner/serve/grouping/roles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "motley/base/random.hpp"
#include "motley/cost/form/cases_test.hpp"
#include "motley/planner/serve/plan_serve.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/solve/flow.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

// ---- the choice, against every assignment of roles ----

RoleProblem random_roles(std::uint64_t seed, std::size_t count) {
  std::uint64_t draw = 0;
  const auto uniform = [&](double low, double high) { return low + (high - low) * uniform_at(seed, draw++); };
  RoleProblem problem;
  for (std::size_t i = 0; i < count; ++i) {
    const double prefill = uniform(1, 20), decode = uniform(1, 20);
    problem.groups.push_back({prefill * decode / (prefill + decode) * uniform(0.5, 1), prefill, decode});
    if (uniform(0, 1) < 0.2) problem.groups.back().both = 0;
    if (uniform(0, 1) < 0.2) problem.groups.back().prefill = 0;
  }
  // Every pair has a link of its own; some are slow.
  problem.moves.assign(count, std::vector<std::vector<LinkTime>>(count));
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < count; ++j)
      problem.moves[i][j] = {{static_cast<int>(i * count + j), uniform(0, 1) < 0.5 ? 1e-3 : uniform(0.1, 1)}};
  return problem;
}

double served(const RoleProblem& problem, const std::vector<GroupRole>& roles) {
  const int count = static_cast<int>(roles.size()), source = count, sink = count + 1;
  FlowNetwork network(count + 2, source, sink, 1e-9);
  double both = 0;
  for (int i = 0; i < count; ++i) {
    const RoleRates& rates = problem.groups[i];
    if (roles[i] == GroupRole::both) both += rates.both;
    if (roles[i] == GroupRole::prefill) network.add_edge(source, i, rates.prefill);
    if (roles[i] == GroupRole::decode) network.add_edge(i, sink, rates.decode);
    for (int j = 0; j < count; ++j)
      if (roles[i] == GroupRole::prefill && roles[j] == GroupRole::decode)
        network.add_edge(i, j, 1 / problem.moves[i][j][0].seconds);
  }
  return both + network.maximise();
}

double most_served(const RoleProblem& problem, std::vector<GroupRole>& roles) {
  if (roles.size() == problem.groups.size()) return served(problem, roles);
  double most = 0;
  for (const GroupRole role : {GroupRole::both, GroupRole::prefill, GroupRole::decode}) {
    roles.push_back(role);
    most = std::max(most, most_served(problem, roles));
    roles.pop_back();
  }
  return most;
}

TEST(ChooseRoles, NoAssignmentServesMore) {
  int parted = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RoleProblem problem = random_roles(seed, 2 + seed % 4);
    std::vector<GroupRole> roles;
    const double most = most_served(problem, roles);
    const RoleChoice choice = choose_roles(problem, 10);
    EXPECT_NEAR(choice.requests_per_s, most, 5e-3 * most) << seed;  // flows too small for a route are left out
    EXPECT_LE(choice.requests_per_s, most * (1 + 1e-6)) << seed;
    EXPECT_NEAR(served(problem, choice.roles), most, 5e-3 * most) << seed;
    parted += choice.flows.empty() ? 0 : 1;
  }
  EXPECT_GE(parted, 20);
}

TEST(ChooseRoles, ALinkThatAllShareLimitsTheirSum) {
  RoleProblem problem;
  problem.groups = {{0, 10, 0}, {0, 10, 0}, {0, 0, 30}};
  problem.moves.assign(3, std::vector<std::vector<LinkTime>>(3));
  problem.moves[0][2] = problem.moves[1][2] = {{0, 0.1}};
  const RoleChoice choice = choose_roles(problem, 10);
  EXPECT_NEAR(choice.requests_per_s, 10, 1e-6);
  problem.moves[1][2] = {{1, 0.2}};
  EXPECT_NEAR(choose_roles(problem, 10).requests_per_s, 15, 1e-6);
}

// ---- plans ----

// One type computes, the other remembers: long prompts on the first, long answers from the second.
Cluster two_kinds(const std::string& bandwidth) {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "thinker"
devices = ["compute*2"]
[[machine]]
name = "keeper"
devices = ["stream*2"]
[[device_type]]
name = "compute"
vendor = "nvidia"
memory = "24 GiB"
memory_bandwidth = "300 GB/s"
flops = { fp16 = "300 TFLOP/s" }
[[device_type]]
name = "stream"
vendor = "nvidia"
memory = "24 GiB"
memory_bandwidth = "2 TB/s"
flops = { fp16 = "40 TFLOP/s" }
[network]
within_machine = { latency = "5 us", bandwidth = "50 GB/s" }
within_site = { latency = "20 us", bandwidth = ")" +
                    bandwidth + "\" }\n");
}

Model small_model() { return llama_of(4096, 16, 32, 8, 11008, 32000); }

bool has_roles(const ServePlan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Stage& stage) { return stage.role != StageRole::any; });
}

ServePlan planned(const Cluster& cluster, const Workload& workload, Objective objective, StageRoles roles) {
  const ServeOptions options{.objective = objective, .deadline_s = 300, .front = Front::skip, .roles = roles};
  return plan_serve(cluster, small_model(), workload, options).plan.value();
}

double attainment(const ServePlan& plan, double rate_scale) {
  const auto requests = draw_requests(plan.workload, {.requests = 1500, .rate_scale = rate_scale, .seed = 7});
  return simulate(plan, requests, {}).all.slo_attainment;
}

double simulated_tokens_per_s(const ServePlan& plan) {
  Workload heavy = plan.workload;
  for (auto& request : heavy.classes) request.rate_per_s = 1e4;
  ServePlan loaded = plan;
  loaded.workload = heavy;
  return simulate(loaded, draw_requests(heavy, {.requests = 1500, .seed = 3}), {.router = {.max_queue = 1 << 20}})
      .all.tokens_per_s;
}

TEST(Roles, WinWhereOneKindComputesAndTheOtherRemembers) {
  const Cluster cluster = two_kinds("25 GB/s");
  const Workload workload = workload_of(1500, 300);
  const ServePlan apart = planned(cluster, workload, Objective::throughput, StageRoles::apart_where_better);
  const ServePlan together = planned(cluster, workload, Objective::throughput, StageRoles::both);
  ASSERT_TRUE(has_roles(apart));
  EXPECT_FALSE(has_roles(together));
  EXPECT_TRUE(verify(apart).empty());
  for (const auto& stage : apart.stages) {
    const bool thinks = stage.devices[0].starts_with("thinker");
    EXPECT_NE(stage.role, thinks ? StageRole::decode : StageRole::prefill);
  }
  EXPECT_GT(apart.predicted.requests_per_s, 1.02 * together.predicted.requests_per_s);
  EXPECT_GT(simulated_tokens_per_s(apart), simulated_tokens_per_s(together));
}

TEST(Roles, AreNotChosenOverASlowLink) {
  const Cluster cluster = two_kinds("50 Mbit/s");
  const Workload workload = workload_of(1500, 300);
  EXPECT_FALSE(has_roles(planned(cluster, workload, Objective::throughput, StageRoles::apart_where_better)));
}

TEST(Roles, AreNotChosenForOneTokenOrOnRequest) {
  const Cluster cluster = two_kinds("25 GB/s");
  EXPECT_FALSE(
      has_roles(planned(cluster, workload_of(1500, 1), Objective::throughput, StageRoles::apart_where_better)));
  EXPECT_FALSE(has_roles(planned(cluster, workload_of(1500, 300), Objective::throughput, StageRoles::both)));
}

// Under deadlines the simulator decides.
TEST(Roles, UnderDeadlinesTheSimulatorDecides) {
  Workload workload = workload_of(1500, 25);
  workload.classes[0].rate_per_s = 12;
  workload.classes[0].deadline = {.first_token_s = 0.4, .per_token_s = 0.012};
  const Cluster fast = two_kinds("25 GB/s");
  const ServePlan apart = planned(fast, workload, Objective::slo, StageRoles::apart_where_better);
  const ServePlan together = planned(fast, workload, Objective::slo, StageRoles::both);
  EXPECT_TRUE(has_roles(apart));
  EXPECT_TRUE(verify(apart).empty());
  EXPECT_GT(attainment(apart, 1), 0.9);
  EXPECT_LT(attainment(together, 1), 0.1);
  // What all do together in time is not parted over a link that takes 16 s for a prompt's keys and values.
  workload.classes[0].rate_per_s = 1;
  workload.classes[0].deadline = {.first_token_s = 4, .per_token_s = 0.05};
  EXPECT_FALSE(has_roles(planned(two_kinds("50 Mbit/s"), workload, Objective::slo, StageRoles::apart_where_better)));
}

}  // namespace
}  // namespace motley
