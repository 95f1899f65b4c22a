// How long simulating takes: `simulate_bench` (Google Benchmark; one thread, arrivals drawn beforehand, everything else
// included).
//
// helix/T: Llama-2-70B on the 24 machines of examples/helix, with the rates that were measured there, as one chain of
// 24 stages and steps of at most T tokens: 180 s of requests as long as the Azure conversation trace's, 1,300 tokens/s
// of prompts and outputs together. The room for keys and values is what those machines have at that number of layers;
// it is what limits the rate.
//
// shared_stages/N: the same machines in a plan whose four routes share 16 of 24 stages, conversations at 80 % of its
// flow for ten minutes: by steps of N tokens, or by time (0).
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "motley/sim/shared_stages_test.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

constexpr std::int64_t kv_tokens = 39442;  // of an A100 with eight layers, the smallest

ServePlan helix_plan(double requests_per_s) {
  ServePlan plan;
  plan.model = read_model("llama-2-70b");
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/helix/cluster.toml");
  plan.profile = read_profile(MOTLEY_SOURCE_DIR "/examples/helix/profile.json");
  plan.workload.classes.push_back({.name = "conversation",
                                   .rate_per_s = requests_per_s,
                                   .prompt_tokens = {.mean = 763, .p50 = 0, .p99 = 1911, .trace = ""},
                                   .output_tokens = {.mean = 232, .p50 = 157, .p99 = 608, .trace = ""},
                                   .deadline = {}});
  Route route{.id = "r0", .path = {}};
  const auto add_stages = [&](const std::string& machine, int count, std::int64_t layers) {
    for (int i = 0; i < count; ++i) {
      const std::int64_t first = route.path.empty() ? 0 : route.path.back().layers.end;
      const std::string device = fmt::format("{}-{}/0", machine, i);
      plan.stages.push_back({.id = device,
                             .layers = {first, first + layers},
                             .devices = {device},
                             .shares = {},
                             .embedding = first == 0,
                             .head = first + layers == plan.model.arch.layers,
                             .kv_tokens = kv_tokens});
      route.path.push_back({device, {first, first + layers}});
    }
  };
  add_stages("a", 4, 8);
  add_stages("l", 8, 3);
  add_stages("t", 12, 2);
  plan.routes.push_back(std::move(route));
  return plan;
}

void helix(benchmark::State& state) {
  constexpr double tokens_per_s = 1300, seconds = 180;
  ServePlan plan = helix_plan(tokens_per_s / (763 + 232));
  plan.step.max_tokens = state.range(0);
  const auto requests = draw_requests(plan.workload, {.duration_s = seconds});
  SimResult result;
  for (auto _ : state)
    result =
        simulate(plan, requests, {.router = {.max_queue = 1 << 20}, .measure_until_s = seconds, .stop_s = seconds});
  state.counters["events/s"] =
      benchmark::Counter(static_cast<double>(result.events), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tokens/s"] = result.all.tokens_per_s;
  state.counters["finished"] = static_cast<double>(result.all.finished);
  state.counters["KV"] = result.queues[0].kv_mean;
}

void shared_stages(benchmark::State& state) {
  constexpr double tokens_per_s = 0.8 * 1515.7, seconds = 600;
  ServePlan plan = plan_of(placements_with_shared_stages().front());
  plan.workload.classes[0].rate_per_s = tokens_per_s / (763 + 231);
  if (state.range(0) > 0) plan.step.max_tokens = state.range(0);
  const MakeStepRule rule = state.range(0) > 0 ? fixed_steps : timed_steps;
  const auto requests = draw_requests(plan.workload, {.duration_s = seconds});
  SimResult result;
  for (auto _ : state)
    result =
        simulate(plan, requests,
                 {.router = {.max_queue = 1 << 20, .step_rule = rule}, .measure_until_s = seconds, .stop_s = seconds});
  state.counters["events/s"] =
      benchmark::Counter(static_cast<double>(result.events), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tokens/s"] = result.all.tokens_per_s;
  state.counters["finished"] = static_cast<double>(result.all.finished);
}

// What a search pays for one candidate before anything happens.
void construction(benchmark::State& state) {
  const ServePlan plan = helix_plan(1);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(plan, {}, {}));
}

// One step of 1,000 running sequences, 400 tokens each, on 4 and 16 stages: what the scheduler needs to put it together
// and to take it back.
void scheduling(benchmark::State& state) {
  const auto stages = static_cast<std::size_t>(state.range(0));
  PipelineTime pipeline;
  for (std::size_t i = 0; i < stages; ++i)
    pipeline.visits.push_back({.stage = i, .time = {.ranks = {{.weights_s = 0.02, .token_s = 0.0002}}}});
  const SchedulerLimits limits{.blocks = 1 << 20, .micro_batches = state.range(0) + 1, .max_queue = 1 << 20};
  Scheduler scheduler(limits, timed_steps(std::make_shared<const PipelineTime>(pipeline), limits));
  const auto sequences = static_cast<std::uint64_t>(limits.max_sequences * limits.micro_batches);
  for (std::uint64_t id = 1; id <= std::max<std::uint64_t>(1000, sequences); ++id) scheduler.add(id, 400, 1 << 20);
  std::vector<std::uint64_t> under_way;
  const auto turn = [&] {
    while (const auto step = scheduler.next()) under_way.push_back(step->id);
    scheduler.complete(under_way.front(), {});
    under_way.erase(under_way.begin());
  };
  for (int i = 0; i < 20'000; ++i) turn();  // until all prompts that have a place are computed
  for (auto _ : state) turn();
  state.counters["running"] = static_cast<double>(scheduler.counts().running);
}

BENCHMARK(helix)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK(shared_stages)->Arg(0)->Arg(32)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK(scheduling)->Arg(4)->Arg(16)->Arg(31)->Unit(benchmark::kMicrosecond);
BENCHMARK(construction)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace motley

BENCHMARK_MAIN();
