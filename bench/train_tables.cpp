#include "train_tables.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>

#include "bench/published/galvatron_search.hpp"
#include "motley/base/clock.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/planner/train/plan_train.hpp"
#include "motley/planner/train/published/grid.hpp"

namespace motley {
namespace {

struct KnownGrid {
  const char* name;
  double published;  // 0: none
  double best_seen;  // over long annealing
};
constexpr KnownGrid grids[] = {{"one-data-centre", 3.439799, 3.439799},
                               {"spot", 49.503930, 31.634160},
                               {"two-organisations", 16.086840, 16.086840},
                               {"us-regions", 34.802041, 34.802041},
                               {"worldwide", 49.218380, 49.218380},
                               {"uneven-a", 0, 56.741620},
                               {"uneven-b", 0, 58.188011},
                               {"uneven-c", 0, 62.720593}};

Workload job(std::int64_t sequences) {
  Workload workload;
  workload.training.emplace();
  workload.training->sequence_length = 2048;
  workload.training->global_batch = sequences;
  return workload;
}

// Seconds of a step by motley's own form; nothing where memory does not hold the plan.
std::optional<double> step_s(const TrainPlan& plan) {
  TrainPlan own = plan;
  own.predicted = {};
  if (!verify(own).empty()) return {};
  return price_train(own, {}).iteration_s;
}

void row(const char* name, const std::optional<double>& seconds, double joint_s) {
  fmt::print("| {} | {} | {} |\n", name, seconds ? fmt::format("{:.2f} s", *seconds) : "does not fit",
             seconds ? fmt::format("{:.2f}", *seconds / joint_s) : "");
}

Cluster only(const Cluster& cluster, const std::string& type) {
  ClusterDescription description = cluster.description;
  std::erase_if(description.machines, [&](const MachineDescription& machine) {
    return machine.devices.front().find(type) == std::string::npos;
  });
  return resolve(description, "the like devices");
}

// Eight types on up to 16 sites.
Cluster pool(int devices) {
  const char* types[] = {"A100-80*8", "H100*8", "RTX 4090*4", "RTX 3090*8",
                         "A6000*4",   "L40S*8", "A100-40*8",  "V100-32*8"};
  ClusterDescription description;
  description.name = fmt::format("{} devices", devices);
  for (int left = devices, i = 0; left > 0; ++i) {
    const std::string type = types[i % 8];
    const int count = std::min(left, type.ends_with("*4") ? 4 : 8);
    MachineDescription machine;
    machine.name = fmt::format("m{}", i);
    machine.site = fmt::format("s{}", i / 8 % 16);
    machine.devices = {fmt::format("{}*{}", type.substr(0, type.size() - 2), count)};
    description.machines.push_back(machine);
    left -= count;
  }
  description.network.within_site = LinkSpeed{.latency_s = 50e-6, .bandwidth_bytes_per_s = 12.5e9};
  description.network.between_sites = LinkSpeed{.latency_s = 5e-3, .bandwidth_bytes_per_s = 1.25e9};
  return resolve(description, "pool");
}

}  // namespace

void print_grids() {
  fmt::print(
      "| 8 x 8 grid | published | found | to the best seen | bound | seconds | random starts: found | seconds "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const auto& [name, published, best_seen] : grids) {
    const Cluster cluster = read_cluster(fmt::format("{}/examples/dtfm/{}.toml", MOTLEY_SOURCE_DIR, name));
    const GridProblem problem{
        8, 8, dtfm_pairs(cluster, {.gradient_bytes = 0.65e9, .activation_bytes = 0.47124922275543213e9}, 8)};
    auto start = Clock::now();
    const GridOutcome found = search_grid(problem, {});
    fmt::print("| {} | {} | {:.6f} | {:+.2f} % | {:.6f} | {:.2f} |", name,
               published > 0 ? fmt::format("{:.6f}", published) : "", found.best.cost_s(),
               100 * (found.best.cost_s() / best_seen - 1), found.bound_s, seconds_since(start));
    std::vector<std::string> costs, times;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      start = Clock::now();
      costs.push_back(
          fmt::format("{:.6f}", search_grid(problem, {.seed = seed, .starts = GridStarts::random}).best.cost_s()));
      times.push_back(fmt::format("{:.2f}", seconds_since(start)));
    }
    fmt::print(" {} | {} |\n", fmt::join(costs, ", "), fmt::join(times, ", "));
    std::fflush(stdout);
  }
}

void print_layouts() {
  const struct {
    const char* cluster;
    const char* model;
    double published_percent;
  } cases[] = {{"a", "llama-2-7b", 31.19},
               {"a", "llama-2-13b", 27.23},
               {"b", "llama-2-7b", 33.47},
               {"b", "llama-2-13b", 31.39},
               {"c", "llama-30b", 27.49}};
  constexpr double authors_step_s = 65.8;  // their plan of setting A, 7B, in their form, on the same tokens
  fmt::print(
      "| setting | model | published | found | ratio | step | of the authors' plan | bound | seconds | idle "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& [name, model_name, published] : cases) {
    const Cluster cluster = read_cluster(fmt::format("{}/examples/flashflex/{}.toml", MOTLEY_SOURCE_DIR, name));
    const Model model = read_model(fmt::format("{}/data/models/{}", MOTLEY_SOURCE_DIR, model_name));
    const Workload workload = read_workload(MOTLEY_SOURCE_DIR "/examples/flashflex/workload.toml");
    const TrainOutcome outcome = plan_train(cluster, model, workload, {.cost = {.form = "flashflex"}});
    if (!outcome.plan) {
      fmt::print("| {} | {} | {} |\n", name, model_name, outcome.reason);
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
    const double found = 100 * outcome.plan->predicted.mfu * working / all,
                 step_s = outcome.plan->predicted.iteration_s;
    const bool theirs = std::string_view(name) == "a" && std::string_view(model_name) == "llama-2-7b";
    fmt::print("| {} | {} | {:.2f} % | {:.2f} % | {:.2f} | {:.1f} s | {} | {:.1f} s | {:.2f} | {} |\n", name,
               model_name, published, found, found / published, step_s,
               theirs ? fmt::format("{:.2f} x as fast", authors_step_s / step_s) : "", *outcome.plan->search.bound,
               outcome.plan->search.elapsed_s, outcome.plan->unused.size());
  }
}

void print_homogeneous() {
  const GalvatronForm form(read_galvatron_profile(MOTLEY_SOURCE_DIR "/data/galvatron/llama-2-7b-8-devices.json"));
  fmt::print("| Galvatron's profile of Llama-2-7B, 8 GPUs | plan | step | seconds |\n|---|---|---|---|\n");
  for (const int batch : {16, 64}) {
    const auto start = Clock::now();
    const GalvatronOutcome outcome = search_galvatron(form, {.batch = batch, .memory_mib = 36 * 1024});
    const double seconds = seconds_since(start);
    if (!outcome.plan) continue;
    const auto recomputed = std::count_if(outcome.plan->layers.begin(), outcome.plan->layers.end(),
                                          [](const GalvatronStrategy& layer) { return layer.recompute; });
    fmt::print(
        "| 36 GB, {} samples{} | {} stages, {} micro-batches, {} of {} layers recomputed | {:.4f} s | {:.2f} |\n",
        batch, batch == 16 ? ", as shipped: 1 stage, 1 micro-batch, 20 of 32" : "", outcome.plan->stage_layers.size(),
        outcome.plan->run.micro_batches, recomputed, outcome.plan->layers.size(), outcome.plan->step_s, seconds);
  }
}

void print_views(double seconds) {
  const Cluster lab = read_cluster(MOTLEY_SOURCE_DIR "/examples/train/lab.toml");
  const Model model = read_model("llama-2-13b");
  const Workload workload = job(512);
  const auto planned = [&](const Cluster& cluster, const CostOptions& cost, std::optional<std::int64_t> stages,
                           std::optional<std::int64_t> replicas) -> std::optional<double> {
    try {
      const TrainOutcome outcome =
          plan_train(cluster, model, workload,
                     {.cost = cost, .stages = stages, .replicas = replicas, .deadline_s = seconds, .threads = 2});
      return outcome.plan ? step_s(*outcome.plan) : std::nullopt;
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
      return {};
    }
  };
  const double joint_s = planned(lab, {}, {}, {}).value();
  fmt::print(
      "Llama-2-13B, 512 sequences of 2048 tokens; 2 x 8 A100-80 at one site, 4 RTX 4090 and 8 RTX 3090 at another\n\n");
  fmt::print("| view | step | of the joint plan |\n|---|---|---|\n");
  row("joint", joint_s, joint_s);
  row("single devices in a grid (DT-FM), 7 x 4", planned(lab, {.form = "dtfm"}, 7, 4), joint_s);
  row("single devices in a grid (DT-FM), 14 x 2", planned(lab, {.form = "dtfm"}, 14, 2), joint_s);
  row("replicas of unlike stages (FlashFlex)", planned(lab, {.form = "flashflex"}, {}, {}), joint_s);
  row("like devices alone (Galvatron): the A100s", planned(only(lab, "A100"), {}, {}, {}), joint_s);
  row("no pipelines: data parallel and sharded (OSDP)", planned(lab, {}, 1, {}), joint_s);
}

void print_growth(double seconds) {
  fmt::print("\nLlama-2-70B, 4 sequences of 2048 tokens per device; a deadline of {} s\n\n", seconds);
  fmt::print(
      "| devices | planned in | step | tokens/s | gap to the bound | replicas | idle | peak memory "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const int devices : {64, 256, 1024}) {
    const TrainOutcome outcome =
        plan_train(pool(devices), read_model("llama-2-70b"), job(4 * devices), {.deadline_s = seconds, .threads = 2});
    if (!outcome.plan) {
      fmt::print("| {} | {} |\n", devices, outcome.reason);
      continue;
    }
    const TrainPlan& plan = *outcome.plan;
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    fmt::print("| {} | {:.1f} s | {:.2f} s | {:.0f} | {:.1f} % | {} | {} | {} MiB |\n", devices, plan.search.elapsed_s,
               plan.predicted.iteration_s, plan.predicted.tokens_per_s, 100 * *plan.search.gap, plan.replicas.size(),
               plan.unused.size(), usage.ru_maxrss / 1024);
    std::fflush(stdout);
  }
}

}  // namespace motley
