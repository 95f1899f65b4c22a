#include "motley/trainer/hang_rule.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace motley {
namespace {

constexpr double slowest_steps = 3, predicted_steps = 10;
constexpr double first_step_patience = 60;  // times the other

bool computes(const WorkerAtStep& worker) { return worker.activity.doing == Doing::computing; }

std::string wait_of(const WorkerAtStep& worker, std::span<const std::string> names) {
  const Activity& activity = worker.activity;
  const bool of_one = activity.doing == Doing::receiving || activity.doing == Doing::sending;
  std::string whom = "other workers";
  if (activity.doing == Doing::waiting_for_steps)
    whom = "the step";
  else if (of_one && activity.peer >= 0 && activity.peer < std::ssize(names))
    whom = names[static_cast<std::size_t>(activity.peer)];
  return fmt::format("{} waits for {} ({:.1f} s)", worker.name, whom, worker.for_s);
}

}  // namespace

HangLimits hang_limits(double patience_s, std::optional<double> slowest_s, double predicted_s) {
  const double known_s = found_within * std::max(patience_s, slowest_steps * slowest_s.value_or(0));
  return {known_s, slowest_s ? known_s : std::max(first_step_patience * patience_s, predicted_steps * predicted_s)};
}

std::optional<std::string> find_hang(std::span<const WorkerAtStep> workers, std::span<const std::string> names,
                                     std::uint64_t step, const HangLimits& limits) {
  for (const WorkerAtStep& worker : workers) {
    if (!computes(worker)) continue;
    if (std::min(worker.blocked_s, worker.for_s) > limits.blocked_s)
      return fmt::format("{} hangs in step {}: it computes, but has had no processor time for {:.1f} s", worker.name,
                         step, worker.blocked_s);
    if (worker.activity.processor_s > limits.other_s)
      return fmt::format("{} hangs in step {}: it has spent {:.1f} s of processor time on one layer", worker.name, step,
                         worker.activity.processor_s);
  }
  const auto waits = [&](const WorkerAtStep& worker) { return !computes(worker) && worker.for_s > limits.other_s; };
  if (workers.empty() || !std::ranges::all_of(workers, waits)) return std::nullopt;
  std::string all;
  for (const WorkerAtStep& worker : workers) all += (all.empty() ? "" : ", ") + wait_of(worker, names);
  return fmt::format("no worker computes step {}: {}", step, all);
}

}  // namespace motley
