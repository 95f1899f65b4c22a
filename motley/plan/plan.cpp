#include "motley/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "motley/base/error.hpp"

namespace motley {
namespace {

template <class... Plans>
std::vector<PlanKind> kinds_of(std::type_identity<std::variant<Plans...>>) {
  return {Plans::kind...};
}

template <class... Plans>
AnyPlan read_one_of(std::type_identity<std::variant<Plans...>>, const Value& document, const std::string& source) {
  return read_plan<Plans...>(document, source);
}

// "a", "a or b", "a, b or c"
std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

}  // namespace

std::string_view read_kind(const Reader& document, const std::vector<PlanKind>& wanted) {
  if (!document.value().is_object()) document.expected("a table (plan)");
  binding::check_format(document, "motley.plan/1");
  std::vector<std::string> names;
  for (const PlanKind& kind : kinds_of(std::type_identity<AnyPlan>())) names.emplace_back(kind.name);
  const Value* said = document.value().find("kind");
  if (!said) document.fail("`kind` is missing", fmt::format("choose one of {}", fmt::join(names, ", ")));
  const Reader place = document.file().member("kind", *said);
  const std::string name = binding::read_string(place);
  for (const PlanKind& kind : wanted)
    if (name == kind.name) return kind.name;
  if (std::find(names.begin(), names.end(), name) == names.end())
    place.fail_unknown(fmt::format("\"{}\" is not a kind of plan", name),
                       did_you_mean(name, names, fmt::format("choose one of {}", fmt::join(names, ", "))));
  std::vector<std::string> accepted, commands;
  for (const PlanKind& kind : wanted) {
    accepted.push_back(fmt::format("\"{}\"", kind.name));
    commands.push_back(fmt::format("`{}`", kind.command));
  }
  place.fail(fmt::format("this is a plan of kind \"{}\", not {}", name, alternatives(accepted)),
             fmt::format("make one with {}", alternatives(commands)));
}

AnyPlan read_plan(const Value& document, const std::string& source) {
  return read_one_of(std::type_identity<AnyPlan>(), document, source);
}

AnyPlan read_plan_file(const std::filesystem::path& path) { return read_plan(read_document(path), path.string()); }

Value write(const AnyPlan& plan) {
  return std::visit([](const auto& one) { return write(one); }, plan);
}

PlanKind kind_of(const AnyPlan& plan) {
  return std::visit([](const auto& one) { return one.kind; }, plan);
}

std::vector<Violation> verify(const AnyPlan& plan) {
  return std::visit([](const auto& one) { return verify(one); }, plan);
}

}  // namespace motley
