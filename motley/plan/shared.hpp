// What plans of every kind share: how a file says which kind it is, who found the plan, what is wrong with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "motley/base/binding.hpp"

namespace motley {

// Each plan's struct has one as its constant `kind`.
struct PlanKind {
  std::string_view name;     // the key `kind` of the file
  std::string_view command;  // makes such a plan
};

struct UnusedDevice {
  std::string device;
  std::string reason;
  bool operator==(const UnusedDevice&) const = default;
};
Schema<UnusedDevice> schema_of(Bound<UnusedDevice>);

enum class SearchStatus { optimal, gap, deadline, heuristic };
EnumNames<SearchStatus> names_of(Bound<SearchStatus>);

struct SearchRecord {
  std::string planner;
  std::string objective;
  std::string cost;
  std::int64_t seed = 0;
  SearchStatus status = SearchStatus::heuristic;
  std::optional<double> bound;  // of the objective
  std::optional<double> gap;    // (bound - value) / bound
  double elapsed_s = 0;
  std::int64_t evaluated = 0;
  bool operator==(const SearchRecord&) const = default;
};
Schema<SearchRecord> schema_of(Bound<SearchRecord>);

// A predicted figure where it is not certain.
struct FigureRange {
  double low = 0, high = 0;
  bool operator==(const FigureRange&) const = default;
};
Schema<FigureRange> schema_of(Bound<FigureRange>);

// What is wrong with a plan. verify() of each kind lists all; an empty list means that the plan is sound.
struct Violation {
  std::string place;  // "stages[1]", "routes[0].path[2]", "box/3"
  std::string what;
  std::string hint;
  bool operator==(const Violation&) const = default;
};

// The name of the kind that the document says it is. Throws an input error where that is none of `wanted`.
std::string_view read_kind(const Reader& document, const std::vector<PlanKind>& wanted);

// Reads JSON of `motley.plan/1` as one of these kinds: one is returned as such, of several a variant. Reading checks
// the format, not the sense: that is verify()'s. Throws an input error for any other kind, before anything else is
// read.
template <class... Plans>
  requires(sizeof...(Plans) > 0)
auto read_plan(const Value& document, const std::string& source) {
  const Reader reader(document, source);
  const std::string_view kind = read_kind(reader, {Plans::kind...});
  if constexpr (sizeof...(Plans) == 1) {
    return (schema<Plans>().read(reader), ...);
  } else {
    std::optional<std::variant<Plans...>> plan;
    ((kind == Plans::kind.name ? void(plan.emplace(schema<Plans>().read(reader))) : void()), ...);
    return std::move(*plan);
  }
}
template <class... Plans>
  requires(sizeof...(Plans) > 0)
auto read_plan_file(const std::filesystem::path& path) {
  return read_plan<Plans...>(read_document(path), path.string());
}

}  // namespace motley
