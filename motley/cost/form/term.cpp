#include "motley/cost/form/term.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {
namespace {

double combined(TermKind kind, const std::vector<Term>& children) {
  double value = 0;
  for (const auto& child : children) value = kind == TermKind::max ? std::max(value, child.value) : value + child.value;
  return value;
}

Term node(TermKind kind, std::string name, std::vector<Term> children, std::string note) {
  Term term{.name = std::move(name), .kind = kind, .note = std::move(note)};
  term.value = combined(kind, children);
  if (!children.empty()) term.unit = children.front().unit;
  term.children = std::move(children);
  return term;
}

}  // namespace

Term leaf(std::string name, double value, std::string note) {
  return {.name = std::move(name), .value = value, .note = std::move(note)};
}

Term sum_of(std::string name, std::vector<Term> children, std::string note) {
  return node(TermKind::sum, std::move(name), std::move(children), std::move(note));
}

Term max_of(std::string name, std::vector<Term> children, std::string note) {
  return node(TermKind::max, std::move(name), std::move(children), std::move(note));
}

void check_consistent(const Term& term) {
  MOTLEY_CHECK(std::isfinite(term.value) && term.value >= 0);
  if (term.kind == TermKind::leaf) {
    MOTLEY_CHECK(term.children.empty());
    return;
  }
  MOTLEY_CHECK(std::abs(combined(term.kind, term.children) - term.value) <= 1e-12 * term.value);
  for (const auto& child : term.children) {
    MOTLEY_CHECK(child.unit == term.unit);
    check_consistent(child);
  }
}

Value term_json(const Term& term, double total) {
  Value out = Value::object({{"name", term.name}});
  const std::string_view key = term.unit == "B" ? "bytes" : term.unit == "FLOP" ? "flop" : "seconds";
  out.set(key, term.value);
  out.set("share", total > 0 ? term.value / total : 0.0);
  if (term.kind != TermKind::leaf) out.set("of", term.kind == TermKind::max ? "max" : "sum");
  if (!term.note.empty()) out.set("note", term.note);
  Value children = Value::array();
  for (const auto& child : term.children) children.push_back(term_json(child, total));
  if (!term.children.empty()) out.set("terms", std::move(children));
  return out;
}

std::string human_flop(double flop) {
  static constexpr std::pair<double, std::string_view> scales[] = {
      {1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [scale, prefix] : scales)
    if (flop >= scale) return fmt::format("{:.3g} {}FLOP", flop / scale, prefix);
  return fmt::format("{:.3g} FLOP", flop);
}

Value explain_json(const Term& root) {
  Value terms = Value::array();
  for (const auto& child : root.children) terms.push_back(term_json(child, root.value));
  return Value::object({{"total_s", root.value}, {"terms", std::move(terms)}});
}

}  // namespace motley
