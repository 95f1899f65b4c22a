// How a worker that trains is connected with the others: one group for each purpose, so that threads do not share any.
#pragma once

#include <map>
#include <memory>
#include <stop_token>
#include <utility>
#include <vector>

#include "motley/trainer/layout/worker_layout.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

class TrainConnections {
 public:
  // All workers do the same at the same time. Throws GroupBroken, which names who cannot be reached. `activity` gets
  // the waits of the thread that computes.
  TrainConnections(const TrainPlan& plan, int worker, const std::vector<WorkerAddress>& addresses, Fabric& fabric,
                   ActivityLog& activity, const std::stop_token& stop = {});

  // Of these workers, this one among them; nullptr where it is alone.
  WorkerGroup* group(GroupKind kind, const std::vector<int>& workers) const;
  // For rows that pass from one worker to another; this one is one of the two.
  WorkerGroup& rows(int from, int to) const;

 private:
  std::map<TrainGroup, std::unique_ptr<WorkerGroup>> groups_;
  std::map<std::pair<int, int>, std::unique_ptr<WorkerGroup>> rows_;
};

}  // namespace motley
