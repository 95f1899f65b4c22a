// Costs for people.
#pragma once

#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/cost/form/term.hpp"
#include "motley/cost/form/uncertainty.hpp"

namespace motley {

// The tree to this depth, indented: name, value, share of the root, formula with its numbers.
std::string term_report(const Term& root, int depth);

// "3.20 ms", "1.5 GiB" or "12 TFLOP".
std::string term_value_text(const Term& term);

// Device types that rest on the measurements of others, and what the plan would do if they were slower or faster; empty
// where there are none.
std::string uncertainty_report(const std::vector<TypeUncertainty>& uncertainties, double tokens_per_s);
Value uncertainty_json(const std::vector<TypeUncertainty>& uncertainties);
// "610 to 1100/s".
std::string range_text(const FigureRange& range, const std::string& unit);

}  // namespace motley
