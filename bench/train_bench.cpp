// Training plans beside published ones: figures and the time they take.
#include <fmt/format.h>

#include <chrono>

#include "motley/planner/train/grid.hpp"

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

}  // namespace

int main() { grids(); }
