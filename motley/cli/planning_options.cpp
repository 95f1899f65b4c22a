#include "motley/cli/planning_options.hpp"

#include <fmt/format.h>

#include <charconv>

#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cluster/cluster_warnings.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/warnings.hpp"
#include "motley/planner/serve/plan_again.hpp"
#include "motley/planner/serve/plan_warnings.hpp"
#include "motley/planner/serve/replan.hpp"
#include "motley/workload/workload_warnings.hpp"

namespace motley::cli {
namespace {

ServeOptions serve_options(const PlanningOptions& options) {
  if (options.max_kl > 0 && !options.weight_type.empty())
    throw input_error("--max-kl chooses the types of weights, and --weight-type gives one", "leave one of them out");
  if (options.max_kl > 0 && options.models.size() > 1)
    throw input_error("--max-kl plans one model, found several", "plan each model alone, or give --weight-type");
  return {.objective = parse_objective(options.objective),
          .cost = cost_options(options.cost, options.settings),
          .step = options.step,
          .seed = options.seed,
          .deadline_s = parse_seconds_option(options.deadline, "--deadline"),
          .threads = thread_count(options.threads),
          .use_devices = options.all_devices ? UseDevices::all : UseDevices::may_idle,
          .tensor_parallel = options.across_machines ? TensorParallel::across_machines : TensorParallel::within_machine,
          .replication = options.one_pipeline ? Replication::one_pipeline : Replication::allowed,
          .front = options.front ? Front::whole_cluster : Front::skip,
          .weight_type = runnable_dtype(options.weight_type, "--weight-type", Use::weights),
          .most_kl = options.max_kl > 0 ? std::optional(options.max_kl) : std::nullopt,
          .kv_type = runnable_dtype(options.kv_type, "--kv-type", Use::kv),
          .crossing_type = options.crossing_type.empty()
                               ? std::nullopt
                               : std::optional(parse_dtype_option(options.crossing_type, "--crossing-type")),
          .max_batch = options.max_batch,
          .excluded = options.without,
          .profile = {},
          .handover = options.partial_ranges ? Handover::partial : Handover::exact,
          .roles = options.no_roles ? StageRoles::both : StageRoles::apart_where_better,
          .standby_bytes = options.standby_weights.empty() ? std::nullopt
                                                           : std::optional(static_cast<std::int64_t>(parse_bytes_option(
                                                                 options.standby_weights, "--standby-weights"))),
          .offloading = options.no_offload ? Offloading::never : Offloading::where_better};
}

}  // namespace

void check_context(const std::string& file, const Model& model, const Workload& workload) {
  if (file.empty()) return;
  for (const auto& request : workload.classes) {
    const double tokens = request.prompt_tokens.mean + request.output_tokens.mean;
    if (tokens <= static_cast<double>(model.arch.context)) continue;
    throw input_error(
        fmt::format(
            "{}: the mean request of class \"{}\" must fit the model's context: it has {:.0f} tokens, {}'s context {}",
            file, request.name, tokens, model.name, model.arch.context),
        "reduce prompt_tokens or output_tokens, or choose a model with a longer context (--context of `motley plan "
        "serve` overrides it)");
  }
}

void add_context_option(CLI::App& verb, std::int64_t& context) {
  verb.add_option("--context", context, "Longest sequence in tokens, prompt and answer (default: the model's)")
      ->check(CLI::Range(std::int64_t{1}, static_cast<std::int64_t>(max_context)))
      ->type_name("N");
}

void choose_context(Model& model, std::int64_t context, bool quiet) {
  if (context == 0) return;
  const std::int64_t own = read_architecture(model.config, model.name).context;
  set_context(model, context);
  if (context > own)
    warn({fmt::format("--context {} is beyond the {} tokens that {} was made for", context, own, model.name)}, quiet);
}

CostOptions cost_options(const std::string& form, const std::vector<std::string>& settings) {
  CostOptions cost{.form = form, .settings = {}};
  for (const auto& setting : settings) {
    const auto equals = setting.find('=');
    double value = 0;
    const char* end = setting.data() + setting.size();
    if (equals == std::string::npos || equals == 0 || equals + 1 == setting.size())
      throw input_error(fmt::format("--set needs KEY=VALUE, found \"{}\"", setting),
                        "give a number, as in --set hexgen.batch=4");
    const auto [at, status] = std::from_chars(setting.data() + equals + 1, end, value);
    if (status != std::errc() || at != end)
      throw input_error(fmt::format("--set needs a number as the value, found \"{}\"", setting),
                        "give a number, as in --set hexgen.batch=4");
    cost.settings[setting.substr(0, equals)] = value;
  }
  return cost;
}

void add_cost_options(CLI::App& verb, std::string& form, std::vector<std::string>& settings, const std::string& forms,
                      const std::string& example) {
  verb.add_option("--cost", form, "Cost form: " + forms)->type_name("FORM");
  verb.add_option("--set", settings, "Constant of the cost form: " + example)
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

void add_planning_options(CLI::App& verb, PlanningOptions& options, const std::string& model_help) {
  verb.add_option("--cluster", options.cluster, "Cluster file: devices, machines and links (motley.cluster/1)")
      ->type_name("FILE");
  const auto repeated = [&](const std::string& name, std::string& first, std::vector<std::string>& all,
                            const std::string& help, const std::string& type) {
    verb.add_option_function<std::vector<std::string>>(
            name,
            [&first, &all](const std::vector<std::string>& given) {
              all = given;
              first = given.front();
            },
            help)
        ->type_name(type)
        ->expected(1)
        ->take_all();
  };
  repeated("--model", options.model, options.models, model_help, "MODEL");
  repeated("--workload", options.workload, options.workloads,
           "Workload file (motley.workload/1; default: 512 tokens in, 128 out)", "FILE");
  verb.add_option("--profile", options.profile, "Profile: measured rates for the cost model (motley.profile/1)")
      ->type_name("FILE");
  verb.add_option("--objective", options.objective, "What to improve: slo (default), throughput, latency or flow");
  add_cost_options(verb, options.cost, options.settings,
                   fmt::format("{} (default motley)", fmt::join(serve_forms(), ", ")), "hexgen.batch=4");
  verb.add_option("--weight-type", options.weight_type,
                  "Weights: fp32, bf16, fp16 (plan only), q8_0 to iq4_xs, file (default: model's)");
  verb.add_option("--max-kl", options.max_kl,
                  "Let weights, keys and values be quantised, up to this divergence, as in 0.02")
      ->check(CLI::Range(1e-6, 10.0));
  verb.add_option("--kv-type", options.kv_type,
                  "Keys and values: fp32, bf16, q8_0 (default: as activations, or by --max-kl)");
  verb.add_option("--crossing-type", options.crossing_type,
                  "Activations from machine to machine: fp32, bf16, int8 (default: as computed in)");
  verb.add_flag("--all-devices", options.all_devices, "Use every device");
  verb.add_flag("--tp-across-machines", options.across_machines, "Allow tensor parallelism across machines");
  verb.add_flag("--one-pipeline", options.one_pipeline, "Plan a single pipeline");
  verb.add_flag("--partial-ranges", options.partial_ranges,
                "With --objective flow: allow routes over parts of stages (not served yet)");
  verb.add_flag("--no-roles", options.no_roles,
                "Plan no stages for prefill or decode alone (these are not served yet)");
  verb.add_flag("--no-offload", options.no_offload, "Keep all weights, keys and values in the devices' own memory");
  verb.add_option("--standby-weights", options.standby_weights,
                  "Memory of each device for copies of others' layers, as in \"4 GiB\"")
      ->type_name("SIZE");
  verb.add_option("--without", options.without, "Device to leave out, as in box/3; repeatable")
      ->type_name("DEVICE")
      ->expected(1)
      ->take_all();
  add_context_option(verb, options.context);
  verb.add_option("--max-batch", options.max_batch, "Most requests in flight per pipeline (default 1024)")
      ->check(CLI::Range(1, 1 << 16));
  verb.add_option("--max-tokens", options.step.max_tokens, "Most tokens in one step (default 512)")
      ->check(CLI::Range(1, 1 << 20));
  verb.add_option("--max-sequences", options.step.max_sequences, "Most sequences in one step (default 32)")
      ->check(CLI::Range(1, 1 << 16));
  verb.add_option("--seed", options.seed, "Seed of the search (default 0); equal inputs and seed give an equal plan")
      ->check(CLI::NonNegativeNumber);
  verb.add_option("--deadline", options.deadline, "Return the best plan so far after this time (default \"10 s\")")
      ->type_name("TIME");
  verb.add_option("--threads", options.threads,
                  "Threads of the search (default: all cores); the plan does not depend on it")
      ->check(CLI::Range(0, 1024));
}

namespace {

// A plan that has lost devices, planned again around the loss.
ServeOutcome replan(const PlanningOptions& options, bool quiet) {
  if (options.without.empty())
    throw input_error("--from needs --without: the devices that are lost",
                      "name the lost devices, as in --from plan.json --without box/3");
  if (!options.cluster.empty() || !options.model.empty() || !options.workload.empty())
    throw input_error("--from cannot be combined with --cluster, --model or --workload: the plan has them",
                      "leave them out");
  ServePlan before = read_plan_file<ServePlan>(options.from);
  choose_context(before.model, options.context, quiet);
  ServeOutcome outcome = replan_serve(before, options.without, serve_options(options));
  if (!quiet && outcome.plan) {
    const WeightMoves moves = weight_moves(before, *outcome.plan);
    fmt::print(stderr, "replanned in {}: {} of weights stay where they are, {} are to be loaded\n",
               human_seconds(outcome.plan->search.elapsed_s), human_bytes(static_cast<double>(moves.kept_bytes)),
               human_bytes(static_cast<double>(moves.loaded_bytes)));
  }
  return outcome;
}

}  // namespace

NamedModels plan_models_from_options(const PlanningOptions& options, bool quiet) {
  if (!options.from.empty() || options.front)
    throw input_error("--from and --front need a single model", "leave them out, or plan each model in its own run");
  if (options.cluster.empty())
    throw input_error("--cluster is missing", "give a cluster file, such as examples/clusters/motivating-box.toml");
  if (options.workloads.size() != options.models.size())
    throw input_error(
        fmt::format("{} models need as many workloads, found {}", options.models.size(), options.workloads.size()),
        "give each --model its own --workload, in the same order");
  ServeOptions search = serve_options(options);
  if (!options.profile.empty()) search.profile = read_profile(options.profile);
  const Cluster cluster = read_cluster(options.cluster);
  warn(cluster_warnings(cluster), quiet);
  NamedModels planned;
  for (std::size_t i = 0; i < options.models.size(); ++i) {
    planned.models.push_back({read_named_model(options.models[i]), read_workload(options.workloads[i])});
    Model& model = planned.models.back().model;
    choose_context(model, options.context, quiet);
    warn(model_warnings(model), quiet);
    check_context(options.workloads[i], model, planned.models.back().workload);
    warn(workload_warnings(planned.models.back().workload), quiet);
  }
  if (!quiet) fmt::print(stderr, "planning  {} models on {} devices\n", planned.models.size(), cluster.devices.size());
  planned.outcome = plan_models(cluster, planned.models, search);
  return planned;
}

ServeOutcome plan_from_options(const PlanningOptions& options, bool quiet) {
  if (!options.from.empty()) return replan(options, quiet);
  if (options.cluster.empty())
    throw input_error("--cluster is missing", "give a cluster file, such as examples/clusters/motivating-box.toml");
  const Cluster cluster = read_cluster(options.cluster);
  warn(cluster_warnings(cluster), quiet);
  return plan_for_cluster(cluster, planning_inputs(options, quiet), quiet);
}

PlanningInputs planning_inputs(const PlanningOptions& options, bool quiet) {
  if (options.model.empty())
    throw input_error("--model is missing",
                      "give a Hugging Face folder, a config.json, a GGUF file, or a name such as llama-2-70b");
  if (options.models.size() > 1 || options.workloads.size() > 1)
    throw input_error("a deployment serves a single model",
                      "plan several models with `motley plan serve`, then serve each plan");
  PlanningInputs inputs{
      .model = read_named_model(options.model),
      .workload = options.workload.empty() ? default_workload() : read_workload(options.workload),
      .search = serve_options(options),
  };
  if (!options.profile.empty()) inputs.search.profile = read_profile(options.profile);
  choose_context(inputs.model, options.context, quiet);
  warn(model_warnings(inputs.model), quiet);
  check_context(options.workload, inputs.model, inputs.workload);
  check_serve_options(inputs.model, inputs.workload, inputs.search);
  warn(workload_warnings(inputs.workload), quiet);
  return inputs;
}

ServeOutcome plan_for_cluster(const Cluster& cluster, const PlanningInputs& inputs, bool quiet) {
  const auto& [model, workload, search] = inputs;
  if (!quiet)
    fmt::print(stderr, "planning  {} ({} parameters) on {} devices\n", printable(model.name),
               human_count(static_cast<double>(total_parameters(model.arch))), cluster.devices.size());
  ServeOutcome outcome = plan_serve(cluster, model, workload, search);
  if (!quiet && outcome.plan)
    fmt::print(stderr, "planned   {} in {}, {} candidates\n", name_of(outcome.plan->search.status),
               human_seconds(outcome.plan->search.elapsed_s), outcome.plan->search.evaluated);
  if (outcome.plan && !quiet) warn(plan_warnings(*outcome.plan, search), quiet);
  return outcome;
}

}  // namespace motley::cli
