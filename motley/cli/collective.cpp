#include "motley/cli/collective.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "motley/base/units.hpp"
#include "motley/cli/planning.hpp"
#include "motley/cost/collective/collective_price.hpp"
#include "motley/planner/collective/collective.hpp"
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
      throw input_error(fmt::format("--set {}: collectives have no such constant", key),
                        "there is genmodel.message_s: what one more message costs a rank");
    if (value < 0)
      throw input_error("--set genmodel.message_s: a message does not take less than no time",
                        "seconds: genmodel.message_s=1e-5 is the default");
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
    throw input_error(fmt::format("--bytes \"{}\" is not between 1 byte and 1 PB", text), "such as --bytes \"400 MB\"");
  return static_cast<std::int64_t>(bytes);
}

CollectiveObjective parse_collective_objective(const std::string& text) {
  for (const auto& [value, name] : enum_names<CollectiveObjective>())
    if (name == text) return value;
  throw input_error(fmt::format("--objective {} is not known", text), "there are pipelined and rounds");
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
    text += "\nnext: keep it with -o plan.json, then `motley explain plan.json`\n";
  emit(options.output, write_collective_plan(plan), text);
  return 0;
}

void add_collective(CLI::App& plan_verbs, Action& action, CollectiveOperation operation, const std::string& verb_name,
                    const std::string& what) {
  auto options = std::make_shared<CollectiveVerbOptions>();
  options->operation = operation;
  auto* verb = plan_verbs.add_subcommand(verb_name, what);
  verb->footer(
      fmt::format("example: motley plan {} --cluster examples/collectives/two-racks.toml --bytes \"400 MB\" "
                  "-o plan.json",
                  verb_name));
  verb->add_option("--cluster", options->cluster, "Whose devices are the ranks, in order (motley.cluster/1)")
      ->required()
      ->type_name("FILE");
  verb->add_option("--bytes", options->bytes,
                   "Of the vector: \"400 MB\"; of all blocks together where ranks have blocks")
      ->required()
      ->type_name("SIZE");
  if (operation == CollectiveOperation::broadcast)
    verb->add_option("--root", options->root, "The device whose vector goes to all (default: the first)")
        ->type_name("DEVICE");
  verb->add_option("--objective", options->objective,
                   "pipelined (default): least time in chunks; rounds: least time of the rounds in sequence");
  verb->add_option("--element-bytes", options->element_bytes, "Of an element: no range cuts one (default 4)")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64}));
  verb->add_option("--set", options->settings,
                   "A constant of the cost: genmodel.message_s=1e-5, what one more message costs a rank")
      ->type_name("KEY=VALUE");
  verb->add_option("--seed", options->seed, "Recorded; nothing here is random")->check(CLI::NonNegativeNumber);
  verb->add_option("--threads", options->threads, "Not used: one is enough")->check(CLI::NonNegativeNumber);
  verb->add_option("--deadline", options->deadline, "Planning ends by then with the best so far")->type_name("TIME");
  add_output_options(*verb, options->output);
  verb->callback([options, &action] { action = [options] { return plan_and_show(*options); }; });
}

}  // namespace

void add_plan_collectives(CLI::App& plan_verbs, Action& action) {
  add_collective(plan_verbs, action, CollectiveOperation::all_reduce, "allreduce",
                 "Sum every device's vector, the sum going to all: who sends what to whom");
  add_collective(plan_verbs, action, CollectiveOperation::reduce_scatter, "reduce-scatter",
                 "Sum every device's vector, each device keeping its block of the sum");
  add_collective(plan_verbs, action, CollectiveOperation::all_gather, "all-gather",
                 "Spread every device's block to all");
  add_collective(plan_verbs, action, CollectiveOperation::broadcast, "broadcast", "Spread one device's vector to all");
}

int explain_collective(const CollectivePlan& plan, const std::string& file, const std::string& form, int depth,
                       const std::vector<std::string>& settings, const Output& output) {
  require_sound(verify(plan), file);
  if (!form.empty() && form != "motley" && form != "genmodel")
    throw input_error(fmt::format("--cost {} does not price collectives", form),
                      "there are motley (pipelined) and genmodel (rounds in sequence)");
  const bool rounds = form == "genmodel" || (form.empty() && plan.search.objective == "rounds");
  const CollectivePrice price = price_collective(plan, collective_settings(settings));
  const Term& tree = rounds ? price.rounds : price.pipelined;
  emit(output, explain_json(tree),
       fmt::format("{}\ncost form {}\n\nwhere the time goes\n{}\nlimit {}: {}; the busiest link, {}, carries {}\n",
                   collective_summary(plan), rounds ? "genmodel" : "motley", term_report(tree, depth),
                   human_seconds(price.predicted.limit_s), price.predicted.binding_cut, price.cost.steady_port,
                   human_seconds(price.cost.steady_s)));
  return 0;
}

int compare_collectives(const std::vector<std::string>& files, const Output& output) {
  std::vector<CollectivePlan> plans;
  for (const auto& file : files) plans.push_back(read_collective_plan(read_document(file), file));
  std::vector<NamedCollectivePlan> named;
  for (std::size_t i = 0; i < plans.size(); ++i)
    named.push_back({std::filesystem::path(files[i]).filename().string(), &plans[i]});
  emit(output, compare_collective_json(named), compare_collective_report(named));
  return 0;
}

}  // namespace motley::cli
