// Sizes of steps, simulated side by side: the default (times of stages), fixed sizes with chunks of a prompt one after
// another and in consecutive steps, and the rule of gLLM (token throttling, SC'25), on piles of unlike devices.
//
//   steps_bench [--all]      --all: every fixed size in a row of its own
//
// Saturated: output tokens/s with three times the requests that can be served. The other figures are medians: time per
// token and to the first one at 40 % of the best fixed size's saturated rate, and to the first token of a lone request.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "motley/planner/serve/plan_serve.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

constexpr double output_tokens = 128;

struct Pile {
  std::string name, model, cluster;  // a file, or the text of one
  ServeOptions options = {};
};

std::vector<Pile> piles() {
  return {
      {"two desks", "qwen3-32b", R"(
format = "motley.cluster/1"
[[machine]]
name = "big"
devices = ["RTX 4090", "RTX 3090"]
[[machine]]
name = "old"
devices = ["RTX 2080 Ti*2", "RTX 3060"]
[network]
within_machine = { latency = "10 us", bandwidth = "12 GB/s" }
within_site = { latency = "0.2 ms", bandwidth = "1 Gbit/s" }
)"},
      {"motivating box", "llama-2-70b", "examples/clusters/motivating-box.toml"},
      {"two sites", "llama-2-70b", "examples/clusters/two-sites.toml"},
      {"16 stages",
       "llama-2-70b",
       R"(
format = "motley.cluster/1"
[[machine]]
name = "desk"
count = 16
devices = ["RTX 3060"]
[network]
within_site = { latency = "0.2 ms", bandwidth = "1 Gbit/s" }
)",
       {.use_devices = UseDevices::all, .replication = Replication::one_pipeline}},
      {"one device", "qwen3-8b", R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["A100-80"]
)"},
  };
}

struct Rule {
  std::string name;
  std::int64_t max_tokens = 512;
  MakeStepRule make = timed_steps;
};

// As many micro-batches as keep the busiest stage at work.
StepRule fixed(const PipelineHandle& pipeline, const SchedulerLimits& limits, std::int64_t chunks_under_way) {
  const StepSpan span = pipeline->span({.tokens = 1, .logits = 1});
  const auto count = static_cast<std::int64_t>(std::ceil(span.round_s / span.busiest_s - 0.05));
  const StepBudget budget{std::clamp<std::int64_t>(count, 1, limits.micro_batches), limits.max_tokens,
                          chunks_under_way};
  return [=](const StepState&) { return budget; };
}
StepRule consecutive(const PipelineHandle& pipeline, const SchedulerLimits& limits) {
  return fixed(pipeline, limits, 0);
}
StepRule one_at_a_time(const PipelineHandle& pipeline, const SchedulerLimits& limits) {
  return fixed(pipeline, limits, 1);
}

// Prefill tokens of a step: an eighth of those that wait, at most 2048 in proportion to the free part of the cache, at
// least 32; as many micro-batches as stages. Defaults of gty111/gLLM.
StepRule token_throttling(const PipelineHandle& pipeline, const SchedulerLimits&) {
  return [depth = std::ssize(pipeline->visits)](const StepState& state) {
    const double room = 2048 * std::max(0.0, (state.free_blocks - 0.05) / 0.95);
    const double tokens = std::max(std::min(static_cast<double>(state.prompt_tokens) / 8, room), 32.0);
    return StepBudget{depth, static_cast<std::int64_t>(tokens)};
  };
}

std::vector<Rule> rules() {
  std::vector<Rule> rules = {{"default"}, {"gLLM", 2048, token_throttling}};
  for (const std::int64_t tokens : {32, 64, 128, 256, 512, 1024}) {
    rules.push_back({fmt::format("{}", tokens), tokens, consecutive});
    rules.push_back({fmt::format("{}, one chunk at a time", tokens), tokens, one_at_a_time});
  }
  return rules;
}

struct Figures {
  double saturated = 0, token_s = 0, first_s = 0, alone_s = 0;
};

class Case {
 public:
  Case(ServePlan plan, double prompt_tokens, ArrivalProcess process) : plan_(std::move(plan)) {
    plan_.workload.classes = {{.name = "chat",
                               .prompt_tokens = {.mean = prompt_tokens, .trace = ""},
                               .output_tokens = {.mean = output_tokens, .trace = ""},
                               .deadline = {}}};
    plan_.workload.arrival.process = process;
    const double share = 640 / (prompt_tokens + output_tokens);  // plans are made for 512 and 128 tokens
    full_rate_per_s_ = plan_.predicted.requests_per_s * share;
    requests_ = static_cast<std::int64_t>(std::max(400.0, full_rate_per_s_ * 120));
  }

  double saturated(const Rule& rule) const {
    return run(rule, 3 * full_rate_per_s_, 3 * requests_, 0.4, true).all.tokens_per_s;
  }
  Figures at(const Rule& rule, double rate_per_s) const {
    const SimResult part = run(rule, rate_per_s, requests_, 0.1, false);
    return {.token_s = part.all.tpot_s.p50,
            .first_s = part.all.ttft_s.p50,
            .alone_s = run(rule, 0.001, 2, 0, false).all.ttft_s.p50};
  }

 private:
  SimResult run(const Rule& rule, double rate_per_s, std::int64_t requests, double measured_from, bool stop) const {
    ServePlan plan = plan_;
    plan.step.max_tokens = rule.max_tokens;
    plan.workload.classes[0].rate_per_s = rate_per_s;
    const double duration_s = static_cast<double>(requests) / rate_per_s;
    SimOptions options{.router = {.max_queue = std::int64_t{1} << 40, .step_rule = rule.make, .cost = {}},
                       .measure_from_s = measured_from * duration_s,
                       .measure_until_s = duration_s};
    if (stop) options.stop_s = duration_s;
    return simulate(plan, draw_requests(plan.workload, {.duration_s = duration_s}), options);
  }

  ServePlan plan_;
  double full_rate_per_s_ = 0;
  std::int64_t requests_ = 0;
};

void print(const std::string& rule, const Figures& figures) {
  fmt::print("| | | | {} | {:.0f} | {:.1f} ms | {:.0f} ms | {:.0f} ms |\n", rule, figures.saturated,
             1e3 * figures.token_s, 1e3 * figures.first_s, 1e3 * figures.alone_s);
}

void measure(const std::string& name, const Case& bench, double prompt_tokens, std::string_view process, bool all) {
  const std::vector<Rule> every = rules();
  std::vector<Figures> figures(every.size());
  Figures best{0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(),
               std::numeric_limits<double>::infinity()};
  for (std::size_t i = 0; i < every.size(); ++i) {
    figures[i].saturated = bench.saturated(every[i]);
    if (i >= 2) best.saturated = std::max(best.saturated, figures[i].saturated);
  }
  for (std::size_t i = 0; i < every.size(); ++i) {
    const double saturated = figures[i].saturated;
    figures[i] = bench.at(every[i], 0.4 * best.saturated / output_tokens);
    figures[i].saturated = saturated;
    if (i < 2) continue;
    best.token_s = std::min(best.token_s, figures[i].token_s);
    best.first_s = std::min(best.first_s, figures[i].first_s);
    best.alone_s = std::min(best.alone_s, figures[i].alone_s);
  }
  const Figures &now = figures[0], &gllm = figures[1];
  fmt::print("| {} | {:g} | {} | default | {:.0f} | {:.1f} ms | {:.0f} ms | {:.0f} ms |\n", name, prompt_tokens,
             process, now.saturated, 1e3 * now.token_s, 1e3 * now.first_s, 1e3 * now.alone_s);
  if (all)
    for (std::size_t i = 1; i < every.size(); ++i) print(every[i].name, figures[i]);
  fmt::print("| | | | to the best fixed | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", now.saturated / best.saturated,
             now.token_s / best.token_s, now.first_s / best.first_s, now.alone_s / best.alone_s);
  fmt::print("| | | | to gLLM's rule | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", now.saturated / gllm.saturated,
             now.token_s / gllm.token_s, now.first_s / gllm.first_s, now.alone_s / gllm.alone_s);
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  using namespace motley;
  const bool all = count > 1 && std::string_view(arguments[1]) == "--all";
  fmt::print(
      "| pile | prompt | arrivals | steps | saturated, tokens/s | per token | first token | alone |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const Pile& pile : piles()) {
    const Cluster cluster =
        pile.cluster.ends_with(".toml")
            ? read_cluster(std::string(MOTLEY_SOURCE_DIR) + "/" + pile.cluster)
            : resolve(read<ClusterDescription>(parse_toml(pile.cluster, pile.name), pile.name), pile.name);
    const ServePlan plan = plan_serve(cluster, read_model(pile.model), default_workload(), pile.options).plan.value();
    for (const double prompt_tokens : {128, 512, 4000})
      for (const ArrivalProcess process : {ArrivalProcess::constant, ArrivalProcess::poisson})
        measure(pile.name, Case(plan, prompt_tokens, process), prompt_tokens,
                process == ArrivalProcess::constant ? "constant" : "Poisson", all);
  }
}
