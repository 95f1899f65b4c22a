#include "motley/workers/worker_links.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace motley {
namespace {

// Two routes: a (2 ranks) -> b (3), and a -> c (1).
ServePlan forked_plan() {
  ServePlan plan;
  plan.stages = {{.id = "a", .layers = {0, 1}, .devices = {"box/0", "box/1"}, .shares = {}},
                 {.id = "b", .layers = {1, 2}, .devices = {"box/4", "box/3", "box/2"}, .shares = {}},
                 {.id = "c", .layers = {1, 2}, .devices = {"box/5"}, .shares = {}}};
  plan.routes = {{.id = "r0", .path = {{"a", {0, 1}}, {"b", {1, 2}}}},
                 {.id = "r1", .path = {{"a", {0, 1}}, {"c", {1, 2}}}}};
  return plan;
}

std::vector<int> peers_of(const InheritedLinks& links) {
  std::vector<int> peers;
  for (const InheritedLink& link : links.links) peers.push_back(link.peer);
  std::ranges::sort(peers);
  return peers;
}

TEST(WorkerLinks, LinkThoseThatHandOverAndTheRanksOfAStage) {
  const ServePlan plan = forked_plan();
  EXPECT_EQ(worker_devices(plan), (std::vector<std::string>{"box/0", "box/1", "box/4", "box/3", "box/2", "box/5"}));
  // Of b's ranks 0 and 1 receive from a's 0, rank 2 from a's 1.
  EXPECT_EQ(crossing_pairs(plan), (std::vector<std::pair<int, int>>{{0, 2}, {0, 3}, {0, 5}, {1, 4}}));

  const PlanLinks links = link_workers(plan, LinkKind::shared_memory);
  EXPECT_EQ(peers_of(links.of_device.at("box/0").crossings), (std::vector<int>{2, 3, 5}));
  EXPECT_EQ(peers_of(links.of_device.at("box/2").crossings), (std::vector<int>{1}));
  EXPECT_EQ(peers_of(links.of_device.at("box/3").stage), (std::vector<int>{0, 2}));
  EXPECT_TRUE(links.of_device.at("box/5").stage.links.empty());

  std::vector<int> all;
  for (const auto& [device, ends] : links.of_device)
    for (const InheritedLinks* of : {&ends.stage, &ends.crossings})
      std::ranges::copy(descriptors_of(*of), std::back_inserter(all));
  std::ranges::sort(all);
  EXPECT_TRUE(std::ranges::adjacent_find(all) == all.end());
  EXPECT_EQ(all.size(), links.owned.size());
}

}  // namespace
}  // namespace motley
