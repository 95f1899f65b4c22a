// Plans renting: how many copies of which configuration, and which requests go where.
//
//   RentOutcome outcome = plan_rent(read_offers("offers.json"), {.form = RentForm::cheapest});
//   if (outcome.plan) write_file("fleet.json", to_json(write(*outcome.plan), 1));
//   else fmt::print("{}\n{}\n", outcome.reason, outcome.hint);
//
// docs/concepts/planner-rent.md: the linear family, how it is solved, what is exact and what is not.
#pragma once

#include "motley/planner/rent/rent_options.hpp"

namespace motley {

// That nothing can be rented for the goal is an answer, not an error. Throws an input error where offers or options
// contradict themselves.
RentOutcome plan_rent(const Offers& offers, const RentOptions& options);

// The same with configurations made for the model from the market's types (names of the device catalogue). Classes and
// demand are the workload's. Shapes of two types are made on demand: those that the relaxation's prices, and a bound of
// their rates, do not rule out.
RentOutcome plan_rent(const Offers& market, const Model& model, const Workload& workload, const RentOptions& options,
                      const ModelRentOptions& model_options);

// Every type of the catalogue that has a price, as many as one likes.
Offers catalogue_market();

}  // namespace motley
