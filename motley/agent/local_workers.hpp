// The worker processes of this machine, from the wish for one to the moment when the system has taken the last of it
// back. Nothing here waits but the end of all.
#pragma once

#include <poll.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "motley/agent/agent_messages.hpp"
#include "motley/agent/gpu_watch.hpp"
#include "motley/base/clock.hpp"
#include "motley/workers/worker_processes.hpp"

namespace motley {

struct LocalWorkersOptions {
  std::filesystem::path program;  // motley-worker
  double grace_s = 1;             // for a worker to leave by itself
  double patience_s = killed_s;   // for a process that was killed to end
  // What the worker of a device is told, as it starts.
  std::function<CallDriver(const std::string& device, std::uint64_t start)> call;
  std::function<Variables(const std::string& device)> variables;  // of its environment
  std::function<void(const AgentMessage& message)> tell;          // the driver
  std::function<void(const std::string& what, const std::string& detail)> say;
};

// Of one thread, with which the processes end.
class LocalWorkers {
 public:
  LocalWorkers(LocalWorkersOptions options, GpuWatch& gpus) : options_(std::move(options)), gpus_(gpus) {}
  ~LocalWorkers() { end_all(); }
  LocalWorkers(const LocalWorkers&) = delete;
  LocalWorkers& operator=(const LocalWorkers&) = delete;

  // The device's worker, of this number, starts once an earlier one has ended and its memory is back; WorkerStarted
  // tells so, or WorkerEnded why it cannot be.
  void start(const std::string& device, std::uint64_t number);
  bool runs(const std::string& device) const { return running_.contains(device); }
  // Ends what there is of the device's worker: it may leave by itself for a moment, and is killed then.
  void end(const std::string& device);
  void kill_all();
  // The same, and waits for all of them some seconds at most. A process that does not end even so is left behind.
  void end_all();

  // There is a worker, or one is to start.
  bool any() const { return !waiting_.empty() || !running_.empty(); }
  // No process is left, also none that ends.
  bool none_left() const { return !any() && ending_.empty(); }
  // Looks at what has happened, and does what is due.
  void look();
  // What there is to wait for until then.
  void add_events(std::vector<pollfd>& waiting) const;
  // To a driver that knows nothing yet: which devices are out of service.
  void tell_again();

 private:
  struct Waiting {
    std::uint64_t number = 0;
    bool awaits_release = false;  // its memory is looked at
  };
  struct Running {
    std::uint64_t number = 0;
    std::unique_ptr<WorkerProcess> process;
    std::string last_words = {};                  // a failure that it has told
    std::optional<std::int64_t> stopped_at = {};  // see stopped_at()
    Instant stopped_since = {};
  };
  struct Ending {
    std::string device;
    std::unique_ptr<WorkerProcess> process;
    Instant kill_at, give_up_at;
    bool was_killed = false, given_up = false;
  };

  void begin_end(const std::string& device, Running running, double grace_s);
  void note_end(const std::string& device, int process);
  void look_at_running();
  void look_at_ending();
  void look_at_gpus();
  void look_at_waiting();
  bool may_start(const std::string& device, Waiting& waiting);
  void start_process(const std::string& device, std::uint64_t number);
  void cannot_start(const std::string& device, std::uint64_t number, const std::string& cause) const;
  void end_if_stopped(const std::string& device, Running& worker) const;
  std::string out_of_service(const std::string& device) const;
  void tell_state(const std::string& device);

  const LocalWorkersOptions options_;
  GpuWatch& gpus_;
  std::map<std::string, Waiting> waiting_;  // by device, as all below
  std::map<std::string, Running> running_;
  std::list<Ending> ending_;
  std::map<std::string, std::set<unsigned>> past_;  // processes whose memory may not be back yet
  std::map<std::string, std::string> broken_;       // GPUs that cannot be used, and why
  std::map<std::string, std::string> told_;         // why a device is out of service, as the driver knows
};

}  // namespace motley
