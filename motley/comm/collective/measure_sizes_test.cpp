#include "motley/comm/collective/measure_sizes.hpp"

#include <gtest/gtest.h>

#include <mutex>

#include "motley/base/error.hpp"
#include "motley/comm/collective/world_test.hpp"
#include "motley/comm/transport/local_ranks.hpp"

namespace motley {
namespace {

FabricOptions with_key() {
  FabricOptions options;
  options.key = "secret";
  return options;
}

TEST(MeasureSizes, EveryOperationIsMeasuredWithWholeElementsAndAlikeOnAllRanks) {
  for (const std::string& operation : measured_operations()) {
    TestWorld world("local", 3);
    std::mutex mutex;
    std::vector<std::vector<MeasuredSize>> by_rank;
    world.run([&](Communicator& group) {
      auto sizes = measure_sizes(
          group, {.operation = operation, .from_bytes = 10, .to_bytes = 1000, .factor = 10, .seconds = 0.001});
      const std::lock_guard lock(mutex);
      by_rank.push_back(std::move(sizes));
    });
    ASSERT_EQ(by_rank.size(), 3u) << operation;
    for (const auto& sizes : by_rank) {
      ASSERT_EQ(sizes.size(), 3u) << operation;
      EXPECT_EQ(sizes[0].bytes, 12) << operation;  // 10 are not an element for each
      EXPECT_EQ(sizes[1].bytes, 96) << operation;
      EXPECT_EQ(sizes[2].bytes, 996) << operation;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(sizes[i].wrong, 0) << operation;
        EXPECT_GT(sizes[i].time_s, 0) << operation;
        EXPECT_EQ(sizes[i].repeats, by_rank[0][i].repeats) << operation;
        EXPECT_EQ(sizes[i].time_s, by_rank[0][i].time_s) << operation;
      }
    }
  }
}

TEST(MeasureSizes, TheBusiestLinkCarriesLessOrMoreThanTheBuffer) {
  EXPECT_EQ(bus_factor("all-reduce", 4), 1.5);
  EXPECT_EQ(bus_factor("reduce-scatter", 4), 0.75);
  EXPECT_EQ(bus_factor("all-gather", 4), 0.75);
  EXPECT_EQ(bus_factor("broadcast", 4), 1);
  EXPECT_EQ(bus_factor("reduce", 4), 1);
}

TEST(LocalRanks, AreProcessesThatReachEachOther) {
  std::int64_t wrong = -1;
  run_local_ranks(3, with_key(), "test", [&](Fabric& fabric, const Epoch& epoch, int rank) {
    Communicator group(epoch, fabric.connect(epoch, rank, 20));
    wrong = measure_sizes(group, {.to_bytes = 1024, .seconds = 0.001}).at(0).wrong;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(LocalRanks, AFailureOfRankZeroEndsTheOthers) {
  EXPECT_THROW(run_local_ranks(3, with_key(), "test",
                               [&](Fabric& fabric, const Epoch& epoch, int rank) {
                                 if (rank == 0) throw input_error("no");
                                 fabric.connect(epoch, rank, 20);
                               }),
               Error);
}

}  // namespace
}  // namespace motley
