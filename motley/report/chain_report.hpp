// Chain plans for people.
#pragma once

#include <string>

#include "motley/cost/form/term.hpp"
#include "motley/plan/chain_plan.hpp"

namespace motley {

// Alike sites in a row that take the same option.
struct ChainRun {
  std::string sites;   // their name
  std::string option;  // its name
  std::int64_t count = 1;
  double seconds = 0;  // of all of them, without layout changes
  double bytes = 0;    // of all of them, without transient ones
};
std::vector<ChainRun> chain_runs(const ChainPlan& plan);
// "600 B", "1.5 GiB".
std::string chain_bytes_text(double bytes);

// Which options the sites take, the time and the memory.
std::string chain_report(const ChainPlan& plan);

// The time of the choice: sites, synchronising, layout changes.
Term explain_chain(const ChainPlan& plan);

// A table of the front.
std::string chain_front_report(const std::vector<ChainPoint>& front);

}  // namespace motley
