#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/plan/served.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {
namespace {

// What can be done with it, after `motley explain`.
std::string next_command(const ServePlan& plan) {
  std::vector<std::string> changes;  // that make it one that can be served
  for (const auto& reason : not_served(plan))
    if (std::find(changes.begin(), changes.end(), reason.hint) == changes.end()) changes.push_back(reason.hint);
  return changes.empty() ? "`motley serve plan.json --model DIR --local`"
                         : fmt::format("`motley simulate plan.json`; to serve it, {}", fmt::join(changes, ", "));
}

std::vector<std::string> serving_warnings(const ServePlan& plan) {
  const auto reasons = not_served(plan);
  if (reasons.empty()) return {};
  return {fmt::format("this plan can be simulated but not served: {}: {}; {}", reasons[0].place, reasons[0].what,
                      reasons[0].hint)};
}

// "plans.json" of a model: "plans-llama-2-7b.json"; of one that stands twice, with its number.
std::string file_of(const std::string& file, const std::vector<ModelDemand>& models, std::size_t index) {
  const std::filesystem::path path(file);
  const std::string name = std::filesystem::path(models[index].model.name).filename().string();
  const auto same = std::count_if(models.begin(), models.end(), [&](const ModelDemand& other) {
    return other.model.name == models[index].model.name;
  });
  const std::string number = same > 1 ? fmt::format("-{}", index + 1) : "";
  return (path.parent_path() / fmt::format("{}-{}{}{}", path.stem().string(), name, number, path.extension().string()))
      .string();
}

int plan_models_and_show(const PlanningOptions& options, const Output& output) {
  const NamedModels planned = plan_models_from_options(options, output.quiet);
  const ModelsOutcome& outcome = planned.outcome;
  if (outcome.plans.empty()) return emit_infeasible(output, outcome.reason, outcome.hint);
  Value plans = Value::array();
  std::string text;
  for (std::size_t i = 0; i < outcome.plans.size(); ++i) {
    const ServePlan& plan = outcome.plans[i];
    plans.push_back(write(plan));
    warn(serving_warnings(plan), output.quiet);
    text += fmt::format("{}\nof its demand    {:.3g}\n\n", plan_report(plan),
                        plan.predicted.requests_per_s / plan.workload.total_rate_per_s());
    if (output.file.empty()) continue;
    const std::string file = file_of(output.file, planned.models, i);
    write_file(file, to_json(write(plan), 1) + "\n");
    if (!output.quiet) fmt::print(stderr, "wrote {}\n", file);
  }
  text += fmt::format("every model can carry at least {:.3g} times its demand{}\n", outcome.share,
                      outcome.exact ? "; by the closed form, no division of the devices carries more" : "");
  emit(Output{.json = output.json, .file = "", .quiet = output.quiet},
       Value::object({{"share", outcome.share}, {"exact", outcome.exact}, {"plans", std::move(plans)}}), text);
  return 0;
}

Value front_json(const std::vector<FrontEntry>& front) {
  Value list = Value::array();
  for (const auto& entry : front) {
    Value stages = Value::array();
    for (const auto& stage : entry.stages) {
      Value devices = Value::array();
      for (const auto& device : stage.devices) devices.push_back(device);
      stages.push_back(
          Value::object({{"devices", devices}, {"layers", Value::array({stage.layers.first, stage.layers.end})}}));
    }
    list.push_back(
        Value::object({{"latency_s", entry.latency_s}, {"bottleneck_s", entry.bottleneck_s}, {"stages", stages}}));
  }
  return list;
}

std::string front_report(const std::vector<FrontEntry>& front) {
  Table table({">latency", ">bottleneck", "layers x devices"});
  for (const auto& entry : front) {
    std::vector<std::string> parts;
    for (const auto& stage : entry.stages)
      parts.push_back(fmt::format("{} x {}", stage.layers.size(), compact_devices(stage.devices)));
    table.add({human_seconds(entry.latency_s), human_seconds(entry.bottleneck_s),
               fmt::format("{}", fmt::join(parts, " > "))});
  }
  return table.render();
}

struct PlanServeOptions {
  PlanningOptions planning;
  Output output;
};

int plan_and_show(const PlanServeOptions& asked) {
  const auto& [options, output] = asked;
  check_output_folder(output);
  if (options.models.size() > 1) return plan_models_and_show(options, output);
  const ServeOutcome outcome = plan_from_options(options, output.quiet);
  if (!outcome.plan) return emit_infeasible(output, outcome.reason, outcome.hint);
  Value artefact = write(*outcome.plan);
  std::string text = plan_report(*outcome.plan);
  if (options.front) {
    artefact.set("front", front_json(outcome.front));
    text += "\nPareto front: pipelines over the whole cluster that no other beats in both figures\n" +
            front_report(outcome.front);
  }
  if (!output.json && output.file.empty())
    text += fmt::format("\nnext: save the plan with -o plan.json, then run `motley explain plan.json`, {}\n",
                        next_command(*outcome.plan));
  warn(serving_warnings(*outcome.plan), output.quiet);
  emit(output, artefact, text);
  return 0;
}

}  // namespace

void add_plan_serve(CLI::App& plan_verbs, Action& action) {
  const auto [verb, options] = add_verb<PlanServeOptions>(
      plan_verbs, action, "serve", "Plan serving: stages, degrees and layers for the devices of a cluster",
      plan_and_show);
  verb->footer(
      "example: motley plan serve --cluster examples/clusters/motivating-box.toml --model llama-2-70b -o plan.json");
  add_planning_options(*verb, options->planning,
                       "Model folder, config.json or name; repeat with --workload to share devices");
  verb->add_flag("--front", options->planning.front,
                 "Also print the Pareto front of one pipeline: latency and busiest stage");
  verb->add_option("--from", options->planning.from,
                   "Replan this plan without the devices of --without; keep untouched routes")
      ->type_name("PLAN");
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
