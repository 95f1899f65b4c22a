// Checks a training plan against its own descriptions. What cannot be computed because something before it is wrong is
// not reported again: one mistake, one violation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/base/units.hpp"
#include "motley/model/training.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {
namespace {

class TrainVerifier {
 public:
  explicit TrainVerifier(const TrainPlan& plan) : plan_(plan), training_(training_of(plan.workload)) {}

  std::vector<Violation> run() {
    if (plan_.replicas.empty()) add("replicas", "the plan has no replica", "a plan needs at least one");
    if (const std::string why = untrainable(plan_.model.arch); !why.empty())
      add("model", fmt::format("{} cannot be trained: {}", plan_.model.name, why), untrainable_hint);
    check_positions();
    bool sound = true;
    for (std::size_t r = 0; r < plan_.replicas.size(); ++r) sound = check_replica(r) && sound;
    check_shares_of_batch();
    check_unused();
    if (sound && violations_.empty()) check_memory();
    return std::move(violations_);
  }

 private:
  void add(std::string place, std::string what, std::string hint = {}) {
    violations_.push_back({std::move(place), std::move(what), std::move(hint)});
  }

  // A table of learned positions ends; rotary positions do not.
  void check_positions() {
    const Architecture& arch = plan_.model.arch;
    if (arch.position == PositionKind::learned && training_.sequence_length > arch.context)
      add("workload.training", fmt::format("the sequences have {} tokens, but {} has {} positions",
                                           training_.sequence_length, plan_.model.name, arch.context));
  }

  bool check_replica(std::size_t r) {
    const TrainReplica& replica = plan_.replicas[r];
    const std::string place = fmt::format("replicas[{}]", r);
    bool sound = check_batch(replica, place);
    if (replica.stages.empty()) {
      add(place, "the replica has no stage", "it must hold every layer of the model");
      return false;
    }
    std::int64_t next = 0;
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const TrainStage& stage = replica.stages[s];
      const std::string here = fmt::format("{}.stages[{}]", place, s);
      if (stage.layers.first != next || stage.layers.size() < 1) {
        add(here + ".layers", fmt::format("the stage holds {}, but layer {} is next", text(stage.layers), next),
            "each stage begins where the one before it ends, and holds at least one layer");
        sound = false;
      }
      next = stage.layers.end;
      const bool known = check_devices(stage, r, here);
      sound = check_strategies(replica, stage, here) && known && sound;
    }
    if (const std::int64_t layers = plan_.model.arch.layers; next != layers) {
      add(place, fmt::format("the last stage ends at layer {}, but the model has {} layers", next, layers),
          "let the stages hold every layer once");
      sound = false;
    }
    return sound;
  }

  bool check_batch(const TrainReplica& replica, const std::string& place) {
    const double sequences = replica.share * static_cast<double>(training_.global_batch);
    if (std::abs(sequences - std::round(sequences)) > share_tolerance * std::max(1.0, sequences) ||
        std::llround(sequences) < 1) {
      add(place + ".share",
          fmt::format("{:g} of {} sequences is not a whole number", sequences, training_.global_batch),
          "give every replica a whole number of sequences");
      return false;
    }
    if (replica.micro_batches <= std::llround(sequences)) return true;
    add(place + ".micro_batches", fmt::format("{} micro-batches for {:g} sequences", replica.micro_batches, sequences),
        "give each micro-batch at least one sequence");
    return false;
  }

  bool check_devices(const TrainStage& stage, std::size_t replica, const std::string& place) {
    if (stage.devices.empty()) add(place, "the stage has no device", "add at least one");
    bool known = !stage.devices.empty();
    for (std::size_t i = 0; i < stage.devices.size(); ++i) {
      const std::string here = fmt::format("{}.devices[{}]", place, i);
      try {
        plan_.cluster.find_device(stage.devices[i]);
      } catch (const Error& error) {
        add(here, error.message(), error.hint());
        known = false;
        continue;
      }
      const auto [entry, added] = replica_of_.emplace(stage.devices[i], replica);
      if (!added)
        add(here, fmt::format("\"{}\" already works in replicas[{}]", stage.devices[i], entry->second),
            "put each device into one stage");
    }
    return known;
  }

  bool check_strategies(const TrainReplica& replica, const TrainStage& stage, const std::string& place) {
    if (stage.strategies.empty()) {
      add(place + ".strategies", "the stage has no strategies",
          "give tp, dp, shard or recompute for ranges of its layers");
      return false;
    }
    bool sound = true;
    std::int64_t next = stage.layers.first;
    const auto devices = static_cast<std::int64_t>(stage.devices.size());
    for (std::size_t i = 0; i < stage.strategies.size(); ++i) {
      const LayerStrategy& strategy = stage.strategies[i];
      const std::string here = fmt::format("{}.strategies[{}]", place, i);
      const auto wrong = [&](std::string what, std::string hint) {
        add(here, std::move(what), std::move(hint));
        sound = false;
      };
      if (strategy.layers.first != next || strategy.layers.size() < 1)
        wrong(fmt::format("the strategy covers {}, but layer {} is next", text(strategy.layers), next),
              "each range begins where the one before it ends");
      next = strategy.layers.end;
      if (strategy.tp * strategy.dp != devices)
        wrong(fmt::format("tp {} x dp {} is not the number of devices, {}", strategy.tp, strategy.dp, devices),
              "let every device of the stage work on all of its layers");
      if (strategy.dp > micro_batch_sequences(training_, replica))
        wrong(fmt::format("dp {} is more than the {} sequences of a micro-batch", strategy.dp,
                          micro_batch_sequences(training_, replica)),
              "a data-parallel rank needs at least one sequence of every micro-batch");
      if (strategy.split > 1 && strategy.shard != Sharding::zero3)
        wrong("`split` needs shard = zero3, which gathers weights", "set shard = zero3, or remove `split`");
      sound = check_cut(strategy, stage, here) && sound;
    }
    if (next != stage.layers.end) {
      add(place + ".strategies", fmt::format("they end at layer {}, but the stage ends at {}", next, stage.layers.end),
          "add strategies for every layer of the stage");
      sound = false;
    }
    return check_shares(stage, place) && sound;
  }

  bool check_cut(const LayerStrategy& strategy, const TrainStage& stage, const std::string& place) {
    try {
      const bool shared = strategy.dp == 1 && stage.shares.size() == static_cast<std::size_t>(strategy.tp);
      make_shards(plan_.model.arch, static_cast<int>(strategy.tp), shared ? stage.shares : std::vector<double>{});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::input) throw;
      add(place, error.message(), error.hint().empty() ? "use a smaller tp" : error.hint());
      return false;
    }
    return true;
  }

  bool check_shares(const TrainStage& stage, const std::string& place) {
    if (stage.shares.empty()) return true;
    const auto wrong = [&](std::string what, std::string hint) {
      add(place + ".shares", std::move(what), std::move(hint));
      return false;
    };
    if (stage.shares.size() != stage.devices.size())
      return wrong(fmt::format("{} shares for {} devices", stage.shares.size(), stage.devices.size()),
                   "give one share per device, or remove them for equal shares");
    const double sum = std::accumulate(stage.shares.begin(), stage.shares.end(), 0.0);
    if (std::any_of(stage.shares.begin(), stage.shares.end(), [](double share) { return !(share > 0); }) ||
        std::abs(sum - 1) > share_tolerance)
      return wrong(fmt::format("they must be above 0 and sum to 1, found {:g}", sum), "divide each by the sum");
    for (const LayerStrategy& strategy : stage.strategies)
      if (strategy.tp > 1 && strategy.dp > 1)
        return wrong("the stage has both tensor and data parallelism",
                     "remove the shares: they divide a layer or the sequences");
    return true;
  }

  void check_shares_of_batch() {
    if (plan_.replicas.empty()) return;
    double sum = 0;
    for (const TrainReplica& replica : plan_.replicas) sum += replica.share;
    if (std::abs(sum - 1) > share_tolerance)
      add("replicas", fmt::format("their shares of the batch sum to {:g}, not to 1", sum), "divide each by the sum");
  }

  void check_unused() {
    for (std::size_t i = 0; i < plan_.unused.size(); ++i)
      if (const auto found = replica_of_.find(plan_.unused[i].device); found != replica_of_.end())
        add(fmt::format("unused[{}]", i),
            fmt::format("\"{}\" works in replicas[{}]", plan_.unused[i].device, found->second));
  }

  void check_memory() {
    for (std::size_t r = 0; r < plan_.replicas.size(); ++r) {
      const TrainReplica& replica = plan_.replicas[r];
      for (std::size_t s = 0; s < replica.stages.size(); ++s) {
        const auto memory = stage_memory(plan_, replica, s);
        for (std::size_t rank = 0; rank < memory.size(); ++rank)
          check_device(replica.stages[s].devices[rank], memory[rank], fmt::format("replicas[{}].stages[{}]", r, s));
      }
    }
  }

  void check_device(const std::string& device, const TrainMemory& memory, const std::string& place) {
    if (memory.total() > memory.limit)
      add(device,
          fmt::format("{} needs {}, but the device has {}", place, human_bytes(static_cast<double>(memory.total())),
                      human_bytes(static_cast<double>(memory.limit))),
          fmt::format("use fewer layers, recomputation, sharding or a higher tp: states take {}, activations {}",
                      human_bytes(static_cast<double>(memory.weights + memory.gradients + memory.optimizer)),
                      human_bytes(static_cast<double>(memory.activations))));
    const auto predicted = plan_.predicted.memory_bytes.find(device);
    if (predicted != plan_.predicted.memory_bytes.end() && predicted->second != memory)
      add("predicted.memory_bytes." + device,
          fmt::format("{} in all, but the plan's layers and strategies give {}", predicted->second.total(),
                      memory.total()),
          "remove the prediction, or plan again");
  }

  const TrainPlan& plan_;
  const Training& training_;
  std::map<std::string, std::size_t> replica_of_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> verify(const TrainPlan& plan) { return TrainVerifier(plan).run(); }

}  // namespace motley
