#include "motley/report/cost_report.hpp"

#include <fmt/format.h>

#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

void add_rows(Table& table, const Term& term, const Term& root, int depth, int deepest, bool counts) {
  const std::string label = std::string(static_cast<std::size_t>(2 * depth), ' ') + term.name;
  // Under a maximum only the largest term counts; the others stay in brackets, to say how far they are from binding.
  const std::string share = root.value > 0 ? percent(term.value / root.value) : "";
  table.add(
      {label, counts ? term_value_text(term) : "(" + term_value_text(term) + ")", counts ? share : "", term.note});
  if (depth >= deepest) return;
  bool largest_shown = false;
  for (const auto& child : term.children) {
    const bool binding = term.kind != TermKind::max || (!largest_shown && child.value == term.value);
    largest_shown = largest_shown || binding;
    add_rows(table, child, root, depth + 1, deepest, counts && binding);
  }
}

}  // namespace

std::string term_value_text(const Term& term) {
  if (term.unit == "B") return human_bytes(term.value);
  if (term.unit == "s") return human_seconds(term.value);
  return human_flop(term.value);
}

std::string term_report(const Term& root, int depth) {
  Table table({{""}, {"", Align::right}, {"", Align::right}, {""}});
  add_rows(table, root, root, 0, depth, true);
  return table.render();
}

}  // namespace motley
