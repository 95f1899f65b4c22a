#include "motley/planner/train/plan/apportion.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "motley/planner/train/published/flashflex_layout.hpp"

namespace motley {
namespace {

double latest_s(const std::vector<ReplicaPace>& replicas, const std::vector<std::int64_t>& counts) {
  double latest = 0;
  for (std::size_t r = 0; r < counts.size(); ++r)
    if (counts[r] > 0) latest = std::max(latest, replicas[r].end_s(counts[r]));
  return latest;
}

double by_enumeration(const std::vector<ReplicaPace>& replicas, std::int64_t total, std::int64_t least) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::int64_t> counts;
  const std::function<void(std::int64_t)> share = [&](std::int64_t left) {
    if (counts.size() == replicas.size()) {
      if (left == 0) best = std::min(best, latest_s(replicas, counts));
      return;
    }
    for (std::int64_t m = least; m <= left; ++m) {
      counts.push_back(m);
      share(left - m);
      counts.pop_back();
    }
  };
  share(total);
  return best;
}

TEST(Apportion, EqualsEnumeration) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> seconds(0.5, 3);
  for (int round = 0; round < 120; ++round) {
    std::vector<ReplicaPace> replicas;
    for (int r = 0; r < 1 + round % 3; ++r) {
      std::vector<double> stages(1 + random() % 4);
      for (double& stage : stages) stage = seconds(random);
      replicas.push_back(lockstep_pace(stages));
      if (random() % 4 == 0) replicas.back() = {.rest_s = seconds(random), .each_s = seconds(random)};
    }
    const std::int64_t total = static_cast<std::int64_t>(replicas.size() + random() % 12);
    for (const std::int64_t least : {0, 1}) {
      const auto found = apportion(replicas, total, least);
      EXPECT_EQ(std::accumulate(found.begin(), found.end(), std::int64_t{0}), total);
      EXPECT_GE(*std::min_element(found.begin(), found.end()), least);
      EXPECT_NEAR(latest_s(replicas, found), by_enumeration(replicas, total, least), 1e-9);
    }
  }
}

TEST(Apportion, APipelineInLockstepFillsAsItsFormulaSays) {
  const std::vector<double> stages = {3, 1, 2, 5, 1};
  const ReplicaPace pace = lockstep_pace(stages);
  for (std::int64_t m = 1; m < 12; ++m) {
    EXPECT_NEAR(pace.end_s(m), lockstep_s(stages, m), 1e-12);
    EXPECT_EQ(pace.within(pace.end_s(m), 100), m);
    EXPECT_EQ(pace.within(pace.end_s(m) - 1e-6, 100), m - 1);
  }
}

TEST(Apportion, WhoCannotDoAnyGetsNone) {
  const ReplicaPace quick{.rest_s = 0, .each_s = 1}, slow{.rest_s = 0, .each_s = 3};
  const ReplicaPace never{.rest_s = 0, .each_s = std::numeric_limits<double>::infinity()};
  EXPECT_EQ(apportion({quick, slow}, 400, 1), (std::vector<std::int64_t>{300, 100}));
  EXPECT_EQ(apportion({quick, never}, 4, 0), (std::vector<std::int64_t>{4, 0}));
  EXPECT_EQ(apportion({never}, 4, 0), (std::vector<std::int64_t>{0}));
  EXPECT_TRUE(apportion({quick, slow}, 1, 1).empty());
}

}  // namespace
}  // namespace motley
