// Where the workers of a job run: in processes of this machine (local_fleet.hpp), or on the machines whose agents have
// joined (fleet/agent_machines.hpp). A fleet starts workers and says where they are reached; what they are told is the
// job's affair (launch.hpp for serving, trainer/train_workers.hpp for training).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "motley/model/model.hpp"
#include "motley/workers/worker_handle.hpp"
#include "motley/workers/worker_loss.hpp"

namespace motley {

// Rows of a tensor, as the model's files hold it, all columns.
struct ReadRows {
  std::string tensor;
  Span rows;
  std::string stem = {};  // of the files that hold it; empty: the model's own
};

// What the workers of a job read.
struct WorkerReads {
  std::filesystem::path model;  // on this machine: a folder or a GGUF file. Other machines fetch of it
  std::function<std::vector<ReadRows>(const std::string& device)> rows;
};

// Workers that are on their way. Of one thread; the fleet outlives it.
class WorkerStart {
 public:
  virtual ~WorkerStart() = default;  // ends those that were not taken
  // Adds those that have come since, with their device, connection and address: they wait for a launch. True: all are
  // there, with the weights that they read. Throws WorkersNotStarted where that will not be.
  virtual bool take(Workers& come) = 0;
};

class Fleet {
 public:
  virtual ~Fleet() = default;
  // Begins to start workers of these devices, and to bring to the machines of those that run what they will read.
  // Does not wait. One at a time, of the thread that the workers are to end with.
  virtual std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting,
                                             const std::vector<std::string>& running, const WorkerReads& reads) = 0;
  // Devices on which no worker can be started for now, with the cause.
  virtual std::map<std::string, std::string> out_of_service() const { return {}; }
  // Its workers read and write this machine's files.
  virtual bool is_here() const = 0;
};

// Workers of these devices, in this order. Those of `earlier` that run and are among them stay and are taken out of
// it; the others end first; the rest is started. Throws WorkersNotStarted, where those that could stay are left in
// `earlier`; `stopped` is asked often, and ends the wait with an interrupted error.
Workers start_workers(Fleet& fleet, const std::vector<std::string>& devices, const WorkerReads& reads, Workers& earlier,
                      const std::function<bool()>& stopped = {});

// Throws WorkersNotStarted where one of these has ended; `devices` are those of the plan.
void check_running(const Workers& workers, const std::vector<std::string>& devices);

// How long a worker that starts may show nothing.
constexpr double start_patience_s = 30;

}  // namespace motley
