// Offload plans: `plan offload`, and what explain and simulate do with them.
#include <fmt/format.h>

#include <cstdio>

#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/explain.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/cluster/cluster_warnings.hpp"
#include "motley/cost/offload/flexgen_plan.hpp"
#include "motley/cost/offload/offload_cost.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/warnings.hpp"
#include "motley/planner/offload/plan_changed.hpp"
#include "motley/planner/offload/plan_offload.hpp"
#include "motley/report/cost_report.hpp"
#include "motley/report/offload_report.hpp"
#include "motley/report/table.hpp"
#include "motley/workload/workload_warnings.hpp"

namespace motley::cli {
namespace {

struct OffloadVerbOptions {
  std::string machine, model, workload;
  std::string cost = "motley";
  std::vector<std::string> settings;
  std::string weight_type, kv_type, latency, deadline = "10 s";
  double max_kl = 0, tokens_per_s = 0;
  std::int64_t context = 0;  // tokens; 0: the model's own
  OffloadOptions planning;
  Output output;
};

std::optional<DType> type_option(const std::string& text, const std::string& option, bool published, Use use) {
  if (text.empty()) return {};
  // The published form prices types that no stage computes with.
  return published ? std::optional(parse_dtype_option(text, option)) : runnable_dtype(text, option, use);
}

int plan_and_show(const OffloadVerbOptions& options) {
  check_output_folder(options.output);
  const bool published = options.cost == "flexgen";
  if (options.max_kl > 0 && !options.weight_type.empty())
    throw input_error("--max-kl chooses the types of weights, and --weight-type gives one", "leave one of them out");
  OffloadOptions planning = options.planning;
  planning.cost = cost_options(options.cost, options.settings);
  planning.weight_type = type_option(options.weight_type, "--weight-type", published, Use::weights);
  planning.kv_type = type_option(options.kv_type, "--kv-type", published, Use::kv);
  if (options.max_kl > 0) planning.most_kl = options.max_kl;
  if (!options.latency.empty()) planning.most_latency_s = parse_seconds_option(options.latency, "--max-latency");
  if (options.tokens_per_s > 0) planning.least_tokens_per_s = options.tokens_per_s;
  planning.deadline_s = parse_seconds_option(options.deadline, "--deadline");
  const Cluster cluster = read_cluster(options.machine);
  warn(cluster_warnings(cluster), options.output.quiet);
  Model model = read_named_model(options.model);
  choose_context(model, options.context, options.output.quiet);
  warn(model_warnings(model), options.output.quiet);
  const Workload workload = options.workload.empty() ? default_workload() : read_workload(options.workload);
  if (workload.classes.empty())
    throw input_error(fmt::format("{}: the workload has no requests", options.workload),
                      "give a workload that describes requests, with [[class]]");
  warn(workload_warnings(workload), options.output.quiet);
  check_context(options.workload, model, workload);
  if (!options.output.quiet)
    fmt::print(stderr, "planning {} on {}\n", printable(model.name),
               printable(cluster.description.name.empty() ? options.machine : cluster.description.name));
  const OffloadOutcome outcome = plan_offload(cluster, model, workload, planning);
  if (!outcome.plan) return emit_infeasible(options.output, outcome.reason, outcome.hint, options.machine);
  std::string text = offload_report(*outcome.plan);
  if (!options.output.json && options.output.file.empty())
    text += "\nnext: save the plan with -o plan.json, then run `motley explain plan.json`\n";
  emit(options.output, write(*outcome.plan), text);
  return 0;
}

// ---- explain ----

int explain_changes(const OffloadPlan& plan, const ExplainOptions& options, const CostOptions& cost) {
  if (!options.changes.without.empty() || !options.changes.add.empty())
    throw input_error("--without and --add are for serving plans", "change the machine with --what-if");
  const OffloadOutcome outcome = plan_changed(plan, options.changes.what_if, cost);
  if (!outcome.plan) return emit_infeasible(options.output, outcome.reason, outcome.hint, options.file);
  const OffloadPlan& changed = *outcome.plan;
  Table table({"", ">as planned", ">changed"});
  const auto row = [&](const char* name, const std::string& before, const std::string& after) {
    table.add({name, before, after});
  };
  row("tokens/s", fmt::format("{:.4g}", plan.predicted.tokens_per_s),
      fmt::format("{:.4g}", changed.predicted.tokens_per_s));
  row("a request", human_seconds(plan.predicted.latency_s), human_seconds(changed.predicted.latency_s));
  row("sequences", fmt::format("{} x {}", plan.batches, plan.batch),
      fmt::format("{} x {}", changed.batches, changed.batch));
  row("bound by", resource_text(binding_resource(plan)), resource_text(binding_resource(changed)));
  emit(options.output, Value::object({{"before", write(plan.predicted)}, {"after", write(changed.predicted)}}),
       fmt::format("{}\nchanged: {}\n", table.render(), offload_summary(changed)));
  return 0;
}

}  // namespace

int explain(const OffloadPlan& plan, const ExplainOptions& options) {
  require_sound(verify(plan), options.file);
  const CostOptions cost = cost_options(options.form.empty() ? plan.search.cost : options.form, options.settings);
  if (cost.form != "motley" && cost.form != "flexgen")
    throw input_error(fmt::format("the form \"{}\" does not price offloading", cost.form),
                      "use --cost motley or --cost flexgen");
  if (!options.changes.empty()) return explain_changes(plan, options, cost);
  if (cost.form == "motley" && plan.search.cost == "flexgen")
    throw input_error("the shares of this plan are not whole layers, which the form motley prices",
                      "make one with `motley plan offload` without --cost");
  const Term tree = cost.form == "flexgen" ? explain_flexgen(plan, cost) : explain_offload(plan, cost);
  Value json = explain_json(tree);
  std::string text =
      fmt::format("cost form {}, {}\n\n{}", cost.form, offload_summary(plan), term_report(tree, options.depth));
  if (cost.form == "motley") {
    const OffloadPrice price = price_offload(plan, cost);
    json.set("tokens_per_s", price.tokens_per_s);
    json.set("binding", name_of(price.binding));
    text += fmt::format("\nbound by {}: {:.4g} tokens/s\n", resource_text(name_of(price.binding)), price.tokens_per_s);
  }
  emit(options.output, json, text);
  return 0;
}

void add_plan_offload(CLI::App& plan_verbs, Action& action) {
  const auto [verb, options] = add_verb<OffloadVerbOptions>(
      plan_verbs, action, "offload", "Plan one device that uses host memory and disk as its own", plan_and_show);
  verb->footer(
      "The model need not fit the device: layers stream by from host memory or disk while\n"
      "many sequences share each pass over them. The machine file says how much there is:\n"
      "\n"
      "  [[machine]]\n"
      "  name = \"desk\"\n"
      "  devices = [\"RTX 4090\"]\n"
      "  host_memory = \"64 GiB\"\n"
      "  disk = { capacity = \"1 TB\", read = \"5 GB/s\", write = \"3 GB/s\" }\n"
      "\n"
      "examples:\n"
      "  motley plan offload --machine examples/clusters/desk.toml --model llama-2-70b -o plan.json\n"
      "  motley plan offload --machine examples/clusters/t4.toml --model opt-30b --cost flexgen");
  verb->add_option("--machine", options->machine, "Cluster file of a machine with host_memory, disk or both")
      ->required()
      ->type_name("FILE");
  verb->add_option("--model", options->model, "Model folder, GGUF file, config.json or name")
      ->required()
      ->type_name("MODEL");
  verb->add_option("--workload", options->workload, "Workload file (default: 512 tokens in, 128 out)")
      ->type_name("FILE");
  verb->add_option("--device", options->planning.device, "Device to use, as in desk/0 (default: the best)")
      ->type_name("DEVICE");
  verb->add_option("--weight-type", options->weight_type, "Type of the weights (default: the model's)");
  verb->add_option("--kv-type", options->kv_type, "Type of keys and values (default: the model's, or by --max-kl)");
  verb->add_option("--max-kl", options->max_kl,
                   "Let weights, keys and values be quantised, up to this divergence, as in 0.02")
      ->check(CLI::PositiveNumber);
  verb->add_option("--max-latency", options->latency, "Most time of one request, as in \"10 min\" (default: any)")
      ->type_name("TIME");
  verb->add_option("--min-throughput", options->tokens_per_s, "Find the least latency at this many tokens/s or more")
      ->check(CLI::PositiveNumber);
  add_context_option(*verb, options->context);
  verb->add_flag("--weights-only", options->planning.weights_only,
                 "Let weights alone leave the device: what workers on GPUs run");
  verb->add_option("--max-batch", options->planning.max_batch, "Most sequences of a micro-batch (default 1024)")
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option("--max-batches", options->planning.max_batches, "Most micro-batches of a pass (default 64)")
      ->check(CLI::Range(1, 1 << 12));
  add_cost_options(*verb, options->cost, options->settings, "motley, flexgen", "flexgen.disk_read_gib_s=2.5");
  verb->add_option("--seed", options->planning.seed, "Recorded in the plan; this planner draws no random numbers")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--deadline", options->deadline, "Return the best plan so far after this time (default \"10 s\")")
      ->type_name("TIME");
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
