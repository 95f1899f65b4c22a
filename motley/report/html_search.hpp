// How a plan was found, on a page.
#pragma once

#include <string>

#include "motley/plan/serve_plan.hpp"
#include "motley/report/html.hpp"

namespace motley {

// A figure for the head: "7.4%" from the best that is possible, or that it is the best.
PageFigure gap_figure(const SearchRecord& search);

// A sentence: which planner, by which costs, how it ended. `bound`: the bound with its unit and what it says; may be
// empty.
Html search_sentence(const SearchRecord& search, const std::string& bound);

}  // namespace motley
