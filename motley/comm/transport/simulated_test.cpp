#include <gtest/gtest.h>

#include <cstring>

#include "motley/base/random.hpp"
#include "motley/comm/collective/world_test.hpp"
#include "motley/comm/transport/simulated_fabric_test.hpp"

namespace motley {
namespace {

struct History {
  std::vector<OperationStatus> statuses;
  std::vector<std::vector<float>> results;
  double overrun_s = 0;
  double end_s = 0;
  bool operator==(const History&) const = default;
};

constexpr double timeout_s = 0.5;

// Several operations of one epoch on an unreliable network, with a crash, a frozen process or a black hole.
std::vector<History> chance_run(std::uint64_t seed) {
  RandomStream random(seed, 1);
  const int ranks = 2 + random.below(5);
  SimulatedNetwork network{.bytes_per_s = 1e8, .duplicated = 0.05, .reset = random.chance(0.2) ? 0.002 : 0};
  SimulatedFabric fabric(ranks, network, seed);
  const int victim = random.below(ranks);
  const double when_s = random.uniform() * 0.3;
  int frozen = -1;
  switch (random.below(4)) {
    case 0: fabric.crash_at(victim, when_s); break;
    case 1:
      fabric.freeze_at(victim, when_s, when_s + 3 * random.uniform());
      frozen = victim;
      break;
    case 2: fabric.black_hole(victim, (victim + 1) % ranks, when_s, when_s + 3 * random.uniform()); break;
    default: break;
  }
  const std::size_t count = random.chance(0.5) ? 100 : 50'000;
  std::vector<History> histories(static_cast<std::size_t>(ranks));
  fabric.run([&](int rank) {
    History& history = histories[static_cast<std::size_t>(rank)];
    Communicator group(epoch_of(ranks, 3), fabric.transport(rank, 3));
    for (int i = 0; i < 6; ++i) {
      std::vector<float> data(count);
      for (std::size_t k = 0; k < count; ++k)
        data[k] = static_cast<float>(uniform_at(seed + static_cast<std::uint64_t>(rank), k) - 0.5);
      const auto given = data;
      const double start_s = fabric.now_s();
      const auto outcome = group.all_reduce(std::as_writable_bytes(std::span(data)), CollectiveElement::fp32,
                                            {.timeout_s = timeout_s, .on_abort = OnAbort::restore});
      // A process that stood still notices the deadline when it goes on.
      if (rank != frozen) history.overrun_s = std::max(history.overrun_s, fabric.now_s() - start_s - timeout_s);
      history.statuses.push_back(outcome.status);
      history.results.push_back(data);
      if (outcome.status != OperationStatus::ok) {
        EXPECT_EQ(std::memcmp(data.data(), given.data(), count * sizeof(float)), 0);
        return;
      }
    }
    history.end_s = fabric.now_s();
  });
  return histories;
}

TEST(Simulated, WhateverHappensResultsAgreeAndDeadlinesHold) {
  int failed = 0, succeeded = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    const auto histories = chance_run(seed);
    for (std::size_t i = 0; i < 6; ++i) {
      const std::vector<float>* first = nullptr;
      for (const History& history : histories) {
        EXPECT_LE(history.overrun_s, 0.1) << seed;
        if (i >= history.statuses.size()) continue;
        if (history.statuses[i] != OperationStatus::ok) {
          ++failed;
          continue;
        }
        ++succeeded;
        if (first == nullptr) first = &history.results[i];
        EXPECT_EQ(std::memcmp(history.results[i].data(), first->data(), first->size() * sizeof(float)), 0) << seed;
      }
      if (first == nullptr) continue;
      for (std::size_t k = 0; k < first->size(); k += 997) {
        double sum = 0;
        for (std::size_t rank = 0; rank < histories.size(); ++rank)
          sum += static_cast<float>(uniform_at(seed + rank, k) - 0.5);
        EXPECT_NEAR((*first)[k], sum, 1e-5) << seed;
      }
    }
  }
  EXPECT_GT(failed, 15);
  EXPECT_GT(succeeded, 400);
}

TEST(Simulated, IsTheSameForTheSameSeed) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) EXPECT_EQ(chance_run(seed), chance_run(seed));
}

TEST(Simulated, TimePassesOnlyWhileAllWait) {
  SimulatedFabric fabric(2, {.latency_s = 2, .jitter_s = 0}, 1);
  fabric.run([&](int rank) {
    if (rank == 1) fabric.sleep(1, 10);
    Communicator group(epoch_of(2, 1), fabric.transport(rank, 1));
    EXPECT_EQ(group.barrier({.timeout_s = 100}).status, OperationStatus::ok);
    EXPECT_NEAR(fabric.now_s(), rank == 1 ? 10 : 12, 1e-6);
  });
}

}  // namespace
}  // namespace motley
