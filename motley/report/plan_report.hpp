// Serving plans for people.
#pragma once

#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"

namespace motley {

// Routes and their stages, memory per device, what is predicted, what stays unused and why.
std::string plan_report(const ServePlan& plan);

// One line: "3 stages on 6 of 6 devices, tp 2 > 3 > 1, layers 3 | 4 | 1".
std::string plan_summary(const ServePlan& plan);

// Of a stage that offloads: "streams 2 from host memory and 1 from disk".
std::string streaming_text(const Stage& stage);

std::string violations_report(const std::vector<Violation>& violations);

// "box/0-3" for consecutive slots of one machine, "box/0, lab/2" otherwise.
std::string compact_devices(const std::vector<std::string>& devices);

}  // namespace motley
