#include <fmt/format.h>

#include <cstdio>

#include "motley/base/units.hpp"
#include "motley/cli/explain.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/cost/collective/collective_price.hpp"
#include "motley/planner/collective/plan_collective.hpp"
#include "motley/report/collective_report.hpp"
#include "motley/report/cost_report.hpp"

namespace motley::cli {
namespace {

struct CollectiveVerbOptions {
  CollectiveOperation operation = CollectiveOperation::all_reduce;
  std::string cluster, bytes, root;
  std::string objective = "pipelined", deadline = "10 s";
  std::vector<std::string> settings;
  int element_bytes = 4;
  std::uint64_t seed = 0;
  int threads = 0;
  Output output;
};

CollectiveCostOptions collective_settings(const std::vector<std::string>& settings) {
  CollectiveCostOptions cost;
  for (const auto& [key, value] : cost_options("genmodel", settings).settings) {
    if (key != "genmodel.message_s")
      throw input_error(fmt::format("--set {}: collectives have no constant of this name", key),
                        "set genmodel.message_s, the time of one message in seconds");
    if (value < 0)
      throw input_error("--set genmodel.message_s: a message's time must not be negative",
                        "give seconds, as in --set genmodel.message_s=1e-5 (the default)");
    cost.message_s = value;
  }
  return cost;
}

std::int64_t parse_bytes(const std::string& text) {
  double bytes = 0;
  try {
    bytes = parse_quantity(text, Dimension::bytes);
  } catch (Error& error) {
    throw error.prepend_context("--bytes");
  }
  if (!(bytes >= 1 && bytes <= 1e15))
    throw input_error(fmt::format("--bytes must be between 1 B and 1 PB, found \"{}\"", text),
                      "give a number with its unit, as in --bytes \"400 MB\"");
  return static_cast<std::int64_t>(bytes);
}

CollectiveObjective parse_collective_objective(const std::string& text) {
  for (const auto& [value, name] : enum_names<CollectiveObjective>())
    if (name == text) return value;
  throw input_error(fmt::format("--objective must be pipelined or rounds, found \"{}\"", text),
                    "choose --objective pipelined or --objective rounds");
}

int plan_and_show(const CollectiveVerbOptions& options) {
  check_output_folder(options.output);
  const Cluster cluster = read_cluster(options.cluster);
  const CollectiveOptions planning{.objective = parse_collective_objective(options.objective),
                                   .root = options.root.empty() ? 0 : cluster.find_device(options.root),
                                   .alignment = std::max(16, options.element_bytes),
                                   .cost = collective_settings(options.settings),
                                   .seed = options.seed,
                                   .deadline_s = parse_seconds_option(options.deadline, "--deadline")};
  const CollectivePlan plan = plan_collective(cluster, options.operation, parse_bytes(options.bytes), planning);
  if (!options.output.quiet)
    fmt::print(stderr, "planned   {} candidates in {}\n", plan.search.evaluated, human_seconds(plan.search.elapsed_s));
  std::string text = collective_report(plan);
  if (!options.output.json && options.output.file.empty())
    text += "\nnext: save the plan with -o plan.json, then run `motley explain plan.json`\n";
  emit(options.output, write(plan), text);
  return 0;
}

void add_collective(CLI::App& plan_verbs, Action& action, CollectiveOperation operation, const std::string& verb_name,
                    const std::string& what) {
  const auto [verb, options] = add_verb<CollectiveVerbOptions>(plan_verbs, action, verb_name, what, plan_and_show);
  options->operation = operation;
  verb->footer(
      fmt::format("example: motley plan {} --cluster examples/collectives/two-racks.toml --bytes \"400 MB\" "
                  "-o plan.json",
                  verb_name));
  verb->add_option("--cluster", options->cluster,
                   "Cluster file; its devices are the ranks, in order (motley.cluster/1)")
      ->required()
      ->type_name("FILE");
  verb->add_option("--bytes", options->bytes, "Size of the whole vector, as in \"400 MB\"")
      ->required()
      ->type_name("SIZE");
  if (operation == CollectiveOperation::broadcast)
    verb->add_option("--root", options->root, "Device that broadcasts its vector (default: the first)")
        ->type_name("DEVICE");
  verb->add_option("--objective", options->objective,
                   "What to minimise: time in chunks (pipelined, default) or in rounds");
  verb->add_option("--element-bytes", options->element_bytes,
                   "Bytes of an element, which chunks do not split (default 4)")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64}));
  verb->add_option("--set", options->settings, "Constant of the cost model: genmodel.message_s=1e-5")
      ->type_name("KEY=VALUE");
  verb->add_option("--seed", options->seed, "Recorded in the plan; this planner draws no random numbers")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--threads", options->threads, "Ignored: this planner uses one thread")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--deadline", options->deadline, "Return the best plan so far after this time (default \"10 s\")")
      ->type_name("TIME");
  add_output_options(*verb, options->output);
}

}  // namespace

void add_plan_collectives(CLI::App& plan_verbs, Action& action) {
  add_collective(plan_verbs, action, CollectiveOperation::all_reduce, "allreduce",
                 "Plan an all-reduce: the sum of all vectors on every device");
  add_collective(plan_verbs, action, CollectiveOperation::reduce_scatter, "reduce-scatter",
                 "Plan a reduce-scatter: one block of the sum on each device");
  add_collective(plan_verbs, action, CollectiveOperation::all_gather, "all-gather",
                 "Plan an all-gather: the blocks of all devices on every device");
  add_collective(plan_verbs, action, CollectiveOperation::broadcast, "broadcast",
                 "Plan a broadcast: one device's vector on every device");
}

int explain(const CollectivePlan& plan, const ExplainOptions& options) {
  require_sound(verify(plan), options.file);
  const std::string& form = options.form;
  if (!form.empty() && form != "motley" && form != "genmodel")
    throw input_error(fmt::format("--cost must be a form for collectives, found {}", form),
                      "choose motley (chunks in a pipeline) or genmodel (rounds in sequence)");
  const bool rounds = form == "genmodel" || (form.empty() && plan.search.objective == "rounds");
  const CollectivePrice price = price_collective(plan, collective_settings(options.settings));
  const Term& tree = rounds ? price.rounds : price.pipelined;
  emit(options.output, explain_json(tree),
       fmt::format("{}\ncost form {}\n\nwhere the time goes\n{}\nlimit {}: {}; the busiest link, {}, carries {}\n",
                   collective_summary(plan), rounds ? "genmodel" : "motley", term_report(tree, options.depth),
                   human_seconds(price.predicted.limit_s), price.predicted.binding_cut, price.cost.steady_port,
                   human_seconds(price.cost.steady_s)));
  return 0;
}

}  // namespace motley::cli
