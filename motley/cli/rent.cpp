#include "motley/cli/rent.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "motley/base/units.hpp"
#include "motley/cli/planning.hpp"
#include "motley/planner/rent/rent.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/rent_report.hpp"
#include "motley/workload/warnings.hpp"

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
    "  rates that were measured, a fixed budget (examples/renting/measured.json):\n"
    "    motley plan rent --offers examples/renting/measured.json --budget \"8 $/h\"\n"
    "  the least money that carries a demand:\n"
    "    motley plan rent --offers examples/renting/demand.json --cheapest\n"
    "  rates from the cost model, prices and availability of six types, and a cluster to plan on:\n"
    "    motley plan rent --model llama-2-70b --workload examples/renting/workload.toml \\\n"
    "      --offers examples/renting/market.toml --cheapest -o fleet.json --cluster-out rented.json\n"
    "    motley plan serve --cluster rented.json --model llama-2-70b --workload examples/renting/workload.toml\n"
    "  again an hour later, where starting a copy takes ten minutes:\n"
    "    motley plan rent --model llama-2-70b --workload examples/renting/workload.toml \\\n"
    "      --offers examples/renting/market.toml --cheapest --current fleet.json --startup \"10 min\" --interval \"1 "
    "h\"";

std::map<std::string, std::int64_t> running_copies(const std::string& file) {
  std::map<std::string, std::int64_t> copies;
  if (!file.empty())
    for (const auto& rented : read_rent_plan(read_document(file), file).fleet)
      copies[rented.configuration] = rented.copies;
  return copies;
}

double parse_budget(const std::string& text) {
  try {
    if (const double usd = parse_quantity(text, Dimension::usd_per_hour); usd >= 0) return usd;
  } catch (const Error&) {  // told below, with an example that suits an option
  }
  throw input_error(fmt::format("--budget \"{}\" is no amount of money per hour", text), "such as --budget \"30 $/h\"");
}

RentOptions rent_options(const RentVerbOptions& options) {
  if (options.budget.empty() != options.cheapest)
    throw input_error(options.cheapest ? "--budget and --cheapest are two different goals" : "the goal is missing",
                      "give --budget \"30 $/h\" for the most that money carries, or --cheapest for the least that "
                      "carries the demand");
  RentOptions rent;
  rent.form = options.cheapest ? RentForm::cheapest : RentForm::budget;
  if (!options.cheapest) rent.budget_usd_per_hour = parse_budget(options.budget);
  rent.survive = options.survive;
  rent.seed = options.seed;
  rent.deadline_s = parse_seconds_option(options.deadline, "--deadline");
  rent.current = running_copies(options.current);
  if (!options.startup.empty()) {
    const double interval_s = parse_seconds_option(options.interval, "--interval");
    if (interval_s <= 0) throw input_error("--interval must be longer than nothing", "such as --interval \"1 h\"");
    rent.startup_share = parse_seconds_option(options.startup, "--startup") / interval_s;
  }
  return rent;
}

RentOutcome plan_for_model(const RentVerbOptions& options, Offers market, const RentOptions& rent) {
  const Model model = read_model(options.model);
  const Workload workload = options.workload.empty() ? default_workload() : read_workload(options.workload);
  check_context(options.workload, model, workload);
  warn(workload_warnings(workload), options.output.quiet);
  if (rent.form == RentForm::cheapest && workload.total_rate_per_s() <= 0)
    throw input_error("the cheapest fleet for which demand? No class of the workload has a rate",
                      "give each [[class]] its rate = \"4 /s\", or ask with --budget");
  if (market.types.empty()) market = catalogue_market();
  ModelRentOptions made = options.made;
  made.weight_type = runnable_dtype(options.weight_type, "--weight-type");
  made.kv_type = runnable_dtype(options.kv_type, "--kv-type");
  return plan_rent(market, model, workload, rent, made);
}

RentOutcome plan_from_options(const RentVerbOptions& options) {
  const RentOptions rent = rent_options(options);
  Offers offers;
  if (!options.offers.empty()) offers = read_offers(options.offers);
  warn(offer_warnings(offers), options.output.quiet);
  const bool measured = !offers.configurations.empty();
  if (measured && !options.model.empty())
    throw input_error(fmt::format("{} has configurations with rates, and --model would make others", options.offers),
                      "leave --model out, or the configurations");
  if (!measured && options.model.empty())
    throw input_error("there is nothing to rent",
                      "give --offers FILE with configurations, or --model for the cost model to make them");
  if (!options.output.quiet) fmt::print(stderr, "planning  what to rent\n");
  return measured ? plan_rent(offers, rent) : plan_for_model(options, std::move(offers), rent);
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
        "\nnext: keep it with -o fleet.json; --cluster-out rented.json writes the machines for `motley plan serve`\n";
  emit(options.output, write_rent_plan(plan), text);
  return 0;
}

}  // namespace

int explain_rent(const RentPlan& plan, const Output& output) {
  if (const auto violations = verify(plan); !violations.empty())
    throw input_error(fmt::format("{}: {}", violations[0].place, violations[0].what),
                      "`motley verify` lists everything that is wrong");
  emit(output, explain_rent_json(plan), rent_report(plan) + rent_explanation(plan));
  return 0;
}

void add_plan_rent(CLI::App& plan_verbs, Action& action) {
  auto options = std::make_shared<RentVerbOptions>();
  auto* verb = plan_verbs.add_subcommand(
      "rent", "Choose what to rent: how many copies of which replica shape, and which requests go where");
  verb->footer(rent_examples);
  verb->add_option("--offers", options->offers,
                   "Prices, availability and measured rates (motley.offers/1); without configurations, prices and "
                   "availability for the cost model")
      ->type_name("FILE");
  verb->add_option("--budget", options->budget, "Carry as much as this money pays for: \"30 $/h\"")->type_name("MONEY");
  verb->add_flag("--cheapest", options->cheapest, "Carry the demand for the least money");
  verb->add_option("--model", options->model, "Make the configurations for this model by the cost model")
      ->type_name("MODEL");
  verb->add_option("--workload", options->workload,
                   "With --model: what is asked (motley.workload/1); default: 512 tokens in, 128 out")
      ->type_name("FILE");
  verb->add_option("--utilisation", options->made.utilisation,
                   "With --model: share of its rate that a copy is planned with (default 0.8)")
      ->check(CLI::Range(0.01, 1.0));
  verb->add_option("--weight-type", options->weight_type,
                   "With --model: fp32, bf16, or fp16, which is not served yet (default: the checkpoint's)");
  verb->add_option("--kv-type", options->kv_type, "With --model: of keys and values (default: as the weights)");
  verb->add_option("--max-batch", options->made.max_batch, "With --model: most requests in flight per copy")
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option("--max-tokens", options->made.step.max_tokens, "With --model: tokens of one step")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--max-sequences", options->made.step.max_sequences, "With --model: sequences of one step")
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option("--survive", options->survive,
                   "Share of the throughput that must be left when any one domain of the offers is lost")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--current", options->current, "The plan that runs now: its copies start free")->type_name("PLAN");
  verb->add_option("--startup", options->startup, "Time that a new copy is paid for before it serves")
      ->type_name("TIME");
  verb->add_option("--interval", options->interval, "Time until the next planning (default \"1 h\")")
      ->type_name("TIME");
  verb->add_option("--cluster-out", options->cluster_out, "Write the rented machines as a cluster file (JSON)")
      ->type_name("FILE");
  verb->add_option("--seed", options->seed, "Recorded; nothing here is random")->check(CLI::NonNegativeNumber);
  verb->add_option("--deadline", options->deadline, "Planning ends by then with the best so far")->type_name("TIME");
  add_output_options(*verb, options->output);
  verb->callback([options, &action] { action = [options] { return plan_and_show(*options); }; });
}

}  // namespace motley::cli
