// "What if": a plan made again under changed conditions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "motley/planner/serve/serve.hpp"

namespace motley::cli {

struct Changes {
  std::vector<std::string> without;  // devices
  std::vector<std::string> add;      // "A100*2", "A100*2 @ site"
  std::vector<std::string> what_if;  // "tp=8 on box"
  bool empty() const { return without.empty() && add.empty() && what_if.empty(); }
};

void add_change_options(CLI::App& verb, Changes& changes);

// Plans the same model and workload for the same objective, with the changes made. Throws an input error where a change
// makes no sense.
ServeOutcome plan_changed(const ServePlan& plan, const Changes& changes);

}  // namespace motley::cli
