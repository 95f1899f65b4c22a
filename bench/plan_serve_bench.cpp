// How long planning takes: `plan_serve_bench` (Google Benchmark; one thread, everything included: collapsing, all
// batches, the front, writing and verifying the plan).
#include <benchmark/benchmark.h>

#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

void plan(benchmark::State& state, const char* cluster_file, const char* model_name, Objective objective,
          const char* form) {
  const Cluster cluster = read_cluster(std::string(MOTLEY_SOURCE_DIR "/examples/clusters/") + cluster_file);
  const Model model = read_model(model_name);
  const Workload workload = default_workload();
  ServeOptions options{.objective = objective};
  options.cost.form = form;
  std::int64_t evaluated = 0;
  for (auto _ : state) {
    const ServeOutcome outcome = plan_serve(cluster, model, workload, options);
    if (!outcome.plan) {
      state.SkipWithError(outcome.reason.c_str());
      return;
    }
    evaluated = outcome.plan->search.evaluated;
  }
  state.counters["evaluated"] = static_cast<double>(evaluated);
}

BENCHMARK_CAPTURE(plan, box_slo, "motivating-box.toml", "llama-2-70b", Objective::slo, "motley")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, box_throughput, "motivating-box.toml", "llama-2-70b", Objective::throughput, "motley")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, box_latency, "motivating-box.toml", "llama-2-70b", Objective::latency, "motley")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, box_hexgen, "motivating-box.toml", "llama-2-70b", Objective::throughput, "hexgen")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, two_sites, "two-sites.toml", "llama-2-70b", Objective::throughput, "motley")
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(plan, mixed_cloud, "mixed-cloud.toml", "llama-2-70b", Objective::throughput, "motley")
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace motley

BENCHMARK_MAIN();
