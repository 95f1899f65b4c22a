#include "motley/cli/serving_options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "motley/base/printable.hpp"
#include "motley/base/worker_program.hpp"
#include "motley/cli/command.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/crossing_types.hpp"
#include "motley/model/warnings.hpp"
#include "motley/plan/offload_plan.hpp"
#include "motley/plan/same_model.hpp"
#include "motley/plan/served.hpp"
#include "motley/planner/serve/plan_again.hpp"

namespace motley::cli {
namespace {

// A plan for one device that offloads runs as a serving plan of one stage.
ServePlan read_runnable(const std::string& file) {
  const auto plan = read_plan_file<ServePlan, OffloadPlan>(file);
  if (const auto* offload = std::get_if<OffloadPlan>(&plan)) {
    require_sound(verify(*offload), file);
    return motley::serving_plan(*offload);
  }
  require_sound(std::get<ServePlan>(plan), file);
  return std::get<ServePlan>(plan);
}

void require_served(const ServePlan& plan, const std::string& file) {
  if (const auto reasons = not_served(plan); !reasons.empty())
    throw input_error(fmt::format("{}: {}: {}", file, reasons[0].place, reasons[0].what), reasons[0].hint);
}

}  // namespace

// Types that are not given are the checkpoint's.
void require_served_types(const PlanningOptions& planning) {
  const auto check = [](const std::string& what, DType type, const char* option, Use use) {
    if (!supports(type, Support::served, use))
      throw input_error(fmt::format("{} must be a type that workers compute in, found {}", what, name_of(type)),
                        fmt::format("choose {} {}", option, names_with(Support::served, use)));
  };
  const bool stated = !planning.weight_type.empty();
  const DType weights = stated ? parse_dtype_option(planning.weight_type, "--weight-type")
                               : read_named_model(planning.model).arch.checkpoint_type;
  check(stated ? "--weight-type" : fmt::format("the weight type of {}", planning.model), weights, "--weight-type",
        Use::weights);
  if (!planning.kv_type.empty())
    check("--kv-type", parse_dtype_option(planning.kv_type, "--kv-type"), "--kv-type", Use::kv);
  if (!planning.crossing_type.empty())
    check_activation_type(read_named_model(planning.model).arch,
                          parse_dtype_option(planning.crossing_type, "--crossing-type"));
}

// How far something has come is shown in place, and only on a terminal.
std::function<void(const Event&)> shown(bool quiet) {
  if (quiet) return {};
  return [terminal = ::isatty(STDERR_FILENO) == 1](const Event& event) {
    if (event.is_progress() && !terminal) return;
    fmt::print(stderr, "{}[{:7.2f}s] {:<10} {}{}", terminal ? "\r\033[K" : "", event.elapsed_s, printable(event.what),
               printable(event.detail), event.is_progress() ? "" : "\n");
    std::fflush(stderr);
  };
}

int interrupted() { return static_cast<int>(ErrorCode::interrupted); }

void add_serving_options(CLI::App& verb, ServingOptions& options) {
  verb.add_option("plan", options.plan, "Plan file (default: plan for --cluster)")->type_name("PLAN");
  add_planning_options(verb, options.planning, "Model folder, GGUF file, or OWNER/NAME[:FILE.gguf] on the hub");
  verb.add_option("--transport", options.transport, "Transport between workers (default shm)")
      ->check(CLI::IsMember({"shm", "tcp"}));
  verb.add_option("--backend", options.backend,
                  "Backend of all devices: cpu; cuda: slot n on GPU n; cuda:N (default cpu)")
      ->check([](const std::string& given) {
        return is_backend(given) ? "" : given + " is none of cpu, cuda, cuda:0, cuda:1, ...";
      });
  verb.add_option("--worker-threads", options.worker_threads, "Threads per worker (default 1)")
      ->check(CLI::Range(0, 1024));
}

ServePlan serving_plan(const ServingOptions& options) {
  if (options.planning.model.empty())
    throw input_error("--model is missing", "give the folder with the model's weights: --model DIR");
  if (!options.plan.empty()) {
    if (!options.planning.cluster.empty())
      throw input_error("a plan and --cluster cannot be combined", "leave out --cluster: the plan has its cluster");
    ServePlan plan = read_runnable(options.plan);
    const std::string& named = options.planning.model;
    const Model model = read_named_model(named, planned_revision(plan.model, named));
    require_same_model(plan, model, named);
    warn(model_warnings(model), false);
    choose_context(plan.model, options.planning.context);
    require_served(plan, options.plan);
    return plan;
  }
  if (options.planning.cluster.empty())
    throw input_error("the plan is missing", "make one with `motley plan serve ... -o plan.json`, or give --cluster");
  PlanningOptions planning = options.planning;
  planning.no_roles = true;  // the driver does not run them yet
  require_served_types(planning);
  const ServeOutcome outcome = plan_from_options(planning, false);
  if (!outcome.plan) throw Error(ErrorCode::negative, "does not fit: " + outcome.reason, outcome.hint);
  return *outcome.plan;
}

ServeSettings serve_settings(const ServingOptions& options, const ServePlan& plan, EventLog& events) {
  const std::string& named = options.planning.model;
  ServeSettings settings;
  settings.model_folder = locate_model(named, ModelFiles::all, planned_revision(plan.model, named)).path;
  settings.report = std::ref(events);
  return settings;
}

LocalFleetOptions local_fleet(const ServingOptions& options) {
  return {.program = prepare_worker_program(),
          .transport = options.transport,
          .backend = options.backend,
          .threads = std::max(1, options.worker_threads)};
}

}  // namespace motley::cli
