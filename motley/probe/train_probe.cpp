#include "motley/probe/train_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/model/training.hpp"
#include "motley/probe/probe_run.hpp"
#include "motley/trainer/layout/worker_layout.hpp"
#include "motley/trainer/train_workers.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley {
namespace {

constexpr std::int64_t layers = 4;  // of the larger model that is run
constexpr std::int64_t micro_batches = 3;
constexpr std::int64_t most_sequences = 4;
constexpr int least_sweeps = 3;
constexpr int most_sweeps = 18;  // until they tell the layers from the rest

// The same but for the number of its layers.
Model shortened(const Model& model, std::int64_t count) {
  Model made;
  made.name = model.name;
  made.config = model.config;
  made.config.set("num_hidden_layers", count);
  if (const Value* types = made.config.find("layer_types"); types != nullptr && types->is_array()) {
    Value::Array kept = types->as_array();
    kept.resize(static_cast<std::size_t>(count), kept.empty() ? Value() : kept.back());
    made.config.set("layer_types", std::move(kept));
  }
  made.arch = read_architecture(made.config, "probe");
  return made;
}

// Alike replicas of one stage, which takes all of its devices for tensor parallelism.
TrainPlan plan_of(const Model& model, const Training& training, std::int64_t replicas, std::int64_t degree) {
  TrainPlan plan;
  plan.model = model;
  plan.workload.training = training;
  const LayerRange all{0, model.arch.layers};
  int devices = 0;
  for (std::int64_t r = 0; r < replicas; ++r) {
    TrainStage stage{.layers = all, .devices = {}, .strategies = {{.layers = all, .tp = degree}}};
    for (std::int64_t k = 0; k < degree; ++k) stage.devices.push_back(fmt::format("here/{}", devices++));
    plan.replicas.push_back(
        {.share = 1 / static_cast<double>(replicas), .micro_batches = micro_batches, .stages = {std::move(stage)}});
  }
  plan.cluster = resolve(one_machine(devices, std::int64_t{1} << 50), "probe");
  return plan;
}

// A worker's mean micro-batch, and what it does once per step.
struct StepParts {
  double forward_s = 0, backward_s = 0, once_s = 0, exchange_s = 0;
};

StepParts parts_of(const TrainStepDone& done) {
  // Before the first pass gradients are set to zero.
  StepParts parts{.once_s = done.passes.at(0).start_s + done.update_s, .exchange_s = done.exchange_s};
  for (const TrainPass& pass : done.passes)
    (pass.way == TrainPass::Way::forward ? parts.forward_s : parts.backward_s) +=
        (pass.end_s - pass.start_s) / static_cast<double>(micro_batches);
  return parts;
}

using Rounds = std::vector<std::vector<StepParts>>;  // of each worker

// Not a quartile: times of parts add up to a step's, and where other programs slow the machine down for parts of a
// second, only means do so. A step of a second meets more of them than a pass does.
double mean(const std::vector<double>& values) {
  MOTLEY_CHECK(!values.empty());
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class TrainProbe {
 public:
  explicit TrainProbe(const TrainProbeOptions& options) : options_(options), model_(shortened(options.model, layers)) {
    std::size_t most = 0;
    for (const Machine& machine : options.cluster.machines) {
      std::size_t count = 0;
      for (const int device : machine.devices)
        if (const DeviceType& type = options.cluster.type_of(device); type.vendor == "cpu") {
          types_.insert(type.name);
          ++count;
        }
      most = std::max(most, count);
    }
    if (types_.empty())
      throw input_error("no device of the cluster is a CPU, and only CPU workers can be measured",
                        "give a cluster with a device type of the vendor \"cpu\"");
    devices_ = static_cast<std::int64_t>(most);
    for (std::int64_t d = 1; d <= std::min(devices_, model_.arch.heads); d *= 2) degrees_.push_back(d);
    for (std::int64_t b = 1; b <= std::min(options.training.global_batch, most_sequences); b *= 2) sizes_.push_back(b);
    training_ = options.training;
    training_.global_batch = most_sequences * micro_batches * devices_;
    write_weights(model_.arch, folder_.path());
  }

  Profile run() {
    probe_once();
    for (const std::int64_t degree : degrees_) probe_passes(degree);
    return std::move(profile_);
  }

 private:
  // Whole models, on as many devices as there are: what follows the passes of a step.
  void probe_once() {
    const std::unique_ptr<TrainWorkers> workers = start(plan_of(model_, training_, devices_, 1));
    Rounds rounds;
    const Instant begun = Clock::now();
    for (int sweep = 0; sweep < least_sweeps || seconds_since(begun) < share_s(1); ++sweep)
      turns({{workers.get(), &rounds.emplace_back()}}, static_cast<std::size_t>(devices_), 1, sweep == 0);
    std::vector<double> once_s, exchange_s;
    for (const std::vector<StepParts>& round : rounds) {
      // The worker that comes last does not wait.
      const auto least = [&](double StepParts::*figure) { return std::ranges::min(round, {}, figure).*figure; };
      once_s.push_back(least(&StepParts::once_s));
      exchange_s.push_back(least(&StepParts::exchange_s));
    }
    const auto parameters = static_cast<double>(total_parameters(model_.arch));
    once_s_ = mean(once_s) / parameters;
    report("what a step does once");
    if (devices_ < 2) return;
    const double bytes = 4 * parameters, members = static_cast<double>(devices_);
    const double rate = 2 * bytes * (members - 1) / members / mean(exchange_s);
    for (const std::string& from : types_)
      for (const std::string& to : types_)
        profile_.link_rate.push_back({from, to, {static_cast<double>(gradient_bucket_bytes) / members}, {rate}});
    report("sums of gradients");
  }

  struct Passes {
    double forward_s = 0, backward_s = 0;
    Passes operator-(const Passes& o) const { return {forward_s - o.forward_s, backward_s - o.backward_s}; }
    Passes operator/(double n) const { return {forward_s / n, backward_s / n}; }
  };
  // Jobs that ran at the same time, as the workers of one step, who wait for the slowest: other programs slow down now
  // this one, now that.
  static std::vector<StepParts> side_by_side(const std::vector<std::vector<StepParts>>& jobs) {
    std::vector<StepParts> workers;
    for (const std::vector<StepParts>& job : jobs) workers.insert(workers.end(), job.begin(), job.end());
    return workers;
  }

  // Of the worker that took longest in each round.
  static Passes passes(const Rounds& rounds) {
    std::vector<double> forward_s, backward_s;
    for (const std::vector<StepParts>& round : rounds) {
      const StepParts slowest =
          std::ranges::max(round, {}, [](const StepParts& one) { return one.forward_s + one.backward_s; });
      forward_s.push_back(slowest.forward_s);
      backward_s.push_back(slowest.backward_s);
    }
    return {mean(forward_s), mean(backward_s)};
  }

  // Of models of one and of several layers, with micro-batches of one size.
  struct Measured {
    Rounds few, more;
    Passes block() const { return (passes(more) - passes(few)) / static_cast<double>(layers - 1); }
    Passes rest() const { return passes(few) - block(); }
    bool told_apart() const { return block().forward_s > 0 && block().backward_s > 0; }
  };

  // Models of one and of several layers tell the blocks from the rest. In that the head does all of its work in the
  // forward pass, loss and gradients; what the backward pass has in addition to the blocks is the embedding's. As many
  // jobs as there are devices for run at the same time, each with its own workers: nothing is exchanged.
  void probe_passes(std::int64_t degree) {
    const Model one_layer = shortened(options_.model, 1);
    const auto jobs = static_cast<std::size_t>(std::max<std::int64_t>(1, devices_ / degree));
    std::vector<std::unique_ptr<TrainWorkers>> few, more;
    for (std::size_t i = 0; i < jobs; ++i) {
      few.push_back(start(plan_of(one_layer, training_, 1, degree)));
      more.push_back(start(plan_of(model_, training_, 1, degree)));
    }
    std::vector<Measured> measured(sizes_.size());
    const auto all_told_apart = [&] {
      return std::ranges::all_of(measured, [](const Measured& of_size) { return of_size.told_apart(); });
    };
    // All sizes take turns, so that what keeps the machine busy for seconds does not fall on one of them alone. On such
    // a machine a few sweeps may not show what three layers take.
    const Instant begun = Clock::now();
    for (int sweep = 0; sweep < least_sweeps || seconds_since(begun) < share_s(2) || !all_told_apart(); ++sweep) {
      if (sweep >= most_sweeps && seconds_since(begun) >= share_s(2))
        throw Error(ErrorCode::environment,
                    fmt::format("a model of {} layers did not take longer than one of a single layer", layers),
                    "other programs keep this machine busy: probe it again when they have ended");
      for (std::size_t s = 0; s < sizes_.size(); ++s) {
        std::vector<std::vector<StepParts>> of_few(jobs), of_more(jobs);
        std::vector<std::future<void>> running;
        for (std::size_t i = 0; i < jobs; ++i)
          running.push_back(std::async(std::launch::async, [&, i] {
            turns({{few[i].get(), &of_few[i]}, {more[i].get(), &of_more[i]}}, 1, sizes_[s], sweep == 0);
          }));
        for (std::future<void>& one : running) one.get();
        measured[s].few.push_back(side_by_side(of_few));
        measured[s].more.push_back(side_by_side(of_more));
      }
    }
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      add_times(degree, sizes_[s], measured[s].block(), measured[s].rest());
    report(fmt::format("passes, tensor parallelism of {}", degree));
  }

  void add_times(std::int64_t degree, std::int64_t size, const Passes& block, const Passes& rest) {
    const auto add = [&](LayerPart part, double forward_s, double backward_s, std::int64_t parameters) {
      for (const std::string& type : types_)
        profile_.layer_time.push_back(
            {.device_type = type,
             .tp = degree,
             .micro_batch = size,
             .sequence_length = training_.sequence_length,
             .part = part,
             .forward_s = std::max(0.0, forward_s),
             .backward_s = std::max(0.0, backward_s),
             .update_s = once_s_ * static_cast<double>(parameters) / static_cast<double>(degree)});
    };
    add(LayerPart::embedding, 0, rest.backward_s, parameters_of(embedding_tensors(model_.arch)));
    add(LayerPart::block, block.forward_s, block.backward_s, block_parameters(model_.arch, 0));
    add(LayerPart::head, rest.forward_s, 0, parameters_of(head_tensors(model_.arch)));
  }

  std::unique_ptr<TrainWorkers> start(const TrainPlan& plan) {
    return std::make_unique<TrainWorkers>(plan, fleet_, TrainWorkersOptions{.weights = folder_.path()});
  }

  // A step with micro-batches of this many sequences each, by workers that take turns, so that what slows the machine
  // down slows all of them. With `first` each runs another one before, which does not count: memory that is used for
  // the first time takes longer.
  struct Turn {
    TrainWorkers* workers;
    std::vector<StepParts>* parts;  // of its own, added to
  };
  void turns(const std::vector<Turn>& all, std::size_t replicas, std::int64_t sequences, bool first) const {
    const std::int64_t tokens = micro_batches * sequences * training_.sequence_length;
    ReplicaBatch batch{.sequences = micro_batches * sequences, .inputs = {}, .targets = {}};
    for (std::int64_t i = 0; i < tokens; ++i) {
      batch.inputs.push_back(static_cast<std::int32_t>(i % model_.arch.vocabulary));
      batch.targets.push_back(static_cast<std::int32_t>((i + 1) % model_.arch.vocabulary));
    }
    const std::vector<ReplicaBatch> batches(replicas, batch);
    const TrainStep step{.learning_rate = 0, .tokens = tokens * static_cast<std::int64_t>(replicas)};
    if (first)
      for (const Turn& turn : all) turn.workers->run(step, batches);
    for (const Turn& turn : all)
      for (const TrainStepDone& done : turn.workers->run(step, batches)) turn.parts->push_back(parts_of(done));
  }

  // The passes of each degree get twice what follows them gets.
  double share_s(int parts) const { return options_.seconds * parts / static_cast<double>(1 + 2 * degrees_.size()); }

  void report(const std::string& what) const {
    if (options_.report) options_.report(what, seconds_since(start_));
  }

  const TrainProbeOptions& options_;
  const Model model_;
  const TemporaryFolder folder_;
  LocalFleet fleet_{{.program = options_.worker_program, .threads = options_.threads}};
  const Instant start_ = Clock::now();
  std::set<std::string> types_;
  std::int64_t devices_ = 1;  // that compute together
  std::vector<std::int64_t> degrees_, sizes_;
  Training training_;
  double once_s_ = 0;  // per parameter
  Profile profile_;
};

}  // namespace

Profile probe_training(const TrainProbeOptions& options) { return TrainProbe(options).run(); }

}  // namespace motley
