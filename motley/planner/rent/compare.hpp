// What is shown with a rent plan: what binds it, fleets of one type, and slower devices.
#pragma once

#include "motley/planner/rent/rent_fleet.hpp"

namespace motley {

// Shadow prices and what binds each class, from the relaxation's prices.
void explain_prices(const Offers& offers, const RentProblem& problem, const FleetAnswer& answer,
                    RentPrediction& predicted);

// The best fleet of each type alone, with what is available and with as many as one likes.
std::vector<HomogeneousFleet> homogeneous_fleets(const Offers& offers, const RentOptions& options, Instant deadline);

// The plan's fleet where all devices, or those of one type, are 1.25 and 1.5 times slower.
std::vector<SlowerCase> slower_cases(const Offers& offers, const RentOptions& options, const RentPlan& plan,
                                     Instant deadline);

}  // namespace motley
