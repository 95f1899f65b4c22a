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

std::string range_text(const FigureRange& range, const std::string& unit) {
  return fmt::format("{:.4g} to {:.4g}{}", range.low, range.high, unit);
}

std::string uncertainty_report(const std::vector<TypeUncertainty>& uncertainties, double tokens_per_s) {
  if (uncertainties.empty()) return {};
  Table table({"type", ">devices", "rests on", "tokens/s, slower to faster", "change"});
  const auto change = [&](double figure) { return fmt::format("{:+.0f}%", 100 * (figure / tokens_per_s - 1)); };
  for (const TypeUncertainty& uncertain : uncertainties)
    table.add({uncertain.type, fmt::format("{}", uncertain.devices),
               uncertain.basis == Basis::generation ? "its generation" : "other cards",
               range_text(uncertain.tokens_per_s, ""),
               fmt::format("{} to {}", change(uncertain.tokens_per_s.low), change(uncertain.tokens_per_s.high))});
  return "\nwhat a probe would settle: types whose speed was not measured\n" + table.render();
}

Value uncertainty_json(const std::vector<TypeUncertainty>& uncertainties) {
  Value::Array entries;
  for (const TypeUncertainty& uncertain : uncertainties)
    entries.push_back(Value::object({{"type", uncertain.type},
                                     {"devices", uncertain.devices},
                                     {"basis", std::string(name_of(uncertain.basis))},
                                     {"tokens_per_s_range", write(uncertain.tokens_per_s)}}));
  return Value(std::move(entries));
}

std::string term_report(const Term& root, int depth) {
  Table table({"", ">", ">", ""});
  add_rows(table, root, root, 0, depth, true);
  return table.render();
}

}  // namespace motley
