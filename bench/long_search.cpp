// What ten seconds leave to be found: HexGen's pool of 58 GPUs planned in the default time and again for a long time,
// both simulated: `long_search [LONG_SECONDS [SECONDS [REGIME DEADLINE_S RATE_PER_S]]]`. One thread.
//
// The long search is a row of searches, each with four times the effort of the one before, until the time is over; the
// best attainment of all counts, so what chance does is on its side.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/planner/serve/plan_serve.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace {

using namespace motley;

constexpr std::int64_t least_requests = 3000;
constexpr double deadlines_per_run = 6;

struct Case {
  std::string regime;
  std::int64_t max_sequences;
  double deadline_s;
  double rate_per_s;
};

// With arrivals that no search has seen: the mean of three runs.
double attainment(const ServePlan& plan, const Case& at) {
  const auto requests =
      std::max(least_requests, static_cast<std::int64_t>(deadlines_per_run * at.deadline_s * at.rate_per_s));
  double sum = 0;
  for (const std::uint64_t seed : {101, 102, 103})
    sum +=
        simulate(plan, draw_requests(plan.workload, {.requests = requests, .seed = seed}), {}).all.slo_attainment / 3;
  return sum;
}

void compare(const Case& at, double seconds, double long_seconds) {
  const Cluster pool = read_cluster(MOTLEY_SOURCE_DIR "/examples/hexgen/full.toml");
  const Model model = read_model("llama-2-70b");
  Workload workload = read_workload(MOTLEY_SOURCE_DIR "/examples/hexgen/workload.toml");
  workload.classes[0].deadline.total_s = at.deadline_s;
  workload.classes[0].rate_per_s = at.rate_per_s;
  ServeOptions options{.deadline_s = seconds, .front = Front::skip};
  options.step.max_sequences = at.max_sequences;

  const ServeOutcome quick = plan_serve(pool, model, workload, options);
  if (!quick.plan)
    return fmt::print("| {} | {} s | {} | no plan: {} |\n", at.regime, at.deadline_s, at.rate_per_s, quick.reason);
  const double reached = attainment(*quick.plan, at);
  const double took_s = quick.plan->search.elapsed_s;

  const auto start = Clock::now();
  double best = reached, effort = 1;
  int searches = 0;
  for (; seconds_since(start) < long_seconds; ++searches, effort *= 4) {
    options.effort = effort;
    options.deadline_s = long_seconds - seconds_since(start);
    const ServeOutcome outcome = plan_serve(pool, model, workload, options);
    if (outcome.plan) best = std::max(best, attainment(*outcome.plan, at));
  }
  fmt::print("| {} | {} s | {} | {:.4f} | {:.1f} s | {:.4f} | {:.0f} s, {} searches | {:.3f} |\n", at.regime,
             at.deadline_s, at.rate_per_s, reached, took_s, best, seconds_since(start), searches, reached / best);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const double long_seconds = argc > 1 ? std::atof(argv[1]) : 600;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
  std::vector<Case> cases = {
      {"one request per step", 1, 8, 2.5}, {"continuous batching", 32, 8, 12}, {"continuous batching", 32, 16, 40}};
  if (argc > 5) {
    const std::string regime = argv[3];
    cases = {{regime, regime == cases[0].regime ? 1 : 32, std::atof(argv[4]), std::atof(argv[5])}};
  }
  fmt::print(
      "| regime | deadline | requests/s | in time | planned in | best of long search | took | ratio |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const Case& at : cases) compare(at, seconds, long_seconds);
}
