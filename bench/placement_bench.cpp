// Placement by maximum flow on the two published instances of 24 machines (examples/helix): flow, bound and time on one
// thread, next to the published program's flow. `placement_bench [SEEDS]`
#include <fmt/format.h>

#include <cstdlib>

#include "motley/planner/serve/placement/placement_plan.hpp"

namespace motley {
namespace {

const std::string examples = MOTLEY_SOURCE_DIR "/examples/helix/";

void run(const std::string& cluster_file, Handover handover, std::uint64_t seed, const std::string& published) {
  const Instant start = std::chrono::steady_clock::now();
  const Cluster cluster = read_cluster(examples + cluster_file);
  const Model model = read_model("llama-2-70b");
  const Workload workload = read_workload(examples + "workload.toml");
  const ServeOptions options{.objective = Objective::flow,
                             .seed = seed,
                             .profile = read_profile(examples + "profile.json"),
                             .handover = handover};
  const ServeProblem problem{
      cluster, model, workload, options, DType::fp16, DType::fp16, start + std::chrono::seconds(10)};
  const std::vector<PlacementGroups> groups = placement_groups(problem);
  const PlacementAnswer answer =
      search_placement(groups.front().problem, groups.front().starts, {.seed = seed, .deadline = problem.deadline});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  fmt::print("{:<18} {:<8} {:>4} {:>9.2f} {:>9.2f} {:>9.2f} {:>9} {:>9} {:>8.3f}\n", cluster_file,
             handover == Handover::exact ? "exact" : "partial", seed, answer.tokens_per_s, answer.bound,
             compute_bound(groups.front().problem), published, answer.evaluated, elapsed.count());
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  using motley::Handover;
  const std::uint64_t seeds = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 3;
  fmt::print("{:<18} {:<8} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}\n", "cluster", "handover", "seed", "flow", "bound",
             "compute", "published", "tried", "seconds");
  for (const Handover handover : {Handover::exact, Handover::partial}) {
    motley::run("cluster.toml", handover, 0, "1289.56");
    for (std::uint64_t seed = 0; seed < seeds; ++seed) motley::run("three-sites.toml", handover, seed, "");
  }
}
