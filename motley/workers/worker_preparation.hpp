// Workers for another plan that start and load while this one is served. Of one thread.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "motley/base/clock.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

class WorkerPreparation {
 public:
  // `running`: devices whose workers serve now; for these it has what they lack brought to their machines.
  WorkerPreparation(Fleet& fleet, const ServePlan& plan, const std::set<std::string>& running,
                    const WorkerReads& reads);
  // Looks how far it is. Throws where it cannot be done.
  bool done();
  // Those that are there, done or not; the others end.
  Workers take();

 private:
  void take_messages(const Worker& worker);

  const ServePlan plan_;
  std::unique_ptr<WorkerStart> start_;
  Workers workers_;
  std::set<std::string> loaded_;
  Instant heard_ = Clock::now();
};

}  // namespace motley
