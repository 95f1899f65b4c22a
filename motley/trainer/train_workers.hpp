// The workers of a training plan, as its driver sees them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/train.hpp"
#include "motley/trainer/layout/state_writer.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

struct TrainWorkersOptions {
  std::filesystem::path weights = {};                // a model folder, or a checkpoint's
  std::int64_t updates = 0;                          // that it has had; 0: weights alone
  std::function<void(double fraction)> loaded = {};  // of all weights
  std::function<bool()> stopped = {};                // asked often; then waits end with an error (interrupted)
};

// Whether the workers of weights that have had so many updates read states of an optimizer.
bool reads_states(const TrainPlan& plan, std::int64_t updates);

// What a step needs of one replica's sequences, one behind the other.
struct ReplicaBatch {
  std::int64_t sequences = 0;
  std::vector<std::int32_t> inputs, targets;
};

// Of one thread.
class TrainWorkers {
 public:
  // Starts them and waits until all have loaded their parts. Throws what hinders them; none is left then.
  TrainWorkers(const TrainPlan& plan, Fleet& fleet, const TrainWorkersOptions& options);
  ~TrainWorkers();
  TrainWorkers(const TrainWorkers&) = delete;
  TrainWorkers& operator=(const TrainWorkers&) = delete;

  // A step of all replicas; `step` without tokens, which are in `batches`, by replica. Answers by worker. Throws a peer
  // error where a worker is lost, or where they do not agree.
  std::vector<TrainStepDone> run(TrainStep step, const std::vector<ReplicaBatch>& batches);
  // Each writes its part of the files in this folder, or sends it to be written here; all have, once saved() says so.
  void begin_save(const std::filesystem::path& folder, TrainSave::When when);
  bool saved() const { return saved_ == workers_.size(); }
  void wait_until_saved();

  const std::vector<std::string>& devices() const { return devices_; }
  const std::vector<TrainReady>& allocated() const { return ready_; }

 private:
  void take_messages(const std::function<void(std::size_t worker, Message& message)>& take);
  template <class Answer>
  std::vector<Answer> await_all(const std::function<void(double)>& progress = {});
  void check_ended();
  void write_part(const TrainPart& part) const;
  void take_saved();

  std::vector<std::string> devices_;
  std::vector<std::size_t> replica_of_;
  std::vector<bool> first_, last_;  // of a replica's stages
  Workers workers_;
  std::vector<TrainReady> ready_;
  std::size_t saved_ = 0;   // workers that have answered the newest TrainSave
  const bool writes_here_;  // they reach this machine's folders, and write themselves
  const StateFiles files_;
  std::optional<StateWriter> writer_;  // of what they send
  std::function<bool()> stopped_;
};

}  // namespace motley
