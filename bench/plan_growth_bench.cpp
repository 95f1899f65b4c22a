// How time, memory and gap grow with the cluster: `plan_growth_bench [DEADLINE_S] [THREADS] [DEVICES...]`.
//
// Clusters of eight types of device on up to thirty sites, drawn at random from a fixed seed; Llama-2-70B, throughput.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "motley/base/random.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace {

using namespace motley;

Cluster random_cluster(int devices) {
  const std::vector<std::string> types = {"A100-80",  "A100-40",     "A6000", "A40",
                                          "RTX 4090", "RTX 3090 Ti", "L4",    "V100-16"};
  constexpr std::uint64_t seed = 1;
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t count) {
    return static_cast<std::size_t>(uniform_at(seed, draw++) * static_cast<double>(count));
  };
  ClusterDescription description;
  description.name = fmt::format("{} devices", devices);
  const std::size_t sites = static_cast<std::size_t>(std::clamp(devices / 30, 2, 30));
  const int sizes[] = {1, 2, 4, 8, 8};
  for (int placed = 0; placed < devices;) {
    const int size = std::min(devices - placed, sizes[below(5)]);
    MachineDescription machine;
    machine.name = fmt::format("m{}", description.machines.size());
    machine.site = fmt::format("site-{}", below(sites));
    machine.devices = {fmt::format("{}*{}", types[below(types.size())], size)};
    description.machines.push_back(std::move(machine));
    placed += size;
  }
  description.network.within_machine = LinkSpeed{.latency_s = 10e-6, .bandwidth_bytes_per_s = 20e9};
  description.network.within_site = LinkSpeed{.latency_s = 2e-4, .bandwidth_bytes_per_s = 1.25e9};
  description.network.between_sites = LinkSpeed{.latency_s = 30e-3, .bandwidth_bytes_per_s = 62.5e6};
  return resolve(std::move(description), "bench");
}

void plan(int devices, double deadline_s, int threads) {
  ServeOptions options{
      .objective = Objective::throughput, .deadline_s = deadline_s, .threads = threads, .front = Front::skip};
  const Cluster cluster = random_cluster(devices);
  const ServeOutcome outcome = plan_serve(cluster, read_model("llama-2-70b"), default_workload(), options);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  if (!outcome.plan) {
    fmt::print("| {} | {} |\n", devices, outcome.reason);
    return;
  }
  const auto& plan = *outcome.plan;
  fmt::print("| {} | {} | {} | {} | {:.0f} | {:.1f} % | {:.1f} s | {} MiB |\n", devices, cluster.machines.size(),
             plan.routes.size(), plan.unused.size(), plan.predicted.tokens_per_s, 100 * plan.search.gap.value_or(0),
             plan.search.elapsed_s, usage.ru_maxrss / 1024);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const double deadline_s = argc > 1 ? std::atof(argv[1]) : 30;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  std::vector<int> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {100, 300, 1000, 3000};
  fmt::print(
      "| devices | machines | pipelines | idle | tokens/s | gap | time | peak memory "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const int devices : sizes) plan(devices, deadline_s, threads);
}
