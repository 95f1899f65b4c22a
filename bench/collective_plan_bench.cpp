// Collective plans: factors on one switch, distance from the network's limit, and how long planning takes.
//
//   collective_plan_bench
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "motley/cost/collective/collective_limit.hpp"
#include "motley/planner/collective/factors.hpp"
#include "motley/planner/collective/plan_collective.hpp"

namespace {

using namespace motley;

constexpr std::int64_t vector_bytes = 400'000'000;
constexpr GenModelConstants p10{5e-5, 8e-10, 1e-10, 1e-10, 5e-11, 9};

CollectiveUplink link_of(double bits_per_s, double latency_s) {
  return {.latency_s = latency_s, .up_bytes_per_s = bits_per_s / 8, .down_bytes_per_s = bits_per_s / 8};
}

void factor_table() {
  fmt::print("factors on one switch (10 Gbit/s, w_t 9, epsilon 5e-11 s/B), rounds in sequence\n");
  fmt::print("  {:>5}  {:<10} {:>10}   {:<10} {:>10}\n", "ranks", "400 MB", "s", "4 KB", "us");
  for (const int ranks : {4, 8, 9, 10, 12, 15, 16, 24, 32, 64, 384}) {
    const auto large = best_factors(ranks, p10, 4e8), small = best_factors(ranks, p10, 4096);
    fmt::print("  {:>5}  {:<10} {:>10.6f}   {:<10} {:>10.1f}\n", ranks,
               fmt::format("{}", fmt::join(large.factors, "x")), large.seconds,
               fmt::format("{}", fmt::join(small.factors, "x")), small.seconds * 1e6);
  }
}

double gbit(std::mt19937_64& random) { return 1e9 * std::uniform_int_distribution<int>(1, 40)(random); }

CollectiveNetwork random_star(std::mt19937_64& random, int ranks) {
  CollectiveNetwork network = empty_network("switch");
  for (int rank = 0; rank < ranks; ++rank)
    add_rank(network, 0, fmt::format("r{}", rank), link_of(gbit(random), 2e-5), {}, {});
  return network;
}

CollectiveNetwork random_racks(std::mt19937_64& random, int ranks) {
  CollectiveNetwork network = empty_network("core");
  const int racks = std::max(2, ranks / std::uniform_int_distribution<int>(3, 24)(random));
  std::vector<int> nodes;
  for (int rack = 0; rack < racks; ++rack)
    nodes.push_back(add_switch(network, 0, fmt::format("rack{}", rack), link_of(gbit(random), 5e-6), {}, {}));
  for (int rank = 0; rank < ranks; ++rank)
    add_rank(network, nodes[static_cast<std::size_t>(rank % racks)], fmt::format("r{}", rank),
             link_of(gbit(random), 2e-5), {}, {});
  return network;
}

CollectiveNetwork racks(int count, int hosts) {
  CollectiveNetwork network = empty_network("core");
  for (int r = 0; r < count; ++r) {
    const int rack = add_switch(network, 0, fmt::format("rack{}", r), link_of(100e9, 5e-6), {9, 5e-11}, {9, 5e-11});
    for (int host = 0; host < hosts; ++host)
      add_rank(network, rack, fmt::format("h{}", r * hosts + host), link_of(10e9, 2e-5), {9, 5e-11}, {1e-10, 1e-10});
  }
  return network;
}

void limits() {
  fmt::print("\nall_reduce of 400 MB, every link 1 to 40 Gbit/s at random: steady load and time against the limit\n");
  fmt::print("  {:<22} {:>5} {:>14} {:>14} {:>16}\n", "networks", "count", "steady/T* mean", "steady/T* max",
             "T*/pipelined mean");
  std::mt19937_64 random(1);
  for (const bool star : {true, false})
    for (const int ranks : {4, 8, 16, 64, 128}) {
      const int count = ranks > 16 ? 10 : 50;
      double sum = 0, worst = 0, efficiency = 0;
      for (int trial = 0; trial < count; ++trial) {
        const auto network = star ? random_star(random, ranks) : random_racks(random, ranks);
        const auto answer = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
        const double ratio = answer.predicted.steady_s / answer.predicted.limit_s;
        sum += ratio / count;
        worst = std::max(worst, ratio);
        efficiency += answer.predicted.efficiency / count;
      }
      fmt::print("  {:<22} {:>5} {:>14.4f} {:>14.4f} {:>16.3f}\n",
                 fmt::format("{} of {} ranks", star ? "stars" : "racks", ranks), count, sum, worst, efficiency);
    }
}

void times(const std::string& name, const CollectiveNetwork& network, CollectiveOperation operation) {
  const std::int64_t bytes = vector_bytes / 98304 * 98304;
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu = std::clock();
  const auto answer = plan_collective(network, operation, bytes, {});
  const double cpu_s = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::size_t steps = 0;
  for (const auto& list : answer.program.steps) steps += list.size();
  fmt::print("  {:<36} {:>8.1f} ms, {:.1f} ms of a core  {:>3} candidates  {:>8} steps  efficiency {:.3f}  {}\n", name,
             elapsed.count() * 1e3, cpu_s * 1e3, answer.evaluated, steps, answer.predicted.efficiency,
             answer.program.layout);
}

}  // namespace

int main() {
  factor_table();
  limits();
  fmt::print("\nplanning\n");
  std::mt19937_64 random(2);
  times("384 ranks, 16 racks", racks(16, 24), CollectiveOperation::all_reduce);
  times("384 ranks, 16 racks, reduce_scatter", racks(16, 24), CollectiveOperation::reduce_scatter);
  times("384 ranks, 16 racks, broadcast", racks(16, 24), CollectiveOperation::broadcast);
  times("384 ranks, racks at random", random_racks(random, 384), CollectiveOperation::all_reduce);
  times("4096 ranks, 64 racks", racks(64, 64), CollectiveOperation::all_reduce);
}
