// Sizes of steps, measured with real workers: the garage's six devices, each a worker process on this machine that gets
// a part of a processor (control groups, version 1), and next to each figure what the simulator makes of the measured
// times of steps.
//
//   steps_measured [--quota SHARE] [--period-us N] [--width N] [--prompt N] [--output N] [--streams N] [--alone N]
//                  [--waves N] [--rounds N] [--explain 1]
//
// Rules: fixed steps of 512 tokens with one chunk of a prompt at a time, steps by the cost model's times, and steps by
// measured times. Of each: a request alone (median of `--alone`), and as many as `--streams` at once (median of
// `--waves`), after as many to measure times in. At the end medians over the rounds, of which each runs every rule.
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/median.hpp"
#include "motley/planner/serve/plan_serve.hpp"
#include "motley/probe/probe_run.hpp"
#include "motley/serving/driver.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

struct Options {
  double quota = 0.2;
  std::int64_t period_us = 5000;
  std::int64_t prompt_tokens = 300, output_tokens = 64, streams = 16, waves = 3, rounds = 3, alone = 10, width = 192,
               explain = 0;
};

const fs::path source = MOTLEY_SOURCE_DIR;

// The tales model, or one of its shape that is wider, with zeros for weights: they take as long to multiply as others.
class BenchModel {
 public:
  explicit BenchModel(std::int64_t width) {
    const fs::path tales = source / "data/models/tales";
    if (width == tales_width) {
      folder_ = tales;
      return;
    }
    std::ifstream in(tales / "config.json");
    Value config = parse_json(std::string(std::istreambuf_iterator<char>(in), {}), "config.json");
    const std::int64_t heads = 8;
    config.set("hidden_size", width);
    config.set("head_dim", width / heads);
    config.set("intermediate_size", width * 8 / 3 / 64 * 64);
    std::ofstream(made_.path() / "config.json") << to_json(config);
    write_weights(read_model(made_.path().string()).arch, made_.path());
    folder_ = made_.path();
  }
  static constexpr std::int64_t tales_width = 192;
  const fs::path& folder() const { return folder_; }

 private:
  TemporaryFolder made_;
  fs::path folder_;
};

// The garage with memory for sixteen streams and steps of 512 tokens.
ServePlan garage_plan(const Options& options, const fs::path& model) {
  ClusterDescription garage = read_cluster(source / "examples/garage/cluster.toml").description;
  const std::int64_t wider = options.width / BenchModel::tales_width;
  for (auto& type : garage.device_types) type.memory_bytes *= 3 * wider * wider;
  const Cluster cluster = resolve(std::move(garage), "garage");
  return plan_serve(cluster, read_model(model.string()),
                    read_workload((source / "examples/garage/workload.toml").string()),
                    {.step = {.max_tokens = 512, .max_sequences = 16},
                     .use_devices = UseDevices::all,
                     .replication = Replication::one_pipeline,
                     .weight_type = DType::bf16})
      .plan.value();
}

// A share of a processor for every process.
class Quotas {
 public:
  explicit Quotas(const Options& options) : options_(options) {}
  ~Quotas() {
    for (const fs::path& group : groups_) ::rmdir(group.c_str());
  }
  static bool possible() {
    const fs::path group = root() / fmt::format("motley-steps-{}", ::getpid());
    std::error_code error;
    const bool made = fs::create_directory(group, error) && fs::exists(group / "cpu.cfs_quota_us");
    ::rmdir(group.c_str());
    return made;
  }
  void limit(int process) {
    const fs::path group = root() / fmt::format("motley-steps-{}", process);
    fs::create_directory(group);
    groups_.push_back(group);
    write(group / "cpu.cfs_period_us", options_.period_us);
    write(group / "cpu.cfs_quota_us",
          static_cast<std::int64_t>(options_.quota * static_cast<double>(options_.period_us)));
    write(group / "cgroup.procs", process);
  }

 private:
  static fs::path root() { return "/sys/fs/cgroup/cpu"; }
  static void write(const fs::path& file, std::int64_t value) {
    std::ofstream out(file);
    out << value << std::flush;
    if (!out) throw Error(ErrorCode::environment, fmt::format("cannot write {} to {}", value, file.string()));
  }
  const Options& options_;
  std::vector<fs::path> groups_;
};

// Answers of requests, and when their tokens came.
class Answers {
 public:
  struct Times {
    Instant asked, first, last;
    std::int64_t tokens = 0;
    bool ended = false;
  };
  void take(const std::vector<GenerateEvent>& events) {
    const Instant now = Clock::now();
    const std::lock_guard lock(mutex_);
    for (const GenerateEvent& event : events) {
      Times& times = times_[event.request];
      if (event.token && times.tokens++ == 0) times.first = now;
      times.last = now;
      if (event.finished) times.ended = true, ++ended_;
    }
    changed_.notify_all();
  }
  void asked(std::uint64_t id, Instant at) {
    const std::lock_guard lock(mutex_);
    times_[id].asked = at;
  }
  void wait(std::size_t ended) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= ended; });
  }
  std::vector<Times> all() {
    const std::lock_guard lock(mutex_);
    std::vector<Times> all;
    for (const auto& [id, times] : times_) all.push_back(times);
    return all;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Times> times_;
  std::size_t ended_ = 0;
};

struct Figures {
  double first_s = 0, tokens_per_s = 0, token_s = 0, wave_first_s = 0;
};

Figures medians(const std::vector<Figures>& all) {
  const auto of = [&](double Figures::*figure) {
    std::vector<double> values;
    for (const Figures& figures : all) values.push_back(figures.*figure);
    return median(values);
  };
  return {of(&Figures::first_s), of(&Figures::tokens_per_s), of(&Figures::token_s), of(&Figures::wave_first_s)};
}

double seconds_between(Instant a, Instant b) { return std::chrono::duration<double>(b - a).count(); }

class Run {
 public:
  Run(const ServePlan& plan, const fs::path& model, const MakeStepRule& rule, const Options& options)
      : options_(options), quotas_(options), driver_(plan, fleet_, driver_options(model, rule)) {
    for (const WorkerStatus& worker : driver_.status().workers) quotas_.limit(worker.process);
  }

  Figures figures() {
    for (std::int64_t i = 0; i < options_.alone; ++i) alone();  // in which the times are measured
    for (std::int64_t i = 0; i < options_.waves; ++i) wave();
    std::vector<double> first;
    for (std::int64_t i = 0; i < options_.alone; ++i) first.push_back(alone());
    std::vector<Figures> waves;
    for (std::int64_t i = 0; i < options_.waves; ++i) waves.push_back(wave());
    Figures figures = medians(waves);
    figures.first_s = median(first);
    return figures;
  }
  DriverStatus status() const { return driver_.status(); }

 private:
  DriverOptions driver_options(const fs::path& model, const MakeStepRule& rule) {
    DriverOptions options;
    options.model_folder = model;
    options.step_rule = rule;
    options.on_events = [this](const std::vector<GenerateEvent>& events) { answers_.take(events); };
    return options;
  }

  void ask(std::int64_t output_tokens) {
    GenerateRequest request;
    for (std::int64_t i = 0; i < options_.prompt_tokens; ++i)
      request.prompt.push_back(static_cast<std::int32_t>(100 + random_() % 1900));
    request.max_new_tokens = output_tokens;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    const Instant now = Clock::now();
    answers_.asked(driver_.generate(std::move(request)), now);
    ++asked_;
  }

  double alone() {
    ask(8);
    answers_.wait(asked_);
    const auto times = answers_.all().back();
    return seconds_between(times.asked, times.first);
  }

  // As many requests as streams, at once.
  Figures wave() {
    const std::size_t before = asked_;
    const Instant start = Clock::now();
    for (std::int64_t i = 0; i < options_.streams; ++i) ask(options_.output_tokens);
    answers_.wait(asked_);
    Figures figures{.tokens_per_s =
                        static_cast<double>(options_.streams * options_.output_tokens) / seconds_since(start)};
    std::vector<double> first, token;
    const auto all = answers_.all();
    for (std::size_t i = before; i < all.size(); ++i) {
      first.push_back(seconds_between(all[i].asked, all[i].first));
      token.push_back(seconds_between(all[i].first, all[i].last) / static_cast<double>(all[i].tokens - 1));
    }
    figures.wave_first_s = median(first);
    figures.token_s = median(token);
    return figures;
  }

  const Options& options_;
  Answers answers_;
  Quotas quotas_;
  std::mt19937 random_{1};
  std::size_t asked_ = 0;
  LocalFleet fleet_{{.program = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "motley-worker"}};
  Driver driver_;  // last: its thread uses the rest
};

struct Rule {
  std::string name;
  MakeStepRule make;
};

// By the cost model's times: what was measured is not looked at.
StepRule by_predicted_times(const PipelineHandle& pipeline, const SchedulerLimits& limits) {
  return timed_steps(std::make_shared<const PipelineTime>(*pipeline), limits);
}

StepRule one_at_a_time(const PipelineHandle&, const SchedulerLimits& limits) {
  return [budget = StepBudget{limits.micro_batches, limits.max_tokens, 1}](const StepState&) { return budget; };
}

void print(const std::string& name, const Figures& figures) {
  fmt::print("| {} | {:.0f} ms | {:.0f} | {:.1f} ms | {:.0f} ms |\n", name, 1e3 * figures.first_s, figures.tokens_per_s,
             1e3 * figures.token_s, 1e3 * figures.wave_first_s);
  std::fflush(stdout);
}

// The same requests, by the times that the run has measured: a lone one, and as many at once as there are streams.
Figures simulated(ServePlan plan, const PipelineTime& times, const MakeStepRule& rule, const Options& options) {
  const auto run = [&](std::int64_t requests, std::int64_t output_tokens) {
    std::vector<TraceRequest> trace(static_cast<std::size_t>(requests));
    for (TraceRequest& request : trace) {
      request.prompt_tokens = options.prompt_tokens;
      request.output_tokens = output_tokens;
      request.class_name = plan.workload.classes[0].name;
    }
    return simulate(plan, trace,
                    {.router = {.max_queue = std::int64_t{1} << 40, .step_rule = rule, .cost = {}}, .times = times});
  };
  plan.workload.classes.resize(1);
  plan.workload.classes[0].deadline = {};
  Figures figures;
  figures.first_s = run(1, 8).all.ttft_s.p50;
  const SimResult loaded = run(options.streams, options.output_tokens);
  figures.tokens_per_s = static_cast<double>(options.streams * options.output_tokens) /
                         std::ranges::max(loaded.records, {}, &RequestRecord::last_token_s).last_token_s;
  figures.token_s = loaded.all.tpot_s.p50;
  figures.wave_first_s = loaded.all.ttft_s.p50;
  return figures;
}

void explain(const ServePlan& plan, const DriverStatus& status) {
  for (const WorkerStatus& worker : status.workers)
    fmt::print("   {} busy {:.3f} s, waited {:.3f} s, {} steps\n", worker.device, worker.busy_s, worker.waited_s,
               worker.steps);
  const PipelineStatus& pipeline = status.pipelines.at(0);
  for (const double tokens : {1.0, 4.0, 16.0, 64.0, 256.0}) {
    const StepLoad load{.tokens = tokens, .context = 150, .cached = 150, .logits = 1};
    fmt::print("   {:4} tokens:", tokens);
    for (std::size_t i = 0; i < pipeline.predicted.visits.size(); ++i)
      fmt::print("  {} {:.2f} -> {:.2f} ms", plan.stages.at(pipeline.predicted.visits[i].stage).id,
                 1e3 * pipeline.predicted.visits[i].time.seconds(load),
                 1e3 * pipeline.measured.visits[i].time.seconds(load));
    const auto way = [&](const PipelineTime& times) {
      double seconds = times.back_s;
      for (const auto& crossing : times.crossings) seconds += crossing.time.seconds(tokens);
      return 1e3 * seconds;
    };
    fmt::print("  between {:.2f} -> {:.2f} ms\n", way(pipeline.predicted), way(pipeline.measured));
  }
}

int measure(const Options& options) {
  if (!Quotas::possible()) {
    fmt::print(stderr, "skipped: /sys/fs/cgroup/cpu is not a writable controller of version 1\n");
    return 0;
  }
  const BenchModel model(options.width);
  const ServePlan plan = garage_plan(options, model.folder());
  const std::vector<Rule> rules{
      {"fixed", one_at_a_time}, {"predicted times", by_predicted_times}, {"measured times", timed_steps}};
  fmt::print("| steps | first token alone | {0} at once: tokens/s | per token | first token |\n|---|---|---|---|---|\n",
             options.streams);
  std::map<std::string, std::vector<Figures>> found;
  for (std::int64_t round = 0; round < options.rounds; ++round)
    for (const Rule& rule : rules) {
      Run run(plan, model.folder(), rule.make, options);
      found[rule.name].push_back(run.figures());
      print(rule.name, found[rule.name].back());
      const PipelineTime times = run.status().pipelines.at(0).measured;
      found[rule.name + ", simulated"].push_back(simulated(plan, times, rule.make, options));
      print(rule.name + ", simulated", found[rule.name + ", simulated"].back());
      if (options.explain != 0) explain(plan, run.status());
    }
  fmt::print("\nmedians\n\n");
  for (const auto& [name, figures] : found) print(name, medians(figures));
  return 0;
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  using namespace motley;
  Options options;
  const std::map<std::string_view, std::int64_t*> numbers{
      {"--period-us", &options.period_us}, {"--prompt", &options.prompt_tokens}, {"--output", &options.output_tokens},
      {"--streams", &options.streams},     {"--waves", &options.waves},          {"--alone", &options.alone},
      {"--rounds", &options.rounds},       {"--width", &options.width},          {"--explain", &options.explain}};
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = arguments[i];
    if (name == "--quota")
      options.quota = std::atof(arguments[i + 1]);
    else if (const auto number = numbers.find(name); number != numbers.end())
      *number->second = std::atoll(arguments[i + 1]);
    else
      return fmt::print(stderr, "error: unknown option {}\n", name), 2;
  }
  try {
    return measure(options);
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
