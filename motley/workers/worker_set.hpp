// The workers of one serving plan, from their start to their end: what they report, which steps they have not answered,
// and why one of them was lost. Knows no requests: what a step carries, and what follows from a loss, is decided above.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/workers/worker_watch.hpp"

namespace motley {

struct WorkerStatus {
  std::string device, stage;
  int rank = 0;
  int process = 0;  // on its own machine; 0: not known
  bool alive = false;
  Ready allocated;
  std::int64_t standby_bytes = 0;  // held: copies of other stages' layers
  double busy_s = 0;               // computing, since the start
  double waited_s = 0;
  std::uint64_t steps = 0;
};

// What a step took. A stage's time is that of its rank 0, waits for the other ranks included.
struct StepSeconds {
  std::vector<double> stage_s = {};             // of the route's stages in order; 0: not reported in time
  std::map<std::string, double> device_s = {};  // computing alone, of those that have reported in time
  std::optional<double> alone_s = {};           // from sending to answer, where no other step was under way meanwhile
};

// A step that a worker computes.
struct StepAtWork {
  std::string device;
  std::uint64_t step = 0;
  double for_s = 0;
};

struct WorkerSetOptions {
  // A step without an answer for this long means that a worker hangs; where steps prove slow it is ten times the
  // slowest.
  double watchdog_s = 10;
  double silence_s = 3;  // a worker that has said Alive, and then nothing for this long, is lost
  double stall_s = 2;    // a link is lost whose receiver still waits so long after the sender was done
  // Start-up phases, for people: ("weights", "42 %").
  std::function<void(const std::string& phase, const std::string& detail)> report = {};
};

// Of one thread, which is the one that started the workers; status() from any.
class WorkerSet {
 public:
  // In the order of worker_devices(), launched; what they still say of an earlier epoch is ignored. They end with it.
  WorkerSet(std::shared_ptr<const ServePlan> plan, std::uint64_t epoch, Workers workers, WorkerSetOptions options);

  // Every worker has loaded its part.
  bool ready() const { return std::ranges::count(is_ready_, false) == 0; }
  // Steps took as long as others will: until now they paid for memory that was never touched.
  void warmed_up();

  // To every worker of those stages of the step's route that it passes.
  void send(const Step& step);
  // Asks those that have a part in a next plan to load it while their steps run; preloaded() once all have answered.
  void preload(const ServePlan& next);
  bool preloaded() const { return preloading_.empty(); }
  // Asks those whose stages hold copies of other layers to load them while their steps run.
  void load_standby();
  // What the workers compute, as far as they have said so.
  std::vector<StepAtWork> at_work() const;
  // Every step was answered.
  bool idle() const { return unanswered_.empty(); }

  // Until a worker has something to say, a step is overdue, or `wake` is readable, or for `most_s`.
  void wait(int wake, double most_s = 3600);
  // Takes in what has arrived since wait(): the answers to steps, in the order of the steps of each route. What
  // `on_result` throws is held against the worker that answered. A loss is final; its cause is looked for among all
  // workers, for which this may wait a moment.
  std::optional<WorkerLoss> receive(const std::function<void(const StepResult&, const StepSeconds&)>& on_result);

  // Ends the workers; none is left behind.
  void end();
  // They are to be launched for another epoch, and are not ended.
  Workers take_workers();

  std::vector<WorkerStatus> status() const;
  // By stage: since which epoch all its workers have kept the keys and values of their layers. Once they are ready.
  std::map<std::string, std::uint64_t> cache_epochs() const;

 private:
  struct UnansweredStep {
    std::size_t answering_worker = 0;  // rank 0 of the last stage that it passes
    std::size_t route = 0;
    std::int64_t tokens = 0;
    Instant sent;
    double limit_s = 0;
    bool alone = true;
    StepSeconds took = {};
    std::map<std::size_t, Instant> answers = {};  // when, by worker
  };
  using OnResult = std::function<void(const StepResult&, const StepSeconds&)>;

  template <class M>
  void take(std::size_t i, const M& message, const OnResult& on_result);
  void take(std::size_t i, const Interrupted& interrupted, const OnResult& on_result);
  void take(std::size_t i, const Preloaded& preloaded, const OnResult& on_result);
  void take(std::size_t i, const StandbyHeld& held, const OnResult& on_result);
  void take(std::size_t i, const Ready& ready, const OnResult& on_result);
  void take(std::size_t i, const StepResult& result, const OnResult& on_result);
  void note(std::size_t worker, const StepResult& result, UnansweredStep& step) const;
  double step_limit_s() const;
  std::optional<WorkerLoss> overdue() const;
  std::optional<WorkerLoss> stalled() const;
  bool has_stalled(std::size_t receiver) const;
  WorkerLoss lost_link(std::size_t from, std::size_t to, const std::string& how) const;
  std::optional<WorkerLoss> link_of_interruption(std::size_t i) const;
  WorkerLoss hang(std::uint64_t id, const UnansweredStep& step, double elapsed_s) const;
  WorkerLoss describe(const WorkerWatch::Lost& lost) const;
  void report_progress(const std::string& phase, double fraction);
  void report(const std::string& phase, const std::string& detail) const;

  const std::shared_ptr<const ServePlan> plan_;
  const std::uint64_t epoch_;
  const WorkerSetOptions options_;
  WorkerWatch watch_;
  std::map<std::string, std::size_t> first_worker_;  // of each stage
  std::string reported_phase_;
  double reported_fraction_ = 0;
  std::vector<bool> is_ready_;
  std::vector<std::uint64_t> last_answer_;  // step, per worker
  std::set<std::size_t> preloading_;
  std::vector<std::vector<std::int32_t>> suspects_;  // of workers that were interrupted
  std::vector<std::int64_t> kv_tokens_;              // alike, where memory is short
  std::map<std::uint64_t, UnansweredStep> unanswered_;
  std::int64_t unanswered_tokens_ = 0;
  double slowest_step_s_ = 0;
  std::optional<double> warm_up_step_s_;  // none: still warming up

  mutable std::mutex mutex_;
  std::vector<WorkerStatus> status_;  // guarded
};

}  // namespace motley
