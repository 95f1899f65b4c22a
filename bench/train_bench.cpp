// Training plans beside published ones: figures and the time they take.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "motley/planner/train/grid.hpp"
#include "motley/planner/train/train.hpp"

namespace {

using namespace motley;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// DT-FM's 64-GPU networks, 8 stages x 8 replicas, its constants; and three uneven placements over the same regions.
void grids() {
  const struct {
    const char* name;
    double published;
  } cases[] = {{"one-data-centre", 3.439799},
               {"spot", 49.503930},
               {"two-organisations", 16.086840},
               {"us-regions", 34.802041},
               {"worldwide", 49.218380},
               {"uneven-a", 0},
               {"uneven-b", 0},
               {"uneven-c", 0}};
  fmt::print("{:<20}{:>12}{:>12}{:>12}{:>10}{:>10}{:>12}{:>10}{:>12}\n", "grid 8 x 8", "published", "found", "bound",
             "seconds", "evaluated", "random", "seconds", "to best");
  for (const auto& [name, known] : cases) {
    const Cluster cluster = read_cluster(fmt::format("{}/examples/dtfm/{}.toml", MOTLEY_SOURCE_DIR, name));
    const GridProblem problem{
        8, 8, dtfm_pairs(cluster, {.gradient_bytes = 0.65e9, .activation_bytes = 0.47124922275543213e9}, 8)};
    auto start = std::chrono::steady_clock::now();
    const GridOutcome found = search_grid(problem, {});
    const double seconds = seconds_since(start);
    fmt::print("{:<20}{:>12}{:>12.6f}{:>12.6f}{:>10.3f}{:>10}", name, known > 0 ? fmt::format("{:.6f}", known) : "",
               found.best.cost_s(), found.bound_s, seconds, found.evaluated);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      start = std::chrono::steady_clock::now();
      const GridOutcome random = search_grid(problem, {.seed = seed, .starts = GridStarts::random});
      const double took = seconds_since(start);
      std::size_t round = 0;
      while (random.trace[round] > random.trace.back()) ++round;
      fmt::print("{:>12.6f}{:>10.3f}{:>6}/{}", random.best.cost_s(), took, round + 1, random.trace.size());
    }
    fmt::print("\n");
  }
}

// FlashFlex's heterogeneous settings. The utilisation is in its unit: FLOPs with recomputation over the sum of peaks of
// all devices. The authors' plan of setting A has 32.7 % in its own cost form.
void layouts() {
  const struct {
    const char* cluster;
    const char* model;
    double published_percent;
  } cases[] = {{"a", "llama-2-7b", 31.19},
               {"a", "llama-2-13b", 27.23},
               {"b", "llama-2-7b", 33.47},
               {"b", "llama-2-13b", 31.39},
               {"c", "llama-30b", 27.49}};
  fmt::print("{:<20}{:>14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}\n", "layout", "model", "published", "found", "step s",
             "bound s", "seconds", "idle");
  for (const auto& [name, model_name, published] : cases) {
    const Cluster cluster = read_cluster(fmt::format("{}/examples/flashflex/{}.toml", MOTLEY_SOURCE_DIR, name));
    const Model model = read_model(fmt::format("{}/data/models/{}", MOTLEY_SOURCE_DIR, model_name));
    const Workload workload = read_workload(MOTLEY_SOURCE_DIR "/examples/flashflex/workload.toml");
    const TrainOutcome outcome = plan_train(cluster, model, workload, {.cost = {.form = "flashflex"}});
    if (!outcome.plan) {
      fmt::print("{:<20}{:>14} {}\n", name, model_name, outcome.reason);
      continue;
    }
    double all = 0, working = 0;
    for (std::size_t device = 0; device < cluster.devices.size(); ++device) {
      const double peak = product_flop_per_s(cluster.type_of(static_cast<int>(device)), DType::fp16);
      all += peak;
      const bool idle = std::any_of(outcome.plan->unused.begin(), outcome.plan->unused.end(),
                                    [&](const auto& unused) { return unused.device == cluster.devices[device].name; });
      working += idle ? 0 : peak;
    }
    fmt::print("{:<20}{:>14}{:>9.2f}%{:>9.2f}%{:>10.3f}{:>10.3f}{:>10.3f}{:>8}\n", name, model_name, published,
               100 * outcome.plan->predicted.mfu * working / all, outcome.plan->predicted.iteration_s,
               *outcome.plan->search.bound, outcome.plan->search.elapsed_s, outcome.plan->unused.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view which = argc > 1 ? argv[1] : "";
  if (which != "layouts") grids();
  if (which != "grids") layouts();
}
