// Offload plans for people.
#pragma once

#include <string>

#include "motley/plan/offload_plan.hpp"

namespace motley {

// What lies in which tier, how full each is, what is predicted and which resource binds.
std::string offload_report(const OffloadPlan& plan);

// "4 x 8 sequences share a pass; weights 12 | 20 | 0 layers on device, host and disk".
std::string offload_summary(const OffloadPlan& plan);

// The resource with the largest share of `predicted.busy`; empty where there is none.
std::string binding_resource(const OffloadPlan& plan);
// "disk reads" of "disk_read".
std::string resource_text(std::string_view resource);

}  // namespace motley
