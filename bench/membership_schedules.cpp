// Random schedules of a group under a virtual clock: membership_schedules [count] [first seed]
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "motley/comm/membership/membership_schedules_test.hpp"

int main(int argc, char** argv) {
  const std::uint64_t count = argc > 1 ? std::stoull(argv[1]) : 10000;
  const std::uint64_t first = argc > 2 ? std::stoull(argv[2]) : 1;
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t committed = 0, epochs = 0, late = 0, faults = 0, lost = 0, failures = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const auto result = motley::schedules::run_schedule(seed);
    committed += result.committed_steps;
    epochs += result.epochs;
    late += result.late_frames;
    faults += static_cast<std::uint64_t>(result.faults);
    lost += result.state_lost ? 1 : 0;
    if (result.failure.empty()) continue;
    ++failures;
    fmt::print("seed {}: {}\n", seed, result.failure);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{} schedules, {} faults, {} epochs, {} committed steps, {} late frames dropped, state lost in {}: "
      "{} failures, {:.1f} s\n",
      count, faults, epochs, committed, late, lost, failures, elapsed.count());
  return failures == 0 ? 0 : 1;
}
