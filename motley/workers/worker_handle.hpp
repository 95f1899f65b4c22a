// How a driver reaches one worker, wherever it runs. WorkerProcess (worker_processes.hpp) is a child of this process;
// RemoteWorker (remote_workers.hpp) is reached over TCP.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/workers/worker_messages.hpp"

namespace motley {

// How a worker ended.
struct WorkerExit {
  enum class How { code, signal, machine, unknown };  // machine: that is gone
  How how = How::unknown;
  int number = 0;            // the exit code, or the signal
  std::string text() const;  // "was killed by signal 9"
};

constexpr double killed_s = 5;  // for a process that was killed to end

// No call blocks. Of one thread.
class WorkerHandle {
 public:
  virtual ~WorkerHandle() = default;  // ends the worker at once

  // Queues an encoded message and sends what the connection takes now; flush() sends on. What is sent to a worker that
  // has ended is dropped.
  virtual void send(std::string_view message) = 0;
  virtual void flush() = 0;
  // The messages that have arrived completely. Throws a peer error on a malformed one.
  virtual std::vector<Message> receive() = 0;

  // No more messages will come.
  virtual bool ended() const = 0;
  // None: it runs, or nothing is known of its end yet.
  virtual std::optional<WorkerExit> exit() = 0;
  // What to wait for until the worker has something to say, takes more bytes, or ends.
  virtual std::vector<pollfd> events() const = 0;
  // receive() may have a message that no event will announce.
  virtual bool pending() const = 0;

  // Ends the connection, on which the worker leaves by itself.
  virtual void close() = 0;
  // Ends the worker, as far as it can be reached.
  virtual void kill() = 0;
  // Its process, on its own machine; 0 where it is not known.
  virtual int process() const = 0;
};

// The worker of a device. Once it is launched it has a place in a plan.
struct Worker {
  std::string device, stage;
  int rank = 0;
  std::unique_ptr<WorkerHandle> handle;
  WorkerAddress at = {};     // where it takes connections of other workers
  std::string name() const;  // "box/1 (rank 1 of stage r0/s0)"
};
// In the order of worker_devices() (launch.hpp), or of train_devices() (trainer/layout/worker_layout.hpp).
using Workers = std::vector<Worker>;

// Waits until one of them has something to say, takes more bytes or has ended, until `wake` is readable (-1: nothing
// else wakes it), or for `most_s`. Sends what they take now. Returns their places.
std::vector<std::size_t> wait_for_workers(const Workers& workers, int wake, double most_s);

// Closes the connections, gives the workers `grace_s` to leave, kills those that stay, and waits for their end, some
// seconds at most.
void end_workers(Workers& workers, double grace_s);

}  // namespace motley
