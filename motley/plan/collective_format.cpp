// The tables of motley.plan/1, kind "collective".
#include <fmt/format.h>

#include "motley/plan/collective_check.hpp"
#include "motley/plan/collective_document.hpp"

namespace motley {
namespace {

constexpr double most_ranks = 1 << 20;

ByteRange read_range(const Reader& reader) {
  if (!reader.value().is_array() || reader.value().as_array().size() != 2)
    reader.expected("two numbers of bytes", "write [first, last), as in \"range\": [0, 4096]");
  const auto& pair = reader.value().as_array();
  return {binding::read_integer(reader.item(0, pair[0]), {.min = 0}),
          binding::read_integer(reader.item(1, pair[1]), {.min = 0})};
}

Value write_range(const ByteRange& range) { return Value::array({range.first, range.last}); }

// An object with a list per rank, "0", "1", ...
WrittenProgram read_program(const Reader& reader) {
  if (!reader.value().is_object()) reader.expected("a table with a list of steps per rank", "{\"0\": [...], ...}");
  const auto& ranks = reader.value().as_object();
  WrittenProgram program(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Value* steps = reader.value().find(fmt::format("{}", rank));
    if (!steps)
      reader.fail(fmt::format("there are {} lists of steps, and none of rank {}", ranks.size(), rank),
                  "ranks count from 0");
    program[rank] =
        binding::read_any<std::vector<WrittenStep>>(reader.member(fmt::format("{}", rank), *steps), Limits{});
  }
  return program;
}

Value write_program(const WrittenProgram& program) {
  Value ranks = Value::object();
  for (std::size_t rank = 0; rank < program.size(); ++rank)
    ranks.as_object().push_back({fmt::format("{}", rank), binding::write_any(program[rank])});
  return ranks;
}

ClusterDescription read_description(const Reader& reader) { return schema<ClusterDescription>().read(reader); }

}  // namespace

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

template <>
const Schema<WrittenStep>& schema<WrittenStep>() {
  using S = WrittenStep;
  static const auto table =
      Schema<S>("step", "What a rank does with a range of a chunk.")
          .field("op", &S::op,
                 "`send`; `recv` overwrites this rank's range; `reduce` receives and adds to it; `copy` is local, from "
                 "the input to the result.",
                 {.required = true})
          .field("peer", &S::peer, "The other rank; none of a `copy`.", {.min = 0, .max = most_ranks})
          .field("chunk", &S::chunk,
                 "Counts from 0. Where all steps name chunk 0 and there are more, the program holds for each. "
                 "Default: 0.",
                 {.min = 0, .max = most_ranks})
          .custom<ByteRange>({"range",
                              "list of two integers",
                              "[first, last), 0 <= first < last",
                              "Bytes inside the chunk.",
                              true,
                              {}},
                             &S::range, read_range, write_range)
          .field("after", &S::after,
                 "Places (from 0) in this rank's list that must be complete before. Besides, steps on overlapping "
                 "ranges keep the list's order.",
                 {.min = 0, .max = 1e9});
  return table;
}

template <>
const Schema<CollectiveDocument>& schema<CollectiveDocument>() {
  using D = CollectiveDocument;
  FieldDoc program{
      "program", "table of list of step",
      "",        "By rank, `\"0\"` to the last. Sends and receives match by peers, chunk and range, in order.",
      true,      {}};
  binding::collect_nested<std::vector<WrittenStep>>(program.nested);
  static const auto table =
      Schema<D>("collective plan", "A program per rank, with the cluster it was made for.")
          .format("motley.plan/1")
          .field("kind", &D::kind, "`collective`.", {.required = true})
          .custom<ClusterDescription>(description_row("cluster"), &D::cluster, read_description,
                                      binding::write_any<ClusterDescription>)
          .field("operation", &D::operation, "What the program computes.", {.required = true})
          .field("ranks", &D::ranks, "As many as the cluster has devices; rank r is its r-th.",
                 {.required = true, .min = 1, .max = most_ranks})
          .field("root", &D::root, "Whose vector a broadcast spreads. Default: 0.", {.min = 0, .max = most_ranks})
          .field("bytes", &D::bytes, "Of the vector; of reduce_scatter and all_gather, of all blocks together.",
                 {.required = true, .min = 1, .max = 1e15})
          .field("chunks", &D::chunks, "Equal parts of the vector, each of which goes through the program. Default: 1.",
                 {.always_written = true, .min = 1, .max = 1 << 20})
          .field("layout", &D::layout, "The program in words, for people.", {.always_written = true})
          .custom<WrittenProgram>(std::move(program), &D::program, read_program, write_program)
          .field("predicted", &D::predicted, "What the planner expects.", {.always_written = true})
          .field("search", &D::search, "How the plan was found.", {.always_written = true});
  return table;
}

Value write_collective_plan(const CollectivePlan& plan) {
  const auto& program = plan.program;
  WrittenProgram steps;
  for (const auto& list : program.steps) {
    steps.emplace_back();
    for (const auto& step : list)
      steps.back().push_back({step.kind, step.peer, step.chunk, {step.first, step.last}, step.after});
  }
  return write(CollectiveDocument{"collective", plan.cluster.description, program.operation, program.ranks,
                                  program.root, program.bytes, program.chunks, plan.layout, std::move(steps),
                                  plan.predicted, plan.search});
}

CollectivePlan read_collective_plan(const Value& value, std::string source) {
  const Reader reader(value, source);
  if (const Value* kind = value.find("kind"); kind && !(kind->is_string() && kind->as_string() == "collective"))
    reader.member("kind", *kind)
        .fail(kind->is_string() ? fmt::format("this is a plan of kind \"{}\", not \"collective\"", kind->as_string())
                                : fmt::format("expected a string, found {}", kind->type_name()),
              "make one with `motley plan allreduce`");
  auto document = schema<CollectiveDocument>().read(reader);
  CollectivePlan plan;
  plan.cluster = resolve(std::move(document.cluster), source + ": cluster");
  plan.layout = std::move(document.layout);
  plan.program = {.operation = document.operation,
                  .ranks = document.ranks,
                  .root = document.root,
                  .bytes = document.bytes,
                  .chunks = document.chunks,
                  .steps = {}};
  for (auto& list : document.program) {
    plan.program.steps.emplace_back();
    for (auto& step : list)
      plan.program.steps.back().push_back(
          {step.op, step.peer, step.chunk, step.range.first, step.range.last, std::move(step.after)});
  }
  plan.predicted = std::move(document.predicted);
  plan.search = std::move(document.search);
  return plan;
}

std::vector<Violation> verify(const CollectivePlan& plan) {
  if (plan.program.ranks != static_cast<int>(plan.cluster.devices.size()))
    return {{"ranks", fmt::format("{} ranks for {} devices", plan.program.ranks, plan.cluster.devices.size()),
             "a collective has a rank per device of its cluster"}};
  return check_program(plan.program);
}

CollectiveProgram read_collective_program(const std::filesystem::path& file) {
  CollectivePlan plan = read_collective_plan(read_document(file), file.string());
  if (const auto violations = verify(plan); !violations.empty())
    throw input_error(fmt::format("{}: {}: {}", file.string(), violations.front().place, violations.front().what),
                      "see `motley verify`");
  return std::move(plan.program);
}

}  // namespace motley
