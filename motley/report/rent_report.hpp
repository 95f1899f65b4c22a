// Rent plans for people.
#pragma once

#include <string>

#include "motley/plan/rent_plan.hpp"

namespace motley {

// What to rent, who serves what, what it carries.
std::string rent_report(const RentPlan& plan);

// Why this: what binds each class, what devices are worth, fleets of one type, slower devices.
std::string rent_explanation(const RentPlan& plan);

// "A100*2 + H100" of one copy.
std::string copy_devices_text(const std::map<std::string, std::int64_t>& devices);
// "40 x A100 tp2 > 40 x H100": the stages of one copy where the cost model made it, empty otherwise.
std::string copy_stages_text(const RentPlan& plan, const std::string& configuration);

// One line: "3 copies of 2 configurations, 8.00 $/h".
std::string rent_summary(const RentPlan& plan);

// `motley explain --json`: {usd_per_hour, terms: {name, usd_per_hour, share, terms [...]}} and the plan's `predicted`.
Value explain_rent_json(const RentPlan& plan);

}  // namespace motley
