// Chain plans for people.
#pragma once

#include <string>

#include "motley/cost/term.hpp"
#include "motley/plan/chain.hpp"

namespace motley {

// Which options the sites take, the time and the memory.
std::string chain_report(const ChainPlan& plan);

// The time of the choice: sites, synchronising, layout changes.
Term explain_chain(const ChainPlan& plan);

// A table of the front.
std::string chain_front_report(const std::vector<ChainPoint>& front);

}  // namespace motley
