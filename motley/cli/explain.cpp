#include "motley/cli/explain.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cli/losses.hpp"
#include "motley/cli/planning.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/cost/serve/step_time.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/report/compare_report.hpp"
#include "motley/report/cost_report.hpp"
#include "motley/report/offload_report.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {
namespace {

std::string explanation(const ServeCost& cost, const std::string& form, int depth) {
  Table routes({{"route"},
                {"in flight", Align::right},
                {"latency", Align::right},
                {"first token", Align::right},
                {"per token", Align::right},
                {"busiest stage", Align::right},
                {"requests/s", Align::right}});
  for (const auto& route : cost.routes)
    routes.add({route.route, fmt::format("{}", route.batch), human_seconds(route.latency_s),
                human_seconds(route.first_token_s), human_seconds(route.per_token_s), human_seconds(route.bottleneck_s),
                fmt::format("{:.3g}", route.requests_per_s)});
  return fmt::format("cost form {}, {:.4g} output tokens/s\n\n{}\nwhere the latency goes\n{}", form, cost.tokens_per_s,
                     routes.render(), term_report(cost.tree, depth));
}

// A stage that offloads, in steps that decode so many sequences.
struct StreamedSteps {
  const Stage* stage = nullptr;
  std::int64_t sequences = 1;
  double step_s = 0;
  Resource binding = Resource::device;
};

// Of one step on each stage: what the scheduler goes by (docs/server.md).
struct StageSteps {
  std::string route, stage;
  double one_token_s = 0;
  double sequences_s = 0;  // a decode of as many sequences as a step takes
  double full_s = 0;       // a chunk of a prompt, of as many tokens
  std::optional<double> tokens_at_no_cost;
  std::optional<StreamedSteps> streamed = {};
};

std::vector<StageSteps> steps_of(const ServePlan& plan, const ServeCost& cost, const CostOptions& options) {
  std::vector<StageSteps> steps;
  const StepTimes times(plan, options);
  const double context = plan.workload.mean_prompt_tokens() + plan.workload.mean_output_tokens() / 2;
  const auto full = static_cast<double>(plan.step.max_tokens), most = static_cast<double>(plan.step.max_sequences);
  for (std::size_t route = 0; route < plan.routes.size(); ++route) {
    const std::vector<Hop>& path = plan.routes[route].path;
    const std::size_t decoding = hand_over_hop(plan, plan.routes[route]).value_or(path.size());
    for (std::size_t hop = 0; hop < path.size(); ++hop) {
      const StageTime time = hop < decoding ? times.stage({route, 0, decoding}, hop)
                                            : times.stage({route, decoding, path.size() - decoding}, hop - decoding);
      steps.push_back(
          {.route = plan.routes[route].id,
           .stage = path[hop].stage,
           .one_token_s = time.seconds({.tokens = 1, .context = context, .cached = context, .logits = 1}),
           .sequences_s = time.seconds({.tokens = most, .context = context, .cached = most * context, .logits = most}),
           .full_s = time.seconds({.tokens = full, .context = full / 2, .cached = full / 2, .logits = 1}),
           .tokens_at_no_cost = time.tokens_at_no_cost()});
      if (!time.pass) continue;
      const RouteCost& priced = cost.routes.at(route);
      StreamedSteps streamed{.stage = &plan.stage(path[hop].stage),
                             .sequences = sequences_per_step(priced.batch, priced.micro_batches)};
      const auto sequences = static_cast<double>(streamed.sequences);
      const ResourceSeconds seconds = time.pass->resources(
          {.tokens = sequences, .context = context, .cached = sequences * context, .logits = sequences});
      streamed.binding = busiest(seconds);
      streamed.step_s = std::ranges::max(seconds);
      steps.back().streamed = streamed;
    }
  }
  return steps;
}

// The settings that count for a single step.
CostOptions overheads(const std::vector<std::string>& settings) {
  CostOptions cost = cost_options("motley", settings);
  std::erase_if(cost.settings, [](const auto& setting) { return !setting.first.ends_with("_overhead_s"); });
  return cost;
}

std::string steps_report(const std::vector<StageSteps>& steps, const StepLimits& most) {
  Table table({{"stage"},
               {"one token", Align::right},
               {fmt::format("{} sequences", most.max_sequences), Align::right},
               {"tokens at no cost", Align::right},
               {fmt::format("{} tokens", most.max_tokens), Align::right}});
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

}  // namespace

int explain(const ServePlan& plan, const ExplainOptions& options) {
  require_sound(plan, options.file);
  if (!options.changes.empty()) return explain_changes(plan, options.changes, options.output);
  const std::string form = options.form.empty() ? plan.search.cost : options.form;
  const ServeCost cost = price_serve(plan, cost_options(form, options.settings));
  Value json = explain_json(cost.tree);
  std::string text = explanation(cost, form, options.depth);
  const std::vector<TypeDoubt> doubted = doubts(plan, cost_options(form, options.settings));
  json.set("doubts", doubts_json(doubted));
  if (form == "motley") {
    const std::vector<StageSteps> steps = steps_of(plan, cost, overheads(options.settings));
    json.set("steps", steps_json(steps));
    text += steps_report(steps, plan.step);
  }
  text += doubts_report(doubted, cost.tokens_per_s);
  if (options.if_lost) {
    const std::vector<Loss> losses = losses_of(plan);
    json.set("if_lost", losses_value(losses));
    text += "\n" + losses_report(losses, plan.predicted.tokens_per_s);
  }
  emit(options.output, json, text);
  return 0;
}

void add_explain(CLI::App& parent, Action& action) {
  auto options = std::make_shared<ExplainOptions>();
  auto* verb = parent.add_subcommand("explain", "Show where a plan's time goes: the cost as a tree of terms");
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
  verb->callback([options, &action] {
    action = [options] {
      const AnyPlan plan = read_plan_file(options->file);
      const bool serves = std::holds_alternative<ServePlan>(plan);
      const bool can_change = serves || std::holds_alternative<OffloadPlan>(plan);
      if ((options->if_lost && !serves) || (!options->changes.empty() && !can_change))
        throw input_error(
            "--if-lost, --without, --add and --what-if are for serving plans, --what-if for offload plans too",
            fmt::format("plan again with `{}`", kind_of(plan).command));
      return std::visit([&](const auto& one) { return explain(one, *options); }, plan);
    };
  });
}

}  // namespace motley::cli
