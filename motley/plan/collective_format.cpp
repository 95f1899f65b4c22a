// The tables of motley.plan/1, kind "collective".
#include <fmt/format.h>

#include "motley/plan/collective_plan.hpp"
#include "motley/plan/format.hpp"

namespace motley {
namespace {

constexpr double most_ranks = 1 << 20;

using Steps = std::vector<std::vector<CollectiveStep>>;  // by rank

void read_range(CollectiveStep& step, const Reader& reader) {
  if (!reader.value().is_array() || reader.value().as_array().size() != 2)
    reader.expected("two numbers of bytes", "write [first, last), as in \"range\": [0, 4096]");
  const auto& pair = reader.value().as_array();
  step.first = binding::read_integer(reader.item(0, pair[0]), {.min = 0});
  step.last = binding::read_integer(reader.item(1, pair[1]), {.min = 0});
}

Value write_range(const CollectiveStep& step) { return Value::array({step.first, step.last}); }

// An object with a list per rank, "0", "1", ...
Steps read_steps(const Reader& reader) {
  if (!reader.value().is_object()) reader.expected("a table with a list of steps per rank", "{\"0\": [...], ...}");
  const auto& ranks = reader.value().as_object();
  Steps steps(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string name = fmt::format("{}", rank);
    const Value* list = reader.value().find(name);
    if (!list)
      reader.fail(fmt::format("there are {} lists of steps, but none for rank {}", ranks.size(), rank),
                  "count ranks from 0");
    steps[rank] = binding::read_any<Steps::value_type>(reader.member(name, *list), Limits{});
  }
  return steps;
}

Value write_steps(const Steps& steps) {
  Value ranks = Value::object();
  for (std::size_t rank = 0; rank < steps.size(); ++rank)
    ranks.as_object().push_back({fmt::format("{}", rank), binding::write_any(steps[rank])});
  return ranks;
}

}  // namespace

EnumNames<CollectiveOperation> names_of(Bound<CollectiveOperation>) {
  return {{CollectiveOperation::all_reduce, "all_reduce"},
          {CollectiveOperation::reduce_scatter, "reduce_scatter"},
          {CollectiveOperation::all_gather, "all_gather"},
          {CollectiveOperation::broadcast, "broadcast"}};
}

EnumNames<CollectiveStepKind> names_of(Bound<CollectiveStepKind>) {
  return {{CollectiveStepKind::send, "send"},
          {CollectiveStepKind::recv, "recv"},
          {CollectiveStepKind::reduce, "reduce"},
          {CollectiveStepKind::copy, "copy"}};
}

Schema<CollectivePrediction> schema_of(Bound<CollectivePrediction>) {
  using P = CollectivePrediction;
  constexpr Limits figure{.always_written = true, .min = 0};
  return Schema<P>("predicted", "Prediction for the cluster's network.")
      .field("time_s", &P::time_s, "Seconds of the rounds in sequence, the vector whole (GenModel).", figure)
      .field("pipelined_s", &P::pipelined_s, "Seconds in the plan's chunks, rounds and halves overlapping.", figure)
      .field("steady_s", &P::steady_s, "Seconds of the busiest link, its bytes alone.", figure)
      .field("limit_s", &P::limit_s, "Lower bound of any plan on this network, in seconds.", figure)
      .field("efficiency", &P::efficiency, "`limit_s` / `pipelined_s`.", figure)
      .field("binding_cut", &P::binding_cut, "The links that set the limit.", {.always_written = true});
}

Schema<CollectiveStep> schema_of(Bound<CollectiveStep>) {
  using S = CollectiveStep;
  return Schema<S>("step", "One operation of a rank on a range of a chunk.")
      .field("op", &S::kind,
             "`send`; `recv` overwrites this rank's range; `reduce` receives and adds to it; `copy` is local, from the "
             "input to the result.",
             {.required = true})
      .field("peer", &S::peer, "The other rank; omitted for `copy`.", {.min = 0, .max = most_ranks})
      .field("chunk", &S::chunk,
             "Counts from 0. Where all steps name chunk 0 and there are more, the program holds for each. Default: 0.",
             {.min = 0, .max = most_ranks})
      .key({"range", "list of two integers", "[first, last), 0 <= first < last", "Bytes inside the chunk.", true, {}},
           read_range, write_range)
      .field("after", &S::after,
             "Places (from 0) in this rank's list that must be complete before. Besides, steps on overlapping ranges "
             "keep the list's order.",
             {.min = 0, .max = 1e9});
}

Schema<CollectiveProgram> schema_of(Bound<CollectiveProgram>) {
  using C = CollectiveProgram;
  FieldDoc steps{
      "program", "table of list of step",
      "",        "Steps by rank, `\"0\"` to the last. Sends and receives match by peers, chunk and range, in order.",
      true,      {}};
  binding::collect_nested<Steps>(steps.nested);
  return Schema<C>("program", "What every rank does.")
      .field("operation", &C::operation, "What the program computes.", {.required = true})
      .field("ranks", &C::ranks, "Number of ranks: the number of devices; rank r is device r.",
             {.required = true, .min = 1, .max = most_ranks})
      .field("root", &C::root, "Rank that broadcasts its vector. Default: 0.", {.min = 0, .max = most_ranks})
      .field("bytes", &C::bytes, "Bytes of the vector; in reduce_scatter and all_gather, of all blocks together.",
             {.required = true, .min = 1, .max = 1e15})
      .field("chunks", &C::chunks, "Equal parts of the vector, each of which goes through the program. Default: 1.",
             {.always_written = true, .min = 1, .max = 1 << 20})
      .field("layout", &C::layout, "The program in words.", {.always_written = true})
      .custom<Steps>(std::move(steps), &C::steps, read_steps, write_steps);
}

Schema<CollectivePlan> schema_of(Bound<CollectivePlan>) {
  using P = CollectivePlan;
  return plan_table<P>("collective plan", "A program per rank, with the cluster it was made for.")
      .field("cluster", &P::cluster, "The description that the plan was made from, whole.", {.required = true})
      .flatten(&P::program)
      .field("predicted", &P::predicted, "Prediction.", {.always_written = true})
      .field("search", &P::search, "How the plan was found.", {.always_written = true});
}

}  // namespace motley
