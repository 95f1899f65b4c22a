#include "motley/comm/collective/schedule_cache.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"
#include "motley/comm/collective/collective_defaults.hpp"

namespace motley {
namespace {

constexpr std::size_t most_schedules = 16;
constexpr std::int64_t alignment_bytes = 64;

// The operation whose plans may run this call.
std::optional<CollectiveOperation> planned_operation(CollectiveCall call) {
  switch (call) {
    case CollectiveCall::all_reduce: return CollectiveOperation::all_reduce;
    case CollectiveCall::reduce_scatter: return CollectiveOperation::reduce_scatter;
    case CollectiveCall::all_gather: return CollectiveOperation::all_gather;
    case CollectiveCall::broadcast: return CollectiveOperation::broadcast;
    default: return std::nullopt;
  }
}

// Of a chunk, as the plan cuts its own vector.
std::int64_t planned_chunk_bytes(const CollectiveProgram& program, std::int64_t bytes) {
  constexpr std::int64_t most_bytes = 16 << 20;
  const bool alike = std::ranges::all_of(program.steps, [](const auto& list) {
    return std::ranges::all_of(list, [](const CollectiveStep& step) { return step.chunk == 0; });
  });
  return alike ? std::min(bytes / std::max(1, program.chunks), most_bytes) : bytes;
}

}  // namespace

void ScheduleCache::use_plans(std::vector<CollectiveProgram> plans) {
  for (const CollectiveProgram& plan : plans)
    if (plan.ranks != ranks_)
      throw input_error(fmt::format("a collective plan for {} ranks in a group of {}", plan.ranks, ranks_),
                        "plan for a cluster that has the members as devices, in the order of their ranks");
  plans_ = std::move(plans);
  schedules_.clear();
}

int ScheduleCache::nearest_plan(const OperationShape& shape) const {
  const auto operation = planned_operation(shape.call);
  int nearest = -1;
  double least = 0;
  for (std::size_t i = 0; i < plans_.size() && operation; ++i) {
    if (plans_[i].operation != *operation) continue;
    if (*operation == CollectiveOperation::broadcast && plans_[i].root != shape.root) continue;
    const double distance = std::abs(std::log(static_cast<double>(shape.bytes) / static_cast<double>(plans_[i].bytes)));
    if (nearest >= 0 && distance >= least) continue;
    nearest = static_cast<int>(i);
    least = distance;
  }
  return nearest;
}

const CollectiveSchedule& ScheduleCache::planned(const OperationShape& shape, int blocks) {
  return find(shape, blocks, nearest_plan(shape));
}

const CollectiveSchedule& ScheduleCache::find(const OperationShape& shape, int blocks, int plan) {
  const std::int64_t unit = alignment_bytes * blocks;
  const CollectiveProgram* planned = plan < 0 ? nullptr : &plans_[static_cast<std::size_t>(plan)];
  std::int64_t chunk_bytes = default_chunk_bytes(ranks_, shape.bytes);
  if (planned != nullptr)
    chunk_bytes = std::max<std::int64_t>(1, ceil_div(planned_chunk_bytes(*planned, shape.bytes), unit)) * unit;
  const Cut cut{shape.call, shape.root, chunk_bytes, plan};
  const auto found = std::ranges::find(schedules_, cut, [](const auto& entry) { return entry.first; });
  if (found != schedules_.end()) {
    schedules_.splice(schedules_.begin(), schedules_, found);
    return found->second;
  }
  const CollectiveProgram program =
      planned != nullptr ? *planned : default_program(shape.call, ranks_, shape.root, shape.bytes);
  schedules_.emplace_front(cut, compile_schedule(program, rank_, chunk_bytes, blocks, alignment_bytes));
  if (schedules_.size() > most_schedules) schedules_.pop_back();
  return schedules_.front().second;
}

}  // namespace motley
