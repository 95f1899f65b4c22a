#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/plan_train.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/plan/offload_plan.hpp"
#include "motley/report/sim_report.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"
#include "motley/workload/workload_warnings.hpp"

namespace motley::cli {
namespace {

constexpr std::int64_t default_requests = 1000;

struct SimulateOptions {
  std::string plan, workload, profile;
  std::string duration, rate;
  std::int64_t requests = 0;
  double rate_scale = 1;
  std::uint64_t seed = 0;
  std::vector<std::string> faults;
  std::int64_t max_queue = 256;
  std::vector<std::string> settings;
  std::string trace_out;
  Output output;
};

// "box/3@30s" or "box/3@30s-60s".
Fault parse_fault(const std::string& text, const Cluster& cluster) {
  const auto at = text.rfind('@');
  if (at == std::string::npos || at == 0)
    throw input_error(fmt::format("--fault needs a device and a time, found \"{}\"", text),
                      "give the device, the time of the loss and, if it returns, of the return: \"box/3@30s-60s\"");
  Fault fault{.device = text.substr(0, at)};
  cluster.find_device(fault.device);
  const std::string times = text.substr(at + 1);
  const auto dash = times.find('-');
  fault.from_s = parse_seconds_option(times.substr(0, dash), "--fault");
  if (dash != std::string::npos) fault.until_s = parse_seconds_option(times.substr(dash + 1), "--fault");
  return fault;
}

Workload workload_of(const SimulateOptions& options, const ServePlan& plan) {
  Workload workload = options.workload.empty() ? plan.workload : read_workload(options.workload);
  if (workload.training)
    throw input_error("the workload is a training job", "give a workload that describes requests, with [[class]]");
  if (!options.rate.empty())
    workload = with_rate(std::move(workload), parse_quantity_option(options.rate, "--rate", Dimension::per_s,
                                                                    is_positive, "a positive rate", "4 /s"));
  const bool traced = workload.arrival.process == ArrivalProcess::trace;
  if (!traced && workload.total_rate_per_s() <= 0)
    throw input_error("the workload has no rate of requests",
                      "give its classes a rate, or give one here: --rate \"4 /s\"");
  return workload;
}

ArrivalOptions arrivals_of(const SimulateOptions& options, const Workload& workload) {
  ArrivalOptions arrivals{.requests = options.requests, .rate_scale = options.rate_scale, .seed = options.seed};
  if (!options.duration.empty()) {
    arrivals.duration_s = parse_seconds_option(options.duration, "--duration");
    if (arrivals.duration_s <= 0)
      throw input_error("--duration must be longer than 0 s", "give a time, as in --duration \"60 s\"");
  }
  if (options.duration.empty() && options.requests == 0 && workload.arrival.process != ArrivalProcess::trace)
    arrivals.requests = default_requests;
  return arrivals;
}

// A bar on a terminal, once it has taken long enough to wonder.
class ProgressBar {
 public:
  explicit ProgressBar(bool quiet) : shown_(!quiet && ::isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
  }
  void show(double share) {
    using namespace std::chrono_literals;
    const Instant now = Clock::now();
    if (!shown_ || now - start_ < 500ms || now - last_ < 50ms) return;
    constexpr int width = 40;
    const auto filled = static_cast<std::size_t>(std::lround(share * width));
    fmt::print(stderr, "\rsimulating [{:<{}}] {:3.0f} %", std::string(filled, '#'), width, 100 * share);
    std::fflush(stderr);
    last_ = now;
    drawn_ = true;
  }

 private:
  bool shown_;
  bool drawn_ = false;
  Instant start_ = Clock::now(), last_ = start_;
};

int simulate_plan(const TrainPlan& plan, const SimulateOptions& options) {
  return simulate_train(plan, options.plan, cost_options("motley", options.settings), options.trace_out,
                        options.output);
}

int simulate_serving(ServePlan plan, const SimulateOptions& options) {
  plan.workload = workload_of(options, plan);
  warn(workload_warnings(plan.workload), options.output.quiet);
  if (!options.profile.empty()) plan.profile = read_profile(options.profile);
  const ArrivalOptions arrivals = arrivals_of(options, plan.workload);
  const std::vector<TraceRequest> requests = draw_requests(plan.workload, arrivals);
  if (requests.empty()) throw input_error("no request arrives within --duration", "increase --duration or the rate");

  ProgressBar bar(options.output.quiet);
  SimOptions sim{.cost = cost_options("motley", options.settings),
                 .router = {.max_queue = options.max_queue},
                 .record = options.trace_out.empty() ? Record::summary : Record::timeline,
                 .progress = [&](double share) { bar.show(share); }};
  for (const std::string& text : options.faults) sim.faults.push_back(parse_fault(text, plan.cluster));
  if (arrivals.duration_s > 0) sim.measure_until_s = arrivals.duration_s;
  const SimResult result = simulate(plan, requests, sim);
  if (!options.trace_out.empty()) {
    write_file(options.trace_out, chrome_trace(*result.timeline));
    if (!options.output.quiet) fmt::print(stderr, "wrote {}\n", options.trace_out);
  }
  emit(options.output, sim_json(result), sim_report(result));
  return 0;
}

int simulate_plan(const ServePlan& plan, const SimulateOptions& options) {
  require_sound(plan, options.plan);
  return simulate_serving(plan, options);
}

int simulate_plan(const OffloadPlan& plan, const SimulateOptions& options) {
  require_sound(verify(plan), options.plan);
  return simulate_serving(serving_plan(plan), options);
}

int simulate_and_show(const SimulateOptions& options) {
  check_output_folder(options.output);
  check_output_folder({.json = false, .file = options.trace_out, .quiet = false});
  return std::visit([&](const auto& plan) { return simulate_plan(plan, options); },
                    read_plan_file<ServePlan, TrainPlan, OffloadPlan>(options.plan));
}

}  // namespace

void add_simulate(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<SimulateOptions>(
      parent, action, "simulate", "Simulate a serving plan: times to tokens, deadlines kept, use of stages",
      simulate_and_show);
  verb->footer("example: motley simulate plan.json --rate \"2 /s\" --duration \"120 s\" --trace-out timeline.json");
  verb->add_option("plan", options->plan, "Plan file")->required()->type_name("PLAN");
  verb->add_option("--workload", options->workload, "Workload file (default: the plan's workload)")->type_name("FILE");
  verb->add_option("--profile", options->profile, "Profile with measured rates (default: the plan's profile)")
      ->type_name("FILE");
  verb->add_option("--duration", options->duration, "Time in which requests arrive, as in \"60 s\"")->type_name("TIME");
  verb->add_option(
          "--requests", options->requests,
          fmt::format("Number of requests (default {} without --duration; or the whole trace)", default_requests))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{50'000'000}));
  verb->add_option("--rate", options->rate, "Rate of all classes together, as in \"4 /s\"")->type_name("RATE");
  verb->add_option("--rate-scale", options->rate_scale, "Factor on the rates, or on the speed of a trace (default 1)")
      ->check(CLI::Range(1e-9, 1e9));
  verb->add_option("--fault", options->faults, "Lose a device, and get it back: \"box/3@30s\", \"box/3@30s-60s\"")
      ->type_name("DEVICE@TIME[-TIME]");
  verb->add_option("--max-queue", options->max_queue,
                   "Most waiting requests per scheduler; more are refused (default 256)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  verb->add_option("--set", options->settings, "Constant of the cost form, as in motley.step_overhead_s=5e-5")
      ->type_name("KEY=VALUE");
  verb->add_option("--trace-out", options->trace_out, "Write a timeline for Perfetto or chrome://tracing to this file")
      ->type_name("FILE");
  verb->add_option("--seed", options->seed, "Seed of arrivals and lengths (default 0)");
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
