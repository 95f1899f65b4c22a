// Rent plans for people.
#pragma once

#include <string>

#include "motley/plan/rent.hpp"

namespace motley {

// What to rent, who serves what, what it carries.
std::string rent_report(const RentPlan& plan);

// Why this: what binds each class, what devices are worth, fleets of one type, slower devices.
std::string rent_explanation(const RentPlan& plan);

// One line: "3 copies of 2 configurations, 8.00 $/h".
std::string rent_summary(const RentPlan& plan);

// `motley explain --json`: {usd_per_hour, terms: {name, usd_per_hour, share, terms [...]}} and the plan's `predicted`.
Value explain_rent_json(const RentPlan& plan);

}  // namespace motley
