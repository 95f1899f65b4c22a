// Whether workers compute a run's steps as fast as they used to: a value, without a clock. SpeedMonitor
// (workers/speed_monitor.hpp) is for serving, with many steps of different sizes; training steps are alike and may be
// long, so that two must do.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace motley {

class StepSpeed {
 public:
  struct Change {
    std::size_t worker = 0;
    double factor = 1;  // of the usual time
    bool slow = false;  // false: as fast as usual again
  };
  // `seconds` of computing that a step took each worker, without waits for others. Returns whose speed has changed.
  //
  // A worker is slow once its latest two steps together took at least eight times the usual time and a tenth of a
  // second, and its factor is at least twice the median of the others'; until its latest two took less than twice the
  // usual. So a twentieth of the speed is found by the first whole step. Usual is the median of up to 32 steps before
  // it became slow, and is known after four. The first step of a run pays for memory and does not count.
  std::vector<Change> add(const std::vector<double>& seconds);

 private:
  struct Worker {
    std::deque<double> usual, latest;  // steps
    double factor = 1;
    bool slow = false;
  };
  std::vector<Worker> workers_;  // none before the first step
};

}  // namespace motley
