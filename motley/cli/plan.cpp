#include <fmt/format.h>

#include <algorithm>

#include "motley/cli/command.hpp"
#include "motley/cli/planning.hpp"
#include "motley/cli/rent.hpp"
#include "motley/cli/train.hpp"
#include "motley/report/plan_report.hpp"

namespace motley::cli {
namespace {

bool has_roles(const ServePlan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Stage& stage) { return stage.role != StageRole::any; });
}

int plan_and_show(const PlanningOptions& options, const Output& output) {
  check_output_folder(output);
  const ServeOutcome outcome = plan_from_options(options, output.quiet);
  if (!outcome.plan) {
    emit(Output{.json = output.json, .file = "", .quiet = output.quiet},
         Value::object({{"status", "infeasible"}, {"reason", outcome.reason}, {"hint", outcome.hint}}),
         fmt::format("does not fit: {}\n{}", outcome.reason,
                     outcome.hint.empty() ? "" : "\nhint: " + outcome.hint + "\n"));
    return static_cast<int>(ErrorCode::negative);
  }
  Value artefact = write_plan(*outcome.plan);
  std::string text = plan_report(*outcome.plan);
  if (options.front) {
    artefact.set("front", front_json(outcome.front));
    text += "\nfront: layouts of one pipeline over the whole cluster that no other beats in both figures\n" +
            front_report(outcome.front);
  }
  if (!output.json && output.file.empty())
    text +=
        fmt::format("\nnext: keep it with -o plan.json, then `motley explain plan.json`, {}\n",
                    has_roles(*outcome.plan) ? "`motley simulate plan.json`; --no-roles makes one that can be served"
                                             : "`motley serve plan.json --model DIR --local`");
  emit(output, artefact, text);
  return 0;
}

}  // namespace

void add_plan(CLI::App& parent, Action& action) {
  auto* group = parent.add_subcommand("plan", "Make a plan; touches no machine");
  group->require_subcommand(1);

  struct Options {
    PlanningOptions planning;
    Output output;
  };
  auto options = std::make_shared<Options>();
  auto* verb = group->add_subcommand("serve", "Lay a model out over the devices of a cluster for serving");
  verb->footer(
      "example: motley plan serve --cluster examples/clusters/motivating-box.toml --model llama-2-70b -o plan.json");
  add_planning_options(*verb, options->planning,
                       "What to serve: a Hugging Face folder, a config.json, or a name such as llama-2-70b");
  verb->add_flag(
      "--front", options->planning.front,
      "Also print all layouts of one pipeline over the whole cluster that no other beats in latency and bottleneck");
  verb->add_option("--from", options->planning.from,
                   "Mend this plan after the loss of the devices under --without: routes that do not touch them stay")
      ->type_name("PLAN");
  add_output_options(*verb, options->output);
  verb->callback(
      [options, &action] { action = [options] { return plan_and_show(options->planning, options->output); }; });
  add_plan_rent(*group, action);
  add_plan_train(*group, action);
}

}  // namespace motley::cli
