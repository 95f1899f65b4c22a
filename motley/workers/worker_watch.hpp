// What every driver does with the workers of its job: takes in what they send, notices that one has ended or fallen
// silent, tells the worker that caused a loss from those that failed because of it, and ends them.
//
// A worker's process counts as living while it sends anything: it sends Alive twice a second, from a thread that never
// computes. So silence shows that the process is stopped or its machine is gone, and a long computation is not silent.
// Silence counts only while the driver listens, not while the driver itself was stopped (Ctrl-Z) or did something else.
// How long a computation may take is the job's decision, by the activity that Alive tells.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/workers/worker_handle.hpp"
#include "motley/workers/worker_loss.hpp"

namespace motley {

struct WorkerWatchOptions {
  double silence_s = 3;  // a worker that has sent Alive, and then nothing for this long, is lost
  double start_s = std::numeric_limits<double>::infinity();  // the same for a worker that has not sent it yet
  double settle_s = 0.25;                                    // in which a cause is told from its consequences
  // Before they are ready: how far all of them are together.
  std::function<void(const std::string& phase, double fraction)> progress = {};
};

// Of one thread.
class WorkerWatch {
 public:
  WorkerWatch(Workers workers, WorkerWatchOptions options);
  ~WorkerWatch();  // as end()
  WorkerWatch(const WorkerWatch&) = delete;
  WorkerWatch& operator=(const WorkerWatch&) = delete;

  const Workers& workers() const { return workers_; }
  std::size_t size() const { return workers_.size(); }
  const Worker& operator[](std::size_t worker) const { return workers_[worker]; }
  void send(const Message& message) const;  // to all

  // Until a worker has sent something, has ended or has been silent for too long, or `wake` is readable, or `most_s`
  // have passed.
  void wait(int wake, double most_s);

  struct Lost {
    std::size_t worker = 0;
    bool by_itself = true;  // false: no cause was found, this worker reported first
  };
  // Takes in what has arrived since wait(); `take` gets the job's messages. A peer error that it throws is the worker's
  // fault, other errors pass. A loss is final; its cause is looked for among all workers, for which this may wait a
  // moment.
  using Take = std::function<void(std::size_t worker, Message& message)>;
  std::optional<Lost> receive(const Take& take);
  // Makes this the error by which a worker is lost.
  void blame(std::size_t worker, Error why) { said_[worker] = std::move(why); }
  // The first worker that has been silent for too long.
  std::optional<WorkerLoss> silent() const;

  // What a worker reported of its own end, or is blamed for.
  const std::optional<Error>& said(std::size_t worker) const { return said_[worker]; }
  // How a worker was lost that receive() has named.
  WorkerLoss describe(std::size_t worker) const;

  // What a worker was at when it last said so, and when its processor time was last told to have grown.
  struct Seen {
    Activity activity;
    Instant told, went_on;
    double for_s() const { return activity.for_s + seconds_since(told); }
  };
  const Seen& seen(std::size_t worker) const { return seen_[worker]; }
  // Since when the driver has listened without interruption.
  Instant listening() const { return listening_; }

  // Ends the workers; none is left behind.
  void end();
  // They are not ended.
  Workers take_workers() { return std::exchange(workers_, {}); }

 private:
  bool take_messages(std::size_t worker, const Take& take);
  double silence_left_s(std::size_t worker) const;
  Lost find_cause(const Take& take);

  const WorkerWatchOptions options_;
  Workers workers_;
  std::vector<Progress> progress_;
  std::vector<std::size_t> to_read_;           // may have sent something
  std::vector<std::optional<Error>> said_;     // of their own ends
  std::vector<std::optional<Instant>> heard_;  // when last; set by the first Alive
  std::vector<Seen> seen_;
  const Instant start_ = Clock::now();
  Instant listening_ = start_, looked_ = start_;
};

}  // namespace motley
