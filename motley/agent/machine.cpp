#include "motley/agent/machine.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/base/proc_value.hpp"

namespace motley {
namespace {

constexpr double measured_s = 0.2;  // each of both rates, so many times: other programs disturb for a while
constexpr std::size_t times_measured = 5;
constexpr double spare = 0.1;  // of the memory that is free

std::string first_line(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Processors that the control group may use at once, as "50000 100000" of microseconds says; none: all.
double granted_processors() {
  std::istringstream line(first_line("/sys/fs/cgroup/cpu.max"));
  double quota = 0, period = 0;
  if (line >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::istringstream old_quota(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
  std::istringstream old_period(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  if (old_quota >> quota && old_period >> period && quota > 0 && period > 0) return quota / period;
  return INFINITY;
}

// Runs `part` on every thread, again and again, and returns how much they have done together per second.
template <class Part>
double rate_once(int threads, const Part& part) {
  std::atomic<double> sum = 0;
  std::vector<std::jthread> running;
  const Instant start = Clock::now();
  for (int thread = 0; thread < threads; ++thread)
    running.emplace_back([&, thread] {
      double done = 0;
      while (seconds_since(start) < measured_s) done += part(thread);
      sum += done;
    });
  running.clear();
  return sum / seconds_since(start);
}

template <class Part>
double rate_of(int threads, const Part& part) {
  std::array<double, times_measured> rates{};
  for (double& rate : rates) rate = rate_once(threads, part);
  std::ranges::sort(rates);
  return rates[times_measured / 2];
}

std::atomic<float> sink;  // what is computed only to be timed ends here

using Lanes [[gnu::vector_size(64)]] = float;

// The operations of so many independent sums, in the widest vectors of the processor.
#if defined(__x86_64__)
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#endif
double
multiply_and_add(float factor) {
  constexpr int rounds = 20000, sums = 8;
  Lanes sum[sums] = {};
  const Lanes by = Lanes{} + factor, plus = Lanes{} + 1e-3F;
  for (int round = 0; round < rounds; ++round)
    for (Lanes& one : sum) one = one * by + plus;
  Lanes all{};
  for (const Lanes& one : sum) all += one;
  sink.store(all[0], std::memory_order_relaxed);
  return 2.0 * rounds * sums * (sizeof(Lanes) / sizeof(float));
}

#if defined(__x86_64__)
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#endif
double
read_all(const std::vector<Lanes>& numbers) {
  Lanes sum{};
  for (const Lanes& some : numbers) sum += some;
  sink.store(sum[0], std::memory_order_relaxed);
  return static_cast<double>(numbers.size() * sizeof(Lanes));
}

}  // namespace

int usable_threads() {
  cpu_set_t allowed;
  const bool known = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  const int processors = known ? CPU_COUNT(&allowed) : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, static_cast<int>(std::min<double>(processors, std::ceil(granted_processors()))));
}

std::int64_t usable_memory_bytes() {
  return static_cast<std::int64_t>(static_cast<double>(free_memory_bytes()) * (1 - spare));
}

std::string processor_kind() {
  const std::string kind = proc_value("/proc/cpuinfo", "model name").value_or("");
  return kind.empty() ? "processor" : kind;
}

std::string processor_name(int threads) {
  const double granted = granted_processors();
  return fmt::format("{} with {} threads on {}", processor_kind(), threads,
                     std::isinf(granted) ? "all processors" : fmt::format("{} processors", granted));
}

OfferedDevice measure_processor(std::int64_t memory_bytes, int threads) {
  OfferedDevice device;
  device.kind = processor_kind();
  device.memory_bytes = memory_bytes;
  device.threads = threads;
  constexpr std::size_t bytes_each = std::size_t{64} << 20;  // more than a share of the caches
  std::vector<std::vector<Lanes>> numbers(static_cast<std::size_t>(threads),
                                          std::vector<Lanes>(bytes_each / sizeof(Lanes), Lanes{} + 1.0F));
  device.bytes_per_s =
      rate_of(threads, [&](int thread) { return read_all(numbers[static_cast<std::size_t>(thread)]); });
  device.flop_per_s = rate_of(threads, [](int) { return multiply_and_add(0.999F); });
  return device;
}

}  // namespace motley
