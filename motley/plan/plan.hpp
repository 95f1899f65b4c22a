// The contract: what a planner decides and everything else consumes. Planners never see the runtime; the runtime never
// sees a planner. A plan carries the descriptions it was made from, so that it needs nothing else.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "motley/plan/chain_plan.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/plan/offload_plan.hpp"
#include "motley/plan/rent_plan.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/plan/shared.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// A plan of any kind. A new kind is its struct, table and verify(), and a name here: then what handles plans of every
// kind (by std::visit) does not compile until it handles that one too.
using AnyPlan = std::variant<ServePlan, TrainPlan, RentPlan, ChainPlan, CollectivePlan, OffloadPlan>;

// Reads JSON of `motley.plan/1`, of whichever kind. read_plan<ServePlan>() takes that kind alone (shared.hpp).
AnyPlan read_plan(const Value& document, const std::string& source);
AnyPlan read_plan_file(const std::filesystem::path& path);

Value write(const AnyPlan& plan);

PlanKind kind_of(const AnyPlan& plan);

std::vector<Violation> verify(const AnyPlan& plan);

}  // namespace motley
