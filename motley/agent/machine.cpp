#include "motley/agent/machine.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/base/proc_value.hpp"

namespace motley {
namespace {

constexpr double measured_s = 0.2;  // each of both rates, this many times: other programs disturb for a while
constexpr std::size_t times_measured = 5;
constexpr double spare = 0.1;  // of the memory that is free
// What is read to be timed: more than the caches of a processor hold, but less where little memory is free.
constexpr std::size_t read_bytes = std::size_t{512} << 20, read_at_once_bytes = std::size_t{16} << 20;
constexpr std::size_t most_of_free_memory = 4;
constexpr std::size_t large_page_bytes = std::size_t{2} << 20;

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

using Floats16 [[gnu::vector_size(16)]] = float;
using Floats32 [[gnu::vector_size(32)]] = float;
using Floats64 [[gnu::vector_size(64)]] = float;

constexpr std::size_t sums_at_once = 8;     // that do not wait for each other
constexpr std::size_t floats_at_once = 64;  // of which sum_of() takes a multiple

// Vectors that the processor does not have would pass through memory.
template <class Vector>
[[gnu::always_inline]] inline float multiply_and_add(int rounds, float factor) {
  Vector sum[sums_at_once] = {};
  const Vector by = Vector{} + factor, plus = Vector{} + 1e-3F;
  for (int round = 0; round < rounds; ++round)
    for (Vector& one : sum) one = one * by + plus;
  Vector all{};
  for (const Vector& one : sum) all += one;
  return all[0];
}

template <class Vector>
[[gnu::always_inline]] inline float sum_of(std::span<const float> numbers) {
  constexpr std::size_t lanes = sizeof(Vector) / sizeof(float);
  Vector sum[floats_at_once / lanes] = {};
  for (const float* at = numbers.data(); at != numbers.data() + numbers.size(); at += floats_at_once)
    for (std::size_t i = 0; i < floats_at_once / lanes; ++i) {
      Vector some;
      std::memcpy(&some, at + i * lanes, sizeof some);
      sum[i] += some;
    }
  Vector all{};
  for (const Vector& one : sum) all += one;
  return all[0];
}

struct Free {
  void operator()(float* numbers) const { std::free(numbers); }
};

// In large pages where the system has them, as the engine's weights are. A multiple of a large page.
std::unique_ptr<float, Free> ones(std::size_t bytes) {
  std::unique_ptr<float, Free> numbers(static_cast<float*>(std::aligned_alloc(large_page_bytes, bytes)));
  if (!numbers) throw std::bad_alloc();
  ::madvise(numbers.get(), bytes, MADV_HUGEPAGE);
  std::fill_n(numbers.get(), bytes / sizeof(float), 1.0F);
  return numbers;
}

// In the widest vectors of the processor, of this many bytes.
struct Loops {
  std::size_t vector_bytes;
  float (*multiply_and_add)(int rounds, float factor);
  float (*sum_of)(std::span<const float> numbers);
};

#if defined(__x86_64__)
[[gnu::target("arch=x86-64-v4")]] float multiply_and_add_64(int rounds, float factor) {
  return multiply_and_add<Floats64>(rounds, factor);
}
[[gnu::target("arch=x86-64-v4")]] float sum_of_64(std::span<const float> numbers) { return sum_of<Floats64>(numbers); }
[[gnu::target("arch=x86-64-v3")]] float multiply_and_add_32(int rounds, float factor) {
  return multiply_and_add<Floats32>(rounds, factor);
}
[[gnu::target("arch=x86-64-v3")]] float sum_of_32(std::span<const float> numbers) { return sum_of<Floats32>(numbers); }
#endif

Loops loops_for_this_processor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4")) return {sizeof(Floats64), multiply_and_add_64, sum_of_64};
  if (__builtin_cpu_supports("x86-64-v3")) return {sizeof(Floats32), multiply_and_add_32, sum_of_32};
#endif
  return {sizeof(Floats16), multiply_and_add<Floats16>, sum_of<Floats16>};
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
  const Loops loops = loops_for_this_processor();
  const std::size_t all_bytes =
      std::min(read_bytes, static_cast<std::size_t>(usable_memory_bytes()) / most_of_free_memory);
  const std::size_t parts =
      std::max<std::size_t>(1, all_bytes / static_cast<std::size_t>(threads) / read_at_once_bytes);
  struct Reading {
    std::unique_ptr<float, Free> numbers;
    std::size_t part = 0;
  };
  std::vector<Reading> readings(static_cast<std::size_t>(threads));
  for (Reading& reading : readings) reading.numbers = ones(parts * read_at_once_bytes);
  device.bytes_per_s = rate_of(threads, [&](int thread) {
    constexpr std::size_t floats = read_at_once_bytes / sizeof(float);
    Reading& reading = readings[static_cast<std::size_t>(thread)];
    sink.store(loops.sum_of({reading.numbers.get() + reading.part * floats, floats}), std::memory_order_relaxed);
    reading.part = (reading.part + 1) % parts;
    return static_cast<double>(read_at_once_bytes);
  });
  device.flop_per_s = rate_of(threads, [&](int) {
    constexpr int rounds = 20000;
    sink.store(loops.multiply_and_add(rounds, 0.999F), std::memory_order_relaxed);
    return 2.0 * rounds * static_cast<double>(sums_at_once * loops.vector_bytes / sizeof(float));
  });
  return device;
}

}  // namespace motley
