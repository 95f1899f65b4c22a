#include "motley/planner/serve/models.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "motley/base/random.hpp"
#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

Cluster random_cluster(std::uint64_t seed) {
  std::uint64_t draw = 0;
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(uniform_at(seed, draw++) * (high - low + 1));
  };
  std::string text = "format = \"motley.cluster/1\"\n";
  for (int machine = 0; machine < 2; ++machine) {
    text += "[[machine]]\nname = \"m" + std::to_string(machine) + "\"\ndevices = [";
    for (int i = 0; i < 2 + machine; ++i) text += (i > 0 ? ", \"t" : "\"t") + std::to_string(between(0, 1)) + "\"";
    text += "]\n";
  }
  for (int t = 0; t < 2; ++t)
    text += "[[device_type]]\nname = \"t" + std::to_string(t) + "\"\nvendor = \"nvidia\"\nmemory = \"" +
            std::to_string(between(60, 200)) + " MiB\"\nmemory_bandwidth = \"" + std::to_string(between(50, 400)) +
            " GB/s\"\nflops = { fp16 = \"" + std::to_string(between(5, 50)) + " TFLOP/s\" }\nreserve = \"8 MiB\"\n";
  return cluster_of(text + "[network]\nwithin_site = { latency = \"50 us\", bandwidth = \"1 GB/s\" }\n");
}

ModelDemand asked(std::int64_t hidden, double prompt, double output, double rate) {
  ModelDemand asked{llama_of(hidden, 3, 8, 8, 2816, 4000), workload_of(prompt, output)};
  asked.model.name = "hidden " + std::to_string(hidden);
  asked.workload.classes[0].rate_per_s = rate;
  return asked;
}

ServeOptions options() {
  return {.objective = Objective::throughput,
          .step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16},
          .stage_types = StageTypes::alike,
          .front = Front::skip,
          .max_batch = 8,
          .roles = StageRoles::both};
}

// Every assignment of devices to the two models, each planned by itself.
double best_share(const Cluster& cluster, const std::vector<ModelDemand>& models) {
  const auto count = static_cast<unsigned>(cluster.devices.size());
  double best = 0;
  for (unsigned first = 0; first < 1u << count; ++first) {
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t m = 0; m < 2 && least > best; ++m) {
      ServeOptions own = options();
      for (unsigned device = 0; device < count; ++device)
        if ((first >> device & 1u) == m) own.excluded.push_back(cluster.devices[device].name);
      if (own.excluded.size() == count) {
        least = 0;
        continue;
      }
      const auto plan = plan_serve(cluster, models[m].model, models[m].workload, own).plan;
      const double rate = plan ? plan->predicted.requests_per_s : 0;
      least = std::min(least, rate / models[m].workload.total_rate_per_s());
    }
    best = std::max(best, least);
  }
  return best;
}

TEST(Models, NoAssignmentOfDevicesServesALargerShare) {
  int planned = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Cluster cluster = random_cluster(seed);
    const std::vector<ModelDemand> models = {asked(1024, 60, 20, 1 + static_cast<double>(seed % 3)),
                                             asked(512, 100, 40, 2)};
    const double best = best_share(cluster, models);
    const ModelsOutcome outcome = plan_models(cluster, models, options());
    EXPECT_EQ(outcome.plans.empty(), best <= 0) << seed;
    if (outcome.plans.empty()) continue;
    EXPECT_TRUE(outcome.exact);
    EXPECT_NEAR(outcome.share, best, 1e-9 * best) << seed;
    ++planned;
  }
  EXPECT_GE(planned, 5);
}

TEST(Models, PlansShareNoDeviceAndSayWhoseTheOthersAre) {
  const Cluster cluster = random_cluster(3);
  const std::vector<ModelDemand> models = {asked(512, 60, 20, 1), asked(512, 100, 40, 2)};
  const ModelsOutcome outcome = plan_models(cluster, models, options());
  ASSERT_EQ(outcome.plans.size(), 2u);
  std::vector<std::string> used;
  for (const auto& plan : outcome.plans) {
    EXPECT_TRUE(verify(plan).empty());
    for (const auto& stage : plan.stages) used.insert(used.end(), stage.devices.begin(), stage.devices.end());
  }
  std::sort(used.begin(), used.end());
  EXPECT_EQ(std::adjacent_find(used.begin(), used.end()), used.end());
  EXPECT_TRUE(std::any_of(outcome.plans[0].unused.begin(), outcome.plans[0].unused.end(),
                          [](const UnusedDevice& unused) { return unused.reason == "serves hidden 512"; }));
}

// More classes than partitions can be enumerated for: whole machines are dealt out.
TEST(Models, LargeClustersAreDividedByMachines) {
  std::string text = "format = \"motley.cluster/1\"\n";
  for (int machine = 0; machine < 12; ++machine)
    text += "[[machine]]\nname = \"m" + std::to_string(machine) + "\"\ndevices = [\"A6000*" +
            std::to_string(1 + machine % 3) + "\", \"A4000*2\"]\n";
  const Cluster cluster = cluster_of(text);
  std::vector<ModelDemand> models = {asked(4096, 200, 50, 3), asked(4096, 200, 50, 1)};
  ServeOptions quick = options();
  quick.deadline_s = 4;
  const ModelsOutcome outcome = plan_models(cluster, models, quick);
  ASSERT_EQ(outcome.plans.size(), 2u);
  EXPECT_FALSE(outcome.exact);
  const double first = outcome.plans[0].predicted.requests_per_s, second = outcome.plans[1].predicted.requests_per_s;
  EXPECT_NEAR(first / second, 3, 1);
}

TEST(Models, ADemandIsNeededAndRoomForAll) {
  const Cluster cluster = random_cluster(1);
  std::vector<ModelDemand> models = {asked(512, 60, 20, 1), asked(512, 60, 20, 0)};
  EXPECT_THROW(plan_models(cluster, models, options()), Error);
  models[1] = asked(8192, 60, 20, 1);
  const ModelsOutcome outcome = plan_models(cluster, models, options());
  EXPECT_TRUE(outcome.plans.empty());
  EXPECT_NE(outcome.reason.find("hidden 8192"), std::string::npos) << outcome.reason;
}

}  // namespace
}  // namespace motley
