#include "motley/cli/explain.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/planner/serve/if_lost.hpp"
#include "motley/report/compare_report.hpp"
#include "motley/report/cost_report.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/status_report.hpp"
#include "motley/report/steps_report.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {
namespace {

std::string explanation(const ServeCost& cost, const std::string& form, int depth) {
  Table routes({"route", ">in flight", ">latency", ">first token", ">per token", ">busiest stage", ">requests/s"});
  for (const auto& route : cost.routes)
    routes.add({route.route, fmt::format("{}", route.batch), human_seconds(route.latency_s),
                human_seconds(route.first_token_s), human_seconds(route.per_token_s), human_seconds(route.bottleneck_s),
                fmt::format("{:.3g}", route.requests_per_s)});
  return fmt::format("cost form {}, {:.4g} output tokens/s\n\n{}\nwhere the latency goes\n{}", form, cost.tokens_per_s,
                     routes.render(), term_report(cost.tree, depth));
}

// The settings that count for a single step.
CostOptions overheads(const std::vector<std::string>& settings) {
  CostOptions cost = cost_options("motley", settings);
  std::erase_if(cost.settings, [](const auto& setting) { return !setting.first.ends_with("_overhead_s"); });
  return cost;
}

int explain_changes(const ServePlan& plan, const Changes& changes, const Output& output) {
  const ServeOutcome outcome = plan_changed(plan, changes);
  if (!outcome.plan) {
    emit(output, Value::object({{"status", "infeasible"}, {"reason", outcome.reason}, {"hint", outcome.hint}}),
         fmt::format("does not fit: {}\n{}", outcome.reason,
                     outcome.hint.empty() ? "" : "\nhint: " + outcome.hint + "\n"));
    return static_cast<int>(ErrorCode::negative);
  }
  const std::vector<NamedPlan<ServePlan>> plans = {{"as planned", &plan}, {"changed", &*outcome.plan}};
  emit(output, compare_json(plans),
       fmt::format("{}\nchanged: {}\n", compare_report(plans), plan_summary(*outcome.plan)));
  return 0;
}

void add_change_options(CLI::App& verb, Changes& changes) {
  const auto list = [&](const char* name, std::vector<std::string>& into, const char* help, const char* type) {
    verb.add_option(name, into, help)->type_name(type)->expected(1)->take_all();
  };
  list("--without", changes.without, "Replan without this device, as in box/3", "DEVICE");
  list("--add", changes.add, "Replan with one more machine: \"A100*2\", or \"A100*2 @ site\"", "DEVICES");
  list("--what-if", changes.what_if, "Replan changed: \"tp=8 on box\"; offload: \"disk.read=5 GB/s\"", "CHANGE");
}

}  // namespace

int explain(const ServePlan& plan, const ExplainOptions& options) {
  require_sound(plan, options.file);
  if (!options.changes.empty()) return explain_changes(plan, options.changes, options.output);
  const std::string form = options.form.empty() ? plan.search.cost : options.form;
  const ServeCost cost = price_serve(plan, cost_options(form, options.settings));
  Value json = explain_json(cost.tree);
  std::string text = explanation(cost, form, options.depth);
  const std::vector<TypeUncertainty> uncertain = uncertainties(plan, cost_options(form, options.settings));
  json.set("doubts", uncertainty_json(uncertain));
  if (form == "motley") {
    const std::vector<StageSteps> steps = steps_of(plan, cost, overheads(options.settings));
    json.set("steps", steps_json(steps));
    text += steps_report(steps, plan.step);
  }
  text += uncertainty_report(uncertain, cost.tokens_per_s);
  if (options.if_lost) {
    const Value losses = loss_impacts_value(loss_impacts(plan));
    json.set("if_lost", losses);
    text += "\n" + losses_report(losses, plan.predicted.tokens_per_s);
  }
  emit(options.output, json, text);
  return 0;
}

namespace {

int explain_any(const ExplainOptions& options) {
  const AnyPlan plan = read_plan_file(options.file);
  const bool serves = std::holds_alternative<ServePlan>(plan);
  const bool can_change = serves || std::holds_alternative<OffloadPlan>(plan);
  if ((options.if_lost && !serves) || (!options.changes.empty() && !can_change))
    throw input_error(
        "--if-lost, --without, --add and --what-if are for serving plans, --what-if for offload plans too",
        fmt::format("plan again with `{}`", kind_of(plan).command));
  return std::visit([&](const auto& one) { return explain(one, options); }, plan);
}

}  // namespace

void add_explain(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<ExplainOptions>(
      parent, action, "explain", "Show where a plan's time goes: the cost as a tree of terms", explain_any);
  verb->footer(
      "example: motley explain plan.json\n"
      "         motley explain plan.json --cost hexgen            price the plan by another form\n"
      "         motley explain plan.json --if-lost                what each loss would cost\n"
      "         motley explain plan.json --without box/3          replan without a device, and compare\n"
      "         motley explain plan.json --add \"A100*2\"          replan with two more devices\n"
      "         motley explain plan.json --what-if \"tp=2 on box\"  replan with another tensor-parallel degree\n"
      "         motley explain offload.json --what-if \"host_memory=128 GiB\"\n"
      "                                   also disk.read, disk.write, disk.capacity");
  verb->add_option("plan", options->file, "Plan file")->required()->type_name("PLAN");
  verb->add_option("--depth", options->depth, "Levels of the tree to print: 1 stages, 2 phases (default), 4 all terms")
      ->check(CLI::Range(0, 16));
  add_cost_options(
      *verb, options->form, options->settings,
      fmt::format("serving {}; training {}; genmodel", fmt::join(serve_forms(), ", "), fmt::join(train_forms(), ", ")),
      "hexgen.batch=4, dtfm.gradient_bytes=650000000");
  auto* if_lost =
      verb->add_flag("--if-lost", options->if_lost, "Also replan for the loss of each machine, and of each device");
  add_change_options(*verb, options->changes);
  for (const char* change : {"--without", "--add", "--what-if"}) verb->get_option(change)->excludes(if_lost);
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
