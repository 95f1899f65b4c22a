// The tables of motley.plan/1, kind "collective".
#include <fmt/format.h>

#include <charconv>

#include "motley/plan/collective_check.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/plan/format.hpp"

namespace motley {

template <>
const std::vector<EnumName<CollectiveOperation>>& enum_names<CollectiveOperation>() {
  static const std::vector<EnumName<CollectiveOperation>> names = {
      {CollectiveOperation::all_reduce, "all_reduce"},
      {CollectiveOperation::reduce_scatter, "reduce_scatter"},
      {CollectiveOperation::all_gather, "all_gather"},
      {CollectiveOperation::broadcast, "broadcast"}};
  return names;
}

template <>
const std::vector<EnumName<CollectiveStepKind>>& enum_names<CollectiveStepKind>();
template <>
const std::vector<EnumName<CollectiveStepKind>>& enum_names<CollectiveStepKind>() {
  static const std::vector<EnumName<CollectiveStepKind>> names = {{CollectiveStepKind::send, "send"},
                                                                  {CollectiveStepKind::recv, "recv"},
                                                                  {CollectiveStepKind::reduce, "reduce"},
                                                                  {CollectiveStepKind::copy, "copy"}};
  return names;
}

template <>
const Schema<CollectivePrediction>& schema<CollectivePrediction>();
template <>
const Schema<CollectivePrediction>& schema<CollectivePrediction>() {
  using P = CollectivePrediction;
  constexpr Limits figure{.always_written = true, .min = 0};
  static const auto table =
      Schema<P>("predicted", "What the planner expects on the cluster's network.")
          .field("time_s", &P::time_s, "Seconds of the rounds in sequence, the vector whole (GenModel).", figure)
          .field("pipelined_s", &P::pipelined_s, "Seconds in the plan's chunks, rounds and halves overlapping.", figure)
          .field("steady_s", &P::steady_s, "Seconds of the busiest link, its bytes alone.", figure)
          .field("limit_s", &P::limit_s, "Seconds below which no plan on this network can be.", figure)
          .field("efficiency", &P::efficiency, "`limit_s` / `pipelined_s`.", figure)
          .field("binding_cut", &P::binding_cut, "The links that set the limit.", {.always_written = true});
  return table;
}

// A step as it stands in a file: its place in a struct of the program is spread over two keys.
template <>
const Schema<CollectiveStep>& schema<CollectiveStep>();
template <>
const Schema<CollectiveStep>& schema<CollectiveStep>() {
  using S = CollectiveStep;
  static const auto table =
      Schema<S>("step", "What a rank does with a range of a chunk.")
          .field("op", &S::kind,
                 "`send`; `recv` overwrites this rank's range; `reduce` receives and adds; `copy` is local.",
                 {.required = true})
          .field("peer", &S::peer, "The other rank; none of a `copy`.", {.min = 0})
          .field("chunk", &S::chunk,
                 "Counts from 0. Where all steps name chunk 0 and there are more, the program holds for each. "
                 "Default: 0.",
                 {.min = 0})
          .field("first", &S::first, "Where the range begins, bytes inside the chunk.", {.required = true, .min = 0})
          .field("last", &S::last, "Where it ends, exclusive.", {.required = true, .min = 0})
          .field("after", &S::after,
                 "Places (from 0) in this rank's list that must be complete before. Steps on overlapping ranges keep "
                 "the list's order besides.",
                 {.min = 0});
  return table;
}

namespace {

Value write_step(const CollectiveStep& step) {
  Value out = Value::object({{"op", name_of(step.kind)}});
  if (step.kind != CollectiveStepKind::copy) out.set("peer", step.peer);
  if (step.chunk != 0) out.set("chunk", step.chunk);
  out.set("range", Value::array({step.first, step.last}));
  if (!step.after.empty()) out.set("after", binding::write_any(step.after));
  return out;
}

}  // namespace

}  // namespace motley
