// What to do when devices leave: as little as possible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/planner/serve/plan_serve.hpp"

namespace motley {

// A plan without the lost devices. Routes that do not touch them stay as they are, and go on serving; the devices of
// the others, and those that were idle, are planned again. The weakest of the routes gives up its devices as well where
// the whole then serves clearly more. `options`: step, types and profile are taken from the plan.
ServeOutcome replan_serve(const ServePlan& before, const std::vector<std::string>& lost, ServeOptions options);

// The type that a plan sends activations in from machine to machine, where it gives one.
std::optional<DType> crossing_type_of(const ServePlan& plan);

// Bytes of weights that the devices of `after` hold already, those that stand by included, and that they must load. A
// device keeps a layer where its stage has the same degree and it has the same rank and share as before.
struct WeightMoves {
  std::int64_t kept_bytes = 0;
  std::int64_t loaded_bytes = 0;
};
WeightMoves weight_moves(const ServePlan& before, const ServePlan& after);

// A plan that is as good, within 2 % of the tokens/s that are predicted, with devices in each other's places where they
// load less that way than in `plan`. None of `excluded` is used.
ServePlan keep_places(ServePlan plan, const ServePlan& before, const std::vector<std::string>& excluded,
                      const CostOptions& cost);

}  // namespace motley
