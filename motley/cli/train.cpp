// motley train
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "motley/base/clock.hpp"
#include "motley/base/event_log.hpp"
#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/base/worker_program.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/gathering_options.hpp"
#include "motley/cli/serving_options.hpp"
#include "motley/comm/net/stop_signals.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/warnings.hpp"
#include "motley/plan/same_model.hpp"
#include "motley/trainer/layout/worker_layout.hpp"
#include "motley/trainer/train_run.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley::cli {
namespace {

struct TrainOptions {
  std::string plan, model, data, output, resume, eval_data;
  std::optional<std::int64_t> steps, seed, save_every, eval_every, max_bad_steps, from;
  int worker_threads = 1;
  bool no_shuffle = false;
  bool async_save = false;
  bool local = false;
  bool agents = false;
  GatheringFlags gathering;
  bool quiet = false;
};

TrainPlan sound_plan(const std::string& file) {
  TrainPlan plan = read_plan_file<TrainPlan>(file);
  require_sound(verify(plan), file);
  const DType precision = training_of(plan.workload).precision;
  if (precision != DType::fp32 && precision != DType::bf16)
    throw input_error(fmt::format("{}: the trainer cannot train in {}", file, name_of(precision)),
                      "plan with precision = \"bf16\" or \"fp32\" in the workload's [training]");
  return plan;
}

void check_model(const TrainPlan& plan, const std::string& folder, bool quiet) {
  if (!std::filesystem::exists(std::filesystem::path(folder) / "config.json"))
    throw input_error(fmt::format("{} is not a model folder: it has no config.json", folder),
                      "give a Hugging Face folder with config.json and weights in safetensors");
  const Model model = read_model(folder);
  require_same_model(plan, model, folder);
  warn(model_warnings(model), quiet);
}

// What is shown of a run.
class Progress {
 public:
  Progress(const TrainPlan& plan, const RunRecord& record, bool quiet)
      : plan_(plan), record_(record), quiet_(quiet), terminal_(!quiet && ::isatty(STDERR_FILENO) == 1) {}

  RunEvents events() {
    return {.starting = [this](const std::string& phase, double fraction) { starting(phase, fraction); },
            .ready = [this](const TrainWorkers& workers) { ready(workers); },
            .step = [this](const StepMetrics& metrics, const auto&) { step(metrics); },
            .notice = [this](const std::string& what) { line(what); }};
  }

 private:
  void line(const std::string& text) const {
    if (quiet_) return;
    fmt::print(stderr, "{}{}\n", terminal_ ? "\r\033[K" : "", printable(text));
    std::fflush(stderr);
  }
  void starting(const std::string& phase, double fraction) const {
    if (terminal_ && fraction < 1) fmt::print(stderr, "\r\033[K{:<8} {:3.0f} %", phase, 100 * fraction);
  }
  void ready(const TrainWorkers& workers) const {
    std::int64_t bytes = 0;
    for (const TrainReady& ready : workers.allocated())
      bytes += ready.weight_bytes + ready.gradient_bytes + ready.optimizer_bytes;
    line(fmt::format("{} hold {} of weights, gradients and states", counted(workers.devices().size(), "worker"),
                     human_bytes(static_cast<double>(bytes))));
  }
  void step(const StepMetrics& metrics) {
    ++steps_;
    seconds_ += metrics.seconds;
    const double mean = seconds_ / static_cast<double>(steps_);
    const TrainPrediction& predicted = plan_.predicted;
    const Training& training = training_of(plan_.workload);
    std::string text = fmt::format(
        "step {}/{}  loss {:.4f}  norm {:.3g}  {:.0f} tokens/s", metrics.step, record_.steps, metrics.loss,
        metrics.grad_norm, static_cast<double>(training.global_batch * training.sequence_length) / metrics.seconds);
    if (predicted.iteration_s > 0)
      text += fmt::format("  MFU {:.1f} %  {:.2f} x the predicted time",
                          100 * predicted.mfu * predicted.iteration_s / metrics.seconds,
                          metrics.seconds / predicted.iteration_s);
    if (metrics.step < record_.steps)
      text += fmt::format("  {} left", human_seconds(mean * static_cast<double>(record_.steps - metrics.step)));
    if (metrics.eval_loss) text += fmt::format("  validation loss {:.4f}", *metrics.eval_loss);
    const bool last = metrics.step == record_.steps;
    if (terminal_ && !last && !metrics.eval_loss) {
      fmt::print(stderr, "\r\033[K{}", text);
      std::fflush(stderr);
    } else if (last || metrics.eval_loss || shown_.time_since_epoch().count() == 0 || seconds_since(shown_) > 5) {
      line(text);
      shown_ = Clock::now();
    }
  }

  const TrainPlan& plan_;
  const RunRecord& record_;
  const bool quiet_, terminal_;
  std::int64_t steps_ = 0;
  double seconds_ = 0;
  Instant shown_;
};

void set_given(RunRecord& record, const TrainOptions& options) {
  record.steps = options.steps.value_or(record.steps);
  record.save_every = options.save_every.value_or(record.save_every);
  record.eval_every = options.eval_every.value_or(record.eval_every);
  record.max_bad_steps = options.max_bad_steps.value_or(record.max_bad_steps);
  if (!options.eval_data.empty()) record.eval_data = std::filesystem::absolute(options.eval_data).string();
}

// The machines of the plan have joined, and are as it describes them.
void gather(Gathering& gathering, const TrainPlan& plan) {
  gathering.open();
  gathering.offer_weights();
  std::set<std::string> machines;
  for (const std::string& device : train_devices(plan)) machines.insert(machine_of(device));
  gathering.wait_for(1, machines);
  gathering.check_described(plan.cluster);
}

// What is to be run, but for its plan.
RunRecord record_of(const TrainOptions& options) {
  const auto missing = [](const char* option, const char* hint) {
    return input_error(fmt::format("{} is missing", option), hint);
  };
  RunRecord record;
  if (!options.resume.empty()) {
    if (!options.output.empty() || !options.data.empty() || !options.model.empty() || options.seed ||
        options.no_shuffle)
      throw input_error("a run that is resumed keeps its folder, model, data and their order",
                        "leave out --output, --model, --data, --seed and --no-shuffle");
    record = read_run(options.resume);
  } else {
    if (options.plan.empty()) throw missing("the plan", "make one with `motley plan train ... -o plan.json`");
    if (options.model.empty()) throw missing("--model", "give the folder with the weights to begin with: --model DIR");
    if (options.data.empty()) throw missing("--data", "give a file of training data: --data corpus.jsonl");
    if (options.output.empty()) throw missing("--output", "give a folder for the run: --output run/");
    if (!options.steps) throw missing("--steps", "say how many steps the run takes: --steps 2000");
    if (options.from) throw input_error("--from is for --resume", "leave it out, or give --resume RUN");
    record.model = std::filesystem::absolute(locate_model(options.model, ModelFiles::all).path).string();
    record.data = std::filesystem::absolute(options.data).string();
    record.seed = options.seed.value_or(0);
    record.shuffle = !options.no_shuffle;
    record.total_steps = *options.steps;
  }
  set_given(record, options);
  if (options.local || options.agents) {
    record.local = options.local;
    record.agents = options.agents;
  }
  record.async_save = record.async_save || options.async_save;
  if (!record.local && !record.agents)
    throw input_error("--local or --agents is missing: where are the plan's devices?",
                      "give --local to run each as a CPU worker process on this machine, or --agents");
  return record;
}

int train(const TrainOptions& options) {
  RunRecord record = record_of(options);
  const std::string plan_source = options.plan.empty() ? options.resume + "/run.json" : options.plan;
  const TrainPlan plan =
      options.plan.empty() ? read_plan<TrainPlan>(record.plan, plan_source) : sound_plan(options.plan);
  record.plan = write(plan);
  EventLog log(shown(options.quiet));
  GatheringOptions gathered;
  if (record.agents) {
    GatheringFlags flags = options.gathering;
    if (flags.machine.gpus.empty()) flags.machine.gpus = no_gpus;  // the trainer runs on processors
    gathered = gathering_options(flags, log);
  }
  check_model(plan, record.model, options.quiet);
  const std::filesystem::path program = prepare_worker_program();
  const std::filesystem::path run = options.resume.empty() ? options.output : options.resume;
  if (options.resume.empty()) check_no_run(run);

  StopSignals signals;
  gathered.stop = signals.descriptor();
  std::optional<Gathering> gathering;
  // Where another driver goes on with the run, nothing more is written.
  const auto is_fenced = [&] { return gathering && !gathering->is_held(); };
  Progress progress(plan, record, options.quiet);
  RunEvents events = progress.events();
  events.stop = [&] { return signals.count() > 0 && !is_fenced(); };
  events.abort = [&] { return signals.count() > 1 || is_fenced(); };
  LocalFleet local({.program = program, .threads = options.worker_threads});
  const auto fleet = [&](const TrainPlan& of, const std::filesystem::path& weights, bool with_states) -> Fleet& {
    if (!record.agents) return local;
    const std::string& url = options.gathering.store;
    auto store = url.empty() ? store_of_run(run) : open_shared_store(url, false, std::ref(log));
    gathered.model = std::filesystem::absolute(weights);
    gathered.contents = with_states ? ManifestOf::weights_and_states : ManifestOf::weights;
    gathering.emplace(std::move(store), gathered);
    gather(*gathering, of);
    return gathering->machines();
  };
  RunOutcome outcome;
  try {
    outcome = run_from_checkpoint(run, record, options.from, fleet, events);
  } catch (const Error& error) {
    if (gathering) gathering->check_held();
    // The run waits to be resumed.
    if (gathering && error.code() == ErrorCode::peer) gathering->leave();
    throw;
  }
  if (!options.quiet)
    fmt::print(stderr, "{} after step {}: {}\n", outcome.stopped ? "stopped" : "done", outcome.step,
               (run / fmt::format("step-{}", outcome.step)).string());
  return outcome.stopped ? static_cast<int>(ErrorCode::interrupted) : 0;
}

}  // namespace

void add_train(CLI::App& parent, Action& action) {
  const auto [verb, options] =
      add_verb<TrainOptions>(parent, action, "train", "Run a training plan: one worker process per device", train);
  verb->footer(
      "examples:\n"
      "  motley train plan.json --model DIR --data corpus.jsonl --output run/ --steps 2000 --local\n"
      "  motley train plan.json --model DIR --data corpus.jsonl --output run/ --steps 2000 --agents\n"
      "                                             on the machines of the plan, once they have joined\n"
      "  motley train --resume run/                 go on after a kill, from the newest checkpoint\n"
      "  motley train --resume run/ other.json      the same run by another plan\n"
      "  motley serve --cluster cluster.toml --model run/step-2000 --local       what was trained");
  verb->add_option("plan", options->plan, "Training plan (with --resume: default the run's)")->type_name("PLAN");
  verb->add_option("--model", options->model, "Model folder with the weights to begin with")->type_name("DIR");
  verb->add_option("--data", options->data, "Training data: .jsonl, .txt, .npy, or .bin with .idx")->type_name("FILE");
  verb->add_option("--output", options->output, "Folder for metrics and checkpoints; must not hold a run")
      ->type_name("RUN");
  verb->add_option("--resume", options->resume, "Go on with the run in this folder")->type_name("RUN");
  verb->add_option("--from", options->from, "With --resume: go on from this step's checkpoint, not the newest")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  verb->add_option("--steps", options->steps, "Steps in all")->check(CLI::PositiveNumber)->type_name("N");
  verb->add_option("--seed", options->seed, "Seed of the order of the data (default 0)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  verb->add_flag("--no-shuffle", options->no_shuffle, "Take the sequences in the order of the file");
  verb->add_option("--save-every", options->save_every, "Steps between checkpoints (default: after the last alone)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  verb->add_flag("--async-save", options->async_save,
                 "Write checkpoints while the next steps run, from a copy that workers hold");
  verb->add_option("--eval-data", options->eval_data, "Validation data, in the same forms")->type_name("FILE");
  verb->add_option("--eval-every", options->eval_every, "Steps between validations (default: after the last)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  verb->add_option("--max-bad-steps", options->max_bad_steps,
                   "Steps in a row without a finite loss that are skipped (default 10)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  verb->add_option("--worker-threads", options->worker_threads, "Threads per worker (default 1)")
      ->check(CLI::Range(1, 1024));
  verb->add_flag("--local", options->local, "Run each device as a worker process on this machine");
  verb->add_flag("--agents", options->agents, "Run the plan on the machines that it names, which join as with `up`")
      ->excludes("--local");
  add_gathering_options(*verb, options->gathering);
  add_store_option(*verb, options->gathering.store,
                   "With --agents: keep the deployment in etcd://HOST:PORT/PREFIX, not a file");
  verb->add_flag("-q,--quiet", options->quiet, "Print no progress on stderr");
}

}  // namespace motley::cli
