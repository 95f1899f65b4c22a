// The workers of a training plan, as its driver sees them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/train_plan.hpp"
#include "motley/trainer/layout/state_writer.hpp"
#include "motley/trainer/layout/train_messages.hpp"
#include "motley/workers/fleet.hpp"
#include "motley/workers/worker_watch.hpp"

namespace motley {

struct TrainWorkersOptions {
  std::filesystem::path weights = {};                // a model folder, or a checkpoint's
  std::int64_t updates = 0;                          // that it has had; 0: weights alone
  std::function<void(double fraction)> loaded = {};  // of all weights
  // Asked often: then waits end with an error (interrupted). The first while workers start, which on other machines is
  // long, the second later.
  std::function<bool()> stop_start = {}, stopped = {};
  double patience_s = 10;  // for a worker that is silent or hangs (hang_rule.hpp)
};

// A worker was killed, has failed, is silent or hangs (hang_rule.hpp), or its machine is gone.
class WorkerLost : public Error {
 public:
  using Error::Error;
};

// Whether the workers of weights that have had this many updates read states of an optimizer.
bool reads_states(const TrainPlan& plan, std::int64_t updates);

// What a step needs of one replica's sequences, one behind the other.
struct ReplicaBatch {
  std::int64_t sequences = 0;
  std::vector<std::int32_t> inputs, targets;
};

// Of one thread.
class TrainWorkers {
 public:
  // Starts them and waits until all have loaded their parts. Throws what hinders them; none is left then. They end with
  // it.
  TrainWorkers(const TrainPlan& plan, Fleet& fleet, const TrainWorkersOptions& options);

  // This and what follows throws WorkerLost. A step of all replicas; `step` without tokens, which are in `batches`, by
  // replica. Answers by worker. Throws a peer error where they do not agree.
  std::vector<TrainStepDone> run(TrainStep step, const std::vector<ReplicaBatch>& batches);
  // Each writes its part of the files in this folder, or sends it to be written here; all have, once saved() says so.
  void begin_save(const std::filesystem::path& folder, TrainSave::When when);
  bool saved() const { return saved_ == watch_.size(); }
  void wait_until_saved();
  // Takes in what they have sent, without waiting: for a driver that does something else for long.
  void look();

  const std::vector<std::string>& devices() const { return devices_; }
  const std::vector<TrainReady>& allocated() const { return ready_; }

 private:
  using Take = std::function<void(std::size_t worker, TrainMessage& message)>;
  void take_messages(const Take& take, double most_s);
  template <class Answer>
  std::vector<Answer> await_all();
  void check_hanging() const;
  void write_part(const TrainSlice& part) const;
  void take_saved();

  std::vector<std::string> devices_;
  std::vector<std::size_t> replica_of_;
  std::vector<bool> first_, last_;  // of a replica's stages
  WorkerWatch watch_;
  std::vector<TrainReady> ready_;
  struct StepUnderWay {
    std::uint64_t step = 0;
    Instant sent;
  };
  std::optional<StepUnderWay> step_;
  std::vector<bool> owes_;                 // an answer to it, or to what is awaited before the first step
  std::optional<double> slowest_s_;        // step
  const double patience_s_, predicted_s_;  // of a step: by the plan
  std::size_t saved_ = 0;                  // workers that have answered the newest TrainSave
  const bool writes_here_;                 // they reach this machine's folders, and write themselves
  const StateFiles files_;
  std::optional<StateWriter> writer_;  // of what they send
  std::function<bool()> stopped_;
};

}  // namespace motley
