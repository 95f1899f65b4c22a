// A whole document, and what several pages have alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "motley/cost/form/term.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/report/html.hpp"
#include "motley/workload/workload.hpp"

namespace motley {

// A cost on a page: the tree of its terms as bars that begin where the term before ended.
Html cost_content(const Term& root);

// How a plan was found, as a figure for the head: "7.4%" from the best that is possible, or that it is the best.
PageFigure gap_figure(const SearchRecord& search);

// The same as a sentence: which planner, by which costs, how it ended. `bound`: the bound with its unit and what it
// says; may be empty.
Html search_sentence(const SearchRecord& search, const std::string& bound);

// The classes of requests with rates, lengths and deadlines.
Html workload_content(const Workload& workload);

struct PageSection {
  std::string id;
  std::string title;
  Html content;
};
// The whole document, with nothing else to load. Empty sections are left out.
std::string page(std::string_view kind, std::string_view title, const Html& head,
                 const std::vector<PageSection>& sections);

}  // namespace motley
