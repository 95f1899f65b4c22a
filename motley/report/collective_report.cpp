#include "motley/report/collective_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr std::size_t most_rows = 16;

// How often a step of the program is done.
double times_of(const CollectiveProgram& program) {
  for (const auto& steps : program.steps)
    for (const auto& step : steps)
      if (step.chunk != 0) return 1;
  return program.chunks;
}

// A row per rank; neighbours that do alike share one.
std::string traffic_table(const CollectivePlan& plan) {
  Table table({"device", ">sends", ">receives", ">of that adds", ">messages"});
  const auto traffic = rank_traffic(plan.program);
  const auto close = [](const RankTraffic& a, const RankTraffic& b) {
    return std::abs(a.sent - b.sent) <= 1e-3 * a.sent && std::abs(a.received - b.received) <= 1e-3 * a.received &&
           std::abs(a.added - b.added) <= 1e-3 * a.added && a.messages == b.messages;
  };
  std::size_t rows = 0, rank = 0;
  for (; rank < traffic.size() && rows < most_rows; ++rows) {
    std::size_t last = rank;
    while (last + 1 < traffic.size() && close(traffic[rank], traffic[last + 1])) ++last;
    const auto& devices = plan.cluster.devices;
    table.add({last == rank ? devices[rank].name : fmt::format("{} to {}", devices[rank].name, devices[last].name),
               human_bytes(traffic[rank].sent), human_bytes(traffic[rank].received), human_bytes(traffic[rank].added),
               fmt::format("{}", traffic[rank].messages)});
    rank = last + 1;
  }
  std::string text = table.render();
  if (rank < traffic.size()) text += fmt::format("  and {} more\n", traffic.size() - rank);
  return text;
}

}  // namespace

std::vector<RankTraffic> rank_traffic(const CollectiveProgram& program) {
  const double times = times_of(program);
  std::vector<RankTraffic> traffic(program.steps.size());
  for (std::size_t rank = 0; rank < program.steps.size(); ++rank)
    for (const auto& step : program.steps[rank]) {
      if (step.kind == CollectiveStepKind::copy) continue;
      const double bytes = static_cast<double>(step.last - step.first) * times;
      traffic[rank].messages += times;
      (step.kind == CollectiveStepKind::send ? traffic[rank].sent : traffic[rank].received) += bytes;
      if (step.kind == CollectiveStepKind::reduce) traffic[rank].added += bytes;
    }
  return traffic;
}

std::vector<std::vector<double>> pair_bytes(const CollectiveProgram& program) {
  const double times = times_of(program);
  std::vector<std::vector<double>> bytes(program.steps.size(), std::vector<double>(program.steps.size()));
  for (std::size_t rank = 0; rank < program.steps.size(); ++rank)
    for (const auto& step : program.steps[rank])
      if (step.kind == CollectiveStepKind::send)
        bytes[rank][static_cast<std::size_t>(step.peer)] += static_cast<double>(step.last - step.first) * times;
  return bytes;
}

std::string collective_summary(const CollectivePlan& plan) {
  const auto& program = plan.program;
  return fmt::format("{} of {} over {} ranks in {} chunk{}: {}", name_of(program.operation),
                     human_bytes(static_cast<double>(program.bytes)), program.ranks, program.chunks,
                     program.chunks == 1 ? "" : "s", program.layout);
}

std::string collective_report(const CollectivePlan& plan) {
  const auto& predicted = plan.predicted;
  return fmt::format(
      "{}\n\n"
      "pipelined      {}\n"
      "rounds         {}, one after the other\n"
      "limit          {}: {}\n"
      "efficiency     {}\n"
      "steady load    {} on the busiest link, {:.3f} of the limit\n\n{}",
      collective_summary(plan), human_seconds(predicted.pipelined_s), human_seconds(predicted.time_s),
      human_seconds(predicted.limit_s), predicted.binding_cut, percent(predicted.efficiency),
      human_seconds(predicted.steady_s), predicted.limit_s > 0 ? predicted.steady_s / predicted.limit_s : 1.0,
      traffic_table(plan));
}

std::string compare_report(const std::vector<NamedPlan<CollectivePlan>>& plans) {
  Table table({"plan", ">pipelined", ">of the first", ">rounds", ">efficiency", ">chunks", "layout"});
  const double first = plans.front().plan->predicted.pipelined_s;
  for (const auto& [name, plan] : plans)
    table.add({name, human_seconds(plan->predicted.pipelined_s),
               fmt::format("{:.2f}x", plan->predicted.pipelined_s > 0 ? first / plan->predicted.pipelined_s : 1.0),
               human_seconds(plan->predicted.time_s), percent(plan->predicted.efficiency),
               fmt::format("{}", plan->program.chunks), plan->program.layout});
  return table.render("");
}

Value compare_json(const std::vector<NamedPlan<CollectivePlan>>& plans) {
  Value list = Value::array();
  const double first = plans.front().plan->predicted.pipelined_s;
  for (const auto& [name, plan] : plans)
    list.push_back(
        Value::object({{"plan", name},
                       {"layout", plan->program.layout},
                       {"pipelined_s", plan->predicted.pipelined_s},
                       {"time_s", plan->predicted.time_s},
                       {"limit_s", plan->predicted.limit_s},
                       {"efficiency", plan->predicted.efficiency},
                       {"speed", plan->predicted.pipelined_s > 0 ? first / plan->predicted.pipelined_s : 1.0}}));
  return Value::object({{"plans", list}});
}

}  // namespace motley
