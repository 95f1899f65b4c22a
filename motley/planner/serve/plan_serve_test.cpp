#include "motley/planner/serve/plan_serve.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "motley/cost/form/cases_test.hpp"
#include "motley/planner/serve/pipeline/classes.hpp"
#include "motley/planner/serve/pipeline/search.hpp"
#include "motley/planner/serve/replan.hpp"
#include "motley/solve/pareto.hpp"

namespace motley {
namespace {

const CostOptions hexgen{.form = "hexgen"};

Cluster motivating_box() {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["A6000*4", "A5000*2", "A4000*2"]
link = { latency = "5 us", bandwidth = "24 GB/s" }
)");
}

// ---- acceptance check 2: case D1, against an enumeration written from the formulas alone ----

struct D1Stage {
  int machine, n, layers;
};

ParetoFront<std::vector<D1Stage>> d1_enumerated(int& candidates) {
  const double h = 4096, b = 2, in = 128, out = 32, w = 12 * h * h * b;
  const double bandwidth[] = {768e9, 448e9}, flops[] = {154.8e12, 76.7e12};
  const auto busy = [&](const D1Stage& s) {
    const double compute = out * w / (s.n * bandwidth[s.machine]) + 24 * (in + out) * h * h / (s.n * flops[s.machine]);
    const auto rounds = [&](double bytes) { return 4 * (s.n - 1) * (5e-6 + bytes / (s.n * 24e9)); };
    return s.layers * (compute + rounds(in * h * b) + out * rounds(h * b));
  };
  const auto hop = [&](const D1Stage& from, const D1Stage& to) {
    const bool inside = from.machine == to.machine;
    const double alpha = inside ? 5e-6 : 1e-4, beta = inside ? 24e9 : 1.25e9;
    return alpha + in * h * b / beta + out * (alpha + h * b / beta);
  };
  ParetoFront<std::vector<D1Stage>> front;
  std::vector<D1Stage> stages;
  std::function<void(int, int, int)> grow = [&](int left0, int left1, int layers) {
    if (layers == 0) {
      if (left0 > 0 || left1 > 0) return;
      ++candidates;
      double latency = 0, bottleneck = 0;
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const double time = busy(stages[i]) + (i + 1 < stages.size() ? hop(stages[i], stages[i + 1]) : 0);
        latency += time;
        bottleneck = std::max(bottleneck, time);
      }
      front.insert(latency, bottleneck, stages);
      return;
    }
    for (const int machine : {0, 1})
      for (const int n : {1, 2}) {
        const int left = machine == 0 ? left0 : left1;
        if (n > left) continue;
        for (int l = 1; l <= layers; ++l) {
          stages.push_back({machine, n, l});
          grow(left0 - (machine == 0 ? n : 0), left1 - (machine == 1 ? n : 0), layers - l);
          stages.pop_back();
        }
      }
  };
  grow(2, 2, 8);
  return front;
}

TEST(Acceptance, CaseD1HasThePublishedFront) {
  int candidates = 0;
  const auto expected = d1_enumerated(candidates).points();
  EXPECT_EQ(candidates, 350);
  ServeOptions options;
  options.cost = hexgen;
  const ServeOutcome outcome = plan_serve(d1_cluster(), d1_model(), d1_workload(), options);
  const std::vector<std::array<double, 4>> published = {
      {0.085480, 0.065561, 7, 1}, {0.091683, 0.056196, 6, 2}, {0.097887, 0.051058, 5, 3}};
  ASSERT_EQ(outcome.front.size(), 3u);
  ASSERT_EQ(expected.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const FrontEntry& entry = outcome.front[i];
    EXPECT_NEAR(entry.latency_s, published[i][0], 5e-7);
    EXPECT_NEAR(entry.bottleneck_s, published[i][1], 5e-7);
    EXPECT_NEAR(entry.latency_s, expected[i].first, 1e-9 * expected[i].first);
    EXPECT_NEAR(entry.bottleneck_s, expected[i].second, 1e-9 * expected[i].second);
    ASSERT_EQ(entry.stages.size(), 2u);
    double layers[2] = {0, 0};
    for (const auto& stage : entry.stages) {
      EXPECT_EQ(stage.devices.size(), 2u);
      layers[stage.devices[0].starts_with("m1/") ? 1 : 0] += static_cast<double>(stage.layers.size());
    }
    EXPECT_EQ(layers[0], published[i][2]);
    EXPECT_EQ(layers[1], published[i][3]);
  }
}

// ---- acceptance check 4: what a 16 GiB card holds of Llama-2-70B at degree 2 ----

std::int64_t a4000_layers(const std::string& reserve) {
  const Cluster cluster = cluster_of(
      "format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"A4000*2\"]\n"
      "[[device_type]]\nname = \"A4000\"\nreserve = \"" +
      reserve + "\"\n");
  const Architecture arch = read_model("llama-2-70b").arch;
  const StepLimits smallest{.max_tokens = 1, .max_sequences = 1, .block_tokens = 16};
  const TensorGroup group = make_group(cluster, arch, {0, 1}, {}, DType::fp16, DType::fp16, smallest);
  EXPECT_NEAR(static_cast<double>(group.ranks[0].blocks[0].bytes) / (1 << 30), 0.797, 0.0005);
  return most_layers_in_memory(arch, group, {}, {}, smallest);
}

TEST(Acceptance, ASixteenGigabyteCardHoldsEighteenOrNineteenLayersAndNeverTwenty) {
  EXPECT_EQ(a4000_layers("1 GiB"), 18);
  EXPECT_EQ(a4000_layers("512 MiB"), 19);
  EXPECT_EQ(a4000_layers("1 MiB"), 20) << "15.94 GiB, only without any reserve";
}

TEST(Acceptance, TheBoxNeverGivesItsSmallCardsMoreThanTheyHold) {
  for (const Objective objective : {Objective::throughput, Objective::latency}) {
    ServeOptions options;
    options.objective = objective;
    options.use_devices = UseDevices::all;
    options.stage_types = StageTypes::alike;
    const ServeOutcome outcome = plan_serve(motivating_box(), read_model("llama-2-70b"), default_workload(), options);
    ASSERT_TRUE(outcome.plan) << outcome.reason;
    std::set<std::string> used;
    for (const auto& stage : outcome.plan->stages) {
      used.insert(stage.devices.begin(), stage.devices.end());
      if (stage.devices[0] == "box/6" || stage.devices[0] == "box/7") {
        EXPECT_LE(stage.layers.size(), stage.devices.size() == 2 ? 18 : 9);
      }
    }
    EXPECT_EQ(used.size(), 8u);
    EXPECT_TRUE(verify(*outcome.plan).empty());
  }
}

// ---- collapsing ----

TEST(Classes, DevicesWithTheSameLinksAreOneClass) {
  const Cluster box = motivating_box();
  std::vector<int> all(box.devices.size());
  std::iota(all.begin(), all.end(), 0);
  const auto classes = collapse(box, all, Alike::by_links, 1);
  ASSERT_EQ(classes.size(), 3u);
  EXPECT_EQ(classes[0].units.size(), 4u);
  EXPECT_TRUE(classes[0].one_machine);
  const auto pairs = collapse(box, all, Alike::by_links, 2);
  ASSERT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs[0].units, (std::vector<Unit>{{0, 1}, {2, 3}}));

  // Single devices of one type in machines of one site are interchangeable too, but not one machine.
  const Cluster lab = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "lab"
count = 4
devices = ["RTX 4090"]
)");
  const auto one = collapse(lab, {0, 1, 2, 3}, Alike::by_links, 1);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_FALSE(one[0].one_machine);
}

TEST(Classes, ASlowLinkTellsDevicesApart) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "a", devices = ["A6000*2"] }, { name = "b", devices = ["A6000*2"] }, { name = "c", devices = ["A6000*2"] }]
link = [{ between = ["a", "c"], latency = "10 ms", bandwidth = "1 GB/s" }]
)");
  EXPECT_EQ(collapse(cluster, {0, 1, 2, 3, 4, 5}, Alike::by_links, 1).size(), 3u);
  EXPECT_EQ(collapse(cluster, {0, 1, 2, 3, 4, 5}, Alike::by_links, 2).size(), 2u) << "a and c are alike, b is not";
  EXPECT_EQ(collapse(cluster, {0, 1, 2, 3, 4, 5}, Alike::by_type, 2).size(), 1u);
}

TEST(Classes, EqualPartsAreImagesOfEachOther) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "lab"
count = 4
devices = ["RTX 4090*2", "A6000*2"]
[[machine]]
name = "box"
devices = ["A5000*5"]
)");
  for (const int parts : {2, 4, 8}) {
    const auto dealt = equal_parts(cluster, parts);
    ASSERT_EQ(dealt.size(), static_cast<std::size_t>(parts));
    std::set<int> seen;
    for (const auto& part : dealt) {
      ASSERT_EQ(part.size(), dealt[0].size());
      seen.insert(part.begin(), part.end());
      for (std::size_t i = 0; i < part.size(); ++i) {
        EXPECT_EQ(cluster.devices[part[i]].type, cluster.devices[dealt[0][i]].type);
        for (std::size_t j = 0; j < part.size(); ++j) {
          if (i != j) {
            EXPECT_EQ(cluster.link(part[i], part[j]), cluster.link(dealt[0][i], dealt[0][j]));
          }
        }
      }
    }
    EXPECT_EQ(seen.size(), dealt.size() * dealt[0].size()) << "no device twice";
  }
  EXPECT_EQ(equal_parts(cluster, 2)[0].size(), 8u + 2u) << "two machines, and two of the five";
  EXPECT_TRUE(equal_parts(cluster, 40).empty());
}

TEST(StageTableTest, SharesAreWrittenWhereHeadsDoNotDivide) {
  const Architecture arch = read_model("llama-2-70b").arch;  // 64 heads, 8 KV heads
  EXPECT_TRUE(uneven_shares(arch, 4).empty());
  EXPECT_TRUE(uneven_shares(arch, 16).empty());
  EXPECT_EQ(uneven_shares(arch, 3), (std::vector<double>{0.375, 0.375, 0.25}));
}

// ---- plans ----

TEST(PlanServe, PredictsWhatItsCostSays) {
  for (const auto& form : serve_forms())
    for (const auto& [objective, name] : enum_names<Objective>()) {
      ServeOptions options;
      options.objective = objective;
      options.cost.form = form;
      const ServeOutcome outcome = plan_serve(motivating_box(), read_model("llama-2-70b"), default_workload(), options);
      ASSERT_TRUE(outcome.plan) << name << ": " << outcome.reason;
      const ServePlan& plan = *outcome.plan;
      const ServeCost cost = price_serve(plan, options.cost);
      // Under `flow` the rate is the maximum flow: placement_test.cpp.
      if (objective == Objective::flow) continue;
      EXPECT_EQ(plan.predicted.tokens_per_s, cost.tokens_per_s);
      EXPECT_EQ(plan.predicted.latency_s, cost.latency_s);
      EXPECT_EQ(plan.predicted.bottleneck_s, cost.bottleneck_s);
      EXPECT_EQ(plan.search.cost, form);
      EXPECT_GT(plan.search.evaluated, 0);
      EXPECT_TRUE(verify(plan).empty());
    }
}

// What the search took the best candidate for is what the plan costs: table and pricing are one arithmetic.
TEST(PlanServe, TheSearchSeesThePriceOfThePlan) {
  const Cluster box = motivating_box();
  const Model model = read_model("llama-2-70b");
  const Workload workload = default_workload();
  ServeOptions options;
  options.objective = Objective::throughput;
  options.replication = Replication::one_pipeline;
  std::vector<int> devices(box.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  for (const StageTypes types : {StageTypes::alike, StageTypes::mixed}) {
    options.stage_types = types;
    const ServeProblem problem{box, model, workload, options, DType::fp16, DType::fp16, Instant::max()};
    const Candidate candidate = *search_part(problem, devices).best;
    const auto plan = plan_serve(box, model, workload, options).plan;
    ASSERT_TRUE(plan);
    const ServeCost cost = price_serve(*plan, options.cost);
    EXPECT_NEAR(cost.requests_per_s, candidate.requests_per_s, 1e-9 * cost.requests_per_s);
    EXPECT_NEAR(cost.latency_s, candidate.latency_s, 1e-9 * cost.latency_s);
    EXPECT_NEAR(cost.routes[0].first_token_s, candidate.first_token_s, 1e-9 * cost.routes[0].first_token_s);
    EXPECT_EQ(cost.routes.front().batch, candidate.batch);
    EXPECT_EQ(cost.routes[0].micro_batches, candidate.micro_batches);
  }
}

// Two machines over a slow link: what crosses it is priced by the type that is asked for, and nothing else has one.
TEST(PlanServe, CrossingsBetweenMachinesAreSentAndPricedAsAsked) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "a"
devices = ["A4000*2"]
[[machine]]
name = "b"
devices = ["A4000*2"]
[network]
within_site = { latency = "1 ms", bandwidth = "100 Mbit/s" }
)");
  const Model model = read_model("llama-2-13b");
  ServeOptions options;
  options.objective = Objective::throughput;
  options.replication = Replication::one_pipeline;
  options.use_devices = UseDevices::all;
  const auto plain = plan_serve(cluster, model, default_workload(), options).plan;
  options.crossing_type = DType::int8;
  const auto plan = plan_serve(cluster, model, default_workload(), options).plan;
  ASSERT_TRUE(plain && plan);
  EXPECT_TRUE(verify(*plan).empty());
  std::int64_t crossings = 0;
  for (const auto& route : plan->routes)
    for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
      const bool crosses =
          hop + 1 < route.path.size() && plan->stage(route.path[hop].stage).devices.front().front() !=
                                             plan->stage(route.path[hop + 1].stage).devices.front().front();
      EXPECT_EQ(route.path[hop].activation_type, crosses ? std::optional(DType::int8) : std::nullopt);
      crossings += crosses ? 1 : 0;
    }
  EXPECT_GE(crossings, 1);
  EXPECT_GT(plan->predicted.tokens_per_s, 1.5 * plain->predicted.tokens_per_s) << "the link is the bottleneck";

  // Table and pricing are one arithmetic here, too.
  const ServeProblem problem{cluster, model, default_workload(), options, DType::fp16, DType::fp16, Instant::max()};
  const Candidate candidate = *search_part(problem, {0, 1, 2, 3}).best;
  EXPECT_NEAR(plan->predicted.requests_per_s, candidate.requests_per_s, 1e-9 * candidate.requests_per_s);

  const auto again = replan_serve(*plan, {"a/0"}, {}).plan;
  ASSERT_TRUE(again);
  EXPECT_EQ(crossing_type_of(*again), DType::int8) << "as the plan before";
  EXPECT_EQ(crossing_type_of(*plain), std::nullopt);

  options.crossing_type = DType::fp16;
  EXPECT_THROW(plan_serve(cluster, model, default_workload(), options), Error);
}

TEST(PlanServe, LatencyPrefersTheFastestChainThroughputTheMostRequests) {
  ServeOptions options;
  options.objective = Objective::latency;
  const auto fast = plan_serve(motivating_box(), read_model("llama-2-70b"), default_workload(), options).plan;
  options.objective = Objective::throughput;
  const auto wide = plan_serve(motivating_box(), read_model("llama-2-70b"), default_workload(), options).plan;
  ASSERT_TRUE(fast && wide);
  EXPECT_LT(fast->predicted.latency_s, wide->predicted.latency_s);
  EXPECT_GT(wide->predicted.tokens_per_s, 10 * fast->predicted.tokens_per_s);
  EXPECT_EQ(fast->search.status, SearchStatus::optimal);
  EXPECT_EQ(fast->search.bound, fast->predicted.latency_s);
  EXPECT_EQ(fast->search.gap, 0);
}

TEST(PlanServe, SloKeepsADeadlineThatThroughputWouldBreak) {
  Workload workload = default_workload();
  ServeOptions options;
  const auto free = plan_serve(motivating_box(), read_model("llama-2-70b"), workload, options).plan;
  ASSERT_TRUE(free);
  workload.classes[0].deadline.total_s = free->predicted.latency_s * 0.75;
  const auto bound = plan_serve(motivating_box(), read_model("llama-2-70b"), workload, options).plan;
  ASSERT_TRUE(bound);
  EXPECT_LE(bound->predicted.latency_s, workload.classes[0].deadline.total_s);
  EXPECT_LT(bound->predicted.tokens_per_s, free->predicted.tokens_per_s);
  workload.classes[0].deadline.total_s = 1e-3;
  const auto least = plan_serve(motivating_box(), read_model("llama-2-70b"), workload, options).plan;
  ASSERT_TRUE(least) << "no plan keeps the deadline: the one that breaks it least";
  EXPECT_LT(least->predicted.latency_s, bound->predicted.latency_s);
}

TEST(PlanServe, EqualMachinesBecomeEqualPipelines) {
  const Cluster lab = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "lab"
count = 4
devices = ["RTX 4090*2"]
[network]
within_site = { latency = "1 ms", bandwidth = "1 Gbit/s" }
)");
  ServeOptions options;
  options.objective = Objective::throughput;
  const auto plan = plan_serve(lab, read_model("llama-2-7b"), default_workload(), options).plan;
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->routes.size() % 4, 0u);
  for (const auto& route : plan->routes) {
    EXPECT_EQ(route.weight, 1);
    std::set<std::string> machines;
    for (const auto& hop : route.path)
      for (const auto& device : plan->stage(hop.stage).devices) machines.insert(device.substr(0, device.find('/')));
    EXPECT_EQ(machines.size(), 1u) << "no pipeline crosses the network";
  }
  options.replication = Replication::one_pipeline;
  const auto one = plan_serve(lab, read_model("llama-2-7b"), default_workload(), options).plan;
  ASSERT_TRUE(one);
  EXPECT_EQ(one->routes.size(), 1u);
  EXPECT_GE(plan->predicted.tokens_per_s, one->predicted.tokens_per_s);

  // The best latency is one machine's; the other machines can have it as well.
  options = {.objective = Objective::latency};
  const auto fast = plan_serve(lab, read_model("llama-2-7b"), default_workload(), options).plan;
  ASSERT_TRUE(fast);
  EXPECT_EQ(fast->routes.size(), 4u);
  EXPECT_EQ(fast->stages[0].devices.size(), 2u);
}

TEST(PlanServe, MixedTypesShareAStageUnevenly) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "shelf"
devices = ["core", "mini*2"]
[[device_type]]
name = "core"
vendor = "cpu"
memory = "40 MiB"
memory_bandwidth = "6 GB/s"
flops = { fp16 = "30 GFLOP/s" }
[[device_type]]
name = "mini"
vendor = "cpu"
memory = "20 MiB"
memory_bandwidth = "3 GB/s"
flops = { fp16 = "15 GFLOP/s" }
)");
  ServeOptions options;
  options.objective = Objective::latency;
  options.step = {.max_tokens = 32, .max_sequences = 2, .block_tokens = 16};
  const auto plan = plan_serve(cluster, llama_of(256, 8, 8, 4, 1024, 2048), workload_of(64, 32), options).plan;
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->stages.size(), 1u);
  EXPECT_EQ(plan->stages[0].shares, (std::vector<double>{0.5, 0.25, 0.25}));
  options.stage_types = StageTypes::alike;
  const auto alike = plan_serve(cluster, llama_of(256, 8, 8, 4, 1024, 2048), workload_of(64, 32), options).plan;
  ASSERT_TRUE(alike);
  EXPECT_GT(alike->predicted.latency_s, plan->predicted.latency_s);
}

TEST(PlanServe, GroupsCrossMachinesOnlyWhenAllowed) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "a", devices = ["A6000*2"] }, { name = "b", devices = ["A6000*2"] }]
[network]
within_site = { latency = "2 us", bandwidth = "100 GB/s" }
)");
  ServeOptions options;
  options.objective = Objective::latency;
  options.use_devices = UseDevices::all;
  const auto machines_of_widest = [&] {
    const auto plan = plan_serve(cluster, read_model("llama-2-70b"), default_workload(), options).plan;
    EXPECT_TRUE(plan);
    std::size_t most = 0;
    for (const auto& stage : plan->stages) {
      std::set<std::string> machines;
      for (const auto& device : stage.devices) machines.insert(device.substr(0, 1));
      most = std::max(most, machines.size());
    }
    return most;
  };
  EXPECT_EQ(machines_of_widest(), 1u);
  options.tensor_parallel = TensorParallel::across_machines;
  EXPECT_EQ(machines_of_widest(), 2u);
}

TEST(PlanServe, IdleDevicesHaveAReason) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "near", devices = ["A100-80"] }, { name = "far", devices = ["T4"] }]
[network]
within_site = { latency = "50 ms", bandwidth = "10 MB/s" }
)");
  ServeOptions options;
  options.objective = Objective::throughput;
  const auto plan = plan_serve(cluster, read_model("llama-2-13b"), default_workload(), options).plan;
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->unused.size(), 1u);
  EXPECT_EQ(plan->unused[0].device, "far/0");
  EXPECT_THAT(plan->unused[0].reason, testing::ContainsRegex("tokens/s with 1 more T4 in use, .* tokens/s without"));
  options.use_devices = UseDevices::all;
  const auto all = plan_serve(cluster, read_model("llama-2-13b"), default_workload(), options).plan;
  ASSERT_TRUE(all);
  EXPECT_TRUE(all->unused.empty());
  EXPECT_LT(all->predicted.tokens_per_s, plan->predicted.tokens_per_s);
}

TEST(PlanServe, WhatDoesNotFitSaysByHowMuch) {
  const Cluster desk = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "desk"
devices = ["RTX 4090"]
)");
  const ServeOutcome outcome = plan_serve(desk, read_model("llama-2-70b"), default_workload(), {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::AllOf(testing::HasSubstr("more:"), testing::HasSubstr("of weights at"),
                                             testing::HasSubstr("usable on 1 x RTX 4090")));
  EXPECT_THAT(outcome.hint, testing::HasSubstr("x RTX 4090"));

  // 7 B in fp32 needs 25.1 GiB, in bf16 half of that.
  const ServeOutcome wide =
      plan_serve(desk, read_model("llama-2-7b"), default_workload(), {.weight_type = DType::fp32});
  EXPECT_FALSE(wide.plan);
  EXPECT_THAT(wide.hint, testing::HasSubstr("bf16"));
  EXPECT_THROW(plan_serve(desk, read_model("llama-2-7b"), default_workload(), {.weight_type = DType::int4}), Error);

  // Enough memory in sum, but not in whole layers.
  const Cluster crumbs = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "crumbs"
devices = ["crumb*200"]
[[device_type]]
name = "crumb"
vendor = "cpu"
memory = "96 MiB"
memory_bandwidth = "3 GB/s"
flops = { fp16 = "15 GFLOP/s" }
)");
  Model model = llama_of(4096, 32, 4, 4, 11008, 32000);  // at most 4 ranks share a block of 386 MiB, and their buffers
  const ServeOutcome split = plan_serve(crumbs, model, default_workload(), {});
  EXPECT_FALSE(split.plan);
  EXPECT_THAT(split.reason, testing::HasSubstr("of 32 layers can be placed"));
}

TEST(PlanServe, StopsAtItsDeadlineWithAPlan) {
  const Cluster lab = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "lab"
count = 3
devices = ["RTX 4090*4", "A6000*4"]
)");
  ServeOptions options;
  options.deadline_s = 0;
  options.replication = Replication::one_pipeline;
  const auto plan = plan_serve(lab, read_model("llama-2-70b"), default_workload(), options).plan;
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->search.status, SearchStatus::deadline);
  EXPECT_LT(plan->search.elapsed_s, 3);
}

}  // namespace
}  // namespace motley
