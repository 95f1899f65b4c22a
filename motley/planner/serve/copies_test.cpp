// Copies between a card and its host in what is planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/cost/form/cases_test.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;

// The devices of a pipeline over two cards, of which `slow`'s riser brings rows up at 0.5 GB/s.
std::vector<std::string> chain_with(const std::string& slow) {
  const auto host = [&](const std::string& machine) {
    return "[[machine]]\nname = \"" + machine + "\"\ndevices = [\"card\"]\nhost = { upload = \"" +
           (machine == slow ? "0.5 GB/s" : "12 GB/s") + "\", download = \"12 GB/s\" }\n";
  };
  const Cluster cluster = cluster_of("format = \"motley.cluster/1\"\n" + host("a") + host("b") + R"(
[network]
within_site = { latency = "20 us", bandwidth = "10 GB/s" }
[[device_type]]
name = "card"
vendor = "nvidia"
memory = "3 GiB"
memory_bandwidth = "500 GB/s"
flops = { fp16 = "50 TFLOP/s" }
reserve = "256 MiB"
)");
  const auto plan = plan_serve(cluster, d1_model(), workload_of(2048, 8), {.objective = Objective::latency}).plan;
  if (!plan) return {};
  std::vector<std::string> devices;
  for (const Hop& hop : plan->routes.front().path) devices.push_back(plan->stage(hop.stage).devices.front());
  return devices;
}

TEST(Copies, ASlowWayIntoACardPutsItFirst) {
  EXPECT_THAT(chain_with("b"), ElementsAre("b/0", "a/0"));
  EXPECT_THAT(chain_with("a"), ElementsAre("a/0", "b/0"));
}

}  // namespace
}  // namespace motley
