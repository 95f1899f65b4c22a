#include "motley/engine/stage/assignment.hpp"

#include <gtest/gtest.h>

#include <random>

#include "motley/plan/worker_part.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

ServePlan sent(const ServePlan& plan, const Stage& stage) {
  return read_plan<ServePlan>(parse_json(to_json(write(part_of(plan, stage))), "part"), "part");
}

std::optional<Stage> copy_of(const Stage* stage) { return stage == nullptr ? std::nullopt : std::optional(*stage); }

void expect_equal(const Assignment& part, const Assignment& whole) {
  EXPECT_EQ(*part.stage, *whole.stage);
  EXPECT_EQ(part.rank, whole.rank);
  EXPECT_EQ(part.degree, whole.degree);
  EXPECT_EQ(part.memory, whole.memory);
  EXPECT_EQ(part.host_bytes, whole.host_bytes);
  ASSERT_EQ(part.places.size(), whole.places.size());
  for (std::size_t route = 0; route < whole.places.size(); ++route) {
    const std::optional<RoutePlace>&sent_place = part.places[route], &place = whole.places[route];
    ASSERT_EQ(sent_place.has_value(), place.has_value());
    if (!place) continue;
    EXPECT_EQ(sent_place->number, place->number);
    EXPECT_EQ(copy_of(sent_place->previous), copy_of(place->previous));
    EXPECT_EQ(copy_of(sent_place->next), copy_of(place->next));
    EXPECT_EQ(sent_place->received_in, place->received_in);
    EXPECT_EQ(sent_place->sent_in, place->sent_in);
  }
}

// Routes of one to five stages of one to four devices; some share their last stage, some offload or hold copies.
ServePlan any_plan(std::mt19937_64& random) {
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  std::vector<std::vector<int>> routes(1 + below(5));
  for (auto& degrees : routes) {
    degrees.resize(1 + below(5));
    for (int& degree : degrees) degree = 1 << below(3);
  }
  ServePlan plan = toy_plan(routes, 64 * static_cast<std::int64_t>(1 + below(8)));
  const DType types[] = {DType::fp32, DType::bf16};
  for (Stage& stage : plan.stages) {
    stage.weight_type = types[below(2)];
    stage.kv_type = types[below(2)];
    if (below(3) == 0) stage.standby_weights.push_back({{0, 1 + static_cast<std::int64_t>(below(8))}});
    if (stage.devices.size() == 1 && below(3) == 0) stage.offload = Offload{};
  }
  for (Route& route : plan.routes) {
    route.path.front().activation_type = DType::bf16;
    const Route& other = plan.routes[below(plan.routes.size())];
    if (route.path.back().layers == other.path.back().layers && route.path.size() > 1)
      route.path.back() = other.path.back();
  }
  return plan;
}

TEST(Assignment, IsTheSameFromTheWorkersPart) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ServePlan plan = any_plan(random);
    for (const Stage& stage : plan.stages) {
      const ServePlan part = sent(plan, stage);
      EXPECT_EQ(part, part_of(plan, stage));
      EXPECT_EQ(part.model, plan.model);
      EXPECT_EQ(part.step, plan.step);
      for (const std::string& device : stage.devices) {
        expect_equal(assignment_of(part, device), assignment_of(plan, device));
        EXPECT_EQ(part.cluster.type_of(part.cluster.find_device(device)),
                  plan.cluster.type_of(plan.cluster.find_device(device)));
      }
    }
  }
}

}  // namespace
}  // namespace motley
