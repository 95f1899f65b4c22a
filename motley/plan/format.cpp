// The tables of what plans of several kinds hold.
#include "motley/plan/format.hpp"

#include <fmt/format.h>

namespace motley {

EnumNames<SearchStatus> names_of(Bound<SearchStatus>) {
  return {{SearchStatus::optimal, "optimal"},
          {SearchStatus::gap, "gap"},
          {SearchStatus::deadline, "deadline"},
          {SearchStatus::heuristic, "heuristic"}};
}

Schema<UnusedDevice> schema_of(Bound<UnusedDevice>) {
  return Schema<UnusedDevice>("unused", "An idle device.")
      .field("device", &UnusedDevice::device, "Its name.", {.required = true})
      .field("reason", &UnusedDevice::reason, "Why.", {.always_written = true});
}

Schema<FigureRange> schema_of(Bound<FigureRange>) {
  return Schema<FigureRange>("range", "A predicted figure that is not certain.")
      .field("low", &FigureRange::low, "It is at least this.", {.required = true, .min = 0})
      .field("high", &FigureRange::high, "And at most this.", {.required = true, .min = 0});
}

Schema<SearchRecord> schema_of(Bound<SearchRecord>) {
  using S = SearchRecord;
  constexpr Limits written{.always_written = true};
  return Schema<S>("search", "How the plan was found.")
      .field("planner", &S::planner, "Its name.", written)
      .field("objective", &S::objective, "Objective of the search.", written)
      .field("cost", &S::cost, "The form of the cost.", written)
      .field("seed", &S::seed, "Seed of the random numbers.", written)
      .field("status", &S::status, "Default: `heuristic`.", written)
      .field("bound", &S::bound, "Bound of the objective: no plan exceeds it.")
      .field("gap", &S::gap, "(bound - value) / bound.")
      .field("elapsed_s", &S::elapsed_s, "Wall-clock seconds.", {.always_written = true, .min = 0})
      .field("evaluated", &S::evaluated, "Candidates.", {.always_written = true, .min = 0});
}

FieldDoc layers_row(std::string doc) {
  return {"layers", "list of two integers", "[first, last), 0 <= first < last", std::move(doc), true, {}, true};
}

LayerRange read_layers(const Reader& reader) {
  if (!reader.value().is_array() || reader.value().as_array().size() != 2)
    reader.expected("two layer numbers", "write [first, last), as in \"layers\": [0, 20] for the first twenty");
  const auto& pair = reader.value().as_array();
  const LayerRange range{binding::read_integer(reader.item(0, pair[0]), {.min = 0}),
                         binding::read_integer(reader.item(1, pair[1]), {.min = 0})};
  return range;
}

Value write_layers(const LayerRange& range) { return Value::array({range.first, range.end}); }

FieldDoc kind_row(const PlanKind& kind) { return {"kind", "string", "", fmt::format("`{}`.", kind.name), true, {}}; }

FieldDoc writer_row() {
  return {std::string(writer_key),
          "string",
          "",
          "Program that wrote the file, with its version. Default: not known.",
          false,
          {},
          true};
}

}  // namespace motley
