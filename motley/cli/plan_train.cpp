#include "motley/cli/plan_train.hpp"

#include <fmt/format.h>

#include "motley/cli/explain.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/planner/train/plan_chain.hpp"
#include "motley/report/chain_report.hpp"
#include "motley/report/cost_report.hpp"

namespace motley::cli {
namespace {

constexpr const char* train_examples =
    "examples:\n"
    "  replicas, stages, layers and strategies for a whole cluster:\n"
    "    motley plan train --cluster examples/train/lab.toml --model llama-2-13b --workload examples/train/job.toml\n"
    "  a grid of single devices, priced by DT-FM's model with given volumes:\n"
    "    motley plan train --cluster examples/dtfm/worldwide.toml --model opt-1.3b --workload "
    "examples/dtfm/workload.toml \\\n"
    "      --cost dtfm --stages 8 --replicas 8 --set dtfm.gradient_bytes=650000000\n"
    "  replicas of unlike stages, priced by FlashFlex's model:\n"
    "    motley plan train --cluster examples/flashflex/a.toml --model llama-2-7b --workload "
    "examples/flashflex/workload.toml \\\n"
    "      --cost flashflex\n"
    "  one strategy chain, and its memory-time Pareto front:\n"
    "    motley plan train --chain examples/chain/layers.json --front";

std::string front_text(const ChainOutcome& outcome) {
  std::string text =
      "\nPareto front: choices that no other beats in both figures\n" + chain_front_report(outcome.front);
  if (outcome.front_gap_s > 0)
    text += fmt::format("each point is within {:.3g} s of the optimum\n", outcome.front_gap_s);
  return text;
}

int chain_infeasible(const TrainPlanOptions& options, const ChainOutcome& outcome) {
  Value answer = Value::object({{"status", "infeasible"},
                                {"reason", outcome.reason},
                                {"hint", outcome.hint},
                                {"site", outcome.shortage.site},
                                {"site_least_bytes", outcome.shortage.site_least_bytes},
                                {"least_bytes", outcome.shortage.least_bytes}});
  std::string text = fmt::format("does not fit: {}\n\nhint: {}\n", outcome.reason, outcome.hint);
  if (options.front) {
    Value front = Value::array();
    for (const auto& point : outcome.front) front.push_back(write(point));
    answer.set("front", std::move(front));
    if (outcome.front_gap_s > 0) answer.set("front_gap_s", outcome.front_gap_s);
    text += front_text(outcome);
  }
  emit(Output{.json = options.output.json, .file = "", .quiet = options.output.quiet}, answer, text);
  return static_cast<int>(ErrorCode::negative);
}

int plan_chain_and_show(const TrainPlanOptions& options) {
  check_output_folder(options.output);
  const ChainOutcome outcome =
      plan_chain(read_chain(options.chain), {.tolerance = options.tolerance,
                                             .deadline_s = parse_seconds_option(options.deadline, "--deadline"),
                                             .seed = options.seed,
                                             .front = options.front ? ChainFrontWanted::yes : ChainFrontWanted::no});
  if (!outcome.plan) return chain_infeasible(options, outcome);
  std::string text = chain_report(*outcome.plan);
  if (options.front) text += front_text(outcome);
  emit(options.output, write(*outcome.plan), text);
  return 0;
}

int plan_and_show(const TrainPlanOptions& options) {
  if (!options.chain.empty()) return plan_chain_and_show(options);
  for (const auto& [name, value] : {std::pair("--cluster", &options.cluster), std::pair("--model", &options.model),
                                    std::pair("--workload", &options.workload)})
    if (value->empty())
      throw input_error(fmt::format("{} is missing", name),
                        "give --cluster, --model and --workload, or --chain FILE for one strategy chain");
  return plan_train_and_show(options);
}

}  // namespace

int explain(const ChainPlan& plan, const ExplainOptions& options) {
  require_sound(verify(plan), options.file);
  const Term tree = explain_chain(plan);
  emit(options.output, explain_json(tree), chain_report(plan) + "\nwhere the time goes\n" + term_report(tree, 2));
  return 0;
}

void add_plan_train(CLI::App& plan_verbs, Action& action) {
  const auto [verb, options] = add_verb<TrainPlanOptions>(
      plan_verbs, action, "train", "Plan training: replicas, stages, layers, and a strategy for each layer",
      plan_and_show);
  verb->footer(train_examples);
  verb->add_option("--cluster", options->cluster, "Cluster file: devices, machines and links (motley.cluster/1)")
      ->type_name("FILE");
  verb->add_option("--model", options->model,
                   "Folder, config.json, OWNER/NAME on the hub, or a name such as llama-2-70b")
      ->type_name("MODEL");
  verb->add_option("--workload", options->workload, "Workload file with a [training] table (motley.workload/1)")
      ->type_name("FILE");
  verb->add_option("--profile", options->profile, "Profile: measured layer times and link rates (motley.profile/1)")
      ->type_name("FILE");
  verb->add_option("--stages", options->stages, "Number of stages of every pipeline (default: the planner chooses)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{4096}));
  verb->add_option("--replicas", options->replicas, "Number of pipelines (default: the planner chooses)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}));
  add_cost_options(*verb, options->cost, options->settings,
                   fmt::format("{} (default motley)", fmt::join(train_forms(), ", ")), "dtfm.gradient_bytes=650000000");
  verb->add_option("--chain", options->chain, "Solve this strategy chain instead (motley.chain/1)")->type_name("FILE");
  verb->add_flag("--front", options->front, "With --chain: also print the memory-time Pareto front");
  verb->add_option("--tolerance", options->tolerance,
                   "Stop at a plan within this relative gap of the optimum (default 0)")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--seed", options->seed, "Seed of the search (default 0)")->check(CLI::NonNegativeNumber);
  verb->add_option("--deadline", options->deadline, "Return the best plan so far after this time (default \"10 s\")")
      ->type_name("TIME");
  verb->add_option("--threads", options->threads, "Most threads of the search (default: all cores)")
      ->check(CLI::Range(0, 1024));
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
