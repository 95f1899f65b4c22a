#include <fmt/format.h>

#include <cstdio>
#include <set>
#include <utility>

#include "motley/base/units.hpp"
#include "motley/cli/explain.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/cluster/capability.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/warnings.hpp"
#include "motley/planner/rent/plan_rent.hpp"
#include "motley/report/rent_report.hpp"
#include "motley/workload/workload_warnings.hpp"

namespace motley::cli {
namespace {

struct RentVerbOptions {
  std::string offers, model, workload, budget, current, startup, interval = "1 h", cluster_out;
  std::string deadline = "10 s", weight_type, kv_type;
  bool cheapest = false;
  double survive = 0;
  std::uint64_t seed = 0;
  ModelRentOptions made;
  Output output;
};

constexpr const char* rent_examples =
    "examples:\n"
    "  measured rates and a fixed budget:\n"
    "    motley plan rent --offers examples/renting/measured.json --budget \"8 $/h\"\n"
    "  the cheapest fleet for a demand:\n"
    "    motley plan rent --offers examples/renting/demand.json --cheapest\n"
    "  rates from the cost model, prices and availability of six types, and a cluster to plan on:\n"
    "    motley plan rent --model llama-2-70b --workload examples/renting/workload.toml \\\n"
    "      --offers examples/renting/market.toml --cheapest -o fleet.json --cluster-out rented.json\n"
    "    motley plan serve --cluster rented.json --model llama-2-70b --workload examples/renting/workload.toml\n"
    "  an hour later, if the start of a copy takes ten minutes:\n"
    "    motley plan rent --model llama-2-70b --workload examples/renting/workload.toml \\\n"
    "      --offers examples/renting/market.toml --cheapest --current fleet.json --startup \"10 min\" --interval \"1 "
    "h\"";

std::map<std::string, std::int64_t> running_copies(const std::string& file) {
  std::map<std::string, std::int64_t> copies;
  if (!file.empty())
    for (const auto& rented : read_plan_file<RentPlan>(file).fleet) copies[rented.configuration] = rented.copies;
  return copies;
}

RentOptions rent_options(const RentVerbOptions& options) {
  if (options.budget.empty() != options.cheapest)
    throw input_error(
        options.cheapest ? "--budget and --cheapest cannot be combined" : "--budget or --cheapest is missing",
        "give --budget \"30 $/h\" to carry the most for this money, or --cheapest to carry the demand for the least");
  RentOptions rent;
  rent.form = options.cheapest ? RentForm::cheapest : RentForm::budget;
  if (!options.cheapest)
    rent.budget_usd_per_hour = parse_quantity_option(options.budget, "--budget", Dimension::usd_per_hour,
                                                     is_not_negative, "an amount of money per hour", "30 $/h");
  rent.survive = options.survive;
  rent.seed = options.seed;
  rent.deadline_s = parse_seconds_option(options.deadline, "--deadline");
  rent.current = running_copies(options.current);
  if (!options.startup.empty()) {
    const double interval_s = parse_seconds_option(options.interval, "--interval");
    if (interval_s <= 0)
      throw input_error("--interval must be longer than 0 s", "give a time, as in --interval \"1 h\"");
    rent.startup_share = parse_seconds_option(options.startup, "--startup") / interval_s;
  }
  return rent;
}

RentOutcome plan_for_model(const RentVerbOptions& options, Offers market, const RentOptions& rent) {
  const Model model = read_named_model(options.model);
  warn(model_warnings(model), options.output.quiet);
  const Workload workload = options.workload.empty() ? default_workload() : read_workload(options.workload);
  check_context(options.workload, model, workload);
  warn(workload_warnings(workload), options.output.quiet);
  if (rent.form == RentForm::cheapest && workload.total_rate_per_s() <= 0)
    throw input_error("--cheapest needs a demand: no class of the workload has a rate",
                      "give each [[class]] a rate, as in rate = \"4 /s\", or use --budget");
  if (market.types.empty()) market = catalogue_market();
  ModelRentOptions made = options.made;
  made.weight_type = runnable_dtype(options.weight_type, "--weight-type", Use::weights);
  made.kv_type = runnable_dtype(options.kv_type, "--kv-type", Use::kv);
  return plan_rent(market, model, workload, rent, made);
}

RentOutcome plan_from_options(const RentVerbOptions& options) {
  const RentOptions rent = rent_options(options);
  Offers offers;
  if (!options.offers.empty()) offers = read_offers(options.offers);
  warn(offer_warnings(offers), options.output.quiet);
  const bool measured = !offers.configurations.empty();
  if (measured && !options.model.empty())
    throw input_error(
        fmt::format("{} has configurations with rates, so --model cannot be combined with it", options.offers),
        "leave out --model, or remove the configurations");
  if (!measured && options.model.empty())
    throw input_error("--offers and --model are missing",
                      "give --offers FILE with configurations, or --model to make them by the cost model");
  if (!options.output.quiet) fmt::print(stderr, "planning  a fleet to rent\n");
  return measured ? plan_rent(offers, rent) : plan_for_model(options, std::move(offers), rent);
}

std::vector<std::string> fleet_warnings(const RentPlan& plan) {
  std::set<std::string> warnings;
  for (const auto& rented : plan.fleet)
    for (const auto& [type, count] : rented.devices)
      if (std::string old = capability_warning(type); !old.empty()) warnings.insert(std::move(old));
  return {warnings.begin(), warnings.end()};
}

int plan_and_show(const RentVerbOptions& options) {
  check_output_folder(options.output);
  check_output_folder({.file = options.cluster_out});
  const RentOutcome outcome = plan_from_options(options);
  if (!outcome.plan) {
    emit(Output{.json = options.output.json, .file = "", .quiet = options.output.quiet},
         Value::object({{"status", "infeasible"},
                        {"throughput_per_s", outcome.throughput_per_s},
                        {"reason", outcome.reason},
                        {"hint", outcome.hint}}),
         fmt::format("cannot rent: {}\n{}", outcome.reason,
                     outcome.hint.empty() ? "" : "\nhint: " + outcome.hint + "\n"));
    return static_cast<int>(ErrorCode::negative);
  }
  const RentPlan& plan = *outcome.plan;
  warn(fleet_warnings(plan), options.output.quiet);
  if (!options.output.quiet)
    fmt::print(stderr, "planned   {} in {}, {} columns and nodes\n", name_of(plan.search.status),
               human_seconds(plan.search.elapsed_s), plan.search.evaluated);
  if (!options.cluster_out.empty()) {
    write_file(options.cluster_out, to_json(write(rented_cluster(plan)), 1) + "\n");
    if (!options.output.quiet) fmt::print(stderr, "wrote {}\n", options.cluster_out);
  }
  std::string text = rent_report(plan) + rent_explanation(plan);
  if (!options.output.json && options.output.file.empty())
    text +=
        "\n"
        "next: save the plan with -o fleet.json; --cluster-out rented.json writes the machines for `motley plan "
        "serve`\n";
  emit(options.output, write(plan), text);
  return 0;
}

}  // namespace

int explain(const RentPlan& plan, const ExplainOptions& options) {
  require_sound(verify(plan), options.file);
  emit(options.output, explain_rent_json(plan), rent_report(plan) + rent_explanation(plan));
  return 0;
}

void add_plan_rent(CLI::App& plan_verbs, Action& action) {
  const auto [verb, options] = add_verb<RentVerbOptions>(
      plan_verbs, action, "rent", "Plan what to rent, and which requests go to which copy", plan_and_show);
  verb->footer(rent_examples);
  verb->add_option("--offers", options->offers, "Offers file: prices, availability, measured rates (motley.offers/1)")
      ->type_name("FILE");
  verb->add_option("--budget", options->budget, "Carry the most load for this money, as in \"30 $/h\"")
      ->type_name("MONEY");
  verb->add_flag("--cheapest", options->cheapest, "Carry the demand for the least money");
  verb->add_option("--model", options->model, "Model to make configurations for: folder, config.json or name")
      ->type_name("MODEL");
  verb->add_option("--workload", options->workload, "With --model: workload file (default: 512 tokens in, 128 out)")
      ->type_name("FILE");
  verb->add_option("--utilisation", options->made.utilisation,
                   "With --model: share of its rate that each copy is planned for (default 0.8)")
      ->check(CLI::Range(0.01, 1.0));
  verb->add_option("--weight-type", options->weight_type,
                   "With --model: fp32, bf16, fp16, q8_0 to iq4_xs, file (default: the model's)");
  verb->add_option("--kv-type", options->kv_type, "With --model: type of keys and values (default: the weight type)");
  verb->add_option("--max-batch", options->made.max_batch,
                   "With --model: most requests in flight per copy (default 1024)")
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option("--max-tokens", options->made.step.max_tokens, "With --model: most tokens in one step (default 512)")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--max-sequences", options->made.step.max_sequences,
                   "With --model: most sequences in one step (default 32)")
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option("--survive", options->survive,
                   "Least share of the throughput after the loss of any domain (default 0)")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--current", options->current, "Plan that runs now; its copies need no start")->type_name("PLAN");
  verb->add_option("--startup", options->startup, "Paid time before a new copy serves, as in \"10 min\" (default 0)")
      ->type_name("TIME");
  verb->add_option("--interval", options->interval, "Time until the next plan (default \"1 h\")")->type_name("TIME");
  verb->add_option("--cluster-out", options->cluster_out, "Write the rented machines to this cluster file, as JSON")
      ->type_name("FILE");
  verb->add_option("--seed", options->seed, "Recorded in the plan; this planner draws no random numbers")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--deadline", options->deadline, "Return the best plan so far after this time (default \"10 s\")")
      ->type_name("TIME");
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
