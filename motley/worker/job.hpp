// What a worker can be asked for: the jobs, each the same way. worker.cpp chooses by the driver's first message.
#pragma once

#include <exception>

#include "motley/comm/transport/fabric.hpp"
#include "motley/worker/work_queue.hpp"
#include "motley/workers/activity_log.hpp"
#include "motley/workers/control_connection.hpp"

namespace motley {

// The worker, as its job sees it; all of it lasts to the end of the process.
struct WorkerSide {
  ControlConnection& driver;
  const CallDriver& self;
  Fabric& fabric;
  WorkQueue& queue;
  ActivityLog& activity;
};

struct Job {
  bool (*begins_with)(const Message& first);
  // Does what comes in, on a thread of its own. Ends by an exception alone, which ends the process.
  void (*run)(const WorkerSide& worker);
};
extern const Job serve_job, train_job;

// Ends the process, and tells the driver why as far as it still listens.
[[noreturn]] void fail(ControlConnection& driver, const std::exception_ptr& cause);

}  // namespace motley
