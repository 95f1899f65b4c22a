#include "motley/report/html_cost.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/report/cost_report.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr std::size_t most_children = 40;  // of one term
constexpr std::size_t most_lines = 900;    // of the whole tree: deeper levels are left out

struct CostPlace {
  double from = 0;     // where the term begins, as a share of the root
  bool counts = true;  // false: another term of the maximum is larger
  bool open = true;    // unfolded, where it has terms
  int depth = 0;
  int deepest = 0;  // whose terms are still unfolded
};

Html line(const Term& term, const Term& root, const CostPlace& place) {
  const double share = root.value > 0 ? term.value / root.value : 0;
  const std::string value = term_value_text(term);
  const std::string words = fmt::format("{}: {}, {}{}", term.name, value, percent(share),
                                        place.counts ? "" : ", hidden behind a larger term");
  const std::string css_class = place.counts ? fmt::format("fill d{}", std::min(place.depth, 4)) : "fill hidden";
  return tag(
      "div", {{"class", place.counts ? "term" : "term off"}, {"style", fmt::format("--depth:{}", place.depth)}},
      {span("name", {term.name, term.kind == TermKind::max ? span("note", "largest of") : Html()}),
       span("value", place.counts ? value : "(" + value + ")"), span("share", place.counts ? percent(share) : ""),
       drawing("thin", words, mark(css_class, place.from, place.from + share)),
       term.note.empty() ? Html() : span("note", term.note)});
}

Html tree(const Term& term, const Term& root, const CostPlace& place);

Html children(const Term& term, const Term& root, const CostPlace& place) {
  Html content;
  CostPlace child_place = place;
  child_place.depth = place.depth + 1;
  bool largest_seen = false;
  std::size_t shown = 0;
  for (const Term& child : term.children) {
    const bool binding = term.kind != TermKind::max || (!largest_seen && child.value == term.value);
    largest_seen = largest_seen || binding;
    child_place.counts = place.counts && binding;
    // The way to what binds a maximum is open from the start.
    child_place.open = child_place.counts && (term.kind == TermKind::max || child.kind == TermKind::max);
    if (++shown <= most_children || (binding && term.kind == TermKind::max)) content += tree(child, root, child_place);
    if (term.kind != TermKind::max && root.value > 0) child_place.from += child.value / root.value;
  }
  if (term.children.size() > most_children)
    content += paragraph(
        "note", fmt::format("and {} more terms, which `motley explain` prints", term.children.size() - most_children));
  return content;
}

Html tree(const Term& term, const Term& root, const CostPlace& place) {
  const Html own = line(term, root, place);
  if (term.children.empty() || place.depth >= place.deepest) return div("leaf", own);
  return tag("details", place.open ? Attributes{{"open", ""}} : Attributes{},
             {tag("summary", {}, own), children(term, root, place)});
}

std::size_t lines_to(const Term& term, int depth) {
  std::size_t lines = 1;
  if (depth > 0)
    for (std::size_t i = 0; i < std::min(most_children, term.children.size()); ++i)
      lines += lines_to(term.children[i], depth - 1);
  return lines;
}

}  // namespace

Html cost_content(const Term& root) {
  constexpr int deepest = 16;
  int depth = 1;
  while (depth < deepest && lines_to(root, depth + 1) <= most_lines) ++depth;
  Html content = div("terms", tree(root, root, {.deepest = depth}));
  if (lines_to(root, depth) < lines_to(root, deepest))
    content += paragraph("note", "This page omits deeper terms: `motley explain --depth 16` prints them.");
  return content;
}

}  // namespace motley
