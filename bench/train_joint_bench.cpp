// The training planner on pools that mix everything: beside each published view applied alone, and as the cluster
// grows. `train_joint_bench [PLANNING_SECONDS]` prints two tables; every plan is priced event by event by the same
// form.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <optional>
#include <set>

#include "motley/planner/train/train.hpp"

namespace {

using namespace motley;

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

void views(double seconds) {
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

void growth(double seconds) {
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

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 30;
  views(seconds);
  growth(2 * seconds);
}
