// Costs for people.
#pragma once

#include <string>

#include "motley/cost/form/term.hpp"

namespace motley {

// The tree to this depth, indented: name, value, share of the root, formula with its numbers.
std::string term_report(const Term& root, int depth);

// "3.20 ms", "1.5 GiB" or "12 TFLOP".
std::string term_value_text(const Term& term);

}  // namespace motley
