// Asymmetric plans against symmetric ones of the same pool and against a homogeneous pool of about the same price, in
// simulation: `plan_quality [PLANNING_SECONDS [REGIME [DEADLINE_S...]]]` prints a table with the ratios that HexGen
// published next to it. `plan_quality training [PLANNING_SECONDS]` does the same for training plans.
//
// The pools are HexGen's (examples/hexgen): 58 GPUs in four regions, and 16 A100-40GB at 65.54 $/h. A symmetric plan
// has one tensor-parallel degree and one number of stages for all pipelines, with layers cut evenly; the best of all
// such plans and of all chunk sizes counts. Everybody is served by the same simulator, router and scheduler.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/planner/serve/plan_serve.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"
#include "train_tables.hpp"

namespace {

using namespace motley;

constexpr double wanted_attainment = 0.99;
constexpr std::int64_t least_requests = 1500;
constexpr double deadlines_per_run = 4;  // that a run lasts at least, so that a queue which only grows shows

// How a server steps: one request at a time, as the published runtime did, or as many as fit, as servers do today.
struct Regime {
  const char* name;
  std::int64_t max_sequences;
  std::vector<double> deadlines_s;
  std::vector<double> rates_per_s;  // at which the shortest deadline is measured
};
const std::vector<Regime> regimes = {{"one request per step", 1, {4, 8, 16}, {0.5, 1, 2, 4}},
                                     {"continuous batching", 32, {4, 8, 16, 32}, {0.5, 2, 8, 24}}};

Workload chat(double deadline_s, double rate_per_s) {
  Workload workload = read_workload(MOTLEY_SOURCE_DIR "/examples/hexgen/workload.toml");
  workload.classes[0].deadline.total_s = deadline_s;
  workload.classes[0].rate_per_s = rate_per_s;
  return workload;
}

SimResult served(const ServePlan& plan, double rate_per_s) {
  const double deadline_s = plan.workload.classes[0].deadline.total_s;
  const Workload workload = chat(deadline_s, rate_per_s);
  const auto long_enough = static_cast<std::int64_t>(deadlines_per_run * deadline_s * rate_per_s);
  return simulate(plan, draw_requests(workload, {.requests = std::max(least_requests, long_enough), .seed = 7}), {});
}

// The highest rate at which 99 % of the requests are answered in time.
double highest_rate(const ServePlan& plan) {
  double kept = 0, missed = 0.0625;
  while (missed < 1024 && served(plan, missed).all.slo_attainment >= wanted_attainment)
    kept = std::exchange(missed, 2 * missed);
  for (int i = 0; i < 6 && kept > 0; ++i) {
    const double middle = (kept + missed) / 2;
    (served(plan, middle).all.slo_attainment >= wanted_attainment ? kept : missed) = middle;
  }
  return kept;
}

// The shortest deadline that 99 % keep at a rate.
double shortest_deadline(const ServePlan& plan, double rate_per_s) {
  const SimResult result = served(plan, rate_per_s);
  return result.all.finished < result.all.requests ? 1e9 : result.all.latency_s.p99;
}

// Groups of `tp` like devices of a machine, put together in the cluster's order, site by site, `pp` to a pipeline.
std::optional<ServePlan> symmetric(const Cluster& cluster, const Model& model, const Workload& workload, int tp, int pp,
                                   const StepLimits& step) {
  ServePlan plan;
  plan.model = model;
  plan.cluster = cluster;
  plan.workload = workload;
  plan.step = step;
  std::map<std::string, std::vector<std::vector<std::string>>> groups;  // by site
  for (const auto& machine : cluster.machines) {
    std::map<int, std::vector<std::string>> open;
    for (const int device : machine.devices) {
      auto& members = open[cluster.devices[device].type];
      members.push_back(cluster.devices[device].name);
      if (static_cast<int>(members.size()) < tp) continue;
      groups[machine.site].push_back(std::exchange(members, {}));
    }
  }
  const std::int64_t layers = model.arch.layers;
  for (const auto& [site, list] : groups)
    for (std::size_t first = 0; first + static_cast<std::size_t>(pp) <= list.size();
         first += static_cast<std::size_t>(pp)) {
      ServePlan with = plan;
      Route route{.id = fmt::format("r{}", plan.routes.size()), .path = {}, .weight = 1, .batch = 64};
      for (int i = 0; i < pp; ++i) {
        Stage stage;
        stage.id = fmt::format("{}/s{}", route.id, i);
        stage.layers = {layers * i / pp, layers * (i + 1) / pp};
        stage.devices = list[first + static_cast<std::size_t>(i)];
        stage.embedding = i == 0;
        stage.head = i + 1 == pp;
        stage.weight_type = stage.kv_type = DType::fp16;
        route.path.push_back({stage.id, stage.layers});
        with.stages.push_back(std::move(stage));
      }
      with.routes.push_back(route);
      fill_kv(with, route, 256);
      if (with.stages.back().kv_tokens >= with.step.block_tokens * 64) plan = std::move(with);  // else it does not fit
    }
  if (plan.routes.empty()) return std::nullopt;
  for (auto& route : plan.routes) {
    ServePlan alone = plan;
    alone.routes = {route};
    predict(alone, {});
    route.weight = alone.predicted.requests_per_s;
  }
  return plan;
}

struct Figures {
  double rate = 0;                // highest, at the deadline
  std::vector<double> deadlines;  // shortest, at each rate
};

Figures figures_of(const ServePlan& plan, const Regime& regime) {
  Figures figures{highest_rate(plan), {}};
  for (const double rate : regime.rates_per_s) figures.deadlines.push_back(shortest_deadline(plan, rate));
  return figures;
}

void keep_best(Figures& best, const Figures& other) {
  best.rate = std::max(best.rate, other.rate);
  best.deadlines.resize(other.deadlines.size(), 1e9);
  for (std::size_t i = 0; i < other.deadlines.size(); ++i)
    best.deadlines[i] = std::min(best.deadlines[i], other.deadlines[i]);
}

Figures best_planned(const Cluster& cluster, const Model& model, const Regime& regime, double deadline_s,
                     double seconds) {
  ServeOptions options{.deadline_s = seconds, .threads = 2, .front = Front::skip};
  options.step.max_sequences = regime.max_sequences;
  Figures best;
  for (const double rate : regime.rates_per_s) {
    const ServeOutcome outcome = plan_serve(cluster, model, chat(deadline_s, rate), options);
    if (outcome.plan) keep_best(best, figures_of(*outcome.plan, regime));
  }
  return best;
}

Figures best_symmetric(const Cluster& cluster, const Model& model, const Regime& regime, double deadline_s) {
  Figures best;
  best.deadlines.resize(regime.rates_per_s.size(), 1e9);
  for (const int tp : {1, 2, 4, 8})
    for (const int pp : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16})
      for (const std::int64_t chunk : {512, 128, 64})
        if (const auto plan = symmetric(cluster, model, chat(deadline_s, 1), tp, pp,
                                        {.max_tokens = chunk, .max_sequences = regime.max_sequences}))
          keep_best(best, figures_of(*plan, regime));
  return best;
}

std::string ratio(double a, double b) { return b > 0 && a < 1e8 && b < 1e8 ? fmt::format("{:.2f}", a / b) : "-"; }

// Prints one regime's rows, and the best ratios.
void compare(const Regime& regime, double seconds) {
  const Cluster pool = read_cluster(MOTLEY_SOURCE_DIR "/examples/hexgen/full.toml");
  const Cluster cloud = read_cluster(MOTLEY_SOURCE_DIR "/examples/hexgen/homogeneous.toml");
  const Model model = read_model("llama-2-70b");
  double best_rate = 0, best_rate_symmetric = 0, best_deadline = 0, best_deadline_symmetric = 0;
  fmt::print("\n{}\n\n", regime.name);
  fmt::print(
      "| | asymmetric | symmetric, same pool | homogeneous A100 | ratio to symmetric | to homogeneous "
      "|\n|---|---|---|---|---|---|\n");
  for (const double deadline_s : regime.deadlines_s) {
    const Figures asymmetric = best_planned(pool, model, regime, deadline_s, seconds);
    const Figures even = best_symmetric(pool, model, regime, deadline_s);
    const Figures homogeneous = best_planned(cloud, model, regime, deadline_s, seconds);
    fmt::print("| requests/s, deadline {} s | {:.2f} | {:.2f} | {:.2f} | {} | {} |\n", deadline_s, asymmetric.rate,
               even.rate, homogeneous.rate, ratio(asymmetric.rate, even.rate),
               ratio(asymmetric.rate, homogeneous.rate));
    if (even.rate > 0) best_rate_symmetric = std::max(best_rate_symmetric, asymmetric.rate / even.rate);
    if (homogeneous.rate > 0) best_rate = std::max(best_rate, asymmetric.rate / homogeneous.rate);
    for (std::size_t i = 0; i < regime.rates_per_s.size(); ++i) {
      const double mine = asymmetric.deadlines[i], symmetric_s = even.deadlines[i], cloud_s = homogeneous.deadlines[i];
      fmt::print("| deadline, {} requests/s, planned for {} s | {:.2f} s | {:.2f} s | {:.2f} s | {} | {} |\n",
                 regime.rates_per_s[i], deadline_s, mine, symmetric_s, cloud_s, ratio(symmetric_s, mine),
                 ratio(cloud_s, mine));
      if (mine < 1e8 && symmetric_s < 1e8)
        best_deadline_symmetric = std::max(best_deadline_symmetric, symmetric_s / mine);
      if (mine < 1e8 && cloud_s < 1e8) best_deadline = std::max(best_deadline, cloud_s / mine);
    }
    std::fflush(stdout);
  }
  fmt::print("\n| up to | here | published (HexGen) |\n|---|---|---|\n");
  fmt::print("| rate, asymmetric over symmetric | {:.2f} | 2 |\n", best_rate_symmetric);
  fmt::print("| deadline, symmetric over asymmetric | {:.2f} | 1.8 |\n", best_deadline_symmetric);
  fmt::print("| rate, over the homogeneous pool | {:.2f} | 4 |\n", best_rate);
  fmt::print("| deadline, homogeneous over asymmetric | {:.2f} | 2.3 |\n", best_deadline);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "training") {
    print_grids();
    print_layouts();
    print_homogeneous();
    print_views(argc > 2 ? std::atof(argv[2]) : 10);
    return 0;
  }
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const std::string wanted = argc > 2 ? argv[2] : "";  // a regime's name, or none for all
  std::vector<double> deadlines_s;
  for (int i = 3; i < argc; ++i) deadlines_s.push_back(std::atof(argv[i]));
  fmt::print("Llama-2-70B, lognormal prompts of 128 tokens, 64 tokens out, Poisson arrivals, 99 % in time\n");
  for (Regime regime : regimes) {
    if (!wanted.empty() && wanted != regime.name) continue;
    if (!deadlines_s.empty()) regime.deadlines_s = deadlines_s;
    compare(regime, seconds);
  }
}
