#include "motley/report/html_page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "motley/base/units.hpp"
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

namespace {

std::string length_text(const Length& length) {
  std::string text = fmt::format("{:.4g}", length.mean);
  if (length.p50 > 0) text += fmt::format(", p50 {:.4g}", length.p50);
  if (length.p99 > 0) text += fmt::format(", p99 {:.4g}", length.p99);
  return text;
}

std::string deadline_text(const Deadline& deadline) {
  std::vector<std::string> parts;
  if (deadline.first_token_s > 0) parts.push_back("first token " + human_seconds(deadline.first_token_s));
  if (deadline.per_token_s > 0) parts.push_back("per token " + human_seconds(deadline.per_token_s));
  if (deadline.total_s > 0) parts.push_back("total " + human_seconds(deadline.total_s));
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

Html workload_content(const Workload& workload) {
  std::vector<std::vector<Html>> rows;
  for (const RequestClass& described : workload.classes)
    rows.push_back({described.name, described.rate_per_s > 0 ? fmt::format("{:.4g}/s", described.rate_per_s) : "\u2013",
                    length_text(described.prompt_tokens), length_text(described.output_tokens),
                    deadline_text(described.deadline)});
  return table({"class", ">rate", ">prompt tokens", ">output tokens", "deadline"}, rows);
}

std::string_view page_css();  // page.css

namespace {

// What tells filled boxes apart without colours.
Html pattern_definitions() {
  // Per cause: its colour, and strokes of its own on an 8 x 8 tile. The first is plain.
  static constexpr const char* strokes[] = {"", "M-2 2L2 -2M0 8L8 0M6 10L10 6", "M0 4H8", "M4 0V8",
                                            "M-2 6L2 10M0 0L8 8M6 -2L10 2"};
  Html patterns;
  for (std::size_t i = 0; i < std::size(strokes); ++i)
    patterns +=
        tag("pattern",
            {{"id", fmt::format("fill{}", i)}, {"width", "8"}, {"height", "8"}, {"patternUnits", "userSpaceOnUse"}},
            {tag("rect", {{"class", fmt::format("ground{}", i)}, {"width", "8"}, {"height", "8"}}),
             tag("path", {{"class", "stroke"}, {"d", strokes[i]}})});
  return tag("svg", {{"class", "definitions"}, {"aria-hidden", "true"}}, tag("defs", {}, patterns));
}

}  // namespace

std::string page(std::string_view kind, std::string_view title, const Html& head,
                 const std::vector<PageSection>& sections) {
  Html links, body;
  for (const PageSection& part : sections) {
    if (part.content.empty()) continue;
    links += tag("a", {{"href", "#" + part.id}}, part.title);
    body += section(part.id, part.title, part.content);
  }
  const Html whole =
      tag("main", {},
          {pattern_definitions(), tag("header", {}, {paragraph("kind", kind), tag("h1", {}, title), head}),
           tag("nav", {{"aria-label", "On this page"}}, links), body});
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}\n</body>\n</html>\n",
      Html(title).markup(), page_css(), whole.markup());
}

}  // namespace motley
