#include "motley/base/parallel.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace motley {
namespace {

TEST(InParallel, EveryJobRunsOnce) {
  for (const int threads : {0, 1, 3, 64}) {
    std::vector<std::atomic<int>> runs(17);
    in_parallel(runs.size(), threads, [&](std::size_t i) { ++runs[i]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1) << threads;
  }
}

TEST(InParallel, OfSeveralFailuresTheFirstJobsIsThrownWhenAllAreDone) {
  std::atomic<int> done{0};
  try {
    in_parallel(12, 3, [&](std::size_t i) {
      ++done;
      if (i % 4 == 3) throw std::runtime_error(std::to_string(i));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");
  }
  EXPECT_EQ(done, 12);
}

}  // namespace
}  // namespace motley
