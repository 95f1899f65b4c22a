// What a driver that trains and its workers say to each other, each in a JobMessage.
//
// The driver sends TrainLaunch; the worker answers Progress and TrainReady. Then come steps, each answered by
// TrainStepDone, and TrainSave, answered by TrainSlices where they are asked for, and TrainSaved.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "motley/base/bounded.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

constexpr std::size_t max_part_bytes = std::size_t{4} << 20;  // of a state

struct TrainLaunch {
  BoundedText<max_plan_bytes> plan_json;
  std::int64_t updates = 0;  // that the weights have had; 0: the folder has no states of an optimizer
  BoundedList<WorkerAddress, max_plan_workers>
      workers;  // in the order of train_devices() (trainer/layout/worker_layout.hpp)
  bool operator==(const TrainLaunch&) const = default;
};

struct TrainReady {
  // Allocated, to be held against the plan.
  std::int64_t weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  double load_s = 0;
  bool operator==(const TrainReady&) const = default;
};

// The sequences of a worker's replica, one behind the other: `inputs` for its first stage, `targets` for its last; -1
// is a token that counts for nothing.
struct TrainStep {
  // loss: of any number of sequences, and nothing is learnt
  enum class Wanted : std::uint8_t { update, loss, last = loss };
  std::uint64_t step = 0;
  Wanted wanted = Wanted::update;
  double learning_rate = 0;
  std::int64_t tokens = 0;     // targets that count, of all replicas
  std::int64_t sequences = 0;  // of this replica
  BoundedList<std::int32_t, max_message_tokens> inputs = {}, targets = {};
  bool operator==(const TrainStep&) const = default;
};

// When a worker ran a pass of a step: seconds since the step began on it.
struct TrainPass {
  enum class Way : std::uint8_t { forward, backward, last = backward };
  std::int64_t micro_batch = 0;
  Way way = Way::forward;
  double start_s = 0;  // its input was there
  double end_s = 0;
  bool operator==(const TrainPass&) const = default;
};
constexpr std::size_t max_passes = std::size_t{16} << 10;  // of one step: the first ones are reported

// The sums are the same on all workers, bit for bit.
struct TrainStepDone {
  enum class Update : std::uint8_t { none, done, last = done };  // none: not wanted, or loss or norm are no numbers
  std::uint64_t step = 0;
  double loss = 0;       // mean of the targets that count
  double grad_norm = 0;  // of all gradients, before clipping
  Update update = Update::none;
  double busy_s = 0;      // in the passes, with what they wait for
  double exchange_s = 0;  // of gradients, as far as it was waited for
  double update_s = 0;
  double compute_s = 0;               // of all these, without waits for other workers
  std::int64_t activation_bytes = 0;  // the most that was held at once
  // In order; the exchange begins busy_s after the step did.
  BoundedList<TrainPass, max_passes> passes = {};
  bool operator==(const TrainStepDone&) const = default;
};

// Writes this worker's part of the state into files that have their whole length (trainer/layout/state_writer.hpp).
struct TrainSave {
  // beside_steps: a copy is taken, and written meanwhile
  enum class When : std::uint8_t { now, beside_steps, last = beside_steps };
  std::string folder;  // empty: the driver writes what it is sent in TrainSlices
  When when = When::now;
  bool operator==(const TrainSave&) const = default;
};
// Rows and columns of a tensor of the state.
struct TrainSlice {
  std::string name;  // state_name() (trainer/layout/state_files.hpp)
  std::int64_t first_row = 0, end_row = 0, first_column = 0, end_column = 0;
  BoundedText<max_part_bytes> bytes;  // row by row
  bool operator==(const TrainSlice&) const = default;
};

struct TrainSaved {
  double seconds = 0;
  bool operator==(const TrainSaved&) const = default;
};

using TrainMessage = std::variant<TrainLaunch, TrainReady, TrainStep, TrainStepDone, TrainSave, TrainSlice, TrainSaved>;

// As encode() and decode(). Only a JobMessage is one of these.
JobMessage encode_train(const TrainMessage& message);
TrainMessage decode_train(const Message& message);

}  // namespace motley
