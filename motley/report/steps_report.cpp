#include "motley/report/steps_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cost/serve/step_time.hpp"
#include "motley/report/offload_report.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/table.hpp"

namespace motley {

std::vector<StageSteps> steps_of(const ServePlan& plan, const ServeCost& cost, const CostOptions& options) {
  std::vector<StageSteps> steps;
  const StepTimes times(plan, options);
  const double context = plan.workload.mean_prompt_tokens() + plan.workload.mean_output_tokens() / 2;
  const auto window = static_cast<double>(widest_window(plan.model.arch));
  // Of this many tokens, and sequences whose cached tokens are read.
  const auto load = [&](double tokens, double sequences, double seen, double logits) {
    const double in_window = std::min(seen, window);
    return StepLoad{tokens, seen, sequences * seen, logits, in_window, sequences * in_window};
  };
  const auto full = static_cast<double>(plan.step.max_tokens), most = static_cast<double>(plan.step.max_sequences);
  for (std::size_t route = 0; route < plan.routes.size(); ++route) {
    const std::vector<Hop>& path = plan.routes[route].path;
    const std::size_t decoding = hand_over_hop(plan, plan.routes[route]).value_or(path.size());
    for (std::size_t hop = 0; hop < path.size(); ++hop) {
      const StageTime time = hop < decoding ? times.stage({route, 0, decoding}, hop)
                                            : times.stage({route, decoding, path.size() - decoding}, hop - decoding);
      steps.push_back({.route = plan.routes[route].id,
                       .stage = path[hop].stage,
                       .one_token_s = time.seconds(load(1, 1, context, 1)),
                       .sequences_s = time.seconds(load(most, most, context, most)),
                       .full_s = time.seconds(load(full, 1, full / 2, 1)),
                       .tokens_at_no_cost = time.tokens_at_no_cost()});
      if (!time.pass) continue;
      const RouteCost& priced = cost.routes.at(route);
      StreamedSteps streamed{.stage = &plan.stage(path[hop].stage),
                             .sequences = sequences_per_step(priced.batch, priced.micro_batches)};
      const auto sequences = static_cast<double>(streamed.sequences);
      const ResourceSeconds seconds = time.pass->resources(load(sequences, sequences, context, sequences));
      streamed.binding = busiest(seconds);
      streamed.step_s = std::ranges::max(seconds);
      steps.back().streamed = streamed;
    }
  }
  return steps;
}

std::string steps_report(const std::vector<StageSteps>& steps, const StepLimits& most) {
  Table table({"stage", ">one token", fmt::format(">{} sequences", most.max_sequences), ">tokens at no cost",
               fmt::format(">{} tokens", most.max_tokens)});
  for (const StageSteps& step : steps)
    table.add({step.stage, human_seconds(step.one_token_s), human_seconds(step.sequences_s),
               step.tokens_at_no_cost ? fmt::format("{:.0f}", *step.tokens_at_no_cost)
               : step.streamed        ? "streams"
                                      : "measured",
               human_seconds(step.full_s)});
  std::string text = "\nhow long a step takes\n" + table.render();
  for (const StageSteps& step : steps)
    if (const auto& streamed = step.streamed)
      text += fmt::format("{} {}: {} for a step of {} sequences, bound by {}\n", step.stage,
                          streaming_text(*streamed->stage), human_seconds(streamed->step_s), streamed->sequences,
                          resource_text(name_of(streamed->binding)));
  return text;
}

Value steps_json(const std::vector<StageSteps>& steps) {
  Value::Array entries;
  for (const StageSteps& step : steps) {
    Value entry = Value::object({{"route", step.route},
                                 {"stage", step.stage},
                                 {"one_token_s", step.one_token_s},
                                 {"max_sequences_s", step.sequences_s},
                                 {"full_step_s", step.full_s}});
    if (step.tokens_at_no_cost) entry.set("tokens_at_no_cost", *step.tokens_at_no_cost);
    if (const auto& streamed = step.streamed) {
      entry.set("sequences", streamed->sequences);
      entry.set("decode_step_s", streamed->step_s);
      entry.set("binding", std::string(name_of(streamed->binding)));
    }
    entries.push_back(std::move(entry));
  }
  return Value(std::move(entries));
}

}  // namespace motley
