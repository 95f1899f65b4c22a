// SIGINT and SIGTERM of a process that others depend on, from its start to its end.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {

// Catches them while it lives; one at a time in a process. A thread of its own acts on them: what the others do then
// cannot be interrupted, or waits for others.
class StopSignals {
 public:
  explicit StopSignals(std::function<int()> end = {});  // see end_process_by()
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int count() const { return count_; }                   // that have come
  int descriptor() const { return came_.descriptor(); }  // readable from the first on

  // From now on a signal, also one that has come before, ends the process with the code that `end` returns. None: they
  // are counted alone. Returns when an earlier `end` is not used any more.
  void end_process_by(std::function<int()> end);
  // But the next one calls this; and this many seconds after end_within(), which replaces an earlier time, the process
  // ends once `late` was called. Both until disarm().
  void arm(std::function<void()> first);
  void end_within(double seconds, std::function<void()> late);
  void disarm();

 private:
  void run(const std::stop_token& stop);
  void act();

  Wakeup came_, wake_;
  std::atomic<int> count_ = 0;
  std::mutex mutex_;
  int taken_ = 0;  // signals; guarded, and so are these
  std::function<int()> end_;
  std::function<void()> first_, late_;
  Instant until_ = no_deadline;
  std::jthread thread_;

  static std::atomic<StopSignals*> catching_;
  static void on_signal(int);
};

// While it lives, a signal ends the process by this.
class EndOnSignal {
 public:
  EndOnSignal(StopSignals& signals, std::function<int()> end) : signals_(signals) {
    signals.end_process_by(std::move(end));
  }
  ~EndOnSignal() { signals_.end_process_by({}); }
  EndOnSignal(const EndOnSignal&) = delete;
  EndOnSignal& operator=(const EndOnSignal&) = delete;

 private:
  StopSignals& signals_;
};

}  // namespace motley
