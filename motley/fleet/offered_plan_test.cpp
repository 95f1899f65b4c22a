// From what machines offer to a plan for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/agent/gpu_rates.hpp"
#include "motley/cost/form/cases_test.hpp"
#include "motley/fleet/cluster_of.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;

// Its one card holds a part of the model; what goes up passes its slot at that rate.
MachineStatus machine_with_card(const std::string& name, const std::string& address, double upload_bytes_per_s) {
  constexpr std::int64_t memory_bytes = std::int64_t{4} << 30;
  DeviceType rates;
  rates.name = "cuda:0";
  rates.vendor = "nvidia";
  rates.memory_bandwidth_bytes_per_s = 5e11;
  rates.flop_per_s = {{"bf16", 5e13}, {"fp16", 5e13}, {"fp32", 2e13}};
  rates.efficiency = {.compute = 1, .bandwidth = 1, .basis = Basis::measured};
  rates.copies = {upload_bytes_per_s, 12e9, 11e-6};
  const OfferedDevice card{.kind = "NVIDIA RTX A6000",
                           .memory_bytes = memory_bytes,
                           .vendor = "nvidia",
                           .backend = "cuda:0",
                           .uuid = "GPU-" + name,
                           .total_bytes = memory_bytes,
                           .free_bytes = memory_bytes,
                           .rates = rates_text(rates)};
  return {name, address, {card}};
}

// The devices of the pipeline over two machines.
std::vector<std::string> pipeline_with(double left_upload_bytes_per_s, double right_upload_bytes_per_s) {
  Network network = assumed_network();
  network.within_site->bandwidth_bytes_per_s = 10e9;
  const Cluster cluster = cluster_of({machine_with_card("left", "10.0.0.5", left_upload_bytes_per_s),
                                      machine_with_card("right", "10.0.0.6", right_upload_bytes_per_s)},
                                     {}, network);
  const auto plan = plan_serve(cluster, d1_model(), workload_of(2048, 8), {.objective = Objective::latency}).plan;
  if (!plan) return {};
  std::vector<std::string> devices;
  for (const Hop& hop : plan->routes.front().path) devices.push_back(plan->stage(hop.stage).devices.front());
  return devices;
}

TEST(OfferedPlan, ACardBehindOneLaneComesFirst) {
  EXPECT_THAT(pipeline_with(12e9, 0.5e9), ElementsAre("right/0", "left/0"));
  EXPECT_THAT(pipeline_with(0.5e9, 12e9), ElementsAre("left/0", "right/0"));
}

}  // namespace
}  // namespace motley
