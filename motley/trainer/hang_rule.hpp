// When a training worker counts as hanging although its process lives and sends Alive.
//
// Twice a second a worker tells its activity: computing one layer or the update, waiting for another worker, or waiting
// for its step; since when, and how much processor time the thread has had in it. The duration alone says little: on a
// loaded machine a step may take a hundred times as long, and all workers wait for the slowest. So:
//
// 1. A worker that computes and has had no processor time at all for the limit is blocked. Load leaves a thread little
//    processor time, but never none.
// 2. A worker that has spent the limit as processor time on one layer is in an endless loop. Load makes a layer take
//    longer; its processor time stays about the same.
// 3. Where no worker computes, and all that owe an answer have waited for the limit, a message is lost or one of them
//    hangs in its wait. The error names all of them: the cause is one of them or a link between them.
//
// A worker that waits while another one computes is healthy, however long it waits. The limit is 10 s, or three times
// the slowest step so far if that is longer. The first step pays for memory, and its length is not known: its limit is
// ten minutes, or ten times the plan's prediction; for rule 1 it is 10 s then, too.
//
// Loading and saving wait for disks, whose pauses have no limit. There only silence and the end of the process count.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "motley/workers/worker_messages.hpp"

namespace motley {

// A worker that owes an answer to a step.
struct WorkerAtStep {
  std::string name;
  Activity activity = {};  // as it was told
  double for_s = 0;        // up to now
  double blocked_s = 0;    // since its processor time grew
};

// The part of a limit after which a hang is found: the rest is for Alive to arrive and for the workers to be ended.
constexpr double found_within = 0.75;

struct HangLimits {
  double blocked_s = 0, other_s = 0;  // of rule 1, and of the others
};
// `patience_s` stands for the 10 s; `slowest_s`, of the steps so far, is empty during the first.
HangLimits hang_limits(double patience_s, std::optional<double> slowest_s, double predicted_s);

// The worker that hangs, and the evidence, as a sentence. `names` are those of all workers, by place.
std::optional<std::string> find_hang(std::span<const WorkerAtStep> workers, std::span<const std::string> names,
                                     std::uint64_t step, const HangLimits& limits);

}  // namespace motley
