// To plan again as a plan was made, as far as it tells: as it was, or under changed conditions.
#pragma once

#include <string>
#include <vector>

#include "motley/planner/serve/plan_serve.hpp"

namespace motley {

// Throws an input error for a name that none has.
Objective parse_objective(const std::string& text);

ServeOptions options_of(const ServePlan& plan);

// "What if".
struct Changes {
  std::vector<std::string> without;  // devices
  std::vector<std::string> add;      // "A100*2", "A100*2 @ site"
  std::vector<std::string> what_if;  // "tp=8 on box"
  bool empty() const { return without.empty() && add.empty() && what_if.empty(); }
};

// Plans the same model and workload for the same objective, with the changes made. Throws an input error where a change
// makes no sense.
ServeOutcome plan_changed(const ServePlan& plan, const Changes& changes);

}  // namespace motley
