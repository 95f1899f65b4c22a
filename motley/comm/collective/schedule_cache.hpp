// Which program runs an operation, and its compiled form, kept for the operations of the same kind and size that
// follow.
#pragma once

#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "motley/comm/collective/collective_schedule.hpp"
#include "motley/comm/transport/collective_frame.hpp"
#include "motley/plan/collective_program.hpp"

namespace motley {

class ScheduleCache {
 public:
  ScheduleCache(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  // Throws an input error for a plan of another number of ranks.
  void use_plans(std::vector<CollectiveProgram> plans);

  // Of the plans for the operation (and root) the one made for the nearest size; without one the library's own program.
  // Valid until the next call. Throws an input error where a plan does not fit the vector.
  const CollectiveSchedule& planned(const OperationShape& shape, int blocks);

 private:
  // How an operation is cut and run.
  struct Cut {
    CollectiveCall call = CollectiveCall::barrier;
    int root = 0;
    std::int64_t chunk_bytes = 0;
    int plan = -1;  // among plans_; -1: the library's own
    bool operator==(const Cut&) const = default;
  };

  int nearest_plan(const OperationShape& shape) const;
  const CollectiveSchedule& find(const OperationShape& shape, int blocks, int plan);

  int rank_, ranks_;
  std::vector<CollectiveProgram> plans_;
  std::list<std::pair<Cut, CollectiveSchedule>> schedules_;  // lately used first
};

}  // namespace motley
