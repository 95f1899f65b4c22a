#include "motley/report/html_search.hpp"

#include <fmt/format.h>

#include "motley/base/units.hpp"
#include "motley/report/html_marks.hpp"

namespace motley {
namespace {

constexpr double visible_gap = 5e-5;

std::string ending(SearchStatus status) {
  switch (status) {
    case SearchStatus::optimal: return "proven optimal";
    case SearchStatus::gap: return "the search completed";
    case SearchStatus::deadline: return "the deadline ended the search";
    case SearchStatus::heuristic: return "found by heuristics, without proof";
  }
  return {};
}

}  // namespace

PageFigure gap_figure(const SearchRecord& search) {
  const bool closed = search.gap && *search.gap < visible_gap;
  if (search.status == SearchStatus::optimal || closed) return {"from the bound", "0%", "no plan is better"};
  if (!search.gap) return {"from the bound", "\u2013", "no bound known"};
  return {"from the bound", fmt::format("{:.3g}%", 100 * *search.gap), "largest possible gain"};
}

Html search_sentence(const SearchRecord& search, const std::string& bound) {
  std::string text = fmt::format("Found by planner {}", search.planner.empty() ? "\u2013" : search.planner);
  if (!search.objective.empty()) text += fmt::format(", objective {}", search.objective);
  if (!search.cost.empty()) text += fmt::format(", cost form {}", search.cost);
  text += fmt::format(": {} candidates in {}, seed {}; {}.", short_figure(static_cast<double>(search.evaluated)),
                      human_seconds(search.elapsed_s), search.seed, ending(search.status));
  if (!bound.empty()) text += " " + bound;
  return paragraph("search", text);
}

}  // namespace motley
