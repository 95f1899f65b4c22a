// What losses would cost, for people.
#pragma once

#include <string>
#include <vector>

#include "motley/planner/serve/if_lost.hpp"

namespace motley::cli {

// A table; `tokens_per_s` is the plan's with all that there is. Empty where there are none.
std::string losses_report(const std::vector<Loss>& losses, double tokens_per_s);

}  // namespace motley::cli
