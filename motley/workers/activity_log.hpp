// The activity of the thread that computes: written by it, read by the thread that sends Alive.
#pragma once

#include <pthread.h>

#include <ctime>
#include <mutex>
#include <optional>

#include "motley/base/clock.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

class ActivityLog {
 public:
  // Of the calling thread, which is always the same one. The same activity again restarts its times.
  void set(std::uint64_t epoch, std::uint64_t step, Doing doing, int peer = -1) {
    const std::lock_guard lock(mutex_);
    begin({.epoch = epoch, .step = step, .doing = doing, .peer = peer});
  }
  // In the same step.
  void set(Doing doing, int peer = -1) {
    const std::lock_guard lock(mutex_);
    begin({.epoch = activity_.epoch, .step = activity_.step, .doing = doing, .peer = peer});
  }

  Activity get() const {
    const std::lock_guard lock(mutex_);
    Activity activity = activity_;
    activity.for_s = seconds_since(since_);
    if (clock_) activity.processor_s = seconds_of(*clock_) - processor_before_s_;
    return activity;
  }
  // Total time of computing up to the last set().
  double computed_s() const {
    const std::lock_guard lock(mutex_);
    return computed_s_;
  }

 private:
  void begin(const Activity& activity) {
    const Instant now = Clock::now();
    if (activity_.doing == Doing::computing) computed_s_ += seconds_between(since_, now);
    if (clockid_t own = 0; !clock_ && ::pthread_getcpuclockid(::pthread_self(), &own) == 0) clock_ = own;
    activity_ = activity;
    since_ = now;
    if (clock_) processor_before_s_ = seconds_of(*clock_);
  }
  static double seconds_of(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  mutable std::mutex mutex_;
  Activity activity_;
  Instant since_ = Clock::now();
  std::optional<clockid_t> clock_;  // of the thread's processor time
  double processor_before_s_ = 0, computed_s_ = 0;
};

}  // namespace motley
