// Steps of plans whose routes share stages, simulated: the default against fixed sizes, and the flow that the plan is
// predicted to carry next to what is carried under three times as many requests.
//
//   shared_stages [NAME]
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <string>

#include "motley/cost/serve/flow.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/sim/shared_stages_test.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

constexpr double saturated = 3;

struct Run {
  SimResult result;
  double processor_s = 0;
};

Run run(ServePlan plan, double rate_per_s, std::int64_t max_tokens, const MakeStepRule& rule) {
  plan.step.max_tokens = max_tokens;
  plan.workload.classes[0].rate_per_s = rate_per_s;
  const double duration_s = std::max(900.0, 2000 / rate_per_s);
  const auto requests = draw_requests(plan.workload, {.duration_s = duration_s});
  const std::clock_t start = std::clock();
  SimResult result = simulate(plan, requests,
                              {.router = {.max_queue = std::int64_t{1} << 40, .step_rule = rule, .cost = {}},
                               .measure_from_s = 0.4 * duration_s,
                               .measure_until_s = duration_s,
                               .stop_s = duration_s});
  return {std::move(result), static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC};
}

std::size_t shared_stages(const ServePlan& plan) {
  std::set<std::string> seen, shared;
  for (const Route& route : plan.routes)
    for (const Hop& hop : route.path)
      if (!seen.insert(hop.stage).second) shared.insert(hop.stage);
  return shared.size();
}

// What the busiest stage passes on, of what the plan's bottleneck can: measured rates are those of all layers.
double carried(const SimResult& result) {
  double most = 0;
  for (const StageUse& stage : result.stages) most = std::max(most, stage.use);
  return most;
}

void measure(const SharedStages& placement) {
  const ServePlan plan = plan_of(placement);
  const bool measured = !placement.rates.empty();
  const double predicted = measured ? plan_flow(plan, {}).output_tokens_per_s : price_serve(plan, {}).tokens_per_s;
  const double per_s = predicted / placement.output_tokens;
  double best = 0, best_saturated = 0, fixed_s = 0;
  std::int64_t best_size = 0;
  for (const std::int64_t tokens : {16, 32, 64, 128, 256, 512}) {
    const Run at_load = run(plan, placement.load * per_s, tokens, fixed_steps);
    if (tokens == 32) fixed_s = at_load.processor_s;
    best_saturated =
        std::max(best_saturated, run(plan, saturated * per_s, tokens, fixed_steps).result.all.tokens_per_s);
    if (at_load.result.all.tokens_per_s <= best) continue;
    best = at_load.result.all.tokens_per_s;
    best_size = tokens;
  }
  const Run now = run(plan, placement.load * per_s, 512, timed_steps);
  const SimResult full = run(plan, saturated * per_s, 512, timed_steps).result;
  const RequestSummary& all = now.result.all;
  fmt::print(
      "| {} | {} | {} of {} | {} | {:.2f} | {:.0f} ({}) | {:.0f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} s | {:.2f} s |\n",
      placement.name, measured ? "measured" : "model", shared_stages(plan), plan.stages.size(), plan.routes.size(),
      placement.load, best, best_size, all.tokens_per_s, all.tokens_per_s / best,
      full.all.tokens_per_s / best_saturated, measured ? carried(full) : full.all.tokens_per_s / predicted,
      now.processor_s, fixed_s);
  std::fflush(stdout);
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  const std::string wanted = count > 1 ? arguments[1] : "";
  fmt::print(
      "| placement | rates | shared stages | routes | load | best fixed, tokens/s (size) | default | to the best fixed "
      "| "
      "saturated | of the predicted flow | simulated in | fixed 32 |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const motley::SharedStages& placement : motley::placements_with_shared_stages())
    if (placement.name.find(wanted) != std::string::npos) motley::measure(placement);
}
